"""Curves over learning rates: which rates lie beside the best one, and what they lose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.profiles import probe, rows
from scipy import stats

from grpobench.analysis.profile.agreement import agreement_lines, rate_agreements
from grpobench.analysis.profile.curves import NO_RUNS, ProbeCurve, RatePoint
from grpobench.analysis.profile.scores import COMMON_RATE, Profile, build
from grpobench.analysis.profile.table import common_text, loss_text


def point(rate: float, *scores: float, failed: tuple[int, ...] = ()) -> RatePoint:
    by_seed = {seed: score for seed, score in enumerate(scores) if seed not in failed}
    return RatePoint(rate, by_seed, failed, len(scores))


def test_beside_the_best_rate_are_the_nearest_of_half_or_less_and_twice_or_more() -> None:
    rates = (1e-4, 4e-4, 5e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 1e-2)
    made = ProbeCurve(1e-3, tuple(point(rate, 0.5) for rate in rates))
    assert (made.beside(-1).rate, made.beside(1).rate) == (5e-4, 2e-3)
    assert ProbeCurve(1e-2, made.points).beside(1) is NO_RUNS
    assert math.isnan(ProbeCurve(1e-2, made.points).loss(1).value)


def test_a_loss_is_over_the_seeds_that_fail_at_neither_rate() -> None:
    """By hand: seeds 0 and 3 count, and lose .1 and .3."""
    best, twice = point(1e-3, 0.8, 0.8, 0.0, 0.8, failed=(2,)), point(2e-3, 0.7, 0.0, 0.7, 0.5, failed=(1,))
    made = ProbeCurve(1e-3, (best, twice))
    loss = made.loss(1)
    interval = stats.ttest_1samp([0.1, 0.3], 0).confidence_interval(0.95)
    assert loss.value == pytest.approx(0.2) and (loss.low, loss.high) == pytest.approx(tuple(interval))
    assert loss_text(made, 1).endswith(" at 2e−3, 1/4 fail") and loss_text(made, -1) == ""


def test_where_all_seeds_fail_there_is_a_share_and_no_loss() -> None:
    made = ProbeCurve(1e-3, (point(1e-3, 0.8, 0.8), point(2e-3, 0.1, 0.1, failed=(0, 1))))
    assert loss_text(made, 1) == "– at 2e−3, 2/2 fail"


# Best rates and the common rate

SPREAD = (-0.01, 0.0, 0.0, 0.01)


def at_both(best: dict[str, float], common: dict[str, float], rate: float = 3e-3) -> Profile:
    """Algorithms with these scores at a best rate of 3e-3 and at the common one."""
    rows_of = {
        name: [
            *rows(name, "learn", [best[name] + shift for shift in SPREAD], rate),
            *rows(name, "learn", [common[name] + shift for shift in SPREAD], COMMON_RATE),
        ]
        for name in best
    }
    return build(rows_of, {"learn": probe("learn")}, {name: {"policy": rate} for name in best})


def test_pairs_told_apart_at_best_rates_and_at_the_common_rate_are_counted() -> None:
    """By hand: at best rates a < b < c, at the common rate b = c are above a in the other order."""
    made = at_both({"a": 0.1, "b": 0.5, "c": 0.9}, {"a": 0.9, "b": 0.5, "c": 0.5})
    (agreement,) = rate_agreements(made)
    assert (agreement.algorithms, agreement.moved, agreement.pairs) == (3, 3, 3)
    assert (agreement.transfer.told_apart, agreement.told_apart_at_common) == (3, 2)
    assert (agreement.transfer.same, agreement.transfer.reversed) == (0, 2)
    expected = stats.spearmanr([0.1, 0.5, 0.9], [0.9, 0.5, 0.5]).statistic
    assert agreement.transfer.rank.value == pytest.approx(expected)
    line = next(line for line in agreement_lines(made, [agreement]) if line.startswith("| the learn"))
    assert [cell.strip() for cell in line.split("|")[2:9]] == ["3", "3", "3", "3", "2", "0", "2"]
    assert common_text(made, "learn", "a") == "0.90"


def test_a_probe_on_which_every_best_rate_is_the_common_one_says_nothing() -> None:
    means = {"a": 0.1, "b": 0.5, "c": 0.9}
    rows_of = {
        name: rows(name, "learn", [mean + s for s in SPREAD], COMMON_RATE) for name, mean in means.items()
    }
    made = build(rows_of, {"learn": probe("learn")}, {name: {"policy": COMMON_RATE} for name in means})
    assert rate_agreements(made) == []
    assert "The kept runs allow no comparison: the learn." in agreement_lines(made, [])


def test_the_critics_rate_stays_at_other_rates_of_the_policy() -> None:
    a = [
        replace(row, critic_rate=1e-2) for rate in (1e-3, 3e-3) for row in rows("a", "learn", [0.5] * 4, rate)
    ]
    other = [replace(row, critic_rate=1e-4, outcome=0.0) for row in a]
    made = build({"a": a + other}, {"learn": probe("learn")}, {"a": {"policy": 3e-3, "critic": 1e-2}})
    assert [(p.rate, p.score.value, p.runs) for p in made.curve("learn", "a").points] == [
        (1e-3, 0.5, 4),
        (3e-3, 0.5, 4),
    ]
