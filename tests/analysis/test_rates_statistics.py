"""Scores over learning rates: cross-fitting and sensitivity are those of a count by hand.

Locked here: the halves of the seeds; cross-fitted scores against loops over all halves; what may not change
them (a worse rate, the order of seeds) and what shifts them; losses next to the best rate and the width
within a margin on curves without noise; which rates are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.analysis.statistics.rates import (
    RateCurve,
    best_octave,
    cross_fit,
    halves,
    sensitivity,
    shared_rates,
    width_in_octaves,
)

Table = list[list[int]]


def curve_of(scores: Sequence[Sequence[float]], rates: Sequence[float] = (1, 2, 4, 8, 16)) -> RateCurve:
    """The curve of rows of scores, one for each rate."""
    return RateCurve.of(
        {rate: dict(enumerate(map(float, row))) for rate, row in zip(rates, scores, strict=False)}
    )


def flat_curve(means: Sequence[float], rates: Sequence[float] = (1, 2, 4, 8, 16)) -> RateCurve:
    """Four seeds with the same scores."""
    return curve_of([[mean] * 4 for mean in means], rates)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """One to four rates, two to eight seeds, with many ties."""
    seeds = draw(st.integers(2, 8))
    row = st.lists(st.integers(0, 6), min_size=seeds, max_size=seeds)
    return draw(st.lists(row, min_size=1, max_size=4))


def by_hand(scores: Sequence[Sequence[float]]) -> list[float]:
    """The score of each seed at the rate that a half without it prefers, averaged over all such halves."""
    seeds = range(len(scores[0]))
    averages = []
    for seed in seeds:
        judged = []
        for choosing in combinations(seeds, len(seeds) // 2):
            if seed not in choosing:
                means = [sum(row[other] for other in choosing) for row in scores]
                judged.append(scores[means.index(max(means))][seed])
        averages.append(sum(judged) / len(judged))
    return averages


@settings(max_examples=60, deadline=None)
@given(tables())
def test_cross_fitted_scores_are_a_count_over_all_halves(table: Table) -> None:
    assert [*cross_fit(curve_of(table)).values()] == pytest.approx(by_hand(table), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(tables(), st.floats(-2, 2), st.randoms())
def test_a_shift_shifts_and_the_order_of_seeds_does_not_matter(table: Table, shift: float, rng: Any) -> None:
    scores = np.array(table) / 10.0  # not exact in binary, so that equal means differ by rounding
    before = cross_fit(curve_of(scores.tolist()))
    shifted = cross_fit(curve_of((scores + shift).tolist()))
    assert [*shifted.values()] == pytest.approx([score + shift for score in before.values()], abs=1e-9)
    order = list(range(scores.shape[1]))
    rng.shuffle(order)
    turned = cross_fit(curve_of(scores[:, order].tolist()))
    assert [*turned.values()] == pytest.approx([before[seed] for seed in order], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(tables(), st.integers(0, 4))
def test_a_rate_that_is_far_worse_in_every_seed_changes_nothing(table: Table, position: int) -> None:
    worse = [min(column) - 20 for column in zip(*table, strict=True)]
    position = min(position, len(table))
    extended = [*table[:position], worse, *table[position:]]
    assert cross_fit(curve_of(extended)) == cross_fit(curve_of(table))


def test_a_noisy_rate_does_not_gain_by_being_chosen() -> None:
    """Best rate and score of the same seeds: +.9 SD for five equal rates of eight seeds. Cross-fitted: 0."""
    rng = np.random.default_rng(0)
    curves = [curve_of(rng.normal(size=(5, 8)).tolist()) for _ in range(400)]
    chosen = np.mean([curve.scores.mean(axis=1).max() for curve in curves])
    fitted = np.mean([np.mean([*cross_fit(curve).values()]) for curve in curves])
    assert chosen * 8**0.5 > 1 and abs(fitted) < 3 * (1 / 8 / 400) ** 0.5


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 9, 10, 16])
def test_halves_are_balanced(seeds: int) -> None:
    masks = halves(seeds)
    assert set(masks.sum(axis=1)) == {seeds // 2}
    judges = (~masks).sum(axis=0)
    if seeds <= 8:  # all of them: 70 of eight seeds
        assert len({tuple(mask) for mask in masks}) == len(masks) <= 70
        assert len(set(judges)) == 1
    else:
        assert len(masks) == 100
        assert judges.min() > 30 and (seeds % 2 or set(judges) == {50})


def test_halves_are_the_same_in_every_call_and_read_only() -> None:
    assert np.array_equal(halves(12), halves.__wrapped__(12))
    with pytest.raises(ValueError, match="read-only"):
        halves(12)[0, 0] = True


def test_only_seeds_of_every_rate_count() -> None:
    curve = RateCurve.of({2.0: {3: 0.5, 1: 0.25, 2: 0.75}, 1.0: {1: 0.5, 3: 0.0, 7: 1.0}})
    assert curve.rates == (1.0, 2.0) and curve.seeds == (1, 3)
    assert curve.scores.tolist() == [[0.5, 0.0], [0.25, 0.5]]
    assert RateCurve.of({1.0: {0: 1.0}, 2.0: {1: 1.0}}).scores.shape == (2, 0)


def test_of_equal_means_the_lowest_rate_is_best_even_after_rounding() -> None:
    assert sum([0.3, 0.2, 0.1]) / 3 < sum([0.1, 0.2, 0.3]) / 3  # the same scores in another order
    curve = curve_of([[0.3, 0.2, 0.1], [0.1, 0.2, 0.3], [0.0, 0.0, 0.0]])
    assert curve.best == 0
    assert curve_of([[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]).best == 1


# What other rates cost


@pytest.mark.parametrize(
    ("means", "half", "twice"),
    [
        ([0.6, 0.8, 0.5], 0.2, 0.3),
        ([0.8, 0.7, 0.5], None, 0.1),
        ([0.5, 0.6, 0.8], 0.2, None),
        ([0.8], None, None),
    ],
)
def test_losses_without_noise_are_read_off_the_curve(
    means: list[float], half: float | None, twice: float | None
) -> None:
    for side, loss in ((-1, half), (1, twice)):
        losses = sensitivity(flat_curve(means), side)
        assert losses == ({} if loss is None else pytest.approx(dict.fromkeys(range(4), loss)))


def test_a_half_of_the_seeds_whose_best_rate_is_at_the_edge_judges_no_loss() -> None:
    # seed 0 prefers the lowest rate, which has none below; seed 1 prefers the middle one, and seed 0 judges
    curve = curve_of([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    assert sensitivity(curve, -1) == {0: -1.0}
    assert sensitivity(curve, 1) == {0: 0.0, 1: -3.0}
    assert sensitivity(curve_of([[0.5], [0.7], [0.1]]), 1) == {}  # one seed cannot choose and judge


@pytest.mark.parametrize(
    ("rates", "index", "below", "above"),
    [
        ((5e-5, 7e-5, 1e-4, 1.4e-4, 2e-4), 2, 0, 4),
        ((5e-5, 7e-5, 1e-4, 1.4e-4, 2e-4), 3, 1, None),
        ((3.3e-5, 1e-4, 3e-4), 1, 0, 2),
        ((1e-4, 1.99e-4), 0, None, 1),  # rounded
        ((1e-4, 1.9e-4), 0, None, None),
    ],
)
def test_neighbors_are_half_and_twice_the_rate_or_the_nearest_beyond(
    rates: tuple[float, ...], index: int, below: int | None, above: int | None
) -> None:
    curve = flat_curve([0.5] * len(rates), rates)
    assert (curve.neighbor(index, -1), curve.neighbor(index, 1)) == (below, above)


@pytest.mark.parametrize(
    ("means", "margin", "octaves", "open_below", "open_above"),
    [
        ([0.70, 0.80, 0.78, 0.60], 0.05, 0.5 + 1 + 1 / 6, False, False),  # crosses .75 between rates
        ([0.80, 0.80, 0.60, 0.80], 0.05, 1 + 0.25, True, False),  # what recovers beyond a dip does not count
        ([0.60, 0.80, 0.80, 0.80], 0.05, 0.25 + 2, False, True),
        ([0.70, 0.80, 0.78, 0.60], 0.2, 3, True, True),
        ([0.60, 0.80, 0.60, 0.60], 0.0, 0, False, False),
        ([0.80], 0.05, 0, True, True),
    ],
)
def test_width_is_read_off_the_curve(
    means: list[float], margin: float, octaves: float, open_below: bool, open_above: bool
) -> None:
    width = width_in_octaves(flat_curve(means), margin)
    assert width == (pytest.approx(octaves), open_below, open_above)


def test_width_counts_octaves_not_rates() -> None:
    assert width_in_octaves(flat_curve([0.5, 0.5, 0.5], (1, 3, 9)), 0.02)[0] == pytest.approx(2 * np.log2(3))


@pytest.mark.parametrize("top", [-12.4, -11.0, -10.7])
def test_the_best_octave_is_the_top_of_the_parabola_through_the_best_rate(top: float) -> None:
    rates = [2.0**octave for octave in (-14, -12, -11, -10, -8)]
    scores = 0.8 - 0.05 * (np.log2(rates) - top) ** 2
    assert best_octave(rates, scores) == pytest.approx(top)


def test_the_best_octave_at_an_edge_is_the_edge_and_of_equal_scores_the_first_counts() -> None:
    rates = [1.0, 2.0, 4.0, 8.0]
    assert best_octave(rates, np.array([0.1, 0.2, 0.3, 0.4])) == 3
    assert best_octave(rates, np.array([0.7, 0.7, 0.5, 0.7])) == 0
    assert best_octave(rates, np.array([0.5, 0.7, 0.7, 0.1])) == pytest.approx(1.5)  # symmetric about 1.5


def test_shared_rates_are_those_of_two_arms_or_more() -> None:
    assert shared_rates([[1e-4, 2e-4], [2e-4, 4e-4], [4e-4, 8e-4]]) == [2e-4, 4e-4]
    assert shared_rates([[3 * 3.3e-5], [1e-4]]) == [3 * 3.3e-5] and shared_rates([[1e-4], [9.9e-5]]) == [1e-4]
    assert shared_rates([[1e-4, 2e-4]]) == shared_rates([]) == shared_rates([[1e-4], [1.03e-4]]) == []


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one rate"):
        RateCurve.of({})
    with pytest.raises(ValueError, match=r"9.9e-05 and 0.0001 are equal"):
        RateCurve.of({1e-4: {0: 1.0}, 9.9e-5: {0: 1.0}})
    with pytest.raises(ValueError, match="at least 2 seeds, not 1"):
        cross_fit(curve_of([[0.5]]))
    without_seeds = RateCurve.of({1.0: {0: 1.0}, 2.0: {1: 1.0}})
    with pytest.raises(ValueError, match="share no seed"):
        _ = without_seeds.best
    with pytest.raises(ValueError, match="share no seed"):
        width_in_octaves(without_seeds, 0.02)
    assert sensitivity(without_seeds, 1) == {}
