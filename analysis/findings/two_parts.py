"""Tests of which some runs fail: which runs these are, and what the two parts of the test say."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpobench.analysis.findings.bases import mean_over_bases
from grpobench.analysis.findings.contrasts import contrasts_of, repetitions, values_covered
from grpobench.analysis.findings.horizons import Key, Values
from grpobench.analysis.findings.result import Judged, verdict_of
from grpobench.analysis.findings.rule import FREE, WHOLE, Finding, Test, limit_of
from grpobench.analysis.measure import Measure
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.statistics.maxima import joint_ps
from grpobench.analysis.statistics.permutation import inside_ps, sign_flip_p
from grpobench.analysis.statistics.two_parts import TwoParts, share_difference, widest_gap
from grpobench.analysis.statistics.verdicts import ALPHA, Shown, shown

SHARE_THAT_MATTERS = 0.1
"""Arms of which a test says that they are equal differ by less in their shares of failing runs."""


@dataclass(frozen=True)
class Division:
    """A test whose runs are of two kinds."""

    failing: frozenset[Key]
    words: str
    """How the runs fail, such as `collapse`."""
    side: int
    """1 if failing runs have the larger outcome, −1 if they have the smaller one."""
    values: Mapping[Key, float]
    """The outcome of every run."""
    is_asked: bool
    """Whether the rule asks for two parts. If not, they may take a verdict back, and never give one."""

    @property
    def others(self) -> dict[Key, float]:
        """The outcome of runs that do not fail; NaN of those that do."""
        return {run: math.nan if run in self.failing else value for run, value in self.values.items()}

    @property
    def indicators(self) -> dict[Key, float]:
        """1 for a run that fails, 0 for another run with an outcome, else NaN."""
        return {
            run: 1.0 if run in self.failing else (0.0 if math.isfinite(value) else math.nan)
            for run, value in self.values.items()
        }


def divisions(finding: Finding, values: Values, collapsed: Collection[Key]) -> dict[str, Division]:
    """The tests and controls whose runs are of two kinds, by name."""
    # At best rates a failing rate is one that is not chosen.
    tests = [test for test in (*finding.test, *finding.control) if not (test.deals or test.best_rate)]
    by_name = {test.name: division_of(test, values[test.name], collapsed) for test in tests}
    return {name: division for name, division in by_name.items() if division}


def division_of(test: Test, values: Mapping[Key, float], collapsed: Collection[Key]) -> Division | None:
    """How the runs of a test divide, or None if its mean is over runs of one kind.

    By `two_part` of the rule. Without it, if some runs of an arm collapsed and others did not; or if the
    values lie in two groups of which the smaller one fails, whatever its arms."""
    covered = [values_covered(name, values) for name in test.contrast]
    runs = {run: value for arm in covered for run, value in arm.items()}
    if test.two_part:
        limit = limit_of(test.two_part)
        if limit is None:
            failing, words, side = frozenset(runs.keys() & set(collapsed)), "collapse", 0
        else:
            above, bound = limit
            side = 1 if above else -1
            failing = frozenset(run for run, value in runs.items() if side * value >= side * bound)
            words = f"end at {bound:g} or {'above' if above else 'below'}"
        return Division(failing, words, side or _side(runs, failing), values, True) if failing else None
    if Measure.read(test.outcome).kind in WHOLE:
        return None
    failing = frozenset(runs.keys() & set(collapsed))
    if any(0 < len(arm.keys() & failing) < len(arm) for arm in covered):
        return Division(failing, "collapse", _side(runs, failing), values, False)
    return _by_gap(test, covered, values)


def _side(runs: Mapping[Key, float], failing: Collection[Key]) -> int:
    """Whether failing runs have the larger outcome; −1 if that is not known."""
    ends = [value for run, value in runs.items() if run in failing and math.isfinite(value)]
    others = [value for run, value in runs.items() if run not in failing and math.isfinite(value)]
    return 1 if ends and others and np.mean(ends) > np.mean(others) else -1


def _by_gap(test: Test, covered: list[dict[Key, float]], values: Mapping[Key, float]) -> Division | None:
    """By the widest gap inside an arm on one task. Of this arm the fewer runs fail; of a pair, those of the
    other arm that end on the same side of the gap too. In a sum of more arms, such as a slope over sizes of
    models, each arm has a level of its own."""
    runs = {run: value for arm in covered for run, value in arm.items() if math.isfinite(value)}
    if any(len({run[:2] for run in arm}) != 1 for arm in covered):
        return None  # the arms and tasks behind a pattern have levels of their own
    if test.ratio and min(runs.values(), default=0) <= 0:
        return None
    scaled = {run: math.log(value) if test.ratio else value for run, value in runs.items()}
    arms = [{run: scaled[run] for run in arm if run in scaled} for arm in covered]
    gaps = [(gap, arm) for arm in arms if (gap := widest_gap([*arm.values()], test.margin))]
    if not gaps:
        return None
    (low, high), arm = max(gaps, key=lambda gap_and_arm: gap_and_arm[0][1] - gap_and_arm[0][0])
    side = 1 if sum(value >= high for value in arm.values()) <= len(arm) / 2 else -1
    bound = (low + high) / 2
    compared = scaled if len(arms) <= 2 else arm
    failing = frozenset(run for run, value in compared.items() if side * value > side * bound)
    shown = math.exp(bound) if test.ratio else bound
    words = f"end {'above' if side > 0 else 'below'} {shown:.3g}, apart from the others"
    return Division(failing, words, side, values, False)


def shares_of(test: Test, division: Division) -> dict[int, float]:
    """Seed -> weighted sum of the shares of failing runs, for seeds whose runs fail or have an outcome."""
    return contrasts_of(replace(test, ratio=False), division.indicators)


def by_two_parts(test_result: Judged, division: Division, ps: tuple[float, float] | None) -> Judged:
    """The judged test with both parts. `ps` are the p of outcome and share, corrected over the finding's
    tests, if the rule asks for two parts; then they decide. Otherwise a verdict from the mean stands only if
    the parts say the same, or the sign test, for which it does not matter how low a failing run ends."""
    test = test_result.test
    shares = shares_of(test, division) if math.isclose(sum(test.contrast.values()), 0, abs_tol=1e-9) else {}
    of_others = contrasts_of(test, division.others)
    shares, outcomes = repetitions(shares), repetitions(of_others)
    if ps is None:
        p_outcome, p_share = joint_ps([outcomes, shares])[1]
        (p_inside,) = inside_ps([[*outcomes.values()]], test.bounds)
    else:
        (p_outcome, p_share), p_inside = ps, test_result.p_equivalence
    mean = mean_over_bases(of_others)
    effect = Estimate(*(math.exp(end) if test.ratio else end for end in (mean.value, mean.low, mean.high)))
    by_name = [values_covered(name, division.indicators) for name in test.contrast]
    failed = tuple(int(np.nansum([*indicators.values()])) for indicators in by_name)
    runs = tuple(int(np.isfinite([*indicators.values()]).sum()) for indicators in by_name)
    share = share_difference([*shares.values()])
    parts = TwoParts(division.words, failed, runs, share, p_share, effect, p_outcome, len(of_others))
    test_result = replace(test_result, two_parts=parts)
    shown_of, inside, why = _shown(test, parts, mean, p_inside, division.side)
    says = verdict_of(test, shown_of, inside)
    if division.is_asked:
        needs, p = f"by two parts: {why}", min(p_share, p_outcome)
        return replace(test_result, p=p, verdict=says, shown=shown_of, inside=inside, needs=needs)
    counts = failing_counts(parts.failed, parts.runs, [*test.contrast])
    mixed = f"the mean is over runs of which {counts} {division.words}"
    differs = test_result.shown in ("higher", "lower") and not test_result.says_none
    by_signs = differs and sign_flip_p(np.sign(test_result.repetitions)) <= ALPHA
    if test_result.verdict in ("unresolved", says) or by_signs:
        return replace(test_result, needs=f"{test_result.needs}; {mixed}")
    needs = f"{mixed}, and by two parts it is {says}: {why} (else {test_result.verdict}: {test_result.needs})"
    return replace(test_result, verdict="unresolved", shown="unresolved", inside=False, needs=needs)


def _shown(
    test: Test, parts: TwoParts, mean: Estimate, p_inside: float, side: int
) -> tuple[Shown, bool, str]:
    """What both parts show of an effect, whether it lies inside the bounds, and why. A difference of either
    part is one of the test if the other part has none with the opposite sign. Inside the bounds are outcomes
    as `verdicts.shown` has it, with shares that differ by less than `SHARE_THAT_MATTERS`."""
    p, low, high = parts.p_outcome, mean.low, mean.high
    of_others, inside = shown(mean.value > 0, p, p_inside, (low, high), test.bounds)
    free = FREE.get(test.expect)
    ends = sorted((side * parts.share.low, side * parts.share.high))
    inside &= free == "lower" or ends[0] > -SHARE_THAT_MATTERS
    inside &= free == "higher" or ends[1] < SHARE_THAT_MATTERS
    of_share: Shown = "higher" if side * parts.share.value > 0 else "lower"
    effects = {
        "the outcome of the others": of_others if p <= ALPHA else None,
        "the share that fails": of_share if parts.p_share <= ALPHA else None,
    }
    differing = {part: effect for part, effect in effects.items() if effect}
    if len(set(differing.values())) > 1:
        return "unresolved", False, "the parts differ in opposite directions"
    if differing:
        words = f"{' and '.join(differing)} {'differ' if len(differing) > 1 else 'differs'}"
        return next(iter(differing.values())), inside, words
    if inside:
        return "equivalent", True, "both parts are equal"
    return "unresolved", False, f"neither differs (p {p:.3g} and {parts.p_share:.3g})"


def failing_counts(failed: Sequence[int], runs: Sequence[int], names: Sequence[str], noun: str = "") -> str:
    """How many runs of each arm fail. Of more than two arms those with failing runs are named."""
    noun = f"{noun} of" if noun else "of"
    counts = [
        f"{failing} of {total} {noun} {name}"
        for failing, total, name in zip(failed, runs, names, strict=True)
        if failing or len(names) <= 2
    ]
    return " and ".join(counts + ["none of the rest"] * (len(counts) < len(names)))
