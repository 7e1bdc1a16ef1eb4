"""Hierarchical GRPO by hand, against prime-rl's advantages and loss, restated, and in a run."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers.slopes import close_loss, slope
from helpers.toys import Fixed, Letters, close, rollouts
from helpers.whole_runs import configure, run
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.hierarchical_grpo import HierarchicalGRPO
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.tasks.task import Problem, Verdict

double = pytest.mark.usefixtures("double")
Trace = tuple[str, str, float]
"""The agent, the episode and the reward."""


def played(groups: Sequence[Sequence[tuple[float, Sequence[float]]]]) -> Batch:
    """Episodes by group, each with the reward of its proposal and those of its attempts: turns of 1, 2, 3, 1,
    … tokens, with a reply of one token between two. The environment rewards the proposal, too, by 9."""
    lengths, gaps = list[int](), dict[int, list[int]]()
    for group in groups:
        for _, attempts in group:
            sizes = [1 + number % 3 for number in range(1 + len(attempts))]
            gaps[len(lengths)] = [sum(sizes[: k + 1]) + k for k in range(len(attempts))]
            lengths.append(sum(sizes) + len(attempts))
    rows = iter(lengths)
    batch = rollouts(
        [[next(rows) for _ in group] for group in groups],
        [[proposal for proposal, _ in group] for group in groups],
        gaps=gaps,
        limit=40,
    )
    written = batch.completion_mask
    ends = written & ~torch.nn.functional.pad(written, (0, 1))[:, 1:]
    rewards = torch.tensor(
        [reward for group in groups for _, attempts in group for reward in (9.0, *attempts)]
    )
    turn_reward = torch.zeros(written.shape, dtype=batch.reward.dtype)
    turn_reward[ends] = rewards.to(turn_reward.dtype)
    return dataclasses.replace(batch, turn_reward=turn_reward)


def of_turns(batch: Batch, advantage: torch.Tensor) -> list[list[float]]:
    """The advantage of each turn, episode by episode, which all of its tokens must have."""
    ends = batch.completion_mask & ~torch.nn.functional.pad(batch.completion_mask, (0, 1))[:, 1:]
    begins = batch.completion_mask & ~torch.nn.functional.pad(batch.completion_mask, (1, 0))[:, :-1]
    assert torch.equal(advantage[begins], advantage[ends]) and not advantage[~batch.completion_mask].any()
    return [row[end].tolist() for row, end in zip(advantage, ends, strict=True)]


def advantages(batch: Batch) -> list[list[float]]:
    return of_turns(batch, HierarchicalGRPO().compute_signal(batch, Fixed()).advantage)


def prime_rl(traces: Sequence[Trace]) -> list[float]:
    """PrimeIntellect-ai/prime-rl@559b447, src/prime_rl/orchestrator/algo/hierarchical_grpo.py: score_group of
    a group's traces with episode_agents = ["solver"]."""
    peers: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for number, (agent, episode, _) in enumerate(traces):
        peers[agent, episode if agent in {"solver"} else None].append(number)
    credited = [0.0] * len(traces)
    for members in peers.values():
        baseline = sum(traces[number][2] for number in members) / len(members)
        for number in members:
            credited[number] = traces[number][2] - baseline
    return credited


def prime_rl_loss(
    logp: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, tokens: int
) -> torch.Tensor:
    """The same, src/prime_rl/trainer/rl/loss.py: default_loss_fn over the trained tokens of the batch,
    divided as in compute_loss, with dppo_mask_low = dppo_mask_high = 0.2, adv_tau = 1 and kl_tau = 0.001."""
    log_ratio = logp - old
    moved = logp.exp() - old.exp()
    masked = torch.where(advantage > 0, moved > 0.2, moved < -0.2)
    return (-advantage.masked_fill(masked, 0.0) * log_ratio.exp() + 1e-3 * log_ratio**2).sum() / tokens


GROUPS = [
    [(0.5, [1.0, 1.0, 0.0]), (0.25, [0.0, 1.0]), (1.0, [0.0])],
    [(0.0, []), (2.0, [0.5, 0.5, 0.5])],
    [(3.0, [1.0, -1.0])],
]


@double
def test_the_documentations_example_by_hand() -> None:
    """Attempts of [1, 1, 0] on one proposal have the advantages [1/3, 1/3, −2/3], whatever those on another
    are; proposals of 0.5 and 0.25 are ±1/8 from their mean."""
    assert advantages(played([[(0.5, [1.0, 1.0, 0.0]), (0.25, [4.0, 8.0])]])) == [
        pytest.approx([0.125, 1 / 3, 1 / 3, -2 / 3]),
        pytest.approx([-0.125, -2.0, 2.0]),
    ]


