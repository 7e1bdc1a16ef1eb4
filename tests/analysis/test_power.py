"""Power of the paired test: what is called detectable is found by the test itself in 80 % of simulations.

Locked here: simulations use the test and Holm's correction as `compare` does, on numbers of their own; no
effect is detectable below the seeds that Holm needs; more pairs or fewer seeds never make an effect easier
to find."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy import stats

from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.permutation import equivalence_p, holm, seeds_needed, sign_flip_p

REPETITIONS = 1000
TOLERANCE = 0.042
"""Three errors of a share of .8 over 1,000 repetitions, √(.8 · .2/1,000) = .0126, and .004 of the stated
effect's own."""


def rejection_rate(seeds: int, pairs: int, effect: float, repetitions: int = REPETITIONS) -> float:
    """Share of experiments in which the first of some pairs, the others without effect, is rejected under
    Holm."""
    rng = np.random.default_rng([seeds, pairs])
    hits = 0
    for _ in range(repetitions):
        differences = rng.standard_normal((pairs, seeds))
        differences[0] += effect
        adjusted = holm([sign_flip_p(row) for row in differences])
        hits += bool(adjusted[0] <= 0.05 and differences[0].mean() > 0)
    return hits / repetitions


@pytest.mark.parametrize(("seeds", "pairs"), [(6, 1), (8, 3), (10, 6)])
def test_a_detectable_effect_is_found_in_four_of_five_repetitions(seeds: int, pairs: int) -> None:
    assert rejection_rate(seeds, pairs, power.detectable(seeds, pairs)) == pytest.approx(0.8, abs=TOLERANCE)


@pytest.mark.parametrize("level", [0.05, 0.001, 0.0])
def test_power_of_the_t_test_is_that_of_the_noncentral_t(level: float) -> None:
    seeds = np.array([3, 6, 8, 12, 20, 60, 300, 1000])
    for effect in (0.0, 0.1, 0.5, 2.0, 6.0, 50.0):  # the last two beyond what doubles can tell from 1
        expected = stats.nct.sf(-stats.t.ppf(level / 2, seeds - 1), seeds - 1, effect * np.sqrt(seeds))
        assert power._power_of_t(seeds, effect, level) == pytest.approx(expected, abs=1e-12)


def test_seeds_for_equivalence_show_it_in_four_of_five_repetitions() -> None:
    needed = int(power.seeds_for_equivalence(1.0, 1))
    shown = {}
    for seeds in (needed - 2, needed):
        drawn = np.random.default_rng(seeds).standard_normal((REPETITIONS, seeds))
        shown[seeds] = np.mean([equivalence_p(row, 1.0) <= 0.05 for row in drawn])
    assert shown[needed] >= 0.8 - TOLERANCE and shown[needed - 2] < 0.8
    # twice the margin in SD needs fewer seeds, more pairs need more, and no margin is never shown
    assert power.seeds_for_equivalence(2.0, 1) < needed < power.seeds_for_equivalence(1.0, 10)
    assert power.seeds_for_equivalence(1.0, 1, least=30) == 30
    assert math.isinf(power.seeds_for_equivalence(0.0, 1))


@pytest.mark.parametrize("margin", [0.4, 0.7, 1.3])
def test_the_search_for_equivalence_finds_what_trying_all_finds(margin: float) -> None:
    tried = next(seeds for seeds in range(8, 200) if power.detectable_margin(seeds, 10) <= margin)
    assert power.seeds_for_equivalence(margin, 10, least=8) == pytest.approx(tried, abs=1)


