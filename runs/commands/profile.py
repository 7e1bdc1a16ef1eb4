"""`grpobench profile`: what an algorithm is good and bad at, on probes in which algorithms can differ."""

from __future__ import annotations

import sys

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.options import (
    POSITIVE,
    Options,
    comma_list,
    flag,
    json_option,
    out_option,
    rate_factors,
    workers_option,
)
from grpobench.runs.commands.output import DONE, PREEMPTED, as_json, say


@click.argument(
    "algorithms",
    nargs=-1,
    metavar="[ALGORITHM]...",
    help="One of grpobench list algorithms, or MODULE:Class.",
    shell_complete=names_of("algorithms"),
)
@out_option("results/profile")
@click.option(
    "--scale",
    type=click.Choice(("nano", "small")),
    default="nano",
    help="small: SmolLM2-135M in place of the built-in policies. Default: nano.",
)
@click.option("--seeds", type=POSITIVE, metavar="N", help="The first N seeds. Default: 8, with --quick 4.")
@click.option("--probes", metavar="LIST", help="Run these only. Default: all.")
@flag("--quick", "Four seeds and half of the probes.")
@click.option(
    "--baseline",
    metavar="NAME",
    help="The algorithm that a page compares with. Default: the baseline of the probes.",
)
@click.option(
    "--against",
    metavar="LIST",
    help="Compare each ALGORITHM with these or with all. Default: with each other.",
)
@click.option(
    "--rates",
    metavar="LIST",
    help="Run every probe at these multiples of the best learning rate too, such as 0.5,1,2, and at 1e-3. "
    "Repeats runs whose kept rows do not record failures.",
)
@flag("--controls", "Run the probes' controls too.")
@workers_option
@json_option
def profile_command(options: Options) -> int:
    """Without an ALGORITHM, shows the kept profiles. mine:Half is the class Half of mine.py in this folder.
    Runs that have a result are not repeated. With --json, text goes to stderr."""
    from grpobench.runs.api.profiles import profile

    stream = sys.stderr if options.json else None
    profiled = profile(
        options.algorithms,
        options.out,
        lambda text: say(text, file=stream, flush=True),
        scale=options.scale,
        seeds=options.seeds,
        probes=comma_list(options.probes),
        quick=options.quick,
        baseline=options.baseline,
        controls=options.controls,
        rates=rate_factors(options.rates) if options.rates else (),
        against=comma_list(options.against),
        workers=options.workers,
    )
    for algorithm in profiled.unscored:
        say(f"{algorithm}: no score yet; see {profiled.folder / 'runs'}", file=sys.stderr)
    if options.json and not profiled.stopped:
        say(as_json(profiled.row()))
    if profiled.stopped:
        say("stopped; the same command resumes", file=sys.stderr)
    return PREEMPTED if profiled.stopped else DONE
