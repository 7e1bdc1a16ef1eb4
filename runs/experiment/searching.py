"""Carry out a search of settings: the runs of every round, the choice, and the files that record it."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from grpobench.analysis.measure import Measure
from grpobench.analysis.runfolder.search import (
    FILE,
    RATE,
    Combination,
    SearchRecord,
    Stage,
    Trial,
    Value,
    is_accuracy,
)
from grpobench.analysis.statistics.rate_choice import Round, choose
from grpobench.analysis.tools.text import shorten_paths
from grpobench.runs.experiment.dry_run import Rehearsal, rehearse
from grpobench.runs.experiment.engines import HERE, Where
from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.experiment.outcomes import results, total_seconds, total_tokens
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.search_plan import (
    Curve,
    SearchPlan,
    assignments,
    curves_of,
    forecast,
    only,
    rates_of,
    read_again,
    rounds_of,
    stage_recipe,
    with_rates,
)
from grpobench.runs.experiment.worker import EXECUTE
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.settings.search import SEARCHED, SUFFIX, settings_by_arm
from grpobench.runs.tools import files, toml
from grpobench.runs.tools.files import read_json
from grpobench.runs.tools.lock import FolderError
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

PLAN = "plan.json"
"""The file of a search's folder that holds its plan, written before the first run."""
GOOD = (0, 3)
"""Exit codes of an experiment all of whose runs have a result."""


@dataclass(frozen=True)
class SearchEnd:
    """How a search ended."""

    code: int
    """Exit code of the last experiment."""
    last: ExperimentResult | None = None
    """The last experiment, with the runs that have no result if `code` says that there are some."""
    record: SearchRecord | None = None
    """None if the search did not come to its end: it then chose nothing."""
    recipe: Path | None = None
    """The recipe with the chosen values."""


