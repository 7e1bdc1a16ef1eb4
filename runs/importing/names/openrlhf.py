"""OpenRLHF's metrics, as its console prints them and, after ``train/`` or ``eval/``, its trackers."""

from __future__ import annotations

from collections.abc import Mapping

from grpobench.runs.importing.names.table import Derived, Name, Vocabulary

TRAINER = "openrlhf/trainer/ppo_trainer.py"
ACTOR = "openrlhf/trainer/ray/ppo_actor.py"
CRITIC = "openrlhf/trainer/ray/ppo_critic.py"
LOSS = "openrlhf/models/loss.py"
MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"
EVAL = "eval/validation/sampled"


def generated(row: Mapping[str, float]) -> float:
    """Tokens of the step's completions."""
    return row["rollout/response_length_mean"] * row["rollout/num_samples"]


OPENRLHF = Vocabulary(
    library="openrlhf",
    title="OpenRLHF",
    read="OpenRLHF/OpenRLHF@3c3be62 (0.11.0)",
    about=(
        (
            "A step is a batch of rollouts with all the updates made on it, as ours is. Its number is raised "
            "before it is logged: the first is 1."
        ),
        (
            "`reward` and `response_length` are over what the updates used, `rollout/…` over what was "
            "sampled; the latter counts where a log has both, which those of early versions have not."
        ),
    ),
    names=(
        Name("rollout/reward_mean", "reward/mean", "reward", TRAINER, "after penalties for length"),
        Name("reward", "reward/mean", "reward", ACTOR, "over the rollouts in the updates"),
        Name("rollout/reward_std", "reward/std", "reward", TRAINER, "divided by n − 1 (ddof 1), ours by n"),
        Name("rollout/response_length_mean", "length/mean", "tokens", TRAINER),
        Name("response_length", "length/mean", "tokens", ACTOR, "over the rollouts in the updates"),
        Name("rollout/truncated_rate", "length/truncated", "share of rollouts", TRAINER),
        Name("truncated", "length/truncated", "share of rollouts", ACTOR, "over the rollouts in the updates"),
        Name(
            "entropy_loss",
            "policy/entropy",
            "nats/token",
            ACTOR,
            "of the policy as the updates meet it, ours before any; logged where `entropy_coef` is set",
        ),
        Name(
            "kl",
            "policy/kl_reference_k1",
            "nats/token",
            MAKER,
            "in the estimator that was chosen (k1 by default); mean over completions of their means over "
            "tokens where it is part of the reward; 0 where there is no reference",
        ),
        Name("ppo_kl", "trained/kl_old", "nats/token", LOSS),
        Name("actor_grad_norm", "grad_norm/policy", "norm", ACTOR, "the last update's, ours their mean"),
        Name("critic_grad_norm", "grad_norm/critic", "norm", CRITIC),
        Name("actor_lr", "learning_rate/policy", "rate", ACTOR, "of the next update"),
        Name("critic_lr", "learning_rate/critic", "rate", CRITIC, "mean over updates"),
        Name("critic_loss", "critic/loss", "reward²", CRITIC),
        Name("values", "critic/value", "reward", CRITIC, "as the updates meet it, ours before any"),
        Name("timing/step_total", "time/step", "s", TRAINER),
        Name("timing/generation", "time/sample", "s", TRAINER),
        Name("timing/broadcast", "time/sync", "s", TRAINER),
        Name(
            "eval_<source>_pass1",
            f"{EVAL}/correct",
            "share",
            TRAINER,
            "mean reward, which is a share where rewards are 0 or 1",
        ),
        Name("eval_<source>_pass<n>", f"{EVAL}/pass@<n>", "share", TRAINER, "mean of the best of n rewards"),
        Name("eval_response_length_mean", f"{EVAL}/length", "tokens", TRAINER),
    ),
    derived=(
        Derived(
            "cost/generated_tokens",
            ("rollout/response_length_mean", "rollout/num_samples"),
            "sum over steps of rollout/response_length_mean × rollout/num_samples",
            generated,
            "tokens",
            TRAINER,
            running=True,
        ),
    ),
    prefixes={"train/": "", "eval/eval_": "eval_", "eval/": "eval_"},
)
