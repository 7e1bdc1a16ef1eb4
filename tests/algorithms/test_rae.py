"""RAE against its authors' code and prime-rl's, restated, over all orders of rows; a run that goes on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.slopes import slope
from helpers.toys import Fixed, Letters, close, reading, rollouts
from helpers.whole_runs import configure, resumed
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.rae import RAE
from grpobench.runs.sample.rollouts import category_number
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.tasks.task import Problem, Split

double = pytest.mark.usefixtures("double")


def played(roles: Sequence[int], rewards: Sequence[float], state: Any = None) -> Batch:
    """A completion of 1 to 4 tokens for each role, with its reward."""
    lengths = [[1 + number % 4] for number in range(len(roles))]
    batch = rollouts(lengths, [[reward] for reward in rewards])
    return dataclasses.replace(batch, category=torch.tensor(roles), state=state)


def advantages(algorithm: RAE, batch: Batch) -> list[float]:
    return algorithm.compute_signal(batch, Fixed()).advantage[:, 0].tolist()


class Moving:
    """spiral-rl/spiral@a02d0ed, spiral/utils.py: EMA."""

    def __init__(self, decay: float) -> None:
        self.decay, self.value = decay, 0.0

    def update(self, x: float) -> None:
        self.value = self.decay * self.value + (1 - self.decay) * x


def authors(
    players: Sequence[int], rewards: Sequence[float], averages: dict[int, float], decay: float
) -> tuple[list[float], dict[int, float]]:
    """spiral-rl/spiral@a02d0ed, train_spiral.py, prepare_trajectories with use_role_baseline: each player's
    reward less its average before it, trajectory after trajectory."""
    moving = {player: Moving(decay) for player in {*players, *averages}}
    for player, value in averages.items():
        moving[player].value = value
    credited = []
    for player, reward in zip(players, rewards, strict=True):
        baseline = moving[player].value
        moving[player].update(reward)
        credited.append(reward - baseline)
    return credited, {player: average.value for player, average in moving.items()}


def prime_rl(
    agents: Sequence[int], rewards: Sequence[float], averages: dict[int, float], decay: float
) -> tuple[list[float], dict[int, float]]:
    """PrimeIntellect-ai/prime-rl@559b447, src/prime_rl/orchestrator/algo/rae.py, score_group."""
    baselines: dict[int, float] = defaultdict(float, averages)
    credited = []
    for agent, reward in zip(agents, rewards, strict=True):
        baseline = baselines[agent]
        credited.append(reward - baseline)
        baselines[agent] = decay * baseline + (1.0 - decay) * reward
    return credited, dict(baselines)


def over_orders(
    theirs: Any, roles: list[int], rewards: list[float], averages: dict[int, float], decay: float
) -> tuple[list[float], dict[int, float]]:
    """The mean of what their code makes of the rows in each of their orders."""
    orders = list(itertools.permutations(range(len(roles))))
    total, left = [0.0] * len(roles), defaultdict[int, float](float)
    for order in orders:
        credited, after_step = theirs([roles[i] for i in order], [rewards[i] for i in order], averages, decay)
        for position, i in enumerate(order):
            total[i] += credited[position] / len(orders)
        for role, value in after_step.items():
            left[role] += value / len(orders)
    return total, dict(left)


STEPS = [
    ([4, 9, 4, 4, 9], [1.0, 0.0, 0.5, -1.0, 2.0]),
    ([9, 4], [1.0, 1.0]),
    ([4, 4, 4, 4, 4], [0.0, 1.0, 0.0, 0.0, 1.0]),
]


@double
@pytest.mark.parametrize("theirs", [authors, prime_rl])
@pytest.mark.parametrize("decay", [0.95, 0.5, 0.0])
def test_advantages_averages_and_gradients_equal_theirs_over_all_orders(theirs: Any, decay: float) -> None:
    algorithm, state, averages = RAE(decay=decay), None, dict[int, float]()
    for roles, rewards in STEPS:
        batch = played(roles, rewards, state)
        expected, averages = over_orders(theirs, roles, rewards, averages, decay)
        assert advantages(algorithm, batch) == pytest.approx(expected, rel=1e-12, abs=1e-14)
        # On policy the loss of each order has the gradient −A/(B·L_max), whose mean over orders this is.
        weights = batch.completion_mask / (len(roles) * batch.max_completion_tokens)
        close(slope(algorithm, batch, batch.old_logp), -torch.tensor(expected)[:, None] * weights)
        state = algorithm.next_state(batch, Fixed())
        assert json.loads(json.dumps(state)) == state
        assert {int(role): value for role, value in state["averages"].items()} == pytest.approx(averages)


@double
@given(
    st.lists(st.tuples(st.integers(-1, 2), st.floats(-5, 5)), min_size=1, max_size=20), st.floats(0, 0.999)
)
def test_with_one_row_of_a_role_in_a_step_it_is_theirs(steps: list[tuple[int, float]], decay: float) -> None:
    algorithm, state, averages = RAE(decay=decay), None, dict[int, float]()
    for role, reward in steps:
        batch = played([role], [reward], state)
        (expected,), averages = authors([role], [reward], averages, decay)
        # 1 − (1 − decay) loses a few digits of decay near 1.
        assert advantages(algorithm, batch) == pytest.approx([expected], rel=1e-9, abs=1e-9)
        state = algorithm.next_state(batch, Fixed())
    assert {int(role): value for role, value in state["averages"].items()} == pytest.approx(averages)


@double
def test_two_rows_by_hand() -> None:
    """decay ½ and an average of 0.4: the row that comes second is measured from ½·0.4 + ½ of the other's
    reward, the first from 0.4; the mean of both orders has the weight ¾ for the average. Another role has
    none yet."""
    state = {"averages": {"4": 0.4}}
    batch = played([4, 4, 7], [1.0, 0.0, 0.6], state)
    assert advantages(RAE(decay=0.5), batch) == pytest.approx([1 - 0.3, -(0.3 + 0.25), 0.6])
    following = RAE(decay=0.5).next_state(batch, Fixed())
    assert following["averages"] == pytest.approx({"4": 0.25 * 0.4 + 0.75 * 0.5, "7": 0.3})
    assert state == {"averages": {"4": 0.4}}
    assert RAE().observe(batch, None)["rae/baseline"] == pytest.approx(0.8 / 3)  # type: ignore[arg-type]


@double
def test_rows_without_a_category_are_one_role_and_what_is_not_finite_leaves_no_trace() -> None:
    batch = dataclasses.replace(played([0, 0], [math.nan, 1.0]), category=None)
    assert RAE(decay=0.9).next_state(batch, Fixed()) == {"averages": {"-1": pytest.approx(0.1)}}


@double
def test_a_penalty_in_the_reward_is_part_of_the_average() -> None:
    batch = played([2], [1.0])
    models = Fixed(reference=reading(batch.old_logp - 0.5))  # 0.5 nats above the reference, one token
    algorithm = RAE(decay=0.5, beta=0.2, kl_placement="reward")
    assert algorithm.compute_signal(batch, models).advantage.tolist() == [[0.9]]
    assert algorithm.next_state(batch, models) == {"averages": {"2": 0.45}}


def test_categories_have_numbers_by_their_names() -> None:
    names = ("black", "black", "white")
    first, same, other = (Problem(str(i), "?", "!", {"category": name}) for i, name in enumerate(names))
    assert category_number(first) == category_number(same) != category_number(other)
    assert category_number(Problem("1", "?", "!", {})) == -1


@dataclasses.dataclass(frozen=True)
class BlackAndWhite(Letters):
    """The problems in two categories."""

    def problems(self, split: Split) -> Sequence[Problem]:
        return [
            dataclasses.replace(problem, traits={"category": ("black", "white")[number % 2]})
            for number, problem in enumerate(super().problems(split))
        ]


def test_a_run_with_one_completion_per_problem_goes_on_as_if_never_stopped(
    policy: str, tmp_path: Path
) -> None:
    train = TrainConfig(steps=3, prompts_per_step=4, group_size=1, learning_rate={"policy": 1e-3})
    config = configure(
        policy, RAE(decay=0.5), task=BlackAndWhite(), train=train, evaluate=EvaluateConfig(0, 0, 0, 0)
    )
    assert not incompatible(config)
    uninterrupted, state = resumed(config, tmp_path, 2)
    both = {str(category_number(problem)) for problem in BlackAndWhite().problems("train")}
    assert len(both) == 2 and state["averages"].keys() == both
    assert uninterrupted[1]["rae/baseline"] == 0 != uninterrupted[-1]["rae/baseline"]
