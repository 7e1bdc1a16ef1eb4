"""Distillation: divergences against TRL and verl, advantages against the authors', closed forms."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from helpers.toys import (
    backward,
    close,
    distance,
    models_for,
    norm,
    off_policy,
    reading,
    rollouts,
    tiny,
    untaught,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.gkd import GKD
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.opd import OPD, to_go
from grpobench.runs.models.head import token_divergence
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}
"""float32 on both sides, sums over 40 tokens in another order."""


def states(seed: int = 0) -> tuple[torch.Tensor, nn.Linear, torch.Tensor, nn.Linear]:
    """States of a policy and of a wider teacher, with a head for each; 40 tokens."""
    generator = torch.Generator().manual_seed(seed)
    heads = nn.Linear(6, 40, bias=False), nn.Linear(9, 40, bias=False)
    with torch.no_grad():
        for head in heads:
            head.weight.copy_(0.5 * torch.randn(head.weight.shape, generator=generator))
    ours = torch.randn(7, 6, generator=generator, requires_grad=True)
    return ours, heads[0], torch.randn(7, 9, generator=generator), heads[1]


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gkd_divergence_and_gradient_equal_trl(beta: float, temperature: float) -> None:
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    ours, head, theirs, teacher_head = states()
    divergence = token_divergence(ours, head, theirs, teacher_head, temperature, 10**6, beta)
    divergence.sum().backward()
    gradient, weights = ours.grad.clone(), head.weight.grad.clone()  # type: ignore[union-attr]
    assert teacher_head.weight.grad is None
    ours.grad = head.weight.grad = None
    expected = GKDTrainer.generalized_jsd_loss(
        head(ours)[None],
        teacher_head(theirs).detach()[None],
        beta=beta,
        temperature=temperature,
        reduction="sum",
    )
    expected.backward()
    close(divergence.sum(), expected.detach(), **FLOAT32)
    close(gradient, ours.grad, **FLOAT32)
    close(weights, head.weight.grad, **FLOAT32)


@pytest.mark.parametrize("beta", BETAS)
def test_divergence_equals_verl(beta: float) -> None:
    """volcengine/verl@3baac34, verl/trainer/distillation/losses.py, over the whole vocabulary: F.kl_div by
    directions, and the mixture as β·teacher + (1 − β)·student. Its clamp at 1e-8 is not reached here."""
    ours, head, theirs, teacher_head = states(1)
    q, p = head(ours).log_softmax(-1), teacher_head(theirs).log_softmax(-1)

    def kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
        return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)

    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    expected = {0.0: kl(p, q), 1.0: kl(q, p)}.get(beta, beta * kl(p, m) + (1 - beta) * kl(q, m))
    divergence = token_divergence(ours, head, theirs, teacher_head, 1.0, 10**6, beta)
    close(divergence.detach(), expected.detach(), **FLOAT32)


@pytest.mark.parametrize("beta", BETAS)
def test_pieces_change_neither_divergence_nor_gradient(beta: float) -> None:
    gradients, values = [], []
    for chunk in (10**6, 1):
        ours, head, theirs, teacher_head = states(2)
        value = token_divergence(ours, head, theirs, teacher_head, 1.0, chunk, beta)
        value.sum().backward()
        values.append(value.detach())
        gradients.append(ours.grad)
    close(values[0], values[1], **FLOAT32)
    close(gradients[0], gradients[1], **FLOAT32)  # type: ignore[arg-type]


@given(st.sampled_from(BETAS), st.integers(0, 50))
def test_divergence_is_not_negative_and_zero_for_equal_distributions(beta: float, seed: int) -> None:
    ours, head, theirs, teacher_head = states(seed)
    assert bool((token_divergence(ours, head, theirs, teacher_head, 1.0, 10**6, beta) >= -1e-6).all())
    same = token_divergence(ours, head, ours.detach(), head, 1.0, 10**6, beta)
    close(same.detach(), torch.zeros(7), rtol=0, atol=1e-6)


def batch() -> Batch:
    return untaught(rollouts([[4, 2, 6], [5, 1, 3]], [[1.0, 0.0, 1.0], [0.5, 0.5, 0.5]]))


def fixed(**logp: torch.Tensor) -> object:
    from helpers.toys import Fixed

    return Fixed(**{role: reading(value) for role, value in logp.items()})


def test_opd_advantage_equals_the_authors() -> None:
    """thinking-machines-lab/tinker-cookbook@0333e7c, distillation/train_on_policy.py: the advantage of a
    token is −coef·(sampled − teacher), summed over later tokens with a discount, plus the task's."""
    rollout_batch = dataclasses.replace(
        batch(), old_logp=torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    )
    teacher = torch.randn(6, 6, generator=torch.Generator().manual_seed(4))
    task = GRPO(scale="none").compute_signal(rollout_batch, fixed()).advantage  # type: ignore[arg-type]
    for discount in (0.0, 0.5, 1.0):
        algorithm = OPD(distill_weight=0.3, discount=discount, task_weight=2.0, scale="none")
        advantage = algorithm.compute_signal(rollout_batch, fixed(teacher=teacher)).advantage  # type: ignore[arg-type]
        for row, length in enumerate(rollout_batch.length.tolist()):
            token_rewards = [-0.3 * (rollout_batch.old_logp[row, t] - teacher[row, t]) for t in range(length)]
            for t in range(length):
                later = (
                    sum(discount ** (s - t) * token_rewards[s] for s in range(t, length))
                    if discount
                    else token_rewards[t]
                )
                close(advantage[row, t], later + 2 * task[row, t], rtol=1e-5, atol=1e-6)


