"""Moderated t tests of a smallest difference: which of many algorithms a probe tells apart, from few
seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpobench.analysis.statistics.intervals import Floats

RESOLUTION = 0.02
"""Smallest difference in score that matters: the margin of `comparisons.md`, 2 points."""
LEVEL = 0.95
FDR = 0.05
"""Largest q of a pair that is told apart."""

Scores = Mapping[str, Mapping[int, float]]
"""algorithm -> seed -> score; NaN is left out."""


@dataclass(frozen=True)
class AlgorithmScore:
    """Mean score of an algorithm with its 95 % interval, from the moderated variance."""

    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class AlgorithmPair:
    """`difference` is the mean of `first` minus the mean of `second`, with its 95 % interval.

    `p` is of "the difference is at most the resolution", `q` its Benjamini–Hochberg value."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    q: float
    told_apart: bool


@dataclass(frozen=True)
class RankedAlgorithms:
    """Cells by algorithm from the highest mean on. Pairs are computed when they are read."""

    cells: Mapping[str, AlgorithmScore]
    fitted: Fit = field(compare=False, repr=False)

    @cached_property
    def pairs(self) -> Sequence[AlgorithmPair]:
        """All pairs, in the order of the cells."""
        first, second = np.triu_indices(len(self.cells), 1)
        pair_contrasts = contrasts(self.fitted, first, second, RESOLUTION)
        return _pairs(tuple(self.cells), first, second, pair_contrasts)

    @property
    def share(self) -> float:
        """Share of pairs that are told apart; NaN without pairs."""
        return sum(pair.told_apart for pair in self.pairs) / len(self.pairs) if self.pairs else math.nan


@dataclass(frozen=True)
class Prior:
    """Scaled inverse χ² of the true variances: `variance` s0², known as well as from `df` d0 values."""

    df: float
    variance: float


def fit_prior(variances: ArrayLike, df: ArrayLike) -> Prior:
    """d0 and s0² by the moments of the log sample variances (Smyth 2004, section 6.2; limma's fitFDist).

    e = log s² − ψ(d/2) + log(d/2) has mean log s0² − ψ(d0/2) + log(d0/2) and variance ψ'(d/2) + ψ'(d0/2).
    `variances` (k,) > 0 with `df` (k,) or one number. d0 = ∞ where the logs vary no more than by chance; one
    variance has d0 = 0. Raises `ValueError` for variances that are not positive and without any.
    """
    s2 = np.asarray(variances, dtype=np.float64)
    d = np.broadcast_to(np.asarray(df, dtype=np.float64), s2.shape)
    if not s2.size or not np.all(s2 > 0) or not np.all(d > 0):
        raise ValueError("fit_prior: needs at least one variance; variances and df above 0")
    if s2.size == 1:
        return Prior(0.0, float(s2[0]))
    e = np.log(s2) - special.psi(d / 2) + np.log(d / 2)
    excess = float(e.var(ddof=1) - special.polygamma(1, d / 2).mean())
    if excess <= 0:
        return Prior(math.inf, float(np.exp(e.mean())))
    d0 = 2 * trigamma_inverse(excess)
    return Prior(d0, float(np.exp(e.mean() + special.psi(d0 / 2) - math.log(d0 / 2))))


def trigamma_inverse(value: float) -> float:
    """y with ψ'(y) = value > 0, by Newton's method on 1/ψ' (Smyth 2004, appendix)."""
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    y = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, y))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, y))
        y += step
        if -step / y < 1e-9:
            break
    return y


def benjamini_hochberg(p: ArrayLike) -> Floats:
    """Adjusted p values in the given order: the k-th smallest of m times m/k, made monotone from above."""
    array = np.asarray(p, dtype=np.float64)
    order = np.argsort(array, kind="stable")[::-1]
    ranked = array[order] * array.size / np.arange(array.size, 0, -1)
    out = np.empty_like(array)
    out[order] = np.minimum(np.minimum.accumulate(ranked), 1.0)
    return out


@dataclass(frozen=True)
class Fit:
    """What all algorithms of a table share and what each has: arrays (algorithms,)."""

    means: Floats
    variances: Floats
    df: Floats
    seeds: Floats


@dataclass(frozen=True)
class Contrasts:
    """Arrays (pairs,)."""

    difference: Floats
    error: Floats
    df: Floats
    p: Floats


