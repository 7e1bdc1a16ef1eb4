"""Whether the runs are paired as they are planned to be: the same start inside a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.headline import headline_of


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


def check_pairing(matrix: Matrix) -> Pairing:
    """Check what can be checked: equal initial weights give equal step-0 accuracy, equal schedules and seeds
    give equal scores of the first rollouts. A different warm start, sampler or curriculum breaks it."""
    odd: list[str] = []
    counts = []
    for what in ("base", "first"):
        agrees = groups = 0
        for task in matrix.tasks:
            frame = matrix.select(headline_of(matrix, task).metric if what == "base" else "score/correct")
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
