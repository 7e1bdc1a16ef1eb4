"""Two arms on one task, paired by seed: the difference, the tests, and what they could have found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np

from grpobench.analysis.runfolder.experiment import MARGIN
from grpobench.analysis.runfolder.interim import InterimPlan
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.aggregates import probability_of_improvement
from grpobench.analysis.statistics.intervals import Estimate, Floats, seed_mean
from grpobench.analysis.statistics.maxima import max_t_ps
from grpobench.analysis.statistics.permutation import equivalence_ps, holm
from grpobench.analysis.statistics.sequential import sequential_equivalence_p, sequential_p
from grpobench.analysis.statistics.verdicts import (
    ALPHA,
    TURNED,
    Verdict,
    VerdictEvidence,
    correction_of,
    findable_effect,
    judge,
    no_difference,
    seeds_wanted,
    shown,
    spread_of,
)

BySeed: TypeAlias = Mapping[int, float]
"""Seed -> score of a run."""
Waiting: TypeAlias = Mapping[str, Mapping[int, str]]
"""Arm -> seed without a result -> its name in messages."""
BASE = "base"
"""Name of the policy before training in comparisons with it."""
MOST_ARMS = 40
"""Up to this many arms every pair is compared: 780 pairs, whose equivalence takes 14 seeds under Holm."""


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
    p_adjusted: float
    """p after closed max-T tests over the task's pairs; with a plan of interim analyses, after Holm."""
    pairs: int
    """Pairs of the task in the corrections."""
    margin: float
    """Differences smaller than this do not matter."""
    p_equivalence: float
    """p of the two one-sided tests against a difference of the margin or more."""
    p_equivalence_holm: float
    detectable: float
    """Smallest effect that this many seeds find in 80 % of repetitions after the correction, with the
    observed SD of the paired differences; NaN where this many seeds cannot find any effect or give no SD."""
    detectable_low: float
    detectable_high: float
    """The same at both ends of the 95 % interval of that SD."""
    power: float
    """Share of repetitions in which these seeds find a difference as large as the margin, with the same
    SD."""
    power_equivalence: float
    """Share of repetitions in which they show equal arms to be equivalent, with the same SD."""
    improvement: float
    """P(first > second) over all pairs of runs."""
    verdict: Verdict
    """The first arm compared with the second."""
    needs: str
    """The reason for the verdict; if it is unresolved, what a verdict would need."""
    seeds_wanted: float = math.nan
    """Seeds that would find an unresolved difference in 80 % of repetitions, if difference and spread are as
    observed; inf for more than 1,000, NaN for other verdicts and where that is not said."""
    problems: int = 0
    """Evaluated problems that all these runs share."""
    crossed: float = math.nan
    """The effect on these problems, with an interval over seeds × problems; NaN where none were logged."""
    crossed_low: float = math.nan
    crossed_high: float = math.nan
    disagrees: str = ""
    """How that interval contradicts the verdict; empty where it does not."""

    @property
    def text(self) -> str:
        """`A > B`, `B > A`, `A ≈ B` or `unresolved`."""
        return {
            "better": f"{self.first} > {self.second}",
            "worse": f"{self.second} > {self.first}",
            "equivalent": f"{self.first} ≈ {self.second}",
            "unresolved": "unresolved",
        }[self.verdict]

    @property
    def words(self) -> str:
        """The verdict as reports print it."""
        return no_difference(self.margin) if self.verdict == "equivalent" else self.verdict

    @property
    def small(self) -> bool:
        """Whether the arms differ, and by less than the margin."""
        _, inside = shown(
            self.effect > 0,
            self.p_adjusted,
            self.p_equivalence_holm,
            (self.low, self.high),
            (-self.margin, self.margin),
        )
        return inside and self.verdict in ("better", "worse")

    def turned(self) -> Comparison:
        """The same comparison as second − first."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            differences=tuple(-difference for difference in self.differences),
            effect=-self.effect,
            low=-self.high,
            high=-self.low,
            improvement=1 - self.improvement,
            verdict=TURNED.get(self.verdict, self.verdict),
            crossed=_minus(self.crossed),
            crossed_low=_minus(self.crossed_high),
            crossed_high=_minus(self.crossed_low),
        )

    def beside(self, problems: int, over_both: Estimate) -> Comparison:
        """The comparison with the interval over seeds × problems, and whether it contradicts the verdict."""
        low, high = over_both.low, over_both.high
        out, inside = low * high > 0, max(abs(low), abs(high)) < self.margin  # NaN: neither
        contradiction = ""
        if self.verdict in ("better", "worse") and low <= 0 <= high:
            contradiction = "reaches 0: the difference is shown on these problems, not for others like them"
        elif self.verdict == "equivalent" and not (inside or math.isnan(low)):
            contradiction = (
                f"reaches beyond the margin: {self.words} is shown on these problems, not for others like "
                "them"
            )
        elif self.verdict == "unresolved" and out and self.seeds:
            contradiction = "excludes 0, but assumes normal seeds and problems and ignores all other pairs"
        contradiction = contradiction and f"the interval over seeds × problems {contradiction}"
        return replace(
            self,
            problems=problems,
            crossed=over_both.value,
            crossed_low=low,
            crossed_high=high,
            disagrees=contradiction,
        )


def _minus(value: float) -> float:
    """The negative; NaN stays the same object, so that comparisons of comparisons hold."""
    return value if math.isnan(value) else -value


@dataclass(frozen=True)
class RunPair:
    """Two sets of runs to compare, by seed."""

    first: str
    second: str
    values: BySeed
    against: BySeed
    plan: InterimPlan | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that both have. With a plan, those of the last interim analysis that both have reached,
        in the order of the plan; before the first analysis, all shared seeds from the start of the plan."""
        shared = set(self.values) & set(self.against)
        if self.plan is None:
            return tuple(sorted(shared))
        there = tuple(itertools.takewhile(shared.__contains__, self.plan.seeds))
        return there[: self.plan.reached(len(there)) or len(there)]

    @property
    def analysis(self) -> str:
        """Which interim analysis this is, in words; empty without a plan."""
        if self.plan is None:
            return ""
        made = sum(seeds <= len(self.seeds) for seeds in self.plan.analyses)
        return (
            f"at interim analysis {made} of {len(self.plan.analyses)}, {len(self.seeds)} of "
            f"{len(self.plan.seeds)} seeds"
        )

    @property
    def differences(self) -> Floats:
        """(seeds,): first − second."""
        return np.array([self.values[seed] - self.against[seed] for seed in self.seeds], dtype=np.float64)


