"""Tests of a finding that compare two arms, each at the best of its learning rates.

Locked here: the numbers are those of `compare_best_rates`, a difference that only a worse rate makes is none,
and nothing is decided where a best rate lies at an edge of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.findings import CONTROL, finding, judge_controlled, question

from grpobench.analysis.findings import rule
from grpobench.analysis.findings.at_best import curve_of
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.result import Judged
from grpobench.analysis.findings.rule import from_plain
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.statistics.best_rates import compare_best_rates, inside_p_at_best

PEAK = (0.5, 0.6, 0.4)  # at half, once and twice the arm's own rate
FACTORS = (0.5, 1.0, 2.0)


def at_rates(arm: str, means: Sequence[float], seed: int, spread: float = 0.005) -> dict[Key, float]:
    noise = np.random.default_rng(seed).normal(0, spread, (len(means), 8))
    return {
        (arm if factor == 1 else f"{arm}+rate-x{factor:g}", "t", number): mean + noise[row, number]
        for row, (factor, mean) in enumerate(zip(FACTORS, means, strict=True))
        for number in range(8)
    }


def best(name: str = "a is better", **changes: Any) -> rule.Test:
    return question(name, best_rate=True, **changes)


def judged(a: Sequence[float], b: Sequence[float], **changes: Any) -> Judged:
    test = best(**changes)
    return judge_controlled(finding(test), {test.name: at_rates("a", a, 1) | at_rates("b", b, 2)}).primary


def test_numbers_are_those_of_reports_at_best_rates() -> None:
    test = best()
    values = at_rates("a", PEAK, 1) | at_rates("b", (0.5, 0.57, 0.4), 2)
    curves = {name: curve_of(name, values) for name in "ab"}
    (pair,) = compare_best_rates(curves, [("a", "b")], test.margin)
    ours = judge_controlled(finding(test), {test.name: values}).primary
    assert (ours.effect.value, ours.effect.low, ours.effect.high) == (pair.effect, pair.low, pair.high)
    assert (ours.p, ours.p_equivalence) == (
        pair.p_adjusted,
        inside_p_at_best(curves["a"], curves["b"], (-0.02, 0.02)),
    )
    assert ours.verdict == "supported" and ours.runs == 48 and ours.seeds == tuple(range(8))


@pytest.mark.parametrize("side", [1, -1])
def test_a_difference_at_the_own_rates_is_none_if_another_rate_makes_up_for_it(side: int) -> None:
    shifted = (0.6, 0.5, 0.4)
    a, b = (PEAK, shifted)[::side]
    values = at_rates("a", a, 1) | at_rates("b", b, 2)
    at_own_rates = question()
    assert judge_controlled(finding(at_own_rates), {at_own_rates.name: values}).primary.verdict == (
        "supported" if side == 1 else "contradicted"
    )
    assert judged(a, b).verdict == "unresolved"  # equal, but the best rate of one is the smallest tried
    four = dict(values)
    for arm, means in (("a", a), ("b", b)):
        low = at_rates(arm, (means[0] - 0.1, 0, 0), 3)
        four |= {(f"{arm}+rate-x0.25", *key[1:]): v for key, v in low.items() if key[0].endswith("x0.5")}
    test = best()
    assert judge_controlled(finding(test), {test.name: four}).primary.verdict == "equivalent"


@pytest.mark.parametrize(
    ("a", "b", "verdict", "says"),
    [
        (PEAK, (0.45, 0.5, 0.4), "supported", "each arm at its best rate"),
        ((0.45, 0.5, 0.4), PEAK, "contradicted", "each arm at its best rate"),
        (PEAK, PEAK, "equivalent", "as large as what matters"),
        ((0.5, 0.6, 0.7), (0.45, 0.5, 0.4), "supported", "p 0.0"),  # more at larger rates yet
        (
            PEAK,
            (0.4, 0.45, 0.5),
            "unresolved",
            "the best rate of b (2 times its own) is the largest",
        ),
        (
            PEAK,
            (0.4, 0.5, 0.6),
            "unresolved",
            "the best rate of b (2 times its own) is the largest tried, beyond",
        ),
        (
            PEAK,
            (0.6, 0.5, 0.4),
            "unresolved",
            "the best rate of b (0.5 times its own) is the smallest tried, beyond",
        ),
    ],
)
def test_verdicts(a: Sequence[float], b: Sequence[float], verdict: str, says: str) -> None:
    ours = judged(a, b)
    assert ours.verdict == verdict and says in ours.needs


def test_a_small_difference_is_not_called_small_where_the_better_arm_may_be_better_yet() -> None:
    """Its best rate is the largest tried: 1 point now, where 5 matter."""
    rising, flat = (0.5, 0.6, 0.61), (0.5, 0.6, 0.5)
    matters = {"matters": 0.05, "expect": "same"}
    assert judged((0.5, 0.61, 0.5), flat, **matters).verdict == "supported"
    edge = judged(rising, flat, **matters)
    assert edge.p <= 0.05 and edge.p_equivalence <= 0.05 and edge.verdict == "unresolved"
    assert "the best rate of a (2 times its own) is the largest tried" in edge.needs
    assert judged(rising, flat, matters=0.05).label == "supported"  # a difference can only grow
    assert judged((0.5, 0.61, 0.5), flat, matters=0.05).label == "supported, small difference"
    # A loss that the lesser arm's best rate may end is not called one.
    loss = judged((0.4, 0.45, 0.49), (0.45, 0.5, 0.45), matters=0.05, expect="not lower")
    assert (loss.label, loss.shown) == ("supported", "unresolved")
    assert judged((0.4, 0.49, 0.45), (0.45, 0.5, 0.45), matters=0.05, expect="not lower").shown == "lower"


@pytest.mark.parametrize(
    ("a", "b", "verdict", "says"),
    [
        (
            (0.5, 0.62, 0.4),
            PEAK,
            "supported",
            "that it is below 0 by what matters",
        ),  # as far above as matters
        ((0.5, 0.7, 0.4), PEAK, "supported", "that it is below 0 by what matters"),
        ((0.4, 0.5, 0.62), PEAK, "supported", "that it is below 0 by what matters"),  # a may be better yet
        (PEAK, (0.4, 0.5, 0.6), "unresolved", "the best rate of b (2 times its own) is the largest tried"),
        ((0.5, 0.58, 0.4), PEAK, "contradicted", "p 0.0"),
        ((0.5, 0.4, 0.58), PEAK, "unresolved", "the best rate of a (2 times its own)"),
    ],
)
def test_not_lower_has_one_bound(a: Sequence[float], b: Sequence[float], verdict: str, says: str) -> None:
    """The other way round and `not higher` the verdict is the same."""
    ours = judged(a, b, expect="not lower")
    assert ours.verdict == verdict and says in ours.needs
    turned = judged(a, b, expect="not higher", contrast={"b": 1.0, "a": -1.0})
    assert (turned.verdict, turned.p_equivalence) == (verdict, ours.p_equivalence)


def test_a_control_at_best_rates_shows_its_effect_or_not() -> None:
    control = replace(CONTROL, contrast={"a": 1.0, "c": -1.0}, best_rate=True)
    test = best()
    runs = at_rates("a", PEAK, 1) | at_rates("b", PEAK, 2)

    for means, verdict in (((0.4, 0.5, 0.4), "equivalent"), (PEAK, "insensitive")):
        values = {test.name: runs, control.name: runs | at_rates("c", means, 3)}
        assert judge(finding(test, control=(control,)), values).verdict == verdict


def test_tests_of_both_kinds_share_the_level() -> None:
    tests = best("at best"), question("at own")
    values = at_rates("a", PEAK, 1) | at_rates("b", (0.45, 0.5, 0.4), 2)
    at_own = {key: value for key, value in values.items() if "+" not in key[0]}
    both = judge_controlled(finding(*tests), {"at best": values, "at own": at_own})
    alone = [judge_controlled(finding(test), {"at best": values, "at own": at_own}).primary for test in tests]
    assert [test.p for test in both.tests] == [2 * test.p for test in alone]


def test_a_weight_below_1_asks_for_a_share_of_the_other_arms_best() -> None:
    """b's best of .57 is 95 % of a's .6: more than nine tenths of it, and less than all of it."""
    lower = (0.5, 0.57, 0.4)
    share = judged(PEAK, lower, contrast={"b": 1.0, "a": -0.9}, expect="higher")
    scaled = judged([0.9 * value for value in PEAK], lower, contrast={"b": 1.0, "a": -1.0}, expect="higher")
    assert share.effect.value == pytest.approx(scaled.effect.value, abs=2e-3)
    assert share.verdict == "supported"
    assert share.effect.value == pytest.approx(0.57 - 0.9 * max(PEAK), abs=0.01)
    assert judged(PEAK, lower, contrast={"b": 1.0, "a": -1.0}, expect="higher").verdict == "contradicted"


def test_what_cannot_be_at_best_rates_is_refused() -> None:
    for changes in (
        {"contrast": {"a": 1.0}},
        {"contrast": {"a": 2.0, "b": -2.0}},
        {"contrast": {"a": 1.0, "b": 0.9}},
        {"contrast": {"a": 0.9, "b": -0.9}},
        {"contrast": {"a*": 1.0, "b": -1.0}},
        {"ratio": True, "matters": 1.2},
        {"outcome": "rate:octaves"},
        {"dose": 1.0},
    ):
        with pytest.raises(ValueError, match="best_rate: needs two arms"):
            best(**changes)
    with pytest.raises(LogError, match="a has runs at one learning rate"):
        judge_controlled(finding(best()), {"a is better": {("a", "t", 0): 0.5, ("b", "t", 0): 0.5}})
    registered = finding(best())
    assert registered.over_rates and from_plain(registered.plain()) == registered
    assert "best_rate" not in str(finding(question()).plain())  # digests of rules without it stay
    waiting = judge_controlled(registered, {"a is better": {}}, waits=["a run"])
    assert waiting.verdict == "unresolved" and waiting.waits
