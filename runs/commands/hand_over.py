"""`grpobench hand-over`: write what another library needs to run a recipe on its own cluster."""

from __future__ import annotations

import sys

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.options import (
    PATH,
    Options,
    data_options,
    flag,
    set_option,
    sets_and_seeds,
    trust_option,
)
from grpobench.runs.commands.output import DONE, say

LIBRARIES = ("verl", "trl")


@click.argument(
    "recipe",
    metavar="RECIPE",
    help="Name (grpobench list recipes) or path of a TOML file.",
    shell_complete=names_of("recipes"),
)
@click.argument("folder", type=PATH, metavar="DIR", help="A new folder for the hand-over.")
@click.option(
    "--to", "library", type=click.Choice(LIBRARIES), required=True, help="The library that runs it."
)
@set_option("Override a value, as with run: train.steps=100 arms=a,b tasks=x seeds=0-4. May be repeated.")
@click.option("--seeds", metavar="LIST", help="Hand over these seeds, such as 0,1,2 or 0-4.")
@flag("--leave-out", "Leave out arms that the library cannot express, and name them in README.md.")
@data_options
@trust_option
def hand_over_command(options: Options) -> int:
    """DIR gets a configuration per arm and task, problems as parquet, the initial policy, our graders as a
    reward function, run.sh with the command of every run, and README.md with what differs. What the library
    cannot express is refused, with arm and setting."""
    from grpobench.runs.handover.folder import write
    from grpobench.runs.settings.recipe import read_recipe

    plan = write(
        read_recipe(options.recipe, sets_and_seeds(options)),
        options.library,
        options.folder,
        options.leave_out,
        lambda text: say(text, file=sys.stderr),
    )
    runs = sum(len(part.seeds) for part in plan.parts)
    say(f"{options.folder}: {len(plan.parts)} parts, {runs} runs for {options.library}")
    for why in plan.refused:
        say(f"left out: {why}")
    say(f"bash {options.folder}/run.sh all; README.md says what differs")
    return DONE
