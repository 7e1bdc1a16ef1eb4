"""Statistics: numbers that a person can redo, and invariances.

Locked here: no verdict below the seeds that a test needs; pass@k equals counting every subset.
"""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.statistics.aggregates import (
    bootstrap_interquartile_mean,
    interquartile_mean,
    probability_of_improvement,
)
from grpobench.analysis.statistics.comparison import compare, compare_with_base
from grpobench.analysis.statistics.intervals import (
    clustered_error,
    item_interval,
    seed_mean,
    standard_error,
    wilson,
)
from grpobench.analysis.statistics.permutation import holm, seeds_needed, sign_flip_p, smallest_p
from grpobench.analysis.statistics.samples import (
    majority,
    majority_curve,
    overconfidence,
    pass_at_k,
    pass_curve,
)

FINITE = st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 6))
DIFFERENCES = st.lists(FINITE, min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(DIFFERENCES)
def test_sign_flip_does_not_know_the_order_the_scale_or_the_side(differences: list[float]) -> None:
    p = sign_flip_p(differences)
    assert p == sign_flip_p(differences[::-1])
    assert p == sign_flip_p([-value for value in differences])
    assert p == sign_flip_p([4 * value for value in differences])
    assert smallest_p(len(differences)) <= p <= 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=7))
def test_sign_flip_agrees_with_scipy(differences: list[int]) -> None:
    reference = stats.permutation_test(
        (np.array(differences, dtype=float),),
        np.mean,
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert sign_flip_p(differences) == pytest.approx(min(1.0, reference.pvalue))


@given(st.floats(0.001, 0.5), st.integers(1, 50))
def test_seeds_needed_is_the_smallest_that_can_reach_alpha(alpha: float, comparisons: int) -> None:
    seeds = seeds_needed(alpha, comparisons)
    assert 2 / 2**seeds * comparisons <= alpha
    assert seeds == 1 or 2 / 2 ** (seeds - 1) * comparisons > alpha


def test_holm_by_hand() -> None:
    # sorted .01 .02 .04 -> .03 .04 .04; the last is raised to stay in order
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]).size == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_never_lowers_a_p_and_never_beats_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    assert np.all(adjusted >= np.array(p))
    assert np.all(adjusted <= np.minimum(1, len(p) * np.array(p)) + 1e-12)


@pytest.mark.parametrize("seeds", [2, 3, 8, 50])
def test_intervals_are_those_of_scipys_distributions(seeds: int) -> None:
    values = np.random.default_rng(seeds).random(seeds)
    low, high = stats.t.interval(0.9, seeds - 1, values.mean(), stats.sem(values))
    mean = seed_mean(values, level=0.9)
    assert (mean.low, mean.high) == pytest.approx((low, high), rel=1e-12)  # another order of the products
    ours = wilson(3, seeds + 2, level=0.9)
    theirs = stats.binomtest(3, seeds + 2).proportion_ci(0.9, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-12)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    mean = seed_mean([0.5])
    assert mean.value == 0.5 and math.isnan(mean.low) and math.isnan(mean.high)
    assert math.isnan(seed_mean([]).value)


def test_wilson_of_none_and_of_all() -> None:
    assert wilson(0, 10).low == 0 and wilson(10, 10).high == pytest.approx(1)
    with pytest.raises(ValueError, match="successes <= trials"):
        wilson(11, 10)


def test_bootstrap_depends_on_its_own_seed_only() -> None:
    values = [np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.6, 0.9])]
    first = bootstrap_interquartile_mean(values, seed=1)
    assert first == bootstrap_interquartile_mean(values, seed=1)
    assert first.low < first.value < first.high
    assert first.low >= 0.1 and first.high <= 0.9


def test_bootstrap_resamples_inside_a_task() -> None:
    # seeds agree inside each task, so resampling changes nothing; pooling the tasks would
    values = [np.full(4, 0.1), np.full(4, 0.9)]
    estimate = bootstrap_interquartile_mean(values, seed=0)
    assert estimate.low == estimate.high == pytest.approx(0.5)


def test_probability_of_improvement_by_hand() -> None:
    # task one: 3 beats 1 and 2, 2 beats 1 and ties 2 -> 3.5 of 4; task two: 0 of 1
    assert probability_of_improvement([[3, 2], [0]], [[1, 2], [1]]) == pytest.approx((3.5 / 4 + 0) / 2)


