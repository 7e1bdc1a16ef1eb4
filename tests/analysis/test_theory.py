"""Predictions of docs/theory.md: the enumeration against brute force, and against closed forms."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.analysis.figures.drawing import svg_text
from grpobench.analysis.record import Provenance, as_text
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.theory import comparison
from grpobench.analysis.theory.comparison import CheckedNumber, Theory
from grpobench.analysis.theory.estimators import (
    Formula,
    best_of_subsets,
    centered,
    from_greedy,
    from_median,
    leave_one_out,
    over_deviation,
    over_mean,
    plain_reward,
)
from grpobench.analysis.theory.figure import draw
from grpobench.analysis.theory.flips import NO_FLIPS, Flips
from grpobench.analysis.theory.moments import compositions, multinomial
from grpobench.analysis.theory.predictions import PREDICTIONS, Prediction, quantities
from grpobench.analysis.theory.scenarios import SCENARIOS, Scenario, scenario

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
"""Both sides are sums in double precision; only their order differs."""
RULES = (centered, leave_one_out, from_median, plain_reward, from_greedy, over_deviation, over_mean)
sizes = st.integers(2, 9)
chances = st.floats(0.02, 0.98)
flips = st.floats(0, 0.5)


# Against brute force


def brute(toy: Scenario, formula: Formula, size: int) -> tuple[np.ndarray, float]:
    """(E g, E ‖g‖²) by a loop over every sequence of completions of the one question."""
    now, old = toy.probability(toy.logits)[0], toy.probability(toy.sampling_logits)[0]
    mean, square = np.zeros(toy.gradient.shape), 0.0
    for rows in itertools.product(range(len(now)), repeat=size):
        reward = toy.rewards[0, list(rows)]
        advantage = formula.rule(reward, float(toy.greedy_rewards[0]))
        length = toy.length[list(rows)]
        total = np.zeros_like(mean)
        for row, a, tokens in zip(rows, advantage, length, strict=True):
            ratio = now[row] / old[row]
            factor = 1.0
            if formula.clip is not None:
                low, high = 1 - formula.clip[0], 1 + formula.clip[1]
                is_clipped = min(ratio * a, float(np.clip(ratio, low, high)) * a) != ratio * a
                factor = 0.0 if is_clipped else ratio
            factor /= {
                "completion": tokens,
                "token": length.mean(),
                "constant": toy.completions.shape[1],
                "sum": 1,
            }[formula.averaging]
            total += factor * a * toy.score[0, row] / size
        chance = math.prod(old[row] for row in rows)
        mean += chance * total
        square += chance * float(total @ total)
    return mean, square


def random_toy(
    draws: Sequence[float], rewards: Sequence[float], lengths: Sequence[int], step: float
) -> Scenario:
    """Three first tokens with these weights; `step` is how far the trained policy has moved."""
    weight = np.array(draws) / sum(draws)
    toy = scenario("toy", [weight.tolist()], lambda tokens: rewards[tokens[0]], lengths, max(lengths))
    if not step:
        return toy
    return dataclasses.replace(
        toy, logits=toy.logits + step * np.array([1.0, 0.0, -1.0]), old_logits=toy.logits
    )


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.1, 1.0), min_size=3, max_size=3),
    st.permutations([0.0, 0.5, 1.0]) | st.just([0.0, 1.0, 0.0]),
    st.sampled_from([(1, 1, 1), (2, 1, 2)]),
    st.sampled_from(RULES),
    st.sampled_from(["completion", "token", "constant", "sum"]),
    st.integers(2, 3),
    st.data(),
)
def test_moments_equal_a_loop_over_every_sequence(
    draws: list[float],
    rewards: list[float],
    lengths: tuple[int, ...],
    rule: Any,
    averaging: Any,
    size: int,
    data: st.DataObject,
) -> None:
    # with several tokens the ratio is one per token, which classes of completions do not have
    step = data.draw(st.sampled_from([0.0, 0.3])) if max(lengths) == 1 else 0.0
    clip = data.draw(st.sampled_from([None, (0.2, 0.2)]))
    toy = random_toy(draws, rewards, lengths, step)
    formula = Formula(rule, averaging, clip)
    moments = formula.moments(toy, size)
    mean, square = brute(toy, formula, size)
    np.testing.assert_allclose(moments.mean, mean, **EXACT)
    assert moments.square == pytest.approx(square, rel=1e-9, abs=1e-12)
    assert moments.chance == pytest.approx(1)


@given(st.integers(0, 7), st.integers(1, 4))
def test_compositions_are_all_ways_to_deal(size: int, classes: int) -> None:
    dealt = list(compositions(size, classes))
    assert len(set(dealt)) == len(dealt) == math.comb(size + classes - 1, classes - 1)
    assert all(sum(counts) == size and min(counts) >= 0 for counts in dealt)
    share = np.full(classes, 1 / classes)
    assert sum(multinomial(counts, share.tolist()) for counts in dealt) == pytest.approx(1)


@pytest.mark.parametrize("toy", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scores_have_mean_zero_and_the_gradient_is_that_of_the_mean_reward(toy: Scenario) -> None:
    probability = toy.probability(toy.logits)
    np.testing.assert_allclose(probability.sum(1), 1, **EXACT)
    np.testing.assert_allclose((probability[:, :, None] * toy.score).sum(1), 0, atol=1e-12)
    step = 1e-6
    numeric = []
    for index in np.ndindex(*toy.logits.shape):
        ends = []
        for sign in (1, -1):
            logits = toy.logits.copy()
            logits[index] += sign * step
            ends.append((toy.probability(logits) * toy.rewards).sum(1).mean())
        numeric.append((ends[0] - ends[1]) / (2 * step))
    np.testing.assert_allclose(toy.gradient, numeric, atol=1e-9)  # central differences: O(step²) and rounding


# Against closed forms, with rewards of 0 and 1


def one_right(p: float) -> Scenario:
    return scenario("one right", [[p, 0.6 * (1 - p), 0.4 * (1 - p)]], lambda tokens: float(tokens[0] == 0))


def numbers(
    formula: Formula, p: float, size: int, copies: int = 1, flips: Flips = NO_FLIPS
) -> dict[str, float]:
    toy = one_right(p)
    return quantities(toy, formula.moments(toy, size, copies, flips), size * copies)


def halves(size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(right, right) answers of groups with fewer than half right, (right, wrong) of groups with more."""
    return (
        [(s, s) for s in range(size + 1) if 2 * s < size],
        [(s, size - s) for s in range(size + 1) if 2 * s > size],
    )


