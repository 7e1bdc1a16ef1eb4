"""The record of a search of settings: its rule, every run, and the chosen values."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from grpobench.analysis.runfolder.files import LogError, flatten, read_json
from grpobench.analysis.tools.text import json_text

FILE = "search.json"
VERSION = 2
"""Version of the file's layout. Version 1 is of searches by successive halving."""
RATE = "train.learning_rate"
"""The policy's learning rate; that of another role has its name behind it."""
Value: TypeAlias = int | float | str | bool
Combination: TypeAlias = tuple[Value, ...]
"""A value of every searched key, in their order."""
ACCURACY = "end:eval/validation/"
"""What the outcomes that are accuracies begin with."""


def rate_key(role: str) -> str:
    """The key of a role's learning rate."""
    return RATE if role == "policy" else f"{RATE}.{role}"


def is_accuracy(measure: str) -> bool:
    """Whether an outcome is an accuracy on the validation split, whose worst is 0."""
    return measure.startswith(ACCURACY) and measure.endswith("/correct")


SETTINGS = ("algorithm", "task", "modify", "model", "sampler", "reward", "train")
"""Sections of run.toml that say how a run trains."""
OTHER = (
    *(f"train.{name}" for name in ("micro_batch_tokens", "activation_checkpointing", "offload_optimizer")),
    *(f"train.{name}" for name in ("devices", "gradient_noise", "gradient_noise_parts")),
    *(f"sampler.{name}" for name in ("max_batch_size", "path", "url", "cache_gb", "sleep", "ahead")),
    *("reward.model_batch", "task.name", "model.attention", "model.deterministic"),
)
"""Settings in these sections that say how fast a run is, or what is measured."""


