"""`grpobench theory`: what formulas predict of an estimator, and what its code does."""

from __future__ import annotations

import sys

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.options import NATURAL, Options, flag, json_option
from grpobench.runs.commands.output import BAD_INPUT, DONE, as_json, complain, say


@click.argument(
    "algorithms",
    nargs=-1,
    metavar="[ALGORITHM]...",
    help="One of grpobench list algorithms, or MODULE:Class.",
    shell_complete=names_of("algorithms"),
)
@click.option(
    "--batches",
    type=click.IntRange(min=2),
    default=400,
    metavar="N",
    help="Measure each number on N batches. Default: 400.",
)
@click.option("--seed", type=NATURAL, default=0, metavar="N", help="Of the batches. Default: 0.")
@flag("--keep", "Keep the numbers in the project's checkout, for grpobench docs.")
@json_option
def theory_command(options: Options) -> int:
    """Without an ALGORITHM, every prediction of docs/theory.md. mine:Half is the class Half of mine.py in
    this folder: its expected gradient is made of its own code over all groups. Cells have the predicted
    number and the measured one with half of its 95 % interval."""
    from grpobench.analysis.theory import comparison
    from grpobench.runs.api.keeping import keep_content, kept_file
    from grpobench.runs.calibration.theory import theory
    from grpobench.runs.tools.progress import Ticker

    if options.keep and options.algorithms:
        return complain("--keep: the page has every prediction; leave ALGORITHM out", BAD_INPUT)
    path = kept_file(comparison.NAME) if options.keep else None
    ticker = Ticker()
    with ticker:
        result = theory(options.algorithms, ticker.tell, batches=options.batches, seed=options.seed)
    if path is not None:
        keep_content(path, result.content())
        say(f"{path}; grpobench docs writes it into the page", file=sys.stderr)
    if options.json:
        say(as_json(result.content()))
    else:
        say("\n".join([*comparison.table(result).text(), "", *comparison.summary(result)]))
    return DONE