def pairs_of(arms: Sequence[str], control: str = "") -> list[tuple[str, str]]:
    """The pairs that are compared: all pairs, or with more than `MOST_ARMS` arms the first with each other.
    With a `control`, it with each other arm, and nothing where it is none of the arms. The choice depends on
    the arms and the recipe, never on results."""
    if control:
        return [(control, arm) for arm in arms if arm != control] if control in arms else []
    if len(arms) > MOST_ARMS:
        return [(arms[0], arm) for arm in arms[1:]]
    return list(combinations(arms, 2))


def compare(
    task: str,
    values: Mapping[str, BySeed],
    waiting: Waiting | None = None,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    plan: InterimPlan | None = None,
    control: str = "",
) -> list[Comparison]:
    """The pairs of arms (`pairs_of`) on one task; `values` is arm → seed → score.

    A verdict needs two things: no run of either arm is without a result, and the p that is corrected for all
    pairs of the task is at most alpha. `better` and `worse` are the exact test's of a difference, corrected
    by closed max-T tests (`maxima`), `equivalent` that of two one-sided tests against a difference of the
    margin or more, corrected by Holm, if the 95% interval lies inside the margin too. Everything else is
    `unresolved`. With a `plan`, p values are valid whichever interim analysis is the last (`sequential`), and
    Holm corrects both.
    """
    chosen_pairs = [RunPair(a, b, values[a], values[b], plan) for a, b in pairs_of(list(values), control)]
    return compare_pairs(task, chosen_pairs, waiting, alpha, margin)


