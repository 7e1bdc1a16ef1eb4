"""`grpobench report`, `figure`, `keep`, `docs` and `calibrate`: what is written from runs."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.options import PATH, Options, flag, json_option, out_option, workers_option
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say

if TYPE_CHECKING:
    from grpobench.analysis.report.facts import Facts

FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")
FIGURE_FORMATS = ("pdf", "svg", "pgf", "png")
LEFT_OUT = ("val. best", "val. last")
"""Columns that the report has and a terminal has no room for."""
MOST_WARNINGS = 5
"""Most warnings that a terminal shows."""
CALIBRATE = "grpobench calibrate"


@click.argument("folder", type=PATH, metavar="DIR", help="Such as results/quickstart.")
@flag("--strict", "Write no report where a file of a run is damaged.")
@click.option("--format", default=",".join(FORMATS), metavar="LIST", help=f"Default: {','.join(FORMATS)}.")
@click.option(
    "--margin",
    type=float,
    metavar="POINTS",
    help="Call arms equivalent within so many points of accuracy. Default: the recipe's, else 2.",
)
def report_command(options: Options) -> int:
    from grpobench.analysis.tools.text import why_no_experiment
    from grpobench.runs.tools.strict import ConfigError

    formats = [part.strip() for part in options.format.split(",") if part.strip()]
    faults = [unknown("--format", name, FORMATS) for name in formats if name not in FORMATS]
    if not options.folder.is_dir():
        faults.append(why_no_experiment(options.folder))
    if faults:
        raise ConfigError(faults)
    say(f"report: {write_report(options.folder, formats, options.margin, options.strict)[0]}")
    return DONE


def write_report(
    folder: Path, formats: Sequence[str], margin: float | None = None, strict: bool = False
) -> tuple[Path, list[str]]:
    """Write the report, and say what is damaged and so left out. Where it is, and its table of accuracies as
    lines. Raises DataError, if `strict` for anything that is damaged."""
    from grpobench.analysis.report.crew import drawing_crew
    from grpobench.analysis.tools.processes import usable_cores
    from grpobench.tasks.data.tables import DataError

    with drawing_crew(formats, usable_cores()) as drawers:
        # These load pandas and matplotlib, as the crew's helpers do meanwhile.
        from grpobench.analysis.checks import DAMAGED_TITLE, SPARED
        from grpobench.analysis.runfolder.files import LogError
        from grpobench.runs.api.results import load

        try:
            results = load(folder, margin=margin, strict=strict)
            for title in (DAMAGED_TITLE, SPARED):
                for fault in results.alarms.get(title, ()):
                    say(f"grpobench: {title[0].lower()}{title[1:]}: {fault}", file=sys.stderr)
            return results.write(drawers, formats=formats), accuracy_lines(results.facts)
        except LogError as error:  # analysis/ knows nothing of the errors of other rooms
            raise DataError(str(error)) from error


def accuracy_lines(facts: Facts) -> list[str]:
    """What a report says first, as a terminal shows it, with the cells that the report itself prints.

    The sentence that says what happened; one line per task and arm: accuracy before and after in percent,
    the interval over seeds, each seed; the verdicts; and the titles of the gravest warnings. No table where
    no run was evaluated."""
    from grpobench.analysis.figures.table import text_lines
    from grpobench.analysis.report.terminal import verdict_lines

    warnings = [f"The report warns: {warning.title}." for warning in facts.warnings[:MOST_WARNINGS]]
    if (more := len(facts.warnings) - MOST_WARNINGS) > 0:
        warnings.append(f"The report has {more} more warning{'s' * (more > 1)}.")
    table = facts.tables.get("accuracy")
    if table is None:
        return [facts.headline, *warnings]
    kept = [index for index, name in enumerate(table.header) if name not in LEFT_OUT]
    rows = [[str(row[index]) for index in kept] for row in (table.header, *table.rows)]
    verdicts = verdict_lines(facts.numbers.compared, facts.experiment.control)
    title = f"{table.title}, in percent:"
    return [facts.headline, title, *text_lines(rows), *verdicts, *warnings]


@click.argument(
    "name",
    metavar="NAME",
    help="One or more of grpobench list figures, with commas between them, or all that the logs allow.",
    shell_complete=names_of("figures"),
)
@click.argument(
    "folders",
    type=PATH,
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="Such as results/quickstart. Of several folders, all arms are drawn in one figure.",
)
@click.option(
    "--width",
    default="text",
    metavar="W",
    help="Inches, or text, column (7 and 3.4 inches of a two-column page), neurips, icml, icml-text, acl or "
    "acl-text. Figures are drawn for the width, never scaled. Default: text.",
)
@click.option("--tasks", metavar="LIST", help="Draw these tasks only, such as arithmetic,nanocode.")
@click.option("--arms", metavar="LIST", help="Draw these arms only; p values stay corrected for all pairs.")
@click.option(
    "--labels",
    metavar="LIST",
    help="Names of arms and tasks in figures, such as 'grpo=GRPO,ppo=PPO (critic)'.",
)
@click.option(
    "--font",
    default="",
    metavar="F",
    help="sans, serif, mono or the name of an installed font, and a size in points, such as 'serif 9'.",
)
@click.option("--format", default="pdf", metavar="LIST", help="pdf, svg, png, pgf. Default: pdf.")
@out_option("figures")
def figure_command(options: Options) -> int:
    # These load pandas and matplotlib.
    from grpobench.analysis.report.catalog import FIGURES
    from grpobench.analysis.runfolder.files import LogError
    from grpobench.analysis.runfolder.load import load
    from grpobench.analysis.runfolder.several import combine_experiments
    from grpobench.analysis.tools.text import why_no_experiment
    from grpobench.runs.api.results import Results
    from grpobench.runs.tools.strict import ConfigError
    from grpobench.tasks.data.tables import DataError

    formats = [part.strip() for part in options.format.split(",") if part.strip()]
    faults = [unknown("--format", name, FIGURE_FORMATS) for name in formats if name not in FIGURE_FORMATS]
    if not formats:
        faults.append(f"--format: names no format; known: {', '.join(FIGURE_FORMATS)}")
    asked = comma_list(options.name) or [options.name]
    faults += [unknown("figure", name, ("all", *FIGURES)) for name in asked if name not in ("all", *FIGURES)]
    for folder in options.folders:
        if not folder.is_dir():
            faults.append(why_no_experiment(folder))
    if faults:
        raise ConfigError(faults)
    names = FIGURES if "all" in asked else asked
    try:
        results = Results(combine_experiments([load(folder) for folder in options.folders]))
        written = results.write_figures(
            options.out,
            names,
            formats,
            options.width,
            tasks=comma_list(options.tasks),
            arms=comma_list(options.arms),
            labels=labels_in(options.labels or ""),
            font=options.font,
        )
    except (LogError, ValueError, RuntimeError) as error:  # a folder, nothing to draw, no LaTeX for pgf
        raise DataError(str(error)) from error
    say("\n".join(map(str, written)))
    return DONE


def comma_list(text: str | None) -> list[str]:
    """The names in a list with commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def labels_in(text: str) -> dict[str, str]:
    """``grpo=GRPO,ppo=PPO (critic)``: a comma begins a new name only where `=` follows, so that labels may
    have commas. Raises ConfigError."""
    from grpobench.runs.tools.strict import ConfigError

    labels = {}
    for part in re.split(r",(?=[^,=]+=)", text) if text else ():
        name, equals, label = (word.strip() for word in part.partition("="))
        if not (name and equals and label):
            raise ConfigError([f"--labels: {part.strip()!r} is no NAME=LABEL, such as grpo=GRPO"])
        labels[name] = label
    return labels


