"""What libraries mean by a policy that teaches itself: presets of ours, and a table of their teachers."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms.libraries.dialect import Dialect, Fact, Gap

SDFT_CONFIG = "trl/experimental/sdft/sdft_config.py"
SDFT_TRAINER = "trl/experimental/sdft/sdft_trainer.py"
SDPO_CONFIG = "trl/experimental/sdpo/sdpo_config.py"
SDPO_TRAINER = "trl/experimental/sdpo/sdpo_trainer.py"
AUTHORS = "lasgroup/SDPO@0e6d510: verl/trainer/config/actor/actor.yaml"
AUTHORS_RUN = "lasgroup/SDPO@0e6d510: verl/trainer/config/sdpo.yaml"
AUTHORS_CODE = "lasgroup/SDPO@0e6d510: verl/trainer/ppo/core_algos.py"
AUTHORS_TRAINER = "lasgroup/SDPO@0e6d510: verl/trainer/ppo/ray_trainer.py"
PRIME = "src/prime_rl/orchestrator/algo/opsd.py@559b447"
SWIFT = "docs/source_en/Instruction/Distillation.md@3602360"
SLIME = "docs/en/advanced/on-policy-distillation.md@080dd3f"
SDFT_COPY = "RohanAwhad/idan-Self-Distillation@2458e3a: main.py"

SELF_DISTILLATION = (
    Dialect(
        "sdft",
        "trl",
        "1.16.0",
        "SDFTTrainer with SDFTConfig()",
        (
            Fact("teacher", "initial", f"{SDFT_CONFIG}: teacher_model_kind", "base"),
            Fact("divergence_beta", 0.5, f"{SDFT_CONFIG}: distillation_alpha"),
            Fact("ratio_cap", 2.0, f"{SDFT_CONFIG}: distillation_is_clip"),
            Fact("skip_tokens", 0, f"{SDFT_CONFIG}: num_loss_tokens_to_skip"),
            Fact("template", "{prompt}\n\n{demonstration}", f"{SDFT_CONFIG}: teacher_prompt_template"),
            Fact("averaging", "sequence_mean", f"{SDFT_TRAINER}: _compute_self_distillation_loss"),
            Fact("task_weight", 0.0, f"{SDFT_TRAINER}: compute_loss", "there are no rewards"),
            Fact("sampler.temperature", 1.0, f"{SDFT_CONFIG}: temperature", "of both softmaxes too"),
            Fact("train.epochs", 1, f"{SDFT_CONFIG}: num_iterations"),
        ),
        (
            Gap(
                "The divergence is over the policy's 100 likeliest tokens, both renormalized over these.",
                f"{SDFT_CONFIG}: distillation_topk",
            ),
        ),
    ),
    Dialect(
        "sdpo",
        "trl",
        "1.16.0",
        "SDPOTrainer with SDPOConfig()",
        (
            Fact("teacher", "average", f"{SDPO_CONFIG}: teacher_model_kind", "ema"),
            Fact("teacher_rate", 0.05, f"{SDPO_CONFIG}: teacher_update_rate"),
            Fact("divergence_beta", 1.0, f"{SDPO_CONFIG}: distillation_alpha"),
            Fact("ratio_cap", 2.0, f"{SDPO_CONFIG}: distillation_is_clip"),
            Fact("threshold", 1.0, f"{SDPO_CONFIG}: success_reward_threshold"),
            Fact("cut_thinking", False, f"{SDPO_CONFIG}: remove_thinking_from_demonstration"),
            Fact("averaging", "sequence_mean", f"{SDPO_TRAINER}: _compute_self_distillation_loss"),
            Fact("task_weight", 0.0, f"{SDPO_CONFIG}: distillation_weight", "1 leaves the rewards out"),
            Fact("sampler.temperature", 1.0, f"{SDPO_CONFIG}: temperature", "of both softmaxes too"),
            Fact("train.epochs", 1, f"{SDPO_CONFIG}: num_iterations"),
        ),
        (
            Gap(
                "A token's term is (log π − log π_teacher) log π with the difference detached: estimates "
                "the reverse KL's gradient from the sampled token, where ours sums over the vocabulary.",
                f"{SDPO_CONFIG}: distillation_mode",
            ),
            Gap(
                "Averages also count completions without a teacher, whose terms are 0.",
                f"{SDPO_TRAINER}: _compute_self_distillation_loss",
            ),
            Gap("The teacher may be shown an environment's feedback.", f"{SDPO_CONFIG}: feedback_template"),
        ),
    ),
    Dialect(
        "sdpo",
        "lasgroup",
        "0e6d510",
        "actor.policy_loss.loss_mode=sdpo with sdpo.yaml",
        (
            Fact("teacher", "average", f"{AUTHORS}: teacher_regularization", "ema"),
            Fact("teacher_rate", 0.05, f"{AUTHORS}: teacher_update_rate"),
            Fact("divergence_beta", 0.5, f"{AUTHORS}: alpha"),
            Fact("ratio_cap", 2.0, f"{AUTHORS}: is_clip"),
            Fact("threshold", 0.5, f"{AUTHORS}: success_reward_threshold"),
            Fact("cut_thinking", True, f"{AUTHORS}: remove_thinking_from_demonstration"),
            Fact("averaging", "token_mean", f"{AUTHORS}: loss_agg_mode"),
            Fact("task_weight", 0.0, AUTHORS_CODE, "rewards only choose what is shown"),
            Fact("sampler.correction", "tis", f"{AUTHORS_RUN}: rollout_is", "per token"),
            Fact("sampler.correction_cap", 2.0, f"{AUTHORS_RUN}: rollout_is_threshold"),
            Fact("train.num_minibatches", 1, f"{AUTHORS_RUN}: ppo_mini_batch_size"),
        ),
        (
            Gap(
                "The divergence is over the policy's 100 likeliest tokens and all others as one more.",
                f"{AUTHORS}: distillation_topk",
            ),
            Gap(
                "Where no success is there, the teacher is shown what the environment says of the answer.",
                f"{AUTHORS}: include_environment_feedback",
            ),
            Gap(
                "A teacher's prompt is cut at 10,240 tokens.",
                f"{AUTHORS_TRAINER}: _maybe_build_self_distillation_batch",
            ),
        ),
    ),
)


@dataclass(frozen=True)
class SelfTeacher:
    """One way in which a policy teaches itself on its own rollouts."""

    library: str
    weights: str
    """The teacher's."""
    shown: str
    """What the teacher reads beside the prompt."""
    signal: str
    """What is computed of a token."""
    support: str
    """The sampled token, or part of the vocabulary."""
    bound: str
    average: str
    """Over what terms are averaged."""
    source: str
    ours: str
    """How it is said here; empty: not at all."""


