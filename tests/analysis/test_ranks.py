"""The rank correlation over clusters: that of the resamples, and how often its interval covers the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.statistics import ranks

REPETITIONS = 300
"""With a true coverage of .95 the share of so many is above .91 in 999 of 1,000 cases."""


def coverage(clusters: int, pairs: int, correlation: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """Of clusters that share half of the variance of their pairs, if they have several."""
    monkeypatch.setattr(ranks, "DRAWS", 300)
    monkeypatch.setattr(ranks, "FEWEST", 3)
    rng, covariance = np.random.default_rng(0), [[1, correlation], [correlation, 1]]
    population = rng.multivariate_normal([0, 0], covariance, 300_000)
    true = stats.spearmanr(*population.T).statistic
    covered = 0
    for seed in range(REPETITIONS):
        centers = rng.multivariate_normal([0, 0], covariance, (clusters, 1)) * (pairs > 1)
        values = centers + rng.multivariate_normal([0, 0], covariance, (clusters, pairs))
        estimate = ranks.spearman([*values], seed)
        covered += estimate.low <= true <= estimate.high
    return covered / REPETITIONS


@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 3)), min_size=3, max_size=9
    ).filter(lambda rows: sum(copies for *_, copies in rows) > 2)
)
def test_copies_of_rows_have_the_correlation_of_the_rows_written_out(
    rows: list[tuple[int, int, int]],
) -> None:
    table = np.array([pair for *pair, _ in rows], dtype=float)
    copies = np.array([copies for *_, copies in rows])
    resample = np.repeat(table, copies, axis=0)
    (correlation,) = ranks._correlations(table, copies[None].astype(float))
    if any(len(set(column)) == 1 for column in resample.T):
        assert math.isnan(correlation)
    else:  # sums of half-integers are exact, so only the root and the division round
        assert correlation == pytest.approx(stats.spearmanr(*resample.T).statistic, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0, 0.6, 0.9])
@pytest.mark.parametrize("pairs", [1, 3])
@pytest.mark.parametrize("clusters", [ranks.FEWEST, 12])
def test_intervals_cover_the_correlation(
    clusters: int, pairs: int, correlation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0.9 < coverage(clusters, pairs, correlation, monkeypatch) < 0.99


@pytest.mark.slow
def test_intervals_over_four_clusters_miss_a_large_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coverage(4, 1, 0.9, monkeypatch) < 0.8


def test_fewer_clusters_have_a_correlation_without_an_interval() -> None:
    pairs = [np.array([[i, 2 * i]], dtype=float) for i in range(ranks.FEWEST)]
    assert ranks.spearman(pairs).low > 0
    few = ranks.spearman(pairs[1:])
    assert few.value == pytest.approx(1) and math.isnan(few.low)
