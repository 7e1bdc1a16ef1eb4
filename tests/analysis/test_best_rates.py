"""Arms at their best learning rates: p values are those of a count by hand.

Locked here: with one rate each the tests are those of arms at one rate; p values against loops over sign
patterns, rates and combinations of best rates, with ties, missing seeds, unequal grids and a control; the
interval; what has no seeds, no spread or too many arms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, combinations, product

import numpy as np
import pytest
from helpers.levels import is_possible
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.analysis.statistics import best_rates
from grpobench.analysis.statistics.best_rates import (
    BestRatePair,
    Pair,
    compare_best_rates,
    interval_at_best,
    p_of_better,
)
from grpobench.analysis.statistics.maxima import max_t_ps
from grpobench.analysis.statistics.permutation import equivalence_ps, holm
from grpobench.analysis.statistics.rates import RateCurve, cross_fit

Scores = Sequence[Mapping[int, float]]
"""By rate: seed → score."""


def curve_of(by_rate: Scores) -> RateCurve:
    """Each rate is twice the one before."""
    return RateCurve.of({2.0**index: scores for index, scores in enumerate(by_rate)})


def rows(table: Sequence[Sequence[float]], first_seed: int = 0) -> Scores:
    """Rows of scores, one for each rate, as shares."""
    return [{first_seed + seed: score / 100 for seed, score in enumerate(row)} for row in table]


def compared(arms: Mapping[str, Scores], pairs: Sequence[Pair] = ()) -> list[BestRatePair]:
    pairs = pairs or [*combinations(arms, 2)]
    return compare_best_rates({arm: curve_of(scores) for arm, scores in arms.items()}, pairs, 0.02)


@st.composite
def arms_over_rates(draw: st.DrawFn, names: str) -> dict[str, Scores]:
    """Arms with one to three rates, four to six seeds and many ties."""
    seeds = draw(st.integers(4, 6))
    row = st.lists(st.integers(40, 46), min_size=seeds, max_size=seeds)
    return {name: rows(draw(st.lists(row, min_size=1, max_size=3))) for name in names}


# Counts by hand


def z_of(
    first: Mapping[int, float], second: Mapping[int, float], signs: Sequence[int], by: float = 0
) -> float:
    """Σ d/√Σ d² of the seeds that both have; `signs` has one sign for each seed of the first."""
    differences = [
        sign * (first[seed] - second[seed] - by)
        for sign, seed in zip(signs, sorted(first), strict=True)
        if seed in second
    ]
    size = math.sqrt(sum(d * d for d in differences))
    return sum(differences) / size if size > 1e-12 else 0.0


def better_by_hand(first: Scores, second: Scores, by: float) -> float:
    """For each rate of the second the share of sign patterns in which some rate of the first reaches the
    largest observed z; of these shares the largest."""
    patterns = [*product((1, -1), repeat=len(first[0]))]
    shares = []
    for rival in second:
        largest = [max(z_of(scores, rival, signs, by) for scores in first) for signs in patterns]
        shares.append(sum(value >= largest[0] - 1e-9 for value in largest) / len(patterns))
    return max(shares)


def adjusted_by_hand(arms: Mapping[str, Scores], pairs: Sequence[Pair]) -> list[float]:
    """The largest p over all sets of pairs that can be equal and all combinations of best rates."""
    seeds = sorted({seed for scores in arms.values() for seed in scores[0]})
    patterns = [dict(zip(seeds, signs, strict=True)) for signs in product((1, -1), repeat=len(seeds))]

    def z(first: Mapping[int, float], second: Mapping[int, float], signs: Mapping[int, int]) -> float:
        return z_of(first, second, [signs[seed] for seed in sorted(first)])

    def largest(equal: Sequence[Pair], best: Mapping[str, int], signs: Mapping[int, int]) -> float:
        return max(
            z(scores, arms[other][best[other]], signs)
            for a, b in equal
            for arm, other in ((a, b), (b, a))
            for scores in arms[arm]
        )

    adjusted = dict.fromkeys(pairs, 0.0)
    for equal in chain.from_iterable(combinations(pairs, size) for size in range(1, len(pairs) + 1)):
        if not is_possible(pairs, equal):
            continue
        members = sorted({arm for pair in equal for arm in pair})
        for indices in product(*(range(len(arms[arm])) for arm in members)):
            best = dict(zip(members, indices, strict=True))
            values = [largest(equal, best, signs) for signs in patterns]
            share = sum(value >= values[0] - 1e-9 for value in values) / len(values)
            adjusted |= {pair: max(adjusted[pair], share) for pair in equal}
    return list(adjusted.values())


@settings(max_examples=25, deadline=None)
@given(arms_over_rates("AB"), st.integers(-3, 3))
def test_p_of_better_is_a_count_over_patterns_and_rates(arms: dict[str, Scores], points: int) -> None:
    first, second = arms["A"], arms["B"]
    p = p_of_better(curve_of(first), curve_of(second), points / 100)
    assert p == pytest.approx(better_by_hand(first, second, points / 100), abs=1e-12)


@settings(max_examples=12, deadline=None)
@given(arms_over_rates("AB"))
def test_p_of_a_pair_is_a_count_over_combinations_of_best_rates(arms: dict[str, Scores]) -> None:
    (pair,) = compared(arms)
    assert pair.p == pair.p_adjusted == pytest.approx(*adjusted_by_hand(arms, [("A", "B")]), abs=1e-12)
    means = [curve_of(arms[arm]).scores.mean(axis=1).max() for arm in "AB"]
    if abs(means[0] - means[1]) > 1e-9:
        assert pair.first_is_better == (means[0] > means[1])


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("lacking", [False, True])
def test_several_pairs_are_a_count_over_sets_and_combinations(control: bool, lacking: bool) -> None:
    rng = np.random.default_rng([control, lacking])
    arms = {
        arm: rows(rng.integers(40, 46, (rates, 6)) + higher, int(lacking) * index)
        for index, (arm, rates, higher) in enumerate((("A", 2, 0), ("B", 3, 1), ("C", 1, 4)))
    }
    pairs = [("B", "A"), ("B", "C")] if control else [*combinations("ABC", 2)]
    adjusted = [pair.p_adjusted for pair in compared(arms, pairs)]
    assert adjusted == pytest.approx(adjusted_by_hand(arms, pairs), abs=1e-12)


@pytest.mark.parametrize("lacking", [False, True])
def test_one_rate_of_each_arm_gives_the_tests_at_one_rate(lacking: bool) -> None:
    rng = np.random.default_rng(int(lacking))
    arms = {
        arm: [
            {s: float(rng.normal(0.5 + shift, 0.01)) for s in range(8) if not lacking or rng.random() < 0.8}
        ]
        for arm, shift in (("A", 0.02), ("B", 0.0), ("C", 0.0), ("D", 0.005))
    }
    differences = {
        (a, b): {s: arms[a][0][s] - arms[b][0][s] for s in arms[a][0] if s in arms[b][0]}
        for a, b in combinations(arms, 2)
    }
    p, adjusted = max_t_ps(differences)
    close = equivalence_ps([[*pair.values()] for pair in differences.values()], 0.02)
    pairs = compared(arms)
    assert [pair.p for pair in pairs] == pytest.approx(p, abs=1e-12)
    assert [pair.p_adjusted for pair in pairs] == pytest.approx(adjusted, abs=1e-12)
    assert [pair.p_equivalence for pair in pairs] == pytest.approx(close, abs=1e-12)
    assert [pair.p_equivalence_holm for pair in pairs] == pytest.approx(holm(close), abs=1e-12)
    for pair, by_seed in zip(pairs, differences.values(), strict=True):
        assert pair.differences == pytest.approx(by_seed)
        assert pair.effect == pytest.approx(np.mean([*by_seed.values()]))


# More than six arms, or too many combinations: Holm


def test_more_than_six_arms_are_corrected_by_holm() -> None:
    rng = np.random.default_rng(0)
    arms = {arm: rows(rng.normal(50 + 2 * (arm == "A"), 1, (2, 8))) for arm in "ABCDEFG"}
    pairs = compared(arms, [("A", arm) for arm in "BCDEFG"])
    assert [pair.p_adjusted for pair in pairs] == pytest.approx(holm([pair.p for pair in pairs]))
    pairs = compared(arms, [("A", arm) for arm in "BCDEF"])  # six arms
    assert [pair.p_adjusted for pair in pairs] != pytest.approx(holm([pair.p for pair in pairs]))


def test_too_many_combinations_are_corrected_by_holm(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    arms = {arm: rows(rng.normal(50 + 2 * (arm == "A"), 1, (2, 8))) for arm in "ABC"}
    closed = [pair.p_adjusted for pair in compared(arms)]
    monkeypatch.setattr(best_rates, "MOST_COMBINATIONS", 10)
    pairs = compared(arms)
    assert [pair.p_adjusted for pair in pairs] == pytest.approx(holm([pair.p for pair in pairs]))
    assert closed != pytest.approx(holm([pair.p for pair in pairs]))


# Effects and intervals


@settings(max_examples=25, deadline=None)
@given(arms_over_rates("AB"), st.integers(-30, 30))
def test_a_shift_of_an_arm_shifts_effect_and_interval(arms: dict[str, Scores], points: int) -> None:
    shifted = [{seed: score + points / 100 for seed, score in row.items()} for row in arms["A"]]
    (before,), (after,) = compared(arms), compared({**arms, "A": shifted})
    assert after.effect == pytest.approx(before.effect + points / 100, abs=1e-9)
    for bound, moved in ((before.low, after.low), (before.high, after.high)):
        assert moved == bound or moved == pytest.approx(bound + points / 100, abs=1e-5)  # −inf, inf


@settings(max_examples=20, deadline=None)
@given(arms_over_rates("AB"))
def test_names_change_nothing_but_the_sign(arms: dict[str, Scores]) -> None:
    (pair,), (turned,) = compared(arms), compared(arms, [("B", "A")])
    assert (turned.p, turned.p_equivalence) == (pair.p, pair.p_equivalence)
    assert turned.effect == pytest.approx(-pair.effect, abs=1e-12)
    assert (turned.low, turned.high) == pytest.approx((-pair.high, -pair.low), abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(arms_over_rates("AB"), st.integers(-4, 4))
def test_the_interval_excludes_zero_where_the_test_rejects(arms: dict[str, Scores], points: int) -> None:
    shifted = [{seed: score + points / 100 for seed, score in row.items()} for row in arms["A"]]
    (pair,) = compared({**arms, "A": shifted})
    assert (pair.low >= 0 or pair.high <= 0) == (pair.p <= 0.05)
    best = [curve_of(arm).scores.mean(axis=1).max() for arm in (shifted, arms["B"])]
    assert pair.low - 1e-6 <= best[0] - best[1] <= pair.high + 1e-6
    assert pair.low - 1e-6 <= pair.effect <= pair.high + 1e-6
    if pair.p <= 0.05:
        assert (pair.low >= 0) == pair.first_is_better


def test_the_effect_is_in_the_interval_where_halves_of_the_seeds_choose_badly() -> None:
    """Runs of the nano policy at .6, 1 and 1.7 times 2e-3: beside PPO's best rate two of ten seeds fail."""
    ppo = [
        [74, 75, 75, 73, 72, 74, 72, 74, 75, 74],
        [80, 50, 83, 81, 79, 80, 79, 2, 83, 81],
        [45, 83, 84, 76, 45, 13, 84, 86, 63, 75],
    ]
    grpo = [
        [73, 75, 76, 74, 74, 75, 74, 75, 75, 74],
        [81, 82, 83, 83, 83, 82, 80, 81, 84, 82],
        [75, 80, 75, 28, 73, 86, 81, 77, 85, 85],
    ]
    (pair,) = compared({"A": rows(grpo), "B": rows(ppo)})
    halves = [cross_fit(curve_of(rows(arm))) for arm in (grpo, ppo)]
    assert np.mean([halves[0][seed] - halves[1][seed] for seed in pair.seeds]) > pair.high
    assert np.mean([*pair.differences.values()]) == pytest.approx(pair.effect)
    assert pair.low < pair.effect < pair.high and pair.effect == pytest.approx(0.821 - 0.738)


