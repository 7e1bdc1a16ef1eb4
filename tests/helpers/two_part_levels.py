"""How often the test of two parts errs, and what it finds, where some runs fail; beside the test of the mean.

`.venv/bin/python tests/helpers/two_part_levels.py` prints the table of docs/judging.md, with more rows
and columns, in a minute.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Draw: TypeAlias = Callable[[np.random.Generator, int, int], tuple[Floats, Bools]]
"""(generator, experiments, seeds) -> outcomes and failures, each (experiments, seeds, 2 arms)."""
REPETITIONS = 4000
LEVEL = 0.05
FALL = 20.0
"""How far the outcome of a failing run lies below the others, in their standard deviations."""


def drawing(shares: tuple[float, float], effect: float = 0.0, selects: bool = False) -> Draw:
    """Two arms with these shares of failing runs. The effect is in standard deviations of a seed's
    difference. If failures `select`, the runs of an arm with the smallest outcomes fail."""

    def draw(rng: np.random.Generator, experiments: int, seeds: int) -> tuple[Floats, Bools]:
        outcomes = rng.normal(size=(experiments, seeds, 2)) / np.sqrt(2)
        chances = rng.random(outcomes.shape)
        if selects:
            chances = (np.argsort(np.argsort(outcomes, axis=1), axis=1) + chances) / seeds
        failures = chances < np.array(shares)
        outcomes[..., 0] += effect
        return outcomes - FALL * failures, failures

    return draw


CASES: Mapping[str, Draw] = {
    "equal arms, no run fails": drawing((0.0, 0.0)),
    "equal arms, a quarter fails": drawing((0.25, 0.25)),
    "equal arms, the quarter with the smallest outcomes fails": drawing((0.25, 0.25), selects=True),
    "5 and 60 % fail, the others are equal": drawing((0.05, 0.6)),
    "5 and 60 % fail, those with the smallest outcomes": drawing((0.05, 0.6), selects=True),
    "no run fails, 1.5 SD": drawing((0.0, 0.0), 1.5),
    "10 % fail, the others differ by 1.5 SD": drawing((0.1, 0.1), 1.5),
    "a quarter fails, the others differ by 1.5 SD": drawing((0.25, 0.25), 1.5),
}


def p_values(outcomes: Floats, failures: Bools) -> tuple[Floats, Floats, Floats]:
    """(experiments,): p of the mean, and the adjusted p of outcome and share, as `maxima.joint_ps` has them;
    for eight seeds or so, since every sign pattern is counted at once."""
    signs = np.array([*itertools.product((1.0, -1.0), repeat=outcomes.shape[1])])
    difference = outcomes[..., 0] - outcomes[..., 1]
    of_others = np.where(failures.any(axis=2), 0.0, difference)
    of_shares = failures[..., 0].astype(float) - failures[..., 1]
    mean, others, shares = (
        np.abs(part @ signs.T) / np.maximum(np.sqrt((part**2).sum(axis=1)), 1e-300)[:, None]
        for part in (difference, of_others, of_shares)
    )

    def reached(statistics: Floats, least: Floats) -> Floats:
        return np.asarray(np.mean(statistics >= least[:, None] - 1e-9, axis=1))

    both = np.maximum(others, shares)
    joint = reached(both, both[:, 0])
    alone = [reached(part, part[:, 0]) for part in (others, shares)]
    is_first = others[:, 0] >= shares[:, 0]  # the larger statistic has the p of both, the other one at least
    p_others = np.maximum(alone[0], np.where(is_first, joint, np.maximum(joint, alone[0])))
    p_shares = np.maximum(alone[1], np.where(is_first, np.maximum(joint, alone[1]), joint))
    return reached(mean, mean[:, 0]), p_others, p_shares


def shown(case: str, seeds: int, repetitions: int = REPETITIONS) -> tuple[float, ...]:
    """Shares of experiments in which a difference is shown: of the mean, of either part, of the outcome of
    the runs that do not fail, of the share that fails."""
    rng = np.random.default_rng(0)
    p = np.concatenate(
        [np.stack(p_values(*CASES[case](rng, 100, seeds)), axis=1) for _ in range(repetitions // 100)]
    )
    shares = (p <= LEVEL).mean(axis=0)
    return float(shares[0]), float((p[:, 1:].min(axis=1) <= LEVEL).mean()), *map(float, shares[1:])


if __name__ == "__main__":
    print("| runs | seeds | mean | two parts | outcome of the others | share that fails |")
    print("|---|---:|---:|---:|---:|---:|")
    for case in CASES:
        for seeds in (8, 12):
            cells = " | ".join(f"{100 * share:.1f}" for share in shown(case, seeds))
            print(f"| {case} | {seeds} | {cells} |", flush=True)