def table_of(scores: Scores) -> tuple[tuple[str, ...], Floats]:
    """The algorithms that have scores, sorted by mean from the highest on, then by name; and their scores
    (algorithms, seeds), NaN where an algorithm lacks a seed.

    Raises `ValueError` for an infinite score and for an algorithm with one seed.
    """
    seeds = sorted({seed for of_seed in scores.values() for seed in of_seed})
    column = {seed: i for i, seed in enumerate(seeds)}
    values = np.full((len(scores), len(seeds)), math.nan)
    for row, of_seed in enumerate(scores.values()):
        for seed, score in of_seed.items():
            values[row, column[seed]] = score
    names = list(scores)
    seeds_of = np.isfinite(values).sum(axis=1)
    for name, has_infinite, count in zip(names, np.isinf(values).any(axis=1), seeds_of, strict=True):
        if has_infinite:
            raise ValueError(f"scores of {name}: a score is infinite; leave it out, or set NaN")
        if count == 1:
            raise ValueError(f"scores of {name}: one seed has no spread; run a second one, or leave it out")
    means = np.nansum(values, axis=1) / np.maximum(seeds_of, 1)
    order = sorted(np.flatnonzero(seeds_of).tolist(), key=lambda i: (-means[i], names[i]))
    return tuple(names[i] for i in order), values[order]


def fit(values: Floats, resolution: float) -> Fit:
    """Means, moderated variances and what they share, of (algorithms, seeds).

    A sample variance counts as at least resolution²/12, that of a uniform error as wide as the resolution, so
    that agreeing seeds do not make a certain result.
    """
    if not resolution > 0:
        raise ValueError(f"resolution: needs a number above 0, got {resolution}")
    mask = np.isfinite(values)
    seeds = mask.sum(axis=1).astype(np.float64)
    means = np.where(mask, values, 0.0).sum(axis=1) / seeds
    centered = np.where(mask, values - means[:, None], 0.0)
    sample = (centered**2).sum(axis=1) / (seeds - 1)
    floored = np.maximum(sample, resolution**2 / 12)
    prior = fit_prior(floored, seeds - 1) if len(means) else Prior(0.0, math.nan)
    variances, df = moderate(floored, seeds - 1, prior)
    return Fit(means, variances, df, seeds)


def moderate(variances: Floats, df: Floats, prior: Prior) -> tuple[Floats, Floats]:
    """(d0 s0² + d s²)/(d0 + d) with d0 + d degrees of freedom, or s² with d where that is larger."""
    if math.isinf(prior.df):
        posterior, total = np.full_like(variances, prior.variance), np.full_like(df, math.inf)
    else:
        posterior = (prior.df * prior.variance + df * variances) / (prior.df + df)
        total = df + prior.df
    is_larger = variances > posterior
    return np.where(is_larger, variances, posterior), np.where(is_larger, df, total)


def contrasts(fitted: Fit, first: NDArray[np.intp], second: NDArray[np.intp], resolution: float) -> Contrasts:
    """The pairs `first[k]`, `second[k]` of a fit."""
    a, b = fitted.variances[first] / fitted.seeds[first], fitted.variances[second] / fitted.seeds[second]
    error2 = a + b
    with np.errstate(divide="ignore"):
        df = error2**2 / (a**2 / fitted.df[first] + b**2 / fitted.df[second])
    error = np.sqrt(error2)
    difference = fitted.means[first] - fitted.means[second]
    return Contrasts(difference, error, df, treat_p(difference, error, df, resolution))


def treat_p(difference: Floats, error: Floats, df: Floats, resolution: float) -> Floats:
    """P(T ≥ (|x| − τ)/e) + P(T ≥ (|x| + τ)/e), of "|Δ| ≤ τ" (McCarthy and Smyth 2009). With τ = 0 it is the
    two-sided t test."""
    size = np.abs(difference)
    tails = _above((size - resolution) / error, df) + _above((size + resolution) / error, df)
    return np.asarray(np.minimum(tails, 1.0), dtype=np.float64)


def _above(t: Floats, df: Floats) -> Floats:
    finite = np.where(np.isinf(df), 1.0, df)
    return np.asarray(np.where(np.isinf(df), special.ndtr(-t), special.stdtr(finite, -t)), dtype=np.float64)


def _half_width(error: Floats, df: Floats) -> Floats:
    finite = np.where(np.isinf(df), 1.0, df)
    upper = 0.5 + LEVEL / 2
    t = np.where(np.isinf(df), special.ndtri(upper), special.stdtrit(finite, upper))
    return np.asarray(error * t, dtype=np.float64)