@given(st.lists(FINITE, min_size=1, max_size=5), st.lists(FINITE, min_size=1, max_size=5))
def test_probabilities_of_both_directions_add_up_to_one(x: list[float], y: list[float]) -> None:
    total = probability_of_improvement([x], [y]) + probability_of_improvement([y], [x])
    assert total == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_counting_every_subset(case: tuple[int, int, int]) -> None:
    n, c, k = case
    solved = [any(sample < c for sample in subset) for subset in combinations(range(n), k)]
    assert float(pass_at_k(n, c, k)) == pytest.approx(sum(solved) / len(solved))


def test_pass_at_k_stays_finite_where_binomials_overflow() -> None:
    assert float(pass_at_k(100_000, 1, 50_000)) == pytest.approx(0.5)


def test_pass_at_k_is_not_the_biased_estimator() -> None:
    assert float(pass_at_k(4, 1, 2)) == 0.5  # 1 − (3/4)² would say .4375
    with pytest.raises(ValueError, match="k <= samples"):
        pass_at_k(2, 1, 3)


def arms(first: list[float], second: list[float]) -> dict[str, dict[int, float]]:
    return {"A": dict(enumerate(first, 1)), "B": dict(enumerate(second, 1))}


def test_three_seeds_are_never_a_verdict_however_large_the_difference() -> None:
    (pair,) = compare("t", arms([0.9, 0.91, 0.92], [0.1, 0.11, 0.12]))
    assert pair.verdict == "unresolved" and pair.text == "unresolved"
    assert pair.p == 0.25
    assert "3 of the 6 seeds" in pair.needs and "0.25" in pair.needs


def test_six_agreeing_seeds_are_a_verdict_for_one_pair() -> None:
    first = [0.60, 0.62, 0.61, 0.63, 0.60, 0.64]
    (pair,) = compare("t", arms(first, [value - 0.1 for value in first]))
    assert pair.text == "A > B"
    assert pair.p == pair.p_adjusted == 2 / 64
    assert pair.effect == pytest.approx(0.1)
    (turned,) = compare("t", arms([value - 0.1 for value in first], first))
    assert turned.text == "B > A"


def test_five_seeds_are_too_few_for_six_pairs_and_six_are_enough() -> None:
    def four(seeds: int) -> dict[str, dict[int, float]]:
        return {arm: {s: 0.1 * index + 0.001 * s for s in range(seeds)} for index, arm in enumerate("ABCD")}

    assert {pair.verdict for pair in compare("t", four(5))} == {"unresolved"}
    resolved = compare("t", four(6))
    assert [pair.text for pair in resolved] == ["B > A", "C > A", "D > A", "C > B", "D > B", "D > C"]
    assert {pair.p_adjusted for pair in resolved} == {2 / 64}


def test_arms_that_are_the_same_are_equivalent_from_five_seeds_on() -> None:
    same = [0.5, 0.6, 0.55, 0.52, 0.58]
    (pair,) = compare("t", arms(same, same))
    assert pair.verdict == "equivalent" and pair.text == "A ≈ B" and pair.p == 1
    assert pair.p_equivalence == 1 / 32  # one pattern of 2^5 on either side
    assert pair.needs == "within 2 points: Holm p 0.0312 over 5 paired seeds and 1 pair"
    assert math.isnan(pair.detectable) and math.isnan(pair.power)  # no spread was seen
    (pair,) = compare("t", arms(same[:4], same[:4]))
    assert pair.verdict == "unresolved"
    assert "4 seeds can never show equivalence within 2 points, which needs 5" in pair.needs


def test_a_weak_difference_says_how_many_seeds_would_find_it() -> None:
    differences = [0.03, -0.01, 0.02, -0.02, 0.04, 0.01, -0.01, 0.02]  # mean .01, s = .0214
    (pair,) = compare("t", arms([0.5 + d for d in differences], [0.5] * 8))
    assert pair.verdict == "unresolved"
    # t over n seeds: (t.975 + t.80)·SD/√n = mean at n ≈ 7.85·(.02138/.01)² + 2 = 38
    assert "about 38 seeds would find it in 80% of repetitions" in pair.needs
    assert pair.detectable == pytest.approx(1.193 * 0.02138, rel=0.01)  # 8 seeds, one pair: see test_power


