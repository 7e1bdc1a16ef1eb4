"""GAGPO by hand, against another's code on rows that are turns, and against GSPO."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.episodes import Episode, played, spans
from helpers.slopes import close_loss, metrics, objective, slope
from helpers.toys import Fixed, close, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.gagpo import GAGPO
from grpobench.algorithms.gspo import GSPO

pytestmark = pytest.mark.usefixtures("double")
ROUNDING = {"rtol": 1e-9, "atol": 1e-9}
"""float64 on both sides, whose sums have another order; 1/(std + 1e-6) multiplies 1e-16 by up to 1e6."""
PLAIN = GAGPO(beta=0.0, scale="none", baseline="none", discount=0.5)

tokens = st.lists(st.integers(2, 3), min_size=1, max_size=3)
turns = st.lists(st.tuples(tokens, st.sampled_from([(8,), (9,)])), max_size=3)
an_episode = st.builds(lambda before, last: [*before, (last, ())], turns, tokens)
"""Few tokens, so that states recur."""
some_groups = st.lists(st.lists(an_episode, min_size=1, max_size=4), min_size=1, max_size=2)
shares = st.sampled_from([0.0, 0.3, 0.8, 1.0])


def advantage(algorithm: GAGPO | GSPO, batch: Batch) -> torch.Tensor:
    return algorithm.compute_signal(batch, Fixed()).advantage


def moved(groups: Sequence[Sequence[Episode]], seed: int) -> tuple[Batch, torch.Tensor]:
    """The episodes with drawn rewards, also of turns, and log-probabilities of then and now."""
    generator = torch.Generator().manual_seed(seed)
    rewards = [(torch.randint(0, 3, (len(group),), generator=generator) / 2).tolist() for group in groups]
    batch = played(groups, rewards)
    ends = batch.turn_reward != 0
    paid = torch.randint(-2, 3, ends.shape, generator=generator) * 0.25 * ends
    old, step = (torch.randn(ends.shape, generator=generator) for _ in range(2))
    return dataclasses.replace(batch, turn_reward=paid, old_logp=old), old + 0.4 * step


def ucob_advantages(
    groups: Sequence[Sequence[Episode]], batch: Batch, gamma: float, lam: float, weight: float
) -> torch.Tensor:
    """TU2021/UCOB@d38292c, gigpo/core_gigpo.py: compute_step_discounted_returns, build_step_group by equal
    observations and compute_gagpo_outcome_advantage with mode mean_std_norm. A row is a turn; what a turn
    earned is its reward, and the last one's the rest of the episode's. Returned at the tokens, (B, T)."""
    rewards, observations, index = [], [], []
    flat = [(number, episode) for number, group in enumerate(groups) for episode in group]
    for row, (number, episode) in enumerate(flat):
        paid = [weight * batch.turn_reward[row, span[-1]].item() for span in spans(batch)[row]]
        rewards.append([*paid[:-1], batch.reward[row].item() - sum(paid[:-1])])
        observations.append([tuple(episode[k - 1][1]) if k else ("start",) for k in range(len(episode))])
        index.append(number)
    by_state = defaultdict(list)
    for row, earned in enumerate(rewards):
        running = 0.0
        for k in reversed(range(len(earned))):
            running = earned[k] + gamma * running
            by_state[index[row], observations[row][k]].append(running)
    value = {state: sum(of_state) / len(of_state) for state, of_state in by_state.items()}
    raw: list[list[float]] = []
    for row, earned in enumerate(rewards):
        of_turns = [value[index[row], observation] for observation in observations[row]]
        deltas = [
            earned[k] + gamma * following - of_turns[k] for k, following in enumerate([*of_turns[1:], 0.0])
        ]
        running, backward = 0.0, []
        for delta in reversed(deltas):
            running = delta + gamma * lam * running
            backward.append(running)
        raw.append(backward[::-1])
    table = torch.zeros(batch.completion.shape)
    for number in range(len(groups)):
        scores = torch.tensor([a for row, of_row in enumerate(raw) if index[row] == number for a in of_row])
        spread = scores.std(unbiased=False).clamp_min(1e-6) + 1e-6
        for row, of_row in enumerate(raw):
            for span, score in zip(spans(batch)[row], of_row, strict=True):
                if index[row] == number:
                    table[row, span] = (score - scores.mean()) / spread
    return table


def ucob_loss(
    batch: Batch, logp: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """TU2021/UCOB@d38292c, verl/trainer/ppo/core_algos.py: compute_policy_loss_gspo, which averages by
    seq-mean-token-mean, where a row is a turn."""
    losses = []
    for row, of_row in enumerate(spans(batch)):
        for span in of_row:
            mean = (logp - batch.old_logp)[row, span].mean().detach()
            ratio = (logp[row, span] - logp[row, span].detach() + mean).exp()
            gain = -advantages[row, span]
            losses.append(torch.maximum(gain * ratio, gain * ratio.clamp(1 - low, 1 + high)).mean())
    return torch.stack(losses).mean()


@given(some_groups, st.integers(0, 99), shares, shares, st.sampled_from([0.0, 1.0]))
def test_advantages_value_and_gradient_equal_those_of_ucob(
    groups: Any, seed: int, gamma: float, lam: float, weight: float
) -> None:
    batch, logp = moved(groups, seed)
    algorithm = GAGPO(
        beta=0.0, ddof=0, anchor="reply", discount=gamma, trace=lam, turn_rewards=weight, clip_low=0.1
    )
    expected = ucob_advantages(groups, batch, gamma, lam, weight)
    close(advantage(algorithm, batch), expected, **ROUNDING)
    close_loss(algorithm, batch, logp, lambda leaf: ucob_loss(batch, leaf, expected, 0.1, 0.2), **ROUNDING)


def test_temporal_advantages_by_hand() -> None:
    """Both episodes write 2 3, read 9 and go on from there, to rewards 1 and 0. Returns with γ = ½: ½ and 0,
    then 1 and 0; values ¼ and ½. Last turns: 1 − ½ and 0 − ½. First turns: ½·½ − ¼ = 0, and ½·0.8 of the
    last turn's ±½."""
    batch = played([[[((2, 3), (9,)), ((4,), ())], [((2, 3), (9,)), ((5,), ())]]], [[1.0, 0.0]])
    close(advantage(PLAIN, batch), [[0.2, 0.2, 0, 0.5], [-0.2, -0.2, 0, -0.5]])
    one_step = dataclasses.replace(PLAIN, trace=0.0)
    close(advantage(one_step, batch), [[0, 0, 0, 0.5], [0, 0, 0, -0.5]])
    # over the four turns: mean 0, variance (2·0.04 + 2·0.25)/3
    scaled = GAGPO(beta=0.0, discount=0.5)
    close(advantage(scaled, batch)[0, 3], 0.5 / ((0.58 / 3) ** 0.5 + 1e-6))
    assert scaled.observe(batch, scaled.compute_signal(batch, Fixed())) == {
        "advantage/anchored": 1.0,
        "advantage/turns": 2.0,
    }