def compare_all(scores: Scores) -> RankedAlgorithms:
    """Every pair of algorithms of one probe, told apart where q ≤ `FDR`.

    `scores`: algorithm -> seed -> score. NaN and algorithms without a score are left out. Raises `ValueError`
    for an infinite score and an algorithm with one seed.

    - The variance of an algorithm is moderated by empirical Bayes over algorithms (Smyth, Linear models and
      empirical Bayes methods for assessing differential expression in microarray experiments, Statistical
      Applications in Genetics and Molecular Biology 3(1):3, 2004, section 6.2), but is never below its own
      sample variance. Shrinking a large variance would make false differences, most of all of unstable
      algorithms. Moderation adds this: a few seeds that happen to agree do not make a small variance.
    - A pair: difference of the means with Var = σ_i²/n_i + σ_j²/n_j and Satterthwaite's degrees of freedom.
      p is of |μ_i − μ_j| ≤ resolution (TREAT: McCarthy and Smyth, Testing significance relative to a
      fold-change threshold is a TREAT, Bioinformatics 25(6):765–771, 2009).
    - q: Benjamini and Hochberg (1995) over the pairs of a probe.

    Seed effects stay in the variances. A seed that helps both algorithms of a pair only makes their
    difference vary less than the test assumes. Estimated seed effects find more, but they differ between
    algorithms, most of all where some are saturated, and subtracting common ones then finds differences that
    do not exist. Seeds that help one algorithm and harm another are not covered."""
    names, values = table_of(scores)
    fitted = fit(values, RESOLUTION)
    half = _half_width(np.sqrt(fitted.variances / fitted.seeds), fitted.df)
    cells = {
        name: AlgorithmScore(float(mean), float(mean - h), float(mean + h), int(count))
        for name, mean, h, count in zip(names, fitted.means, half, fitted.seeds, strict=True)
    }
    return RankedAlgorithms(cells, fitted)


def compare_one(scores: Scores, name: str) -> list[AlgorithmPair]:
    """The pairs of one algorithm with each other one, from the best on; `first` is `name`. Otherwise as
    `compare_some`."""
    return compare_some(scores, [(name, other) for other in table_of(scores)[0] if other != name])


def compare_some(scores: Scores, pairs: Sequence[tuple[str, str]]) -> list[AlgorithmPair]:
    """Some pairs of algorithms, in the given order.

    Variances are moderated over all algorithms; q is over these pairs alone. Raises `KeyError` for an
    algorithm without scores.
    """
    names, values = table_of(scores)
    if unknown := sorted({name for pair in pairs for name in pair} - {*names}):
        raise KeyError(f"compare_some: {unknown[0]!r} has no scores; known: {', '.join(names)}")
    if not pairs:
        return []
    first, second = (np.array([names.index(pair[side]) for pair in pairs], dtype=np.intp) for side in (0, 1))
    pair_contrasts = contrasts(fit(values, RESOLUTION), first, second, RESOLUTION)
    return _pairs(names, first, second, pair_contrasts)


def _pairs(
    names: Sequence[str], first: NDArray[np.intp], second: NDArray[np.intp], pair_contrasts: Contrasts
) -> list[AlgorithmPair]:
    q = benjamini_hochberg(pair_contrasts.p)
    half = _half_width(pair_contrasts.error, pair_contrasts.df)
    columns = (
        pair_contrasts.difference,
        pair_contrasts.difference - half,
        pair_contrasts.difference + half,
        pair_contrasts.p,
        q,
        q <= FDR,
    )
    rows = zip(first.tolist(), second.tolist(), *(column.tolist() for column in columns), strict=True)
    return [AlgorithmPair(names[i], names[j], *numbers) for i, j, *numbers in rows]


def deal(scores: Scores, deals: int, seed: int) -> float:
    """A/A: the share of deals in which an algorithm under two names is told apart, by q among all pairs.
    Algorithms with eight seeds or more, one a deal in turn, have their seeds dealt to two names.

    The two names have no seed in common, so seed effects are part of their spread, and any deal is as
    likely as any other. All other algorithms stay. Raises `ValueError` where no algorithm has eight seeds.
    """
    names, values = table_of(scores)
    rows = [i for i, row in enumerate(values) if np.isfinite(row).sum() >= DEALT_SEEDS]
    if not rows or deals < 1:
        raise ValueError(f"deal: needs one deal or more and an algorithm with {DEALT_SEEDS} seeds or more")
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(len(names) + 1, 1)
    calls = []
    for turn in range(deals):
        row = rows[turn % len(rows)]
        drawn = rng.permutation(np.flatnonzero(np.isfinite(values[row])))
        halves = np.full((2, values.shape[1]), math.nan)
        for half, columns in zip(halves, np.array_split(drawn, 2), strict=True):
            half[columns] = values[row, columns]
        others = np.delete(values, row, axis=0)
        fitted = fit(np.concatenate([halves, others]), RESOLUTION)
        p = contrasts(fitted, first, second, RESOLUTION).p
        calls.append(benjamini_hochberg(p)[0] <= FDR)
    return float(np.mean(calls))


DEALT_SEEDS = 8
"""Fewest seeds of an algorithm that is dealt: four to each name."""