@double
def test_advantages_loss_and_gradient_equal_prime_rls() -> None:
    batch = played(GROUPS)
    expected = torch.zeros_like(batch.old_logp)
    rows = iter(range(len(batch)))
    theirs = []
    for group in GROUPS:
        traces = []
        for number, (proposal, attempts) in enumerate(group):
            traces += [("proposer", str(number), proposal)]
            traces += [("solver", str(number), reward) for reward in attempts]
        credited = iter(prime_rl(traces))
        theirs += [[next(credited) for _ in range(1 + len(attempts))] for _, attempts in group]
    assert advantages(batch) == [pytest.approx(row, rel=1e-12, abs=1e-15) for row in theirs]
    for row, credited_turns in zip(rows, theirs, strict=True):
        position = 0
        for number, value in enumerate(credited_turns):
            expected[row, position : position + 1 + number % 3] = value
            position += 2 + number % 3  # a reply of one token
    noise = torch.randn(batch.old_logp.shape, generator=torch.Generator().manual_seed(0))
    written, tokens = batch.completion_mask, int(batch.completion_mask.sum())
    batch = dataclasses.replace(batch, old_logp=-(0.5 + noise.abs()) * written)

    def their_loss(leaf: torch.Tensor) -> torch.Tensor:
        return prime_rl_loss(leaf[written], batch.old_logp[written], expected[written], tokens)

    assert close_loss(HierarchicalGRPO(), batch, batch.old_logp, their_loss).any()
    # Off policy with the preset's clip, without the penalty's gradient 2·0.001·log ratio / tokens: the
    # probabilities move by less than 0.2, so that prime-rl masks no token.
    logp = (batch.old_logp.detach() + 0.05 * noise.flip(-1) * written).requires_grad_()
    assert ((logp.exp() - batch.old_logp.exp()).abs() < 0.2).all()
    (gradient,) = torch.autograd.grad(their_loss(logp), logp)
    penalty = 2e-3 * (logp - batch.old_logp).detach() / tokens
    unclipped = HierarchicalGRPO(clip_low=1.0, clip_high=math.inf)
    close(slope(unclipped, batch, logp.detach()), gradient - penalty * written)


episodes = st.tuples(st.floats(-5, 5), st.lists(st.floats(-5, 5), max_size=4))


@double
@given(st.lists(st.lists(episodes, min_size=1, max_size=3), min_size=1, max_size=3), st.floats(-5, 5))
def test_attempts_add_up_to_zero_and_read_nothing_of_other_episodes(
    groups: list[list[tuple[float, list[float]]]], shift: float
) -> None:
    before = advantages(played(groups))
    # 1e-9: sums of at most four rewards of at most 10, in float64
    assert [sum(row[1:]) for row in before] == pytest.approx([0.0] * len(before), abs=1e-9)
    (proposal, attempts), *others = groups[0]
    moved = [[(proposal, [reward + shift for reward in attempts]), *others], *groups[1:]]
    after = advantages(played(moved))
    assert [row[0] for row in after] == [row[0] for row in before] and after[1:] == before[1:]
    assert after[0][1:] == pytest.approx(before[0][1:], abs=1e-9)


def test_without_rewards_of_turns_the_proposals_alone_train_and_a_metric_says_so() -> None:
    algorithm, batch = HierarchicalGRPO(), played([[(1.0, [1.0, 0.0]), (0.0, [0.0, 0.0])]])
    assert algorithm.observe(batch, algorithm.compute_signal(batch, Fixed())) == {"advantage/attempts": 0.5}
    batch = dataclasses.replace(batch, turn_reward=None)
    assert advantages(batch) == [[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0]]
    assert algorithm.observe(batch, algorithm.compute_signal(batch, Fixed())) == {"advantage/attempts": 0.0}


def test_a_proposal_may_have_several_turns() -> None:
    batch = played([[(1.0, [5.0, 1.0, 0.0]), (0.0, [7.0])]])
    signal = HierarchicalGRPO(proposal_turns=2).compute_signal(batch, Fixed())
    assert of_turns(batch, signal.advantage) == [[0.5, 0.5, 0.5, -0.5], [-0.5, -0.5]]


@dataclasses.dataclass(frozen=True)
class Proposals(Letters):
    """A proposal and two attempts, each of two characters: an attempt is right if it begins with a character
    below "P", and a proposal is as good as its attempts differ."""

    turns = 3
    turn_tokens = 2
    max_completion_tokens = 12

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return "!" if len(turns) < 3 else None

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        return ("AA", "AA", "QQ")

    def verify_episodes(self, problem: Problem, written: Sequence[Sequence[str]]) -> list[Verdict]:
        verdicts = []
        for turns in written:
            right = [float("" < turn[:1] < "P") for turn in turns[1:]]
            scores = {"correct": float(len({*right}) > 1), "short": 0.0, "consistent": sum(right) / 2}
            verdicts.append(Verdict(scores, turns[-1], turn_rewards=(0.0, *right)))
        return verdicts


def test_a_run_learns_to_solve_what_it_proposes(policy: str, tmp_path: Path) -> None:
    train = TrainConfig(steps=15, prompts_per_step=8, group_size=8, learning_rate={"policy": 1e-2})
    config = configure(
        policy, HierarchicalGRPO(), task=Proposals(), train=train, evaluate=EvaluateConfig(0, 0, 0, 0)
    )
    assert not incompatible(config)
    steps = run(config, tmp_path)[1:]
    # What an episode teaches of attempts; the share of right ones is about ½ before.
    assert 0 < steps[0]["advantage/attempts"] == steps[0]["score/correct"] < 1
    right = [row["score/consistent"] for row in steps]
    assert sum(right[-3:]) > sum(right[:3]) + 0.6
