"""Successive halving by hand, and what holds of it whatever the outcomes are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.statistics.halving import Halving, doubling, rank, select


def test_rungs_double_up_to_all_seeds() -> None:
    assert [doubling(n) for n in (1, 2, 3, 4, 6, 8)] == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4),
        (1, 2, 4, 6),
        (1, 2, 4, 8),
    ]


@pytest.mark.parametrize(
    ("rungs", "keep", "values", "counts", "runs"),
    [
        ((1, 2, 4), 0.5, 5, (5, 3, 2), 5 * 1 + 3 * 1 + 2 * 2),
        ((1, 2, 4), 0.5, 2, (2, 2, 2), 2 * 4),  # two at least reach the end
        ((2, 4, 8), 1 / 3, 9, (9, 3, 2), 9 * 2 + 3 * 2 + 2 * 4),
        ((2,), 0.5, 4, (4,), 4 * 2),  # one rung: every value with every seed
        ((1, 3), 1.0, 4, (4, 4), 4 * 3),
        ((1, 2), 0.5, 1, (1, 1), 2),
    ],
)
def test_values_and_runs_by_rung(
    rungs: tuple[int, ...], keep: float, values: int, counts: tuple[int, ...], runs: int
) -> None:
    rule = Halving(tuple(range(rungs[-1])), rungs, keep)
    assert rule.counts(values) == counts
    assert rule.runs(values) == runs


def test_equal_means_go_to_the_first_value() -> None:
    # .1 + .2 is not .3 in floating point, and the two values have one mean.
    outcomes = {"low": {0: 0.1, 1: 0.2}, "high": {0: 0.3, 1: 0.0}, "best": {0: 0.4, 1: 0.4}}
    assert rank(outcomes) == ["best", "low", "high"]
    assert rank(dict(reversed(outcomes.items()))) == ["best", "high", "low"]


def test_a_value_with_a_diverged_seed_ranks_behind_all_finite_ones() -> None:
    outcomes = {"a": {0: 0.9, 1: -math.inf}, "b": {0: -5.0, 1: -7.0}, "c": {0: -math.inf, 1: -math.inf}}
    assert rank(outcomes) == ["b", "a", "c"]
    selection = select(outcomes)
    assert (selection.best, selection.second) == ("b", "a")
    assert not selection.clear  # only one seed of the second diverged
    alone = select({"b": outcomes["b"], "c": outcomes["c"]})
    assert math.isinf(alone.difference)


def test_the_choice_is_among_values_with_all_seeds() -> None:
    outcomes = {"lucky": {0: 0.9}, "steady": {0: 0.7, 1: 0.7, 2: 0.7}, "other": {0: 0.6, 1: 0.5, 2: 0.7}}
    selection = select(outcomes)
    assert (selection.best, selection.second, selection.seeds) == ("steady", "other", 3)
    assert selection.difference == pytest.approx(0.1)
    low, high = stats.t.interval(0.95, 2, loc=0.1, scale=stats.sem([0.1, 0.2, 0.0]))
    assert (selection.low, selection.high) == pytest.approx((low, high))
    assert not selection.clear


def test_clear_takes_three_seeds_and_an_interval_above_zero() -> None:
    best, second = {0: 0.80, 1: 0.81, 2: 0.79}, {0: 0.60, 1: 0.62, 2: 0.58}
    assert select({"a": best, "b": second}).clear
    two = {key: {seed: by_seed[seed] for seed in (0, 1)} for key, by_seed in (("a", best), ("b", second))}
    assert not select(two).clear
    assert select({"a": best}).clear  # nothing else was tried


seeds = st.integers(1, 9)


@given(st.data(), st.integers(1, 30), st.floats(0.05, 1))
def test_every_rung_has_fewer_values_and_every_arm_as_many_runs(
    data: st.DataObject, values: int, keep: float
) -> None:
    count = data.draw(seeds)
    inner = data.draw(st.sets(st.integers(1, count)))
    rungs = tuple(sorted({*inner, count}))
    rule = Halving(tuple(range(count)), rungs, keep)
    counts = rule.counts(values)
    assert list(counts) == sorted(counts, reverse=True) and len(counts) == len(rungs)
    assert counts[-1] >= min(2, values)
    # Summed by value instead of by rung: a value that reaches rung r has rungs[r] runs.
    reached = [max(r for r, n in enumerate(counts) if rank_index < n) for rank_index in range(values)]
    assert rule.runs(values) == sum(rungs[r] for r in reached)
    assert rule.runs(values) <= values * count
