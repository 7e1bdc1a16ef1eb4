"""CHORD: schedule, mixture and token weights against the authors', expert answers beside rollouts."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.toys import backward, close, distance, models_for, off_policy, reading, rollouts

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.chord import CHORD
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.returned import ReturnError
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.train.update import dealt


def answers(seed: int = 5, **settings: int) -> Batch:
    """Four expert answers, each to a prompt of its own, of which nothing else was recorded."""
    batch = rollouts([[3], [7], [1], [5]], seed=seed, **settings)  # type: ignore[arg-type]
    unknown = torch.full_like(batch.sampler_logp, math.nan)
    nothing = torch.full_like(batch.reward, math.nan)
    return dataclasses.replace(
        batch, sampler_logp=unknown, old_logp=unknown, reward=nothing, greedy_reward=None, expected=None
    )


def sampled(models: RoleModels) -> Batch:
    return off_policy(rollouts([[4, 2, 6], [5, 1, 3]], [[1.0, 0.0, 1.0], [0.5, 0.0, 1.0]]), models)


# The schedule


def their_mu(step: int, warmup: int, decay: int, peak: float, valley: float) -> float:
    """modelscope/Trinity-RFT@0414330, trinity/algorithm/policy_loss_fn/chord_policy_loss.py:
    mu_schedule_function, restated."""
    if step < warmup:
        return step / warmup * peak
    if step >= warmup + decay:
        return valley
    return (peak - valley) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / decay)) + valley


@pytest.mark.parametrize("plan", [(0, 0, 0.1, 0.1), (0, 200, 0.9, 0.05), (3, 5, 0.5, 0.02), (4, 0, 0.5, 0.2)])
def test_share_equals_the_authors(plan: tuple[int, int, float, float]) -> None:
    warmup, decay, peak, valley = plan
    ours = CHORD(mu_warmup_steps=warmup, mu_decay_steps=decay, mu_peak=peak, mu_valley=valley)
    for step in range(1, 230):
        assert ours.mu(step) == pytest.approx(their_mu(step - 1, *plan), abs=1e-12)


# The loss


def test_mixture_and_gradient_equal_the_authors(double: None) -> None:
    """The same file: MIXCHORDPolicyLossFn with PPOPolicyLossFn, SFTPhiLossFn, SFTISLossFn and SFTLossFn, for
    all experiences in one micro-batch, where their per-micro-batch weights are 1 over the number of rows."""
    draw = torch.Generator().manual_seed(0)
    batch, experts = rollouts([[4, 2, 6], [5, 1, 3]]), answers()
    old = -torch.rand(batch.completion_mask.shape, generator=draw)
    batch = dataclasses.replace(batch, old_logp=old, step=2)
    experts = dataclasses.replace(experts, step=2)
    ours, theirs = ((old + 0.3 * torch.randn(old.shape, generator=draw)).requires_grad_() for _ in "ab")
    theirs = ours.detach().clone().requires_grad_()
    written = -3 * torch.rand(experts.completion_mask.shape, generator=draw)
    mine, other = (written.clone().requires_grad_() for _ in "ab")
    for kind, averaging in (
        ("phi", "token_mean"),
        ("probability", "token_mean"),
        ("none", "token_mean"),
        ("phi", "sequence_mean"),
    ):
        algorithm = CHORD(
            mu_peak=0.5,
            mu_valley=0.1,
            mu_decay_steps=3,
            token_weight=kind,  # type: ignore[arg-type]
            expert_averaging=averaging,  # type: ignore[arg-type]
        )
        signal = algorithm.compute_signal(batch, None)  # type: ignore[arg-type]
        now, expert = reading(ours), reading(mine)
        terms = algorithm.loss(batch, signal, {"policy": now}).terms
        loss = (terms * algorithm.loss_weights(batch)).sum()
        imitated = algorithm.expert_loss(experts, {"policy": expert}).terms
        loss = loss + (imitated * algorithm.expert_weights(experts)).sum()

        mask, mu = batch.completion_mask, their_mu(1, 0, 3, 0.5, 0.1)
        ratio, advantage = (theirs - old).exp(), signal.advantage
        worst = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        explored = (worst * mask).sum() / mask.sum()
        p = other.exp().detach()
        weight = {"phi": p * (1 - p), "probability": p, "none": torch.ones_like(p)}[kind]
        inside = experts.completion_mask
        if averaging == "token_mean":
            learned = (-other * weight * inside).sum() / inside.sum()
        else:
            learned = ((-other * weight * inside).sum(-1) / inside.sum(-1)).mean()
        expected = (1 - mu) * explored + mu * learned

        close(loss, expected.detach())
        for gradient, expected_gradient in zip(
            torch.autograd.grad(loss, (ours, mine)),
            torch.autograd.grad(expected, (theirs, other)),
            strict=True,
        ):
            assert gradient.any()
            close(gradient, expected_gradient)


def test_gradient_of_an_expert_token_is_largest_where_the_policy_is_undecided() -> None:
    """−μ·φ·∇log π of a token of p among two: the gradient in its logit is φ·(1 − p) = p(1 − p)²."""
    probabilities = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    weight = CHORD().weight_of(probabilities.log())
    close(weight, probabilities * (1 - probabilities))
    assert probabilities[weight.argmax()] == 0.5
    assert probabilities[(weight * (1 - probabilities)).argmax()].item() == pytest.approx(
        0.33, abs=0.006
    )  # 1/3


# Beside the rollouts


def test_rollouts_and_experts_add_up_and_do_not_meet(double: None) -> None:
    """The gradient is the sum of both parts; a metric of rollouts is that of rollouts alone."""
    ours = CHORD(mu_peak=0.4, mu_valley=0.4)
    models = models_for(ours, "gpt2")
    batch, experts = sampled(models), answers()
    both, metrics = backward(ours, models, batch, experts=experts)
    alone, before = backward(ours, models, batch)
    only = off_policy(rollouts([[2, 2]], [[1.0, 1.0]]), models)  # no signal of its own
    imitated, _ = backward(ours, models, only, experts=experts)
    assert distance(both, {name: alone[name] + imitated[name] for name in both}) < 1e-11
    assert {name for name in metrics if name not in before} == {"expert/nll", "expert/token_weight"}
    assert {name: metrics[name] for name in before} == pytest.approx(before, nan_ok=True, rel=0, abs=0)


@pytest.mark.parametrize("averaging", ["token_mean", "sequence_mean"])
def test_micro_batches_padding_and_order_change_nothing(averaging: str, double: None) -> None:
    ours = CHORD(mu_peak=0.5, mu_valley=0.5, expert_averaging=averaging)  # type: ignore[arg-type]
    models = models_for(ours, "gpt2")
    batch, experts = sampled(models), answers()
    gradient, metrics = backward(ours, models, batch, experts=experts)
    for budget in (1, 20):
        models.budget = budget
        split, measured = backward(ours, models, batch, experts=experts)
        assert distance(split, gradient) < 1e-11
        assert measured == pytest.approx(metrics, nan_ok=True, rel=1e-9)
    wide = torch.nn.functional.pad(experts.completion, (0, 4))
    unknown = torch.full(wide.shape, math.nan)
    padded = dataclasses.replace(
        experts,
        completion=wide,
        completion_mask=torch.nn.functional.pad(experts.completion_mask, (0, 4)),
        sampler_logp=unknown,
        old_logp=unknown,
        breaks=None,
    )
    for other in (padded, experts[torch.tensor([2, 0, 3, 1])]):
        assert distance(backward(ours, models, batch, experts=other)[0], gradient) < 1e-11


def test_memory_that_gives_out_among_experts_repeats_the_whole_update(
    monkeypatch: pytest.MonkeyPatch, double: None
) -> None:
    """The rollouts' gradients were dropped with the experts': both are computed again, in smaller parts."""
    ours = CHORD(mu_peak=0.5, mu_valley=0.5)
    models = models_for(ours, "gpt2")
    batch, experts = sampled(models), answers()
    gradient, metrics = backward(ours, models, batch, experts=experts)
    forward, failed = models.forward_train, []

    def short(roles: object, micro: Batch, *more: object, **settings: object) -> object:
        if micro.reward.isnan().all() and len(micro) > 2:
            failed.append(len(micro))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(roles, micro, *more, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(models, "forward_train", short)
    with pytest.warns(UserWarning, match="out of memory"):
        repeated, measured = backward(ours, models, batch, experts=experts)
    assert failed[0] == 4
    assert distance(repeated, gradient) < 1e-11 and measured == pytest.approx(metrics, nan_ok=True, rel=1e-9)


@pytest.mark.parametrize("updates", [1, 3, 4])
def test_every_expert_answer_goes_to_one_update(updates: int) -> None:
    experts = answers()
    parts = [dealt(experts, number, updates) for number in range(updates)]
    completions = torch.cat([part.completion for part in parts if part is not None])
    assert sorted(completions.tolist()) == sorted(experts.completion.tolist())
    assert dealt(None, 0, 1) is None and dealt(experts, 4, 5) is None


def test_an_expert_loss_of_another_shape_names_the_method() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(CHORD):
        def expert_weights(self, batch: Batch) -> torch.Tensor:
            return torch.ones(len(batch))

    models = models_for(CHORD(), "llama")
    with pytest.raises(ReturnError, match=r"expert_loss .* returned terms .* from expert_weights"):
        backward(Mine(), models, sampled(models), experts=answers())


def test_a_modifier_around_it_keeps_its_experts() -> None:
    ours = CHORD(mu_peak=0.5, mu_valley=0.5)
    around = Modifiers(entropy_bonus=1e-30).around(ours)
    assert around.expert_answers == 64
    models = models_for(ours, "llama")
    batch = sampled(models)
    plain, _ = backward(ours, models, batch, experts=answers())
    assert distance(backward(around, models, batch, experts=answers())[0], plain) < 1e-6
