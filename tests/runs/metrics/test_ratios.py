"""The tail, the extremes and the growth of ratios, against closed forms and numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.toys import rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.metrics.catalog import catalog
from grpobench.runs.metrics.ratios import tail_index
from grpobench.runs.metrics.rollout_metrics import MetricAccumulator, gap_metrics
from grpobench.runs.train.update import movement

NAMES = ("tail", "extreme", "extreme_at", "growth")


def gaps(distances: list[list[float]], unwritten: tuple[tuple[int, int], ...] = ()) -> Batch:
    """A batch whose sampler log-probabilities lie so far below 0."""
    batch = rollouts([[len(row) for row in distances]])
    sampler, mask = torch.zeros(batch.completion_mask.shape), batch.completion_mask.clone()
    for row, values in enumerate(distances):
        sampler[row, : len(values)] = -torch.tensor(values)
    for row, column in unwritten:
        mask[row, column] = False
    return dataclasses.replace(batch, sampler_logp=sampler, completion_mask=mask)


def measured(*batches: Batch) -> dict[str, float]:
    """The gap of these batches from log-probabilities of 0."""
    return gap_metrics([(torch.zeros(batch.completion_mask.shape), batch) for batch in batches])


# The tail index


def quantiles(index: float, count: int) -> torch.Tensor:
    """log X at the quantiles (i − ½)/count of a Pareto distribution P(X > x) = x^(−index)."""
    return -((torch.arange(count, dtype=torch.float64) + 0.5) / count).log() / index


@pytest.mark.parametrize("index", [0.5, 1.0, 2.0, 7.0])
@pytest.mark.parametrize("count", [200, 2000])
def test_quantiles_of_a_pareto_distribution_have_the_index_in_closed_form(index: float, count: int) -> None:
    """With k = count/20, the mean of log X₍ᵢ₎ − log X₍ₖ₊₁₎ is (log(k + ½) − mean log(i − ½))/index, and
    Π(i − ½) = Γ(k + ½)/Γ(½). It tends to the index as k grows."""
    k = count // 20
    excess = math.log(k + 0.5) - (math.lgamma(k + 0.5) - math.lgamma(0.5)) / k
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    assert tail_index(quantiles(index, count)[order]) == pytest.approx(index / excess, rel=1e-9)
    assert index / excess == pytest.approx(index, rel=0.5 / math.sqrt(k))


def test_the_index_is_the_inverse_of_the_mean_excess() -> None:
    """200 distances: k = 10, threshold 0.5, the ten above it exceed it by 0.1 to 1.0, 0.55 in the mean."""
    above = [0.5 + 0.1 * i for i in range(1, 11)]
    values = torch.tensor([0.5] * 190 + above, dtype=torch.float64)
    assert tail_index(values) == pytest.approx(1 / 0.55)


def test_there_is_no_index_of_few_tokens_of_no_gap_or_of_equal_gaps() -> None:
    assert math.isnan(tail_index(quantiles(2.0, 199)))
    assert math.isnan(tail_index(torch.zeros(400)))
    assert math.isnan(tail_index(torch.full((400,), 0.3)))
    few = torch.zeros(400)
    few[:20] = 1.0  # a twentieth differs, so that nothing is known of a threshold beyond which they lie
    assert math.isnan(tail_index(few))


# Extremes and growth


def test_extreme_tokens_are_those_of_a_ratio_above_two_on_either_side() -> None:
    metrics = measured(gaps([[0.0, 0.7, -0.7, 0.69], [-9.0]]))  # log 2 = 0.6931
    assert metrics["gap/extreme"] == pytest.approx(3 / 5)
    # of four tokens the second and the third, at 3/8 and 5/8, and the only token of a completion, at ½
    assert metrics["gap/extreme_at"] == pytest.approx((3 / 8 + 5 / 8 + 1 / 2) / 3)


def test_growth_is_the_slope_over_the_completion_in_nats() -> None:
    """|d| = 1 + 2·position in both rows, whatever its sign; a completion of one token has no slope."""
    rows = [[1 + 2 * (i + 0.5) / n for i in range(n)] for n in (4, 7)]
    rows[1] = [-value for value in rows[1]]
    assert measured(gaps([*rows, [5.0]]))["gap/growth"] == pytest.approx(2.0, rel=1e-6)
    # by hand: positions ¼ and ¾, distances 0 and 1, a slope of 2; and 0 for a gap that stays
    assert measured(gaps([[0.0, 1.0]]))["gap/growth"] == pytest.approx(2.0)
    assert measured(gaps([[0.0, 1.0], [0.4, 0.4, 0.4]]))["gap/growth"] == pytest.approx(1.0)
    assert math.isnan(measured(gaps([[0.3], [5.0]]))["gap/growth"])


@given(st.lists(st.lists(st.floats(-3, 3), min_size=2, max_size=6), min_size=1, max_size=4))
def test_growth_is_that_of_a_least_squares_fit(rows: list[list[float]]) -> None:
    slopes = []
    for row in rows:
        position = torch.tensor([[(i + 0.5) / len(row), 1.0] for i in range(len(row))], dtype=torch.float64)
        fit = torch.linalg.lstsq(position, torch.tensor(row, dtype=torch.float64).abs()[:, None]).solution
        slopes.append(fit[0].item())
    growth = measured(gaps(rows))["gap/growth"]
    assert growth == pytest.approx(sum(slopes) / len(slopes), rel=1e-4, abs=1e-5)  # float32 distances


def test_without_a_gap_nothing_is_extreme_or_grows_and_there_is_no_tail() -> None:
    metrics = measured(gaps([[0.0] * 150, [0.0] * 100]))
    assert metrics["gap/extreme"] == metrics["gap/growth"] == 0
    assert math.isnan(metrics["gap/tail"]) and math.isnan(metrics["gap/extreme_at"])


def test_unwritten_tokens_and_empty_completions_do_not_count() -> None:
    plain = measured(gaps([[0.1, 0.9, 0.3], [2.0, 0.1]]))
    batch = gaps([[0.1, 77.0, 0.9, 0.3], [2.0, 0.1, 77.0], []], unwritten=((0, 1), (1, 2)))
    assert measured(batch) == pytest.approx(plain, nan_ok=True)
    nothing = gaps([[]])
    assert measured(nothing) == {}


def test_splitting_into_micro_batches_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn(40, generator=generator).tolist() for _ in range(10)]
    batch = gaps(rows)
    parts = [batch[torch.tensor(rows)] for rows in ([7, 3], [0, 1, 2, 4, 5, 6], [8, 9])]
    assert measured(*parts) == pytest.approx(measured(batch), rel=1e-12)
    assert 0 < measured(batch)["gap/tail"] < 10 and 0 < measured(batch)["gap/extreme"] < 1


def test_the_ratio_of_the_policy_is_measured_alike() -> None:
    """π against π_old in the updates has the numbers that the same gap of a sampler has."""
    generator = torch.Generator().manual_seed(3)
    batch = gaps([torch.randn(60, generator=generator).tolist() for _ in range(5)])
    tally = MetricAccumulator(catalog())
    for rows in ([0, 1], [2, 3, 4]):
        part = batch[torch.tensor(rows)]
        moved = movement(torch.zeros(part.completion_mask.shape), part.sampler_logp, part.completion_mask)
        tally.add(moved, part.completion_mask)
    numbers, gap = tally.numbers(), measured(batch)
    for name in NAMES:
        assert numbers[f"trained/ratio_{name}"] == pytest.approx(gap[f"gap/{name}"], rel=1e-5)
