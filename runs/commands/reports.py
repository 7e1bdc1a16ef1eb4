"""`grpobench report`, `figure`, `keep`, `docs` and `calibrate`: what is written from runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.options import (
    PATH,
    Options,
    comma_list,
    flag,
    json_option,
    out_option,
    workers_option,
)
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say, warn

if TYPE_CHECKING:
    from grpobench.analysis.report.facts import Facts

FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")
FIGURE_FORMATS = ("pdf", "svg", "pgf", "png")
LEFT_OUT = ("val. best", "val. last")
"""Columns that the report has and a terminal has no room for."""
MOST_WARNINGS = 5
"""Most warnings that a terminal shows."""


@click.argument("folder", type=PATH, metavar="DIR", help="Such as results/quickstart.")
@flag("--strict", "Write no report if a file of a run is damaged.")
@click.option("--format", default=",".join(FORMATS), metavar="LIST", help=f"Default: {','.join(FORMATS)}.")
@click.option(
    "--margin",
    type=float,
    metavar="POINTS",
    help="Smallest difference of accuracy that matters, in points. Default: the recipe's, else 2.",
)
@click.option(
    "--target",
    "targets",
    type=float,
    multiple=True,
    metavar="SHARE",
    help="Show how soon runs reach this validation accuracy, such as 0.6; in place of the recipe's targets. "
    "May be repeated.",
)
def report_command(options: Options) -> int:
    from grpobench.analysis.tools.text import why_no_experiment
    from grpobench.runs.tools.strict import ConfigError

    formats = comma_list(options.format)
    faults = [unknown("--format", name, FORMATS) for name in formats if name not in FORMATS]
    if not options.folder.is_dir():
        faults.append(why_no_experiment(options.folder))
    if faults:
        raise ConfigError(faults)
    path, _ = write_report(options.folder, formats, options.margin, options.strict, options.targets)
    say(f"report: {path}")
    return DONE


def write_report(
    folder: Path,
    formats: Sequence[str],
    margin: float | None = None,
    strict: bool = False,
    targets: Sequence[float] = (),
) -> tuple[Path, list[str]]:
    """Write the report, and say what is damaged and so left out. Where it is, and its table of accuracies as
    lines."""
    from grpobench.runs.api.reporting import report

    path, facts = report(folder, formats, warn, margin, strict, targets)
    return path, accuracy_lines(facts)


def accuracy_lines(facts: Facts) -> list[str]:
    """What a report says first, as a terminal shows it, with the cells that the report itself prints.

    The sentence that says what happened; one line per task and arm: accuracy before and after in percent,
    the interval over seeds, each seed; the arms and pairs over learning rates, if there are several; the
    verdicts; and the titles of the gravest warnings. No table where no run was evaluated."""
    from grpobench.analysis.figures.table import plain
    from grpobench.analysis.report.terminal import rate_lines, verdict_lines

    warnings = [f"The report warns: {warning.title}." for warning in facts.warnings[:MOST_WARNINGS]]
    if (more := len(facts.warnings) - MOST_WARNINGS) > 0:
        warnings.append(f"The report has {more} more warning{'s' * (more > 1)}.")
    table = facts.tables.get("accuracy")
    if table is None:
        return [facts.headline, *warnings]
    shown_columns = [index for index, name in enumerate(table.header) if name not in LEFT_OUT]
    head, *rows = ([row[index] for index in shown_columns] for row in (table.header, *table.rows))
    verdicts = verdict_lines(facts.numbers.compared, facts.experiment.control)
    at_rates = ""
    if curves := facts.tables.get("rate_curves"):
        at_rates = " at own learning rates"
        over_rates = [f"{curves.title}:", *curves.text(), *rate_lines(facts.numbers.rates)]
        verdicts = [*over_rates, f"Verdicts{at_rates}:", *verdicts]
    title = f"{table.title}{at_rates}, in percent:"
    return [facts.headline, title, *plain(head, rows).text(), *verdicts, *warnings]


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
    help="Such as results/quickstart. With several folders, one figure shows all arms.",
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
    from grpobench.analysis.tools.text import why_no_experiment
    from grpobench.analysis.topics.figure_names import FIGURE_SUMMARIES
    from grpobench.runs.api.results import load  # This import loads pandas and matplotlib.
    from grpobench.runs.tools.strict import ConfigError
    from grpobench.tasks.data.tables import DataError

    formats = comma_list(options.format)
    faults = [unknown("--format", name, FIGURE_FORMATS) for name in formats if name not in FIGURE_FORMATS]
    if not formats:
        faults.append(f"--format: names no format; known: {', '.join(FIGURE_FORMATS)}")
    figure_names = comma_list(options.name) or [options.name]
    choices = ("all", *FIGURE_SUMMARIES)
    faults += [unknown("figure", name, choices) for name in figure_names if name not in choices]
    for folder in options.folders:
        if not folder.is_dir():
            faults.append(why_no_experiment(folder))
    if faults:
        raise ConfigError(faults)
    names = FIGURE_SUMMARIES if "all" in figure_names else figure_names
    try:
        written = load(*options.folders).write_figures(
            options.out,
            names,
            formats,
            options.width,
            tasks=comma_list(options.tasks),
            arms=comma_list(options.arms),
            labels=labels_in(options.labels or ""),
            font=options.font,
        )
    except (ValueError, RuntimeError) as error:  # nothing to draw, no LaTeX for pgf
        raise DataError(str(error)) from error
    say("\n".join(map(str, written)))
    return DONE


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


def unknown(where: str, name: str, valid_names: Sequence[str]) -> str:
    """The message for a name that does not exist."""
    from grpobench.runs.tools.strict import did_you_mean

    hint = did_you_mean(name, valid_names, f"known: {', '.join(valid_names)}")
    return f"{where}: unknown {'format' if where == '--format' else 'name'} {name!r}; {hint}"


@click.argument(
    "folder",
    type=PATH,
    required=False,
    metavar="[DIR]",
    help="Write the pages here. Default, inside the project's checkout: its docs.",
)
def docs_command(options: Options) -> int:
    from grpobench.runs.inventory import folders, pages
    from grpobench.runs.tools.strict import ConfigError

    app = click.get_current_context().find_root().command
    assert isinstance(app, click.Group)
    folder = options.folder or folders.docs_folder()
    if not options.folder and not Path.cwd().is_relative_to(folder.parent):
        raise ConfigError(
            [f"docs: this folder is not in the checkout {folder.parent}; name one: grpobench docs DIR"]
        )
    for path in pages.write(folder, app):
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
    from grpobench.runs.api.keeping import keep

    say("\n".join(keep(options.folder, options.to, options.part)))
    return DONE


@out_option("results")
@workers_option
@flag("--keep", "Keep the numbers in the project's checkout, for grpobench docs.")
@json_option
def calibrate_command(options: Options) -> int:
    from grpobench.analysis.calibration import markdown
    from grpobench.analysis.calibration.table import NAME
    from grpobench.runs.api.keeping import kept_file
    from grpobench.runs.calibration.library import calibrate

    record_path = kept_file(NAME) if options.keep else None
    try:
        outcome, content = calibrate(options.out, options.workers, record_path)
    except RuntimeError as error:
        return complain(str(error), INFRASTRUCTURE)
    if content is None:
        unfinished = [run.name for run in outcome.runs if run.state not in ("finished", "diverged")]
        say(f"without a result: {', '.join(unfinished[:5])}; the same command resumes", file=sys.stderr)
        return outcome.code
    say(as_json(content) if options.json else "\n".join(markdown.as_lines(content)))
    if record_path is not None:
        say(f"{record_path}; grpobench docs writes it into the page", file=sys.stderr)
    return DONE
