"""What is known of runs that were imported from logs of other libraries.

Whether the runs are paired as they are planned to be: the same start inside a seed.

Everything that a reader must know before the numbers. Read from logs alone; an experiment that one
launcher ran
through on one machine has nothing to tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.checks.uniform import (
    apart,
    changed,
    code,
    data,
    incomplete,
    leaked,
    left_out,
    misplaced,
    unplanned,
    versions,
)
from grpobench.analysis.runfolder.experiment import Experiment, imported
from grpobench.analysis.tools.text import listed
from grpobench.analysis.topics.accuracy import headline_of

MOST = 3
"""Faults of a run that are told; provenance.json has all."""


def foreign(experiment: Experiment) -> Iterable[str]:
    """Whose logs the imported runs are, and of which the final accuracy is from before the last update."""
    kinds: Counter[str] = Counter()
    for run in experiment.runs:
        if told := imported(run):
            names = f"names of {told['names']}" if told.get("names") else "names of no known library"
            writer = f", written by {told['writer']}" if told.get("writer") else ""
            kinds[f"{told.get('format', 'unknown')} logs with {names}{writer}"] += 1
    for kind, count in kinds.most_common():
        runs = "1 run" if count == 1 else f"{count} runs"
        yield f"{runs} from {kind}: provenance.json says what each metric is there"
    early: dict[str, list[str]] = {}
    for task in experiment.tasks:
        frame = experiment.select(headline_of(experiment, task).metric)
        last = frame[frame["task"] == task].groupby(["arm", "seed"])["step"].max()
        for run in experiment.runs:
            key = (run.arm, run.seed)
            if run.task != task or not run.finished or not imported(run) or key not in last.index:
                continue
            if 0 < int(last[key]) < run.step:
                early.setdefault(f"step {last[key]} of {run.step}", []).append(run.name)
    for when, late in early.items():
        yield f"the final accuracy is of {when}, the last evaluation in the log: {listed(late)}"


def left_behind(experiment: Experiment) -> Iterable[str]:
    """What could not be read at all, and of each imported run what was left out: file, line and why."""
    yield from experiment.unimported
    for run in experiment.runs:
        faults = [str(fault) for fault in imported(run).get("faults", ())]
        if faults:
            more = f"; and {len(faults) - MOST} more, in its provenance.json" if len(faults) > MOST else ""
            yield f"{run.name}: {'; '.join(faults[:MOST])}{more}"


@dataclass(frozen=True)
class Pairing:
    """What the logs say about the paired design."""

    base_agrees: int
    base_groups: int
    """(task, seed) groups of at least two arms; in how many the accuracy before training is the same."""
    first_agrees: int
    first_groups: int
    """The same for the mean score of the first update's rollouts."""
    odd: Sequence[str]
    """The groups that disagree, named."""


def check_pairing(experiment: Experiment) -> Pairing:
    """Check what can be checked: equal initial weights give equal step-0 accuracy, equal schedules and seeds
    give equal scores of the first rollouts. A different warm start, sampler or curriculum breaks it."""
    odd: list[str] = []
    counts = []
    for what in ("base", "first"):
        agrees = groups = 0
        for task in experiment.tasks:
            frame = experiment.select(
                headline_of(experiment, task).metric if what == "base" else "score/correct"
            )
            frame = frame[(frame["task"] == task) & (frame["step"] == (0 if what == "base" else 1))]
            for seed, own in frame.groupby("seed"):
                if len(own) > 1:
                    same = float(own["value"].max() - own["value"].min()) < 1e-9
                    groups, agrees = groups + 1, agrees + same
                    if not same:
                        where = "accuracy before training" if what == "base" else "first rollouts"
                        odd.append(f"{task} seed {seed}: {where}")
        counts += [agrees, groups]
    return Pairing(counts[0], counts[1], counts[2], counts[3], odd)


@dataclass(frozen=True)
class Alarm:
    """Something that a reader must know before the numbers."""

    title: str
    lines: Sequence[str]


DAMAGED = "Damaged, and counted nowhere until it is mended"
SPARED = "Damaged, and needed by no number"


def find_alarms(
    experiment: Experiment, damage: Sequence[str] = (), spared: Sequence[str] = ()
) -> list[Alarm]:
    """Everything that is damaged, not uniform, not as planned, or missing; empty where nothing is. `damage`
    and `spared` are what could not be read (of `Numbers`)."""
    found = [Alarm(title, lines) for title, lines in ((DAMAGED, damage), (SPARED, spared)) if lines]
    return found + [Alarm(title, lines) for title, find in CHECKS.items() if (lines := [*find(experiment)])]


CHECKS: Mapping[str, Callable[[Experiment], Iterable[str]]] = {
    "Changed while the run ran": changed,
    "Evaluated on problems that were trained on": leaked,
    "Updates left out for a loss, reward or gradient that is not finite": left_out,
    "Logs that lack something": incomplete,
    "Left out of what was imported": left_behind,
    "Imported from logs of others": foreign,
    "Folders that are not what they say": misplaced,
    "Not as planned": unplanned,
    "Seeds of one arm with different settings": apart,
    "Different data or models under the same settings": data,
    "Different versions or devices": versions,
    "Different code": code,
}
"""Title in the report -> what finds its lines."""