def test_what_three_seeds_can_not_find_has_no_smallest_effect() -> None:
    # the interval .008 to .018 leaves 0 out (t.975 with 2 df is 4.30, s = .002): the text says why
    (pair,) = compare("t", arms([0.511, 0.513, 0.515], [0.5, 0.5, 0.5]))
    assert pair.low > 0 and pair.p == 0.25 and pair.verdict == "unresolved"
    assert math.isnan(pair.detectable) and math.isnan(pair.detectable_low)
    assert "the t interval excludes 0, but assumes normal differences" in pair.needs
    # six seeds find 1.80 SD = .36 points; of three values the SD is known to a factor of .52 to 6.3
    assert (
        "6 would find 0.4 points in 80% of repetitions (0.2 to 2.3 given the uncertainty of the SD"
        in pair.needs
    )

    (pair,) = compare("t", arms([0.9, 0.5], [0.1, 0.6]))  # two differences: the SD is known to a factor of 32
    assert "to no limit given the uncertainty of the SD" in pair.needs


def test_a_run_still_to_come_blocks_the_verdict() -> None:
    first = [0.60, 0.62, 0.61, 0.63, 0.60, 0.64]
    values = arms(first, [value - 0.1 for value in first])
    (pair,) = compare("t", values, {"A": {7: "7"}, "B": {7: "7 (crashed)"}})
    assert pair.verdict == "unresolved"
    assert pair.needs == "waits for runs without a result: A seed 7; B seed 7 (crashed)"


def test_a_run_that_would_pair_with_nothing_blocks_no_verdict() -> None:
    first = [0.60, 0.62, 0.61, 0.63, 0.60, 0.64]
    values = arms(first, [value - 0.1 for value in first])
    (pair,) = compare("t", values, {"B": {7: "7"}})  # of which A has no run
    assert pair.verdict == "better"
    (pair,) = compare("t", values | {"A": {**values["A"], 7: 0.6}}, {"B": {7: "7"}})
    assert pair.verdict == "unresolved" and pair.needs == "waits for runs without a result: B seed 7"
    (pair, _) = compare_with_base("t", values, values, {"A": {7: "7"}})  # its own base
    assert pair.needs == "waits for runs without a result: A seed 7"


def test_only_shared_seeds_are_paired() -> None:
    (pair,) = compare("t", {"A": {1: 0.5, 2: 0.6}, "B": {2: 0.5, 3: 0.9}})
    assert pair.seeds == (2,) and pair.effect == pytest.approx(0.1) and math.isnan(pair.low)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=5))
def test_below_the_seed_minimum_nothing_is_ever_resolved(pairs: list[tuple[float, float]]) -> None:
    (pair,) = compare("t", arms([a for a, _ in pairs], [b for _, b in pairs]))
    assert pair.verdict == "unresolved"


# Many samples of one problem


def test_pass_curve_ends_at_half_the_fewest_samples_of_any_problem() -> None:
    # n = 8: k = 1, 2, 4. Means over two problems with 2 of 8 and 8 of 8 right:
    # k = 2: 1 − C(6,2)/C(8,2) = 1 − 15/28; k = 4: 1 − C(6,4)/C(8,4) = 1 − 15/70
    curve = pass_curve([8, 8], [2, 8])
    assert curve == pytest.approx({1: (0.25 + 1) / 2, 2: (13 / 28 + 1) / 2, 4: (55 / 70 + 1) / 2})
    assert list(pass_curve([8, 7], [2, 7])) == [1, 2]
    assert pass_curve([1], [1]) == {} == pass_curve([], [])


def test_majority_takes_the_answer_given_first_where_votes_are_equal() -> None:
    assert majority(["7", "5", "5", "7", "9"], [0, 1, 1, 0, 0]) == 0
    assert majority(["5", "7", "7", "5", "9"], [1, 0, 0, 1, 0]) == 1
    assert majority(["7", "5", "5"], [0, 1, 1]) == 1


def test_an_answer_that_could_not_be_read_has_no_vote() -> None:
    assert majority([None, None, "5"], [0, 0, 1]) == 1
    assert majority([None, None], [0, 0]) == 0


