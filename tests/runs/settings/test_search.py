"""The searches behind the recipes' settings: equal for every algorithm and role, on seeds of their own."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator

from grpobench.analysis.runfolder.search import RATE
from grpobench.runs.experiment.search_plan import SearchPlan, forecast, make_plan
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe, recipes
from grpobench.runs.settings.search import SEEDS


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
    assert {len(rates) for rates in tried.values()} == {7}
    trains = {
        (run.algorithm.name, role)
        for run in read_recipe("search-nano").runs()
        for role in run.algorithm.trained_roles
    }
    assert trains == set(spent)  # no trained role is left without a search


def test_seeds_of_a_search_are_used_by_nothing_else() -> None:
    tables = {name: tomllib.loads(path.read_text(encoding="utf-8")) for name, path in recipes().items()}
    seeds = {
        name: {*tables[name]["search"].get("seeds", SEEDS)} for name in tables if "search" in tables[name]
    }
    assert len(seeds) >= 8 and all(len(search_seeds) == 8 for search_seeds in seeds.values())
    for name, table in tables.items():
        for search, search_seeds in seeds.items():
            assert not {*table["seeds"]} & search_seeds, f"{name} uses seeds of {search}"
    assert not seeds["search-nano"] & seeds["search-critic-nano"]


def test_a_recipe_can_name_the_search_of_its_rates() -> None:
    placebo, search = read_recipe("placebo-nano"), read_recipe("search-nano")
    record = placebo.record
    assert record is not None and not record.stages and not record.trials
    assert record.seeds == plan_of("search-nano").seeds and record.command == "grpobench search search-nano"
    assert {*record.settings} == {run.arm for run in search.runs()}
    assert record.settings_for("ppo", "nanocode")["train.num_minibatches"] == 4
    assert plan_of("placebo-nano").stages  # its rates may be searched again


def test_rates_of_quickstart_are_those_that_its_search_chose() -> None:
    quickstart = read_recipe("quickstart")
    record = quickstart.record
    assert record is not None and len(record.trials) == 384
    rates = {run.arm: dict(run.train.learning_rate)["policy"] for run in quickstart.runs()}  # type: ignore[call-overload]
    assert {arm: values[RATE] for arm, values in record.chosen().items()} == {
        arm: rates[arm] for arm in ("grpo", "ppo", "gspo", "dpo")
    }
    searched = {
        run.arm: run for run in read_recipe("search-quickstart").runs() if run.task.name == "nanobias"
    }
    for run in quickstart.runs():
        if run.arm in searched and run.task.name == "nanobias":
            assert run.train.num_minibatches == searched[run.arm].train.num_minibatches == 16
    assert plan_of("quickstart").stages  # its rates may be searched again
