"""Rewards of turns, from a task's verdict to the batch that an algorithm gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.graded import LOADED, TOKENIZER
from helpers.toys import Letters

from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.settings.config import RewardConfig
from grpobench.tasks.task import Problem, Verdict

PROBLEM = Problem("p", "Q", None)


@dataclasses.dataclass(frozen=True)
class Paid(Letters):
    """Each turn is paid its length, if it begins with the letter A."""

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        verdicts = []
        for turns in episodes:
            paid = tuple(map(len, turns)) if turns[0].startswith("A") else ()
            verdicts.append(dataclasses.replace(self.grade(turns[-1]), turn_rewards=paid))
        return verdicts


def episode(*turns: str) -> Rollout:
    """Turns with a reply of one token between them."""
    tokens: list[int] = []
    written: list[bool] = []
    for number, turn in enumerate(turns):
        ids = ([5] if number else []) + TOKENIZER.encode(turn)
        tokens += ids
        written += [not (number and index == 0) for index in range(len(ids))]
    mask = tuple(written) if len(turns) > 1 else ()
    return Rollout((5,), tuple(tokens), np.zeros(len(tokens), np.float32), stopped=True, completion_mask=mask)


def packed(reward: RewardConfig, *rollouts: Rollout) -> Any:
    (group,) = Grader(Paid(), reward, LOADED, 0).groups(["s"], [PROBLEM], [rollouts])
    return pack_groups([group], 9, 1, 0)


ROLLOUTS = episode("ABC", "A"), episode("AB"), episode("Z", "Z")


def test_the_reward_of_a_turn_stands_at_its_last_token() -> None:
    plain = packed(RewardConfig(), *ROLLOUTS)
    assert plain.turn_reward.tolist() == [[0, 0, 3, 0, 1], [0, 2, 0, 0, 0], [0] * 5]
    assert plain.turn_reward.dtype == torch.float32
    assert packed(RewardConfig(), *ROLLOUTS[2:]).turn_reward is None


def test_of_weights_and_doses_only_the_scale_changes_rewards_of_turns() -> None:
    """The reward of the episode is as without them."""
    dosed = packed(RewardConfig(scale=2.0, offset=3.0, flip=1.0, outliers=1.0), *ROLLOUTS)
    assert dosed.turn_reward.tolist() == [[0, 0, 6, 0, 2], [0, 4, 0, 0, 0], [0] * 5]
    assert packed(RewardConfig(), *ROLLOUTS).reward.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("kind", ["constant", "random", "flipped", "proxy"])
def test_a_control_learns_nothing_from_rewards_of_turns(kind: Any) -> None:
    assert packed(RewardConfig(kind=kind), *ROLLOUTS).turn_reward is None


def test_an_empty_completion_is_a_turn_without_a_token() -> None:
    group = Group(
        PROBLEM,
        [episode(""), ROLLOUTS[1]],
        [Verdict({}, None)] * 2,
        [0.0, 0.0],
        turn_rewards=[(1.0,), (2.0,)],
    )
    assert pack_groups([group], 9, 1, 0).turn_reward.tolist() == [[0, 0], [0, 2]]


def test_rewards_and_turns_of_different_number_are_refused() -> None:
    group = Group(PROBLEM, [ROLLOUTS[0]], [Verdict({}, None)], [0.0], turn_rewards=[(1.0, 2.0, 3.0)])
    with pytest.raises(ValueError, match="problem p: rollout 0 has 2 turns and 3 turn_rewards"):
        pack_groups([group], 9, 1, 0)
