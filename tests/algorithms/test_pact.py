"""PACT: its critic's loss and its credit against the paper's equations, its order of updates in the loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, close, reading, rollouts, trainer_for
from helpers.whole_runs import configure
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch, ModelOutput, Role
from grpobench.algorithms.pact import PACT, Accepted
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.sao import SAO
from grpobench.runs.train.trainer import Trainer

double = pytest.mark.usefixtures("double")
FLOAT64 = {"rtol": 1e-12, "atol": 1e-14}
"""float64 on both sides; only the order of operations differs."""


def drawn(seed: int, spread: float = 1.0) -> torch.Tensor:
    return spread * torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))


def batch() -> Batch:
    """Two turns in rows 0 and 3; the second completion is empty."""
    made = rollouts([[5, 0], [3, 6]], [[1.0, 0.0], [0.25, 1.0]], gaps={0: (2,), 3: (1, 2)})
    return dataclasses.replace(made, sampler_logp=drawn(1), old_logp=drawn(2))


def before(algorithm: PACT, made: Batch, logit: torch.Tensor) -> Accepted:
    return algorithm.compute_signal(made, Fixed(critic=reading(logit[:, :0], logit)))


def after(algorithm: PACT, made: Batch, signal: Accepted, logp: torch.Tensor) -> Accepted:
    """The signal when the policy has become one with these log-probabilities."""
    aligned = algorithm.realign(made, signal, Fixed(policy=reading(logp)))
    assert isinstance(aligned, Accepted)
    return aligned


def critic_loss(algorithm: PACT, made: Batch, signal: Accepted, logit: torch.Tensor) -> torch.Tensor:
    loss = algorithm.loss(made, signal, {"critic": ModelOutput(logit[:, :0], logit[:, :0], logit)})
    return (loss.terms * algorithm.loss_weights(made)).sum()


@double
@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (0.5, 1.5)])
def test_critics_value_and_gradient_equal_algorithm_1(low: float, high: float) -> None:
    """Token by token: the cross-entropy of σ(z) and ρR, its mean over tokens of accepted ratios."""
    made, moved = batch(), drawn(3, 0.8)
    algorithm = PACT(accept_low=low, accept_high=high)
    signal = after(algorithm, made, before(algorithm, made, drawn(4)), made.old_logp + moved)
    logit = drawn(5, 2.0).requires_grad_()
    ours = critic_loss(algorithm, made, signal, logit)
    (gradient,) = torch.autograd.grad(ours, logit)
    leaf = logit.detach().clone().requires_grad_()
    terms = []
    for row, column in made.completion_mask.nonzero().tolist():
        ratio = float(moved[row, column].exp())
        if low <= ratio <= high:
            value, target = torch.sigmoid(leaf[row, column]), ratio * float(made.reward[row])
            terms.append(-target * value.log() - (1 - target) * (1 - value).log())
    expected = torch.stack(terms).mean()
    (theirs,) = torch.autograd.grad(expected, leaf)
    close(ours, expected.detach(), **FLOAT64)
    close(gradient, theirs, **FLOAT64)
    assert (len(terms) < made.completion_mask.sum()) == (high < 6)


@double
def test_target_is_the_value_of_the_new_policys_token_and_the_old_ones_rest() -> None:
    """Proposition 2, by enumeration of one token: under the old policy the expected gradient of the logit is
    σ(z) − Σ_a π_new(a) Q(a), though a single target may be above 1."""
    old, new, expected = [0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [1.0, 0.5, 0.0]
    made = rollouts([[1], [1], [1]], [[q] for q in expected])
    made = dataclasses.replace(made, old_logp=torch.tensor(old).log()[:, None])
    logit = torch.full((3, 1), 0.4, requires_grad=True)
    algorithm = PACT()
    signal = after(algorithm, made, before(algorithm, made, logit.detach()), torch.tensor(new).log()[:, None])
    assert signal.returns.max() == pytest.approx(3.0)
    (gradient,) = torch.autograd.grad(critic_loss(algorithm, made, signal, logit), logit)
    mean = (3 * gradient[:, 0] * torch.tensor(old)).sum()
    close(mean, torch.tensor(0.4).sigmoid() - sum(p * q for p, q in zip(new, expected, strict=True)))


@double
def test_advantages_are_rewards_minus_values_and_credit_is_their_change() -> None:
    made, logit = batch(), drawn(4)
    value = logit.sigmoid()
    to_go, token, turn = (
        before(PACT(**settings), made, logit).advantage
        for settings in ({}, {"trace": 0.0}, {"trace": 0.0, "gae": "turn"})
    )
    close(to_go, (made.reward[:, None] - value) * made.completion_mask)
    for row in range(len(made)):
        written = made.completion_mask[row].nonzero().flatten().tolist()
        following = [float(value[row, t]) for t in written[1:]] + [float(made.reward[row])]
        for t, later in zip(written, following, strict=False):  # an empty one has no token
            close(token[row, t], later - float(value[row, t]))
    # row 3 is written at 0 and from 3 to 5: a turn's credit is the change from its first token to the next's
    close(turn[3, 0], float(value[3, 3] - value[3, 0]))
    close(turn[3, 3:], [1.0 - float(value[3, 3])] * 3)


@double
@given(st.lists(st.floats(-9, 9), min_size=1, max_size=6), st.sampled_from(["token", "turn"]), st.booleans())
def test_credit_adds_up_to_the_surprise(logits: list[float], gae: Any, two_turns: bool) -> None:
    """Completeness (condition 1): what a prompt's value leaves of the reward, over tokens or turns."""
    length = len(logits)
    made = rollouts([[length]], [[1.0]], gaps={0: (1,)} if two_turns and length > 2 else None)
    logit = torch.tensor([logits])
    advantage = before(PACT(trace=0.0, gae=gae), made, logit).advantage[0]
    written = made.completion_mask[0]
    first = written & ~torch.nn.functional.pad(written, (1, 0))[:-1]
    total = advantage[first if gae == "turn" else written].sum()
    # 1 − σ(z) of z = −9 has lost no digit; six differences of numbers below 1
    close(total, 1 - torch.sigmoid(logit[0, 0]), rtol=0, atol=1e-14)


