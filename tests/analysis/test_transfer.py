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
    draw_transfer,
    pairs_of,
    rank_correlation,
)

UP, DOWN, NOISE = [0.05, 0.06] * 4, [-0.05, -0.04] * 4, [0.01, -0.011] * 4


def result(name: str, **samples: list[float]) -> Result:
    """A finding with a test for each of these samples of contrasts."""
    judged = several(samples, *(question(test) for test in samples))
    return replace(judged, finding=replace(judged.finding, name=name))


def test_only_tests_of_both_scales_are_compared() -> None:
    nano = [result("one", x=UP, y=UP), result("two", x=UP), result("alone", x=UP)]
    small = [result("two", x=DOWN), result("one", x=UP, z=UP)]
    found = [(pair.finding, pair.first.test.name, pair.same_sign) for pair in pairs_of(nano, small)]
    assert found == [("one", "x", True), ("two", "x", False)]


def test_another_outcome_is_another_test() -> None:
    other = several({"x": UP}, question("x", outcome="gain"))
    other = replace(other, finding=replace(other.finding, name="one"))
    assert not pairs_of([result("one", x=UP)], [other])


def test_signs_count_where_both_intervals_leave_zero_out() -> None:
    nano = [result("one", x=UP, y=UP, z=NOISE), result("two", x=DOWN)]
    small = [result("one", x=UP, y=DOWN, z=UP), result("two", x=DOWN)]
    told = agreement(pairs_of(nano, small))
    assert (told.pairs, told.findings, told.clear) == (4, 2, 3)
    assert told.same.value == pytest.approx(2 / 3)
    low, high = stats.binomtest(2, 3).proportion_ci(method="wilson")
    assert (told.same.low, told.same.high) == pytest.approx((low, high))
    assert math.isnan(told.rank.low)  # of two findings no interval


def several_pairs(effects: list[tuple[float, float]]) -> list[ScalePair]:
    """A finding for each pair of effects."""
    sides = [
        [result(f"f{i}", x=[one[side], one[side] + 0.001] * 4) for i, one in enumerate(effects)]
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
    found = rank_correlation(several_pairs([(x / 100, y / 100) for x, y in effects]))
    if len({y for _, y in effects}) == 1:
        assert math.isnan(found.value)
    else:
        expected = stats.spearmanr(*np.array(effects).T).statistic
        assert found.value == pytest.approx(expected, abs=1e-12)


def test_equal_orders_have_an_interval_up_to_one() -> None:
    found = rank_correlation(several_pairs([(x / 100, x / 50) for x in range(-3, 4)]))
    assert (found.value, found.high) == pytest.approx((1, 1)) and found.low > 0.9


def test_unrelated_effects_have_an_interval_around_zero() -> None:
    found = rank_correlation(several_pairs([(0.1, 0.3), (0.2, -0.4), (0.3, -0.1), (0.4, 0.2), (0.5, 0.0)]))
    assert found.low < 0 < found.high


def test_figure_marks_every_pair_and_says_how_many() -> None:
    pairs = several_pairs([(0.1, 0.3), (0.2, -0.4), (0.001, 0.0)])
    drawn = draw_transfer(pairs)
    (axes,) = drawn.figure.axes
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "o"]
    assert np.array(points) == pytest.approx(np.array([(5.025, 15.025), (10.025, -19.975), (0.075, 0.025)]))
    assert "3 tests of 3 findings" in drawn.caption
