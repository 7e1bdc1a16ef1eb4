"""What libraries mean by on-policy distillation: presets of ours, and a table of what each differentiates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpobench.algorithms.libraries.dialect import Dialect, Fact, Gap

TINKER = "tinker_cookbook/distillation/train_on_policy.py@0333e7c"
SKYRL = "examples/train/on_policy_distillation/main_on_policy_distill.py@9d356ab"
NEMO = "nemo_rl/algorithms/advantage_estimator.py@00925dd: OPDAdvantageEstimator"
SLIME = "docs/en/advanced/on-policy-distillation.md@080dd3f"
SLIME_CODE = "slime/rollout/on_policy_distillation.py@0e76601"
PRIME = "src/prime_rl/orchestrator/algo/opd.py@039b400"
PRIME_LOSS = "src/prime_rl/trainer/rl/loss.py: ref_kl_loss_fn (its commit is not known)"
TRL_CONFIG = "trl/trainer/distillation_config.py"
TRL_TRAINER = "trl/trainer/distillation_trainer.py"
VERL_LOSSES = "verl/trainer/distillation/losses.py"

NO_CLIP = "importance sampling without a clip"
DISTILLATION = (
    Dialect(
        "opd",
        "tinker",
        "cookbook 0333e7c",
        "train_on_policy.Config()",
        (
            Fact("distill_weight", 1.0, f"{TINKER}: kl_penalty_coef"),
            Fact("discount", 0.0, f"{TINKER}: kl_discount_factor"),
            Fact("task_weight", 0.0, f"{TINKER}: compute_advantages", "its data sets have no reward"),
            Fact("clip_low", 1.0, f"{TINKER}: loss_fn", NO_CLIP),
            Fact("clip_high", math.inf, f"{TINKER}: loss_fn", NO_CLIP),
            Fact("train.num_minibatches", 1, f"{TINKER}: num_substeps"),
        ),
        (Gap("The loss is a sum over tokens, divided by nothing.", f"{TINKER}: loss_fn"),),
    ),
    Dialect(
        "opd",
        "skyrl",
        "9d356ab",
        "main_on_policy_distill.py",
        (
            Fact("averaging", "constant", f"{SKYRL}: reduce_loss", "seq_mean_token_sum_norm"),
            Fact("task_weight", 0.0, f"{SKYRL}: apply_reward_kl_penalty", "replaces the rewards"),
            Fact("discount", 0.0, f"{SKYRL}: compute_no_op_advantage"),
            Fact("clip_low", 1.0, f"{SKYRL}: compute_importance_sampling_policy_loss", NO_CLIP),
            Fact("clip_high", math.inf, f"{SKYRL}: compute_importance_sampling_policy_loss", NO_CLIP),
        ),
    ),
    Dialect(
        "opd",
        "nemo_rl",
        "00925dd",
        "grpo.adv_estimator.name=opd",
        (
            Fact("distill_weight", 1.0, NEMO, "arXiv:2601.02780, eq. 8"),
            Fact("discount", 0.0, NEMO),
            Fact("task_weight", 0.0, NEMO, "rewards are not read"),
            Fact("clip_low", 1.0, NEMO, "to be used with disable_ppo_ratio"),
            Fact("clip_high", math.inf, NEMO, "to be used with disable_ppo_ratio"),
        ),
        (
            Gap(
                "Without a ratio a second update on the same rollouts is not corrected; ours has the ratio, "
                "which is 1 in the first.",
                NEMO,
            ),
            Gap(
                "To be used with IcePop's gate on the ratio of trainer and sampler; here that is "
                "sampler.correction.",
                NEMO,
            ),
        ),
    ),
    Dialect(
        "opd",
        "slime",
        "080dd3f",
        "--use-opd --opd-type sglang --advantage-estimator grpo",
        (
            Fact("distill_weight", 1.0, f"{SLIME}: --opd-kl-coef"),
            Fact("discount", 0.0, SLIME),
            Fact("task_weight", 1.0, SLIME, "the task's advantage stays as it is"),
        ),
        (
            Gap(
                "The reward function of its example returns 0, so that task_weight has no effect there.",
                f"{SLIME_CODE}: post_process_rewards",
            ),
        ),
    ),
    Dialect(
        "opd",
        "prime_rl",
        "039b400",
        'algorithm type "opd"',
        (
            Fact("task_weight", 0.0, f"{PRIME}: OPDAlgorithm", "no advantages are assigned"),
            Fact("discount", 0.0, f"{PRIME}: OPDAlgorithm"),
            Fact("clip_low", 1.0, PRIME_LOSS, "no clip of the ratio"),
            Fact(
                "clip_high",
                math.inf,
                PRIME_LOSS,
                "no clip of the ratio",
            ),
        ),
        (
            Gap(
                "The advantage is log π_teacher − log π of the policy that is being updated, detached; ours "
                "has log π_old, the same in the first update.",
                PRIME_LOSS,
            ),
            Gap(
                "Tokens whose probability has fallen by more than 0.2 since sampling are left out.",
                PRIME_LOSS,
            ),
            Gap(
                "Some versions add 0.001 times the squared log-ratio to the sampler.",
                PRIME_LOSS,
            ),
        ),
    ),
    Dialect(
        "gkd",
        "trl",
        "1.16.0",
        "DistillationTrainer with DistillationConfig()",
        (
            Fact("divergence_beta", 1.0, f"{TRL_CONFIG}: beta", "the reverse KL"),
            Fact("task_weight", 0.0, f"{TRL_TRAINER}: _compute_loss", "rewards are not read"),
            Fact("averaging", "token_mean", f"{TRL_TRAINER}: _chunked_divergence_loss"),
            Fact(
                "sampler.temperature", 1.0, f"{TRL_CONFIG}: temperature", "of sampling and of both softmaxes"
            ),
        ),
    ),
)


@dataclass(frozen=True)
class Meaning:
    """One way to distill on the student's own rollouts."""

    library: str
    signal: str
    """What is computed of a token."""
    differentiated: str
    constant: str
    support: str
    """The sampled token, or part of the vocabulary."""
    bound: str
    source: str
    ours: str
    """How it is said here; empty: not at all."""


