"""Findings at two scales: which tests are compared, how signs are counted, and the rank correlation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.findings import question, several
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.findings.result import Result
from grpobench.analysis.findings.transfer import (
    ScalePair,
    agreement,
    compare_scales,
    draw_transfer,
    rank_correlation,
    rule_difference,
)

UP, DOWN, NOISE = [0.05, 0.06] * 4, [-0.05, -0.04] * 4, [0.01, -0.011] * 4


def result(name: str, **samples: list[float]) -> Result:
    """A finding with a test for each of these samples of contrasts."""
    judged = several(samples, *(question(test) for test in samples))
    return replace(judged, finding=replace(judged.finding, name=name))


def pairs_of(first: list[Result], second: list[Result]) -> list[ScalePair]:
    return compare_scales(first, second)[0]


def test_a_test_is_compared_or_listed_with_the_reason() -> None:
    nano = [result("both", x=UP, y=UP), result("differs", x=UP), result("alone", x=UP)]
    small = [result("differs", x=DOWN), result("both", x=UP, y=UP, z=UP), result("new", x=UP)]
    small[1] = replace(small[1], tests=small[1].tests[::2])  # y has no runs
    pairs, uncompared = compare_scales(nano, small)
    compared = [(pair.finding, pair.first.test.name, pair.same_sign, pair.same_rule) for pair in pairs]
    assert compared == [("both", "x", True, False), ("differs", "x", False, True)]
    assert [(left_out.finding, left_out.test, left_out.reason) for left_out in uncompared] == [
        ("both", "y", "no runs of its arms on SmolLM2"),
        ("both", "z", "the rule at nano scale lacks this test"),
        ("alone", "", "kept at nano scale alone"),
        ("new", "", "kept on SmolLM2 alone"),
    ]


@pytest.mark.parametrize("change", [{"outcome": "gain"}, {"matters": 0.03}, {"expect": "lower"}])
def test_another_test_by_the_same_name_is_listed_with_both_effects(change: dict[str, object]) -> None:
    other = several({"x": DOWN}, question("x", **change))
    other = replace(other, finding=replace(other.finding, name="one"))
    pairs, (left,) = compare_scales([result("one", x=UP)], [other])
    assert not pairs
    assert left.reason == (
        "the test differs: +0.055 (+0.051 to +0.059) at nano scale, −0.045 (−0.049 to −0.041) on SmolLM2"
    )
    assert left.is_reversed == ("expect" not in change)  # a fall is what the other test claims


def test_rules_that_differ_around_equal_tests_are_put_into_words() -> None:
    """One finding, registered at the second scale before it had checks and a control."""
    nano = result("one", x=UP, y=UP)
    earlier = replace(nano.finding, test=nano.finding.test[:1], control=())
    assert rule_difference(nano.finding, nano.finding) == ""
    assert rule_difference(nano.finding, earlier) == (
        "The rules differ: the rule at nano scale has 1 test, 1 control that the other lacks."
    )
    assert "the rule on SmolLM2 has 1 test" in rule_difference(earlier, nano.finding)
    other = replace(nano.finding, test=(question("x", matters=0.5), nano.finding.test[1]))
    assert rule_difference(nano.finding, other) == "The rules differ: another version of “x”."
    assert rule_difference(nano.finding, replace(nano.finding, claim="c")) == (
        "The rules differ: in their texts."
    )


def test_signs_count_where_both_intervals_leave_zero_out() -> None:
    nano = [result("one", x=UP, y=UP, z=NOISE), result("two", x=DOWN)]
    small = [result("one", x=UP, y=DOWN, z=UP), result("two", x=DOWN)]
    agreed = agreement(pairs_of(nano, small))
    assert (agreed.pairs, agreed.findings, agreed.clear, agreed.same) == (4, 2, 3, 2)
    assert agreed.clear_findings == 2  # two tests of one finding are no two repetitions
    assert math.isnan(agreed.rank.low)  # of two findings no interval


def several_pairs(effects: list[tuple[float, float]]) -> list[ScalePair]:
    """A finding for each pair of effects."""
    sides = [
        [
            result(f"f{i}", x=[both_effects[side], both_effects[side] + 0.001] * 4)
            for i, both_effects in enumerate(effects)
        ]
        for side in (0, 1)
    ]
    return pairs_of(*sides)


@given(
    st.lists(
        st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
        min_size=3,
        max_size=3,
        unique_by=lambda pair: pair[0],
    )
)
def test_the_rank_correlation_is_spearmans(effects: list[tuple[int, int]]) -> None:
    rank = rank_correlation(several_pairs([(x / 100, y / 100) for x, y in effects]))
    if len({y for _, y in effects}) == 1:
        assert math.isnan(rank.value)
    else:
        expected = stats.spearmanr(*np.array(effects).T).statistic
        assert rank.value == pytest.approx(expected, abs=1e-12)


def test_equal_orders_have_an_interval_up_to_one() -> None:
    rank = rank_correlation(several_pairs([(x / 100, x / 50) for x in range(-4, 5)]))
    assert (rank.value, rank.high) == pytest.approx((1, 1)) and rank.low > 0.9


def test_unrelated_effects_have_an_interval_around_zero() -> None:
    second = (0.3, -0.4, -0.1, 0.2, 0.0, 0.1, 0.25, -0.2)
    rank = rank_correlation(several_pairs([(x / 10, y) for x, y in enumerate(second, start=1)]))
    assert rank.low < 0 < rank.high


def test_figure_marks_every_pair_and_says_how_many() -> None:
    pairs = several_pairs([(0.1, 0.3), (0.2, -0.4), (0.001, 0.0)])
    drawn = draw_transfer(pairs)
    (axes,) = drawn.figure.axes
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "o"]
    assert np.array(points) == pytest.approx(np.array([(5.025, 15.025), (10.025, -19.975), (0.075, 0.025)]))
    assert "3 tests of 3 findings" in drawn.caption
    assert not any(line.get_marker() == "D" for line in axes.lines)
    other = draw_transfer([replace(pairs[0], same_rule=False), *pairs[1:]])
    assert sum(line.get_marker() == "D" for line in other.figure.axes[0].lines) == 1
    assert "the rules differ" in [text.get_text() for text in other.figure.legends[0].get_texts()]
