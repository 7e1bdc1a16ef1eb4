"""Guards: what training must not destroy, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.measure import MODES
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.intervals import seed_mean
from grpobench.analysis.tools.text import NONE, listed, number
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.captions import counted
from grpobench.analysis.topics.warnings import Gravity, ReportWarning


@dataclass(frozen=True)
class GuardedChange:
    """What training changed of something that it must not destroy, for an arm on a task."""

    task: str
    arm: str
    guard: str
    metric: str
    """The logged metric; empty if no run logged one."""
    bound: float
    """The largest change that is allowed, in points or, of a loss, in nats per token."""
    seeds: int
    """Runs with a value before and after training."""
    change: float
    """Mean over them, in the unit of the bound; NaN without one."""
    low: float
    high: float

    @property
    def is_broken(self) -> bool:
        """Whether the mean change is beyond the bound."""
        return self.change < self.bound if self.bound < 0 else self.change > self.bound

    @property
    def words(self) -> str:
        """`accuracy on nanobias −8.1 points`."""
        kind, _, other = self.guard.partition(":")
        name = {
            "also": f"accuracy on {other}",
            "loss": f"loss on {other}",
            "calibration": "over- or underconfidence",
        }.get(kind, "answers in the format")
        return f"{name} {self.shown(self.change)} {self.unit}"

    @property
    def unit(self) -> str:
        return "nats/token" if self.guard.startswith("loss:") else "points"

    def shown(self, value: float) -> str:
        """A change with its sign."""
        if math.isnan(value):
            return NONE
        text = number(value, 3 if self.unit != "points" else 1)
        return f"+{text}" if value > 0 else text


def measure_guards(experiment: Experiment) -> list[GuardedChange]:
    """Every guard for every arm and task with a run that has a result, but for a guard of the run's own task.
    Empty for a map, whose arms are meant to fail."""
    changes = []
    for task in () if experiment.sweep_values else experiment.tasks:
        for guard, bound in experiment.guard.items():
            if guard.partition(":")[2] == task:
                continue
            metric = _metric(experiment, task, guard)
            ends, scale = ends_of(experiment, task, metric), 1 if guard.startswith("loss:") else 100
            if guard == "calibration":  # as far from calibrated on either side
                ends = {run: (abs(base), abs(last)) for run, (base, last) in ends.items()}
            runs = [run for run in experiment.runs if run.task == task and run.settled]
            for arm in dict.fromkeys(run.arm for run in runs):
                values = [
                    scale * (last - base)
                    for run in runs
                    if run.arm == arm
                    for base, last in [ends.get((arm, run.seed), (math.nan, math.nan))]
                    if math.isfinite(last - base)
                ]
                mean = seed_mean(values)
                numbers = (len(values), mean.value, mean.low, mean.high)
                changes.append(GuardedChange(task, arm, guard, metric, bound, *numbers))
    return changes


def _metric(experiment: Experiment, task: str, guard: str) -> str:
    """The metric that the runs of a task logged for a guard; empty if they logged none."""
    kind, _, other = guard.partition(":")
    name = {"also": "correct", "calibration": "overconfidence"}.get(kind, kind)
    logged = experiment.logged.get(task, frozenset())
    names = [also_metric(experiment, task, other, f"{mode}/{name}") for mode in MODES]
    if not other:
        chosen = headline_of(experiment, task)
        names = [f"eval/{chosen.split}/{mode}/{name}" for mode in (chosen.mode, *MODES)]
    return next((metric for metric in names if metric in logged), "")


def also_metric(experiment: Experiment, task: str, other: str, metric: str) -> str:
    """The logged name of a metric of another task in the runs of a task: on test, else on validation."""
    names = [f"also/{other}/{split}/{metric}" for split in ("test", "validation")]
    logged = experiment.logged.get(task, frozenset())
    return next((name for name in names if name in logged), names[0])


def ends_of(experiment: Experiment, task: str, metric: str) -> dict[tuple[str, int], tuple[float, float]]:
    """By arm and seed of the runs on a task: a metric before training and at its last evaluation after an
    update; NaN where there is none."""
    rows, ends = experiment.select(metric), {}
    for (arm, seed), run_rows in rows[rows["task"] == task].groupby(["arm", "seed"], sort=False):
        run_rows = run_rows.sort_values("step")
        base, after = (
            run_rows.loc[chosen, "value"] for chosen in (run_rows["step"] == 0, run_rows["step"] > 0)
        )
        ends[str(arm), int(seed)] = (
            float(base.iloc[0]) if len(base) else math.nan,
            float(after.iloc[-1]) if len(after) else math.nan,
        )
    return ends


def describe_guards(changes: Sequence[GuardedChange]) -> str:
    """The guards that arms broke, as a clause of the headline; empty if none did."""
    broken = [f"{change.arm} on {change.task}: {change.words}" for change in changes if change.is_broken]
    return f"more is lost than guards allow ({listed(broken, 2)})" if broken else ""


def warn_of_guards(changes: Sequence[GuardedChange]) -> Iterator[ReportWarning]:
    """Arms that lost more than a guard allows, and guards that were not measured."""
    broken = [change for change in changes if change.is_broken]
    if broken:
        yield ReportWarning(
            f"{len(broken)} of {len(changes)} guards are broken: "
            f"{listed([f'{change.guard} by {change.arm} on {change.task}' for change in broken], 3)}",
            [
                f"{change.arm} on {change.task}: {change.words} ({change.shown(change.low)} to "
                f"{change.shown(change.high)}, {counted([change.seeds], 'seed')}); allowed: {change.bound:g}"
                for change in broken
            ],
            Gravity.DOUBT,
            "A gain on the task was paid for with more than the recipe allows. The mean change over seeds "
            "decides; the interval says how sure it is.",
        )
    unknown = [change for change in changes if not change.seeds]
    if unknown:
        yield ReportWarning(
            f"{len(unknown)} of {len(changes)} guards could not be measured",
            [f"{change.guard}: {change.arm} on {change.task}" for change in unknown],
            Gravity.FAULT,
            "The runs logged no evaluation before training, or none after it. Add the task to evaluate.also "
            "and run again.",
        )


def guards_table(changes: Sequence[GuardedChange]) -> PrintedTable:
    """One row per task, arm and guard."""
    rows = [
        [
            change.task,
            change.arm,
            change.guard,
            *(
                NONE if math.isnan(end) else change.shown(end)
                for end in (change.change, change.low, change.high)
            ),
            f"{change.bound:g} {change.unit}",
            "broken" if change.is_broken else "holds" if change.seeds else "not measured",
        ]
        for change in changes
    ]
    note = (
        "Mean change since before training with its 95 % t interval over seeds, in points or, of a loss, in "
        "nats per token. A guard is broken where the mean is beyond the bound."
    )
    header = ["task", "arm", "guard", "change", "low", "high", "allowed", "guard is"]
    frame = pd.DataFrame([guard_row(change) for change in changes])
    return PrintedTable("guards", "What training cost", header, rows, frame, text_columns=3, note=note)


def guard_row(change: GuardedChange) -> Mapping[str, object]:
    """A guard for JSON."""
    return asdict(change) | {"unit": change.unit, "broken": change.is_broken}
