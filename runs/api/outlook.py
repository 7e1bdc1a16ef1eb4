"""What the seeds of an experiment can resolve, said before its runs begin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.runs.inventory.folders import results_folder
from grpobench.runs.runfolder.logs import settled, status
from grpobench.runs.runfolder.rows import last_rows
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.layers import parse_set
from grpobench.runs.settings.recipe import Recipe
from grpobench.tasks.data.bounded import read_object_if_any

if TYPE_CHECKING:
    from grpobench.analysis.kept import KeptTable
    from grpobench.analysis.resolution import PlannedPairs, Spread
    from grpobench.analysis.runfolder.interim import InterimPlan

CHOOSING = ("seeds", "arms", "tasks", "workers", "control", "margin")
"""Keys of `--set` that change no run, so that kept results of the recipe still say how its runs scatter."""


def outlook_lines(recipe: Recipe, out: Path, plan: InterimPlan | None = None) -> list[str]:
    """What the experiment can resolve; empty where no arms are compared."""
    from grpobench.analysis.resolution import resolution_lines

    questions = questions_of(recipe, out / recipe.name, plan)
    lines = resolution_lines(questions)
    if any(question.seeds < question.needed for question in questions):
        first = min(recipe.head.seeds)
        most = first + max(question.needed for question in questions) - 1
        lines.append(f"so these runs end without verdicts; --seeds {first}-{most} makes them possible")
    return lines


def questions_of(recipe: Recipe, folder: Path, plan: InterimPlan | None = None) -> list[PlannedPairs]:
    """The pairs of every task that has any, with the seeds that its arms will share."""
    from grpobench.analysis.resolution import UNKNOWN, PlannedPairs
    from grpobench.analysis.statistics.comparison import pairs_of

    arms: dict[str, dict[str, RunConfig]] = {}
    for config in recipe.runs_at_own_rates():
        arms.setdefault(config.task.name, {})[config.arm] = config
    recorded_table, control = kept_table(recipe), recipe.head.control
    questions = []
    for task, configs in arms.items():
        first = next(iter(configs.values()))
        runs = runs_there(folder, first.folder.removeprefix(first.arm).rpartition("-s")[0], configs)
        pairs = len(pairs_of(list(dict.fromkeys([*configs, *runs])), control))
        if not pairs or recipe.sweep_values:
            continue
        seeds = len(set.intersection(*({*recipe.head.seeds, *runs.get(arm, {})} for arm in configs)))
        spread = UNKNOWN if seeds < 2 else observed_sd(runs, task, control, recorded_table)
        margin = recipe.head.margin / 100
        if plan:
            level = plan.alpha * plan.weights[-1]
            questions.append(PlannedPairs(task, len(plan.seeds), pairs, spread, margin, level, planned=True))
        else:
            questions.append(PlannedPairs(task, seeds, pairs, spread, margin))
    return questions


def runs_there(folder: Path, task: str, arms: Iterable[str]) -> dict[str, dict[int, Path]]:
    """The run folders on a task by arm and seed, of these arms and of others that the experiment has already;
    `task` is what stands between arm and seed in their names."""
    if not folder.is_dir():
        return {}
    described = read_object_if_any(folder / "experiment.json")
    arm_names = {*arms, *described.get("arms", ())} - {*described.get("rate_arms", ())}
    run_folders: dict[str, dict[int, Path]] = {}
    for path in folder.glob("*/run.toml"):
        stem, _, seed = path.parent.name.rpartition("-s")
        arm = stem.removesuffix(task)
        if stem.endswith(task) and arm in arm_names and seed.isdecimal():
            run_folders.setdefault(arm, {})[int(seed)] = path.parent
    return run_folders


def observed_sd(
    runs: Mapping[str, Mapping[int, Path]], task: str, control: str, recorded_table: KeptTable | None
) -> Spread:
    """How far differences scatter in the experiment's own runs, or else in the recipe's kept results."""
    from grpobench.analysis.resolution import spread_of_runs

    scores = {
        arm: {seed: score for seed, path in run_folders.items() if not math.isnan(score := accuracy(path))}
        for arm, run_folders in runs.items()
    }
    spread = spread_of_runs(scores, control, "in earlier runs of this folder")
    if not math.isnan(spread.value) or recorded_table is None:
        return spread
    source = f"in the kept results of {recorded_table.name}"
    return spread_of_runs(recorded_table.scores(task), control, source)


def accuracy(run: Path) -> float:
    """The final accuracy of a run as comparisons count it; NaN without a result."""
    if not settled(run):
        return math.nan
    if status(run)["state"] == "diverged":
        return 0.0
    names = [
        f"eval/{split}/{mode}/correct"
        for split in ("test", "validation")
        for mode in ("greedy", "sampled", "likelihood")
    ]
    for row in reversed(last_rows(run / "metrics.jsonl")):
        for name in names:
            if isinstance(row.get(name), int | float):
                return float(row[name])
    return math.nan


def kept_table(recipe: Recipe) -> KeptTable | None:
    """What is kept of the recipe that the settings are those of."""
    changed = {parsed[0][0] for text in recipe.sets if (parsed := parse_set(text))}
    name = recipe.settings_of
    results = results_folder()
    path = results and results / f"{name}.json"
    if not name or changed - set(CHOOSING) or not path or not path.is_file():
        return None
    from grpobench.analysis.kept import read
    from grpobench.analysis.runfolder.files import LogError

    try:
        return read(path)
    except LogError:  # of which `grpobench docs` tells
        return None