def test_the_interval_of_one_rate_ends_where_the_sign_flip_test_rejects() -> None:
    # six seeds: 2/64 < .05 < 4/64, so that all of the signs must agree
    first, second = curve_of(rows([[3, 5, 4, 7, 6, 5]])), curve_of(rows([[0, 0, 0, 0, 0, 0]]))
    assert interval_at_best(first, second) == pytest.approx((0.03, 0.07), abs=1e-5)
    five = (RateCurve((1.0,), tuple(range(5)), curve.scores[:, :5]) for curve in (first, second))
    assert interval_at_best(*five) == (-math.inf, math.inf)  # 2/32 > .05


def test_a_rate_at_which_runs_collapse_does_not_widen_the_interval() -> None:
    """One-sided tests would need 1/64, but the collapsed rate reaches the observed z if all signs turn."""
    (pair,) = compared({"A": rows([[53, 55, 54, 57, 56, 55], [1] * 6]), "B": rows([[50] * 6, [1] * 6])})
    assert pair.p == 2 / 64 and (pair.low, pair.high) == pytest.approx((0.03, 0.07), abs=1e-5)


@pytest.mark.parametrize("rates", [1, 3])
def test_p_grows_with_the_difference_that_is_tested(rates: int) -> None:
    """Exactly so with one rate of the first arm; with several, single patterns may make it fall."""
    rng = np.random.default_rng(rates)
    for _ in range(8):
        first, second = (curve_of(rows(rng.normal(50, 2, (count, 7)))) for count in (rates, 3))
        p = np.array([p_of_better(first, second, by) for by in np.linspace(-0.1, 0.1, 41)])
        fall = (np.maximum.accumulate(p) - p).max()
        assert fall <= (0 if rates == 1 else 4 / 2**7)
        assert p[0] <= 1 / 2**7 * rates and p[-1] > 0.9


