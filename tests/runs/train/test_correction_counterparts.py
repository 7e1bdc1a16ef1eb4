"""Corrections against what other libraries call theirs: IcePop, the behavior weight of decoupled PPO,
truncation from both sides, rejection. Each counterpart is restated from the file that its docstring names,
over the same log-probabilities, advantages and mask; value and gradient of the whole loss must agree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, reading, rollouts

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.settings.config import SamplerConfig
from grpobench.runs.train.corrections import correct

pytestmark = pytest.mark.usefixtures("double")
EQUAL = {"rtol": 1e-6, "atol": 1e-12}
"""float64 on both sides; only the order of operations differs."""
GRPO_TOKENS = GRPO(averaging="token_mean")
ICEPOP: dict[str, Any] = {"correction": "mis", "correction_floor": 0.5, "correction_cap": 5.0}
Tensor = torch.Tensor


def example(seed: int = 0, moved: float = 0.3) -> tuple[Batch, Tensor]:
    """Two groups, with tokens that the policy did not write and an empty completion; π_old around the
    sampler's probabilities with ratios on both sides of every bound used here, and log π around π_old."""
    batch = rollouts(
        [[6, 1, 5, 0], [2, 7]], [[1.0, 0.0, 0.5, 0.2], [0.0, 1.0]], seed=seed, gaps={0: [2], 5: [0]}
    )
    shape, generator = batch.completion_mask.shape, torch.Generator().manual_seed(seed + 1)
    sampler, gap, step = (torch.randn(shape, generator=generator) for _ in range(3))
    old = -sampler.abs() + 1.2 * gap
    return dataclasses.replace(batch, sampler_logp=-sampler.abs(), old_logp=old), old + moved * step


def ours(batch: Batch, logp: Tensor, **sampler: Any) -> Tensor:
    """The corrected loss of GRPO with a mean over tokens, as the trainer computes it."""
    models = Fixed(policy=reading(logp.detach()))
    with torch.no_grad():
        signal = GRPO_TOKENS.compute_signal(batch, models)
    weights = GRPO_TOKENS.loss_weights(batch)
    correction = correct(batch, SamplerConfig(**sampler))
    weights = weights if correction is None else correction.of(weights)
    return (GRPO_TOKENS.loss(batch, signal, {"policy": reading(logp)}).terms * weights).sum()


def advantages(batch: Batch) -> Tensor:
    """GRPO's, one column, written anew: (r − mean)/(std + 1e-4) in each group."""
    advantage = torch.zeros_like(batch.reward)
    for number in batch.group.unique():
        of_group = batch.group == number
        reward = batch.reward[of_group]
        advantage[of_group] = (reward - reward.mean()) / (reward.std() + 1e-4)
    return advantage[:, None]


def clipped(batch: Batch, logp: Tensor) -> Tensor:
    """−min(ρA, clip(ρ)A) of every token, (B, T)."""
    ratio, advantage = (logp - batch.old_logp).exp(), advantages(batch)
    return torch.max(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage)


def agree(theirs: Callable[[Batch, Tensor], Tensor], moved: float = 0.3, **sampler: Any) -> None:
    """Value and gradient agree, and the correction matters."""
    for seed in range(3):
        batch, logp = example(seed, moved)
        leaf = logp.clone().requires_grad_()
        value, expected = ours(batch, leaf, **sampler), theirs(batch, leaf)
        torch.testing.assert_close(value, expected, **EQUAL)
        slope, expected_slope = (torch.autograd.grad(loss, leaf)[0] for loss in (value, expected))
        torch.testing.assert_close(slope, expected_slope, **EQUAL)
        (plain,) = torch.autograd.grad(ours(batch, leaf), leaf)
        assert slope.norm() > 0 and (slope - plain).norm() > 0.1 * plain.norm()


# Weights that are cut at two bounds


