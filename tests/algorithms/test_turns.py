"""Credit over turns: returns and GAE against loops over turns, and what every credit is without turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.episodes import spans
from helpers.toys import close, reading, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms import ALGORITHMS, parts
from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput, Role
from grpobench.algorithms.gigpo import GiGPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.rloo import RLOO
from grpobench.algorithms.turns import Credit, turns_of
from grpobench.algorithms.vapo import VAPO

CREDITING = [name for name, cls in ALGORITHMS.items() if cls.credits_turns]
turn_lengths = st.lists(st.integers(1, 3), min_size=0, max_size=4)
groups_of_turns = st.lists(st.lists(turn_lengths, min_size=1, max_size=3), min_size=1, max_size=2)


pytestmark = pytest.mark.usefixtures("double")


class Noise:
    """A model of every role with random readings, the same in every call."""

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        generator = torch.Generator().manual_seed(len(role))
        logp, value = (torch.randn(batch.completion.shape, generator=generator) for _ in range(2))
        return reading(logp, value)


def episodes(groups: Sequence[Sequence[Sequence[int]]], seed: int = 0, **settings: Any) -> Batch:
    """Episodes with turns of these lengths, a reply of two tokens between them, and a reward of each turn."""
    flat = [turns for group in groups for turns in group]
    lengths = [[sum(turns) + 2 * max(0, len(turns) - 1) for turns in group] for group in groups]
    gaps: dict[int, list[int]] = {}
    for row, turns in enumerate(flat):
        starts = np.cumsum([length + 2 for length in turns[:-1]], dtype=int)
        gaps[row] = [int(end) - back for end in starts for back in (2, 1)]
    batch = rollouts(lengths, gaps=gaps, seed=seed, limit=40, **settings)
    drawn = torch.randn(batch.turn_reward.shape, generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(batch, turn_reward=drawn * (batch.turn_reward != 0))


def signal(algorithm: Algorithm[Any], batch: Batch) -> Any:
    return algorithm.compute_signal(batch, Noise())


def vagen(
    reward: np.ndarray, value: np.ndarray, turns: list[list[int]], gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """mll-lab-nu/VAGEN@3871795, vagen/algorithms/turn_level_gae/turn_level_gae.py, of one episode: a turn's
    reward is all that it collected, its value the critic's at its first token; (advantages of all tokens,
    returns at first tokens)."""
    advantage, returns = np.zeros_like(value), np.zeros_like(value)
    following = running = 0.0
    for positions in reversed(turns):
        first = value[positions[0]]
        running = reward[positions].sum() + gamma * following - first + gamma * lam * running
        advantage[positions] = running
        returns[positions[0]] = running + first
        following = first
    return advantage, returns


@given(
    groups_of_turns, st.integers(0, 99), st.sampled_from([0.0, 0.7, 1.0]), st.sampled_from([0.0, 0.9, 1.0])
)
def test_gae_over_turns_is_vagens(groups: Any, seed: int, gamma: float, lam: float) -> None:
    batch = episodes(groups, seed)
    settings: dict[str, Any] = {"discount": gamma, "trace": lam, "whiten": False, "beta": 0.1}
    algorithm = PPO(gae="turn", turn_rewards=0.5, **settings)
    ours = signal(algorithm, batch)
    value = Noise().forward("critic", batch).value
    reference = Noise().forward("reference", batch).logp
    reward = 0.5 * batch.turn_reward - 0.1 * (batch.old_logp - reference)
    for row, turns in enumerate(spans(batch)):
        rewards = reward[row].numpy().copy()
        if turns:
            rewards[turns[-1][-1]] += (batch.reward[row] - 0.5 * batch.turn_reward[row].sum()).item()
        advantage, returns = vagen(rewards, value[row].numpy(), turns, gamma, lam)
        close(ours.advantage[row], advantage)
        for positions in turns:  # and the critic learns it at the others too
            close(ours.returns[row, positions], [returns[positions[0]]] * len(positions))


@given(st.lists(st.lists(st.just(1), max_size=4), min_size=1, max_size=4), st.integers(0, 99))
def test_in_turns_of_one_token_gae_over_turns_is_gae_over_tokens(group: Any, seed: int) -> None:
    batch = episodes([group], seed)
    for algorithm in (PPO(discount=0.9, turn_rewards=1.0), VAPO(length_scale=0.7)):
        turnwise = signal(dataclasses.replace(algorithm, gae="turn"), batch)
        plain = signal(algorithm, batch)
        for name in ("advantage", "returns"):
            assert torch.equal(getattr(turnwise, name), getattr(plain, name)), name


def test_ppo_counts_rewards_of_turns_only_if_asked() -> None:
    batch = episodes([[[2, 3], [1]]])
    without = dataclasses.replace(batch, turn_reward=None)
    for gae in ("token", "turn"):
        assert torch.equal(signal(PPO(gae=gae), batch).returns, signal(PPO(gae=gae), without).returns)
        weighted, plain = PPO(gae=gae, turn_rewards=1.0, trace=1.0), PPO(gae=gae, trace=1.0)
        assert torch.equal(signal(weighted, without).returns, signal(plain, without).returns)
        # with λ = γ = 1 a return is what is still to come: all, and in the last turn less what was earned
        close(signal(weighted, batch).returns[:, 0], signal(plain, batch).returns[:, 0])
        last = signal(weighted, batch).returns[0, -1]
        close(last, batch.reward[0] - batch.turn_reward[0, 1])


@given(groups_of_turns, st.integers(0, 99), st.sampled_from([0.0, 0.8, 1.0]))
def test_a_turns_return_is_its_reward_and_the_discounted_next_one(
    groups: Any, seed: int, gamma: float
) -> None:
    batch = episodes(groups, seed)
    turns = turns_of(batch.completion_mask)
    expected = []
    for row, positions in enumerate(spans(batch)):
        running, of_row = 0.0, []
        paid = [0.5 * batch.turn_reward[row, of_turn[-1]].item() for of_turn in positions]
        for number, reward in enumerate(reversed(paid)):
            running = reward + gamma * running
            running += batch.reward[row].item() - sum(paid) if number == 0 else 0.0
            of_row.append(running)
        expected += of_row[::-1]
    close(Credit("discounted", gamma, 0.5).returns(batch, turns), expected)
    assert turns.row.tolist() == [row for row, positions in enumerate(spans(batch)) for _ in positions]


def test_turns_of_one_number_are_compared_and_a_shorter_episode_stands_with_its_last() -> None:
    """Each turn costs ½, and the right answer after two turns earns 1: rewards 0 and −½. First turns: −½ +
    ½·½ = −¼ against −½, so ±⅛. Second turns: ½ against the other's only one, −½, so ±½."""
    batch = episodes([[[2, 1], [1]]])
    cost = torch.where(batch.turn_reward != 0, -0.5, 0.0)
    batch = dataclasses.replace(batch, reward=torch.tensor([0.0, -0.5]), turn_reward=cost)
    algorithm = Modifiers(credit="discounted", credit_discount=0.5).around(GRPO(scale="none"))
    close(signal(algorithm, batch).advantage, [[0.125, 0.125, 0, 0, 0.5], [-0.125, 0, 0, 0, 0]])
    assert algorithm.observe(batch, signal(algorithm, batch)) == {"modify/turns": 1.5}


