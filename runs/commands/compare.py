"""`grpobench compare`: one algorithm against others, with verdicts on these contrasts alone."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.experiments import running_options
from grpobench.runs.commands.options import Options, seed_list, set_option
from grpobench.runs.commands.output import say

if TYPE_CHECKING:
    from grpobench.runs.settings.comparing import Made
    from grpobench.runs.settings.recipe import Recipe

SEEDS = "8"


@click.argument(
    "algorithm",
    metavar="ALGORITHM",
    help="One of grpobench list algorithms, or MODULE:Class.",
    shell_complete=names_of("algorithms"),
)
@click.option(
    "--with",
    "others",
    required=True,
    metavar="LIST",
    help="What to compare it with, such as grpo,dapo; or all, of which those that do not fit the task are "
    "left out.",
)
@click.option("--task", "tasks", required=True, metavar="LIST", help="One or several tasks.")
@click.option(
    "--seeds",
    default=SEEDS,
    metavar="N|LIST",
    help=f"The first N seeds, or a list such as 0-9. Default: {SEEDS}. A verdict needs 6.",
)
@click.option(
    "--recipe",
    default=None,
    metavar="RECIPE",
    help="Take the settings from this recipe. Default: quickstart.",
)
@set_option("Override a value, as with run: train.steps=100, arm.NAME.train.learning_rate=1e-4.")
@running_options
def compare_command(options: Options) -> int:
    """ALGORITHM is a name of grpobench list algorithms, or MODULE:Class for a class of a file in this folder.
    The results go to OUT/compare-NAME. The same command with other algorithms or more seeds runs only what is
    not there yet."""
    from grpobench.runs.commands.run import carry_out
    from grpobench.runs.settings.comparing import BASE, Wish, compose

    made = compose(
        Wish(
            candidate=options.algorithm,
            others=names(options.others, "--with"),
            tasks=names(options.tasks, "--task"),
            seeds=tuple(seeds_of(options.seeds)),
            source=options.recipe or BASE,
            sets=tuple(options.sets),
            command=command_of(options),
        )
    )
    demand_seeds(made.recipe, options.seeds)
    demand_same_settings(made.recipe, options.out / made.recipe.name)
    if not options.json:
        say("\n".join(settings_lines(made)), flush=True)
    return carry_out(made.recipe, options)


def names(text: str, option: str) -> tuple[str, ...]:
    """The parts of a list. Raises ConfigError for an empty one."""
    from grpobench.runs.tools.strict import ConfigError

    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ConfigError([f"{option} {text!r}: names nothing"])
    return found


def seeds_of(text: str) -> list[int]:
    """The first N seeds for a number N, or the seeds of a list. Raises ConfigError."""
    return seed_list(f"0-{int(text) - 1}" if text.isdecimal() and int(text) else text)


def command_of(options: Options) -> str:
    """The command that makes the same recipe, for provenance."""
    words = ["grpobench", "compare", options.algorithm, "--with", options.others, "--task", options.tasks]
    words += ["--seeds", options.seeds, *(["--recipe", options.recipe] if options.recipe else [])]
    return shlex.join([*words, *(part for text in options.sets for part in ("--set", text))])


def demand_seeds(recipe: Recipe, given: str) -> None:
    """Raise ConfigError for seeds that can never give a verdict, whatever the accuracies are."""
    from grpobench.analysis.statistics.permutation import seeds_needed, smallest_p
    from grpobench.analysis.statistics.verdicts import ALPHA
    from grpobench.runs.tools.strict import ConfigError

    seeds, needed = len(recipe.head.seeds), seeds_needed(ALPHA)
    if seeds < needed:
        count = f"{seeds} seed{'s' * (seeds != 1)}"
        why = f"the smallest p of {count} is {smallest_p(seeds):.3g}, so that no difference could be shown"
        raise ConfigError([f"--seeds {given}: {why} at {ALPHA:.0%}; write --seeds {needed} or more"])


def demand_same_settings(recipe: Recipe, folder: Path) -> None:
    """Raise ConfigError where runs of arms that this command leaves out would stand beside it with other
    settings."""
    from grpobench.runs.runfolder.logs import settled
    from grpobench.runs.settings.comparing import shared_settings
    from grpobench.runs.tools.strict import ConfigError
    from grpobench.tasks.data.bounded import read_object_if_any

    before = read_object_if_any(folder / "experiment.json") if folder.is_dir() else {}
    ours = {config.arm for config in recipe.runs()}
    left = [
        str(arm)
        for arm in before.get("arms", ())
        if arm not in ours and any(settled(path.parent) for path in folder.glob(f"{arm}-*-s*/run.toml"))
    ]
    then = shared_settings(before.get("recipe", ""), before.get("sets", ()))
    now = shared_settings(recipe.text, recipe.sets)
    changed = [key for key in dict.fromkeys([*then, *now]) if then.get(key) != now.get(key)]
    if left and changed:
        what = f"{changed[0]}: {then.get(changed[0], 'not set')} -> {now.get(changed[0], 'not set')}"
        why = f"has runs of {', '.join(left)} with other settings ({what}), with which it would be compared"
        remedy = f"add {','.join(left)} to --with, keep the settings, or choose another --out"
        raise ConfigError([f"{folder}: {why}; {remedy}"])


def settings_lines(made: Made) -> list[str]:
    """Which settings the arms have, and whose were not chosen for them."""
    from grpobench.analysis.tools.text import listed

    recipe, first = made.recipe, made.recipe.runs()[0]
    train = first.train
    size = f"{train.steps} steps of {train.prompts_per_step} × {train.group_size} completions"
    lines = [f"settings: those of the recipe {made.source} ({size}, model {first.model.name})"]
    arms: dict[str, dict[str, None]] = {}
    for config in recipe.runs():
        rates = config.train.learning_rate.items()
        words = [f"{rate:g}{f' for the {role}' * (role != 'policy')}" for role, rate in rates]
        arms.setdefault(" and ".join(words), {})[config.arm] = None
    lines.append("learning rates: " + "; ".join(f"{rate} ({', '.join(own)})" for rate, own in arms.items()))
    borrowed = [arm for arm in made.borrowed if any(arm in own for own in arms.values())]
    if borrowed:
        origins = ", ".join(dict.fromkeys(made.borrowed[arm] for arm in borrowed))
        lines.append(
            f"not chosen for {listed(borrowed)}: {made.source} has no such arm, so that they train like "
            f"{origins}, which may be unfair; --set arm.{borrowed[0]}.train.learning_rate=X sets another"
        )
    return lines
