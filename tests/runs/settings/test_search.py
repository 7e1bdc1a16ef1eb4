"""The searches behind the recipes' settings: equal for every algorithm and role, on seeds of their own."""

from __future__ import annotations

import tomllib
from collections import defaultdict

from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe, recipes

SEARCHES = ("search-nano", "search-critic-nano")


def searched(name: str) -> list[RunConfig]:
    return read_recipe(name, []).runs()


def test_every_algorithm_and_role_gets_the_same_search() -> None:
    spent: dict[tuple[str, str], int] = defaultdict(int)
    tried: dict[tuple[str, str], set[float]] = defaultdict(set)
    for role, name in zip(("policy", "critic"), SEARCHES, strict=True):
        for run in searched(name):
            owner = (run.algorithm.name, role)
            spent[owner] += run.train.steps * run.train.prompts_per_step * run.train.group_size
            tried[owner].add(run.train.learning_rate[role])
    assert len(set(spent.values())) == 1, spent
    assert {len(rates) for rates in tried.values()} == {4}
    trains = {
        (run.algorithm.name, role) for run in searched("search-nano") for role in run.algorithm.trained_roles
    }
    assert trains == set(spent)  # no trained role is left without a search


def test_seeds_of_a_search_are_used_by_nothing_else() -> None:
    seeds = {name: {run.seed for run in searched(name)} for name in SEARCHES}
    for name, path in recipes().items():
        if name in SEARCHES:
            continue
        used = set(tomllib.loads(path.read_text(encoding="utf-8"))["seeds"])
        for search, own in seeds.items():
            assert not used & own, f"{name} uses seeds of {search}"
    assert not seeds["search-nano"] & seeds["search-critic-nano"]


def test_optional_arm_that_would_never_update_is_left_out_and_named() -> None:
    whole, brief = read_recipe("quickstart"), read_recipe("quickstart", ["train.steps=1"])
    assert {run.arm for run in whole.runs()} == {
        "grpo",
        "grpo-rate-x5",
        "ppo",
        "gspo",
        "dpo",
    } and not whole.left_out
    assert {run.arm for run in brief.runs()} == {"grpo", "grpo-rate-x5", "gspo", "dpo"}
    tasks = ("arithmetic", "nanocode", "nanobias")
    assert [why.partition(": ")[0] for why in brief.left_out] == [f"ppo on {task}" for task in tasks]
    assert all("updates its policy in none of the 1 steps" in why for why in brief.left_out)
