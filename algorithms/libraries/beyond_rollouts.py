"""Presets of algorithms that read more than the rollouts of a step: base rollouts, expert answers."""

from __future__ import annotations

from grpobench.algorithms.libraries.dialect import Dialect, Fact, Gap

A2PO = "trl/experimental/a2po/a2po_config.py"
A2PO_TRAINER = "trl/experimental/a2po/a2po_trainer.py"
CHORD_LOSS = "trinity/algorithm/policy_loss_fn/chord_policy_loss.py@0414330"
CHORD_RECIPE = "examples/mix_chord/mix_chord.yaml@0414330"
SWIFT_LOSS = "swift/rlhf_trainers/utils.py@006938b: compute_chord_loss"
SWIFT_SCRIPT = "examples/train/grpo/internal/chord.sh@78af040"

BEYOND_ROLLOUTS = (
    Dialect(
        "a_star_po",
        "trl",
        "1.16.0",
        "trl.experimental.a2po: A2POTrainer with A2POConfig()",
        (
            Fact("beta1", 0.5, f"{A2PO}: beta1"),
            Fact("beta2", 1e-3, f"{A2PO}: beta2"),
            Fact("value_samples", 8, f"{A2PO}: num_value_samples"),
            Fact("estimate", "soft", f"{A2PO_TRAINER}: _estimate_optimal_values"),
            Fact(
                "skip_unsolved",
                True,
                f"{A2PO}: filter_all_incorrect",
                "off in the authors' scripts (ZhaolinGao/A-PO@637ca6f)",
            ),
            Fact("sampler.temperature", 1.0, f"{A2PO}: temperature"),
        ),
        (
            Gap(
                "One completion per problem and step: set train.group_size = 1.",
                f"{A2PO_TRAINER}: generation_config",
            ),
            Gap(
                "Log-probabilities are those of temperature 1 whatever samples are drawn at; ours are of the "
                "sampler's temperature.",
                f"{A2PO_TRAINER}: _get_sequence_logps",
            ),
            Gap(
                "Prompts of the evaluation are answered before training, too.",
                f"{A2PO_TRAINER}: _estimate_optimal_values",
            ),
        ),
    ),
    Dialect(
        "chord",
        "trinity-rft",
        "commit 0414330",
        "algorithm_type: mix_chord",
        (
            Fact("mu_peak", 0.1, f"{CHORD_LOSS}: default_args", "CHORD-φ"),
            Fact("mu_valley", 0.1, f"{CHORD_LOSS}: default_args"),
            Fact("mu_warmup_steps", 0, f"{CHORD_LOSS}: default_args"),
            Fact("mu_decay_steps", 0, f"{CHORD_LOSS}: default_args"),
            Fact("token_weight", "phi", f"{CHORD_LOSS}: enable_phi_function"),
            Fact("expert_averaging", "token_mean", f"{CHORD_LOSS}: use_token_level_loss_in_sft"),
            Fact("averaging", "token_mean", "trinity/algorithm/policy_loss_fn/ppo_policy_loss.py@221b075"),
            Fact("clip_low", 0.2, f"{CHORD_LOSS}: clip_range"),
            Fact("clip_high", 0.2, f"{CHORD_LOSS}: clip_range"),
            Fact("epsilon", 1e-6, "trinity/algorithm/advantage_fn/grpo_advantage.py@1542f4b"),
            Fact("ddof", 1, "trinity/algorithm/advantage_fn/grpo_advantage.py@1542f4b"),
            Fact("beta", 0.0, f"{CHORD_RECIPE}: kl_coef"),
            Fact("train.num_minibatches", 1, f"{CHORD_RECIPE}: ppo_mini_batch_size", "320 of 40 × 8 rows"),
        ),
        (
            Gap(
                "Both losses are means over the tokens of each micro-batch, weighted by its rows; ours are "
                "over the update's.",
                CHORD_LOSS,
            ),
            Gap(
                "A later version of PPO's loss has a dual clip of 3: set dual_clip = 3.",
                "trinity/algorithm/policy_loss_fn/ppo_policy_loss.py@221b075: clip_ratio_c",
            ),
            Gap(
                "A share of the rows of each step is the experts' (expert_data_ratio, 0.2 in the example); "
                "ours is a number, expert_answers.",
                CHORD_RECIPE,
            ),
        ),
        remark="CHORD-μ there: mu_peak 0.9, mu_valley 0.05, mu_decay_steps 200, enable_phi_function false",
    ),
    Dialect(
        "chord",
        "ms-swift",
        "commits 006938b and 78af040",
        "--rlhf_type grpo --chord_sft_dataset …, with the options of chord.sh",
        (
            Fact("mu_peak", 0.9, f"{SWIFT_SCRIPT}: chord_mu_peak", "CHORD-μ; without a default"),
            Fact("mu_valley", 0.05, f"{SWIFT_SCRIPT}: chord_mu_valley"),
            Fact("mu_warmup_steps", 0, f"{SWIFT_SCRIPT}: chord_mu_warmup_steps"),
            Fact("mu_decay_steps", 200, f"{SWIFT_SCRIPT}: chord_mu_decay_steps"),
            Fact("token_weight", "none", f"{SWIFT_SCRIPT}: chord_enable_phi_function", "or phi"),
            Fact("expert_averaging", "token_mean", SWIFT_LOSS),
            Fact("beta", 0.0, f"{SWIFT_SCRIPT}: beta"),
            Fact("modify.mask_truncated", True, f"{SWIFT_SCRIPT}: overlong_filter"),
        ),
        (
            Gap(
                "The experts' loss is a mean over the tokens of each micro-batch, added to the rollouts' "
                "before both are accumulated.",
                SWIFT_LOSS,
            ),
            Gap("While μ is 0 no expert is read.", SWIFT_LOSS),
            Gap(
                "The group's advantages and their averages were not read: they are this suite's defaults.",
                SWIFT_SCRIPT,
            ),
        ),
    ),
)