@double
def test_rewards_of_another_range_are_the_same_problem() -> None:
    made, logit, logp = batch(), drawn(4), batch().old_logp + drawn(3, 0.3)
    wide = dataclasses.replace(made, reward=4 * made.reward - 1)
    plain, scaled = PACT(), PACT(min_reward=-1.0, max_reward=3.0)
    signal, wide_signal = before(plain, made, logit), before(scaled, wide, logit)
    close(wide_signal.advantage, 4 * signal.advantage)
    losses = [
        critic_loss(algorithm, rows, after(algorithm, rows, first, logp), drawn(5))
        for algorithm, rows, first in ((plain, made, signal), (scaled, wide, wide_signal))
    ]
    close(*losses)
    with pytest.raises(ValueError, match="min_reward and max_reward"):
        before(plain, wide, logit)


@double
def test_policys_loss_is_saos_or_ppos() -> None:
    made, logp, logit = batch(), drawn(6), drawn(4)
    advantage = before(PACT(), made, logit).advantage
    close(PACT().gain(made, advantage, logp).terms, SAO().gain(made, advantage, logp).terms)
    clip = {"clip_low": 0.2, "clip_high": 0.28}
    ours = PACT(bounds="clip", **clip).gain(made, advantage, logp).terms
    close(ours, PPO(**clip).gain(made, advantage, logp).terms)


@double
def test_no_accepted_token_leaves_the_critic_alone() -> None:
    made, logit = batch(), drawn(5).requires_grad_()
    signal = after(PACT(), made, before(PACT(), made, drawn(4)), made.old_logp + 1000.0)
    (gradient,) = torch.autograd.grad(critic_loss(PACT(), made, signal, logit), logit)
    assert not gradient.any() and not signal.accepted.any()


def stepped(policy: str, algorithm: PACT) -> tuple[Trainer, dict[str, float], list[tuple[Role, ...]]]:
    """A trainer after one step, its row, and the roles of each update."""
    trainer = trainer_for(configure(policy, algorithm))
    updates: list[tuple[Role, ...]] = []
    update = trainer.models.step

    def step(roles: Iterable[Role], scale: float) -> dict[str, float]:
        updates.append(tuple(roles))
        return update(roles, scale)

    trainer.models.step = step  # type: ignore[method-assign]
    return trainer, trainer.step(1), updates


def weights(trainer: Trainer, role: Role) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.models.networks[role].parameters()]


def test_the_critic_is_updated_after_the_policy_and_for_it(policy: str, tmp_path: Path) -> None:
    aligned, row, updates = stepped(policy, PACT())
    assert updates == [("policy",)] * 2 + [("critic",)] * 2
    behind, other, _ = stepped(policy, PACT(aligned=False))
    assert all(map(torch.equal, weights(aligned, "policy"), weights(behind, "policy")))
    assert not all(map(torch.equal, weights(aligned, "critic"), weights(behind, "critic")))
    # the same tokens train both models, and count once
    assert row["cost/trained_tokens"] == other["cost/trained_tokens"] == row["cost/generated_tokens"]
    assert row["critic/accepted"] == 1 and row["critic/cross_entropy"] != other["critic/cross_entropy"]
    assert row["cost/flops"] > other["cost/flops"], "one more forward pass"
    assert row["learning_rate/critic"] > 0 and row["grad_norm/critic"] > 0


def test_a_warm_up_updates_the_critic_alone(policy: str) -> None:
    assert PACT(critic_warmup=1).phases(1) == (("critic",),)
    assert PACT(critic_warmup=1).phases(2) == (("policy",), ("critic",))
    assert PPO().phases(1) == (("policy", "critic"),)
    _, _, updates = stepped(policy, PACT(critic_warmup=1))
    assert updates == [("critic",)] * 2
