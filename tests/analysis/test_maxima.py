"""Max-T over joint sign flips: p values are those of a count by hand, and errors stay within the level.

Locked here: several pairs are a count over all patterns and all possible sets
of pairs, ties and missing seeds included; the level holds exactly over all outcomes of a small symmetric
distribution, and within simulation error for skewed, correlated, unequal and partly different arms; on kept
runs of one arm; the tables of docs/comparisons.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain, combinations, cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import levels
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.maxima import _table, families_of, joint_ps, max_t_ps
from grpobench.analysis.statistics.permutation import sign_flip_p

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "comparisons.md").read_text(encoding="utf-8")
Differences = Mapping[tuple[str, str], Mapping[int, float]]


def pairs_from(scores: np.ndarray, names: str = "ABCDEFGH") -> dict[tuple[str, str], dict[int, float]]:
    """All pairs of arms; `scores` is (seeds, arms)."""
    return {
        (names[a], names[b]): dict(enumerate(map(float, scores[:, a] - scores[:, b])))
        for a, b in combinations(range(scores.shape[1]), 2)
    }


def statistic(differences: Mapping[int, float], signs: Mapping[int, int]) -> float:
    size = sum(d * d for d in differences.values()) ** 0.5
    return abs(sum(signs[seed] * d for seed, d in differences.items())) / size if size else 0.0


def by_hand(differences: Differences, every_set: bool = False) -> list[float]:
    """The largest share of patterns over all sets of pairs that can be equal (or over all sets)."""
    pairs = list(differences)
    seeds = sorted({seed for by_seed in differences.values() for seed in by_seed})
    patterns = [dict(zip(seeds, signs, strict=True)) for signs in product((1, -1), repeat=len(seeds))]
    values = np.array([[statistic(differences[pair], signs) for pair in pairs] for signs in patterns])
    adjusted = dict.fromkeys(pairs, 0.0)
    for chosen in chain.from_iterable(combinations(pairs, size) for size in range(1, len(pairs) + 1)):
        if every_set or levels.is_possible(pairs, chosen):
            largest = values[:, [pairs.index(pair) for pair in chosen]].max(axis=1)
            share = float(np.mean(largest >= largest[0] - 1e-9))
            adjusted |= {pair: max(adjusted[pair], share) for pair in chosen}
    return list(adjusted.values())


@pytest.mark.parametrize(("arms", "seeds"), [(3, 7), (4, 6)])
@pytest.mark.parametrize("seed", range(4))
def test_several_pairs_are_a_count_over_patterns_and_possible_sets(arms: int, seeds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_pairs = pairs_from(rng.integers(0, 6, (seeds, arms)) + 2.0 * np.arange(arms))  # with ties
    assert max_t_ps(given_pairs)[1] == pytest.approx(by_hand(given_pairs), abs=1e-12)
    lacking = {
        pair: {s: d for s, d in by_seed.items() if rng.random() < 0.7 or s == 0}
        for pair, by_seed in given_pairs.items()
    }
    p, adjusted = max_t_ps(lacking)
    assert adjusted == pytest.approx(by_hand(lacking), abs=1e-12)
    assert p == [sign_flip_p([*by_seed.values()]) for by_seed in lacking.values()]


def test_families_are_the_blocks_of_partitions() -> None:
    three = [("A", "B"), ("A", "C"), ("B", "C")]
    assert families_of(three) == [(0,), (0, 1, 2), (1,), (2,)]  # two equal pairs make the third equal
    counts = [len(families_of(list(combinations("ABCDEF"[:arms], 2)))) for arms in (2, 3, 4, 5, 6)]
    assert counts == [1, 4, 14, 51, 202]  # Bell numbers without the partition into single arms
    against_base = [("A", "base"), ("B", "base"), ("C", "base")]
    assert len(families_of(against_base)) == 7  # any of them may be equal


@pytest.mark.parametrize("seed", range(3))
def test_step_down_is_a_count_over_all_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, (6, 5)) + 1.5 * np.arange(5)
    given_pairs = dict(list(pairs_from(scores).items())[:6])
    adjusted = joint_ps([*given_pairs.values()])[1]
    assert adjusted == pytest.approx(by_hand(given_pairs, every_set=True), abs=1e-12)


def test_many_arms_step_down_and_are_no_smaller_than_with_partitions() -> None:
    scores = np.random.default_rng(0).normal(size=(8, 7)) + np.arange(7)
    given_pairs = pairs_from(scores)
    step_down = joint_ps([*given_pairs.values()])[1]
    assert max_t_ps(given_pairs)[1] == pytest.approx(step_down, abs=1e-12)
    six = pairs_from(scores[:, :6])
    assert np.all(np.array(max_t_ps(six)[1]) <= np.array(joint_ps([*six.values()])[1]) + 1e-12)


def test_the_smallest_p_is_the_same_for_any_number_of_pairs() -> None:
    for arms in (2, 4, 6, 8):
        ladder = np.arange(arms) + np.zeros((6, 1))  # every difference is constant: t is infinite
        assert set(max_t_ps(pairs_from(ladder))[1]) == {2 / 64}


def test_pairs_without_differences_or_seeds_have_one() -> None:
    nothing = {
        ("A", "B"): dict.fromkeys(range(6), 0.0),
        ("A", "C"): {},
        ("B", "C"): dict.fromkeys(range(6), 1.0),
    }
    p, adjusted = max_t_ps(nothing)
    assert p == adjusted == [1.0, 1.0, 2 / 64]
    assert max_t_ps({}) == ([], []) and max_t_ps({("A", "B"): {}, ("A", "C"): {}})[1] == [1.0, 1.0]


def test_a_pair_with_two_seeds_does_not_hide_the_others() -> None:
    # its statistic is at most √2, although its t is infinite in half of the patterns
    pairs = {("A", "B"): {s: 1.0 + 0.1 * s for s in range(8)}, ("A", "C"): {0: 1.0, 1: 1.0}}
    assert max_t_ps(pairs)[1] == [2 / 256, 0.5]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-5, 5), min_size=4, max_size=4), min_size=1, max_size=8), st.randoms())
def test_p_does_not_know_names_signs_or_scales_and_only_grows(rows: list[list[int]], rng: Any) -> None:
    scores = np.array(rows, dtype=float)
    p, adjusted = max_t_ps(pairs_from(scores))
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    assert max_t_ps(pairs_from(-4 * scores))[1] == adjusted
    order = list(range(4))
    rng.shuffle(order)
    names = "ABCD"
    turned = max_t_ps(pairs_from(scores[:, order], "".join(names[i] for i in order)))[1]
    keys = [frozenset(pair) for pair in pairs_from(scores[:, order], "".join(names[i] for i in order))]
    p_by_pair = dict(zip(map(frozenset, pairs_from(scores)), adjusted, strict=True))
    assert turned == pytest.approx([p_by_pair[key] for key in keys], abs=1e-12)


def test_drawn_patterns_agree_with_all_of_them() -> None:
    scores = np.random.default_rng(1).normal(size=(17, 3)) + np.array([0, 0.3, 0.9])
    table = _table([*pairs_from(scores).values()])
    patterns = 1.0 - 2 * ((np.arange(2**17)[:, None] >> np.arange(17)) & 1)
    values = np.abs(patterns @ table)
    exact = [0.0, 0.0, 0.0]
    for family in ([0], [1], [2], [0, 1, 2]):
        largest = values[:, family].max(axis=1)
        share = float(np.mean(largest >= largest[0] - 1e-9))
        exact = [max(e, share) if i in family else e for i, e in enumerate(exact)]
    p, adjusted = max_t_ps(pairs_from(scores))
    for estimate, true in zip(adjusted, exact, strict=True):
        assert abs(estimate - true) <= 4 * np.sqrt(true * (1 - true) / 100_000) + 1e-5
    assert max_t_ps(pairs_from(scores)) == (p, adjusted)  # the draws have a seed of their own


def outcomes(errors: list[tuple[float, ...]], seeds: int) -> Iterator[np.ndarray]:
    """Every outcome of so many seeds with equal chances of these errors and their negatives."""
    signed = [np.array(error) for error in errors] + [-np.array(error) for error in errors]
    for chosen in product(range(len(signed)), repeat=seeds):
        yield np.array([signed[i] for i in chosen])


@pytest.mark.parametrize(
    ("means", "null"),
    [((0.0, 0.0, 0.0), {0, 1, 2}), ((0.0, 0.0, 1.7), {0}), ((0.4, 0.0, 0.4), {1})],
)
def test_the_level_holds_over_every_outcome_of_a_symmetric_distribution(
    means: tuple[float, ...], null: set[int]
) -> None:
    # neither arm has the other's spread, two are correlated: 4^5 outcomes with equal chances, at every level
    smallest = []
    for errors in outcomes([(1.0, 0.8, -0.3), (0.2, -0.5, 1.1)], 5):
        adjusted = max_t_ps(pairs_from(errors + np.array(means)))[1]
        smallest.append(min(adjusted[pair_index] for pair_index in null))
    smallest_p = np.array(smallest)
    for k in range(1, 17):
        assert np.mean(smallest_p <= 2 * k / 32 + 1e-12) <= 2 * k / 32 + 1e-12
    assert np.mean(smallest_p <= 4 / 32) > 0  # and something is rejected


@pytest.mark.parametrize(("errors", "null"), zip(levels.ERRORS, cycle(levels.NULLS), strict=False))
def test_errors_of_a_task_stay_within_five_percent(errors: str, null: str) -> None:
    many = 300
    error_rate, _ = levels.errors(levels.ERRORS[errors], levels.NULLS[null], 8, many)
    limit = 0.05 + 3 * np.sqrt(0.05 * 0.95 / many)  # three binomial errors: .088
    if errors == "exponential, SD from 1 to 3":  # the differences themselves are skewed: no such promise
        limit = 0.10 + 3 * np.sqrt(0.1 * 0.9 / many)
    assert error_rate <= limit


def test_missing_seeds_keep_the_level() -> None:
    rng, many, wrong = np.random.default_rng(3), 200, 0
    for _ in range(many):
        scores = rng.normal(size=(10, 4)) * np.array([1, 2, 1, 3])
        there = rng.random((10, 4)) < 0.8
        by_arm = {
            arm: {s: float(scores[s, i]) for s in range(10) if there[s, i]} for i, arm in enumerate("ABCD")
        }
        wrong += any(pair.p_adjusted <= 0.05 for pair in compare("t", by_arm))
    assert wrong / many <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / many)


@pytest.mark.parametrize(("arms", "share"), [(3, 5.1), (4, 4.7)])
def test_kept_runs_of_one_arm_are_called_different_in_few_deals(arms: int, share: float) -> None:
    content = json.loads((ROOT / "docs" / "results" / "findings" / "a-a-nano.json").read_text())
    same = [run for run in content["runs"] if run["arm"] == "grpo"]
    pool = np.array([next(iter(run["values"].values())) for run in same])
    assert len(pool) == 32
    rng, many = np.random.default_rng(0), 4000
    wrong = np.mean(
        [
            min(max_t_ps(pairs_from(rng.choice(pool, (8, arms), replace=False)))[1]) <= 0.05
            for _ in range(many)
        ]
    )
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / many)
    assert f"{100 * wrong:.1f}" == f"{share}" and f"{share} %" in PAGE


@pytest.mark.slow
def test_tables_of_the_page_are_those_of_the_simulation() -> None:
    for line in (*levels.level_lines(), *levels.power_lines()):
        assert line in PAGE


def test_tables_of_the_page_agree_with_fewer_repetitions() -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| 4 | 64 / 0")]
    shown = [int(value) / 100 for value in re.findall(r"\d+", row)[1:]]
    shares = [*levels.power(4, 6, 2.0, 300)[:2], *levels.power(4, 8, 1.5, 300)[:2]]
    assert shares == pytest.approx(
        shown[:4], abs=3 * np.sqrt(0.25 / 300) + 0.005
    )  # shares of up to three pairs


def test_the_example_of_the_page_is_what_its_code_gives() -> None:
    code = re.search(r"```python\n(from itertools.*?)```", PAGE, re.S)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    for (a, b), p, by_max, by_holm in zip(
        names["differences"], names["p"], names["adjusted"], names["after_holm"], strict=True
    ):
        points = ", ".join(f"{100 * d:.0f}" for d in names["differences"][a, b].values())
        shown = " | ".join(f"{value:.4f}".removeprefix("0") for value in (p, by_max, by_holm))
        assert f"| {a} − {b} | {points.replace('-0', '0').replace('-', '−')} | {shown} |" in PAGE
    assert names["adjusted"] == pytest.approx(by_hand(names["differences"]), abs=1e-12)


@pytest.mark.parametrize(("seeds", "pairs"), [(6, 3), (9, 2)])
def test_a_detectable_effect_is_found_in_four_of_five_repetitions(seeds: int, pairs: int) -> None:
    rng, many, hits = np.random.default_rng([seeds, pairs]), 1000, 0
    effect = power.detectable(seeds, pairs, correction="max-t")
    for _ in range(many):
        drawn = rng.standard_normal((seeds, pairs))
        drawn[:, 0] += effect
        adjusted = joint_ps([dict(enumerate(row)) for row in drawn.T])[1]
        hits += bool(adjusted[0] <= 0.05)
    # three errors of .8 over 1,000, .038, and .004 of the effect's own; later steps find a little more
    assert hits / many == pytest.approx(0.8, abs=0.045)
    assert power.power(seeds, pairs, effect, correction="max-t") == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize(("seeds", "pairs"), [(8, 32), (9, 16), (10, 8), (11, 4), (12, 2)])
def test_where_the_t_test_stands_in_it_is_nearly_right(seeds: int, pairs: int) -> None:
    effect = power._by_t(seeds, power._level(seeds, pairs, 0.05, "max-t"))
    exact = power._thresholds_of_maxima(seeds, pairs, power.allowed(seeds, 1))
    assert 0.77 <= np.mean(exact <= effect) <= 0.81


def test_one_pair_has_the_same_power_under_both_corrections() -> None:
    assert power.detectable(8, 1, correction="max-t") == power.detectable(8, 1)
    # two pairs of which one is alone in its effect: above one pair, below Holm of two
    assert power.detectable(8, 1) < power.detectable(8, 2, correction="max-t") < power.detectable(8, 2)


def test_seeds_for_a_difference_grow_with_pairs_and_need_six() -> None:
    assert power.seeds_for(50.0, 10, correction="max-t") == 6
    few, many = (power.seeds_for(1.2, pairs, correction="max-t") for pairs in (1, 6))
    assert few < many <= power.seeds_for(1.2, 6)
    assert np.isnan(power.detectable(5, 6, correction="max-t")) and power.power(5, 6, 9.0, 0.05, "max-t") == 0
