"""What the runs say about a finding: the results of its tests, and the conclusion from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from grpobench.analysis.findings.at_best import judge_at_best
from grpobench.analysis.findings.bases import numbered, over_bases
from grpobench.analysis.findings.contrasts import (
    contrasts_of,
    log_of,
    mean_by_seed,
    repetitions,
    values_covered,
)
from grpobench.analysis.findings.horizons import Horizons, Key, Values, clip, count_reached
from grpobench.analysis.findings.result import Judged, Result, Verdict, outside_bounds, verdict_of
from grpobench.analysis.findings.rule import Finding, Test, covers
from grpobench.analysis.findings.sensitivity import (
    checked,
    conclusion,
    series_of,
    with_sensitivity,
)
from grpobench.analysis.findings.two_parts import Division, by_two_parts, divisions, shares_of
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.intervals import Estimate, Floats, seed_mean, wilson
from grpobench.analysis.statistics.maxima import joint_ps
from grpobench.analysis.statistics.permutation import (
    equivalence_ps,
    holm,
    inside_ps,
    seeds_needed,
    sign_flip_ps,
    smallest_p,
)
from grpobench.analysis.statistics.survival import paired_log_rank
from grpobench.analysis.statistics.verdicts import ALPHA, shown, spread_of

DEAL_SEED = 20260901
"""Random seed of the deals in A/A comparisons."""


def judge(
    finding: Finding,
    values: Values,
    waits: Sequence[str] = (),
    horizons: Horizons | None = None,
    collapsed: Collection[Key] = (),
) -> Result:
    """Apply the rule. Every test has the 5 % level over the finding's tests, for differences by max-T over
    joint sign flips and for equivalence by Holm. Controls must all show their effects, so that each has 5 %.

    What a test shows follows `verdicts.shown`: a difference comes first, then an effect smaller than what
    matters (`equivalent`). A test that expects `higher` or `lower` is `supported` or `contradicted` by a
    difference. One that expects `same`, `not lower` or `not higher` is `supported` by an effect inside its
    bounds, even if it is not 0, and `contradicted` by any other difference against it. Where neither a
    difference is shown nor checks and controls say that it could have been, a test is `insensitive`.

    The finding is `dose-dependent` if effects differ by dose and the verdicts with them, `contradicted` if
    any test is, `supported` if all tests are, `equivalent` if the primary test is, `insensitive` if a test
    is, and otherwise `unresolved`; so is each part of its claim. `horizons` bound effects and intervals, and
    change no p value. If some runs of a test are `collapsed`, or fail in another way, its mean alone decides
    nothing (`two_parts`). Raises LogError if a contrast names an arm without runs, unless results are
    missing.
    """
    waiting, horizons = bool(waits), horizons or {}
    values = {name: numbered(measured, finding.bases) for name, measured in values.items()}
    horizons = {name: numbered(ends, finding.bases) for name, ends in horizons.items()}
    collapsed = numbered(dict.fromkeys(collapsed, 0), finding.bases)
    divided = {} if waits else divisions(finding, values, collapsed)
    values = {**values, **{name: division.others for name, division in divided.items() if division.is_asked}}
    judged = {test.name: _dealt(test, values[test.name], waiting) for test in finding.test if test.deals}
    plain = [
        test for test in finding.test if not test.deals and (not test.also or _has_all_arms(test, values))
    ]
    families = [[test for test in plain if not test.also], *([test] for test in plain if test.also)]
    families += [[control] for control in finding.control]
    for family in families:
        at_best = [test for test in family if test.best_rate]
        others = [test for test in family if not test.best_rate]
        share = 1 + (bool(at_best) and bool(others))  # both kinds have half of the level
        judged |= _family(others, values, waiting, divided, share)
        judged |= judge_at_best(at_best, values, waiting, share) if at_best else {}
    judged = {
        name: _censored(test_result, values[name], horizons.get(name, {}))
        for name, test_result in judged.items()
    }
    checks = tuple(checked(check, values, waiting) for check in finding.check)
    controls = tuple(
        _over_bases(_unmixed(judged[control.name], divided), finding) for control in finding.control
    )
    tests = [judged[test.name] for test in finding.test if test.name in judged]
    if waits:
        return Result(finding, tuple(tests), "unresolved", tuple(waits), checks, controls)
    unchecked = conclusion(_deciding(tests), ())
    tests = [_over_bases(_unmixed(test_result, divided), finding) for test_result in tests]
    tests = [with_sensitivity(test_result, checks, controls) for test_result in tests]
    series = series_of([test_result.test for test_result in tests], values, waiting)
    verdict = conclusion(_deciding(tests), series)
    parts = {part: conclusion(_deciding(tests, part), series) for part in finding.parts}
    return Result(finding, tuple(tests), verdict, (), checks, controls, series, unchecked, parts)


def _deciding(tests: Sequence[Judged], part: str = "") -> list[Judged]:
    """Those of a part of the claim, or all."""
    return [entry for entry in tests if not entry.test.also and part in ("", entry.test.part)]


def _unmixed(test_result: Judged, divided: Mapping[str, Division]) -> Judged:
    """The judged test, taken back where its verdict is of a mean over runs of two kinds."""
    division = divided.get(test_result.test.name)
    if division is None or division.is_asked:
        return test_result
    return by_two_parts(test_result, division, None)


def _over_bases(test_result: Judged, finding: Finding) -> Judged:
    return over_bases(test_result) if finding.bases and not test_result.test.deals else test_result


def _censored(test_result: Judged, values: Mapping[Key, float], horizons: Mapping[Key, float]) -> Judged:
    """The judged test with its effect cut to possible values, and how many runs are censored."""
    test = test_result.test
    measured = {
        run: value
        for run, value in values.items()
        if math.isfinite(value) and any(covers(name, *run[:2]) for name in test.contrast)
    }
    if test.best_rate:
        return test_result
    test_result = replace(test_result, runs=len(measured))
    if test.deals or not horizons:
        return test_result
    effect = test_result.effect if test.ratio else clip(test_result.effect, *_possible(test, horizons))
    p_log_rank = _log_rank(test, measured, horizons)
    return replace(
        test_result, effect=effect, reached=count_reached(measured, horizons), p_log_rank=p_log_rank
    )


def _log_rank(test: Test, values: Mapping[Key, float], horizons: Mapping[Key, float]) -> float:
    """p of two arms on one task by swaps inside seeds; NaN of other contrasts."""
    arms = [values_covered(name, values) for name in test.contrast]
    cells = [{run[:2] for run in arm} for arm in arms]
    if sorted(test.contrast.values()) != [-1, 1] or any(len(cell) != 1 for cell in cells):
        return math.nan
    first, second = ({run[2]: run for run in arm} for arm in arms)
    seeds = sorted(first.keys() & second.keys())
    lasted = [[values[side[seed]] for seed in seeds] for side in (first, second)]
    ended = [
        [values[side[seed]] < horizons.get(side[seed], math.inf) for seed in seeds]
        for side in (first, second)
    ]
    return paired_log_rank((lasted[0], ended[0]), (lasted[1], ended[1]))


def _possible(test: Test, horizons: Mapping[Key, float]) -> tuple[float, float]:
    """The smallest and the largest contrast of outcomes between 0 and their horizons. A difference of two
    lies between minus and plus the run's updates."""
    most = []
    for name, weight in test.contrast.items():
        ends = [end for end in mean_by_seed(name, horizons, True).values() if math.isfinite(end)]
        most.append(weight * max(ends, default=0.0))
    return sum(min(0.0, extreme) for extreme in most), sum(max(0.0, extreme) for extreme in most)