def compare_with_base(
    task: str,
    values: Mapping[str, BySeed],
    bases: Mapping[str, BySeed],
    waiting: Waiting | None = None,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    plan: InterimPlan | None = None,
) -> list[Comparison]:
    """Every arm against what its own runs scored before training, as `compare` compares arms; the
    corrections are over as many pairs as there are arms with a base."""
    chosen_pairs = [RunPair(arm, BASE, values[arm], bases[arm], plan) for arm in values if bases.get(arm)]
    return compare_pairs(task, chosen_pairs, waiting, alpha, margin)


def compare_pairs(
    task: str, pairs: Sequence[RunPair], waiting: Waiting | None, alpha: float, margin: float
) -> list[Comparison]:
    """Comparisons that are corrected together."""
    differences = [pair.differences for pair in pairs]
    plan = pairs[0].plan if pairs else None
    if plan:  # see `sequential` for why
        p = [sequential_p(differences_of_pair, plan) for differences_of_pair in differences]
        close = [
            sequential_equivalence_p(differences_of_pair, margin, plan) for differences_of_pair in differences
        ]
        adjusted = [*map(float, holm(p))]
    else:
        by_seed = {
            (pair.first, pair.second): dict(zip(pair.seeds, map(float, pair_differences), strict=True))
            for pair, pair_differences in zip(pairs, differences, strict=True)
        }
        p, adjusted = max_t_ps(by_seed)
        close = equivalence_ps(differences, margin)
    adjusted_close = holm(close)
    comparisons = []
    for index, pair in enumerate(pairs):
        differences_of_pair = differences[index]
        evidence = VerdictEvidence(
            differences=differences_of_pair,
            p=adjusted[index],
            p_equivalence=float(adjusted_close[index]),
            pairs=len(pairs),
            margin=margin,
            late=_late(pair, waiting or {}),
            alpha=alpha,
            analysis=pair.analysis,
        )
        comparisons.append(_compared(task, pair, evidence, p[index], close[index]))
    return comparisons


def _late(pair: RunPair, waiting: Waiting) -> dict[str, tuple[str, ...]]:
    """Arm -> its seeds that the pair waits for: without a result, while the other has run them or is to. Any
    other seed would pair with nothing."""
    waited_for = {}
    both = ((pair.first, pair.second, pair.against), (pair.second, pair.first, pair.values))
    for arm, other, other_values in both:
        missing, expected = waiting.get(arm, {}), {*other_values, *waiting.get(other, {})}
        waited_for[arm] = tuple(
            name for seed, name in missing.items() if pair.second == BASE or seed in expected
        )
    return waited_for


def _compared(
    task: str, pair: RunPair, evidence: VerdictEvidence, p: float, p_equivalence: float
) -> Comparison:
    differences = evidence.differences
    mean = seed_mean(differences)
    plan = pair.plan  # with a plan: what the last analysis finds with its share of the level
    seeds, alpha = (
        (len(plan.seeds), evidence.alpha * plan.weights[-1]) if plan else (differences.size, evidence.alpha)
    )
    correction = correction_of(plan is not None)
    findable = findable_effect(differences, seeds, evidence.pairs, alpha, correction)
    margin = evidence.margin / spread_of(differences)  # in standard deviations; NaN without a spread
    shares = [
        math.nan if math.isnan(margin) else share
        for share in (
            power.power(seeds, evidence.pairs, margin, alpha, correction),
            power.power_of_equivalence(seeds, evidence.pairs, margin, alpha),
        )
    ]
    verdict, needs = judge(evidence)
    return Comparison(
        task=task,
        first=pair.first,
        second=pair.second,
        seeds=pair.seeds,
        differences=tuple(map(float, differences)),
        effect=mean.value,
        low=mean.low,
        high=mean.high,
        p=p,
        p_adjusted=evidence.p,
        pairs=evidence.pairs,
        margin=evidence.margin,
        p_equivalence=p_equivalence,
        p_equivalence_holm=evidence.p_equivalence,
        detectable=findable.value,
        detectable_low=findable.low,
        detectable_high=findable.high,
        power=shares[0],
        power_equivalence=shares[1],
        improvement=probability_of_improvement([[*pair.values.values()]], [[*pair.against.values()]]),
        verdict=verdict,
        needs=needs,
        seeds_wanted=seeds_wanted(evidence) if verdict == "unresolved" else math.nan,
    )
