"""The verdict of a comparison: better, worse, equivalent or unresolved, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.intervals import Estimate, Floats, seed_mean
from grpobench.analysis.statistics.permutation import seeds_needed, smallest_p

ALPHA = 0.05
"""Level over all pairs of a task, for the tests of a difference and for the tests of equivalence."""
SAME = 1e-12
"""Differences of accuracies below this are rounding errors."""
Verdict: TypeAlias = Literal["better", "worse", "equivalent", "unresolved"]
Bounds: TypeAlias = tuple[float, float]
Shown: TypeAlias = Literal["higher", "lower", "equivalent", "unresolved"]
OF_FIRST: Mapping[Shown, Verdict] = {
    "higher": "better",
    "lower": "worse",
    "equivalent": "equivalent",
    "unresolved": "unresolved",
}
"""What is shown of first − second -> the verdict on the first arm."""
WAITS = "waits for runs without a result"
"""How the reason begins where a run of the pair has no result yet."""
TURNED: Mapping[Verdict, Verdict] = {"better": "worse", "worse": "better"}
"""Verdict on the first arm -> verdict on the second, where they differ."""


@dataclass(frozen=True)
class VerdictEvidence:
    """The numbers that decide the verdict on one pair of arms."""

    differences: Floats
    """(seeds,): first − second, as shares."""
    p: float
    """p of the test of a difference, after the correction."""
    p_equivalence: float
    """p of the test of equivalence, after Holm."""
    pairs: int
    """Number of pairs in both corrections."""
    margin: float
    late: Mapping[str, Sequence[str]]
    """Arm -> seeds without a result, for which the pair waits."""
    alpha: float = ALPHA
    analysis: str = ""
    """Which of several interim analyses this is, in words; empty without a plan."""

    @property
    def correction(self) -> power.Correction:
        """Of p of a difference, over the pairs."""
        return correction_of(bool(self.analysis))

    @property
    def needed(self) -> int:
        """Fewest seeds that can show a difference."""
        return seeds_needed(self.alpha, self.pairs if self.analysis else 1)


def correction_of(planned: bool) -> power.Correction:
    """How p values of differences are corrected over pairs: interim analyses keep Holm's (`sequential`)."""
    return "holm" if planned else "max-t"


def shown(
    above: bool, p: float, p_inside: float, interval: Bounds, bounds: Bounds, alpha: float = ALPHA
) -> tuple[Shown, bool]:
    """What the tests of one effect show, and whether the effect is shown to lie inside `bounds`. Reports and
    findings follow this one rule.

    A difference takes precedence over equivalence: a significant effect is `higher` (`above` 0) or `lower`
    even if it is smaller than what matters. An effect lies inside the bounds if the one-sided tests reject
    (`p_inside`) and its 95% interval lies inside them too, which NaN does not."""
    inside = p_inside <= alpha and bounds[0] < interval[0] and interval[1] < bounds[1]
    if p <= alpha:
        return ("higher" if above else "lower"), inside
    return ("equivalent" if inside else "unresolved"), inside


def judge(evidence: VerdictEvidence) -> tuple[Verdict, str]:
    """The verdict on the first arm and the reason for it, by `shown`; if it is unresolved, what a verdict
    would need. If arms differ significantly and within the margin, one is better, and the reason says that
    the difference is small."""
    seeds, pairs, margin = evidence.differences.size, evidence.pairs, evidence.margin
    needed = evidence.needed
    over = f"over {seeds} paired seeds and {pairs} pair{'s' * (pairs > 1)}"
    if any(evidence.late.values()):
        missing_runs = "; ".join(
            f"{arm} seed {', '.join(seed_names)}" for arm, seed_names in evidence.late.items() if seed_names
        )
        return "unresolved", f"{WAITS}: {missing_runs}"
    if seeds == 0:
        return "unresolved", f"the arms share no seed; needs {needed}"
    mean = seed_mean(evidence.differences)
    interval, bounds = (mean.low, mean.high), (-margin, margin)
    effect, inside = shown(
        mean.value > 0, evidence.p, evidence.p_equivalence, interval, bounds, evidence.alpha
    )
    close = f"within {points(margin)} points: Holm p {evidence.p_equivalence:.3g}"
    if effect in ("higher", "lower"):
        little = f"; the difference is {close}" if inside else ""
        return OF_FIRST[effect], f"adjusted p {evidence.p:.3g} {over}{little}"
    if effect == "equivalent":
        return "equivalent", f"{close} {over}"
    return "unresolved", _undecided(evidence, needed) + _not_equivalent(evidence) + _beside(
        evidence.differences
    )


def points(share: float) -> str:
    """A margin in points."""
    return f"{100 * share:.4g}"


def no_difference(margin: float) -> str:
    """What reports say of the verdict `equivalent`, which by itself does not show that the experiment could
    have found a difference: `no difference of 2 points or more`."""
    return f"no difference of {points(margin)} points or more"