# Without seeds, without spread


def test_curves_without_shared_seeds_have_no_evidence() -> None:
    (pair,) = compared({"A": rows([[50, 51], [52, 53]]), "B": rows([[50, 51]], first_seed=9)})
    assert (pair.p, pair.p_adjusted, pair.p_equivalence) == (1, 1, 1) and pair.seeds == ()
    assert pair.differences == {} and math.isnan(pair.effect)
    assert (pair.low, pair.high) == (-math.inf, math.inf)
    (lone,) = compared({"A": rows([[50], [52]]), "B": rows([[40], [41]])})
    assert lone.p == 1 and lone.differences == {}  # one seed cannot choose and judge


def test_pairs_with_and_without_seeds_stand_next_to_each_other() -> None:
    arms = {"A": rows([[60] * 6, [59] * 6]), "B": rows([[50] * 6]), "C": rows([[50] * 6], first_seed=50)}
    ab, ac, bc = compared(arms)
    assert (ab.p, ab.p_adjusted) == (2 / 64, 2 / 64)
    assert ac.p_adjusted == bc.p_adjusted == 1


def test_constant_scores() -> None:
    same = rows([[50] * 6, [40] * 6])
    (equal,) = compared({"A": same, "B": same})
    assert (equal.p, equal.effect) == (1, 0)
    assert equal.p_equivalence == 2 / 64  # the worse rate reaches the z of .02 if all signs turn
    higher = rows([[53] * 6, [40] * 6])
    (apart,) = compared({"A": higher, "B": same})
    assert apart.p == 2 / 64 and apart.first_is_better and apart.effect == pytest.approx(0.03)
    assert (apart.low, apart.high) == pytest.approx((0.03, 0.03), abs=1e-5)