ADVANTAGE = "log π_teacher − log π"
RATIO_GRADIENT = "ratio π/π_old of the sampled token"
MEANINGS = (
    Meaning(
        "TRL", "D_β(teacher, π)", "π's softmax", "teacher", "whole vocabulary", "none", TRL_TRAINER, "gkd@trl"
    ),
    Meaning(
        "verl, top-k",
        "KL(π_teacher‖π)",
        "π's log-probabilities",
        "teacher",
        "the teacher's k likeliest",
        "loss_max_clamp from above, 0 from below",
        VERL_LOSSES,
        "gkd@verl",
    ),
    Meaning(
        "verl, k1",
        ADVANTAGE,
        RATIO_GRADIENT,
        "the advantage",
        "sampled token",
        "PPO's clip",
        VERL_LOSSES,
        "opd@verl",
    ),
    Meaning(
        "verl, other estimators",
        "k2, k3, abs of log π − log π_teacher",
        "log π of the sampled token",
        "teacher, states",
        "sampled token",
        "loss_max_clamp",
        VERL_LOSSES,
        "",
    ),
    Meaning(
        "prime-rl",
        ADVANTAGE,
        "ratio π/sampler",
        "the advantage",
        "sampled token",
        "tokens that fell by 0.2 drop",
        PRIME,
        "opd@prime_rl",
    ),
    Meaning(
        "NeMo-RL",
        ADVANTAGE,
        "log π of the sampled token",
        "the advantage",
        "sampled token",
        "IcePop's gate",
        NEMO,
        "opd@nemo_rl",
    ),
    Meaning(
        "slime",
        f"A + λ({ADVANTAGE})",
        RATIO_GRADIENT,
        "the advantage",
        "sampled token",
        "the estimator's clip",
        SLIME,
        "opd@slime",
    ),
    Meaning(
        "tinker-cookbook",
        f"A + λ Σ γ^s ({ADVANTAGE})",
        RATIO_GRADIENT,
        "the advantage",
        "sampled token",
        "none, or PPO's clip",
        TINKER,
        "opd@tinker",
    ),
    Meaning("SkyRL", ADVANTAGE, RATIO_GRADIENT, "the advantage", "sampled token", "none", SKYRL, "opd@skyrl"),
)
"""A loss that differentiates k1 of the sampled token has an expected
gradient of 0 (tests/algorithms/test_distillation.py); only as an advantage is it the reverse KL's."""
