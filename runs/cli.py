"""The command line.

Exit codes: 0 done; 2 bad input or configuration; 3 a run diverged and the recipe asks to fail on that;
70 infrastructure; 75 preempted, and resumable by the same command.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from grpobench.runs.commands.arguments import FORMATS, parser, seed_list
from grpobench.runs.tools.deferred import defer

if TYPE_CHECKING:
    from grpobench.runs.matrix.matrix import Outcome
    from grpobench.runs.settings.recipe import Recipe
    from grpobench.tasks.task import Task

# The suite's own modules are imported inside the commands, after torch has been deferred: a mistake in a
# recipe is reported before torch could load.

DONE, BAD_INPUT, INFRASTRUCTURE, PREEMPTED = 0, 2, 70, 75


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run the command, turn its errors into a message and an exit code."""
    commands = {
        "run": run_command,
        "status": status_command,
        "report": report_command,
        "eval": eval_command,
        "warmstart": warmstart_command,
        "list": list_command,
        "show": show_command,
        "keep": keep_command,
        "docs": docs_command,
        "doctor": doctor_command,
        "serve": serve_command,
        "bench": bench_command,
        "data fetch": data_fetch_command,
        "data list": data_list_command,
        "tasks check": tasks_check_command,
        "tasks pairs": tasks_pairs_command,
        "tasks readings": tasks_readings_command,
    }
    options = parser(commands).parse_args(arguments)
    # Before torch loads, here and in every worker: its threads wait for each other in a loop that holds the
    # core, by default for milliseconds. With one other busy program that made a step 20 times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if options.light:
        defer("torch")
    from grpobench.runs.tools.lock import FolderError
    from grpobench.runs.tools.strict import ConfigError
    from grpobench.tasks.data.errors import DataError

    try:
        use_places(options)
        code: int = options.command(options)
        sys.stdout.flush()
    except (ConfigError, DataError, FolderError) as error:
        return complain(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        return complain("interrupted", PREEMPTED)
    except BrokenPipeError:  # The reader of a pipe, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return complain(f"the disk is full: {error}; free space and start again", INFRASTRUCTURE)
        return complain(str(error), INFRASTRUCTURE)
    return code


def show(text: object, file: TextIO | None = None, flush: bool = False) -> None:
    """Print, with nothing in it that a terminal would obey: names, answers and errors may be of others."""
    from grpobench.analysis.tools.visible import visible

    print(visible(str(text)), file=file, flush=flush)


def complain(message: str, code: int) -> int:
    show(f"grpobench: {message}", file=sys.stderr)
    return code


def use_places(options: argparse.Namespace) -> None:
    """Put the options of `add_data`, `add_trust` and `add_unsafe` where worker processes see them too."""
    from grpobench.runs.models.loading import FOLDER_VARIABLE as MODELS
    from grpobench.tasks.data.sources import FOLDER_VARIABLE as DATA
    from grpobench.tasks.data.sources import SKIP_VARIABLE

    chosen = {DATA: "data_dir", MODELS: "model_dir", SKIP_VARIABLE: "skip_bad"}
    for variable, option in chosen.items():
        if value := getattr(options, option, None):
            os.environ[variable] = "1" if value is True else value
    if getattr(options, "trust_remote_code", False):
        from grpobench.runs.models import trust

        trust.allow()
    if getattr(options, "unsafe_exec", False):
        from grpobench.tasks.sandbox.choose import allow_unsafe

        allow_unsafe()


def run_command(options: argparse.Namespace) -> int:
    from grpobench.runs.settings.recipe import read_recipe
    from grpobench.runs.tools.strict import ConfigError

    sets = list(options.sets)
    if options.seeds:
        sets.append(f"seeds={seed_list(options.seeds)}")
    recipe = read_recipe(options.recipe, sets)
    if options.json and not options.dry_run:
        raise ConfigError(["--json: belongs to --dry-run; of runs that have begun, `grpobench status` tells"])
    if options.dry_run:
        return dry_run(recipe, options)
    if recipe.left_out:
        show("left out, because the task does not serve the algorithm:")
        show("\n".join(f"  {why}" for why in recipe.left_out), flush=True)
    from grpobench.runs.matrix.matrix import run_matrix

    try:
        outcome = run_matrix(recipe, options.out, options.workers, allow_change=options.allow_change)
    except RuntimeError as error:
        return complain(str(error), INFRASTRUCTURE)
    tell(outcome)
    if outcome.code != PREEMPTED and not outcome.named("disk full"):
        results = outcome.named("finished") + outcome.named("diverged")
        if results:
            path, table = report(outcome.folder, FORMATS)
            show("\n".join([*table, f"report: {path}"]))
    return outcome.code


def dry_run(recipe: Recipe, options: argparse.Namespace) -> int:
    from grpobench.runs.matrix.dry_run import as_lines, preview
    from grpobench.runs.tools.machine import places

    workers = options.workers or recipe.head.workers or places()
    found = preview(recipe, options.out, workers, options.allow_change)
    show(as_json(found.row()) if options.json else "\n".join(as_lines(found)))
    return DONE


def tell(outcome: Outcome) -> None:
    """How the runs ended, and where to look for those that did not finish."""
    counts: dict[str, int] = {}
    for run in outcome.runs:
        counts[run.place] = counts.get(run.place, 0) + 1
    show(f"{len(outcome.runs)} runs: " + ", ".join(f"{count} {place}" for place, count in counts.items()))
    for run in outcome.named("crashed") + outcome.named("disk full"):
        seen = run.path / "crash.txt"
        show(
            f"{run.name}: {run.why} (see {seen if seen.exists() else run.path / 'log.txt'})", file=sys.stderr
        )
    for run in outcome.named("refused"):
        show(f"{run.name}: {run.why}", file=sys.stderr)
    if outcome.code == PREEMPTED:
        show("stopped; the same command resumes", file=sys.stderr)


def report(folder: Path, formats: Sequence[str]) -> tuple[Path, list[str]]:
    """Write the report. Where it is, and its table of accuracies as lines. Raises DataError."""
    from grpobench.analysis.logs.files import LogError
    from grpobench.analysis.logs.load import load
    from grpobench.analysis.report.facts import gather
    from grpobench.analysis.report.report import write
    from grpobench.runs.commands.results_table import lines
    from grpobench.runs.measure.catalogue import catalogue
    from grpobench.tasks.data.errors import DataError

    definitions = {name: metric.definition for name, metric in catalogue().items()}
    try:
        facts = gather(load(folder))
        return write(facts, formats, definitions), lines(facts)
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error


def status_command(options: argparse.Namespace) -> int:
    from rich.console import Console

    from grpobench.runs.matrix import standing
    from grpobench.runs.tools.strict import ConfigError

    if options.json and options.watch:
        raise ConfigError(["status: --json shows one moment and --watch goes on; choose one of them"])
    if options.watch:
        standing.watch(options.folder, Console())
        return DONE
    found = standing.overviews(options.folder)
    if options.json:
        show(as_json([one.row() for one in found]))
    else:
        show("\n\n".join("\n".join(one.lines()) for one in found))
    return DONE


def report_command(options: argparse.Namespace) -> int:
    from grpobench.runs.tools.strict import ConfigError, nearest

    formats = [part.strip() for part in options.format.split(",") if part.strip()]
    faults = []
    for name in formats:
        if name not in FORMATS:
            guess = nearest(name, FORMATS)
            did = f"did you mean {guess}?" if guess else f"known: {', '.join(FORMATS)}"
            faults.append(f"--format: unknown format {name!r}; {did}")
    if not options.folder.is_dir():
        faults.append(f"{options.folder}: no such folder; give a matrix folder such as results/quickstart")
    if faults:
        raise ConfigError(faults)
    show(f"report: {report(options.folder, formats)[0]}")
    return DONE


def eval_command(options: argparse.Namespace) -> int:
    """Evaluate one model, one run folder, or every run of a matrix folder."""
    from grpobench.runs.evaluation import records as assess
    from grpobench.runs.evaluation.shown import lines, paired

    both: tuple[assess.Through, ...] = ("grpobench", "lm-eval")
    wish = assess.Wish(
        task=options.task,
        sets=assignments(options.sets),
        split=options.split,
        problems=options.problems,
        samples=options.samples,
        greedy=not options.no_greedy,
        temperature=options.temperature,
        limit=options.max_new_tokens,
        seed=options.seed,
        drop_long=options.drop_long,
        through=both if options.through == "both" else (options.through,),
        base=not options.no_base,
        again=options.again,
        out=options.out,
        tasks_folder=options.keep_tasks,
        include=options.include,
        fewshot=options.fewshot,
        template=not options.no_chat_template,
    )
    records = []
    try:
        for record in assess.assess(options.target, wish, lambda line: show(line, file=sys.stderr)):
            records.append(record)
            if not options.json:
                show("\n".join(lines(record)))
    except RuntimeError as error:  # the grader gives up
        return complain(str(error), INFRASTRUCTURE)
    compared = paired(records)
    if options.json:
        show(as_json({"records": [record.summary for record in records], "agreement": compared.rows}))
    elif compared.lines:
        show("\n".join(compared.lines))
    return DONE


def warmstart_command(options: argparse.Namespace) -> int:
    """Make a warm start, or find it in the cache, and measure the model before and after."""
    from grpobench.runs.prepare.measured import Measure, as_lines, warm_start_command
    from grpobench.runs.settings.config import ModelConfig
    from grpobench.runs.tools import strict
    from grpobench.runs.tools.ticker import Ticker

    settings = {
        "warm_start": options.steps,
        "warm_start_batch": options.batch,
        "warm_start_examples": options.examples,
        "warm_start_learning_rate": options.learning_rate,
        "dtype": options.dtype,
    }
    faults: list[str] = []
    given = {name: value for name, value in settings.items() if value is not None}
    config = strict.build(ModelConfig, {"name": options.model, **given}, "model", faults)
    if isinstance(config, strict.Bad):
        raise strict.ConfigError(faults)
    task = chosen_task(options)
    measure = Measure(options.problems, options.samples, options.max_new_tokens or 0)
    with Ticker() as ticker:
        about = warm_start_command(options.model, task, config, measure, options.out, ticker.tell)
    show(as_json(about) if options.json else "\n".join(as_lines(about)))
    return DONE


def chosen_task(options: argparse.Namespace) -> Task:
    """The task that `--task` names with what `--set` says of it. Raises `ConfigError`."""
    from grpobench.runs.inventory import listing
    from grpobench.runs.settings.registries import tasks
    from grpobench.runs.tools import strict

    faults: list[str] = []
    cls = listing.chosen(tasks(), options.task, "task")
    task: Task | strict.Bad = strict.build(cls, assignments(options.sets), f"task.{options.task}", faults)
    if isinstance(task, strict.Bad):
        raise strict.ConfigError(faults)
    if lack := task.missing():
        raise strict.ConfigError([f"task {options.task}: {lack}"])
    return task


def assignments(sets: Sequence[str]) -> dict[str, Any]:
    """``FIELD=VALUE`` texts as a table. Raises `ConfigError`."""
    from grpobench.runs.settings.overrides import parse_set
    from grpobench.runs.tools.strict import ConfigError

    found = {}
    for text in sets:
        parsed = parse_set(text)
        if parsed is None or len(parsed[0]) != 1:
            raise ConfigError([f"--set {text}: write --set FIELD=VALUE with a field of the task"])
        found[parsed[0][0]] = parsed[1]
    return found


def list_command(options: argparse.Namespace) -> int:
    from grpobench.runs.inventory import listing

    rows = listing.LISTS[options.kind]()
    show(as_json(rows) if options.json else "\n".join(listing.as_lines(rows)))
    return DONE


def show_command(options: argparse.Namespace) -> int:
    from grpobench.runs.inventory import listing
    from grpobench.runs.tools.strict import ConfigError

    every = options.kind == "dialects"
    if every == bool(options.name):
        raise ConfigError([f"show {options.kind}: " + ("takes no name" if every else "needs a name")])
    if options.library and options.kind != "algorithm":
        raise ConfigError([f"--as: write grpobench show algorithm NAME --as {options.library}"])
    if every:
        rows = listing.show_dialects()
        text = "\n\n".join("\n".join(listing.dialect_lines(row)) for row in rows)
        show(as_json(rows) if options.json else text)
        return DONE
    if options.library:
        row = listing.show_as(options.name, options.library)
    else:
        row = listing.show(options.kind, options.name)
    differs = options.library or options.kind == "dialect"
    lines = listing.dialect_lines(row) if differs else [listing.as_text(row)]
    show(as_json(row) if options.json else "\n".join(lines))
    return DONE


def keep_command(options: argparse.Namespace) -> int:
    from grpobench.analysis.kept.kept import as_text, keep
    from grpobench.analysis.logs.files import LogError
    from grpobench.analysis.logs.load import load
    from grpobench.runs.inventory import filled, pages
    from grpobench.runs.tools import files
    from grpobench.tasks.data.errors import DataError

    folder = options.to or pages.own_folder("name one: --to DIR") / filled.FOLDER
    try:
        content = keep(load(options.folder))
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(folder / f"{content['name']}.json", as_text(content).encode())
    show(f"{folder / content['name']}.json; grpobench docs writes it into the pages")
    return DONE


def docs_command(options: argparse.Namespace) -> int:
    from grpobench.runs.inventory import pages

    for path in pages.write(options.folder or pages.own_folder()):
        show(path)
    return DONE


def data_fetch_command(options: argparse.Namespace) -> int:
    """0 when everything asked for is here with the right sums, 70 when pip fails."""
    from grpobench.runs.inventory import data

    try:
        show("\n".join(data.fetch(options.names)))
    except data.FetchError as error:
        return complain(str(error), INFRASTRUCTURE)
    return DONE


def data_list_command(options: argparse.Namespace) -> int:
    from grpobench.runs.inventory import data

    rows = data.rows()
    show(as_json(rows) if options.json else "\n".join(data.as_lines(rows)))
    return DONE


def tasks_check_command(options: argparse.Namespace) -> int:
    """0 unless a task fails, then 70. A task whose data is absent does not fail."""
    from grpobench.runs.inventory import check
    from grpobench.runs.tools.strict import ConfigError

    if options.all and options.names:
        raise ConfigError(["tasks check: --all takes every task; leave it or the names away"])
    rows, failed = [], False
    for found in check.checks(options.names, check.MOST if options.problems is None else options.problems):
        failed |= found.state == "failed"
        rows.append(found.row())
        if not options.json:
            show("\n".join(check.as_lines(found)), flush=True)
    if options.json:
        show(as_json(rows))
    return INFRASTRUCTURE if failed else DONE


def tasks_pairs_command(options: argparse.Namespace) -> int:
    """0 where every verdict of ours is the one expected or a kept exception, else 70."""
    from grpobench.tasks.grading import pairs

    return compared(pairs, options)


def tasks_readings_command(options: argparse.Namespace) -> int:
    """0 where ours reads the program that should be read in every completion, else 70."""
    from grpobench.tasks.grading import readings

    return compared(readings, options)


def compared(table: Any, options: argparse.Namespace) -> int:
    """Ask ours and others about the rows of a kept table, and say or keep what they tell now."""
    from grpobench.runs.inventory import pages
    from grpobench.runs.tools import files

    if options.keep:
        pages.own_folder("--keep writes into one")
    kept = table.load()
    now, lacking = table.ask(kept)
    faults = list(table.faults(kept, now))
    if options.json:
        show(as_json([row.row() for row in now]))
    else:
        show("\n".join([*table.as_lines(now), *lacking, *faults]))
    if options.keep:
        files.write_atomic(table.TABLE, table.as_text(now).encode())
    return INFRASTRUCTURE if faults else DONE


def doctor_command(options: argparse.Namespace) -> int:
    """0 when everything that is needed works, else 70."""
    from grpobench.runs.inventory import doctor

    findings = doctor.examine(options.out)
    if options.json:
        show(as_json(doctor.as_rows(findings)))
    else:
        doctor.show(findings)
    return DONE if doctor.healthy(findings) else INFRASTRUCTURE


def serve_command(options: argparse.Namespace) -> int:
    from grpobench.runs.sample.engines import server
    from grpobench.runs.settings.config import SamplerConfig
    from grpobench.runs.tools.strict import ConfigError

    if lack := SamplerConfig(kind="vllm", rows=options.rows, cache_gb=options.cache_gb).missing():
        raise ConfigError([lack])
    server.serve(
        options.model,
        host=options.host,
        port=options.port,
        dtype=options.dtype,
        rows=options.rows,
        cache_gb=options.cache_gb,
        tell=lambda text: show(text, flush=True),
    )
    return DONE


def bench_command(options: argparse.Namespace) -> int:
    if options.sandbox:
        from grpobench.runs.bench import sandbox

        sandbox.main(options.json)
        return DONE
    from grpobench.runs.bench import compare

    compare.main(options.model, options.json)
    return DONE


def as_json(value: Any) -> str:
    from grpobench.analysis.tools.visible import json_text

    return json_text(json.dumps(value, indent=1, ensure_ascii=False))