@pytest.mark.parametrize("name", CREDITING)
def test_without_discount_and_rewards_of_turns_a_credit_is_the_outcomes(name: str) -> None:
    names = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    rewarded = {"task_weight": 1.0, "k": 2}  # some learn from a teacher alone, or need k rows of a group
    plain = ALGORITHMS[name](**{key: value for key, value in rewarded.items() if key in names})
    batch = episodes([[[2, 1], [1], [3, 1, 1], []], [[1, 1], [2], [1], [2, 2]]], step=2)
    binary = (torch.arange(8) % 3 == 0).to(batch.reward.dtype)
    batch = dataclasses.replace(batch, reward=binary, scores={**batch.scores, "correct": binary})
    expected = signal(plain, batch)
    assert expected.advantage.any()
    discounted = Modifiers(credit="discounted", credit_discount=1.0, credit_rewards=0.0).around(plain)
    for field in dataclasses.fields(expected):
        assert torch.equal(getattr(signal(discounted, batch), field.name), getattr(expected, field.name))
    moved = signal(Modifiers(credit="discounted", credit_rewards=0.0).around(plain), batch)
    assert not torch.equal(moved.advantage, expected.advantage)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 99))
def test_an_episode_of_one_turn_has_the_outcomes_advantage(lengths: list[int], seed: int) -> None:
    batch = episodes([[[length] if length else [] for length in lengths]], seed)
    plain, rloo = signal(GRPO(), batch).advantage, signal(RLOO(), batch).advantage
    without = Modifiers(credit="discounted", credit_rewards=0.0).around(GRPO())
    assert torch.equal(signal(without, batch).advantage, plain)
    settings: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}  # r − w + w rounds, and equal rewards may differ
    close(signal(Modifiers(credit="discounted").around(RLOO()), batch).advantage, rloo, **settings)
    if all(lengths):  # an empty completion has no turn, and is in no group of turns
        anchored = Modifiers(credit="anchored", credit_weight=0.5).around(RLOO())
        close(signal(anchored, batch).advantage, 1.5 * rloo, **settings)