@dataclass
class Searcher:
    """Carries out a plan in `out`/RECIPE and writes the recipe to `target`.

    Every stage is an experiment of its own in the search's folder, so that a stop loses nothing. The rates of
    a round are computed from the logs of the rounds before it: the same command makes the same choices again
    and resumes where it was stopped."""

    plan: SearchPlan
    out: Path
    target: Path
    source: str
    """The recipe as a command names it."""
    workers: int | None = None
    console: Console | None = None
    where: Where = HERE
    try_code: bool = True
    """Whether a trial of others' code comes before the first run."""
    say: Callable[[str], None] = lambda _: None
    """Is told which round begins."""
    execute: str = EXECUTE
    """Executes a run; see `run_experiment`."""
    gpu_memory: float | None = None
    """Size in GiB of the GPU that the runs have; None: that of this machine's."""

    @property
    def folder(self) -> Path:
        return self.out / self.plan.recipe.name

    @property
    def command(self) -> str:
        """The command that repeats the search, with every default written out. Paths are shortened to their
        last part, so that the record tells no folders of a machine."""
        plan = self.plan
        words = ["grpobench", "search", self.source, "--seeds", ",".join(map(str, plan.seeds))]
        words += ["--extensions", str(plan.extensions)]
        for stage in plan.stages:
            for key, values in stage.over.items():
                words += ["--over", f"{key}={','.join(map(toml.value, values))}"]
        return shlex.join(
            words + [word for text in plan.recipe.sets for word in ("--set", shorten_paths(text))]
        )

    @property
    def record_path(self) -> Path:
        """Where the record is written."""
        return self.folder / FILE

    def search(self) -> SearchEnd:
        """Run what has no result yet; choose, and write record and recipe, if everything has one.

        Raises FolderError if the folder holds a search by another plan, ConfigError if the recipe cannot be
        written, DataError for a run whose log lacks its outcome.
        """
        self.demand_target()
        earlier = settle(files.writable(self.folder, "--out"), self.plan)
        chosen: dict[str, dict[str, Value]] = {arm: {} for arm in self.plan.stages[0].arms}
        stages: list[Stage] = []
        trials: list[Trial] = []
        for stage in self.plan.stages:
            if stage.role != "policy":
                stage = dataclasses.replace(stage, others=others_of(stage, chosen))
            stage, stage_trials, outcome = self.run_stage(stage, chosen)
            if outcome is not None and outcome.code not in GOOD:
                return SearchEnd(outcome.code, outcome)
            best = choices(self.record([stage], stage_trials, earlier), stage)
            stages.append(dataclasses.replace(stage, chosen=best))
            trials += stage_trials
            for arm, values in best.items():
                chosen[arm] |= dict(zip(stage.over, values, strict=True))
        record = self.record(stages, trials, earlier)
        return self.write(record)

    def rehearse(self, show: Callable[[str], None]) -> Rehearsal:
        """What `search` would run, stage by stage, without running or writing anything; `show` is told the
        plan of the memory before an error. Raises ConfigError if the recipe cannot be written."""
        self.demand_target()
        return rehearse(
            forecast(self.plan),
            self.folder,
            show,
            where=self.where,
            workers=self.workers,
            try_code=self.try_code,
            gpu_memory=self.gpu_memory,
        )

    def record(
        self, stages: Sequence[Stage], trials: Sequence[Trial], earlier: Sequence[Mapping[str, Any]]
    ) -> SearchRecord:
        plan = self.plan
        return SearchRecord(
            recipe=plan.recipe.name,
            command=self.command,
            tasks=plan.tasks,
            steps=plan.steps,
            outcomes=plan.outcomes,
            seeds=plan.seeds,
            stages=tuple(stages),
            trials=tuple(trials),
            extensions=plan.extensions,
            settings=settings_by_arm(plan.recipe.configs),
            earlier=list(earlier),
        )

    # Runs

    def run_stage(
        self, stage: Stage, chosen: Mapping[str, Mapping[str, Value]]
    ) -> tuple[Stage, list[Trial], ExperimentResult | None]:
        """The runs of all rounds, the stage with all rates that they had, and the experiment that ended
        without all results or came last; none for a stage with one value."""
        if len(stage.combinations) < 2:
            return stage, [], None
        trials: dict[Any, Trial] = {}
        outcomes: dict[Curve, dict[float, Mapping[int, float]]] = {curve: {} for curve in curves_of(stage)}
        last = None
        for number, part in enumerate(rounds_of(self.plan, stage, outcomes), 1):
            new = {rate for rates in part.rates.values() for rate in rates}
            stage = with_rates(stage, {*rates_of(stage), *new})
            self.say(describe_round(stage, number, part, self.plan.seeds))
            recipe, labels = stage_recipe(self.plan, stage, chosen)
            names = [
                name
                for name, (arm, (rate, *others)) in labels.items()
                if rate in part.rates[arm, tuple(others)]
            ]
            last = self.run(only(recipe, names, self.plan.seeds[: part.seeds]))
            if last.code not in GOOD:
                break
            for run, rows in results(last):
                arm, values = labels[run.config.arm]
                trial = self.trial(stage, arm, values, number, run, rows)
                trials.setdefault((arm, values, trial.task, trial.seed), trial)
            record = self.record([stage], [*trials.values()], ())
            for arm in stage.arms:
                for (rate, *others), by_seed in record.by_value(stage, arm).items():
                    outcomes[arm, tuple(others)][float(rate)] = by_seed
        return stage, [*trials.values()], last

    def run(self, recipe: Recipe) -> ExperimentResult:
        return run_experiment(
            recipe,
            self.folder,
            self.workers,
            where=self.where,
            execute=self.execute,
            console=self.console,
            try_code=self.try_code,
            gpu_memory=self.gpu_memory,
        )

    def trial(
        self,
        stage: Stage,
        arm: str,
        values: Combination,
        number: int,
        run: ExperimentRun,
        rows: Sequence[Mapping[str, Any]],
    ) -> Trial:
        """A run with its result. One that diverged has the worst outcome: 0 of an accuracy, the last rank of
        anything else. Raises DataError for a log without the outcome."""
        task = run.config.task.name
        measure = self.plan.outcomes[task]
        outcome: float | None = 0.0 if is_accuracy(measure) else None
        if run.state != "diverged":
            outcome = Measure.read(measure).of(rows)
            if not math.isfinite(outcome):
                raise DataError(f"{run.path}: logs no {measure}, so nothing can be chosen; see its log.txt")
        return Trial(
            stage.role,
            arm,
            values,
            number,
            task,
            run.config.seed,
            outcome,
            run.state,
            round(total_seconds(rows), 1),
            total_tokens(rows),
            base_of(run, measure),
        )

    # What is written

    def demand_target(self) -> None:
        """Raise ConfigError if the recipe cannot be written, or could not be run there."""
        recipe, target = self.plan.recipe, self.target
        files.demand_writable(target.parent, "--to")
        if target.exists() and f"[{SEARCHED}]" not in bounded.read_text(target, errors="replace"):
            raise ConfigError([f"--to {target}: exists, and no search wrote it; name another file"])
        values = {arm: first_values(self.plan) for arm in self.plan.stages[0].arms}
        read_again(recipe, self.sets(values), folder=target.parent)

    def sets(self, chosen: Mapping[str, Mapping[str, Value]]) -> list[str]:
        """What the recipe assigns: a name, what the command assigned, and the chosen values."""
        recipe = self.plan.recipe
        texts = [f"name={recipe.name}{SUFFIX}", *recipe.sets]
        return texts + [text for arm, values in chosen.items() for text in assignments(arm, values)]

    def write(self, record: SearchRecord) -> SearchEnd:
        """Write record and recipe, and read the recipe as `grpobench run` would."""
        files.write_atomic(self.record_path, record.text().encode())
        digest = bounded.sha256(self.record_path)
        text = recipe_text(
            self.plan.recipe.text,
            f"{self.plan.recipe.name} with the values that a search chose",
            {"record": portable(self.record_path, self.target.parent), "sha256": digest},
            self.sets(record.chosen()),
        )
        files.write_atomic(self.target, text.encode())
        written = read_recipe(str(self.target))
        return SearchEnd(0, None, written.record, self.target)


