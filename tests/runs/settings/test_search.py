"""The searches behind the recipes' settings: equal for every algorithm and role, on seeds of their own."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from grpobench.runs.experiment.search_plan import SearchPlan, forecast, make_plan
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe, recipes

SEARCHES = {"search-nano": "policy", "search-critic-nano": "critic"}
"""Each with the role that its kept results are of."""
KEPT = Path(__file__).parents[3] / "docs" / "results"


def plan_of(name: str) -> SearchPlan:
    return make_plan(read_recipe(name))


def searched(name: str) -> Iterator[tuple[str, RunConfig]]:
    """Every run of a search, with the role whose rate it is for."""
    plan = plan_of(name)
    roles = [stage.role for stage in plan.stages if len(stage.combinations) > 1]
    for role, recipe in zip(roles, forecast(plan), strict=True):
        yield from ((role, run) for run in recipe.runs())


def test_every_algorithm_and_role_gets_the_same_search() -> None:
    spent: dict[tuple[str, str], int] = defaultdict(int)
    tried: dict[tuple[str, str], set[float]] = defaultdict(set)
    for role, run in searched("search-nano"):
        owner = (run.algorithm.name, role)
        spent[owner] += run.train.steps * run.train.prompts_per_step * run.train.group_size
        tried[owner].add(dict(run.train.learning_rate)[role])  # type: ignore[index]
    assert len(set(spent.values())) == 1, spent
    assert {len(rates) for rates in tried.values()} == {4}
    trains = {
        (run.algorithm.name, role)
        for run in read_recipe("search-nano").runs()
        for role in run.algorithm.trained_roles
    }
    assert trains == set(spent)  # no trained role is left without a search


def test_the_kept_searches_are_those_of_the_recipes() -> None:
    """By algorithm or role, rate, task and seed: the kept arms are called after the first two."""
    for name, kept_role in SEARCHES.items():
        recipe_runs = set()
        for role, run in searched(name):
            if role == kept_role:
                label = run.algorithm.name if role == "policy" else role
                rate = dict(run.train.learning_rate)[role]  # type: ignore[index]
                recipe_runs.add((label, rate, run.task.name, run.seed))
        table = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
        table_runs = set()
        for row in table["runs"]:
            label, _, rate = row["arm"].partition("-")
            table_runs.add((label, float(rate), row["task"], row["seed"]))
        assert recipe_runs == table_runs


def test_seeds_of_a_search_are_used_by_nothing_else() -> None:
    seeds = {name: set(plan_of(name).halving.seeds) for name in SEARCHES}
    for name, path in recipes().items():
        used = set(tomllib.loads(path.read_text(encoding="utf-8"))["seeds"])
        for search, search_seeds in seeds.items():
            assert not used & search_seeds, f"{name} uses seeds of {search}"
    assert not seeds["search-nano"] & seeds["search-critic-nano"]


def test_optional_arm_that_would_never_update_is_left_out_and_named() -> None:
    full_recipe, brief = read_recipe("quickstart"), read_recipe("quickstart", ["train.steps=1"])
    assert {run.arm for run in full_recipe.runs()} == {
        "grpo",
        "grpo-rate-x5",
        "ppo",
        "gspo",
        "dpo",
    } and not full_recipe.left_out
    assert {run.arm for run in brief.runs()} == {"grpo", "grpo-rate-x5", "gspo", "dpo"}
    tasks = ("arithmetic", "nanocode", "nanobias")
    assert [why.partition(": ")[0] for why in brief.left_out] == [f"ppo on {task}" for task in tasks]
    assert all("updates its policy in none of the 1 steps" in why for why in brief.left_out)
