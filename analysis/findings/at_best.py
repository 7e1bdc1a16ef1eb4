"""Tests of two arms, each at the best of its learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpobench.analysis.findings.contrasts import mean_by_seed, values_covered
from grpobench.analysis.findings.horizons import Key, Values
from grpobench.analysis.findings.result import Judged, outside_bounds, verdict_of
from grpobench.analysis.findings.rule import Test
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.statistics.best_rates import BestRatePair, compare_best_rates, inside_p_at_best
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.statistics.permutation import holm
from grpobench.analysis.statistics.rates import RateCurve
from grpobench.analysis.statistics.verdicts import shown
from grpobench.analysis.tools.text import RATE_SUFFIX


def judge_at_best(tests: Sequence[Test], values: Values, waits: bool, share: int = 1) -> dict[str, Judged]:
    """The tests by name, corrected together: a difference as reports compare arms at best rates (closed tests
    over all combinations of best rates), effects inside the tests' bounds by Holm. p values are multiplied by
    `share`, the number of families that share the level.

    A test decides nothing where the grid may have missed the best rate: the lesser arm's for a difference,
    that of an arm which could leave the bounds for an effect inside them."""
    if waits:
        nothing = Estimate(math.nan, math.nan, math.nan)
        why = "waits for runs without a result"
        return {test.name: Judged(test, (), (), nothing, 1.0, 1.0, "unresolved", why) for test in tests}
    curves: dict[str, RateCurve] = {}
    pairs = []
    for test in tests:
        names = sorted(test.contrast, key=lambda name: -test.contrast[name])
        weights = [abs(test.contrast[name]) for name in names]
        first, second = (
            f"{weight:g} {name} by {test.outcome} {dict(test.where)}"
            for weight, name in zip(weights, names, strict=True)
        )
        for key, weight, name in zip((first, second), weights, names, strict=True):
            curve = curve_of(name, values[test.name])
            curves[key] = replace(curve, scores=weight * curve.scores)
        pairs.append((first, second))
    compared = compare_best_rates(curves, pairs, max(test.margin for test in tests))
    close = holm(
        [
            inside_p_at_best(curves[first], curves[second], test.bounds)
            for test, (first, second) in zip(tests, pairs, strict=True)
        ]
    )
    judged = {}
    for test, pair, p_equivalence in zip(tests, compared, close, strict=True):
        p = min(1.0, share * pair.p_adjusted), min(1.0, share * float(p_equivalence))
        runs = sum(len(curve.rates) * len(curve.seeds) for curve in (curves[pair.first], curves[pair.second]))
        undecided = Judged(
            test=test,
            seeds=tuple(pair.differences),
            contrasts=tuple(pair.differences.values()),
            effect=Estimate(pair.effect, pair.low, pair.high),
            p=p[0],
            p_equivalence=p[1],
            verdict="unresolved",
            needs="",
            runs=runs,
        )
        judged[test.name] = _verdict(undecided, pair, len(tests), (curves[pair.first], curves[pair.second]))
    return judged


def curve_of(name: str, values: Mapping[Key, float]) -> RateCurve:
    """The values of an arm (ARM or ARM@TASK) by multiple of its own learning rate. Raises LogError if it has
    fewer than two rates, or not all of them on the same tasks."""
    arm, at, task = name.partition("@")
    prefix = f"{arm}{RATE_SUFFIX}"
    factors = {run[0].removeprefix(prefix) for run in values if run[0].startswith(prefix)}
    names = {1.0: name} | {float(factor): f"{prefix}{factor}{at}{task}" for factor in factors}
    tasks = {frozenset(run[1] for run in values_covered(other, values)) for other in names.values()}
    if len(names) < 2 or len(tasks) > 1:
        why = "has runs at one learning rate" if len(names) < 2 else "has not the same tasks at every rate"
        raise LogError(f"contrast: {name} {why}; its test compares arms at their best rates")
    by_rate = {factor: mean_by_seed(other, values, False) for factor, other in names.items()}
    return RateCurve.of(
        {
            factor: {seed: value for seed, value in by_seed.items() if math.isfinite(value)}
            for factor, by_seed in by_rate.items()
        }
    )


def _verdict(judged: Judged, pair: BestRatePair, tests: int, curves: tuple[RateCurve, RateCurve]) -> Judged:
    """The judged test with its verdict by `verdicts.shown` and the reason for it."""
    seeds, test = len(pair.seeds), judged.test
    count = f"{tests} test{'s' * (tests > 1)}"
    over = f"over {seeds} seeds and {count}, each arm at its best rate"
    if seeds < 2:
        return replace(judged, needs=f"{seeds} seeds have every value that the contrast needs")
    effect, inside = shown(
        pair.first_is_better, judged.p, judged.p_equivalence, (pair.low, pair.high), test.bounds
    )
    differs, directed = effect in ("higher", "lower"), test.expect in ("higher", "lower")
    names = sorted(test.contrast, key=lambda name: -test.contrast[name])
    at_edge = [_edge(name, curve) for name, curve in zip(names, curves, strict=True)]
    better, lesser = at_edge if pair.first_is_better else at_edge[::-1]
    # A rate beyond the grid can only raise its arm: of the lesser arm it may end a difference, of the better
    # arm one that is small, of the first arm it may exceed the upper bound, of the second the lower one.
    inside = inside and not (differs and directed and better)
    close = f"p {judged.p_equivalence:.3g} that {outside_bounds(test)}, {over}"
    reason = f"p {judged.p:.3g} {'that there is no difference, ' * differs}{over}" if not inside else close
    claims_bounds = inside and not (differs and directed)
    low, high = test.bounds
    doubtful = [lesser] if differs else []
    if claims_bounds:
        doubtful = [at_edge[0]] * math.isfinite(high) + [at_edge[1]] * math.isfinite(low)
    if edges := " and ".join(filter(None, doubtful)):
        needs = f"{edges}, beyond which another may be better (else {effect}: {reason})"
        return replace(judged, needs=needs, at_edge=True)
    if claims_bounds and differs and lesser:
        effect = "unresolved"
    verdict = verdict_of(test, effect, inside)
    return replace(judged, shown=effect, inside=inside, verdict=verdict, needs=reason)


def _edge(name: str, curve: RateCurve) -> str:
    """Where the best rate of an arm is the smallest or largest tried, in words; else empty."""
    best = curve.best
    end = "smallest" * (best == 0) or "largest" * (best == len(curve.rates) - 1)
    return f"the best rate of {name} ({curve.rates[best]:g} times its own) is the {end} tried" if end else ""