def unknown(where: str, name: str, known: Sequence[str]) -> str:
    """The message for a name that does not exist."""
    from grpobench.runs.tools.strict import did_you_mean

    hint = did_you_mean(name, known, f"known: {', '.join(known)}")
    return f"{where}: unknown {'format' if where == '--format' else 'name'} {name!r}; {hint}"


@click.argument(
    "folder",
    type=PATH,
    required=False,
    metavar="[DIR]",
    help="Write the pages here. Default: docs of the project's checkout.",
)
def docs_command(options: Options) -> int:
    from grpobench.runs.inventory import folders, pages

    app = click.get_current_context().find_root().command
    assert isinstance(app, click.Group)
    for path in pages.write(options.folder or folders.docs_folder(), app):
        say(path)
    return DONE


@click.argument("folder", type=PATH, metavar="DIR", help="Such as results/quickstart.")
@click.option(
    "--to",
    type=PATH,
    metavar="DIR",
    help="Write the table here. Default: docs/results of the project's checkout.",
)
@flag(
    "--part",
    "Keep the runs of a finding that have a result; `grpobench finding run` runs the others, on any machine.",
)
def keep_command(options: Options) -> int:
    from grpobench.analysis.findings import record as registration
    from grpobench.analysis.kept import keep, partial, read
    from grpobench.analysis.record import as_text
    from grpobench.analysis.runfolder.files import LogError
    from grpobench.analysis.runfolder.load import load
    from grpobench.runs.inventory import folders
    from grpobench.runs.tools import files
    from grpobench.runs.tools.strict import ConfigError
    from grpobench.tasks.data.tables import DataError

    if options.part and options.to:
        raise ConfigError(["--part: parts are kept in the project's checkout; leave --to out"])
    folder = options.to or folders.docs_folder("name one: --to DIR") / folders.FOLDER
    if options.to:
        files.demand_writable(options.to, "--to")
    if (options.folder / registration.FILE).exists():
        return keep_finding(options.folder, folder / registration.FOLDER, options.part)
    if options.part:
        raise DataError(f"{options.folder}: --part is for the folder of a finding")
    try:
        content = keep(load(options.folder))
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error
    path = folder / f"{content['name']}.json"
    with contextlib.suppress(LogError):  # a damaged table may be written again
        if told := path.exists() and partial(read(path), content):
            raise DataError(
                f"{path} stands: {options.folder} is not the whole experiment: {'; '.join(told)}; keep it "
                "elsewhere with --to DIR, or delete the kept table first"
            )
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, as_text(content).encode())
    say(f"{path}; grpobench docs writes it into the pages")
    return DONE


