"""Statistics on arrays: pure functions, explicit seeds, no global generator.

The unit of replication is the seed. Accuracies are shares from 0 to 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from grpobench.analysis import power

Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], Floats]
"""(resamples, values) -> (resamples,)."""

EXACT_SEEDS = 16
"""Most pairs whose 2^n sign patterns are all counted; above, random patterns are drawn."""


@dataclass(frozen=True)
class Estimate:
    """A number with an interval; the bounds are NaN where no interval can be given."""

    value: float
    low: float
    high: float


def seed_mean(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean over seeds with the t interval, mean ± t·s/√n. One seed has no interval, no seed no mean."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(array.mean())
    if array.size == 1:
        return Estimate(mean, math.nan, math.nan)
    half = float(stats.t.ppf(0.5 + level / 2, array.size - 1)) * standard_error(array)
    return Estimate(mean, mean - half, mean + half)


def standard_error(values: ArrayLike) -> float:
    """s/√n with ddof = 1; NaN for fewer than two values."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.std(ddof=1)) / math.sqrt(array.size) if array.size > 1 else math.nan


def wilson(successes: float, trials: int, level: float = 0.95) -> Estimate:
    """Wilson score interval of a share of items. `successes` may be fractional: with several samples per
    problem, pass the sum of each problem's mean and the number of problems."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(
            f"wilson: needs 0 <= successes <= trials and trials >= 1; got {successes} of {trials}"
        )
    z = float(stats.norm.ppf(0.5 + level / 2))
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half; a quarter of the values, rounded down, is cut at each end."""
    return float(_interquartile(np.asarray(values, dtype=np.float64).reshape(1, -1))[0])


def _interquartile(values: Floats) -> Floats:
    return np.asarray(stats.trim_mean(values, 0.25, axis=1), dtype=np.float64)


def bootstrap_interquartile_mean(
    by_task: Sequence[ArrayLike], seed: int, resamples: int = 5000, level: float = 0.95
) -> Estimate:
    """Interquartile mean over all runs × tasks; seeds are resampled inside each task."""
    tasks = [np.asarray(values, dtype=np.float64) for values in by_task]
    joined = np.concatenate(tasks) if tasks else np.zeros(0)
    if joined.size == 0:
        return Estimate(math.nan, math.nan, math.nan)
    low, high = stratified_bootstrap(tasks, _interquartile, seed, resamples, level)
    return Estimate(interquartile_mean(joined), low, high)


