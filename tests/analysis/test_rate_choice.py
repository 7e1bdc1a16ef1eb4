"""The rule of a search by hand, and what holds of it whatever the outcomes are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.statistics.rate_choice import (
    PRUNING,
    Outcomes,
    Round,
    around,
    choose,
    clarity_of,
    extend,
    finalists,
    qualifies,
    rank,
    refine,
    rounds,
    runs_of_rounds,
)

GRID = [1.1e-5, 3.3e-5, 1e-4, 3e-4, 9e-4]


def carried_out(
    table: Mapping[str, Mapping[float, float]], start: list[float], seeds: int = 8, extensions: int = 3
) -> tuple[list[Round[str]], dict[str, dict[float, dict[int, float]]]]:
    """The rounds of a search, and what came of them: `table` has the outcome of a curve at a rate in all
    seeds; rates that it lacks have 0."""
    outcomes: dict[str, dict[float, dict[int, float]]] = {curve: {} for curve in table}
    made = []
    for part in rounds(outcomes, start, seeds, extensions):
        made.append(part)
        for curve, rates in part.rates.items():
            for rate in rates:
                outcomes[curve][rate] = dict.fromkeys(range(part.seeds), table[curve].get(rate, 0.0))
    return made, outcomes


def test_a_grid_whose_middle_is_best_is_refined_and_its_finalists_get_all_seeds() -> None:
    assert around(1e-4) == GRID
    made, _ = carried_out({"grpo": {3.3e-5: 0.5, 1e-4: 0.7, 1.7e-4: 0.8}}, GRID)
    assert [(part.title, part.rates["grpo"], part.seeds) for part in made] == [
        ("grid", GRID, 2),
        ("refinement", (5.7e-5, 1.7e-4), 2),  # 1e-4 divided and multiplied by √3
        ("finals", [1e-4, 1.7e-4, 3e-4], 8),
    ]
    assert runs_of_rounds(5, 8) == 5 * 2 + 2 * 2 + 3 * 6 == 32


def test_the_grid_grows_for_all_curves_where_one_has_its_best_near_an_edge() -> None:
    # grpo is best at 9e-4, which needs two rates above it; dpo at 3.3e-5, which needs one below it.
    made, _ = carried_out({"grpo": {9e-4: 0.9}, "dpo": {3.3e-5: 0.9}}, GRID)
    assert [part.rates["grpo"] for part in made[1:3]] == [[3.7e-6, 2.7e-3], [8.1e-3]]
    assert all(part.rates["grpo"] == part.rates["dpo"] for part in made[:3])
    assert [part.title for part in made] == ["grid", "extension", "extension", "refinement", "finals"]
    assert made[3].rates == {"grpo": (5.2e-4, 1.6e-3), "dpo": (1.9e-5, 5.7e-5)}
    assert made[4].rates == {"grpo": [5.2e-4, 9e-4, 1.6e-3], "dpo": [1.9e-5, 3.3e-5, 5.7e-5]}


def test_extensions_end_and_rates_stay_below_one() -> None:
    rising = {rate: rate for rate in (*GRID, 2.7e-3, 8.1e-3, 2.4e-2, 7.3e-2)}
    made, outcomes = carried_out({"grpo": rising}, GRID, extensions=3)
    assert [part.rates["grpo"] for part in made[1:4]] == [[2.7e-3], [8.1e-3], [2.4e-2]]
    assert made[4].rates["grpo"] == (1.4e-2, 4.2e-2)  # beyond the edge: as if the grid had grown
    assert max(outcomes["grpo"]) == 4.2e-2
    assert extend([0.05, 0.15, 0.45], [0.05, 0.15, 0.45], [0.45], 3)[-1] == 0.45
    assert refine([0.1, 0.3, 0.9], 0.9)[1] < 1


def test_a_single_rate_is_neither_extended_nor_refined() -> None:
    made, _ = carried_out({"a": {1e-4: 0.5}, "b": {1e-4: 0.6}}, [1e-4])
    assert [(part.title, part.rates["a"], part.seeds) for part in made] == [
        ("grid", [1e-4], 2),
        ("finals", [1e-4], 8),
    ]
    assert runs_of_rounds(1, 8) == 8


@given(
    st.data(),
    st.integers(1, 3),
    st.integers(2, 7),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_choices_are_interior_or_the_grid_could_not_grow_and_every_curve_costs_the_same(
    data: st.DataObject, curves: int, count: int, seeds: int, extensions: int
) -> None:
    start = [float(f"{1e-4 * 3.0**power:.2g}") for power in range(count)]
    outcomes: dict[int, dict[float, dict[int, float]]] = {curve: {} for curve in range(curves)}
    runs = dict.fromkeys(outcomes, 0)
    finals: Mapping[int, list[float]] = {}
    grid: set[float] = set()
    for part in rounds(outcomes, start, seeds, extensions):
        if part.title in ("grid", "extension"):
            grid |= {*part.rates[0]}
        for curve, rates in part.rates.items():
            for rate in rates:
                by_seed = outcomes[curve].setdefault(rate, {})
                for seed in range(len(by_seed), part.seeds):
                    by_seed[seed] = data.draw(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
                    runs[curve] += 1
        finals = part.rates  # type: ignore[assignment]
    added_below = sum(rate < min(start) for rate in grid)
    added_above = sum(rate > max(start) for rate in grid)
    assert max(added_below, added_above) <= extensions
    assert set(runs.values()) == {runs_of_rounds(len(grid), seeds)}
    assert set(map(len, outcomes.values())) == {len(grid) + 2}
    for curve, tried in outcomes.items():
        failures = {rate: data.draw(st.integers(0, len(by_seed))) for rate, by_seed in tried.items()}
        chosen = choose(tried, failures, {rate: len(by_seed) for rate, by_seed in tried.items()})
        rates = sorted(tried)
        if seeds > PRUNING:
            first = rates.index(finals[curve][0])
            assert list(finals[curve]) == rates[first : first + 3] and chosen in finals[curve]
            # An edge can only be chosen on a side that could grow no more.
            assert chosen != rates[0] or added_below == extensions
            assert chosen != rates[-1] or added_above == extensions


# The choice


def test_the_choice_weighs_the_mean_against_the_deviation_and_leaves_out_rates_that_fail() -> None:
    steady, wild = dict(enumerate([0.70] * 8)), dict(enumerate([0.60, 0.90] * 4))  # mean .75, SD .16
    outcomes = {1e-4: steady, 3e-4: wild, 9e-4: {0: 0.99, 1: 0.99}}  # the last one was pruned
    runs = {rate: len(by_seed) for rate, by_seed in outcomes.items()}
    assert choose(outcomes, dict.fromkeys(outcomes, 0), runs) == 1e-4
    assert choose(outcomes, {1e-4: 2, 3e-4: 1, 9e-4: 0}, runs) == 3e-4  # one in eight may fail
    assert choose(outcomes, {1e-4: 3, 3e-4: 2, 9e-4: 0}, runs) == 3e-4  # none qualifies: the fewest failures
    assert choose({1e-4: steady, 3e-4: steady}, {1e-4: 1, 3e-4: 0}, runs) == 1e-4  # equal: the first
    assert qualifies(1, 8) and qualifies(2, 16) and not qualifies(1, 7) and not qualifies(2, 15)


def test_a_rate_with_a_diverged_seed_of_an_outcome_without_worst_value_is_chosen_last() -> None:
    outcomes = {"a": {0: 9.0, 1: -math.inf}, "b": {0: -5.0, 1: -7.0}}
    assert choose(outcomes, {"a": 0, "b": 0}, {"a": 2, "b": 2}) == "b"


def test_finalists_are_neighbors_also_at_an_end() -> None:
    by_rate: Outcomes = {rate: {0: outcome} for rate, outcome in zip(GRID, (5, 4, 3, 2, 9), strict=True)}
    assert finalists(by_rate) == GRID[2:]
    assert finalists({**by_rate, GRID[4]: {0: 0.0}}) == GRID[:3]
    assert finalists({1e-4: {0: 1.0}, 3e-4: {0: 1.0}}) == [1e-4, 3e-4]


def test_equal_means_go_to_the_first_value() -> None:
    # .1 + .2 is not .3 in floating point, and the two values have one mean.
    outcomes = {"low": {0: 0.1, 1: 0.2}, "high": {0: 0.3, 1: 0.0}, "best": {0: 0.4, 1: 0.4}}
    assert rank(outcomes) == ["best", "low", "high"]
    assert rank(dict(reversed(outcomes.items()))) == ["best", "high", "low"]


def test_a_value_with_a_diverged_seed_ranks_behind_all_finite_ones() -> None:
    outcomes = {"a": {0: 0.9, 1: -math.inf}, "b": {0: -5.0, 1: -7.0}, "c": {0: -math.inf, 1: -math.inf}}
    assert rank(outcomes) == ["b", "a", "c"]
    clarity = clarity_of(outcomes, "b")
    assert clarity.second == "a" and not clarity.clear  # only one seed of the second diverged
    alone = clarity_of({"b": outcomes["b"], "c": outcomes["c"]}, "b")
    assert math.isinf(alone.difference)


def test_the_choice_is_compared_with_values_with_all_seeds() -> None:
    outcomes = {"lucky": {0: 0.9}, "steady": {0: 0.7, 1: 0.7, 2: 0.7}, "other": {0: 0.6, 1: 0.5, 2: 0.7}}
    clarity = clarity_of(outcomes, "steady")
    assert (clarity.second, clarity.seeds) == ("other", 3)
    assert clarity.difference == pytest.approx(0.1)
    low, high = stats.t.interval(0.95, 2, loc=0.1, scale=stats.sem([0.1, 0.2, 0.0]))
    assert (clarity.low, clarity.high) == pytest.approx((low, high))
    assert not clarity.clear
    assert clarity_of(outcomes, "other").difference == pytest.approx(-0.1)


def test_clear_takes_three_seeds_and_an_interval_above_zero() -> None:
    best, second = {0: 0.80, 1: 0.81, 2: 0.79}, {0: 0.60, 1: 0.62, 2: 0.58}
    assert clarity_of({"a": best, "b": second}, "a").clear
    two = {key: {seed: by_seed[seed] for seed in (0, 1)} for key, by_seed in (("a", best), ("b", second))}
    assert not clarity_of(two, "a").clear
    assert clarity_of({"a": best}, "a").clear  # nothing else was tried