def keep_finding(source: Path, folder: Path, part: bool) -> int:
    """Keep what was measured of a finding's runs, with those of a part that was kept before."""
    from grpobench.analysis.findings import record as registration
    from grpobench.analysis.runfolder.files import LogError
    from grpobench.analysis.runfolder.load import load
    from grpobench.runs.commands.finding_parts import part_path, read_part, with_part
    from grpobench.runs.commands.finding_records import demand_whole, set_aside
    from grpobench.runs.tools import files
    from grpobench.tasks.data.tables import DataError

    try:
        found = (registration.part_of if part else registration.record_of)(load(source))
    except LogError as error:
        raise DataError(str(error)) from error
    name, scale = found.registration.finding.name, found.registration.scale
    before = read_part(name, scale)
    if part and before and before.registration != found.registration:
        raise DataError(f"{source}: registered apart from the part that is kept in {part_path(name, scale)}")
    record = with_part(found, before) or found
    if record.waits and not part:
        why = f"{len(record.waits)} runs without result; --part keeps the others until these have run"
        raise DataError(f"{source}: only whole experiments are kept; {why}")
    unfinished = part_path(name, scale)
    if record.waits and unfinished:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(unfinished, registration.record_text(record).encode())
        say(f"{unfinished}; {len(record.states)} runs, and {len(record.waits)} to come")
        return DONE
    path = folder / f"{name}-{scale}.json"
    demand_whole(record, path, source)
    folder.mkdir(parents=True, exist_ok=True)
    if earlier := set_aside(path, record):
        say(f"{earlier}: the table by the earlier rule, whose conclusion the page shows beside")
    files.write_atomic(path, registration.record_text(record).encode())
    if unfinished:
        unfinished.unlink(missing_ok=True)
    say(f"{path}; grpobench docs writes it into the pages")
    return DONE


@out_option("results")
@workers_option
@flag("--keep", "Keep the numbers in the project's checkout, for grpobench docs.")
@json_option
def calibrate_command(options: Options) -> int:
    from grpobench.analysis.calibration import markdown, table
    from grpobench.analysis.record import as_text
    from grpobench.analysis.runfolder.files import LogError
    from grpobench.analysis.runfolder.load import load
    from grpobench.runs.calibration import library
    from grpobench.runs.inventory import folders
    from grpobench.runs.tools import files
    from grpobench.tasks.data.tables import DataError

    plan = library.planned()
    kept = (
        folders.docs_folder("leave --keep out") / folders.FOLDER / f"{table.NAME}.json"
        if options.keep
        else None
    )
    try:
        outcome = library.run(plan, options.out, options.workers)
    except RuntimeError as error:
        return complain(str(error), INFRASTRUCTURE)
    if outcome.code:
        unfinished = [run.name for run in outcome.runs if run.state not in ("finished", "diverged")]
        say(f"without a result: {', '.join(unfinished[:5])}; the same command goes on", file=sys.stderr)
        return outcome.code
    try:
        content = table.calibrate(load(outcome.folder), plan.library, CALIBRATE)
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error
    if kept is not None:
        files.write_atomic(kept, as_text(content).encode())
    say(as_json(content) if options.json else "\n".join(markdown.as_lines(content)))
    if kept is not None:
        say(f"{kept}; grpobench docs writes it into the page", file=sys.stderr)
    return DONE