def weighed(batch: Batch, logp: Tensor, low: float, high: float, level: str, clamp: bool) -> Tensor:
    """The clipped loss times π_old/π_sampler of each token, of the sequence, or of its geometric mean; beyond
    the bounds the ratio is clamped, or else 0 and still counted in the denominator. So it is in

    - THUDM/slime@2fc4883, slime/backends/megatron_utils/loss.py: icepop_function, vanilla_tis_function
    - verl-project/verl@20c30bf, verl/trainer/ppo/rollout_corr_helper.py: compute_rollout_correction_weights,
      whose log ratios are clamped to [−20, 20]
    - inclusionAI/AReaL@fbc966d, areal/utils/functional/functional.py: ppo_actor_loss_fn, π_prox the
      recomputed π_old and π_behav the sampler; areal-project/AReaL@12372a8: apply_rejection_sampling with
      metric="ratio" and agg="mean", whose level "sequence" is the geometric mean
    - TRL 1.16, trl/trainer/grpo_trainer.py: vllm_importance_sampling_mode token or sequence, truncate or mask
    """
    mask = batch.completion_mask
    log_ratio = torch.where(mask, batch.old_logp - batch.sampler_logp, 0.0)
    if level != "token":
        total = log_ratio.sum(-1, keepdim=True)
        log_ratio = total if level == "sequence" else total / mask.sum(-1, keepdim=True).clamp(min=1)
    ratio = log_ratio.clamp(-20, 20).exp()
    inside = (ratio >= low) & (ratio <= high)
    weight = ratio.clamp(low, high) if clamp else torch.where(inside, ratio, 0.0)
    return (clipped(batch, logp) * weight * mask).sum() / mask.sum()


@pytest.mark.parametrize("kind", ["tis", "mis"])
@pytest.mark.parametrize(
    ("level", "low", "high"),
    [
        ("token", 0.5, 5.0),  # IcePop, and AReaL's bounds
        ("token", 0.0, 5.0),  # the behavior weight of decoupled PPO
        ("token", 0.0, math.inf),  # without bounds both are one
        ("token", 0.0, 2.0),
        ("sequence", 0.5, 5.0),
        ("sequence", 0.0, 3.0),
        ("geometric", 0.6, 1.6),
    ],
)
def test_weights_of_other_libraries_are_tis_and_mis(kind: str, level: str, low: float, high: float) -> None:
    agree(
        lambda batch, logp: weighed(batch, logp, low, high, level, kind == "tis"),
        correction=kind,
        correction_level=level,
        correction_floor=low,
        correction_cap=high,
    )


def prime_rl(batch: Batch, logp: Tensor, low: float, high: float) -> Tensor:
    """PrimeIntellect-ai/prime-rl@008468c, src/prime_rl/trainer/rl/loss.py: compute_loss with
    ratio_type="token" and no bound per sequence: the ratio of the current policy to the sampler, masked on
    both sides."""
    ratio = torch.exp(logp - batch.sampler_logp)
    keep = batch.completion_mask & ~((ratio < low) | (ratio > high))
    return (-ratio * advantages(batch).expand_as(ratio))[keep].sum() / batch.completion_mask.sum()


def test_icepop_of_prime_rl_agrees_where_the_policy_has_not_moved() -> None:
    """Its ratio is that of the current policy: with one update per batch, that of π_old."""
    bounds = {"correction": "mis", "correction_floor": 0.125, "correction_cap": 8.0}
    agree(lambda batch, logp: prime_rl(batch, logp, 0.125, 8.0), moved=0.0, **bounds)
    batch, logp = example()
    assert ours(batch, logp, **bounds) != pytest.approx(prime_rl(batch, logp, 0.125, 8.0).item(), rel=0.01)


# Rejection


