"""`grpobench run --until resolved`: add seeds by a plan that is fixed before the first interim analysis."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.runfolder.folder import FolderError
from grpobench.runs.runfolder.logs import settled
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.settings.search import seed_faults
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.runfolder.interim import InterimPlan

STEP = 2
"""Default number of seeds between two interim analyses."""


def plan_looks(recipe: Recipe, most: int, step: int = STEP) -> InterimPlan:
    """The plan of a recipe that names the first seeds: interim analyses at so many seeds more each time, up
    to `most`. Raises ConfigError if no analysis could reach a verdict."""
    from grpobench.analysis.runfolder.interim import InterimPlan
    from grpobench.analysis.statistics.comparison import pairs_of
    from grpobench.analysis.statistics.permutation import seeds_needed
    from grpobench.analysis.statistics.sequential import spending
    from grpobench.analysis.statistics.verdicts import ALPHA

    first = recipe.head.seeds
    arms: dict[str, dict[str, None]] = defaultdict(dict)
    for config in recipe.runs_at_own_rates():
        arms[config.task.name][config.arm] = None
    pairs = max(len(pairs_of(list(arm_names), recipe.head.control)) for arm_names in arms.values())
    if recipe.sweep_values or not pairs:
        raise ConfigError(["--until: needs arms to compare, and they must not be sweep values of a map"])
    if most < len(first) or step < 1:
        raise ConfigError([f"--most-seeds: must be at least the recipe's {len(first)}, and --step-seeds 1"])
    more = range(max(first) + 1, max(first) + 1 + most - len(first))
    if faults := seed_faults(recipe.record, more) if recipe.record else []:
        raise ConfigError(faults)
    counts = [*range(len(first), most, step), most]
    looks, weights = spending(counts, pairs, ALPHA)
    if not looks:
        complaint = f"the last interim analysis cannot reach a verdict on {pairs} pair{'s' * (pairs > 1)}"
        takes = f"which takes {seeds_needed(ALPHA, pairs)} seeds in one analysis and more in several"
        raise ConfigError([f"--most-seeds {most}: {complaint}, {takes}; raise it, or --step-seeds"])
    head = recipe.head
    return InterimPlan((*first, *more), looks, weights, ALPHA, pairs, head.margin, step, head.control)


def with_seeds(recipe: Recipe, seeds: Sequence[int]) -> Recipe:
    """The recipe with other seeds."""
    once = [config for config in recipe.configs if config.seed == recipe.head.seeds[0]]
    configs = tuple(dataclasses.replace(config, seed=seed) for config in once for seed in seeds)
    head = dataclasses.replace(recipe.head, seeds=tuple(seeds))
    return dataclasses.replace(recipe, head=head, configs=configs)


def run_until(
    recipe: Recipe, out: Path, plan: InterimPlan, workers: int | None = None, **options: Any
) -> ExperimentResult:
    """Run the seeds of each interim analysis until every pair of arms has a verdict or the plan ends;
    `options` are those of `run_experiment`. The outcome covers all seeds.

    Raises FolderError if the folder has another plan, or results from before there was a plan.
    """
    folder = out / recipe.name
    settle(folder, plan)
    for seeds in plan.analyses:
        outcome = run_experiment(with_seeds(recipe, plan.seeds[:seeds]), out, workers, **options)
        if outcome.code not in (0, 3) or resolved(outcome.folder):
            break
    return outcome


def settle(folder: Path, plan: InterimPlan) -> None:
    """Write the plan, unless it exists."""
    from grpobench.analysis.runfolder.interim import FILE, read_plan

    written_plan = read_plan(folder)
    if written_plan == plan:
        return
    if written_plan is not None:
        control = f"the control {written_plan.control}" if written_plan.control else "no control"
        raise FolderError(
            f"{folder / FILE}: the plan is "
            f"{' '.join(written_plan.options)} from {len(written_plan.seeds)} seeds, analyses at "
            f"{', '.join(map(str, written_plan.analyses))}, a margin of {written_plan.margin:g} points and "
            f"{control}; it was fixed before the first analysis: continue it, or choose another --out"
        )
    settled_runs = [path.parent.name for path in folder.glob("*/run.toml") if settled(path.parent)]
    if settled_runs:
        raise FolderError(
            f"{folder}: {len(settled_runs)} runs already have results, such as {settled_runs[0]}; a plan "
            "must be fixed before the first run: choose another --out"
        )
    files.write_atomic(files.writable(folder, "--out") / FILE, plan.text().encode())


def demand_unplanned(folder: Path) -> None:
    """Raise FolderError for a folder with a plan if the command names none."""
    from grpobench.analysis.runfolder.interim import FILE, read_plan

    plan = read_plan(folder)
    if plan is not None:
        raise FolderError(
            f"{folder / FILE}: this folder adds seeds by a plan; continue with {' '.join(plan.options)}"
        )


def resolved(folder: Path) -> bool:
    """Whether every pair of arms has a verdict."""
    from grpobench.analysis.runfolder.load import load
    from grpobench.analysis.topics.numbers import Numbers

    return all(pair.verdict != "unresolved" for pair in Numbers(load(folder)).compared)
