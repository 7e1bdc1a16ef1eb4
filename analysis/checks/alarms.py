"""Everything that a reader must know before the numbers, and whether runs are paired as planned.

`find_alarms` applies all checks to the logs. It returns nothing for an experiment that one launcher ran to
its end on one machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.checks.uniform import (
    find_changes_within_runs,
    find_code_differences,
    find_data_differences,
    find_incomplete_runs,
    find_leaked_problems,
    find_misplaced_folders,
    find_setting_differences,
    find_skipped_updates,
    find_unplanned_runs,
    find_version_differences,
)
from grpobench.analysis.runfolder.experiment import Experiment, import_record
from grpobench.analysis.tools.text import listed
from grpobench.analysis.topics.accuracy import headline_of

MOST = 3
"""Faults of a run that are listed; provenance.json has all."""
SAME_VALUE = 1e-9
"""Values closer than this are equal: they are sums of floats."""

# Runs that were imported from logs of other libraries


def find_imported_logs(experiment: Experiment) -> Iterable[str]:
    """The libraries that wrote the imported logs, and runs whose final accuracy is from before the last
    update."""
    kinds: Counter[str] = Counter()
    for run in experiment.runs:
        if record := import_record(run):
            names = f"names of {record['names']}" if record.get("names") else "names of no known library"
            writer = f", written by {record['writer']}" if record.get("writer") else ""
            kinds[f"{record.get('format', 'unknown')} logs with {names}{writer}"] += 1
    for kind, count in kinds.most_common():
        runs = "1 run" if count == 1 else f"{count} runs"
        yield f"{runs} from {kind}: provenance.json says what each metric means there"
    early: dict[str, list[str]] = {}
    for task in experiment.tasks:
        frame = experiment.select(headline_of(experiment, task).metric)
        last = frame[frame["task"] == task].groupby(["arm", "seed"])["step"].max()
        for run in experiment.runs:
            key = (run.arm, run.seed)
            if run.task != task or not run.finished or not import_record(run) or key not in last.index:
                continue
            if 0 < int(last[key]) < run.step:
                early.setdefault(f"step {last[key]} of {run.step}", []).append(run.name)
    for when, run_names in early.items():
        yield f"the final accuracy is from {when}, the last evaluation in the log: {listed(run_names)}"


def find_import_faults(experiment: Experiment) -> Iterable[str]:
    """Logs that could not be imported, and the rows that each imported run left out: file, line and
    reason."""
    yield from experiment.unimported
    for run in experiment.runs:
        faults = [str(fault) for fault in import_record(run).get("faults", ())]
        if faults:
            more = f"; and {len(faults) - MOST} more, in its provenance.json" if len(faults) > MOST else ""
            yield f"{run.name}: {'; '.join(faults[:MOST])}{more}"


# Whether runs are paired: the same start inside a seed


@dataclass(frozen=True)
class Pairing:
    """What the logs say about the paired design."""

    base_agrees: int
    """Of `base_groups`, how many have equal accuracies before training."""
    base_groups: int
    """(task, seed) groups of at least two arms."""
    first_agrees: int
    first_groups: int
    """The same for the mean score of the first update's rollouts."""
    odd: Sequence[str]
    """The groups that disagree, in words."""


def check_pairing(experiment: Experiment) -> Pairing:
    """Compare the arms of each seed where they must be equal: equal initial weights give equal accuracies
    before training, and equal schedules and seeds give equal scores of the first rollouts. A different warm
    start, sampler or curriculum breaks this."""
    base: list[tuple[str, bool]] = []
    first: list[tuple[str, bool]] = []
    for task in experiment.tasks:
        base += _compare_seeds(experiment, task, headline_of(experiment, task).metric, step=0)
        first += _compare_seeds(experiment, task, "score/correct", step=1)
    differing = [f"{group}: accuracy before training" for group, is_equal in base if not is_equal]
    differing += [f"{group}: first rollouts" for group, is_equal in first if not is_equal]
    return Pairing(_count_equal(base), len(base), _count_equal(first), len(first), differing)


def _compare_seeds(experiment: Experiment, task: str, metric: str, step: int) -> list[tuple[str, bool]]:
    """Each seed of a task that several arms ran, and whether their values of a metric are equal at a step."""
    frame = experiment.select(metric)
    at_step = frame[(frame["task"] == task) & (frame["step"] == step)]
    return [
        (f"{task} seed {seed}", float(arms["value"].max() - arms["value"].min()) < SAME_VALUE)
        for seed, arms in at_step.groupby("seed")
        if len(arms) > 1
    ]


def _count_equal(groups: Sequence[tuple[str, bool]]) -> int:
    return sum(is_equal for _, is_equal in groups)


# Everything that a reader must know first


@dataclass(frozen=True)
class Alarm:
    """A fact that a reader must know before the numbers, with its details."""

    title: str
    lines: Sequence[str]


DAMAGED = "Damaged, and counted nowhere until it is mended"
SPARED = "Damaged, and needed by no number"


def find_alarms(
    experiment: Experiment, damage: Sequence[str] = (), spared: Sequence[str] = ()
) -> list[Alarm]:
    """Everything that is damaged, not uniform, not as planned, or missing. `damage` and `spared` of `Numbers`
    list files that could not be read."""
    alarms = [Alarm(title, lines) for title, lines in ((DAMAGED, damage), (SPARED, spared)) if lines]
    return alarms + [Alarm(title, lines) for title, find in CHECKS.items() if (lines := [*find(experiment)])]


CHECKS: Mapping[str, Callable[[Experiment], Iterable[str]]] = {
    "Changed while the run ran": find_changes_within_runs,
    "Evaluated on problems that were trained on": find_leaked_problems,
    "Updates left out for a loss, reward or gradient that is not finite": find_skipped_updates,
    "Logs that lack something": find_incomplete_runs,
    "Left out of what was imported": find_import_faults,
    "Imported from logs of others": find_imported_logs,
    "Folders that are not what they say": find_misplaced_folders,
    "Not as planned": find_unplanned_runs,
    "Seeds of one arm with different settings": find_setting_differences,
    "Different data or models under the same settings": find_data_differences,
    "Different versions or devices": find_version_differences,
    "Different code": find_code_differences,
}
"""Title in the report -> the check that returns its lines."""