@pytest.mark.parametrize("repetitions", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_dependent_pairs_of_arms_are_found_at_least_as_often(repetitions: int) -> None:
    # four arms; the first is better than all others by what is called detectable for a pair
    rng = np.random.default_rng(5)
    effect, hits = power.detectable(8, 6), 0
    for _ in range(repetitions):
        drawn = rng.standard_normal((4, 8)) / math.sqrt(2)  # paired differences then have SD 1
        drawn[0] += effect
        compared = compare("t", {arm: dict(enumerate(drawn[i])) for i, arm in enumerate("ABCD")})
        hits += compared[0].text == "A > B"
    assert hits / repetitions >= 0.8 - 3 * math.sqrt(0.8 * 0.2 / repetitions)


@pytest.mark.parametrize(("pairs", "needed"), [(1, 6), (3, 7), (6, 8), (18, 10)])
def test_nothing_is_detectable_below_the_seeds_that_holm_needs(pairs: int, needed: int) -> None:
    assert needed == seeds_needed(0.05, pairs)
    assert all(math.isnan(power.detectable(seeds, pairs)) for seeds in range(1, needed))
    assert power.detectable(needed, pairs) < math.inf


def test_where_one_pattern_decides_the_power_has_a_formula() -> None:
    # 8 seeds, 6 pairs: only eight differences of one sign reject, so power is Φ(δ)^8 = .8 at δ =
    # Φ⁻¹(.8^(1/8))
    exact = float(stats.norm.ppf(0.8 ** (1 / 8)))
    assert power.detectable(8, 6) == pytest.approx(exact, rel=0.01)  # quantile of 10,000: error .4 % of power


def test_fewer_pairs_and_more_seeds_find_smaller_effects() -> None:
    table = [[power.detectable(seeds, pairs) for seeds in range(8, 21)] for pairs in (1, 3, 6)]
    assert all(later < earlier for row in table for earlier, later in pairwise(row))
    assert all(
        few < many
        for fewer_pairs, more_pairs in pairwise(table)
        for few, many in zip(fewer_pairs, more_pairs, strict=True)
    )


@pytest.mark.parametrize(("seeds", "rank", "least"), [(12, 64, 0.79), (14, 64, 0.785), (16, 64, 0.77)])
def test_where_the_t_test_stands_in_it_is_nearly_right(seeds: int, rank: int, least: float) -> None:
    effect = power._by_t(seeds, 2 * rank / 2**seeds)
    assert least <= np.mean(power._thresholds(seeds, rank) <= effect) <= 0.81


@pytest.mark.parametrize("rank", [1, 2, 5, 11])
def test_thresholds_are_those_of_all_subsets(rank: int) -> None:
    values = np.random.default_rng(power.SEED).standard_normal((power.REPETITIONS, 7))[:50]
    subsets = [list(chosen) for size in range(1, 8) for chosen in combinations(range(7), size)]
    means = np.array([[-row[chosen].mean() for chosen in subsets] for row in values])
    expected = np.sort(means, axis=1)[:, -rank]
    assert power._thresholds(7, rank)[:50] == pytest.approx(expected, abs=1e-12)  # sums in another order


def test_a_repetition_is_found_from_its_threshold_on() -> None:
    values = np.random.default_rng(power.SEED).standard_normal((power.REPETITIONS, 8))[:40]
    for row, threshold in zip(values, power._thresholds(8, power.allowed(8, 3))[:40], strict=True):
        assert 3 * sign_flip_p(row + threshold + 1e-6) <= 0.05
        assert 3 * sign_flip_p(row + threshold - 1e-6) > 0.05


def test_seeds_for_an_effect_are_the_fewest_that_detect_it() -> None:
    for effect, pairs in ((1.2, 1), (1.2, 6), (0.9, 3), (0.467, 1)):
        seeds = int(power.seeds_for(effect, pairs))
        assert power.detectable(seeds, pairs) <= effect < power.detectable(seeds - 1, pairs)
    assert power.seeds_for(0.0, 1) == math.inf
    assert power.seeds_for(9.0, 6) == 8 and power.seeds_for(9.0, 6, least=11) == 11


@pytest.mark.parametrize("effect", [0.05, 0.091, 0.12, 0.3, 0.38, 0.45, 0.6])
@pytest.mark.parametrize(("pairs", "least"), [(1, 12), (6, 14), (3, 50), (30, 200)])
def test_the_search_for_seeds_finds_the_first_of_all(effect: float, pairs: int, least: int) -> None:
    every = range(least, power.MOST_SEEDS + 1)
    levels = [power._level(n, pairs, 0.05) for n in every]
    enough = power._power_of_t(np.array(every), effect, np.array(levels)) >= power.POWER
    expected = every[int(enough.argmax())] if enough.any() else math.inf
    assert power._seeds_by_t(least, effect, pairs, 0.05) == expected


def test_the_spread_of_a_standard_deviation_by_hand() -> None:
    # χ² with 2 df: 7.378 and .0506; √(2/7.378) = .521, √(2/.0506) = 6.285
    assert power.deviation_factors(3) == pytest.approx((0.521, 6.285), abs=1e-3)


@pytest.mark.parametrize(("pairs", "alpha"), [(0, 0.05), (1, 0.0), (1, 1.0)])
def test_levels_that_are_none_are_refused(pairs: int, alpha: float) -> None:
    with pytest.raises(ValueError, match="pairs >= 1"):
        power.detectable(8, pairs, alpha)


@pytest.mark.parametrize(("seeds", "pairs"), [(6, 1), (11, 1), (6, 2), (6, 5), (8, 3), (12, 2)])
def test_stored_effects_are_those_of_the_simulation(seeds: int, pairs: int) -> None:
    effects = power._effects(seeds, pairs, power.TABLE_ALPHA, "max-t")
    simulated = float(np.quantile(effects, power.POWER))
    assert power.detectable(seeds, pairs, power.TABLE_ALPHA, "max-t") == pytest.approx(simulated, abs=1e-6)


def test_effects_are_stored_for_all_simulated_numbers_of_pairs_up_to_30() -> None:
    cases = [(seeds, pairs) for seeds in range(6, 20) for pairs in range(1, 31)]
    simulated = [case for case in cases if power._simulated(*case, power.TABLE_ALPHA, "max-t")]
    table = power._table()
    assert all(pairs <= len(table.get(seeds, ())) for seeds, pairs in simulated)
