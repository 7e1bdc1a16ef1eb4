"""verl's metrics, under the same names in the console, its file logger and every tracker."""

from __future__ import annotations

from collections.abc import Mapping

from grpobench.runs.importing.names.table import Derived, Name, Vocabulary
from grpobench.runs.importing.names.verl_time import PARTS, SAVING, TESTING, settle, step_seconds

DATA = "verl/trainer/ppo/metric_utils.py"
TRAINER = "verl/trainer/ppo/ray_trainer.py"
ACTOR = "verl/workers/actor/dp_actor.py"
CRITIC = "verl/workers/critic/dp_critic.py"
WORKERS = "verl/workers/fsdp_workers.py"
ENGINE = "verl/workers/engine_workers.py"
LOSS = "verl/trainer/ppo/core_algos.py"
GAP = "verl/trainer/ppo/rollout_corr_helper.py"
GREEDY, SAMPLED = "eval/validation/greedy", "eval/validation/sampled"
ONE = "one answer per problem, greedy by default (`val_kwargs.do_sample`)"
BOOTSTRAP = "estimated from resampled sets of n answers"


def reading(row: Mapping[str, float]) -> float:
    """Seconds of forward passes before the updates."""
    return row["timing_s/old_log_prob"] + row.get("timing_s/ref", 0.0) + row.get("timing_s/values", 0.0)


def generated(row: Mapping[str, float]) -> float:
    """The completions' share of all tokens of the step."""
    answer, prompt = row["response_length/mean"], row["prompt_length/mean"]
    return row["perf/total_num_tokens"] * answer / (answer + prompt) if answer else 0.0


VERL = Vocabulary(
    library="verl",
    title="verl",
    read="volcengine/verl@b178a3c (0.8.0.dev); times, memory and loggers in 0.9.1 too",
    about=(
        (
            "A step is a batch of rollouts with all the updates made on it, as ours is; a validation at a "
            "step is after its update, and one before training has step 0."
        ),
        (
            "All numbers are over the batch that is trained on. Where groups were filtered (DAPO's recipe) "
            "those that were thrown away are not in them, and in ours they are."
        ),
        "Early versions print three decimals in the console; the file logger has all.",
        (
            "`timing_s/step` holds the validation and the checkpoint of a step up to verl 0.5, neither from "
            "0.6 on, and the checkpoint again from 0.7.1 on. The log's numbers tell which: what makes the "
            "remainder of the step beyond its other parts most like that of steps without either. "
            "provenance.json has the formula of the log."
        ),
    ),
    names=(
        Name(
            "critic/score/mean",
            "reward/mean",
            "reward",
            DATA,
            "before a penalty for divergence; completions without a token are left out",
        ),
        Name("response_length/mean", "length/mean", "tokens", DATA, "with replies of tools, in many turns"),
        Name(
            "response_length/clip_ratio",
            "length/truncated",
            "share of rollouts",
            DATA,
            "as long as the limit, whether or not they ended there",
        ),
        Name(
            "actor/entropy",
            "policy/entropy",
            "nats/token",
            TRAINER,
            "averaged as `loss_agg_mode` says (over tokens by default)",
        ),
        Name("actor/entropy_loss", "policy/entropy", "nats/token", ACTOR, "as the updates meet the policy"),
        Name("actor/ppo_kl", "trained/kl_old", "nats/token", LOSS),
        Name(
            "actor/kl_loss",
            "policy/kl_reference_k3",
            "nats/token",
            ACTOR,
            "k3 by default (`low_var_kl`), cut at ±10; averaged as `loss_agg_mode` says",
        ),
        Name(
            "actor/reward_kl_penalty",
            "policy/kl_reference_k1",
            "nats/token",
            TRAINER,
            "k1 by default; mean over completions of their means over tokens",
        ),
        Name("actor/grad_norm", "grad_norm/policy", "norm", ACTOR),
        Name("critic/grad_norm", "grad_norm/critic", "norm", CRITIC),
        Name("actor/lr", "learning_rate/policy", "rate", WORKERS),
        Name("critic/lr", "learning_rate/critic", "rate", WORKERS),
        Name("critic/vf_loss", "critic/loss", "reward²", CRITIC),
        Name("critic/vf_clipfrac", "critic/value_clip", "share of tokens", CRITIC),
        Name("critic/values/mean", "critic/value", "reward", DATA),
        Name(
            "critic/vf_explained_var",
            "critic/explained_variance",
            "share",
            DATA,
            "1e-5 is added to the variance of the returns",
        ),
        Name("rollout_corr/k3_kl", "gap/k3", "nats/token", GAP),
        Name("rollout_corr/rollout_is_mean", "correction/weight_mean", "ratio", GAP),
        Name("timing_s/gen", "time/sample", "s", TRAINER),
        Name("timing_s/reward", "time/verify", "s", TRAINER, "what is graded while sampling is not in it"),
        Name("timing_s/update_weights", "time/sync", "s", TRAINER),
        Name("timing_s/testing", "time/evaluate", "s", TRAINER),
        Name("actor/perf/max_memory_allocated_gb", "cost/peak_memory_gb", "GiB", ENGINE, "of one GPU"),
        Name("perf/max_memory_allocated_gb", "cost/peak_memory_gb", "GiB", WORKERS, "of one GPU"),
        Name("val-core/<source>/acc/mean@1", f"{GREEDY}/correct", "share", TRAINER, ONE),
        Name("val-core/<source>/acc/mean@<n>", f"{SAMPLED}/correct", "share", TRAINER),
        Name("val-core/<source>/acc/best@<n>/mean", f"{SAMPLED}/pass@<n>", "share", DATA, BOOTSTRAP),
        Name("val-core/<source>/acc/maj@<n>/mean", f"{SAMPLED}/maj@<n>", "share", DATA, BOOTSTRAP),
        Name("val-core/<source>/reward/mean@1", f"{GREEDY}/reward", "reward", TRAINER, ONE),
        Name("val-core/<source>/reward/mean@<n>", f"{SAMPLED}/reward", "reward", TRAINER),
        Name("val/test_score/<source>", f"{GREEDY}/reward", "reward", TRAINER, "of early versions"),
    ),
    derived=(
        Derived(
            "time/step",
            ("timing_s/step",),
            "timing_s/step, less what it holds of timing_s/testing and timing_s/save_checkpoint",
            step_seconds,
            "s",
            TRAINER,
            perhaps=(TESTING, SAVING, *PARTS),
            settle=settle,
        ),
        Derived(
            "time/forward",
            ("timing_s/old_log_prob",),
            "timing_s/old_log_prob + timing_s/ref + timing_s/values",
            reading,
            "s",
            TRAINER,
            perhaps=("timing_s/ref", "timing_s/values"),
            differs="the forward passes of the updates are not in it",
        ),
        Derived(
            "cost/generated_tokens",
            ("perf/total_num_tokens", "response_length/mean", "prompt_length/mean"),
            "sum over steps of perf/total_num_tokens × response_length/mean ÷ (response_length/mean + "
            "prompt_length/mean)",
            generated,
            "tokens",
            DATA,
            running=True,
        ),
    ),
)
