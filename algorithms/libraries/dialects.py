"""What other libraries mean by the name of an algorithm, as presets of ours: `grpo@trl`.

A dialect holds what a library's defaults make of the gradient of a batch, and how often a batch is used. It
does not hold what every comparison chooses for itself: learning rates and the optimizer, numbers of prompts
and of completions, lengths. Each value is one `Fact` with the file that it was read in; what our settings
cannot say is a `Gap`.
"""

from __future__ import annotations

import math

from grpobench.algorithms.libraries.beyond_rollouts import BEYOND_ROLLOUTS
from grpobench.algorithms.libraries.dialect import Dialect, Fact, Gap
from grpobench.algorithms.libraries.distillation import DISTILLATION, VERL_LOSSES
from grpobench.algorithms.libraries.self_distillation import SELF_DISTILLATION

NOTE = (
    "If one of eight completions is correct, its advantage is 2.474 in TRL, verl and "
    "OpenRLHF, which divide by the group's deviation; 1.000 in NeMo-RL, which does not "
    "divide because the other seven have deviation 0; and 0.875 in open-instruct and "
    "prime-rl, which only center. AReaL whitens the quotients again, over the batch's "
    "tokens."
)

# TRL

TRL = "1.16.0"
CONFIG, TRAINER = "trl/trainer/grpo_config.py", "trl/trainer/grpo_trainer.py"
TRL_MEAN = Fact("baseline", "mean", f"{TRAINER}: _generate_and_score_completions")
TRL_DEVIATION = (
    Fact("ddof", 1, "trl/trainer/utils.py: nanstd", "Bessel's correction"),
    Fact("epsilon", 1e-4, f"{TRAINER}: _generate_and_score_completions", "added to the deviation"),
)
TRL_GROUP = (TRL_MEAN, Fact("scale", "group", f"{CONFIG}: scale_rewards"), *TRL_DEVIATION)
TRL_KL = (
    Fact("beta", 0.0, f"{CONFIG}: beta"),
    Fact(
        "kl_estimator",
        "k3_unbiased",
        f"{CONFIG}: use_bias_correction_kl",
        "k3 times the ratio; no effect while beta is 0",
    ),
    Fact("kl_placement", "loss", f"{TRAINER}: _compute_loss"),
)
TRL_CLIP = (
    Fact("clip_low", 0.2, f"{CONFIG}: epsilon"),
    Fact("clip_high", 0.2, f"{CONFIG}: epsilon_high", "None: the value of epsilon"),
    Fact("dual_clip", 0.0, f"{CONFIG}: delta"),
)
TRL_LOOP = (
    Fact("modify.mask_truncated", False, f"{CONFIG}: mask_truncated_completions"),
    Fact(
        "modify.off_policy_mask",
        0.0,
        f"{CONFIG}: off_policy_mask_threshold",
        "None: off; uses the sampler's probabilities with vLLM, else π_old",
    ),
    Fact(
        "modify.entropy_bonus",
        0.0,
        f"{CONFIG}: entropy_coef",
        "always the mean over tokens; ours and verl's is averaged like the policy's terms",
    ),
    Fact("sampler.temperature", 1.0, f"{CONFIG}: temperature"),
    Fact("train.num_minibatches", 1, f"{CONFIG}: steps_per_generation", "one update per generated batch"),
    Fact("train.epochs", 1, f"{CONFIG}: num_iterations"),
)
TRL_GAPS = (
    Gap(
        "With vLLM (not the default) terms are multiplied by the sequence's π_old/π_sampler, "
        'or by 0 above 3: set sampler.correction = "mis", correction_level = "sequence", '
        "correction_cap = 3.",
        f"{CONFIG}: vllm_importance_sampling_mode",
    ),
    Gap(
        "A completion that no reward function could score is left out of its group's "
        "statistics; ours is left out only if grading failed.",
        f"{TRAINER}: _calculate_rewards",
    ),
)
TRL_GMPO, TRL_RLOO = "trl/experimental/gmpo/gmpo_trainer.py", "trl/trainer/rloo_trainer.py"
TRL_PAIRS = (
    Fact("nll", 0.0, "trl/trainer/dpo_config.py: loss_type", "an `sft` term only if listed"),
    Fact("pairs_per_group", 0, "trl/trainer/dpo_trainer.py", "every pair of the data set"),
    Fact("modify.reference_every", 0, "trl/trainer/dpo_config.py: sync_ref_model"),
)
TRL_KTO, TRL_CPO = "trl/trainer/kto_config.py", "trl/experimental/cpo/cpo_config.py"
TRL_ORPO = "trl/experimental/orpo/orpo_trainer.py"
TRL_PAIRS_ALONE = (
    Fact("nll", 0.0, f"{TRL_CPO}: cpo_alpha", "as asked; 1 by default"),
    Fact("pairs_per_group", 0, "trl/experimental/cpo/cpo_trainer.py", "every pair of the data set"),
)


def recorded(trainer: str) -> Gap:
    """The gap of a trainer in this file that draws no completions."""
    return Gap(
        'It trains on recorded preferences: set sampler.kind = "preferences" and sampler.path.', trainer
    )


TRL_PAIR_GAPS = (recorded("trl/trainer/dpo_trainer.py: DPOTrainer"),)
TOKENS = Fact("averaging", "token_mean", f'{CONFIG}: loss_type = "dapo"', "over the whole generated batch")

# verl

VERL = "0.9.1"
ACTOR, CORE = "verl/trainer/config/actor/actor.yaml", "verl/trainer/ppo/core_algos.py"
PPO_YAML = "verl/trainer/config/ppo_trainer.yaml"
VERL_AVERAGING = Fact("averaging", "token_mean", f"{ACTOR}: loss_agg_mode")
VERL_DEVIATION = (
    Fact("ddof", 1, f"{CORE}: compute_grpo_outcome_advantage", "torch.std"),
    Fact("epsilon", 1e-6, f"{CORE}: compute_grpo_outcome_advantage", "added to the deviation"),
)
VERL_GROUP = (
    Fact("baseline", "mean", f"{CORE}: compute_grpo_outcome_advantage"),
    Fact("scale", "group", f"{PPO_YAML}: algorithm.norm_adv_by_std_in_grpo"),
    *VERL_DEVIATION,
)
VERL_KL = (
    Fact("beta", 0.0, f"{ACTOR}: use_kl_loss", "off; if on, kl_loss_coef is 0.001"),
    Fact("kl_estimator", "k3", f"{ACTOR}: kl_loss_type = low_var_kl", "no effect while beta is 0"),
    Fact("kl_placement", "loss", f"{ACTOR}: use_kl_loss"),
)
VERL_CLIP = (
    Fact("clip_low", 0.2, f"{ACTOR}: clip_ratio_low"),
    Fact("clip_high", 0.2, f"{ACTOR}: clip_ratio_high"),
)
VERL_DUAL = Fact("dual_clip", 3.0, f"{ACTOR}: clip_ratio_c", "always on")
VERL_LOOP = (
    Fact("modify.dynamic_sampling", 0, f"{PPO_YAML}: algorithm.filter_groups.enable"),
    Fact("modify.overlong_buffer", 0, "verl/trainer/config/reward/reward.yaml: reward_manager"),
    Fact("sampler.temperature", 1.0, "verl/trainer/config/rollout/rollout.yaml: temperature"),
    Fact(
        "train.num_minibatches",
        4,
        f"{ACTOR}: ppo_mini_batch_size",
        "256 of the 1024 prompts of data.train_batch_size (legacy_data.yaml) per update",
    ),
    Fact("train.epochs", 1, f"{ACTOR}: ppo_epochs"),
)
VERL_ENTROPY = Fact(
    "modify.entropy_bonus", 0.0, f"{ACTOR}: entropy_coeff", "averaged like the policy's terms (loss_agg_mode)"
)
VERL_RATIO = Gap(
    "The log ratio is clamped to [−20, 20]; ours is not.",
    f"{CORE}: compute_policy_loss_vanilla",
)
VERL_SINGLE = Gap(
    "The advantage of a group of one completion is its reward; ours is 0.",
    f"{CORE}: compute_grpo_outcome_advantage",
)
VERL_K3 = Gap(
    "If the KL is on, k3 of each token is clamped to [−10, 10] and its logarithm to [−20, "
    "20], without gradient beyond; ours is not.",
    f"{CORE}: kl_penalty_forward",
)
VERL_GAPS = (VERL_RATIO, VERL_SINGLE, VERL_K3)
VERL_WHITEN = Gap(
    "Advantages are whitened with Bessel's correction; ours are whitened without it.",
    "verl/utils/torch_functional.py: masked_whiten",
)
VERL_CLIPS = Gap(
    "PPO's clip [0.8, 1.2] and dual clip 3 bound the ratio after the first update on a "
    "batch; ours has no ratio.",
    f"{CORE}: compute_policy_loss_vanilla",
)
VERL_COVARIANCE = Gap(
    "The covariance is that of the current policy over each micro-batch; ours is that of "
    "the old policy over the rollout batch.",
    f"{CORE}: compute_policy_loss_clip_cov, compute_policy_loss_kl_cov",
)
VERL_MODE = "algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode"
VERL_DAPO = "verl-recipe/dapo/run_dapo_qwen2.5_32b.sh@21892b9"
"""The script that moved there from verl, where it was the same in 0.7.0."""
OR1 = "or1_scripts/train/7b_8k.sh"
RECIPES = "48ea0a7"
"""The commit of verl-project/verl-recipe."""
DISTILL = "verl/trainer/config/distillation/distillation.yaml"
VERL_DISTILL = (
    Fact("distill_weight", 1.0, f"{DISTILL}: distillation_loss_coef"),
    Fact("task_weight", 1.0, f"{DISTILL}: use_task_rewards", "0 says false"),
    *VERL_GROUP,
    VERL_AVERAGING,
    *VERL_CLIP,
    VERL_DUAL,
    *VERL_KL,
    *VERL_LOOP,
    VERL_ENTROPY,
)
VERL_V0 = "this release's default trainer (v1) cannot run it; its predecessor can"