def _undecided(evidence: VerdictEvidence, needed: int) -> str:
    """Why no difference is shown, and how many seeds would show one."""
    seeds, above = evidence.differences.size, f"adjusted p {evidence.p:.3g} > {evidence.alpha:g}"
    if evidence.analysis:
        return f"{above} {evidence.analysis}"
    if seeds < needed:
        return (
            f"{seeds} of the {needed} seeds that a difference needs (smallest possible p now "
            f"{smallest_p(seeds):.3g}){_outlook(evidence, needed)}"
        )
    observed = "if difference and spread are as observed"
    return f"{above}; {observed}, {_enough(evidence)}"


def _not_equivalent(evidence: VerdictEvidence) -> str:
    """Why equivalence is not shown either, and whether this many seeds could show it."""
    seeds, needed = evidence.differences.size, seeds_needed(evidence.alpha, evidence.pairs, sides=1)
    within = f"within {points(evidence.margin)} points"
    text = f"; equivalence {within}: Holm p {evidence.p_equivalence:.3g}"
    if evidence.p_equivalence <= evidence.alpha:
        return f"{text}, but the interval reaches beyond {points(evidence.margin)} points"
    if evidence.analysis:
        return text
    if seeds < needed:
        return f"; {seeds} seed{'s' * (seeds > 1)} can never show equivalence {within}, which needs {needed}"
    least = power.detectable_margin(seeds, evidence.pairs, evidence.alpha) * spread_of(evidence.differences)
    if math.isnan(least):
        return text
    return f"{text}, and {seeds} seeds can show that equal arms are within {100 * least:.1f} points at best"


def findable_effect(
    differences: ArrayLike,
    seeds: int,
    pairs: int,
    alpha: float = ALPHA,
    correction: power.Correction = "max-t",
) -> Estimate:
    """The effect that `seeds` seeds find in 80 % of repetitions for one of `pairs` pairs, computed from the
    observed SD, with the values at the ends of the 95 % interval of that SD. NaN where this many seeds cannot
    find any effect, and where fewer than two different differences give no SD."""
    deviation = spread_of(differences)
    if math.isnan(deviation):
        return Estimate(math.nan, math.nan, math.nan)
    value = power.detectable(seeds, pairs, alpha, correction) * deviation
    low, high = power.deviation_factors(np.size(differences))
    return Estimate(value, low * value, high * value)


def spread_of(differences: ArrayLike) -> float:
    """SD of the differences (ddof = 1); NaN for fewer than two differences and for equal ones."""
    array = np.asarray(differences, dtype=np.float64)
    return math.nan if array.size < 2 or np.ptp(array) < SAME else float(array.std(ddof=1))


def _enough(evidence: VerdictEvidence) -> str:
    """How many seeds would find the observed difference, in words."""
    seeds = seeds_wanted(evidence)
    if not math.isfinite(seeds):
        return f"more than {power.MOST_SEEDS:,} seeds would be needed to find it"
    return f"about {seeds:.0f} seeds would find it in {power.POWER:.0%} of repetitions"


def seeds_wanted(evidence: VerdictEvidence) -> float:
    """How many seeds would find the observed difference in 80 % of repetitions, if difference and spread are
    as observed; inf for more than `power.MOST_SEEDS`. NaN where that is not said: with too few seeds for any
    verdict, with runs that are waited for, and between interim analyses."""
    seeds = evidence.differences.size
    if seeds < evidence.needed or evidence.analysis or any(evidence.late.values()):
        return math.nan
    least = seeds + 1
    mean, spread = abs(float(evidence.differences.mean())), float(evidence.differences.std(ddof=1))
    if not spread > 0:
        return float(least) if mean > 0 else math.inf
    return power.seeds_for(mean / spread, evidence.pairs, evidence.alpha, least, evidence.correction)


def _outlook(evidence: VerdictEvidence, needed: int) -> str:
    """The effect that the smallest sufficient number of seeds would find."""
    effect = findable_effect(
        evidence.differences, needed, evidence.pairs, evidence.alpha, evidence.correction
    )
    if math.isnan(effect.value):
        return ""
    high = f"{100 * effect.high:.1f}" if effect.high < 1 else "no limit"  # accuracies differ by 1 at most
    return (
        f"; {needed} would find {100 * effect.value:.1f} points in {power.POWER:.0%} of repetitions "
        f"({100 * effect.low:.1f} to {high} given the uncertainty of the SD)"
    )


def _beside(differences: Floats) -> str:
    """Why the interval excludes 0 although the test does not reject."""
    mean = seed_mean(differences)
    if not mean.low * mean.high > 0:  # NaN without an interval
        return ""
    return "; the t interval excludes 0, but assumes normal differences and ignores all other pairs"
