"""How often the tests of arms at their best learning rates err, and what they find, in simulated experiments.

`.venv/bin/python tests/helpers/rate_levels.py` prints the tables of docs/comparisons.md ("At the best
learning rate of each arm") in some minutes. The tests of a pair are computed for all repetitions at once;
tests/analysis/test_rate_levels.py compares them with the functions that the report calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grpobench.analysis.statistics.best_rates import (
    SLACK,
    _adjusted,
    _contrasts,
    _evidence,
    _family_p,
    _patterns,
)
from grpobench.analysis.statistics.permutation import sign_flip_ps
from grpobench.analysis.statistics.rates import RateCurve, first_largest, halves

Floats: TypeAlias = NDArray[np.float64]
Draw: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Floats]
REPETITIONS: Mapping[int, int] = {6: 2000, 8: 2000, 16: 1000}
"""By number of seeds."""
FAMILY_REPETITIONS = 1000
EFFECTS: Mapping[int, float] = {6: 2.0, 8: 2.0, 16: 1.0}
"""By number of seeds, in SD of a run's error (without collapses)."""
RATES = (3, 5)
LEVEL = 0.05
SEED = 0
BATCH = 2**22
"""Sums over sign patterns in memory at once."""


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.normal(size=shape)


def _skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """SD 1, skewness 6."""
    return np.asarray((rng.lognormal(size=shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e))


def _collapses(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """A quarter of the runs lose 20 SD."""
    return np.asarray(rng.normal(size=shape) - 20.0 * (rng.random(shape) < 0.25) + 5.0)


ERRORS: Mapping[str, Draw] = {"normal": _normal, "log-normal": _skewed, "a quarter collapses": _collapses}
"""Errors of runs, independent over seeds, arms and rates, with mean 0."""


def flat(rates: int) -> Floats:
    """Every rate is best."""
    return np.zeros(rates)


def gentle(rates: int) -> Floats:
    """−.5 SD one rate from the best, −2 SD two rates from it."""
    return np.asarray(-0.5 * (np.arange(rates) - rates // 2) ** 2)


def peak(rates: int) -> Floats:
    """−3 SD one rate from the best, −12 SD two rates from it."""
    return np.asarray(-3.0 * (np.arange(rates) - rates // 2) ** 2)


def cliff(rates: int) -> Floats:
    """−10 SD above the middle rate."""
    return np.where(np.arange(rates) > rates // 2, -10.0, 0.0)


CURVES: Mapping[str, tuple[Callable[[int], Floats], Callable[[int], Floats]]] = {
    "flat, flat": (flat, flat),
    "gentle, gentle": (gentle, gentle),
    "flat, peak": (flat, peak),
    "cliff, cliff": (cliff, cliff),
    "flat, cliff": (flat, cliff),
}
"""True means over rates of two arms whose best rates are equally good."""


class Shares(NamedTuple):
    """Shares of the repetitions in which a test rejects at 5 %."""

    cross_fitted: float
    """The sign-flip test of cross-fitted differences."""
    best_rates: float
    """`compare_best_rates`."""
    fixed: float
    """The sign-flip test at the middle rate of both, which is a best one and was chosen before the runs."""


def simulate(
    draw: Draw, curves: str, rates: int, seeds: int, effect: float = 0.0, repetitions: int = 0
) -> Shares:
    """Rejections of "the best rates are equally good"; the first arm is better by `effect` at every rate."""
    rng = np.random.default_rng([SEED, seeds, rates])
    shape = (repetitions or REPETITIONS[seeds], rates, seeds)
    first, second = (curve(rates)[:, None] + draw(rng, shape) for curve in CURVES[curves])
    first = first + effect
    middle = first[:, rates // 2] - second[:, rates // 2]
    ps = (
        sign_flip_ps([*(cross_fitted(first) - cross_fitted(second))]),
        p_at_best(first, second),
        sign_flip_ps([*middle]),
    )
    return Shares(*(float(np.mean(np.asarray(p) <= LEVEL)) for p in ps))


def cross_fitted(scores: Floats) -> Floats:
    """`rates.cross_fit` of many curves: (curves, rates, seeds) → (curves, seeds)."""
    chooses = halves(scores.shape[2])
    means = np.einsum("crs,hs->chr", scores, chooses / chooses.sum(axis=1, keepdims=True))
    chosen = first_largest(means)
    at_chosen = np.take_along_axis(scores, chosen[:, :, None], axis=1)  # (curves, halves, seeds)
    return np.asarray(np.where(chooses, 0.0, at_chosen).sum(axis=1) / (~chooses).sum(axis=0))


def p_at_best(first: Floats, second: Floats) -> Floats:
    """p of `compare_best_rates` of many pairs: twice (pairs, rates, seeds) → (pairs,)."""
    pairs, rates, seeds = first.shape
    patterns = np.concatenate([*_patterns(seeds, rates * rates)])
    contrasts = first[:, :, None] - second[:, None]
    z = contrasts / np.sqrt((contrasts**2).sum(axis=3, keepdims=True))
    step = max(1, BATCH // (rates * rates * len(patterns)))
    p = np.empty(pairs)
    for start in range(0, pairs, step):
        sums = z[start : start + step] @ patterns.T  # (pairs, rates, rates, patterns)
        better, worse = sums.max(axis=1), -sums.min(axis=2)  # of the first, against each best rate
        shares = []
        for alpha, beta in product(range(rates), repeat=2):
            largest = np.maximum(worse[:, alpha], better[:, beta])
            shares.append(
                (largest >= largest[:, :1] - SLACK).mean(axis=1)
            )  # the observed pattern is the first
        p[start : start + step] = np.max(shares, axis=0)
    return p


def simulate_family(draw: Draw, effects: Sequence[float], repetitions: int = 0) -> tuple[float, float]:
    """Eight seeds, three rates, flat curves whose arms differ by `effects`. Share of the repetitions in which
    the adjusted p of any pair of equal arms is at most 5 %, or that of another pair with the wrong sign; and
    share of the other pairs that are called different with the right sign (NaN without one)."""
    rng = np.random.default_rng(SEED)
    arms = "ABCDEF"[: len(effects)]
    pairs = [*combinations(arms, 2)]
    true = np.array([effects[arms.index(a)] - effects[arms.index(b)] for a, b in pairs])
    many = repetitions or FAMILY_REPETITIONS
    wrong, hits = np.zeros(many, dtype=np.bool_), np.zeros(many)
    for index in range(many):
        scores = draw(rng, (len(arms), 3, 8)) + np.asarray(effects)[:, None, None]
        curves = {arm: curve_of(rows) for arm, rows in zip(arms, scores, strict=True)}
        contrasts = {(a, b): _contrasts(curves[a], curves[b], range(8)) for a, b in pairs}
        p = _adjusted(pairs, contrasts, [_family_p([pair], contrasts) for pair in pairs])
        rejected = np.array(p) <= LEVEL
        better = [_evidence(table) >= _evidence(-np.swapaxes(table, 0, 1)) for table in contrasts.values()]
        right = np.where(better, 1, -1) == np.sign(true)
        wrong[index] = np.any(rejected & ~right)
        hits[index] = np.mean((rejected & right)[true != 0]) if np.any(true) else np.nan
    return float(wrong.mean()), float(hits.mean())


def curve_of(scores: Floats) -> RateCurve:
    """The curve of (rates, seeds)."""
    rates, seeds = scores.shape
    return RateCurve(tuple(2.0**index for index in range(rates)), tuple(range(seeds)), scores)


def level_lines(rates: int) -> list[str]:
    """Rows of the table of errors, in %: cross-fitted / best rates."""
    return _lines(rates, lambda draw, curves, seeds: simulate(draw, curves, rates, seeds)[:2], 1)


def power_lines(rates: int) -> list[str]:
    """Rows of the table of differences found, in %: cross-fitted / best rates / fixed rate."""
    return _lines(rates, lambda draw, curves, seeds: simulate(draw, curves, rates, seeds, EFFECTS[seeds]), 0)


def _lines(rates: int, cell: Callable[[Draw, str, int], Sequence[float]], digits: int) -> list[str]:
    lines = [f"| {rates} rates, errors | seeds | {' | '.join(CURVES)} |", "|---" * (2 + len(CURVES)) + "|"]
    for name, draw in ERRORS.items():
        for seeds in REPETITIONS:
            cells = [
                " / ".join(f"{100 * share:.{digits}f}" for share in cell(draw, curves, seeds))
                for curves in CURVES
            ]
            lines.append(f"| {name} | {seeds} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def family_lines() -> list[str]:
    """Rows of the table of four arms, in %."""
    lines = ["| errors | all arms equal | one arm better | its differences found |", "|---" * 4 + "|"]
    for name, draw in ERRORS.items():
        equal, _ = simulate_family(draw, (0, 0, 0, 0))
        wrong, hits = simulate_family(draw, (0, 0, 0, 2))
        lines.append(f"| {name} | {100 * equal:.1f} | {100 * wrong:.1f} | {100 * hits:.0f} |")
    return lines


if __name__ == "__main__":
    for number in RATES:
        print("\n".join(["", "Errors", *level_lines(number), "", "Differences found", *power_lines(number)]))
    print("\n".join(["", "Four arms", *family_lines()]))