@given(chances, sizes)
def test_gains_have_their_closed_forms(p: float, size: int) -> None:
    q = 1 - p
    choose = [math.comb(size, s) * p**s * q ** (size - s) for s in range(size + 1)]
    root = sum(c * math.sqrt(s * (size - s) * (size - 1) / size) for s, c in enumerate(choose))
    less, more = (sum(s * choose[n] for n, s in pairs) for pairs in halves(size))
    even = choose[size // 2] if size % 2 == 0 else 0.0
    forms = {
        from_median: (less / p + more / q) / size + even / (4 * p * q),
        plain_reward: 1.0,
        leave_one_out: 1.0,
        from_greedy: 1.0,
        centered: (size - 1) / size,
        over_mean: (1 - q ** (size - 1)) / p,
        over_deviation: root / (size * p * q),
    }
    for rule, gain in forms.items():
        # the ε of the divisions: 1e-4 over deviations of at least √(1/9)
        assert numbers(Formula(rule), p, size)["gain"] == pytest.approx(gain, rel=1e-3), rule
    for k in range(1, size):
        gain = (1 / k - 1 / size) * k * q ** (k - 1)
        assert numbers(Formula(best_of_subsets(k, False)), p, size)["gain"] == pytest.approx(gain, abs=1e-12)
    telling = 1 - p**size - q**size
    redrawn = numbers(Formula(centered, telling="redrawn"), p, size)["gain"]
    assert redrawn == pytest.approx((size - 1) / size / telling)
    scaled = numbers(Formula(centered, telling="scaled"), p, size, copies=3)["gain"]
    assert scaled == pytest.approx(redrawn * (1 - (1 - telling) ** 3))


@given(chances, sizes, flips, st.sampled_from(["rollout", "group", "answer"]))
def test_flips_scale_a_centered_gradient_by_1_minus_2p(p: float, size: int, share: float, kind: Any) -> None:
    clean, flipped = (numbers(Formula(centered), p, size, flips=f) for f in (NO_FLIPS, Flips(share, kind)))
    for name in ("advantage", "gain"):
        assert flipped[name] == pytest.approx((1 - 2 * share) * clean[name], abs=1e-12)
    assert flipped["sideways"] == pytest.approx(0, abs=1e-9)
    if kind == "group":  # the gradient changes its sign and nothing else
        square = clean["noise"] + size * clean["gain"] ** 2
        assert flipped["noise"] == pytest.approx(square - size * flipped["gain"] ** 2)


@given(chances, sizes, st.data())
def test_with_two_rewards_no_rule_leaves_the_direction_of_the_true_gradient(
    p: float, size: int, data: st.DataObject
) -> None:
    """Whatever a right and a wrong answer get, if it depends only on how many are right."""
    table = data.draw(st.lists(st.floats(-2, 2), min_size=2 * size + 2, max_size=2 * size + 2))

    def rule(reward: np.ndarray, greedy: float) -> np.ndarray:
        right = int(reward.sum())
        return np.where(reward == 1, table[2 * right], table[2 * right + 1])

    assert numbers(Formula(rule), p, size)["sideways"] == pytest.approx(0, abs=1e-8)


def test_division_by_the_deviation_does_leave_it_with_three_rewards_or_two_questions() -> None:
    for name in ("graded", "questions"):
        toy = SCENARIOS[name]
        assert quantities(toy, Formula(over_deviation).moments(toy, 8), 8)["sideways"] > 0.03
        assert quantities(toy, Formula(centered).moments(toy, 8), 8)["sideways"] == pytest.approx(0, abs=1e-9)


@given(st.integers(1, 4), sizes)
def test_each_further_token_adds_the_same_variance(tokens: int, size: int) -> None:
    """(1 − 1/V) E[A²]/G a token: the scores of tokens that do not matter are independent of the reward."""
    toy = scenario("chain", [(0.25,) * 4], lambda chain: float(chain[0] == 1), tokens=tokens)
    first = scenario("chain", [(0.25,) * 4], lambda chain: float(chain[0] == 1))
    formula = Formula(centered, "sum")
    square = 0.25 * 0.75 * (size - 1) / size  # of the centered reward
    added = formula.moments(toy, size).variance - formula.moments(first, size).variance
    assert added == pytest.approx((tokens - 1) * 0.75 * square / size)


def test_a_clip_that_all_ratios_have_passed_leaves_nothing() -> None:
    toy = SCENARIOS["moved"]
    assert not Formula(centered, clip=(0.1, 0.1)).moments(toy, 4).mean.any()
    old, now = 0.3, float(toy.probability(toy.logits)[0, 1])
    gains = {
        Formula(centered, clip=(1.0, 1e9)): 3 / 4,
        Formula(centered): 3 / 4 * old,  # right answers are clipped, wrong ones are not
        Formula(leave_one_out, clip=None): old * (1 - old) / (now * (1 - now)),
    }
    for formula, gain in gains.items():
        assert quantities(toy, formula.moments(toy, 4), 4)["gain"] == pytest.approx(gain)


def test_groups_that_an_average_couples_are_refused() -> None:
    with pytest.raises(ValueError, match="couples groups"):
        Formula(centered, "token").moments(SCENARIOS["lengths"], 4, copies=2)


# Beside measurements


def row(predicted: float, measured: float = 1.0, half: float = 0.1, quantity: str = "gain") -> CheckedNumber:
    return CheckedNumber(
        "a", "answers", "1 × 8", "formula", quantity, predicted, measured, measured - half, measured + half
    )


def of(*rows: CheckedNumber) -> Theory:
    return Theory(rows, Provenance("grpobench theory", {"(none)": 1}, {"python": ["3"]}, ["CPU"]))


def test_what_is_outside_is_told_apart_from_what_chance_explains() -> None:
    # half a 95 % interval is 1.96 standard errors; of 20 numbers 3.02 are allowed
    theory = of(*[row(1.0)] * 17, row(1.12), row(0.5), row(0.0, 0.0, 0.0))
    assert (len(theory.counted), len(theory.outside), len(theory.wrong)) == (19, 2, 1)
    text = " ".join(comparison.summary(theory))
    assert (
        "17 of 19" in text
        and "Chance does not explain: gain of a on answers (0.500 / 1.000 ± 0.100 *)" in text
    )
    assert "Chance explains them: about 1 would be" in " ".join(
        comparison.summary(of(*[row(1.0)] * 18, row(1.12)))
    )


def test_a_wrong_formula_is_noticed() -> None:
    """Leave-one-out batches, for which the group's mean is predicted."""
    rng = np.random.default_rng(0)
    toy, size, batches = SCENARIOS["answers"], 8, 2000
    rows = rng.choice(4, (batches, size), p=toy.probability(toy.logits)[0])
    reward = toy.rewards[0][rows]
    advantage = reward - (reward.sum(1, keepdims=True) - reward) / (size - 1)
    gradients = (advantage[:, :, None] * toy.score[0][rows]).mean(1)
    best = (advantage * (reward == 1)).mean(1) / 0.3
    for rule, wrong in ((leave_one_out, False), (centered, True)):
        prediction = Prediction("x", "answers", "grpo", Formula(rule), copies=1)
        checked = comparison.check(prediction, Formula(rule).moments(toy, size), gradients, best)
        assert bool(of(*checked).wrong) == wrong


def test_a_kept_table_is_read_back_and_drawn(tmp_path: Path) -> None:
    theory = of(
        row(1.0), row(1.5, quantity="advantage"), row(0.0, quantity="sideways"), row(0.9, quantity="noise")
    )
    path = tmp_path / "theory.json"
    path.write_text(as_text(theory.content()), encoding="utf-8")
    assert comparison.read(path).numbers == list(theory.numbers)
    assert "a" in comparison.render(theory, "table")[2]
    with pytest.raises(LogError, match="known: table, summary, provenance"):
        comparison.render(theory, "tables")
    svg = svg_text(draw(theory))
    assert "advantage of a on answers (1.500 / 1.000 ± 0.100 *)" in svg


def test_predictions_cover_what_the_page_promises() -> None:
    assert len({(p.name, p.scenario) for p in PREDICTIONS}) == len(PREDICTIONS) >= 20
    assert {p.scenario for p in PREDICTIONS} == SCENARIOS.keys()
    assert {p.algorithm for p in PREDICTIONS} >= {
        "grpo",
        "dr_grpo",
        "rloo",
        "remax",
        "maxrl",
        "passk",
        "gpg",
        "dapo",
    }
