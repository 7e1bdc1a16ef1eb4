"""Whether runs are paired as planned: equal where the arms of a seed must be equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.topics.accuracy import headline_of

SAME_VALUE = 1e-9
"""Values closer than this are equal: they are sums of floats."""


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
