"""GiGPO by hand, against the authors' two advantages and against GRPO."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch
from helpers.episodes import Episode, played
from helpers.toys import Fixed, rollouts

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.gigpo import GiGPO
from grpobench.algorithms.grpo import GRPO


def advantage(algorithm: GiGPO | GRPO, batch: Batch) -> torch.Tensor:
    return algorithm.compute_signal(batch, Fixed()).advantage


PLAIN = GiGPO(beta=0.0, scale="none", discount=0.5)


def test_turns_of_one_state_are_compared_by_discounted_rewards() -> None:
    """Both episodes write 2 3, read 9 and go on from there, to rewards 1 and 0. Episodes: ±1/2. First turns:
    ½ against 0, ±1/4. Second turns: 1 against 0, ±1/2."""
    batch = played([[[((2, 3), (9,)), ((4,), ())], [((2, 3), (9,)), ((5,), ())]]], [[1.0, 0.0]])
    advantages = advantage(PLAIN, batch)
    assert advantages.tolist() == [[0.75, 0.75, 0.0, 1.0], [-0.75, -0.75, 0.0, -1.0]]


def test_anchor_says_which_turns_begin_in_one_state() -> None:
    """The second turns follow equal replies, to different turns in the second episode; the last ones equal
    exchanges, after different histories."""
    same, other = ((2,), (9,)), ((3,), (9,))
    episodes = [[same, ((4,), (8,)), ((5,), ())], [other, ((4,), (8,)), ((6,), ())]]
    batch = played([episodes], [[1.0, 0.0]])
    first, alone = 0.5 + 0.125, 0.5  # ½² against 0 at the first turn
    expected = {
        "reply": [first, 0.5 + 0.25, 0.5 + 0.5],
        "exchange": [first, alone, 0.5 + 0.5],
        "history": [first, alone, alone],
    }
    for anchor, values in expected.items():
        advantages = advantage(dataclasses.replace(PLAIN, anchor=anchor), batch)
        assert advantages[0, [0, 2, 4]].tolist() == values, anchor
    signal = PLAIN.compute_signal(batch, Fixed())
    assert PLAIN.observe(batch, signal) == {"advantage/anchored": pytest.approx(4 / 6), "advantage/turns": 3}


def test_states_are_compared_inside_a_group_and_inside_an_episode() -> None:
    """One episode of a problem returns to a state, ¼ and ½ of its reward away from the end; another problem
    has the same tokens and a reward of its own. The first turn is in no other episode."""
    episode = [((2,), (9,)), ((3,), (9,)), ((3,), (9,)), ((4,), ())]
    batch = played([[episode], [episode]], [[1.0], [0.0]])
    advantages = advantage(dataclasses.replace(PLAIN, anchor="exchange"), batch)
    # before the second turn stands (2 9), before the third and the fourth (3 9): 0.5 and 1, mean 0.75
    assert advantages[0, [0, 2, 4, 6]].tolist() == [0.0, 0.0, -0.25, 0.25]
    assert not advantages[1].any()


def authors(
    episodes: Sequence[Sequence[Episode]],
    rewards: Sequence[Sequence[float]],
    gamma: float,
    weight: float,
    paid: Sequence[Sequence[float]] = (),
) -> list[list[float]]:
    """langfengQ/DrMAS@3b556f2, gigpo/core_gigpo.py: compute_step_discounted_returns with the rewards of steps
    (`paid` before the last, which has the rest of the episode's), build_step_group by equal observations,
    episode_norm_reward and step_norm_reward with mode mean_std_norm, added in
    compute_gigpo_outcome_advantage. One advantage per turn, episode by episode. A first turn's observation is
    that of the problem."""
    turn_advantages = []
    rows = iter(paid)
    for group, of_group in zip(episodes, rewards, strict=True):
        scores = torch.tensor(of_group, dtype=torch.float64)
        episode_advantages = (scores - scores.mean()) / (scores.std() + 1e-6)
        by_observation = defaultdict(list)
        for i, episode in enumerate(group):
            running, before = 0.0, next(rows, [0.0] * (len(episode) - 1))
            steps = [*before, of_group[i] - sum(before)]
            for k in reversed(range(len(episode))):
                running = steps[k] + gamma * running
                observation = tuple(episode[k - 1][1]) if k else ("start",)
                by_observation[observation].append((i, k, running))
        step = {}
        for members in by_observation.values():
            returns = torch.tensor([value for *_, value in members], dtype=torch.float64)
            spread = returns.std() if len(returns) > 1 else torch.tensor(1.0)
            for (i, k, _), value in zip(members, (returns - returns.mean()) / (spread + 1e-6), strict=True):
                step[i, k] = value.item()
        turn_advantages += [
            [episode_advantages[i].item() + weight * step[i, k] for k in range(len(episode))]
            for i, episode in enumerate(group)
        ]
    return turn_advantages


@pytest.mark.parametrize("rewards_of_turns", [False, True])
def test_advantages_equal_those_of_the_authors(rewards_of_turns: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    episodes: list[list[Episode]] = []
    for size in (4, 3):
        group = []
        for turns in draw(1, 5, size):
            lengths, replies = draw(1, 4, turns), draw(2, 4, turns)
            group.append(
                [
                    (draw(2, 9, length), () if k == turns - 1 else (reply,))
                    for k, (length, reply) in enumerate(zip(lengths, replies, strict=True))
                ]
            )
        episodes.append(group)
    rewards = [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.25]]
    batch = played(episodes, rewards)
    ends = batch.completion_mask & ~torch.nn.functional.pad(batch.completion_mask, (0, 1))[:, 1:]
    turn_reward = torch.randint(-2, 3, ends.shape, generator=generator) * 0.25 * ends
    batch = dataclasses.replace(batch, reward=batch.reward.double(), turn_reward=turn_reward.double())
    algorithm = GiGPO(
        beta=0.0, anchor="reply", discount=0.9, step_weight=0.7, turn_rewards=float(rewards_of_turns)
    )
    ours = advantage(algorithm, batch)
    # What stands at the last turn makes no difference: the rest of the episode's reward is there too.
    paid = [row[end][:-1].tolist() for row, end in zip(turn_reward, ends, strict=True)]
    expected = authors(episodes, rewards, 0.9, 0.7, paid if rewards_of_turns else ())
    assert sum(map(len, expected)) > 10
    row = 0
    for group in episodes:
        for episode in group:
            position = 0
            for (turn, reply), value in zip(episode, expected[row], strict=True):
                # 1e-6: discounts are float32 in neither, but rewards of other groups may round differently
                assert ours[row, position : position + len(turn)].tolist() == pytest.approx(
                    [value] * len(turn), abs=1e-6
                )
                assert not ours[row, position + len(turn) : position + len(turn) + len(reply)].any()
                position += len(turn) + len(reply)
            row += 1


def test_in_one_turn_the_advantage_is_grpos_times_1_and_the_weight() -> None:
    filled = rollouts([[7, 4, 2], [9, 3, 1]], [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]])
    torch.testing.assert_close(
        advantage(GiGPO(beta=0.0, step_weight=0.5), filled), 1.5 * advantage(GRPO(epsilon=1e-6), filled)
    )


def test_equal_rewards_prefer_the_shorter_way() -> None:
    batch = played([[[((2,), (9,)), ((4,), ())], [((3,), ())]]], [[1.0, 1.0]])
    advantages = advantage(PLAIN, batch)
    assert advantages.tolist() == [[-0.25, 0.0, 0.0], [0.25, 0.0, 0.0]]  # ½ against 1 in the first state
    assert not advantage(dataclasses.replace(PLAIN, discount=1.0), batch).any()


def test_a_turn_without_a_token_of_the_policy_is_no_turn() -> None:
    """Between the replies 9 and 8 the policy of the first episode wrote nothing. Its last turn is the second
    of two, not the third of three: its reward loses ½ once until the first turn. It begins after the exchange
    (2, 9, 8), which the second episode reaches by one reply of two tokens, so that the two are compared.
    Counted, the silent turn would take the first one's ½ to ¼, and leave the last turn alone in its state."""
    silent: Episode = [((2,), (9,)), ((), (8,)), ((4,), ())]
    plain: Episode = [((2,), (9, 8)), ((5,), ())]
    batch = played([[silent, plain]], [[1.0, 0.0]])
    advantages = advantage(PLAIN, batch)
    assert advantages.tolist() == [[0.5 + 0.25, 0.0, 0.0, 0.5 + 0.5], [-0.75, 0.0, 0.0, -1.0]]
    assert PLAIN.observe(batch, PLAIN.compute_signal(batch, Fixed())) == {
        "advantage/anchored": 1.0,
        "advantage/turns": 2.0,
    }
