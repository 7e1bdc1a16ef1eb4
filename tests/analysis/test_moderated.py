"""Moderated tests of all pairs, against SciPy, closed forms and simulations with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.probe_scores import probe_scores
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from grpobench.analysis.statistics import moderated
from grpobench.analysis.statistics.moderated import (
    Prior,
    benjamini_hochberg,
    compare_all,
    compare_one,
    contrasts,
    deal,
    fit,
    fit_prior,
    moderate,
    treat_p,
    trigamma_inverse,
)

ANY = np.array([0]), np.array([1])


@pytest.mark.parametrize(("d0", "s02"), [(4.0, 0.25), (20.0, 1e-4)])
@pytest.mark.parametrize("df", [3, 7])
def test_the_fit_recovers_a_known_prior(d0: float, s02: float, df: int) -> None:
    rng = np.random.default_rng(0)
    true = s02 * d0 / rng.chisquare(d0, size=200_000)
    prior = fit_prior(true * rng.chisquare(df, size=true.size) / df, df)
    assert prior.df == pytest.approx(d0, rel=0.1)  # the variance of logs is off by about 1 % here
    assert prior.variance == pytest.approx(s02, rel=0.02)


def test_variances_that_differ_by_chance_only_have_an_infinite_prior_df() -> None:
    """Then s0² is exp of the mean of e: the closed form for two equal variances."""
    prior = fit_prior([0.5, 0.5], 4)
    assert math.isinf(prior.df)
    assert prior.variance == pytest.approx(0.5 * 2 / math.exp(special.psi(2)))


@given(st.floats(1e-8, 1e8))
def test_trigamma_inverse(value: float) -> None:
    assert special.polygamma(1, trigamma_inverse(value)) == pytest.approx(value, rel=1e-3)


def test_moderation_worked_by_hand() -> None:
    """(4 · 1 + 4 · 0)/8 = .5 with 8 degrees of freedom; the large variance stays as it is, with its own 4."""
    variances, df = moderate(np.array([0.0, 3.0]), np.array([4.0, 4.0]), Prior(4.0, 1.0))
    assert variances.tolist() == [0.5, 3.0] and df.tolist() == [8.0, 4.0]


def test_without_a_prior_a_pair_is_welchs_test(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    values = np.stack([rng.normal(0, 1, 8), rng.normal(1, 3, 8)])
    values[1, 4:] = np.nan
    monkeypatch.setattr(moderated, "fit_prior", lambda *_: Prior(0.0, 1.0))
    ours = contrasts(fit(values, 1e-9), *ANY, 1e-9)
    welch = stats.ttest_ind(values[0], values[1, :4], equal_var=False)
    assert ours.p[0] == pytest.approx(welch.pvalue, rel=1e-6)  # the resolution is not exactly 0
    assert ours.df[0] == pytest.approx(welch.df)


def test_treat_is_the_t_test_at_zero_and_one_sided_far_above_the_resolution() -> None:
    difference, error, df = np.array([2.0, -2.0]), np.array([0.5, 0.5]), np.array([6.0, 6.0])
    assert treat_p(difference, error, df, 0.0) == pytest.approx([2 * stats.t.sf(4, 6)] * 2)
    assert treat_p(difference, error, df, 1.0) == pytest.approx([stats.t.sf(2, 6) + stats.t.sf(6, 6)] * 2)
    assert treat_p(difference, error, np.full(2, np.inf), 0.0) == pytest.approx([2 * stats.norm.sf(4)] * 2)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_benjamini_hochberg_is_scipys(p: list[float]) -> None:
    assert benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p))


def test_certain_scores_are_told_apart_from_the_resolution_on() -> None:
    scores = {"a": dict.fromkeys(range(4), 0.8), "b": dict.fromkeys(range(4), 0.7999)}
    assert not compare_all(scores).pairs[0].told_apart
    scores["b"] = dict.fromkeys(range(4), 0.7)
    assert compare_all(scores).pairs[0].told_apart


def test_a_certain_and_an_unstable_algorithm_of_one_mean_are_rarely_called_different() -> None:
    """SD 0 against SD .9, among algorithms whose small variances would shrink the large one."""
    rng = np.random.default_rng(2)
    called = []
    for _ in range(1000):
        values = np.concatenate(
            [np.full((1, 4), 0.5), rng.normal(0.5, 0.9, (1, 4)), rng.normal(0.5, 0.02, (20, 4))]
        )
        called.append(contrasts(fit(values, 0.02), *ANY, 0.02).p[0] <= 0.05)
    assert np.mean(called) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)


def test_the_example_of_the_comparisons_page_tells_apart_what_it_states() -> None:
    scores = {
        "steady": {0: 0.81, 1: 0.80, 2: 0.82, 3: 0.81},
        "alike": {0: 0.80, 1: 0.83, 2: 0.81, 3: 0.79},
        "worse": {0: 0.41, 1: 0.44, 2: 0.40, 3: 0.43},
    }
    differing = {(pair.first, pair.second) for pair in compare_all(scores).pairs if pair.told_apart}
    assert differing == {("alike", "worse"), ("steady", "worse")}


def test_everything_that_is_compared_agrees() -> None:
    scores = probe_scores()
    result = compare_all(scores)
    assert len(result.pairs) == 666 and 0.2 < result.share < 0.9
    means = sorted((float(np.mean([*of_seed.values()])) for of_seed in scores.values()), reverse=True)
    assert [cell.mean for cell in result.cells.values()] == pytest.approx(means)
    for pair in result.pairs:
        first, second = result.cells[pair.first], result.cells[pair.second]
        assert pair.difference == pytest.approx(first.mean - second.mean)
        assert pair.low < pair.difference < pair.high and pair.p <= pair.q
    assert {cell.seeds for cell in result.cells.values()} == {4, 8}


def test_one_algorithm_has_the_p_values_of_all_pairs_and_its_own_q() -> None:
    scores = probe_scores()
    pairs = {frozenset((pair.first, pair.second)): pair for pair in compare_all(scores).pairs}
    compared = compare_one(scores, "a12")
    assert len(compared) == 36 and {pair.first for pair in compared} == {"a12"}
    for pair in compared:
        assert pair.p == pytest.approx(pairs[frozenset((pair.first, pair.second))].p)
    assert [pair.q for pair in compared] == pytest.approx(
        stats.false_discovery_control([pair.p for pair in compared])
    )
    with pytest.raises(KeyError, match="'none'"):
        compare_one(scores, "none")


def test_missing_scores_are_left_out_and_bad_ones_refused() -> None:
    steady = {0: 0.5, 1: 0.6, 2: math.nan}
    result = compare_all({"a": steady, "b": {0: math.nan}, "c": {}})
    assert list(result.cells) == ["a"] and result.cells["a"].seeds == 2
    assert not result.pairs and math.isnan(result.share)
    assert not compare_all({}).cells
    with pytest.raises(ValueError, match="b: one seed"):
        compare_all({"a": steady, "b": {0: 0.5}})
    with pytest.raises(ValueError, match="b: a score is infinite"):
        compare_all({"a": steady, "b": {0: 0.5, 1: math.inf}})


def test_one_algorithm_under_two_names_is_rarely_called_different() -> None:
    assert deal(probe_scores(), 300, seed=0) <= 0.05
    assert deal(probe_scores(), 50, seed=3) == deal(probe_scores(), 50, seed=3)


def test_a_deal_of_few_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="8 seeds"):
        deal({"a": {0: 0.1, 1: 0.2}}, 10, seed=0)


def test_a_deal_would_notice_a_test_that_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moderated, "treat_p", lambda *_: treat_p(_[0], _[1] / 4, _[2], 0.0))
    assert deal(probe_scores(), 200, seed=0) > 0.2
