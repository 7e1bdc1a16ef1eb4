"""TRL's metrics, as `trainer_state.json` has them. transformers' trackers put ``train/`` before them
and write ``eval/`` for ``eval_``."""

from __future__ import annotations

from grpobench.runs.importing.names.table import Name, Vocabulary

TRAINER = "trl/trainer/grpo_trainer.py"
LOOP = "transformers/trainer.py"
PAIRS = "trl/trainer/dpo_trainer.py"
REWARDS = "trl/rewards/accuracy_rewards.py"
EVAL = "eval/validation/sampled"

TRL = Vocabulary(
    library="trl",
    title="TRL",
    read="TRL 1.16 and transformers 5.23, as installed",
    about=(
        (
            "A step is an update of the optimizer. With `num_iterations` or `steps_per_generation` above its "
            "default several updates use the same rollouts, and a row of theirs is no step of ours."
        ),
        (
            "With `logging_steps` above 1 a row is the mean over the updates since the last one, except "
            "that `grad_norm` and `learning_rate` are the last update's."
        ),
        "A number that TRL could not compute is null there; it is left out.",
    ),
    names=(
        Name("reward", "reward/mean", "reward", TRAINER),
        Name("reward_std", "reward/std", "reward", TRAINER, "divided by n − 1 (ddof 1), ours by n"),
        Name("rewards/accuracy_reward/mean", "score/correct", "score", REWARDS, "TRL's verifier of maths"),
        Name("rewards/<name>/mean", "reward/<name>", "as the component", TRAINER),
        Name("frac_reward_zero_std", "groups/zero_signal", "share of groups", TRAINER),
        Name("completions/mean_length", "length/mean", "tokens", TRAINER),
        Name(
            "completions/clipped_ratio",
            "length/truncated",
            "share of rollouts",
            TRAINER,
            "completions whose last token does not end one",
        ),
        Name(
            "completions/mean_terminated_length",
            "length/terminated_mean",
            "tokens",
            TRAINER,
            "0 where every completion was cut",
        ),
        Name(
            "entropy",
            "policy/entropy",
            "nats/token",
            TRAINER,
            "of the policy as each update meets it, ours before any: the same with one update per batch",
        ),
        Name("kl", "policy/kl_reference_k3", "nats/token", TRAINER, "logged where `beta` is not 0"),
        Name(
            "clip_ratio/low_mean",
            "policy/clip_low",
            "share of tokens",
            TRAINER,
            "with `importance_sampling_level` sequence: share of completions",
        ),
        Name(
            "clip_ratio/high_mean",
            "policy/clip_high",
            "share of tokens",
            TRAINER,
            "with `importance_sampling_level` sequence: share of completions",
        ),
        Name("grad_norm", "grad_norm/policy", "norm", LOOP, "the last update's, ours the mean over updates"),
        Name("learning_rate", "learning_rate/policy", "rate", LOOP),
        Name(
            "step_time",
            "time/step",
            "s",
            TRAINER,
            "generation, rewards, forward and backward passes; the optimizer's update is left out",
        ),
        Name("sampling/sampling_logp_difference/mean", "gap/mean", "nats/token", TRAINER),
        Name("sampling/sampling_logp_difference/max", "gap/max", "nats", TRAINER),
        Name(
            "sampling/importance_sampling_ratio/mean",
            "correction/weight_mean",
            "ratio",
            TRAINER,
            "at the level of sequences: mean over completions",
        ),
        Name("logps/chosen", "preference/chosen_logp", "nats", PAIRS),
        Name("logps/rejected", "preference/rejected_logp", "nats", PAIRS),
        Name(
            "eval_rewards/accuracy_reward/mean",
            f"{EVAL}/correct",
            "share",
            REWARDS,
            "TRL's verifier of maths",
        ),
        Name("eval_rewards/<name>/mean", f"{EVAL}/<name>", "as the component", TRAINER),
        Name("eval_reward", f"{EVAL}/reward", "reward", TRAINER, "a reward, no accuracy"),
        Name("eval_completions/mean_length", f"{EVAL}/length", "tokens", TRAINER),
    ),
    prefixes={"train/": "", "eval/": "eval_", "test/": "test_"},
)
