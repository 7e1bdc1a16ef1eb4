"""What `timing_s/step` of verl includes, which differs between its versions and is inferred from the log.

Up to 0.5 the step's time includes validation and checkpoints. From 0.6 on it includes neither, and from 0.7.1
on it includes checkpoints again. No log says which version wrote it.

verl's metrics, under the same names in the console, its file logger and every tracker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

from grpobench.runs.importing.names.table import Derived, Name, Settled, Vocabulary

STEP, TESTING, SAVING = "timing_s/step", "timing_s/testing", "timing_s/save_checkpoint"
HELD = ((TESTING, SAVING), (SAVING,), ())
"""What the step may include beside `PARTS`, by version."""
PARTS = (
    *("timing_s/gen", "timing_s/gen_max", "timing_s/reward", "timing_s/old_log_prob", "timing_s/ref"),
    *("timing_s/values", "timing_s/adv", "timing_s/update_critic", "timing_s/update_actor"),
    "timing_s/update_weights",
)
"""What every version times within the step, one after the other."""
LONGEST = ("timing_s/gen", "timing_s/update_actor")
"""Without these parts the remainder of a step says nothing."""


def whole(row: Mapping[str, float]) -> float:
    """Seconds of the step with all that it includes."""
    return row[STEP]


def without(row: Mapping[str, float], names: Sequence[str]) -> float:
    """Seconds of the step less some of what it includes."""
    return row[STEP] - sum(value for name in names if math.isfinite(value := row.get(name, 0.0)))


def settle(rows: Sequence[Mapping[str, float]]) -> Settled:
    """Seconds of the step without validation and checkpoints, as far as it includes them. The version is the
    one for which the remainder beyond its parts is most like that of steps without either. No time is
    negative."""
    rows = [row for row in rows if math.isfinite(row.get(STEP, math.nan))]
    beside = [row for row in rows if TESTING in row or SAVING in row]
    alone = [without(row, PARTS) for row in rows if not (TESTING in row or SAVING in row)]
    usual = median(alone) if alone else 0.0

    def distance(held: Sequence[str]) -> float:
        return sum(abs(without(row, (*PARTS, *held)) - usual) for row in beside)

    possible = [held for held in HELD if all(without(row, held) >= 0 for row in beside)]
    best = min(possible, key=distance, default=())
    held = [name for name in best if any(name in row for row in beside)]
    clear = not held or alone or all(any(name in row for row in beside) for name in LONGEST)
    note = "" if clear else f"nothing tells whether {STEP} holds {' and '.join(held)}; it is taken to"
    return Settled(" − ".join((STEP, *held)), partial(without, names=held), note)


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
            whole,
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