def settings_of(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run.toml that say how it trains, as the command line calls them (such as
    ``train.steps``), without learning rates."""
    settings = {}
    for section in SETTINGS:
        for key, value in flatten(tables.get(section, {}), f"{section}.").items():
            name = key.replace(".settings.", ".", 1)
            if name not in OTHER and not name.startswith(RATE):
                settings[name] = value
    return settings


def combinations(over: Mapping[str, Sequence[Value]], role: str) -> list[Combination]:
    """Every combination of the values of `over`, in the order that decides between equal means: lower
    learning rates of the role first, then as listed."""
    value_tuples = list(itertools.product(*over.values()))
    if (key := rate_key(role)) not in over:
        return value_tuples
    index = [*over].index(key)
    return sorted(value_tuples, key=lambda values: values[index])


@dataclass(frozen=True)
class Trial:
    """A run of a search."""

    role: str
    """The role whose rate was searched by it."""
    arm: str
    values: Combination
    rung: int
    """The first round that it belongs to, from 1."""
    task: str
    seed: int
    outcome: float | None
    """None for a run that diverged, if its outcome has no worst value: it ranks last."""
    state: str
    seconds: float
    """Of training and evaluation."""
    tokens: int
    """Sampled in training."""
    base: float | None = None
    """The outcome before training; None where it is not known."""

    @property
    def failed(self) -> bool:
        """Whether the run collapsed, diverged or ended below its base."""
        below = self.base is not None and self.counted < self.base
        return below or self.state in ("diverged", "collapsed")

    @property
    def counted(self) -> float:
        """The outcome as it enters means."""
        return -math.inf if self.outcome is None else self.outcome


@dataclass(frozen=True)
class Stage:
    """The search of a role's learning rate, and of what was searched with it."""

    role: str
    over: Mapping[str, Sequence[Value]]
    """The values of each key."""
    arms: Sequence[str]
    chosen: Mapping[str, Sequence[Value]]
    """By arm, a value of each key."""
    others: Mapping[str, Mapping[str, float]]
    """By arm, the learning rates of other trained roles meanwhile."""

    @property
    def combinations(self) -> list[Combination]:
        return combinations(self.over, self.role)


@dataclass(frozen=True)
class Budget:
    """What a search spent on an arm, over all roles, tasks and seeds."""

    runs: int
    steps: int
    tokens: int
    """Sampled in training."""
    seconds: float
    """Of training and evaluation."""


@dataclass(frozen=True)
class SearchRecord:
    """A search as it was planned and carried out. One without stages is only named by a recipe, whose rates
    are said to come from it."""

    recipe: str
    """Name of the recipe whose arms were searched."""
    command: str
    tasks: Sequence[str]
    steps: Mapping[str, int]
    """Steps of a run, by task."""
    outcomes: Mapping[str, str]
    """What a run's outcome is (`measure.Measure`), by task."""
    seeds: Sequence[int]
    stages: Sequence[Stage]
    trials: Sequence[Trial]
    extensions: int = 0
    """Rates that the grid could gain on each side."""
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By arm and task, the settings under which it was searched: those of run.toml that say how a run trains
    (`settings_of`). Empty in a record of version 1."""
    rungs: Sequence[int] = ()
    """Of a search by successive halving, seeds of a value by the end of each rung; else empty."""
    keep: float = 0.0
    """Of such a search, the share of the values that went on to the next rung."""
    earlier: Sequence[Mapping[str, Any]] = ()
    """Earlier plans in the same folder, which this one extends."""
    sha256: str = ""
    """Of the file; empty while it is not written."""

    @property
    def is_accuracy(self) -> bool:
        """Whether the outcomes are validation accuracies, whose worst is 0."""
        return all(map(is_accuracy, self.outcomes.values()))

    def settings_for(self, arm: str, task: str) -> Mapping[str, Any]:
        """The settings under which an arm was searched on a task: of a record of version 1, the number of
        steps alone; empty where it was not searched."""
        if self.settings:
            return self.settings.get(arm, {}).get(task, {})
        return {"train.steps": self.steps[task]} if task in self.steps else {}

    def by_value(self, stage: Stage, arm: str) -> dict[Combination, dict[int, float]]:
        """The outcome by seed of each value of an arm, as a mean over tasks, in the order of
        `combinations`."""
        cells: dict[Combination, dict[int, list[float]]] = {values: {} for values in stage.combinations}
        for trial in self.trials:
            if (trial.role, trial.arm) == (stage.role, arm):
                cells[trial.values].setdefault(trial.seed, []).append(trial.counted)
        return {
            values: {seed: fmean(outcomes) for seed, outcomes in sorted(by_seed.items())}
            for values, by_seed in cells.items()
            if by_seed
        }

    def trials_of(self, stage: Stage, arm: str) -> dict[Combination, list[Trial]]:
        """The runs of each value of an arm in a stage, over tasks and seeds."""
        trials: dict[Combination, list[Trial]] = {}
        for trial in self.trials:
            if (trial.role, trial.arm) == (stage.role, arm):
                trials.setdefault(trial.values, []).append(trial)
        return trials

    def runs_of(self, stage: Stage, arm: str) -> int:
        """How many runs a stage spent on an arm, over all tasks."""
        return sum(map(len, self.trials_of(stage, arm).values()))

    def budgets(self) -> dict[str, Budget]:
        """What the search spent, by arm."""
        trials: dict[str, list[Trial]] = {}
        for trial in self.trials:
            trials.setdefault(trial.arm, []).append(trial)
        return {
            arm: Budget(
                len(arm_trials),
                sum(self.steps[trial.task] for trial in arm_trials),
                sum(trial.tokens for trial in arm_trials),
                round(math.fsum(trial.seconds for trial in arm_trials), 1),
            )
            for arm, arm_trials in trials.items()
        }

    def chosen(self) -> dict[str, dict[str, Value]]:
        """By arm, the chosen value of each key of every stage."""
        values: dict[str, dict[str, Value]] = {}
        for stage in self.stages:
            for arm, arm_values in stage.chosen.items():
                values.setdefault(arm, {}).update(zip(stage.over, arm_values, strict=True))
        return values

    def table(self) -> dict[str, Any]:
        """As JSON holds it, without the file's checksum."""
        plain = asdict(self)
        del plain["sha256"]
        return {"version": VERSION, **plain, "budgets": self._plain_budgets()}

    def summary(self) -> dict[str, Any]:
        """The table without the runs, with the file's checksum."""
        plain = {key: value for key, value in asdict(self).items() if key != "trials"}
        return plain | {"budgets": self._plain_budgets()}

    def _plain_budgets(self) -> dict[str, Any]:
        return {arm: asdict(budget) for arm, budget in self.budgets().items()}

    def text(self) -> str:
        """The content of the file, with a line per run."""
        table = self.table()
        trials = table.pop("trials")
        head = [f" {json.dumps(key)}: {_line(value)}," for key, value in table.items()]
        runs = ",\n".join(f"  {_line(trial)}" for trial in trials)
        return "\n".join(["{", *head, ' "trials": [', runs, " ]", "}", ""])


def _line(value: Any) -> str:
    return json_text(json.dumps(value, ensure_ascii=False, allow_nan=False))


def read_record(path: Path) -> SearchRecord:
    """The record in a file. Raises LogError if there is none, or if it is damaged."""
    return record_of(read_json(path), str(path))


def record_of(table: Mapping[str, Any], source: str) -> SearchRecord:
    """The record in a table, which was read from `source`. Raises LogError if it is none."""
    try:
        content = dict(table)
        if content.pop("version") not in (1, VERSION):
            raise ValueError(f"version {table['version']}")
        content.pop("budgets", None)  # made from the runs
        content["trials"] = tuple(
            Trial(**{**trial, "values": tuple(trial["values"])}) for trial in content["trials"]
        )
        content["stages"] = tuple(Stage(**stage_table) for stage_table in content["stages"])
        record = SearchRecord(**content)
        for stage in record.stages:
            valid_values = set(stage.combinations)
            unknown = [
                trial
                for trial in record.trials
                if trial.role == stage.role and trial.values not in valid_values
            ]
            if unknown or not all(tuple(values) in valid_values for values in stage.chosen.values()):
                raise ValueError("runs or choices outside of the searched values")
        return record
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LogError(f"{source}: no record of a search ({error}); restore it") from error
