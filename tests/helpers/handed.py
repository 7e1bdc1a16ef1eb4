"""A recipe with the arms that tests hand over, and its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpobench.runs.handover.folder import write
from grpobench.runs.handover.plan import Plan
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.task import Problem
from helpers.whole_runs import run, transcript

ARMS = ("grpo", "ppo", "gspo", "dapo", "dr_grpo", "cispo", "sapo")
"""Those that verl has."""
RECIPE = """
name = "handed"
seeds = [3, 4]
tasks = [{{ name = "arithmetic", settings = {{ operations = [2, 3], largest = 9 }} }}]

[model]
name = "nano"

[train]
steps = 2
prompts_per_step = 4
group_size = 4
num_minibatches = 2
learning_rate = {{ policy = 1e-4 }}

[evaluate]
every = 1
problems = 6
samples = 0
test_problems = 8

{arms}
"""
CRITIC = "[arm.train]\nlearning_rate = { policy = 1e-4, critic = 1e-3 }\n[arm.settings]\ncritic_warmup = 1\n"


def recipe_file(folder: Path, *arms: str) -> str:
    """The path of the recipe with these arms."""
    path = folder / "handed.toml"
    tables = (f'[[arm]]\nalgorithm = "{arm}"\n{CRITIC if arm == "ppo" else ""}' for arm in arms)
    path.write_text(RECIPE.format(arms="\n".join(tables)), encoding="utf-8")
    return str(path)


def hand_over(
    folder: Path, library: str, *arms: str, sets: tuple[str, ...] = (), leave_out: bool = False
) -> tuple[Plan, Path]:
    """Write the hand-over of the recipe into a new folder below `folder`."""
    out = folder / f"to-{library}"
    recipe = read_recipe(recipe_file(folder, *arms), sets)
    return write(recipe, library, out, leave_out, lambda text: None), out


def refused(folder: Path, library: str, arm: str, *sets: str) -> str:
    """Why the recipe's arm with these settings is not handed over; nothing of it is written."""
    with pytest.raises(ConfigError) as error:
        hand_over(folder, library, arm, sets=sets)
    assert not (folder / f"to-{library}").exists()
    return str(error.value)


def stored_completions(folder: Path) -> list[tuple[Problem, str, dict[str, Any]]]:
    """Problem, completion, and what our loop said of it, of the 128 rollouts that a run kept of its step."""
    sets = ("train.steps=1", "train.prompts_per_step=32", "evaluate.before=false", "evaluate.test_problems=0")
    config = read_recipe(recipe_file(folder, "grpo"), sets).runs()[0]
    run(config, folder / "run")
    problems = {problem.id: problem for problem in config.task.problems("train")}
    return [
        (problems[group["problem"]], completion["text"], completion)
        for group in transcript(folder / "run", 1)
        for completion in group["completions"]
    ]