@pytest.mark.parametrize("anchor", ["reply", "exchange", "history"])
def test_anchored_credit_around_grpo_is_gigpo(anchor: Any) -> None:
    batch = episodes([[[2, 1], [2, 1], [1, 1, 1]], [[2, 1, 2], [2]]])
    batch = dataclasses.replace(batch, completion=batch.completion % 3)  # so that states recur
    ours = GiGPO(beta=0.0, anchor=anchor, step_weight=0.7, turn_rewards=0.5)
    modify = Modifiers(
        credit="anchored", credit_anchor=anchor, credit_discount=0.95, credit_weight=0.7, credit_rewards=0.5
    )
    grpo = modify.around(GRPO(epsilon=1e-6))
    assert torch.equal(signal(grpo, batch).advantage, signal(ours, batch).advantage)
    assert not torch.equal(signal(GRPO(epsilon=1e-6), batch).advantage, signal(ours, batch).advantage)
    measured = grpo.observe(batch, signal(grpo, batch))
    assert list(measured.values()) == list(ours.observe(batch, signal(ours, batch)).values())


def test_turns_around_an_advantage_of_tokens_keep_their_own() -> None:
    """An advantage of each token, as some algorithms have it, is taken from the turn's own row."""
    batch = episodes([[[2, 1], [2, 1]]])
    batch = dataclasses.replace(batch, completion=torch.zeros_like(batch.completion))

    def estimate(rows: Batch, models: object) -> torch.Tensor:
        return rows.reward[:, None] + torch.arange(rows.completion.shape[1]) * 10

    advantage = Credit("anchored", 0.5, 0.0, "history")(estimate, batch, Noise())
    position, reward = 10.0 * torch.arange(5), batch.reward[:, None]
    share = torch.tensor([0.5, 0.5, 0.0, 0.0, 1.0])
    close(advantage, reward + position + batch.completion_mask * (share * reward + position))


@given(groups_of_turns)
def test_a_mean_over_turns_is_a_mean_over_rows_that_are_turns(groups: Any) -> None:
    batch = episodes(groups)
    turns = [(row, of_turn) for row, of_row in enumerate(spans(batch)) for of_turn in of_row or [[]]]
    mask = torch.zeros(len(turns), batch.completion.shape[1], dtype=torch.bool)
    for number, (_, positions) in enumerate(turns):
        mask[number, positions] = True
    rows = batch[torch.tensor([row for row, _ in turns])]
    alone = parts.average(dataclasses.replace(rows, completion_mask=mask), "sequence_mean")
    by_turn = torch.zeros(batch.completion.shape).index_add(0, torch.tensor([row for row, _ in turns]), alone)
    close(parts.average(batch, "turn_mean"), by_turn)


@pytest.mark.parametrize("name", ["ppo", "dpo", "gdpo", "gigpo"])
def test_an_algorithm_that_cannot_credit_turns_refuses(name: str) -> None:
    modified = Modifiers(credit="discounted").around(ALGORITHMS[name]())
    with pytest.raises(ValueError, match=f"modify.credit: {name} "):
        modified.compute_signal(episodes([[[1], [2]]]), Noise())