@given(some_groups, shares)
def test_equal_rewards_without_discount_have_no_advantage(groups: Any, lam: float) -> None:
    batch = played(groups, [[0.1] * len(group) for group in groups])
    assert not advantage(GAGPO(beta=0.0, discount=1.0, trace=lam), batch).any()
    shorter = played([[[((2,), (9,)), ((4,), ())], [((3,), ())]]], [[1.0, 1.0]])
    assert advantage(GAGPO(beta=0.0), shorter)[1, 0] > 0  # else the shorter way is the better one


def test_without_recurring_states_the_first_turns_alone_learn() -> None:
    episodes: list[Episode] = [[((2,), (8,)), ((4,), ())], [((3,), (9,)), ((4,), ())], [((5,), ())]]
    batch = played([episodes], [[1.0, 0.0, 0.5]])
    first, *others = advantage(GAGPO(beta=0.0), batch).unbind(-1)
    assert first.all()
    close(torch.stack(others), torch.zeros(2, 3))  # the mean of the group's advantages is 0 but for rounding
    alone = [episodes[0]]
    assert not advantage(GAGPO(beta=0.0), played([alone], [[1.0]])).any()


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=2), st.integers(0, 9)
)
def test_in_one_turn_it_is_gspo(lengths: Any, seed: int) -> None:
    batch = rollouts(lengths, seed=seed)
    if not all(length for group in lengths for length in group):
        batch = dataclasses.replace(batch, reward=torch.ones_like(batch.reward))  # an empty one has no turn
    generator = torch.Generator().manual_seed(seed)
    logp = 0.3 * torch.randn(batch.old_logp.shape, generator=generator)
    shared: dict[str, Any] = {"clip_low": 0.1, "clip_high": 0.2, "epsilon": 1e-6, "beta": 0.02}
    ours, plain = GAGPO(**shared), GSPO(**shared)
    close(objective(ours, batch, logp), objective(plain, batch, logp), **ROUNDING)
    close(slope(ours, batch, logp), slope(plain, batch, logp), **ROUNDING)


@given(some_groups, st.integers(0, 99))
def test_a_ratio_is_that_of_the_whole_turn(groups: Any, seed: int) -> None:
    batch, logp = moved(groups, seed)
    log_ratio = (logp - batch.old_logp).masked_fill(~batch.completion_mask, 9.0)
    expected = torch.zeros_like(log_ratio)
    for row, of_row in enumerate(spans(batch)):
        for span in of_row:
            expected[row, span] = log_ratio[row, span].mean()
    close(parts.turn_mean(log_ratio, batch.completion_mask), expected)
    clipped = metrics(GAGPO(beta=0.0), batch, logp)["policy/clip_high"].bool()
    assert torch.equal(clipped, (expected.exp() > 1.2) & (advantage(GAGPO(beta=0.0), batch) > 0))