@pytest.mark.parametrize("chances", [(0.5, 0.3, 0.2), (0.9, 0.1, 0.0), (1.0, 0.0, 0.0)])
@pytest.mark.parametrize("samples", [2, 4])
def test_overconfidence_is_unbiased_and_zero_of_a_calibrated_policy(
    chances: tuple[float, ...], samples: int
) -> None:
    """All draws of samples, weighted by their chance, against the closed form Σ p² − p(right answer); with a
    right answer that is itself drawn by the policy's chances the mean is 0."""
    by_truth = {}
    for truth in "abc":
        mean = 0.0
        for draw in product("abc", repeat=samples):
            weight = math.prod(chances["abc".index(answer)] for answer in draw)
            mean += weight * overconfidence([draw], [[float(answer == truth) for answer in draw]])
        by_truth[truth] = mean
        agreement = sum(chance**2 for chance in chances)
        assert mean == pytest.approx(agreement - chances["abc".index(truth)], abs=1e-12)
    calibrated = sum(chance * gap for chance, gap in zip(chances, by_truth.values(), strict=True))
    assert calibrated == pytest.approx(0, abs=1e-12)


def test_unreadable_answers_agree_with_none() -> None:
    """By hand: of 12 ordered pairs the two of ("5", "5") agree, and one of four is right."""
    assert overconfidence([["5", "5", None, None]], [[0, 1, 0, 0]]) == pytest.approx(2 / 12 - 1 / 4)
    assert overconfidence([[None, None]], [[0, 0]]) is None


def test_majority_curve_votes_over_fresh_samples_each_time() -> None:
    answers = ["5", "7", "7", "5", "7", "7", "7", "5"]
    correct = [float(answer == "5") for answer in answers]
    # k = 2: (5,7) and (7,5) and (7,7) and (7,5) are 1, 0, 0, 0; k = 4: (5,7,7,5) is a tie, 1; (7,7,7,5) is 0
    assert majority_curve([answers], [correct]) == {1: 3 / 8, 2: 1 / 4, 4: 1 / 2, 8: 0.0}
    assert majority_curve([[None, None]], [[0, 0]]) == {}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["3", "4", None]), st.booleans()), min_size=4, max_size=9))
def test_one_vote_is_plain_accuracy(rows: list[tuple[str | None, bool]]) -> None:
    answers = [answer for answer, _ in rows]
    correct = [float(answer == "3") for answer in answers]
    curve = majority_curve([answers], [correct])
    if curve:
        assert curve[1] == pytest.approx(np.mean(correct))


# One model's accuracy over items

SHARES = st.lists(
    st.tuples(st.floats(0, 1, allow_nan=False), st.integers(0, 3)), min_size=4, max_size=12
).filter(lambda rows: len({cluster for _, cluster in rows}) > 1)


@settings(max_examples=40, deadline=None)
@given(SHARES)
def test_clustered_error_is_the_sum_over_pairs_inside_clusters(rows: list[tuple[float, int]]) -> None:
    values, clusters = np.array([value for value, _ in rows]), [cluster for _, cluster in rows]
    centered, n, groups = values - values.mean(), len(rows), len(set(clusters))
    pairs = sum(
        centered[i] * centered[j] for i in range(n) for j in range(n) if clusters[i] == clusters[j]
    )  # the variance of a mean of items that are dependent inside clusters only
    expected = math.sqrt(max(pairs, 0) * groups / (groups - 1)) / n
    assert clustered_error(values, clusters) == pytest.approx(expected, abs=1e-7)


def test_clustered_error_of_single_items_is_the_plain_one() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    assert clustered_error(values, range(5)) == pytest.approx(standard_error(values))


def test_copies_of_an_item_do_not_narrow_a_clustered_interval() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    once, _ = item_interval(values, [*"abcdef"][:6])
    copied, kind = item_interval(np.repeat(values, 50), [c for c in "abcdef" for _ in range(50)])
    error = clustered_error(values, "abcdef")
    assert kind == "clustered" and once.value == pytest.approx(copied.value)
    assert copied.high == pytest.approx(min(1.0, copied.value + stats.t.ppf(0.975, 5) * error))
    naive, _ = item_interval(np.repeat(values, 50))
    assert naive.high - naive.low < (copied.high - copied.low) / 3


def test_interval_is_wilson_below_few_hundred_items_and_where_all_agree() -> None:
    few, kind = item_interval([1.0] * 7 + [0.0] * 3)
    assert kind == "Wilson" and few == wilson(7, 10)
    _, kind = item_interval([1.0, 0.0] * 200)
    assert kind == "normal"
    perfect, kind = item_interval([1.0] * 400)
    assert kind == "Wilson" and perfect.low < 1 == pytest.approx(perfect.high)
    agreed, kind = item_interval([1.0] * 6, ["a", "a", "a", "b", "b", "b"])
    assert kind == "Wilson" and agreed == wilson(2, 2)
    assert item_interval([])[1] == "none"
