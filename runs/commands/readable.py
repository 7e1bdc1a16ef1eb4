"""`grpobench tasks readable`: whether the answers of models can be read."""

from __future__ import annotations

import sys

import click

from grpobench.runs.commands.models import assignments, chat_option, task_set_option
from grpobench.runs.commands.options import (
    DTYPE,
    POSITIVE,
    Options,
    flag,
    json_option,
    out_option,
    task_options,
)
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say, warn_of_precision


@click.argument("models", nargs=-1, required=True, metavar="MODEL...", help="As in model.name of a recipe.")
@click.option(
    "--task",
    metavar="T,...",
    help="Tasks, separated by commas. Default: those with published problems that are on this machine.",
)
@click.option("--problems", type=POSITIVE, default=64, metavar="N", help="First N problems. Default: 64.")
@flag("--no-greedy", "Skip greedy decoding.")
@click.option("--temperature", type=float, metavar="X", help="Temperature of sampled answers. Default: 1.")
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
    "--learning-rate",
    type=float,
    default=5e-5,
    metavar="X",
    help="Peak learning rate of these updates. Default: 5e-5.",
)
@task_set_option
@out_option("results/models")
@flag("--keep", "Keep the rows in the project's checkout, for grpobench docs.")
@json_option
@task_options
def readable_command(options: Options) -> int:
    """One row per task and model: the share of answers that the verifier can read, that the token limit cut
    and that are right, as written and by likelihood. What was measured is not measured again."""
    from grpobench.analysis import readable as tables
    from grpobench.analysis.figures.table import plain
    from grpobench.runs.api.keeping import keep_row, kept_file
    from grpobench.runs.evaluation import readable
    from grpobench.runs.evaluation.question import EvalRequest

    record_path = kept_file(tables.NAME) if options.keep else None
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
    warm = {
        "warm_start": options.warm_start or 0,
        "warm_start_batch": options.batch,
        "warm_start_learning_rate": options.learning_rate,
    }
    request = readable.ask(options.models, options.task.split(",") if options.task else (), wish, warm)
    rows = []
    warn_of_precision(options.dtype)
    try:
        for row in readable.measure(request, lambda line: say(line, file=sys.stderr)):
            rows.append(row)
            if record_path is not None:
                keep_row(record_path, row)
    except RuntimeError as error:  # the grader gives up
        return complain(str(error), INFRASTRUCTURE)
    if options.json:
        say(as_json([row.row() for row in rows]))
    else:
        say("\n".join(plain(tables.HEADER, tables.cells(rows)).text()))
    if record_path is not None:
        say(f"{record_path}; grpobench docs writes it into the page", file=sys.stderr)
    return DONE