SELF_TEACHERS = (
    SelfTeacher(
        "SDFT's authors",
        "average, rate 0.01",
        "reference answer",
        "KL(teacher‖π)",
        "whole vocabulary",
        "none; 3 tokens are skipped",
        "tokens of a completion, completions",
        SDFT_COPY,
        "sdft",
    ),
    SelfTeacher(
        "TRL, SDFT",
        "initial",
        "reference answer",
        "JSD, β 0.5",
        "π's 100 likeliest, renormalized",
        "ratio up to 2",
        "tokens of a completion, completions",
        SDFT_CONFIG,
        "sdft@trl",
    ),
    SelfTeacher(
        "prime-rl, OPSD",
        "live",
        "reference answer, before the conversation",
        "log π_teacher − log π as the advantage",
        "sampled token",
        "tokens that fell by 0.2 drop",
        "a sum of tokens",
        PRIME,
        "",
    ),
    SelfTeacher(
        "ms-swift, OPSD",
        "live; or initial",
        "a column of the data",
        "JSD, β 0.5; or log π_teacher − log π as the advantage",
        "whole vocabulary, k likeliest, or sampled token",
        "not read",
        "not read",
        SWIFT,
        "opcd",
    ),
    SelfTeacher(
        "slime, self",
        "initial",
        "reference answer",
        "JSD_β",
        "whole vocabulary",
        "0.05 nats a token",
        "not read",
        SLIME,
        "opcd",
    ),
    SelfTeacher(
        "SDPO's authors",
        "average, rate 0.05",
        "success of the group, feedback",
        "JSD, β 0.5",
        "π's 100 likeliest and the rest",
        "ratio up to 2",
        "tokens of completions with a teacher",
        AUTHORS,
        "sdpo@lasgroup",
    ),
    SelfTeacher(
        "TRL, SDPO",
        "average, rate 0.05",
        "success of the group, feedback",
        "(log π − log π_teacher) log π",
        "sampled token",
        "ratio up to 2",
        "tokens of a completion, all completions",
        SDPO_CONFIG,
        "sdpo@trl",
    ),
)