def _has_all_arms(test: Test, values: Values) -> bool:
    """Whether every arm of the contrast has runs."""
    return all(values_covered(name, values[test.name]) for name in test.contrast)


def _family(
    tests: Sequence[Test], values: Values, waits: bool, divided: Mapping[str, Division], share: int = 1
) -> dict[str, Judged]:
    """Tests that are corrected together, both parts of those whose rule asks for them, at a level that
    `share` families divide."""
    if not tests:
        return {}
    contrasts = [contrasts_of(test, values[test.name], waits) for test in tests]
    independent = [repetitions(contrast) for contrast in contrasts]
    samples = [np.array([*contrast.values()], dtype=np.float64) for contrast in independent]
    two_part = [test for test in tests if test.name in divided and divided[test.name].is_asked]
    shares = {test.name: repetitions(shares_of(test, divided[test.name])) for test in two_part}
    _, p = joint_ps([*independent, *shares.values()])
    p_share = dict(zip(shares, p[len(tests) :], strict=True))
    close = holm(
        [inside_ps([contrast], test.bounds)[0] for contrast, test in zip(samples, tests, strict=True)]
    )
    judged = {}
    for i, test in enumerate(tests):
        p_values = min(1.0, share * float(p[i])), min(1.0, share * float(close[i]))
        test_result = _judged(test, contrasts[i], samples[i], p_values, len(tests), waits)
        judged[test.name] = replace(
            test_result, share=share, needs=test_result.needs + _saturated(test, values[test.name])
        )
        if test.name in shares:
            ps = p_values[0], min(1.0, share * p_share[test.name])
            judged[test.name] = by_two_parts(judged[test.name], divided[test.name], ps)
    return judged


def _saturated(test: Test, values: Mapping[Key, float]) -> str:
    """A remark if every run of a contrast has the same value, for example if none collapses."""
    distinct = {value for name in test.contrast for value in values_covered(name, values).values()}
    if len(test.contrast) < 2 or len(distinct) != 1:
        return ""
    value = distinct.pop()
    return f"; every run of every arm measures the same, {value:g}, so that longer or harder runs may differ"