def target_of(recipe: Recipe) -> Path:
    """Where the recipe with the chosen values is written: beside its original, since what a recipe names is
    looked for in its folder."""
    path = recipe.folder / f"{recipe.name}{SUFFIX}.toml"
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def first_values(plan: SearchPlan) -> dict[str, Value]:
    """The first value of each key, with which a recipe can be tried before anything is chosen."""
    stage = plan.stages[0]
    return dict(zip(stage.over, stage.combinations[0], strict=True))


def others_of(stage: Stage, chosen: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, float]]:
    """By arm, the policy's rate while a critic's is searched."""
    return {arm: {"policy": float(chosen[arm][RATE])} for arm in stage.arms}


def base_of(run: ExperimentRun, measure: str) -> float | None:
    """The accuracy of a run before training; None for an outcome that is no accuracy."""
    if not is_accuracy(measure):
        return None
    first = bounded.read_rows(run.path / "metrics.jsonl")[0]
    value = first.get(measure.removeprefix("end:")) if first["step"] == 0 else None
    return None if value is None else float(value)


def choices(record: SearchRecord, stage: Stage) -> dict[str, Combination]:
    """By arm, the values that a finished stage chooses."""
    if len(stage.combinations) < 2:
        return dict.fromkeys(stage.arms, stage.combinations[0])
    chosen = {}
    for arm in stage.arms:
        trials = record.trials_of(stage, arm)
        failures = {values: sum(trial.failed for trial in runs) for values, runs in trials.items()}
        counts = {values: len(runs) for values, runs in trials.items()}
        chosen[arm] = choose(record.by_value(stage, arm), failures, counts)
    return chosen


def describe_round(stage: Stage, number: int, part: Round[Curve], seeds: Sequence[int]) -> str:
    """``policy, round 1: grid of 5 rates in 2 arms, seeds 10, 11``."""
    rates = len(next(iter(part.rates.values())))
    words = f"{part.title} of {rates} rate{'s' * (rates > 1)} in {len(stage.arms)} arm"
    used = seeds[: part.seeds]
    return (
        f"{stage.role}, round {number}: {words}{'s' * (len(stage.arms) > 1)}, "
        f"seed{'s' * (len(used) > 1)} {', '.join(map(str, used))}"
    )


def portable(path: Path, folder: Path) -> str:
    """A path relative to a folder that it lies in, else absolute."""
    resolved, home = path.resolve(), folder.resolve()
    return resolved.relative_to(home).as_posix() if resolved.is_relative_to(home) else str(resolved)


def recipe_text(original: str, heading: str, keys: Mapping[str, str], sets: Sequence[str]) -> str:
    """The original recipe, with the table that sets what was chosen at its end."""
    lines = [
        f"# {heading}: the table [{SEARCHED}] at the end sets them.",
        "# The same search writes this file again.",
        "",
        original.rstrip(),
        "",
        f"[{SEARCHED}]",
        *(f"{key} = {toml.value(value)}" for key, value in keys.items()),
        "set = [",
        *(f"  {toml.value(text)}," for text in sets),
        "]",
        "",
    ]
    return "\n".join(lines)


# The plan


def settle(folder: Path, plan: SearchPlan) -> list[Mapping[str, Any]]:
    """Write the plan of a search before its first run; earlier plans that it extends. Raises FolderError if
    the folder holds a search by another rule, or one that tried values that this one leaves out."""
    path = folder / PLAN
    table = plan.table()
    saved = read_json(path) if path.exists() else None
    if saved is None:
        files.write_atomic(path, json.dumps({"plan": table, "earlier": []}, indent=1).encode())
        return []
    if not isinstance(saved, dict) or not isinstance(saved.get("plan"), dict):
        raise FolderError(f"{path}: damaged; restore it, or choose another --out")
    before, earlier = saved["plan"], list(saved.get("earlier", []))
    if before == json.loads(json.dumps(table)):
        return earlier
    if faults := plan_differences(before, table):
        remedy = "give the same command to go on, or choose another --out"
        raise FolderError(f"{folder}: holds a search by another plan: {'; '.join(faults)}; {remedy}")
    earlier.append(before)
    files.write_atomic(path, json.dumps({"plan": table, "earlier": earlier}, indent=1).encode())
    return earlier


def plan_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a plan changes in an earlier one, other than more values to try."""
    differences = [
        f"{key} {before.get(key)} -> {now[key]}"
        for key in now
        if key != "over" and before.get(key) != now[key]
    ]
    for role, over in before.get("over", {}).items():
        new = now["over"].get(role)
        if new is None:
            continue  # no arm of now trains it
        if {*over} != {*new}:
            differences.append(f"keys {', '.join(over)} -> {', '.join(new)}")
            continue
        for key, values in over.items():
            if lost := [value for value in values if value not in new[key]]:
                differences.append(f"{key} without {', '.join(map(str, lost))}")
    return differences
