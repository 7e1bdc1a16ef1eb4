"""What the suite's recipes, findings and probes resolve to, as checksums.

`python -m helpers.good_recipes` in tests/ prints them as JSON: it wrote `tests/runs/settings/resolved.json`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

from grpobench.runs.settings import probes, stored
from grpobench.runs.settings.findings import findings, read_finding
from grpobench.runs.settings.recipe import Recipe, read_recipe, read_text, recipes
from grpobench.runs.tools import strict, toml

RESOLVED = Path(__file__).parents[1] / "runs" / "settings" / "resolved.json"
LAYERS = """
tasks = ["letters", { name = "arithmetic", settings = { largest = 30 } }]
seeds = [3, 4]
[train]
steps = 5
learning_rate = 1e-4
betas = [0.8, 0.9]
[model]
adapter = { rank = 4 }
[on.letters.train]
steps = 6
learning_rate = { critic = 3e-4 }
[reward]
kind = "sum"
weights = { correct = 1.0, random = 0.5 }
[[arm]]
algorithm = "grpo"
task = { largest = 40 }
[arm.train]
learning_rate = 2e-4
[arm.on.letters]
reward = { weights = { random = 0.25 } }
settings = { beta = 0.1 }
[[arm]]
algorithm = "ppo"
name = "critic"
tasks = ["letters"]
[arm.model.adapter]
alpha = 8.0
[[arm]]
algorithm = "grpo@trl"
[[arm]]
algorithm = "gspo"
optional = true
"""
"""Every layer that there is."""
ASSIGNED = (
    "train.epochs=2",
    "on.letters.train.epochs=3",
    "arm.critic.train.learning_rate.critic=1e-3",
    "arm.grpo.on.arithmetic.train.warmup_steps=2",
    "arm.grpo.task.largest=25",
    "task.letters.settings.length=4",
    "algorithm.beta=0.2",
    "arm.critic.settings.trace=0.9",
    "seeds=1-3",
    "model.adapter=none",
    "model.adapter.rank=2",
)
LATER_KEYS = ("targets", "guard")
"""Plain keys at the top of a recipe that came after the record; empty, they change nothing."""
SWEPT = ("train.learning_rate=1e-4,1e-3", "algorithm.beta=0.0,0.1")


@contextmanager
def everything_installed() -> Iterator[None]:
    """As where all models, data and packages are: what a recipe says does not depend on them."""
    with (
        mock.patch("grpobench.runs.settings.rules.missing", lambda config: []),
        mock.patch("grpobench.runs.settings.rules.missing_data", lambda task: ""),
        mock.patch("grpobench.runs.settings.optimizers.faults", lambda train, folder: []),
    ):
        yield


@cache
def of_findings() -> dict[tuple[str, str], Recipe]:
    """The recipe of every finding at each of its scales."""
    with everything_installed():
        studies = {name: read_finding(name) for name in findings()}
        return {
            (name, scale): study.recipe(scale) for name, study in studies.items() for scale in study.scales
        }


def recipes_by_name() -> Iterator[tuple[str, Recipe]]:
    for name in recipes():
        yield name, read_recipe(name)
    for (name, scale), recipe in of_findings().items():
        yield f"{name} [{scale}]", recipe
    for title, sets, over in (("layers", (), ()), ("assigned", ASSIGNED, ()), ("swept", ASSIGNED, SWEPT)):
        yield title, read_text(LAYERS, "layers", Path(), sets, over=over)


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checksum(recipe: Recipe) -> str:
    """Of all that a recipe resolves to, wherever its files lie. Settings at their defaults are left out, so
    that a new setting changes no checksum."""
    here, lines = str(Path.cwd()), []
    for config in recipe.runs():
        if config.seed != recipe.head.seeds[0]:
            continue  # it differs in the seed alone
        plain = stored.defaults(config)
        flat = stored.flatten(toml.read(stored.dump(config)))
        lines += [f"{key} = {value}" for key, value in flat.items() if plain.get(key) != value]
    points = {arm: (point.arm, dict(point.values)) for arm, point in recipe.sweep_values.items()}
    keys = {key: value for key, value in strict.plain(recipe.head).items() if value or key not in LATER_KEYS}
    head = keys, recipe.left_out, points, strict.plain(recipe.search)
    return short("\n".join([repr(head), *lines]).replace(here, "HERE"))


def resolved() -> dict[str, str]:
    """By recipe and the checksum of its text, the number of runs and the checksum of what they are."""
    with everything_installed():
        sums = {
            f"{name}, text {short(recipe.text)}": f"{len(recipe.runs())} runs, {checksum(recipe)}"
            for name, recipe in recipes_by_name()
        }
    for scale in probes.SCALES:
        for name, probe in probes.probes(scale).items():
            text = (probes.PROBES / f"{name}.toml").read_text(encoding="utf-8")
            sums[f"probe {name} [{scale}], text {short(text)}"] = short(repr(probe))
    return sums


if __name__ == "__main__":
    json.dump(resolved(), sys.stdout, indent=0)
    print()