# OpenRLHF

OPENRLHF = "0.11.2"
OPTIONS, LOSS = "openrlhf/cli/train_ppo_ray.py", "openrlhf/models/loss.py"
MAKER, UTILS = "openrlhf/trainer/ppo_utils/experience_maker.py", "openrlhf/models/utils.py"
OPENRLHF_LOSS = (
    Fact("averaging", "token_mean", f"{OPTIONS}: --actor.loss_agg_mode"),
    Fact("clip_low", 0.2, f"{OPTIONS}: --actor.eps_clip"),
    Fact("clip_high", 0.2, f"{OPTIONS}: --actor.eps_clip"),
    Fact("dual_clip", 0.0, f"{OPTIONS}: --actor.dual_clip"),
)
OPENRLHF_BETA = Fact("beta", 0.01, f"{OPTIONS}: --algo.kl.init_coef", "k1")
OPENRLHF_KL = (
    OPENRLHF_BETA,
    Fact(
        "kl_placement",
        "advantage",
        f"{MAKER}: compute_advantages_and_returns",
        "subtracted from token rewards after the group is normalized, then summed to the end",
    ),
)
OPENRLHF_LOOP = (
    Fact("modify.overlong_buffer", 0, f"{OPTIONS}: --reward.overlong_buffer_len"),
    Fact("modify.dynamic_sampling", 0, f"{OPTIONS}: --algo.dynamic_filtering_enable"),
    Fact("sampler.temperature", 1.0, f"{OPTIONS}: --rollout.temperature"),
    Fact("sampler.correction", "none", f"{OPTIONS}: --algo.advantage.is_correction_level"),
    Fact(
        "train.num_minibatches",
        8,
        f"{OPTIONS}: --train.batch_size",
        "128 completions per update of 1024 prompts with one each; n each make 8·n updates",
    ),
    Fact("train.epochs", 1, f"{OPTIONS}: --train.max_epochs"),
)
OPENRLHF_GAPS = (
    Gap(
        "The reward minus the group's baseline is clamped to [−10, 10]; ours is not.",
        f"{OPTIONS}: --reward.clip_range",
    ),
    Gap("k1 of each token is clamped to [−10, 10]; ours is not.", f"{UTILS}: compute_approx_kl"),
    Gap("The log ratio is clamped to [−20, 20]; ours is not.", f"{LOSS}: PolicyLoss.forward"),
)

# NeMo-RL, open-instruct, prime-rl and AReaL, read at commits

NEMO_YAML = "examples/configs/grpo_math_1B.yaml@b26cfeb"
NEMO_STD = "nemo_rl/algorithms/utils.py@0043953: calculate_baseline_and_std_per_prompt"
NEMO_ESTIMATOR = "nemo_rl/algorithms/advantage_estimator.py@00925dd: GRPOAdvantageEstimator"
INSTRUCT = "open_instruct/grpo_utils.py@0063d12"
STREAM = "open_instruct/data_loader.py@006e470"
PRIME_TRAIN = "src/prime_rl/trainer/rl/train.py@004274e"
PRIME_LOSS = "src/prime_rl/trainer/rl/loss.py@008468c: compute_loss"
PRIME_CONFIG = "src/prime_rl/configs/trainer.py@6deea63: DefaultLossConfig"
PRIME_ADVANTAGE = "src/prime_rl/orchestrator/advantage.py@0fad630: AdvantageConfig"
AREAL_YAML = "examples/math/gsm8k_grpo.yaml@00d07c0"
AREAL_ACTOR = "areal/trainer/ppo/actor.py"
AREAL_M2PO = "examples/math/gsm8k_m2po.yaml"

# ms-swift, ROLL and Trinity-RFT, each at the one commit that was read