def verl_rejection(batch: Batch, logp: Tensor, low: float, high: float, option: str) -> Tensor:
    """verl-project/verl@20c30bf, verl/trainer/ppo/rollout_corr_helper.py: compute_rollout_rejection_mask with
    rollout_rs_threshold="low_high" and no rollout_is; the loss is a mean over the narrowed mask."""
    mask = batch.completion_mask.to(logp.dtype)
    k1 = -(batch.old_logp - batch.sampler_logp).clamp(-20, 20)
    if option == "seq_mean_k1":
        k1 = ((k1 * mask).sum(-1) / (mask.sum(-1) + 1e-8))[:, None].expand_as(k1)
    keep = mask * ((k1 >= math.log(low)) & (k1 <= math.log(high)))
    return (clipped(batch, logp) * keep).sum() / keep.sum()


@pytest.mark.parametrize(("option", "level"), [("token_k1", "token"), ("seq_mean_k1", "geometric")])
def test_verl_rejection_is_normalized_rejection_with_inverted_bounds(option: str, level: str) -> None:
    """k1 is −log(π_old/π_sampler), so its bounds are those of the sampler's probability over the
    trainer's."""
    low, high = (0.8, 2.5) if level == "token" else (0.5, 1.6)
    agree(
        lambda batch, logp: verl_rejection(batch, logp, low, high, option),
        correction="rejection",
        correction_level=level,
        correction_floor=1 / high,
        correction_cap=1 / low,
        correction_normalize=True,
    )


def verl_normalized(batch: Batch, logp: Tensor, cap: float) -> Tensor:
    """The same file: compute_rollout_correction_weights with rollout_is_batch_normalize; the truncated
    weights over their mean."""
    mask = batch.completion_mask.to(logp.dtype)
    weight = ((batch.old_logp - batch.sampler_logp).clamp(-20, 20).exp() * mask).clamp(max=cap)
    weight = weight / ((weight * mask).sum() / mask.sum())
    return (clipped(batch, logp) * weight * mask).sum() / mask.sum()


def test_batch_normalized_weights_of_verl_are_normalized_weights() -> None:
    agree(lambda batch, logp: verl_normalized(batch, logp, 2.0), correction="tis", correction_normalize=True)


@pytest.mark.parametrize("averaging", ["token_mean", "sequence_mean"])
def test_sequence_weights_are_normalized_over_tokens_where_verl_normalizes_over_sequences(
    averaging: Any,
) -> None:
    """Sequences of one and three tokens with the weights 2 and 1: verl divides by (2 + 1)/2 whatever the
    average, ours by the average's own mean, which over tokens is (2·1 + 1·3)/4 and over sequences verl's."""
    batch = rollouts([[1, 3]], [[1.0, 0.0]])
    old = torch.zeros(batch.completion_mask.shape)
    old[0, 0] = math.log(2.0)
    batch = dataclasses.replace(batch, old_logp=old, sampler_logp=torch.zeros_like(old))
    settings = SamplerConfig(correction="tis", correction_level="sequence", correction_normalize=True)
    correction = correct(batch, settings)
    assert correction is not None
    weights = GRPO(averaging=averaging).loss_weights(batch)
    quotient = correction.of(weights)[:, 0] / weights[:, 0]
    divisor = 5 / 4 if averaging == "token_mean" else 3 / 2
    torch.testing.assert_close(quotient, torch.tensor([2.0, 1.0]) / divisor)


# Limits


def test_sequence_means_normalize_over_the_sequences_that_are_left() -> None:
    """Two completions of lengths 2 and 4, the second rejected as a whole: its half goes to the first."""
    batch = rollouts([[2, 4]], [[1.0, 0.0]])
    old = torch.zeros(batch.completion_mask.shape)
    old[1] = 3.0  # a ratio of e³ at each token
    batch = dataclasses.replace(batch, old_logp=old, sampler_logp=torch.zeros_like(old))
    for normalize, share in ((False, 0.25), (True, 0.5)):
        correction = correct(
            batch,
            SamplerConfig(
                correction="rejection", correction_level="geometric", correction_normalize=normalize
            ),
        )
        assert correction is not None
        weights = correction.of(GRPO().loss_weights(batch))
        assert weights.tolist() == [[share, share, 0, 0], [0, 0, 0, 0]]
