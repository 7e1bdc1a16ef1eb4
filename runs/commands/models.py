"""`grpobench eval`, `export`, `warmstart` and `serve`: one model at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from grpobench.runs.commands.options import (
    DTYPE,
    NATURAL,
    PATH,
    POSITIVE,
    Options,
    data_options,
    flag,
    json_option,
    model_option,
    set_option,
    task_options,
    trust_option,
)
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say, warn_of_precision

if TYPE_CHECKING:
    from grpobench.runs.evaluation.question import Through

chat_option = flag(
    "--no-chat-template", "Let a model read prompts without its chat template, as a base model does."
)
task_set_option = set_option("Override a setting of the task. May be repeated.", metavar="FIELD=V")


@click.argument("target", metavar="DIR|MODEL", help="A run folder, an experiment folder or a model.")
@click.option(
    "--task",
    required=True,
    metavar="T",
    help="One of our tasks; with --through lm-eval, any task of the harness.",
)
@click.option("--split", type=click.Choice(("train", "validation", "test")), default="test")
@click.option("--problems", type=POSITIVE, metavar="N", help="First N problems. Default: all.")
@click.option(
    "--samples",
    type=NATURAL,
    metavar="N",
    help="Sample N completions per problem; pass@k is reported for k up to N/2. Default: 1.",
)
@flag("--no-greedy", "Skip greedy decoding.")
@click.option(
    "--temperature",
    type=float,
    metavar="X",
    help="Temperature of sampled answers. Default: the run's, else 1.",
)
@click.option("--max-completion-tokens", type=POSITIVE, metavar="N", help="Default: the run's or the task's.")
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of the sampled completions.")
@flag("--drop-long", "Leave out prompts that do not fit the model's context.")
@flag("--no-base", "Skip the run's base model.")
@task_set_option
@click.option(
    "--through",
    type=click.Choice(("grpobench", "lm-eval", "both")),
    default="grpobench",
    help="Use our sampler, the lm-eval harness on the same problems, or both and compare them.",
)
@click.option("--keep-tasks", type=PATH, metavar="DIR", help="Keep the harness's task files here.")
@click.option("--include", type=PATH, metavar="DIR", help="Further tasks in the harness's format.")
@click.option("--fewshot", type=NATURAL, metavar="N", help="Number of examples, for the harness's own tasks.")
@chat_option
@click.option("--dtype", type=DTYPE, default="float32", help="Precision of a model's forward passes.")
@click.option(
    "--judge",
    type=PATH,
    metavar="FILE",
    help="A TOML file with a judge's settings, which grades the answers.",
)
@flag("--again", "Evaluate even if this evaluation already exists.")
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    help="Write a model's results here. Default: results/models. Results of runs go into their run folders, "
    "for the report.",
)
@json_option
@task_options
def eval_command(options: Options) -> int:
    """The target is one model, one run folder, or an experiment folder with all its runs."""
    from grpobench.runs.evaluation.question import EvalRequest, read_judge
    from grpobench.runs.evaluation.records import assess
    from grpobench.runs.evaluation.text import lines, paired

    both_ways: tuple[Through, ...] = ("grpobench", "lm-eval")
    wish = EvalRequest(
        task=options.task,
        sets=assignments(options.sets),
        split=options.split,
        problems=options.problems or 0,
        samples=options.samples,
        greedy=not options.no_greedy,
        temperature=options.temperature,
        limit=options.max_completion_tokens,
        seed=options.seed,
        drop_long=options.drop_long,
        through=both_ways if options.through == "both" else (options.through,),
        base=not options.no_base,
        again=options.again,
        out=options.out,
        tasks_folder=options.keep_tasks,
        include=options.include,
        fewshot=options.fewshot,
        template=not options.no_chat_template,
        dtype=options.dtype,
        judge=read_judge(options.judge) if options.judge else None,
    )
    records = []
    warn_of_precision(options.dtype)
    try:
        for record in assess(options.target, wish, lambda line: say(line, file=sys.stderr)):
            records.append(record)
            if not options.json:
                say("\n".join(lines(record)))
    except RuntimeError as error:  # the grader gives up
        return complain(str(error), INFRASTRUCTURE)
    compared = paired(records)
    if options.json:
        say(as_json({"records": [record.summary for record in records], "agreement": compared.rows}))
    elif compared.lines:
        say("\n".join(compared.lines))
    return DONE


@click.argument("run", type=PATH, metavar="RUN", help="A run folder: results/EXPERIMENT/ARM-TASK-sSEED.")
@click.argument("folder", type=PATH, metavar="DIR", help="The folder to write; it must not exist.")
@click.option("--dtype", type=DTYPE, default="float32", help="Default: the run's own, float32.")
@flag("--merged", "If the run trained an adapter, write whole weights instead of a folder for peft.")
@model_option
@trust_option
def export_command(options: Options) -> int:
    from grpobench.runs.evaluation.export import export

    exported = export(options.run, options.folder, options.dtype, options.merged)
    if exported.caution:
        say(f"warning: these are {exported.caution}", file=sys.stderr)
    say(f"{exported.folder}: the policy after step {exported.step}; its README.md says how to load it")
    return DONE


@click.argument("model", metavar="MODEL", help="As in model.name of a recipe.")
@click.option("--task", required=True, metavar="T")
@click.option("--steps", type=POSITIVE, default=100, metavar="N", help="Number of updates. Default: 100.")
@click.option("--batch", type=POSITIVE, metavar="N", help="Demonstrations per update.")
@click.option(
    "--examples", type=POSITIVE, metavar="N", help="Number of different demonstrations. Default: all."
)
@click.option(
    "--learning-rate",
    type=float,
    metavar="X",
    help="Peak learning rate. Default: 1e-3, for models of a million parameters; 5e-5 suits SmolLM2-135M.",
)
@click.option("--dtype", type=DTYPE, help="Precision of forward passes.")
@chat_option
@click.option(
    "--problems", type=POSITIVE, default=128, metavar="N", help="Validation problems to measure on."
)
@click.option(
    "--samples", type=NATURAL, default=1, metavar="N", help="Sampled answers per validation problem."
)
@click.option("--max-completion-tokens", type=POSITIVE, metavar="N", help="Default: the task's.")
@task_set_option
@click.option("--out", type=PATH, metavar="DIR", help="Copy the model to this folder.")
@json_option
@data_options
@trust_option
def warmstart_command(options: Options) -> int:
    """Takes the warm start from the cache if it is there. Measures the model before and after."""
    from grpobench.runs.tools.progress import Ticker
    from grpobench.runs.train.prepare.measured_start import AccuracyMeasure, as_lines, measured_start

    settings = {
        "name": options.model,
        "warm_start": options.steps,
        "warm_start_batch": options.batch,
        "warm_start_examples": options.examples,
        "warm_start_learning_rate": options.learning_rate,
        "dtype": options.dtype,
        "chat_template": not options.no_chat_template,
    }
    measure = AccuracyMeasure(options.problems, options.samples, options.max_completion_tokens or 0)
    sets = assignments(options.sets)
    warn_of_precision(options.dtype)
    with Ticker() as ticker:
        about = measured_start(settings, options.task, sets, measure, options.out, ticker.tell)
    say(as_json(about) if options.json else "\n".join(as_lines(about)))
    return DONE


def assignments(sets: Sequence[str]) -> dict[str, Any]:
    """``FIELD=VALUE`` texts as a table. Raises `ConfigError`."""
    from grpobench.runs.settings.layers import parse_set
    from grpobench.runs.tools.strict import ConfigError

    table = {}
    for text in sets:
        parsed = parse_set(text)
        if parsed is None or len(parsed[0]) != 1:
            raise ConfigError([f"--set {text}: write --set FIELD=VALUE with a field of the task"])
        table[parsed[0][0]] = parsed[1]
    return table


@click.argument("model", metavar="MODEL", help="As in model.name of a recipe.")
@click.option("--host", default="127.0.0.1", help="Default: 127.0.0.1, this machine only.")
@click.option("--port", type=int, default=8765, help="Default: 8765; 0 takes a free one.")
@click.option("--dtype", type=DTYPE, default="float32")
@click.option("--rows", type=POSITIVE, default=256, metavar="N", help="Decode at most N sequences at once.")
@click.option("--cache-gb", type=float, default=4.0, metavar="GIB", help="Size of the key-value cache.")
@data_options
@trust_option
def serve_command(options: Options) -> int:
    from grpobench.runs.sample.engines import server
    from grpobench.runs.settings.config import SamplerConfig
    from grpobench.runs.tools.strict import ConfigError

    if lack := SamplerConfig(kind="vllm", max_batch_size=options.rows, cache_gb=options.cache_gb).missing():
        raise ConfigError([lack])
    server.serve(
        options.model,
        host=options.host,
        port=options.port,
        dtype=options.dtype,
        rows=options.rows,
        cache_gb=options.cache_gb,
        tell=lambda text: say(text, flush=True),
    )
    return DONE
