"""The formulas of the algorithms, against numbers worked by hand, closed forms and exact enumeration."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.slopes import moved, objective, slope, surrounded
from helpers.toys import Fixed, close, reading, rollouts
from hypothesis import example, given
from hypothesis import strategies as st

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, ModelOutput
from grpobench.algorithms.dpo import DPO, pair_up
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.ppo import PPO, CriticTargets

pytestmark = pytest.mark.usefixtures("double")


def zeros(batch: Batch) -> ModelOutput:
    """A reading of zeros."""
    nothing = torch.zeros_like(batch.old_logp)
    return reading(nothing, nothing)


# Advantages


def test_sum_of_group_advantages_is_zero_and_scale_is_the_named_deviation() -> None:
    reward = torch.tensor([1.0, 2.0, 3.0, 6.0, 10.0])
    group = torch.tensor([7, 7, 7, 2, 2])
    # group 7: mean 2, deviations ±1, ddof 1 → std 1, ddof 0 → √(2/3); group 2: mean 8, std √8 or 2
    close(parts.group_advantage(reward, group, "mean", "none", 1, 1e-9), [-1.0, 0.0, 1.0, -2.0, 2.0])
    tolerance = {"rtol": 1e-7, "atol": 1e-8}  # ε = 1e-9 in the denominator
    close(
        parts.group_advantage(reward, group, "mean", "group", 1, 1e-9),
        [-1.0, 0.0, 1.0, -(0.5**0.5), 0.5**0.5],
        **tolerance,
    )
    close(
        parts.group_advantage(reward, group, "mean", "group", 0, 1e-9),
        [-(1.5**0.5), 0.0, 1.5**0.5, -1.0, 1.0],
        **tolerance,
    )
    # whole batch: mean 4.4, squares 11.56+5.76+1.96+2.56+31.36 = 53.2, over 4 → 13.3
    close(
        parts.group_advantage(reward, group, "mean", "batch", 1, 1e-9),
        [x / 13.3**0.5 for x in (-1.0, 0.0, 1.0, -2.0, 2.0)],
        **tolerance,
    )


def test_centered_rewards_of_a_batch_are_divided_by_their_own_deviation() -> None:
    """Rewards 0, 2 and 10, 12: centered ±1, deviation √(4/3); that of the rewards is √(104/3)."""
    reward, group = torch.tensor([0.0, 2.0, 10.0, 12.0]), torch.tensor([0, 0, 1, 1])
    for scale, deviation in (("batch_centered", 4 / 3), ("batch", 104 / 3)):
        advantage = parts.group_advantage(reward, group, "mean", scale, 1, 1e-12)
        close(advantage, [x / deviation**0.5 for x in (-1.0, 1.0, -1.0, 1.0)], rtol=1e-9, atol=0.0)


def test_median_of_an_even_group_is_the_mean_of_the_middle_two() -> None:
    reward, group = torch.tensor([0.0, 1.0, 3.0, 10.0, 5.0]), torch.tensor([0, 0, 0, 0, 1])
    close(parts.group_baseline(reward, group, "median"), [2.0, 2.0, 2.0, 2.0, 5.0])


COMPARING: tuple[parts.Baseline, ...] = ("mean", "median", "leave_one_out")
"""Baselines that compare a reward with others; without one, equal rewards are advantages."""


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-1e6, 1e6)), min_size=1, max_size=12),
    st.integers(0, 1),
)
@example([(0, 0.1), (0, 0.1), (0, 0.1), (1, 5.0)], 1)  # 0.1 + 0.1 + 0.1 is not 0.3
def test_group_of_equal_rewards_gets_exactly_zero(rows: list[tuple[int, float]], ddof: int) -> None:
    group, reward = torch.tensor([g for g, _ in rows]), torch.tensor([r for _, r in rows])
    equal = parts.group_equal(reward, group)
    assert equal.tolist() == [len({r for g, r in rows if g == number}) == 1 for number, _ in rows]
    for baseline, scale in itertools.product(COMPARING, parts.Scale.__args__):
        advantage = parts.group_advantage(reward, group, baseline, scale, ddof, 1e-6)
        assert advantage.isfinite().all() and not advantage[equal].any()


@given(st.lists(st.integers(-3, 5), max_size=12), st.sampled_from([torch.float32, torch.float64]))
def test_groups_are_numbered_as_by_unique(numbers: list[int], dtype: torch.dtype) -> None:
    """Means keep their bits: each is the same sum in the same order."""
    group = torch.tensor(numbers, dtype=torch.long)
    names, inverse, count = group.unique(return_inverse=True, return_counts=True)
    number, rows = parts.numbered(group)
    assert number.equal(inverse) and rows[: len(names)].equal(count) and not rows[len(names) :].any()
    value = torch.linspace(0.1, 0.7, len(group), dtype=dtype).requires_grad_()
    mean = (value.new_zeros(len(count)).index_add(0, inverse, value) / count)[inverse]
    ours = parts.group_mean(value, group)
    assert ours.equal(mean)
    gradients = [torch.autograd.grad(x.square().sum(), value)[0] for x in (ours, mean)]
    close(*gradients)


# Equalities between algorithms


def test_gspo_equals_grpo_on_responses_of_one_token() -> None:
    batch = rollouts([[1, 1, 1], [1, 1]], [[1.0, 0.0, 0.5], [0.0, 1.0]])
    batch, logp = surrounded(batch)
    for level in ("sequence", "token"):
        gspo, grpo = (cls(clip_low=0.1, clip_high=0.15, beta=0.1) for cls in (GSPO, GRPO))
        gspo = dataclasses.replace(gspo, level=level)
        close(objective(gspo, batch, logp), objective(grpo, batch, logp))
        close(slope(gspo, batch, logp), slope(grpo, batch, logp))


def test_gspo_ratio_is_the_geometric_mean_of_token_ratios() -> None:
    batch = rollouts([[2, 3]], [[1.0, 0.0]])
    batch = dataclasses.replace(batch, old_logp=torch.zeros(2, 3))
    logp = torch.tensor([[0.2, -0.1, 9.0], [0.3, 0.0, 0.3]])  # the 9 stands on padding
    # s = exp(0.05), exp(0.2); A = ±1/√2 (mean ½, sample std 1/√2); wide clip, so loss = −½ Σ s·A
    wide = GSPO(clip_low=0.9, clip_high=0.9, epsilon=1e-12)
    expected = -0.5 * (math.exp(0.05) - math.exp(0.2)) * 0.5**0.5
    close(objective(wide, batch, logp), expected)
    # clip 0.1: the response with A < 0 and s = 1.22 stays unclipped, as does A > 0 with s = 1.05
    close(objective(dataclasses.replace(wide, clip_low=0.1, clip_high=0.1), batch, logp), expected)
    # clip 0.01: A > 0 is held at 1.01
    tight = dataclasses.replace(wide, clip_low=0.01, clip_high=0.01)
    close(objective(tight, batch, logp), -0.5 * (1.01 - math.exp(0.2)) * 0.5**0.5)


def test_ppo_without_discount_and_critic_is_reinforce_with_the_return() -> None:
    batch, _ = moved()
    ppo = PPO(trace=1.0, discount=1.0, whiten=False)
    tokens = batch.completion_mask.sum()
    gradient = slope(ppo, batch, batch.old_logp, critic=zeros(batch))
    close(gradient, -batch.reward[:, None] * batch.completion_mask / tokens)


def test_ppo_with_kl_in_the_reward_is_reinforce_with_the_return_to_go() -> None:
    batch = rollouts([[3]], [[1.0]])
    batch = dataclasses.replace(batch, old_logp=torch.tensor([[-1.0, -2.0, -3.0]]))
    ppo = PPO(trace=1.0, whiten=False, beta=0.1)  # reference log-probabilities are 0: k1 = −1, −2, −3
    # rewards .1, .2, 1.3; returns to go 1.6, 1.5, 1.3
    gradient = slope(ppo, batch, batch.old_logp, critic=zeros(batch), reference=zeros(batch))
    close(gradient, [[-1.6 / 3, -1.5 / 3, -1.3 / 3]])


def test_clipped_objective_by_hand() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.5, 1.5, 1.1])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    # min(ρA, clip(ρ, .8, 1.28)·A): .5 | −.8 | 1.28 | −1.5 | 2.2
    clipped = parts.clipped_objective(ratio, advantage, 0.2, 0.28)
    close(clipped, [0.5, -0.8, 1.28, -1.5, 2.2])
    shares = parts.clip_shares(ratio, advantage, 0.2, 0.28)
    assert shares["policy/clip_low"].tolist() == [0, 1, 0, 0, 0]
    assert shares["policy/clip_high"].tolist() == [0, 0, 1, 0, 0]


# Credit over time


@st.composite
def trajectories(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, float]:
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    number = st.floats(-3, 3)
    table = [[draw(number) for _ in range(columns)] for _ in range(2 * rows)]
    written = torch.tensor([[draw(st.booleans()) for _ in range(columns)] for _ in range(rows)])
    both = torch.tensor(table)
    return both[:rows] * written, both[rows:], written, draw(st.floats(0, 1)), draw(st.floats(0, 1))


@given(trajectories())
def test_gae_is_the_discounted_sum_of_errors_over_written_tokens(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, float],
) -> None:
    reward, value, written, discount, trace = case
    advantage = parts.generalized_advantage(reward, value, written, discount, trace)
    for row in range(len(reward)):
        positions = written[row].nonzero().squeeze(-1).tolist()  # tool output and padding are stepped over
        r, v = (
            reward[row, positions].tolist(),
            [*value[row, positions].tolist(), 0.0],
        )  # nothing beyond the end
        delta = [r[k] + discount * v[k + 1] - v[k] for k in range(len(r))]
        for k, t in enumerate(positions):
            direct = sum((discount * trace) ** n * d for n, d in enumerate(delta[k:]))
            assert advantage[row, t].item() == pytest.approx(direct, rel=1e-9, abs=1e-12)
    assert not advantage[~written].any()


def test_terminal_reward_is_on_last_written_token_despite_gap_or_cut() -> None:
    written = torch.tensor(
        [
            [True, True, True, False],  # ended, then padding
            [True, True, True, True],  # cut by the limit
            [True, False, True, False],  # tool output inside
            [True, True, False, False],  # tool output last
            [False, False, False, False],  # empty
        ]
    )
    expected = [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert parts.last_written(written).int().tolist() == expected


def test_truncated_completion_is_not_bootstrapped_past_its_end() -> None:
    batch = rollouts([[2, 3]], [[1.0, 1.0]], limit=3)  # the second one is as long as the limit
    assert batch.stopped.tolist() == [True, False]
    value = torch.tensor([[0.4, 0.6, 9.0], [0.4, 0.6, 0.8]])  # the 9 stands on padding
    signal = PPO(trace=0.5, discount=0.5, whiten=False).compute_signal(
        batch, Fixed(critic=reading(value, value))
    )
    # row 0: δ = −.1, .4 → A = −.1 + .25·.4, .4; row 1: δ = −.1, −.2, .2 → A_2 = .2, A_1 = −.15, A_0 = −.1375
    close(signal.advantage, [[0.0, 0.4, 0.0], [-0.1375, -0.15, 0.2]])
    close(signal.returns, [[0.4, 1.0, 0.0], [0.2625, 0.45, 1.0]])


def test_returns_do_not_depend_on_whitening() -> None:
    batch, value = moved()
    plain, white = (
        PPO(whiten=w).compute_signal(batch, Fixed(critic=reading(value, value))) for w in (False, True)
    )
    close(white.returns, plain.returns)
    close(white.advantage[batch.completion_mask].mean(), 0.0)
    close(white.advantage[batch.completion_mask].var(correction=0), 1.0, rtol=1e-6, atol=0.0)  # ε = 1e-8


@given(trajectories())
def test_whitening_gives_zero_mean_and_unit_variance_over_written_tokens(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, float],
) -> None:
    _, value, written, _, _ = case
    whitened = parts.whiten(value, written)
    assert whitened.isfinite().all()
    assert not whitened[~written].any()
    inside = value[written]
    if len(inside) and (inside - inside[0]).abs().max() > 1e-2:
        close(whitened[written].mean(), 0.0, rtol=0.0, atol=1e-9)
        close(
            whitened[written].var(correction=0), 1.0, rtol=1e-2, atol=0.0
        )  # ε = 1e-8 beside a variance ≥ 7e-6


def test_whitening_by_hand_and_of_equal_values() -> None:
    written = torch.tensor([[True, True, False], [True, True, False]])
    value = torch.tensor([[1.0, 3.0, 50.0], [3.0, 5.0, 50.0]])  # mean 3, variance 2
    close(parts.whiten(value, written), [[-(2**0.5), 0, 0], [0, 2**0.5, 0]], rtol=1e-7, atol=1e-12)
    assert not parts.whiten(torch.full((2, 3), 0.3), written).any()


# The critic


def test_value_loss_takes_the_larger_of_the_plain_and_the_clipped_error() -> None:
    batch = rollouts([[5]], [[1.0]])
    value = torch.tensor([[0.5, 0.5, 0.0, -0.5, 0.1]])
    returns = torch.tensor([[1.0, 0.0, 1.0, -1.0, 1.0]])
    signal = CriticTargets(torch.tensor([0]), value * 0, returns, torch.zeros(1, 5), value[:, :0])
    leaf = value.clone().requires_grad_()
    critic_only = {"critic": reading(value, leaf)}
    loss = PPO(value_clip=0.2).loss(batch, signal, critic_only)
    # clipped values .2, .2, 0, −.2, .1; plain (V−R)² .25 .25 1 .25 .81; clipped (V'−R)² .64 .04 1 .64 .81
    close(loss.terms, [[0.32, 0.125, 0.5, 0.32, 0.405]])
    assert loss.metrics["critic/value_clip"].tolist() == [[1, 0, 0, 1, 0]]
    close(loss.metrics["critic/loss"], [[0.32, 0.125, 0.5, 0.32, 0.405]])
    loss.terms.sum().backward()
    # no gradient where the clipped error is the larger; V − R elsewhere (a tie is shared by both branches)
    close(leaf.grad, [[0.0, 0.5, -1.0, 0.0, -0.9]])
    free = PPO(value_clip=0.0).loss(batch, signal, {"critic": reading(value, value)})
    close(free.terms, [[0.125, 0.125, 0.5, 0.125, 0.405]])


def test_value_loss_alone_is_weighed_by_its_coefficient() -> None:
    batch = rollouts([[1]], [[1.0]])
    signal = CriticTargets(
        torch.tensor([0]), torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1, 0)
    )
    now = {"critic": reading(torch.zeros(1, 1), torch.zeros(1, 1))}
    close(PPO(value_coefficient=0.5).loss(batch, signal, now).terms, [[0.25]])


# Preference pairs


def paired(rewards: Sequence[float], lengths: Sequence[int], groups: Sequence[int], most: int = 0) -> Any:
    unit, sign = pair_up(
        torch.tensor([float(r) for r in rewards]),
        [[row] * length for row, length in enumerate(lengths)],
        torch.tensor(groups),
        most,
    )
    pairs: dict[int, dict[float, int]] = {}
    for row, (number, side) in enumerate(zip(unit.tolist(), sign.tolist(), strict=True)):
        assert (number < 0) == (side == 0)
        if number >= 0:
            assert side not in pairs.setdefault(number, {})
            pairs[number][side] = row
    return sorted((pair[1.0], pair[-1.0]) for pair in pairs.values())


def test_best_meets_worst_and_ties_make_no_pair() -> None:
    # one group: 3 > 2 > 1 > 0 → (row of 3, row of 0), (row of 2, row of 1)
    assert paired([1, 3, 0, 2], [5, 5, 5, 5], [0] * 4) == [(1, 2), (3, 0)]
    # equal rewards: none; two against two of the same: one pair per better row
    assert paired([1, 1, 1], [1, 2, 3], [0] * 3) == []
    # rewards 1, 1, 0, 0: the shorter chosen meets the shorter rejected
    assert paired([1, 0, 1, 0], [9, 4, 2, 6], [0] * 4) == [(0, 3), (2, 1)]
    # 1 of 4: one pair, with the shortest of the equally bad
    assert paired([0, 0, 1, 0], [7, 3, 5, 9], [0] * 4) == [(2, 1)]
    # an odd group leaves its middle row out; groups do not mix
    assert paired([0, 2, 1, 5, 4], [1] * 5, [3, 3, 3, 8, 8]) == [(1, 0), (3, 4)]
    assert paired([3, 2, 1, 0], [1] * 4, [0] * 4, most=1) == [(0, 3)]
    assert paired([1.0], [4], [0]) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 5)),
        min_size=1,
        max_size=14,
    ),
    st.integers(0, 2),
)
def test_pairs_are_strictly_better_in_one_group_and_share_no_row(
    rows: list[tuple[int, float, int]], most: int
) -> None:
    groups, rewards, lengths = (list(column) for column in zip(*rows, strict=True))
    pairs = paired(rewards, lengths, groups, most)
    used = [row for pair in pairs for row in pair]
    assert len(used) == len(set(used))
    for chosen, rejected in pairs:
        assert groups[chosen] == groups[rejected]
        assert rewards[chosen] > rewards[rejected]
    for number in set(groups):
        mine = [r for g, r in zip(groups, rewards, strict=True) if g == number]
        count = sum(groups[chosen] == number for chosen, _ in pairs)
        # the most pairs that are possible: k best strictly above k worst
        possible = max(
            k
            for k in range(len(mine) // 2 + 1)
            if all(a > b for a, b in zip(sorted(mine)[::-1][:k], sorted(mine), strict=False))
        )
        assert count == (min(possible, most) if most else possible)


def preference_loss(algorithm: DPO) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    """Two pairs of two-token completions, h = 2 and −1: (loss, metrics, rows used)."""
    batch = rollouts([[2, 2], [2, 2]], [[1.0, 0.0], [0.0, 1.0]])
    logp = torch.tensor([[-1.0, -1.0], [-2.0, -3.0], [-1.0, -2.0], [-2.0, -2.0]])
    reference = torch.tensor([[-1.0, -2.0], [-2.0, -2.0], [-2.0, -2.0], [-2.0, -2.0]])
    # group 0: chosen −2 − (−3) = 1, rejected −5 − (−4) = −1: h = 2; group 1: chosen 0, rejected 1: h = −1
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(reference)))
    loss = algorithm.loss(batch, signal, {"policy": reading(logp)})
    return (loss.terms * algorithm.loss_weights(batch)).sum(), dict(loss.metrics), signal.sign


def test_dpo_and_nll_by_hand() -> None:
    def log_sigmoid(x: float) -> float:
        return -math.log1p(math.exp(-x))

    sigmoid = -(log_sigmoid(0.5 * 2) + log_sigmoid(0.5 * -1)) / 2
    loss, metrics, sign = preference_loss(DPO(beta=0.5))
    close(loss, sigmoid)
    assert sign.tolist() == [1, -1, -1, 1]
    close(metrics["preference/margin"], [1.0, 1.0, -0.5, -0.5])
    assert metrics["preference/accuracy"].tolist() == [1, 1, 0, 0]
    assert metrics["preference/pairs"].sum() == 2
    assert metrics["preference/chosen_logp"].nan_to_num(7).tolist() == [-2, 7, 7, -4]
    assert metrics["preference/rejected_logp"].nan_to_num(7).tolist() == [7, -5, -3, 7]
    # mean −log π per token of the chosen: 1 and 2
    close(preference_loss(DPO(beta=0.5, nll=0.1))[0], sigmoid + 0.1 * (1 + 2) / 2)


# Estimators of the KL divergence, on policies whose samples can all be listed


def enumerated(logits: torch.Tensor, estimator: parts.Estimator) -> torch.Tensor:
    """E_π[∇ estimate] of a policy over five one-token sequences, through the loss of GRPO: every sequence is
    one row, weighed with its probability, and rewards are equal so that only the penalty is left."""
    leaf = logits.clone().requires_grad_()
    logp = leaf.log_softmax(-1)
    batch = rollouts([[1] * 5], [[1.0] * 5])
    batch = dataclasses.replace(batch, old_logp=logp.detach()[:, None])
    algorithm = GRPO(beta=1.0, kl_estimator=estimator)
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(REFERENCE[:, None])))
    terms = algorithm.loss(batch, signal, {"policy": reading(logp[:, None])}).terms
    weights = logp.detach().exp()[:, None]  # the expectation over samples, not differentiated
    return torch.autograd.grad((terms * weights).sum(), leaf)[0]


LOGITS = torch.tensor([0.5, -0.2, 1.0, 0.1, -1.5], dtype=torch.float64)
REFERENCE = torch.tensor([0.3, -1.0, 0.4, 1.0, -0.5], dtype=torch.float64).log_softmax(-1)


def true_gradient() -> torch.Tensor:
    leaf = LOGITS.clone().requires_grad_()
    logp = leaf.log_softmax(-1)
    return torch.autograd.grad((logp.exp() * (logp - REFERENCE)).sum(), leaf)[0]


def test_expected_gradient_of_k1_in_the_loss_is_zero() -> None:
    close(enumerated(LOGITS, "k1"), torch.zeros(5))
    assert true_gradient().abs().max() > 0.05


def test_expected_gradients_of_k2_and_unbiased_k3_are_that_of_the_kl() -> None:
    close(enumerated(LOGITS, "k2"), true_gradient())
    close(enumerated(LOGITS, "k3_unbiased"), true_gradient())


def test_expected_gradient_of_k3_is_that_of_the_reverse_divergence() -> None:
    gradient = enumerated(LOGITS, "k3")
    assert (gradient - true_gradient()).abs().max() > 0.02
    close(gradient, LOGITS.softmax(-1) - REFERENCE.exp())  # ∇ KL(π_ref ‖ π), softmax's classic π − π_ref


def test_kl_estimates_are_unbiased_as_numbers() -> None:
    logp = LOGITS.log_softmax(-1)
    kl = (logp.exp() * (logp - REFERENCE)).sum()
    ones = torch.ones(5)
    for kind in ("k1", "k3"):
        close((logp.exp() * parts.kl_estimate(logp, REFERENCE, kind, ones)).sum(), kl)
    # x = ½: k1 = ln 2, k2 = ½ ln² 2, k3 = ln 2 − ½
    point = [
        parts.kl_estimate(torch.zeros(1), torch.tensor([0.5]).log(), kind, 3 * torch.ones(1)).item()
        for kind in ("k1", "k2", "k3", "k3_unbiased")
    ]
    ln2 = math.log(2)
    assert point == pytest.approx([ln2, ln2**2 / 2, ln2 - 0.5, 3 * (ln2 - 0.5)])


def test_kl_in_the_reward_has_the_true_expected_gradient() -> None:
    leaf = LOGITS.clone().requires_grad_()
    logp = leaf.log_softmax(-1)
    batch = rollouts([[1] * 5], [[0.0] * 5])
    batch = dataclasses.replace(batch, old_logp=logp.detach()[:, None])
    reward = parts.kl_penalized_reward(batch, REFERENCE[:, None], 1.0)
    surrogate = (logp.detach().exp() * reward * logp).sum()
    close(-torch.autograd.grad(surrogate, leaf)[0], true_gradient())


def test_kl_in_the_reward_is_subtracted_before_the_group_is_normalized() -> None:
    batch = rollouts([[2, 2]], [[1.0, 1.0]])
    batch = dataclasses.replace(batch, old_logp=torch.tensor([[-1.0, -1.0], [-3.0, -1.0]]))
    algorithm = GRPO(beta=0.1, kl_placement="reward", scale="none")
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(torch.full((2, 2), -1.5))))
    # Σ k1 = 1 and −1: rewards .9 and 1.1
    close(signal.advantage, [[-0.1, -0.1], [0.1, 0.1]])


# Averaging


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(6, 20))
def test_mean_weights_add_up_to_one(lengths: list[int], limit: int) -> None:
    batch = rollouts([lengths], limit=limit)
    filled = sum(length > 0 for length in lengths)
    weights = {kind: parts.average(batch, kind) for kind in parts.Averaging.__args__}
    # a response without a token has nothing to carry its share
    assert weights["sequence_mean"].sum().item() == pytest.approx(filled / len(lengths))
    assert weights["sequence_sum"].sum().item() == pytest.approx(sum(lengths) / len(lengths))
    assert weights["token_mean"].sum().item() == pytest.approx(float(filled > 0))
    assert weights["turn_mean"].sum().item() == pytest.approx(filled / len(lengths))
    assert weights["prompt_mean"].sum().item() == pytest.approx(float(filled > 0))
    assert weights["constant"].sum().item() == pytest.approx(sum(lengths) / len(lengths) / limit)
    assert not any(table[~batch.completion_mask].any() for table in weights.values())


def test_every_problem_counts_the_same_in_the_mean_over_prompts() -> None:
    """Groups of 4, 2 and no tokens: a third of the loss each, and the empty one's third is nobody's."""
    batch = rollouts([[1, 3], [2], [0]], gaps={2: ()})
    batch = dataclasses.replace(batch, group=torch.tensor([7, 7, 2, 5]))
    expected = [[1 / 12, 0, 0], [1 / 12, 1 / 12, 1 / 12], [1 / 6, 1 / 6, 0], [0, 0, 0]]
    close(parts.average(batch, "prompt_mean"), expected)


def test_the_mean_over_prompts_is_the_mean_of_each_prompts_own_gradient() -> None:
    """ScaleRL's expectation over prompts of Σ_i Σ_t …/Σ|o_i|, each prompt in a batch of its own."""
    batch, logp = moved()
    algorithm = GRPO(averaging="prompt_mean")
    alone = []
    for number in (0, 1):
        rows = (batch.group == number).nonzero().squeeze(-1)
        alone.append(slope(GRPO(averaging="token_mean"), batch[rows], logp[rows]) / 2)
    close(slope(algorithm, batch, logp), torch.cat(alone))


def test_weights_by_hand() -> None:
    batch = rollouts([[1, 3]], limit=5)
    close(parts.average(batch, "sequence_mean"), [[1 / 2, 0, 0], [1 / 6, 1 / 6, 1 / 6]])
    close(parts.average(batch, "sequence_sum"), [[1 / 2, 0, 0], [1 / 2, 1 / 2, 1 / 2]])
    close(parts.average(batch, "token_mean"), [[1 / 4, 0, 0], [1 / 4, 1 / 4, 1 / 4]])
    close(parts.average(batch, "constant"), [[1 / 10, 0, 0], [1 / 10, 1 / 10, 1 / 10]])
    close(parts.average(batch, "prompt_mean"), [[1 / 4, 0, 0], [1 / 4, 1 / 4, 1 / 4]])  # one group
    close(parts.per_sequence(batch), [1 / 2, 1 / 2])
    close(DPO().loss_weights(batch), [1.0, 1.0])  # one pair, each of its rows carrying half a term