def stratified_bootstrap(
    by_task: Sequence[Floats], statistic: Statistic, seed: int, resamples: int = 5000, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of a statistic over all values, seeds resampled inside a task.

    With n seeds a task has only nⁿ different resamples (27 for three): such an interval is rough, and with
    one seed per task it has no width, so NaN is returned.
    """
    if max((values.size for values in by_task), default=0) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    drawn = [
        values[rng.integers(values.size, size=(resamples, values.size))] for values in by_task if values.size
    ]
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=1)), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def probability_of_improvement(first: Sequence[ArrayLike], second: Sequence[ArrayLike]) -> float:
    """P(X > Y): mean over tasks of U/(n_x·n_y), ties ½. Tasks in which either side is empty are left out."""
    shares = []
    for one, other in zip(first, second, strict=True):
        x, y = np.asarray(one, dtype=np.float64)[:, None], np.asarray(other, dtype=np.float64)[None, :]
        if x.size and y.size:
            shares.append(float(((x > y) + 0.5 * (x == y)).mean()))
    return float(np.mean(shares)) if shares else math.nan


def sign_flip_p(differences: ArrayLike, draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p of the paired permutation test: the share of sign patterns whose |mean| reaches ours.

    All 2ⁿ patterns are counted up to `EXACT_SEEDS` pairs, so the smallest p is 2/2ⁿ; above, `draws` random
    patterns and the observed one. No pair at all gives 1.
    """
    array = np.asarray(differences, dtype=np.float64)
    if array.size == 0:
        return 1.0
    if array.size <= EXACT_SEEDS:
        patterns = (np.arange(2**array.size)[:, None] >> np.arange(array.size)) & 1
    else:
        patterns = np.random.default_rng(seed).integers(2, size=(draws, array.size))
        patterns[0] = 0  # the observed pattern is one of the possible ones
    sums = np.abs((1.0 - 2.0 * patterns) @ array)
    slack = 1e-9 * float(np.abs(array).sum())  # patterns with equal sums differ in the last bits
    return float(np.mean(sums >= abs(float(array.sum())) - slack))


def smallest_p(seeds: int) -> float:
    """Smallest two-sided p that the sign-flip test can give: 2/2ⁿ; .25 for three seeds."""
    return min(1.0, 2.0 / 2.0**seeds)


def seeds_needed(alpha: float = 0.05, comparisons: int = 1) -> int:
    """Fewest seeds at which the smallest p, times the comparisons that Holm pays for, is at most alpha."""
    if not 0 < alpha < 1 or comparisons < 1:
        raise ValueError("seeds_needed: needs 0 < alpha < 1 and comparisons >= 1")
    seeds = 1
    while 2.0 / 2.0**seeds * comparisons > alpha:
        seeds += 1
    return seeds


def holm(p: ArrayLike) -> Floats:
    """Holm's adjusted p values, in the order given: the k-th smallest times (m − k + 1), made monotone."""
    array = np.asarray(p, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    adjusted = np.maximum.accumulate(array[order] * np.arange(array.size, 0, -1))
    out = np.empty_like(array)
    out[order] = np.minimum(adjusted, 1.0)
    return out


def pass_at_k(samples: ArrayLike, correct: ArrayLike, k: int) -> Floats:
    """Unbiased pass@k, 1 − C(n−c, k)/C(n, k) = 1 − Π_{i=n−c+1..n} (1 − k/i), elementwise.

    `samples` n ≥ k and `correct` c broadcast against each other. The product never makes a large number, and
    is exactly 0 where n − c < k.
    """
    n, c = np.broadcast_arrays(np.asarray(samples, dtype=np.int64), np.asarray(correct, dtype=np.int64))
    if k < 1 or np.any(n < k) or np.any(c < 0) or np.any(c > n):
        raise ValueError("pass_at_k: needs 1 <= k <= samples and 0 <= correct <= samples")
    out = np.ones(n.shape)
    for place in np.ndindex(n.shape):
        terms = np.arange(int(n[place] - c[place]) + 1, int(n[place]) + 1, dtype=np.float64)
        out[place] = 1.0 if n[place] - c[place] < k else 1.0 - float(np.prod(1.0 - k / terms))
    return out


def pass_curve(samples: ArrayLike, correct: ArrayLike) -> dict[int, float]:
    """k -> unbiased pass@k, mean over problems, for k = 1, 2, 4, … up to half the samples of the problem that
    has fewest: with n < 2k the estimate leans on too few subsets to be reported. Empty without problems."""
    n, c = np.broadcast_arrays(np.asarray(samples, dtype=np.int64), np.asarray(correct, dtype=np.int64))
    most = int(n.min()) // 2 if n.size else 0
    return {k: float(pass_at_k(n, c, k).mean()) for k in doubling(most)}


def solved(correct: Sequence[float]) -> int:
    """How many samples are right in full; a part of a score is not a solution."""
    return sum(score > 1 - 1e-9 for score in correct)


def doubling(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [2**i for i in range(most.bit_length())]


def majority(answers: Sequence[str | None], correct: Sequence[float]) -> float:
    """The score of the most frequent answer. None has no vote; of answers with equally many votes the one
    that was given first wins; without any vote the score is 0."""
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    winner = votes.most_common(1)[0][0]  # of equal counts the first that was met
    return correct[answers.index(winner)]


def majority_curve(
    answers: Sequence[Sequence[str | None]], correct: Sequence[Sequence[float]]
) -> dict[int, float]:
    """k -> maj@k, mean over problems, for k = 1, 2, 4, … up to the samples of the problem that has fewest.

    A problem's samples are cut into runs of k in the order given, what is left over unused, so that every
    vote is over fresh samples. Empty where no sample has an answer: there is nothing to vote on.
    """
    if not any(answer is not None for own in answers for answer in own):
        return {}
    fewest = min(map(len, answers))
    pairs = list(zip(answers, correct, strict=True))
    return {k: float(np.mean([_blocks(*pair, k) for pair in pairs])) for k in doubling(fewest)}


def _blocks(answers: Sequence[str | None], correct: Sequence[float], k: int) -> float:
    starts = range(0, len(answers) - k + 1, k)
    return float(np.mean([majority(answers[i : i + k], correct[i : i + k]) for i in starts]))


FEW_ITEMS = 300
"""Items below which a share gets Wilson's interval rather than the normal one."""
Interval: TypeAlias = Literal["Wilson", "clustered", "normal", "none"]


def clustered_error(values: ArrayLike, clusters: Sequence[Hashable]) -> float:
    """Standard error of the mean of items that come in clusters (arXiv:2411.00640, eq. 4) with the factor
    G/(G − 1) for few clusters: √(G/(G−1) · Σ_g (Σ_i∈g (x_i − x̄))²)/n. With one item per cluster it is s/√n;
    NaN for one cluster."""
    array = np.asarray(values, dtype=np.float64)
    places: dict[Hashable, int] = {}
    index = [places.setdefault(cluster, len(places)) for cluster in clusters]
    if len(places) < 2:
        return math.nan
    sums = np.bincount(index, weights=array - array.mean())
    return math.sqrt(len(places) / (len(places) - 1) * float(sums @ sums)) / array.size


def item_interval(
    values: ArrayLike, clusters: Sequence[Hashable] | None = None, level: float = 0.95
) -> tuple[Estimate, Interval]:
    """Mean of one model's scores from 0 to 1 over items, and which interval it has.

    `values` are one per item (with several samples the item's mean). Where items share clusters (templates),
    the clustered error with t over G − 1; below `FEW_ITEMS` items Wilson's; else the normal one. Clusters
    that all agree have no error to show: they count as so many items of a Wilson interval.
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return Estimate(math.nan, math.nan, math.nan), "none"
    mean = float(array.mean())
    groups = len(set(clusters)) if clusters is not None else array.size
    if clusters is not None and groups < array.size:
        error = clustered_error(array, clusters)
        if not error > 0:
            return wilson(mean * groups, groups, level), "Wilson"
        return _within(mean, float(stats.t.ppf(0.5 + level / 2, groups - 1)) * error), "clustered"
    if array.size < FEW_ITEMS or np.ptp(array) == 0:
        return wilson(float(array.sum()), array.size, level), "Wilson"
    return _within(mean, float(stats.norm.ppf(0.5 + level / 2)) * standard_error(array)), "normal"


def _within(mean: float, half: float) -> Estimate:
    return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half))


@dataclass(frozen=True)
class Comparison:
    """Two arms on one task, paired by seed. Effects are first − second, as shares."""

    task: str
    first: str
    second: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    effect: float
    low: float
    high: float
    p: float
    p_holm: float
    pairs: int
    """Pairs of the task that Holm pays for."""
    detectable: float
    """Smallest effect that this many seeds find in 80 % of repetitions under Holm, were the SD of the paired
    differences the one observed; NaN where so few seeds can find none, or show no spread."""
    detectable_low: float
    detectable_high: float
    """The same at both ends of the 95 % interval of that SD."""
    improvement: float
    """P(first > second) over all pairs of runs."""
    verdict: Literal["first", "second", "unresolved"]
    needs: str
    """Why it is unresolved and what it would take; for a verdict, what it stands on."""

    @property
    def text(self) -> str:
        """`A > B`, `B > A` or `unresolved`."""
        return {
            "first": f"{self.first} > {self.second}",
            "second": f"{self.second} > {self.first}",
            "unresolved": "unresolved",
        }[self.verdict]


def compare(
    task: str,
    values: Mapping[str, Mapping[int, float]],
    waiting: Mapping[str, Sequence[int | str]] | None = None,
    alpha: float = 0.05,
) -> list[Comparison]:
    """Every pair of arms on one task; `values` is arm → seed → score, `waiting` arm → seeds without a result,
    each as it is to be named.

    A verdict needs three things: no run of either arm is without a result, there are as many paired seeds as
    the test needs to be able to reach alpha after Holm over all pairs of the task, and the Holm p is at most
    alpha. Everything else is `unresolved`.
    """
    pairs = list(combinations(values, 2))
    shared = [tuple(sorted(set(values[one]) & set(values[other]))) for one, other in pairs]
    differences = [
        np.array([values[one][seed] - values[other][seed] for seed in seeds])
        for (one, other), seeds in zip(pairs, shared, strict=True)
    ]
    p = [sign_flip_p(difference) for difference in differences]
    adjusted = holm(p)
    found = []
    for index, (one, other) in enumerate(pairs):
        mean = seed_mean(differences[index])
        late = {arm: tuple((waiting or {}).get(arm, ())) for arm in (one, other)}
        verdict, needs = _judge(differences[index], float(adjusted[index]), len(pairs), late, alpha)
        findable = findable_effect(differences[index], len(shared[index]), len(pairs), alpha)
        found.append(
            Comparison(
                task=task,
                first=one,
                second=other,
                seeds=shared[index],
                differences=tuple(map(float, differences[index])),
                effect=mean.value,
                low=mean.low,
                high=mean.high,
                p=p[index],
                p_holm=float(adjusted[index]),
                pairs=len(pairs),
                detectable=findable.value,
                detectable_low=findable.low,
                detectable_high=findable.high,
                improvement=probability_of_improvement(
                    [[*values[one].values()]], [[*values[other].values()]]
                ),
                verdict=verdict,
                needs=needs,
            )
        )
    return found


def _judge(
    differences: Floats, adjusted: float, pairs: int, late: Mapping[str, Sequence[int | str]], alpha: float
) -> tuple[Literal["first", "second", "unresolved"], str]:
    seeds, needed = differences.size, seeds_needed(alpha, pairs)
    if any(late.values()):
        named = "; ".join(f"{arm} seed {', '.join(map(str, seeds))}" for arm, seeds in late.items() if seeds)
        return "unresolved", f"waits for runs without a result: {named}"
    if seeds == 0:
        return "unresolved", f"no seed that both arms ran; needs {needed}"
    beside = _beside(differences)
    if seeds < needed:
        return "unresolved", (
            f"{seeds} of the {needed} seeds that {pairs} pair{'s' * (pairs > 1)} under Holm need (smallest "
            f"possible p now {smallest_p(seeds):.3g}){_outlook(differences, needed, pairs, alpha)}{beside}"
        )
    if adjusted > alpha:
        if np.ptp(differences) < SAME and abs(differences[0]) < SAME:
            return "unresolved", f"Holm p {adjusted:.3g}: the arms do not differ in these {seeds} seeds"
        return "unresolved", (
            f"Holm p {adjusted:.3g} > {alpha:g}; if difference and spread are as they look, "
            f"{_enough(differences, max(needed, seeds + 1), pairs, alpha)}{beside}"
        )
    verdict: Literal["first", "second"] = "first" if differences.mean() > 0 else "second"
    return verdict, f"Holm p {adjusted:.3g} over {seeds} paired seeds and {pairs} pair{'s' * (pairs > 1)}"


SAME = 1e-12
"""Differences of accuracies below this are rounding."""


def findable_effect(differences: ArrayLike, seeds: int, pairs: int, alpha: float = 0.05) -> Estimate:
    """The effect that `seeds` seeds find in 80 % of repetitions as one of so many pairs under Holm, from
    the SD of the differences seen, with the values at the ends of that SD's 95 % interval. NaN where so few
    seeds can find none, and where fewer than two differences or equal ones tell nothing of the spread."""
    array = np.asarray(differences, dtype=np.float64)
    if array.size < 2 or np.ptp(array) < SAME:
        return Estimate(math.nan, math.nan, math.nan)
    value = power.detectable(seeds, pairs, alpha) * float(array.std(ddof=1))
    factor = power.spread(array.size)
    return Estimate(value, factor.low * value, factor.high * value)


def _enough(differences: Floats, least: int, pairs: int, alpha: float) -> str:
    """How many seeds would find the difference that is observed."""
    mean, spread = abs(float(differences.mean())), float(differences.std(ddof=1))
    wanted = power.seeds_for(mean / spread, pairs, alpha, least) if spread > 0 else float(least)
    if not math.isfinite(wanted):
        return f"more than {power.MOST_SEEDS:,} seeds would be needed to find it"
    return f"about {wanted:.0f} seeds would find it in {power.POWER:.0%} of repetitions"


def _outlook(differences: Floats, needed: int, pairs: int, alpha: float) -> str:
    """What the fewest seeds that can decide would find."""
    effect = findable_effect(differences, needed, pairs, alpha)
    if math.isnan(effect.value):
        return ""
    high = f"{100 * effect.high:.1f}" if effect.high < 1 else "no limit"  # accuracies differ by 1 at most
    return (
        f"; {needed} would find {100 * effect.value:.1f} points in {power.POWER:.0%} of repetitions "
        f"({100 * effect.low:.1f} to {high} for all that {differences.size} tell of the SD)"
    )


def _beside(differences: Floats) -> str:
    """Why the interval that is shown leaves 0 out although the test does not reject."""
    mean = seed_mean(differences)
    if not mean.low * mean.high > 0:  # NaN without an interval
        return ""
    return "; the t interval leaves 0 out, but takes the differences as normal and this pair as the only one"