def test_discount_skips_tokens_that_the_policy_did_not_write() -> None:
    gain = torch.tensor([[1.0, 0.0, 2.0]])
    written = torch.tensor([[True, False, True]])
    close(to_go(gain, written, 0.5), [[2.0, 0.0, 2.0]])


def test_bound_limits_each_token() -> None:
    rollout_batch = dataclasses.replace(batch(), old_logp=torch.zeros(6, 6))
    signal = OPD(bound=2.0).compute_signal(rollout_batch, fixed(teacher=torch.full((6, 6), -30.0)))  # type: ignore[arg-type]
    close(signal.advantage, -2.0 * rollout_batch.completion_mask)


@pytest.mark.parametrize("algorithm", [OPD(), GKD(), GKD(divergence_beta=0.0), GKD(divergence_beta=0.5)])
def test_a_policy_equal_to_its_teacher_is_not_moved(algorithm: OPD | GKD) -> None:
    student = tiny("llama")
    models = RoleModels(student, ("policy",), ("teacher",), teacher=tiny("llama"), budget=10**9)
    models.optimize({"policy": 1e-3}, (0.9, 0.95), 0.0, 1.0)
    policy_batch = off_policy(batch(), models, spread=0.0)
    gradient, metrics = backward(algorithm, models, policy_batch)
    moved, _ = backward(algorithm, models_for(algorithm, "llama"), policy_batch)
    assert norm(gradient) < 1e-5 * norm(moved)  # float32: softmaxes of equal logits, subtracted
    name = "distill/reverse_kl" if isinstance(algorithm, OPD) else "distill/divergence"
    assert abs(metrics[name]) < 1e-6


def test_expected_gradient_of_the_reward_is_that_of_the_reverse_kl() -> None:
    """One token of 5 in a row each, weighed with its probability: Σ_a π(a)·(log π(a) − log π_T(a))·∇log π(a)
    is ∇KL(π‖π_T)."""
    logits = torch.randn(
        5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )
    teacher = torch.randn(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (expected,) = torch.autograd.grad((logp.exp() * (logp - teacher)).sum(), logits, retain_graph=True)
    every = dataclasses.replace(rollouts([[1] * 5]), old_logp=logp.detach()[:, None])
    signal = OPD().compute_signal(every, fixed(teacher=teacher[:, None]))  # type: ignore[arg-type]
    terms = OPD().loss(every, signal, {"policy": reading(logp[:, None])}).terms[:, 0]
    (gradient,) = torch.autograd.grad((logp.exp().detach() * terms).sum(), logits)
    close(gradient, expected)


@pytest.mark.parametrize("algorithm", [OPD(task_weight=0.5, clip_high=0.2), GKD(task_weight=0.5)])
def test_groups_of_equal_rewards_learn_from_the_teacher_alone(algorithm: OPD | GKD) -> None:
    models = models_for(algorithm, "llama")
    equal = off_policy(untaught(rollouts([[4, 2, 6]], [[1.0, 1.0, 1.0]])), models, spread=0.0)
    with_task, _ = backward(algorithm, models, equal)
    alone, _ = backward(dataclasses.replace(algorithm, task_weight=0.0), models, equal)
    assert norm(alone) > 0
    assert distance(with_task, alone) < 1e-6


def test_a_run_without_a_teacher_says_what_to_set() -> None:
    with pytest.raises(ModelError, match=r"set model\.teacher"):
        RoleModels(tiny(), ("policy",), ("teacher",))
