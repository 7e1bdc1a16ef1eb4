"""`grpobench tasks readable`: whether the answers of models can be read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpobench.runs.commands.models import assignments, chat_option, task_set_option
from grpobench.runs.commands.options import (
    DTYPE,
    POSITIVE,
    Options,
    data_options,
    flag,
    json_option,
    out_option,
    trust_option,
    unsafe_option,
)
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say

if TYPE_CHECKING:
    from grpobench.analysis.readable import ReadableRow
    from grpobench.runs.evaluation.readable import Asked


@click.argument("models", nargs=-1, required=True, metavar="MODEL...", help="As in model.name of a recipe.")
@click.option(
    "--task",
    metavar="T,...",
    help="Tasks, separated by commas. Default: those with published problems that are on this machine.",
)
@click.option("--problems", type=POSITIVE, default=64, metavar="N", help="First N problems. Default: 64.")
@flag("--no-greedy", "Leave greedy decoding out.")
@click.option("--temperature", type=float, metavar="X", help="Of sampled answers. Default: 1.")
@click.option("--max-completion-tokens", type=POSITIVE, metavar="N", help="Default: the task's.")
@chat_option
@click.option("--dtype", type=DTYPE, default="float32", help="Precision of forward passes.")
@click.option(
    "--warm-start", type=POSITIVE, metavar="N", help="Measure again after N updates on reference answers."
)
@click.option(
    "--batch", type=POSITIVE, default=16, metavar="N", help="Demonstrations per update. Default: 16."
)
@click.option(
    "--learning-rate", type=float, default=5e-5, metavar="X", help="Their peak rate. Default: 5e-5."
)
@task_set_option
@out_option("results/models")
@flag("--keep", "Keep the rows in the project's checkout, for grpobench docs.")
@json_option
@data_options
@trust_option
@unsafe_option
def readable_command(options: Options) -> int:
    """One row per task and model: the share of answers that the verifier can read, that the token limit cut
    and that are right, as written and by likelihood. What was measured is not measured again."""
    from grpobench.analysis import readable as tables
    from grpobench.analysis.figures.table import text_lines
    from grpobench.runs.evaluation import readable

    kept = table_path() if options.keep else None
    rows = []
    try:
        for row in readable.measure(request(options), lambda line: say(line, file=sys.stderr)):
            rows.append(row)
            if kept is not None:
                keep(kept, row)
    except RuntimeError as error:  # the grader gives up
        return complain(str(error), INFRASTRUCTURE)
    if options.json:
        say(as_json([row.row() for row in rows]))
    else:
        say("\n".join(text_lines([list(tables.HEADER), *tables.cells(rows)])))
    if kept is not None:
        say(f"{kept}; grpobench docs writes it into the page", file=sys.stderr)
    return DONE


def request(options: Options) -> Asked:
    """What the options ask for. Raises `ConfigError`."""
    from grpobench.runs.evaluation.question import EvalRequest
    from grpobench.runs.evaluation.readable import Asked, real_tasks
    from grpobench.runs.settings import registries
    from grpobench.runs.settings.config import ModelConfig
    from grpobench.runs.tools import strict

    names = options.task.split(",") if options.task else real_tasks()
    for name in names:
        registries.chosen(registries.tasks(), name, "task")
    if not names:
        raise strict.ConfigError(["no published problems are on this machine; grpobench data fetch all"])
    given = {
        "chat_template": not options.no_chat_template,
        "dtype": options.dtype,
        "warm_start": options.warm_start or 0,
        "warm_start_batch": options.batch,
        "warm_start_learning_rate": options.learning_rate,
    }
    faults: list[str] = []
    model = strict.build(ModelConfig, given, "model", faults)
    if isinstance(model, strict.Bad):
        raise strict.ConfigError(faults)
    wish = EvalRequest(
        task="",
        sets=assignments(options.sets),
        problems=options.problems,
        samples=1,
        greedy=not options.no_greedy,
        temperature=options.temperature,
        limit=options.max_completion_tokens,
        out=options.out,
        template=not options.no_chat_template,
        dtype=options.dtype,
    )
    return Asked(options.models, names, wish, model)


def table_path() -> Path:
    """The file of the kept table. Raises `ConfigError` outside of a checkout."""
    from grpobench.analysis import readable as tables
    from grpobench.runs.inventory import folders

    return folders.docs_folder("leave --keep out") / folders.FOLDER / f"{tables.NAME}.json"


def keep(path: Path, row: ReadableRow) -> None:
    """Add a row to the kept table, in the place of the one that measured the same."""
    from grpobench.analysis import readable as tables
    from grpobench.analysis.record import as_text
    from grpobench.runs.tools import files

    rows = tables.merge(tables.read(path) if path.exists() else [], [row])
    files.write_atomic(path, as_text(tables.content_of(rows)).encode())