def test_seeds_of_other_pairs_do_not_turn_a_count_into_a_draw() -> None:
    """Eight seeds of A and B, eight others of C and D: sixteen together, but no pair has more than eight."""
    rng = np.random.default_rng(5)
    arms = {arm: rows(rng.normal(50, 1, (2, 8)), 100 * (arm in "CD")) for arm in "ABCD"}
    pairs = [("A", "B"), ("C", "D")]
    alone = [compared(arms, [pair])[0].p for pair in pairs]
    assert [pair.p for pair in compared(arms, pairs)] == alone


def test_drawn_patterns_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    arms = {arm: rows(rng.normal(50 + 0.8 * (arm == "A"), 1, (2, 13))) for arm in "AB"}
    (drawn,) = compared(arms)
    monkeypatch.setattr(best_rates, "EXACT_SEEDS", 13)
    (counted,) = compared(arms)
    assert drawn.p != counted.p
    assert drawn.p == pytest.approx(counted.p, abs=4 * math.sqrt(counted.p / best_rates.DRAWS))


def test_the_effect_is_the_difference_of_cross_fitted_scores() -> None:
    rng = np.random.default_rng(3)
    first, second = rows(rng.normal(50, 1, (3, 6))), rows(rng.normal(50, 1, (2, 6)), first_seed=2)
    (pair,) = compared({"A": first, "B": second})
    assert pair.seeds == (2, 3, 4, 5)
    halved = [[{seed: row[seed] for seed in pair.seeds} for row in arm] for arm in (first, second)]
    at_best, other = (cross_fit(curve_of(arm)) for arm in halved)
    assert pair.differences == pytest.approx({seed: at_best[seed] - other[seed] for seed in pair.seeds})


def test_a_margin_of_nothing_is_refused() -> None:
    curve = curve_of(rows([[50] * 6]))
    with pytest.raises(ValueError, match="margin above 0, not 0"):
        compare_best_rates({"A": curve, "B": curve}, [("A", "B")], 0.0)