SWIFT, SWIFT_ARGS = "swift/rlhf_trainers/grpo_trainer.py", "swift/rlhf_trainers/args_mixin.py"
ROLL_CONFIG, ROLL_ACTOR = "roll/configs/base_config.py", "roll/pipeline/rlvr/actor_pg_worker.py"
TRINITY = "trinity/algorithm"

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "grpo",
            "trl",
            TRL,
            "GRPOTrainer with GRPOConfig()",
            (
                *TRL_GROUP,
                TOKENS,
                *TRL_CLIP,
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "grpo",
            "verl",
            VERL,
            "algorithm.adv_estimator=grpo",
            (
                *VERL_GROUP,
                VERL_AVERAGING,
                *VERL_CLIP,
                VERL_DUAL,
                *VERL_KL,
                *VERL_LOOP,
                VERL_ENTROPY,
            ),
            VERL_GAPS,
        ),
        Dialect(
            "grpo",
            "openrlhf",
            OPENRLHF,
            "--algo.advantage.estimator group_norm",
            (
                Fact("baseline", "mean", f"{MAKER}: compute_advantages_and_returns"),
                Fact("scale", "group", f"{MAKER}: compute_advantages_and_returns"),
                Fact("ddof", 1, f"{MAKER}: compute_advantages_and_returns", "torch.std"),
                Fact("epsilon", 1e-9, f"{MAKER}: compute_advantages_and_returns", "added to the deviation"),
                *OPENRLHF_LOSS,
                *OPENRLHF_KL,
                *OPENRLHF_LOOP,
                Fact("modify.entropy_bonus", 0.0, f"{OPTIONS}: --actor.entropy_coef"),
            ),
            OPENRLHF_GAPS,
        ),
        Dialect(
            "grpo",
            "nemo-rl",
            "commits b26cfeb and others",
            "examples/run_grpo_math.py with its own configuration",
            (
                Fact("baseline", "leave_one_out", f"{NEMO_YAML}: use_leave_one_out_baseline"),
                Fact(
                    "scale",
                    "leave_one_out",
                    NEMO_STD,
                    "the other completions' deviation; no division if it is 0",
                ),
                Fact("ddof", 1, NEMO_STD),
                Fact("epsilon", 1e-6, NEMO_ESTIMATOR, "added to the deviation"),
                Fact("averaging", "token_mean", f"{NEMO_YAML}: token_level_loss"),
                Fact("clip_low", 0.2, f"{NEMO_YAML}: ratio_clip_min"),
                Fact("clip_high", 0.2, f"{NEMO_YAML}: ratio_clip_max"),
                Fact("dual_clip", 0.0, f"{NEMO_YAML}: ratio_clip_c"),
                Fact("beta", 0.01, f"{NEMO_YAML}: reference_policy_kl_penalty"),
                Fact(
                    "kl_estimator",
                    "k3",
                    "nemo_rl/algorithms/loss_functions.py@b816b57: ClippedPGLossFn",
                    "later commits multiply it by π/sg[π] (k3_unbiased if a batch has one update)",
                ),
                Fact("kl_placement", "loss", f"{NEMO_YAML}: loss_fn"),
                Fact("modify.dynamic_sampling", 0, f"{NEMO_YAML}: use_dynamic_sampling"),
                Fact("modify.mask_truncated", False, f"{NEMO_YAML}: overlong_filtering"),
                Fact("sampler.temperature", 1.0, f"{NEMO_YAML}: generation.temperature"),
                Fact("sampler.correction", "none", f"{NEMO_YAML}: use_importance_sampling_correction"),
                Fact(
                    "train.num_minibatches",
                    1,
                    f"{NEMO_YAML}: train_global_batch_size",
                    "512 completions per update, of 32 prompts × 16",
                ),
                Fact("train.epochs", 1, f"{NEMO_YAML}: grpo"),
            ),
            (
                Gap(
                    "k3 of each token is clamped to [−10, 10] and its logarithm to [−20, 20]; ours is not.",
                    f"{NEMO_YAML}: kl_output_clamp_value",
                ),
            ),
        ),
        Dialect(
            "grpo",
            "open-instruct",
            "commits 0063d12 and 006e470",
            "grpo_fast.py with its defaults",
            (
                Fact("baseline", "mean", f"{STREAM}: advantage_normalization_type"),
                Fact("scale", "none", f'{STREAM}: advantage_normalization_type = "centered"'),
                Fact("averaging", "token_mean", f"{INSTRUCT}: loss_denominator"),
                Fact("clip_low", 0.2, f"{INSTRUCT}: clip_lower"),
                Fact("clip_high", 0.272, f"{INSTRUCT}: clip_higher"),
                Fact("dual_clip", 0.0, f'{INSTRUCT}: loss_fn = "dapo"'),
                Fact("beta", 0.05, f"{INSTRUCT}: beta"),
                Fact("kl_estimator", "k3", f"{INSTRUCT}: kl_estimator = 2", "model_utils.estimate_kl"),
                Fact("kl_placement", "loss", f"{INSTRUCT}: beta"),
                Fact("modify.mask_truncated", False, f"{STREAM}: mask_truncated_completions"),
                Fact("modify.dynamic_sampling", 0, f"{STREAM}: active_sampling"),
                Fact("modify.zero_variance_filter", True, f"{STREAM}: filter_zero_std_samples"),
                Fact("modify.reference_every", 0, f"{INSTRUCT}: ref_policy_update_freq"),
                Fact("sampler.temperature", 1.0, f"{STREAM}: temperature"),
                Fact("sampler.correction", "tis", f"{INSTRUCT}: truncated_importance_sampling_ratio_cap"),
                Fact(
                    "sampler.correction_level",
                    "token",
                    f"{INSTRUCT}: truncated_importance_sampling_ratio_cap",
                ),
                Fact("sampler.correction_cap", 2.0, f"{INSTRUCT}: truncated_importance_sampling_ratio_cap"),
                Fact("train.num_minibatches", 1, f"{INSTRUCT}: num_mini_batches"),
                Fact("train.epochs", 1, f"{INSTRUCT}: num_epochs"),
            ),
            (
                Gap(
                    "Rollouts come from policies up to 8 steps old, and weights change during a "
                    "completion; ours come from the current policy.",
                    f"{STREAM}: async_steps, inflight_updates",
                ),
            ),
        ),
        Dialect(
            "grpo",
            "prime-rl",
            "commits 6deea63 and others",
            "the trainer with its default loss",
            (
                Fact("baseline", "mean", PRIME_ADVANTAGE),
                Fact("scale", "none", PRIME_ADVANTAGE),
                Fact(
                    "averaging",
                    "token_mean",
                    PRIME_TRAIN,
                    "the tokens of the batch",
                ),
                Fact("clip_low", 0.875, f"{PRIME_CONFIG}.token_mask_low", "ratios below 1/8 are masked"),
                Fact("clip_high", 7.0, f"{PRIME_CONFIG}.token_mask_high", "ratios above 8 are masked"),
                Fact("dual_clip", 0.0, PRIME_LOSS),
                Fact("beta", 0.0, f"{PRIME_CONFIG}.kl_tau"),
                Fact("sampler.correction", "mis", PRIME_LOSS, "the ratio is that to the sampler"),
                Fact("sampler.correction_level", "token", f"{PRIME_CONFIG}.ratio_type"),
                Fact("sampler.correction_cap", 8.0, f"{PRIME_CONFIG}.token_mask_high"),
                Fact("sampler.correction_floor", 0.125, f"{PRIME_CONFIG}.token_mask_low"),
                Fact("train.num_minibatches", 1, PRIME_TRAIN, "one update per batch"),
                Fact("train.epochs", 1, PRIME_TRAIN),
            ),
            (
                Gap(
                    "Instead of a clip, a token whose ratio leaves [1/8, 8] is masked whatever the sign "
                    "of its advantage; ours drops only those that the clipped objective drops. With one "
                    "update per batch the ratio to π_old is 1 and only the correction masks, as there.",
                    PRIME_LOSS,
                ),
                Gap(
                    "A whole sequence is masked if the geometric mean of its ratios leaves [0.1, 10] or "
                    "one exceeds 100.",
                    f"{PRIME_CONFIG}.geo_mask_low, sequence_mask_high",
                ),
                Gap(
                    "Rollouts come from a policy one step old; ours from the current one.",
                    "src/prime_rl/configs/trainer.py@6deea63: max_async_level",
                ),
            ),
        ),
        Dialect(
            "grpo",
            "areal",
            "1.0.4, its example at commit 00d07c0",
            "examples/math/gsm8k_grpo.yaml",
            (
                Fact("baseline", "mean", f"{AREAL_YAML}: reward_norm.mean_level"),
                Fact("scale", "group", f"{AREAL_YAML}: reward_norm.std_level"),
                Fact("ddof", 1, "areal/api/cli_args.py: NormConfig.std_unbiased"),
                Fact(
                    "epsilon",
                    1e-6,
                    "areal/api/cli_args.py: NormConfig.eps",
                    "1e-5 for rewards that reward_scaling multiplies by 10",
                ),
                Fact(
                    "whiten",
                    True,
                    f"{AREAL_YAML}: adv_norm",
                    "batch mean and deviation over tokens, after the group's",
                ),
                Fact("averaging", "token_mean", f"{AREAL_ACTOR}: loss_weight_fn"),
                Fact("clip_low", 0.4, f"{AREAL_YAML}: eps_clip", "0.2 unless set"),
                Fact("clip_high", 0.4, f"{AREAL_YAML}: eps_clip", "0.2 unless set"),
                Fact("dual_clip", 0.0, "areal/api/cli_args.py: PPOActorConfig.c_clip"),
                Fact("beta", 0.0, f"{AREAL_YAML}: kl_ctl", "0.1 unless set"),
                Fact("modify.overlong_buffer", 0, "areal/api/cli_args.py: overlong_reward_penalty"),
                Fact("modify.mask_truncated", False, "areal/api/cli_args.py: mask_no_eos_with_zero"),
                Fact("sampler.temperature", 1.0, f"{AREAL_YAML}: gconfig.temperature"),
                Fact("sampler.correction", "mis", f"{AREAL_YAML}: use_decoupled_loss"),
                Fact("sampler.correction_level", "token", f"{AREAL_YAML}: behav_imp_weight_cap"),
                Fact("sampler.correction_cap", 5.0, f"{AREAL_YAML}: behav_imp_weight_cap"),
                Fact("train.num_minibatches", 1, f"{AREAL_YAML}: ppo_n_minibatches"),
                Fact("train.epochs", 1, f"{AREAL_ACTOR}: _ppo_update"),
            ),
            (
                Gap(
                    "The second normalization divides by the unbiased deviation plus 1e-5; ours divides "
                    "by the root of (variance + 1e-8), without Bessel's correction.",
                    "areal/utils/data.py: Normalization",
                ),
                Gap(
                    "Rewards times 10, minus 5, are clamped to [−20, 20]; ours are not.",
                    "areal/api/cli_args.py: PPOActorConfig.reward_clip",
                ),
                Gap(
                    "Rollouts come from policies up to 2 versions old; ours from the current one.",
                    f"{AREAL_YAML}: max_head_offpolicyness",
                ),
            ),
        ),
        Dialect(
            "gspo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(importance_sampling_level="sequence")',
            (
                Fact(
                    "level",
                    "token",
                    f'{TRAINER}: importance_sampling_level = "sequence"',
                    "the token mean of loss_type = dapo weighs a sequence by its length: the gradient of "
                    "the token form",
                ),
                *TRL_GROUP,
                TOKENS,
                *TRL_CLIP,
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "gspo",
            "verl",
            VERL,
            f"{VERL_MODE}=gspo",
            (
                Fact("level", "token", f"{CORE}: compute_policy_loss_gspo"),
                *VERL_GROUP,
                Fact(
                    "averaging",
                    "token_mean",
                    f"{ACTOR}: loss_agg_mode",
                    "0.9.0 always takes the mean over each sequence",
                ),
                *VERL_CLIP,
                Fact("dual_clip", 0.0, f"{CORE}: compute_policy_loss_gspo"),
                *VERL_KL,
                *VERL_LOOP,
            ),
            (
                Gap(
                    "The log ratio is at most 10; ours is unbounded.",
                    f"{CORE}: compute_policy_loss_gspo",
                ),
                VERL_SINGLE,
                VERL_K3,
            ),
        ),
        Dialect(
            "ppo",
            "verl",
            VERL,
            "algorithm.adv_estimator=gae, the default",
            (
                Fact("critic", "separate", "verl/trainer/config/critic/critic.yaml"),
                Fact("discount", 1.0, f"{PPO_YAML}: algorithm.gamma"),
                Fact("trace", 1.0, f"{PPO_YAML}: algorithm.lam"),
                *VERL_CLIP,
                VERL_DUAL,
                Fact("value_clip", 0.5, "verl/trainer/config/critic/critic.yaml: cliprange_value"),
                Fact("critic_warmup", 0, f"{PPO_YAML}: trainer.critic_warmup"),
                Fact("whiten", True, f"{CORE}: compute_gae_advantage_return"),
                VERL_AVERAGING,
                Fact("entropy_bonus", 0.0, f"{ACTOR}: entropy_coeff"),
                Fact("beta", 0.0, f"{PPO_YAML}: algorithm.use_kl_in_reward"),
                Fact(
                    "kl_placement",
                    "reward",
                    f"{PPO_YAML}: algorithm.kl_penalty",
                    "k1; no effect while beta is 0",
                ),
                *VERL_LOOP,
            ),
            (
                VERL_RATIO,
                VERL_WHITEN,
                Gap(
                    "The critic's learning rate is ten times the actor's (1e-5, 1e-6); set "
                    "train.learning_rate = { policy = …, critic = … }.",
                    "verl/trainer/config/critic/critic.yaml: optim.lr",
                ),
            ),
        ),
        Dialect(
            "ppo",
            "openrlhf",
            OPENRLHF,
            "--algo.advantage.estimator gae, the default",
            (
                Fact("critic", "separate", f"{OPTIONS}: --critic.model_name_or_path"),
                Fact("discount", 1.0, f"{OPTIONS}: --algo.advantage.gamma"),
                Fact("trace", 1.0, f"{OPTIONS}: --algo.advantage.lambd"),
                *OPENRLHF_LOSS,
                Fact("value_clip", 0.5, f"{OPTIONS}: --critic.value_clip"),
                Fact("critic_warmup", 0, f"{OPTIONS}: --critic.freezing_steps", "−1: none"),
                Fact("whiten", True, f"{MAKER}: compute_advantages_and_returns"),
                Fact("entropy_bonus", 0.0, f"{OPTIONS}: --actor.entropy_coef"),
                OPENRLHF_BETA,
                Fact("kl_placement", "reward", f"{UTILS}: compute_reward"),
                *OPENRLHF_LOOP,
            ),
            OPENRLHF_GAPS,
        ),
        Dialect(
            "dpo",
            "trl",
            TRL,
            "DPOTrainer with DPOConfig()",
            (Fact("beta", 0.1, "trl/trainer/dpo_config.py: beta"), *TRL_PAIRS),
            TRL_PAIR_GAPS,
        ),
        Dialect(
            "ipo",
            "trl",
            TRL,
            'DPOTrainer with DPOConfig(loss_type="ipo")',
            (
                Fact("beta", 0.1, "trl/trainer/dpo_config.py: beta", "τ in the paper"),
                Fact("compare", "token", "trl/trainer/dpo_trainer.py: _compute_loss", "means over tokens"),
                *TRL_PAIRS,
            ),
            TRL_PAIR_GAPS,
        ),
        Dialect(
            "kto",
            "trl",
            TRL,
            "KTOTrainer with KTOConfig()",
            (
                Fact("beta", 0.1, f"{TRL_KTO}: beta"),
                Fact("desirable_weight", 1.0, f"{TRL_KTO}: desirable_weight"),
                Fact("undesirable_weight", 1.0, f"{TRL_KTO}: undesirable_weight"),
                Fact("threshold", 0.5, "trl/trainer/kto_trainer.py: _compute_loss", "a label per completion"),
                Fact(
                    "reference_point",
                    "mismatched",
                    "trl/trainer/kto_trainer.py: _prepare_dataset",
                    "with the previous completion of the batch",
                ),
                Fact("modify.reference_every", 0, f"{TRL_KTO}: sync_ref_model"),
            ),
            (
                recorded("trl/trainer/kto_trainer.py: KTOTrainer"),
                Gap(
                    "The KL is estimated anew in every forward pass, from the completions in it, which may "
                    "answer the same prompt; ours once per step, from all of its problems.",
                    "trl/trainer/kto_trainer.py: _compute_loss",
                ),
            ),
        ),
        Dialect(
            "simpo",
            "trl",
            TRL,
            'CPOTrainer with CPOConfig(loss_type="simpo", cpo_alpha=0.0)',
            (
                Fact("beta", 0.1, f"{TRL_CPO}: beta", "the authors' is 2 to 10"),
                Fact("gamma", 0.5, f"{TRL_CPO}: simpo_gamma"),
                *TRL_PAIRS_ALONE,
            ),
            (
                recorded("trl/experimental/cpo/cpo_trainer.py: CPOTrainer"),
                Gap(
                    "Without cpo_alpha=0.0 it adds the chosen completions' negative log-likelihood, a mean "
                    "over all of their tokens.",
                    "trl/experimental/cpo/cpo_trainer.py: concatenated_forward",
                ),
            ),
        ),
        Dialect(
            "orpo",
            "trl",
            TRL,
            "ORPOTrainer with ORPOConfig()",
            (
                Fact("beta", 0.1, "trl/experimental/orpo/orpo_config.py: beta", "λ in the paper"),
                Fact("nll", 1.0, f"{TRL_ORPO}: get_batch_loss_metrics"),
                Fact("pairs_per_group", 0, TRL_ORPO, "every pair of the data set"),
            ),
            (
                recorded(f"{TRL_ORPO}: ORPOTrainer"),
                Gap(
                    "The negative log-likelihood is a mean over all tokens, prompts included; ours over "
                    "those of each completion, then over completions.",
                    f"{TRL_ORPO}: concatenated_forward",
                ),
            ),
        ),
        Dialect(
            "sppo",
            "trl",
            TRL,
            'DPOTrainer with DPOConfig(loss_type="sppo_hard")',
            (
                Fact("beta", 0.1, "trl/trainer/dpo_config.py: beta", "the authors' is 0.001"),
                Fact("win", "hard", "trl/trainer/dpo_trainer.py: _compute_loss", "1 and 0"),
                Fact("opponents", "pair", "trl/trainer/dpo_trainer.py: _compute_loss"),
                *TRL_PAIRS,
            ),
            (
                *TRL_PAIR_GAPS,
                Gap(
                    "It adds the two errors of a pair up; ours is their mean, half of it.",
                    "trl/trainer/dpo_trainer.py: _compute_loss",
                ),
            ),
        ),
        Dialect(
            "dr_grpo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(loss_type="dr_grpo")',
            (
                *TRL_GROUP,
                Fact("averaging", "constant", f"{TRAINER}: _compute_loss", "1/(B·max_completion_length)"),
                *TRL_CLIP,
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
            on="grpo",
            remark="the name changes only the divisor and keeps the standard deviation",
        ),
        Dialect(
            "dr_grpo",
            "verl",
            VERL,
            "algorithm.norm_adv_by_std_in_grpo=False "
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
            (
                Fact("averaging", "constant", f"{CORE}: agg_loss", "1/(B·loss_scale_factor)"),
                *VERL_CLIP,
                VERL_DUAL,
                *VERL_KL,
                *VERL_LOOP,
            ),
            (
                Gap(
                    "Unless actor.loss_scale_factor is set, each micro-batch divides by its longest "
                    "response, so terms weigh more beside short ones; ours divides by the limit: "
                    "actor.loss_scale_factor = data.max_response_length.",
                    f"{ACTOR}: loss_scale_factor; {CORE}: agg_loss",
                ),
                *VERL_GAPS,
            ),
        ),
        Dialect(
            "dr_grpo",
            "openrlhf",
            OPENRLHF,
            "--algo.advantage.estimator dr_grpo",
            (*OPENRLHF_LOSS, *OPENRLHF_KL, *OPENRLHF_LOOP),
            OPENRLHF_GAPS,
            remark="the name changes only the advantage; the token mean stays",
        ),
        Dialect(
            "dapo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(loss_type="dapo"), which are its defaults',
            (
                *TRL_GROUP,
                TOKENS,
                *TRL_CLIP,
                *TRL_KL,
                Fact("modify.dynamic_sampling", 0, TRAINER, "there is none"),
                Fact("modify.overlong_buffer", 0, TRAINER, "a separate reward function"),
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "dapo",
            "verl",
            "0.9.1, its recipe at verl-recipe commit 21892b9",
            "run_dapo_qwen2.5_32b.sh of verl-recipe",
            (
                *VERL_GROUP,
                Fact("averaging", "token_mean", f"{VERL_DAPO}: loss_agg_mode"),
                Fact("clip_low", 0.2, f"{VERL_DAPO}: clip_ratio_low"),
                Fact("clip_high", 0.28, f"{VERL_DAPO}: clip_ratio_high"),
                Fact("dual_clip", 10.0, f"{VERL_DAPO}: clip_ratio_c", "3 if left out"),
                *VERL_KL,
                Fact(
                    "modify.dynamic_sampling",
                    9,
                    f"{VERL_DAPO}: max_num_gen_batches",
                    "at most 10 draws",
                ),
                Fact("sampler.temperature", 1.0, f"{VERL_DAPO}: temperature"),
                Fact(
                    "train.num_minibatches",
                    16,
                    (f"{VERL_DAPO}: train_prompt_mini_bsz"),
                    "32 of 512 prompts each",
                ),
                Fact("train.epochs", 1, f"{ACTOR}: ppo_epochs"),
            ),
            (
                Gap(
                    "The last 4,096 of 20,480 tokens are punished; set modify.overlong_buffer to a fifth "
                    "of your limit.",
                    f"{VERL_DAPO}: overlong_buffer_len",
                ),
                Gap(
                    "Each draw has three times a batch's prompts and the surplus is dropped; ours draws "
                    "one batch's number.",
                    f"{VERL_DAPO}: gen_prompt_bsz",
                ),
                Gap(
                    "Groups of equal accuracies are replaced; ours replaces groups of equal rewards.",
                    f"{VERL_DAPO}: filter_groups_metric",
                ),
                Gap(
                    "The run stops where ten draws do not fill a batch; ours trains on what it has. The "
                    "trainer built into 0.9.1 draws without a limit.",
                    "verl-recipe/dapo/dapo_ray_trainer.py@e7f8895; verl/trainer/ppo/v1/trainer_base.py: "
                    "_resolve_filter_groups_metric",
                ),
                *VERL_GAPS,
            ),
        ),
        Dialect(
            "cispo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(loss_type="cispo", epsilon_high=5.0)',
            (
                *TRL_GROUP,
                Fact("averaging", "token_mean", f"{TRAINER}: _compute_loss"),
                Fact(
                    "ratio_cap",
                    5.0,
                    f"{CONFIG}: epsilon_high",
                    "recommended by its help; if left out it is epsilon, which cuts every weight to 0.2",
                ),
                Fact("ratio_floor", 0.0, f"{TRAINER}: _compute_loss"),
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "cispo",
            "verl",
            VERL,
            f"{VERL_MODE}=cispo",
            (
                *VERL_GROUP,
                VERL_AVERAGING,
                Fact("ratio_cap", 1.2, f"{ACTOR}: clip_ratio_high", "1 + 0.2: the option is ε_high"),
                Fact("ratio_floor", 0.8, f"{ACTOR}: clip_ratio_low", "1 − 0.2"),
                *VERL_KL,
                *VERL_LOOP,
            ),
            VERL_GAPS,
        ),
        Dialect(
            "gmpo",
            "trl",
            TRL,
            "experimental.gmpo.GMPOTrainer with GMPOConfig()",
            (
                *TRL_GROUP,
                Fact("averaging", "sequence_mean", f"{TRL_GMPO}: _compute_loss", "one term per sequence"),
                Fact("clip_low", 0.4, "trl/experimental/gmpo/gmpo_config.py: epsilon"),
                Fact("clip_high", 0.4, "trl/experimental/gmpo/gmpo_config.py: epsilon_high"),
                Fact("beta", 0.0, f"{CONFIG}: beta"),
                Fact("kl_estimator", "k3", f"{TRL_GMPO}: _compute_loss", "without the ratio"),
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "gmpo",
            "verl",
            VERL,
            f"{VERL_MODE}=geo_mean",
            (
                *VERL_GROUP,
                Fact("averaging", "sequence_mean", f"{CORE}: compute_policy_loss_geo_mean"),
                *VERL_CLIP,
                *VERL_KL,
                *VERL_LOOP,
            ),
            (
                Gap(
                    "The micro-batches' means are added up, so the gradient grows with their number; ours "
                    "is the mean over the minibatch.",
                    f"{CORE}: compute_policy_loss_geo_mean",
                ),
                VERL_SINGLE,
                VERL_K3,
            ),
        ),
        Dialect(
            "sapo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(loss_type="sapo")',
            (
                *TRL_GROUP,
                Fact("averaging", "sequence_mean", f"{TRAINER}: _compute_loss"),
                Fact("temperature_positive", 1.0, f"{CONFIG}: sapo_temperature_pos"),
                Fact("temperature_negative", 1.05, f"{CONFIG}: sapo_temperature_neg"),
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "sapo",
            "verl",
            VERL,
            f"{VERL_MODE}=sapo",
            (
                *VERL_GROUP,
                Fact("averaging", "sequence_mean", f"{CORE}: compute_policy_loss_sapo", "whatever is set"),
                Fact("temperature_positive", 1.0, f"{ACTOR}: tau_pos"),
                Fact("temperature_negative", 1.05, f"{ACTOR}: tau_neg"),
                *VERL_KL,
                *VERL_LOOP,
            ),
            VERL_GAPS,
        ),
        Dialect(
            "luspo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(loss_type="luspo", importance_sampling_level="sequence")',
            (
                *TRL_GROUP,
                Fact("averaging", "sequence_sum", f"{TRAINER}: _compute_loss"),
                *TRL_CLIP,
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "vespo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(loss_type="vespo")',
            (
                *TRL_GROUP,
                Fact("averaging", "token_mean", f"{TRAINER}: _compute_loss"),
                Fact("power_positive", 2.0, f"{CONFIG}: vespo_k_pos"),
                Fact("decay_positive", 3.0, f"{CONFIG}: vespo_lambda_pos"),
                Fact("power_negative", 3.0, f"{CONFIG}: vespo_k_neg"),
                Fact("decay_negative", 2.0, f"{CONFIG}: vespo_lambda_neg"),
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "entropy_mask",
            "trl",
            TRL,
            "GRPOTrainer with GRPOConfig(top_entropy_quantile=0.2)",
            (
                *TRL_GROUP,
                TOKENS,
                *TRL_CLIP,
                Fact("top_fraction", 0.2, f"{CONFIG}: top_entropy_quantile", "1 if left out"),
                *TRL_KL,
                Fact("modify.dynamic_sampling", 0, TRAINER, "there is none"),
                *TRL_LOOP,
            ),
            (
                Gap(
                    "The threshold comes from each micro-batch and the current policy's entropies; ours "
                    "comes from the rollout batch and the old policy's.",
                    f"{TRAINER}: get_high_entropy_mask",
                ),
                *TRL_GAPS,
            ),
        ),
        Dialect(
            "clip_cov",
            "verl",
            VERL,
            f"{VERL_MODE}=clip_cov",
            (
                *VERL_GROUP,
                VERL_AVERAGING,
                *VERL_CLIP,
                Fact("dual_clip", 0.0, f"{CORE}: compute_policy_loss_clip_cov"),
                Fact("fraction", 2e-4, f"{ACTOR}: policy_loss.clip_cov_ratio"),
                Fact("lowest", 1.0, f"{ACTOR}: policy_loss.clip_cov_lb"),
                Fact("highest", 5.0, f"{ACTOR}: policy_loss.clip_cov_ub"),
                *VERL_KL,
                *VERL_LOOP,
            ),
            (
                VERL_COVARIANCE,
                Gap(
                    "Tokens that the ratio clips are not drawn; ours may be.",
                    f"{CORE}: compute_policy_loss_clip_cov",
                ),
                VERL_SINGLE,
                VERL_K3,
            ),
        ),
        Dialect(
            "kl_cov",
            "verl",
            VERL,
            f"{VERL_MODE}=kl_cov",
            (
                *VERL_GROUP,
                VERL_AVERAGING,
                Fact("fraction", 2e-4, f"{ACTOR}: policy_loss.kl_cov_ratio"),
                Fact("coefficient", 0.1, f"{ACTOR}: policy_loss.ppo_kl_coef"),
                *VERL_KL,
                *VERL_LOOP,
            ),
            (
                VERL_COVARIANCE,
                Gap(
                    "The tokens of the largest covariances are penalized, negative ones too if there are "
                    "too few others; ours only those above 0.",
                    f"{CORE}: compute_policy_loss_kl_cov",
                ),
                VERL_SINGLE,
                VERL_K3,
            ),
        ),
        Dialect(
            "dppo",
            "verl",
            VERL,
            f"{VERL_MODE}=dppo_tv",
            (
                *VERL_GROUP,
                VERL_AVERAGING,
                Fact("divergence", "tv", f"{CORE}: compute_policy_loss_dppo_tv"),
                Fact("threshold", 0.2, f"{ACTOR}: clip_ratio_low, clip_ratio_high"),
                Fact("ratio_cap", 3.0, f"{ACTOR}: clip_ratio_c"),
                *VERL_KL,
                *VERL_LOOP,
            ),
            VERL_GAPS,
            remark="our defaults are those of the authors' script for verl, which these are not",
        ),
        Dialect(
            "rloo",
            "trl",
            TRL,
            "RLOOTrainer with RLOOConfig()",
            (
                Fact("averaging", "sequence_sum", f"{TRL_RLOO}: _compute_loss", "whole completions"),
                Fact("beta", 0.05, "trl/trainer/rloo_config.py: beta", "k1"),
                Fact("kl_placement", "reward", f"{TRL_RLOO}: _generate_and_score_completions"),
                Fact(
                    "modify.mask_truncated", False, "trl/trainer/rloo_config.py: mask_truncated_completions"
                ),
                Fact("sampler.temperature", 1.0, "trl/trainer/rloo_config.py: temperature"),
                Fact("train.num_minibatches", 1, "trl/trainer/rloo_config.py: steps_per_generation"),
                Fact("train.epochs", 1, "trl/trainer/rloo_config.py: num_iterations"),
            ),
            (
                Gap(
                    "The ratio of the whole sequence is clipped to [0.8, 1.2], which changes later "
                    "updates on a batch.",
                    "trl/trainer/rloo_config.py: epsilon",
                ),
            ),
        ),
        Dialect(
            "rloo",
            "verl",
            VERL,
            "algorithm.adv_estimator=rloo",
            (
                Fact("baseline", "leave_one_out", f"{CORE}: compute_rloo_outcome_advantage"),
                Fact("scale", "none", f"{CORE}: compute_rloo_outcome_advantage"),
                VERL_AVERAGING,
                *VERL_CLIP,
                VERL_DUAL,
                *VERL_KL,
                *VERL_LOOP,
            ),
            VERL_GAPS,
            on="grpo",
            remark="the name changes only the baseline; PPO's clip stays",
        ),
        Dialect(
            "rloo",
            "openrlhf",
            OPENRLHF,
            "--algo.advantage.estimator rloo",
            (
                Fact("baseline", "leave_one_out", f"{MAKER}: compute_advantages_and_returns"),
                Fact("scale", "none", f"{MAKER}: compute_advantages_and_returns"),
                *OPENRLHF_LOSS,
                *OPENRLHF_KL,
                *OPENRLHF_LOOP,
            ),
            OPENRLHF_GAPS,
            on="grpo",
            remark="the name changes only the baseline; PPO's clip stays",
        ),
        Dialect(
            "reinforce_pp",
            "openrlhf",
            OPENRLHF,
            "--algo.advantage.estimator reinforce",
            (
                *OPENRLHF_LOSS,
                OPENRLHF_BETA,
                Fact("kl_placement", "advantage", f"{UTILS}: compute_reward", "the reward of each token"),
                *OPENRLHF_LOOP,
            ),
            OPENRLHF_GAPS,
        ),
        Dialect(
            "reinforce_pp",
            "verl",
            VERL,
            "algorithm.adv_estimator=reinforce_plus_plus",
            (VERL_AVERAGING, *VERL_CLIP, VERL_DUAL, *VERL_KL, *VERL_LOOP),
            (VERL_RATIO, VERL_WHITEN, VERL_K3),
        ),
        Dialect(
            "reinforce_pp_baseline",
            "openrlhf",
            OPENRLHF,
            "--algo.advantage.estimator reinforce_baseline",
            (
                Fact("baseline", "mean", f"{MAKER}: compute_advantages_and_returns"),
                Fact("scale", "none", f"{MAKER}: compute_advantages_and_returns"),
                Fact(
                    "whiten", True, f"{MAKER}: compute_advantages_and_returns", "after the KL is subtracted"
                ),
                *OPENRLHF_LOSS,
                *OPENRLHF_KL,
                *OPENRLHF_LOOP,
            ),
            OPENRLHF_GAPS,
            on="grpo",
            remark="the KL is subtracted before advantages are whitened, which our algorithm of this "
            "name cannot do",
        ),
        Dialect(
            "reinforce_pp_baseline",
            "verl",
            VERL,
            "algorithm.adv_estimator=reinforce_plus_plus_baseline",
            (VERL_AVERAGING, *VERL_CLIP, VERL_DUAL, *VERL_KL, *VERL_LOOP),
            (*VERL_GAPS, VERL_WHITEN),
        ),
        Dialect(
            "lite_ppo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(scale_rewards="batch")',
            (
                TRL_MEAN,
                Fact("scale", "batch", f"{CONFIG}: scale_rewards"),
                *TRL_DEVIATION,
                TOKENS,
                *TRL_CLIP,
                *TRL_KL,
                *TRL_LOOP,
            ),
            TRL_GAPS,
        ),
        Dialect(
            "bnpo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(loss_type="bnpo")',
            (
                *TRL_GROUP,
                Fact("averaging", "token_mean", f"{TRAINER}: _compute_loss"),
                *TRL_CLIP,
                *TRL_KL,
                *TRL_LOOP,
            ),
            (
                Gap(
                    "The mean is over the tokens of a micro-batch on a device; ours is over the minibatch.",
                    f"{TRAINER}: _compute_loss",
                ),
                *TRL_GAPS,
            ),
            on="grpo",
            remark="the name means only an average; there is no Beta density",
        ),
        Dialect(
            "gdpo",
            "trl",
            TRL,
            'GRPOTrainer with GRPOConfig(multi_objective_aggregation="normalize_then_sum")',
            (*TRL_DEVIATION, TOKENS, *TRL_CLIP, *TRL_KL, *TRL_LOOP),
            TRL_GAPS,
        ),
        Dialect(
            "gdpo",
            "verl",
            VERL,
            "algorithm.adv_estimator=gdpo trainer.use_v1=False with algorithm.gdpo_reward_keys",
            (*VERL_DEVIATION, VERL_AVERAGING, *VERL_CLIP, VERL_DUAL, *VERL_KL, *VERL_LOOP),
            (
                Gap(
                    "The weighted sum is whitened over the batch's tokens; ours is divided by the "
                    "deviation over completions.",
                    f"{CORE}: compute_gdpo_outcome_advantage",
                ),
                Gap(
                    "With trainer.use_v1=True, the default, it stops: prompts and single rewards do not "
                    "reach the estimator.",
                    "verl/trainer/ppo/v1/trainer_base.py: _compute_advantage",
                ),
                *VERL_GAPS,
            ),
            remark=VERL_V0,
        ),
        Dialect(
            "passk",
            "verl",
            VERL,
            "algorithm.adv_estimator=grpo_passk",
            (
                Fact("form", "best", f"{CORE}: compute_grpo_passk_outcome_advantage"),
                Fact("divide", True, f"{PPO_YAML}: algorithm.norm_adv_by_std_in_grpo"),
                Fact("epsilon", 1e-6, f"{CORE}: compute_grpo_passk_outcome_advantage"),
                VERL_AVERAGING,
                *VERL_CLIP,
                VERL_DUAL,
                *VERL_KL,
                *VERL_LOOP,
            ),
            (VERL_RATIO, VERL_K3),
        ),
        Dialect(
            "gpg",
            "verl",
            VERL,
            "algorithm.adv_estimator=gpg actor_rollout_ref.actor.policy_loss.loss_mode=gpg",
            (VERL_AVERAGING, *VERL_KL, *VERL_LOOP),
            (
                Gap(
                    "The factor is the batch size over the completions with a nonzero reward; ours is "
                    "over those of groups with a signal.",
                    f"{CORE}: compute_gpg_outcome_advantage",
                ),
                VERL_SINGLE,
                VERL_K3,
            ),
        ),
        Dialect(
            "opo",
            "verl",
            VERL,
            "algorithm.adv_estimator=opo",
            (VERL_AVERAGING, *VERL_KL, *VERL_LOOP),
            (VERL_CLIPS, *VERL_GAPS),
        ),
        Dialect(
            "otb",
            "verl",
            VERL,
            "algorithm.adv_estimator=optimal_token_baseline "
            "actor_rollout_ref.actor.calculate_sum_pi_squared=True trainer.use_v1=False",
            (
                VERL_AVERAGING,
                *VERL_CLIP,
                VERL_DUAL,
                Fact("zero_tail", True, f"{CORE}: compute_optimal_token_baseline_advantage"),
                *VERL_KL,
                *VERL_LOOP,
            ),
            (
                Gap(
                    "With trainer.use_v1=True, the default, it stops: the sums of squares do not reach "
                    "the estimator.",
                    "verl/trainer/ppo/ray_trainer.py: compute_advantage",
                ),
                *VERL_GAPS,
            ),
            remark=VERL_V0,
        ),
        Dialect(
            "remax",
            "verl",
            VERL,
            "algorithm.adv_estimator=remax trainer.use_v1=False",
            (VERL_AVERAGING, *VERL_KL, *VERL_LOOP),
            (
                VERL_CLIPS,
                Gap(
                    "With trainer.use_v1=True, the default, it stops: no greedy answers are sampled.",
                    "verl/trainer/ppo/v1/trainer_base.py: _compute_advantage",
                ),
                VERL_RATIO,
                VERL_K3,
            ),
            remark=VERL_V0,
        ),
        Dialect(
            "topr",
            "roll",
            "commit 8eb27cc",
            "pg_variant: topr",
            (
                Fact("level", "token", f"{ROLL_ACTOR}: _compute_topr_loss"),
                Fact(
                    "averaging",
                    "sequence_mean",
                    f"{ROLL_CONFIG}: loss_agg_mode",
                    "verl's seq-mean-token-mean",
                ),
                Fact("beta", 0.0, f"{ROLL_CONFIG}: use_kl_loss"),
                Fact("kl_estimator", "k3", f"{ROLL_ACTOR}: loss_func", "no effect while beta is 0"),
                Fact("kl_placement", "loss", f"{ROLL_ACTOR}: loss_func"),
                Fact("train.epochs", 1, f"{ROLL_CONFIG}: ppo_epochs"),
            ),
            (
                Gap(
                    "The advantage is that of the estimator, by default a critic's; a ratio is truncated "
                    "where the score is at most 0, whatever the advantage. Ours is the reward minus a "
                    "constant, and its sign decides.",
                    f"{ROLL_ACTOR}: _compute_topr_loss",
                ),
                Gap(
                    "Weights of positive and of negative completions can be set; ours are 1, as theirs by "
                    "default.",
                    "roll/configs/worker_config.py: topr_positive_weight, topr_negative_weight",
                ),
            ),
        ),
        Dialect(
            "topr",
            "trinity-rft",
            "commits 54d1a57, 5b77c08 and 85b8577 of yanxi-chen/Trinity-RFT",
            "algorithm_type: topr",
            (
                Fact("offset", 0.0, f"{TRINITY}/advantage_fn/reinforce_advantage.py", "the reward itself"),
                Fact("level", "token", f"{TRINITY}/policy_loss_fn/topr_policy_loss.py"),
                Fact(
                    "averaging", "token_mean", f"{TRINITY}/policy_loss_fn/topr_policy_loss.py: default_args"
                ),
                Fact("beta", 0.001, f"{TRINITY}/kl_fn/kl_fn.py: default_args"),
                Fact("kl_estimator", "k2", f"{TRINITY}/algorithm.py: TOPRAlgorithm.default_config"),
                Fact("kl_placement", "loss", f"{TRINITY}/algorithm.py: TOPRAlgorithm.default_config"),
                Fact("modify.entropy_bonus", 0.0, f"{TRINITY}/entropy_loss_fn/entropy_loss_fn.py"),
            ),
            remark="with rewards of 1 and 0 wrong completions train nothing; theirs may be below 0",
        ),
        Dialect(
            "m2po",
            "areal",
            "commit 4aef98d",
            AREAL_M2PO,
            (
                Fact("threshold", 0.04, f"{AREAL_M2PO}: m2_threshold", "off unless set"),
                Fact("rule", "remove", f"{AREAL_ACTOR}: _get_m2po_loss_mask"),
                Fact("baseline", "mean", f"{AREAL_M2PO}: reward_norm.mean_level"),
                Fact("scale", "group", f"{AREAL_M2PO}: reward_norm.std_level"),
                Fact("averaging", "token_mean", f"{AREAL_ACTOR}: loss_weight_fn"),
                Fact("beta", 0.0, f"{AREAL_M2PO}: kl_ctl"),
                Fact("sampler.temperature", 1.0, f"{AREAL_M2PO}: temperature"),
                Fact("train.num_minibatches", 1, f"{AREAL_M2PO}: ppo_n_minibatches"),
            ),
            (
                Gap(
                    "The squares are those of the log ratio of the policy at the beginning of the step to "
                    "the sampler, over all tokens whatever their advantage, and over a micro-batch; ours are "
                    "of the current policy to π_old, over tokens that are pushed further, and over a "
                    "problem.",
                    f"{AREAL_ACTOR}: _apply_m2po_masking",
                ),
                Gap(
                    "PPO's clip stays, with a range of 0 in this example; ours has none.",
                    f"{AREAL_M2PO}: eps_clip",
                ),
                Gap(
                    "Advantages are normalized a second time, over the batch's tokens; ours are not.",
                    f"{AREAL_M2PO}: adv_norm",
                ),
                Gap(
                    "Masked tokens do not count in the mean; ours do, with 0.",
                    f"{AREAL_ACTOR}: grpo_loss_fn",
                ),
            ),
        ),
        Dialect(
            "dro",
            "verl",
            "commit 1dda039, its settings as in 0.9.1",
            f"{VERL_MODE}=dro actor_rollout_ref.actor.policy_loss.dro_beta=0.05",
            (*VERL_GROUP, VERL_AVERAGING, *VERL_KL, *VERL_LOOP),
            (
                Gap(
                    "dro_beta has no default; 0.05 is the number in its unit test, and our temperature.",
                    f"{ACTOR}: policy_loss.dro_beta",
                ),
                VERL_SINGLE,
                VERL_K3,
            ),
        ),
        Dialect(
            "fipo",
            "ms-swift",
            "commit 3602360",
            "--loss_type fipo",
            (
                Fact("averaging", "token_mean", f"{SWIFT}: _compute_loss_and_metrics"),
                Fact("clip_low", 0.2, f"{SWIFT_ARGS}: epsilon"),
                Fact("clip_high", 0.2, f"{SWIFT_ARGS}: epsilon_high", "None: the value of epsilon"),
                Fact("dual_clip", 0.0, f"{SWIFT_ARGS}: delta"),
                Fact("half_life", 32.0, f"{SWIFT_ARGS}: fipo_decay_rate"),
                Fact("influence_low", 0.0, f"{SWIFT_ARGS}: fipo_clip_high_only"),
                Fact("influence_high", 0.2, f"{SWIFT_ARGS}: fipo_clip_range"),
                Fact("safety_ratio", 4.0, f"{SWIFT_ARGS}: fipo_safety_threshold"),
                Fact("drop_outliers", False, f"{SWIFT}: _compute_loss_and_metrics", "there is none"),
                Fact("beta", 0.04, "swift/arguments/rlhf_args.py: beta"),
                Fact("kl_placement", "loss", f"{SWIFT}: _compute_loss_and_metrics"),
                Fact("baseline", "mean", "swift/rl_core/advantage.py: compute_advantages"),
                Fact("scale", "group", "swift/arguments/rlhf_args.py: scale_rewards"),
                Fact("epsilon", 1e-4, "swift/rl_core/advantage.py: compute_advantages"),
                Fact("modify.dynamic_sampling", 0, f"{SWIFT_ARGS}: dynamic_sample"),
                Fact("modify.mask_truncated", False, f"{SWIFT_ARGS}: overlong_filter"),
                Fact("sampler.temperature", 0.9, "swift/arguments/rlhf_args.py: temperature"),
                Fact("train.epochs", 1, "swift/arguments/rlhf_args.py: num_iterations"),
            ),
            (
                Gap(
                    "The discount counts tool output, too; ours counts the policy's tokens alone.",
                    f"{SWIFT}: _compute_fipo_influence",
                ),
            ),
            remark="with one update per batch, its default, every weight is 1",
        ),
        Dialect(
            "gvpo",
            "verl-recipe",
            RECIPES,
            "python3 -m recipe.gvpo.gvpo_main_ppo, with the options of gvpo/run_qwen2-7b_math_gvpo.sh",
            (
                Fact("temperature", 0.1, "gvpo/run_qwen2-7b_math_gvpo.sh: gvpo_beta"),
                Fact(
                    "train.num_minibatches",
                    4,
                    "gvpo/run_qwen2-7b_math_gvpo.sh: ppo_mini_batch_size",
                    "256 of 1024 prompts per update",
                ),
            ),
            (
                Gap(
                    "The errors of a micro-batch are added up, so that a larger micro-batch has a larger "
                    "gradient; ours is the mean over problems.",
                    "gvpo/gvpo_core_algos.py: compute_policy_loss_gvpo",
                ),
                Gap(
                    "An empty completion has no advantage (0/0); ours has log-ratio 0.",
                    "gvpo/gvpo_core_algos.py: compute_policy_loss_gvpo",
                ),
            ),
        ),
        Dialect(
            "flowrl",
            "verl-recipe",
            RECIPES,
            "python3 -m recipe.flowrl.main_flowrl, with the options of flowrl/run_flowrl_qwen2.5_7b.sh",
            (
                Fact("reward_scale", 15.0, "flowrl/flowrl_actor.py: FlowRLActor.__init__"),
                Fact("ratio_cap", 10.0, "flowrl/flowrl_actor.py: compute_flowrl"),
                Fact(
                    "train.num_minibatches",
                    16,
                    "flowrl/run_flowrl_qwen2.5_7b.sh: ppo_mini_batch_size",
                    "32 of 512 prompts per update",
                ),
                Fact("sampler.temperature", 1.0, "flowrl/run_flowrl_qwen2.5_7b.sh: rollout.temperature"),
            ),
            (
                Gap(
                    "log Z is a perceptron of three layers with dropout on the mean hidden state of the "
                    "prompt, trained at the policy's rate; ours is a linear head at the prompt's last token.",
                    "flowrl/flowrl_actor.py: ProjZModule",
                ),
                Gap(
                    "The last 4096 of 8192 tokens cost up to 1: set modify.overlong_buffer to half the "
                    "limit.",
                    "flowrl/run_flowrl_qwen2.5_7b.sh: overlong_buffer",
                ),
            ),
        ),
        Dialect(
            "grpo",
            "skywork-or1",
            "commit 64e96af",
            "the scripts of or1_scripts/train",
            (
                Fact("baseline", "mean", f"{CORE}: compute_grpo_outcome_advantage"),
                Fact("scale", "group", f"{CORE}: compute_grpo_outcome_advantage"),
                *VERL_DEVIATION,
                Fact("averaging", "token_mean", f"{CORE}: compute_policy_loss"),
                Fact("clip_low", 0.2, f"{PPO_YAML}: actor.clip_ratio"),
                Fact("clip_high", 0.2, f"{PPO_YAML}: actor.clip_ratio"),
                Fact("dual_clip", 0.0, f"{CORE}: compute_policy_loss", "there is none"),
                Fact("beta", 0.0, "verl/trainer/main_ppo.py: role_worker_mapping", "no reference is loaded"),
                Fact("modify.zero_variance_filter", True, f"{OR1}: trainer.rejection_sample"),
                Fact("modify.entropy_bonus", 0.0, f"{OR1}: ENTROPY_COEFF", "where the weight begins"),
                Fact("modify.entropy_target", 0.2, f"{OR1}: TGT_ENTROPY"),
                Fact("modify.entropy_step", 1e-4, f"{OR1}: DELTA_ENT_COEF"),
                Fact("modify.entropy_limit", 5e-3, f"{OR1}: MAX_ENT_COEF"),
                Fact("sampler.temperature", 1.0, f"{OR1}: TRAIN_TEMPERATURE"),
                Fact("train.num_minibatches", 1, f"{OR1}: PPO_MINI_BATCH", "256 of 256 prompts per update"),
                Fact("train.epochs", 1, f"{PPO_YAML}: actor.ppo_epochs"),
            ),
            (
                Gap(
                    "Means over tokens, the entropy's among them, are those of each micro-batch, weighted by "
                    "its completions; ours are those of the minibatch.",
                    "verl/workers/actor/dp_actor.py: update_policy",
                ),
                Gap(
                    "The entropy that is compared with the target leaves out groups of equal rewards; ours "
                    "has them.",
                    "verl/trainer/ppo/ray_trainer.py: fit",
                ),
                VERL_SINGLE,
            ),
        ),
        Dialect(
            "spo",
            "verl-recipe",
            RECIPES,
            "METHOD=SPO sh recipe/spo/train.sh, which runs recipe.spo.spo_main_ppo",
            (
                VERL_AVERAGING,
                Fact("clip_low", 0.2, "spo/train.sh: clip_ratio_low"),
                Fact("clip_high", 0.28, "spo/train.sh: clip_ratio_high"),
                Fact("dual_clip", 10.0, "spo/train.sh: clip_ratio_c"),
                Fact("beta", 0.0, "spo/train.sh: use_kl_loss, use_kl_in_reward"),
                Fact("half_life", 0.06, "spo/spo_ray_trainer.py: _get_spo_rho, D_half"),
                Fact("discount_low", 0.875, "spo/config/spo_trainer.yaml: spo.rho.clip_lower"),
                Fact("discount_high", 0.96, "spo/spo_ray_trainer.py: _get_spo_rho"),
                Fact("exploration", 0.05, "spo/spo_ray_trainer.py: fit, EXPLORATION_EPSILON"),
                Fact("epsilon", 1e-8, "spo/spo_ray_trainer.py: fit"),
                Fact("min_reward", 0.0, "spo/spo_retool.py: compute_score"),
                Fact("max_reward", 1.0, "spo/spo_retool.py: compute_score"),
                Fact(
                    "train.num_minibatches",
                    8,
                    "spo/train.sh: ppo_mini_batch_size",
                    "128 of 1024 prompts per update",
                ),
            ),
            (
                Gap(
                    "One completion per problem: set train.group_size = 1.", "spo/train.sh: n_resp_per_prompt"
                ),
                Gap(
                    "A problem's prior is an estimate from 8 completions of the initial policy, read from a "
                    "file, which counts as 8; ours is the same for all (prior_success, prior_evidence).",
                    "spo/spo_ray_trainer.py: fit, offline_values",
                ),
                Gap(
                    "The advantage of a batch of one is not a number; ours is 0.",
                    "spo/spo_ray_trainer.py: fit",
                ),
                VERL_RATIO,
            ),
        ),
        *DISTILLATION,
        Dialect(
            "opd",
            "verl",
            VERL,
            "algorithm.adv_estimator=grpo distillation.enabled=true "
            "distillation.distillation_loss.loss_mode=k1 "
            "distillation.distillation_loss.use_policy_gradient=true",
            (
                Fact("discount", 0.0, f"{VERL_LOSSES}: distillation_loss"),
                Fact(
                    "bound", math.inf, f"{DISTILL}: loss_max_clamp", "null; a number bounds k1 on both sides"
                ),
                *VERL_DISTILL,
            ),
            (
                Gap(
                    "The advantage is log π_teacher − log π of the policy that is being updated, detached; "
                    "ours has log π_old, the same in the first update.",
                    f"{VERL_LOSSES}: distillation_loss",
                ),
                Gap(
                    "The teacher's loss and the task's are added, each with a clip and a dual clip; ours has "
                    "one clip over the sum of the advantages, the same in the first update.",
                    f"{VERL_LOSSES}: distillation_ppo_loss",
                ),
                *VERL_GAPS,
            ),
            remark="without use_policy_gradient, its default, verl refuses k1",
        ),
        Dialect(
            "gkd",
            "verl",
            VERL,
            "algorithm.adv_estimator=grpo distillation.enabled=true "
            "distillation.distillation_loss.loss_mode=forward_kl_topk",
            (
                Fact("divergence_beta", 0.0, "verl/trainer/distillation/fsdp/losses.py: kl_divergence"),
                *VERL_DISTILL,
            ),
            (
                Gap(
                    "The divergence is over the teacher's 32 likeliest tokens (topk), not renormalized, with "
                    "negative sums clamped at 0; ours is over the vocabulary.",
                    f"{VERL_LOSSES}: compute_forward_kl_topk",
                ),
                Gap(
                    "loss_max_clamp and log_prob_min_clamp, null by default, bound divergences and "
                    "log-probabilities.",
                    DISTILL,
                ),
                *VERL_GAPS,
            ),
            remark="it is the only divergence over several tokens in this release",
        ),
        *SELF_DISTILLATION,
        *BEYOND_ROLLOUTS,
    )
}