def _judged(
    test: Test,
    contrasts: Mapping[int, float],
    sample: Floats,
    p_values: tuple[float, float],
    tests: int,
    waits: bool,
) -> Judged:
    p, p_equivalence = p_values
    mean = seed_mean(sample)
    effect, inside = shown(mean.value > 0, p, p_equivalence, (mean.low, mean.high), test.bounds)
    scaled = Estimate(
        *(math.exp(number) if test.ratio else number for number in (mean.value, mean.low, mean.high))
    )
    judged = Judged(
        test, tuple(contrasts), (*contrasts.values(),), scaled, p, p_equivalence, "unresolved", "", tests
    )
    if waits:
        return replace(judged, needs="waits for runs without a result")
    if not contrasts:
        return replace(judged, needs="no seed has every value that the contrast needs")
    judged = replace(judged, shown=effect, inside=inside, verdict=verdict_of(test, effect, inside))
    return replace(judged, needs=_reason(judged, mean))


def _reason(judged: Judged, mean: Estimate) -> str:
    """The reason for the verdict; if it is unresolved, what a verdict would need."""
    seeds, needed = len(judged.repetitions), seeds_needed(ALPHA)
    over = f"over {seeds} seeds and {judged.corrected} test{'s' * (judged.corrected > 1)}"
    close = f"p {judged.p_equivalence:.3g} that {outside_bounds(judged.test)}, {over}"
    differs = judged.shown in ("higher", "lower")
    reason = f"p {judged.p:.3g} that there is no difference, {over}"
    if judged.inside and not judged.small:
        return f"{close}; {reason}" if differs else close
    if differs:
        if judged.small:
            return f"{reason}; the difference is smaller than what matters, p {judged.p_equivalence:.3g}"
        if judged.test.expect not in ("higher", "lower"):
            reason += f"; p {judged.p_equivalence:.3g} that {outside_bounds(judged.test)}{_beyond(judged)}"
        holds = mean.low <= 0 <= mean.high
        return reason + "; the t interval, which takes the effects as normal, holds 0" * holds
    if seeds < needed:
        return f"{seeds} seed{'s' * (seeds > 1)} can never decide; {needed} can"
    smallest = f"smallest possible {smallest_p(seeds):.2g}"
    return f"p {judged.p:.3g} {over} ({smallest}){_beyond(judged)}"


def _beyond(judged: Judged) -> str:
    """A remark if only the interval speaks against an effect inside the bounds."""
    close = judged.p_equivalence <= ALPHA and not judged.inside
    return ", but the interval reaches beyond what matters" * close


def _dealt(test: Test, values: Mapping[Key, float], waits: bool) -> Judged:
    """A/A: how many deals of one arm's runs to two arms are called different."""
    (name,) = test.contrast
    means = sorted(mean_by_seed(name, values, waits).items())
    scaled = {seed: log_of(value) if test.ratio else value for seed, value in means}
    by_seed = {seed: value for seed, value in scaled.items() if math.isfinite(value)}
    pool = np.array([*by_seed.values()])
    if len(pool) < 2 * test.seeds:
        nothing = Estimate(math.nan, math.nan, math.nan)
        why = f"{len(pool)} runs; two arms of {test.seeds} need {2 * test.seeds}"
        return Judged(test, tuple(by_seed), (), nothing, 1.0, 1.0, "unresolved", why)
    rng = np.random.default_rng(DEAL_SEED)
    drawn = [rng.choice(pool, size=(2, test.seeds), replace=False) for _ in range(test.deals)]
    differences = [first - second for first, second in drawn]
    shown_of = [
        shown(mean.value > 0, p, p_inside, (mean.low, mean.high), test.bounds)[0]
        for mean, p, p_inside in zip(
            map(seed_mean, differences),
            sign_flip_ps(differences),
            equivalence_ps(differences, test.margin),
            strict=True,
        )
    ]
    false = sum(effect in ("higher", "lower") for effect in shown_of)
    share = wilson(false, test.deals)
    equal = shown_of.count("equivalent")
    verdict: Verdict = "unresolved"
    if not waits and share.value <= test.most:
        verdict = "supported"
    elif not waits and share.low > test.most:
        verdict = "contradicted"
    spread = math.sqrt(2) * spread_of(pool)  # of a difference between two runs
    scale = 100 if test.unit == "points" else 1
    smallest_effect, smallest_margin = (
        scale * spread * detectable(test.seeds, 1)
        for detectable in (power.detectable, power.detectable_margin)
    )
    reason = f"of {test.deals} deals of {len(pool)} runs {false} are called different and {equal} equivalent"
    if math.isfinite(smallest_effect):  # equal runs have no spread, and few runs can find no effect
        reason += (
            f"; with {test.seeds} seeds an arm, {power.POWER:.0%} of repetitions find an effect of "
            f"{smallest_effect:.1f} {test.unit}, and show equal arms to be within {smallest_margin:.1f}"
        )
    return Judged(test, tuple(by_seed), tuple(map(float, pool)), share, 1.0, 1.0, verdict, reason)
