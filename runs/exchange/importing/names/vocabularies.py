"""The metrics of each library: names from `LIBRARY.toml`, and what is computed from several of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpobench.runs.exchange.importing.names.steps import by_policy_version, by_rollout, from_zero
from grpobench.runs.exchange.importing.names.table import Derived, Name, Rows, Vocabulary
from grpobench.runs.exchange.importing.names.verl_time import settle, step_seconds
from grpobench.tasks.data import bounded


def verl_forward(row: Mapping[str, float]) -> float:
    """Seconds of forward passes before the updates."""
    return row["timing_s/old_log_prob"] + row.get("timing_s/ref", 0.0) + row.get("timing_s/values", 0.0)


def verl_generated(row: Mapping[str, float]) -> float:
    """The completions' share of all tokens of the step."""
    answer, prompt = row["response_length/mean"], row["prompt_length/mean"]
    return row["perf/total_num_tokens"] * answer / (answer + prompt) if answer else 0.0


def openrlhf_generated(row: Mapping[str, float]) -> float:
    """Tokens of the step's completions."""
    return row["rollout/response_length_mean"] * row["rollout/num_samples"]


def prime_generated(row: Mapping[str, float]) -> float:
    """Tokens of all rollouts that arrived."""
    return row["train/agg/all/num_output_tokens/mean"] * row["progress/rollouts"]


def nemo_generated(row: Mapping[str, float]) -> float:
    """Tokens of the step's rollouts, whose number is that of turns over turns each."""
    samples = row["train/total_turns"] / row["train/avg_turns_per_sample"]
    return row["train/mean_gen_tokens_per_sample"] * samples


def nemo_step(row: Mapping[str, float]) -> float:
    """Seconds of the step without the validation and the checkpoint that it holds."""
    beside = sum(row.get(name, 0.0) for name in ("timing/validation/total_validation_time", NEMO_SAVING))
    return row["timing/train/total_step_time"] - beside


def nemo_mean(theirs: str, ours: str, unit: str, differs: str = "") -> Derived:
    """A metric of NeMo-RL's loss, which adds it up over the updates of a step."""
    of = (f"train/{theirs}", "train/global_valid_seqs", "train/num_valid_samples")

    def compute(row: Mapping[str, float]) -> float:
        return row[of[0]] * row[of[1]] / row[of[2]]

    formula = f"{of[0]} × {of[1]} ÷ {of[2]}"
    return Derived(ours, of, formula, compute, unit, f"{NEMO}loss/loss_functions.py", differs=differs)


def skyrl_step(row: Mapping[str, float]) -> float:
    """Seconds of the step without the checkpoints that it holds."""
    return row["timing/step"] - sum(row.get(name, 0.0) for name in SKYRL_SAVING)


def skyrl_generated(row: Mapping[str, float]) -> float:
    """Tokens of the step's completions."""
    return row["generate/avg_num_tokens"] * row["generate/batch_num_seq"]


def slime_forward(row: Mapping[str, float]) -> float:
    """Seconds of forward passes before the updates."""
    return row["perf/log_probs_time"] + row.get("perf/ref_log_probs_time", 0.0)


def slime_value_loss(row: Mapping[str, float]) -> float:
    """Half the squared error."""
    return row["train/critic-value_loss"] / 2


def areal_length(row: Mapping[str, float]) -> float:
    """Tokens of a completion: those of the sequence that are not the prompt's."""
    return row["ppo_actor/seq_len/avg"] - row["ppo_actor/prompt_len/avg"]


def areal_generated(row: Mapping[str, float]) -> float:
    """Tokens of the batch's completions."""
    return areal_length(row) * row["ppo_actor/n_seqs"]


def areal_kl(row: Mapping[str, float]) -> float:
    """AReaL subtracts the old policy's log-probability, we the new one's."""
    return -row["ppo_actor/update/approx_kl/avg"]


def areal_forward(row: Mapping[str, float]) -> float:
    """Seconds of forward passes before the updates."""
    return sum(row.get(name, 0.0) for name in AREAL_FORWARD)


NEMO = "nemo_rl/algorithms/"
NEMO_SAVING = "timing/train/checkpointing"
SKYRL_SAVING = ("timing/save_checkpoints", "timing/save_hf_model")
AREAL_FORWARD = ("timeperf/recompute_logp", "timeperf/ref_logp", "timeperf/critic_values")
NEMO_ENTROPY = "an estimate, −(π/π_sampler) log π of the drawn tokens, as the updates meet the policy"
NEMO_KL = "in the estimator `reference_policy_kl_type` (k3 by default), as the updates meet the policy"
WITHOUT_UPDATES = "the forward passes of the updates are not in it"
DERIVED: Mapping[str, Sequence[Derived]] = {
    "trl": (),
    "verl": (
        Derived(
            "time/step",
            ("timing_s/step",),
            "timing_s/step, less what it holds of timing_s/testing and timing_s/save_checkpoint",
            step_seconds,
            "s",
            "verl/trainer/ppo/ray_trainer.py",
            settle=settle,
        ),
        Derived(
            "time/forward",
            ("timing_s/old_log_prob",),
            "timing_s/old_log_prob + timing_s/ref + timing_s/values",
            verl_forward,
            "s",
            "verl/trainer/ppo/ray_trainer.py",
            differs="the forward passes of the updates are not in it",
        ),
        Derived(
            "cost/generated_tokens",
            ("perf/total_num_tokens", "response_length/mean", "prompt_length/mean"),
            "sum over steps of perf/total_num_tokens × response_length/mean ÷ (response_length/mean + "
            "prompt_length/mean)",
            verl_generated,
            "tokens",
            "verl/trainer/ppo/metric_utils.py",
            running=True,
        ),
    ),
    "openrlhf": (
        Derived(
            "cost/generated_tokens",
            ("rollout/response_length_mean", "rollout/num_samples"),
            "sum over steps of rollout/response_length_mean × rollout/num_samples",
            openrlhf_generated,
            "tokens",
            "openrlhf/trainer/ppo_trainer.py",
            running=True,
        ),
    ),
    "prime-rl": (
        Derived(
            "cost/generated_tokens",
            ("train/agg/all/num_output_tokens/mean", "progress/rollouts"),
            "sum over steps of train/agg/all/num_output_tokens/mean × progress/rollouts",
            prime_generated,
            "tokens",
            "src/prime_rl/orchestrator/orchestrator.py",
            running=True,
            differs="with several agents in an episode too large",
        ),
    ),
    "nemo-rl": (
        Derived(
            "time/step",
            ("timing/train/total_step_time",),
            f"timing/train/total_step_time − timing/validation/total_validation_time − {NEMO_SAVING}",
            nemo_step,
            "s",
            f"{NEMO}grpo.py",
        ),
        nemo_mean("approx_entropy", "policy/entropy", "nats/token", NEMO_ENTROPY),
        nemo_mean("kl_penalty", "policy/kl_reference_k3", "nats/token", NEMO_KL),
        nemo_mean("probs_ratio", "trained/ratio_mean", "ratio"),
        nemo_mean("gen_kl_error", "gap/k3", "nats/token", "in the estimator of the KL to the reference"),
        nemo_mean("sampling_importance_ratio", "correction/weight_mean", "ratio"),
        Derived(
            "cost/generated_tokens",
            ("train/mean_gen_tokens_per_sample", "train/total_turns", "train/avg_turns_per_sample"),
            "sum over steps of train/mean_gen_tokens_per_sample × train/total_turns ÷ "
            "train/avg_turns_per_sample",
            nemo_generated,
            "tokens",
            "nemo_rl/experience/rollouts.py",
            running=True,
        ),
    ),
    "skyrl": (
        Derived(
            "time/step",
            ("timing/step",),
            f"timing/step − {' − '.join(SKYRL_SAVING)}",
            skyrl_step,
            "s",
            "skyrl/train/trainer.py",
        ),
        Derived(
            "cost/generated_tokens",
            ("generate/avg_num_tokens", "generate/batch_num_seq"),
            "sum over steps of generate/avg_num_tokens × generate/batch_num_seq",
            skyrl_generated,
            "tokens",
            "skyrl/train/trainer.py",
            running=True,
            differs="with replies of tools, in many turns",
        ),
    ),
    "slime": (
        Derived(
            "time/forward",
            ("perf/log_probs_time",),
            "perf/log_probs_time + perf/ref_log_probs_time",
            slime_forward,
            "s",
            "slime/backends/megatron_utils/actor.py",
            differs=WITHOUT_UPDATES,
        ),
        Derived(
            "critic/loss",
            ("train/critic-value_loss",),
            "train/critic-value_loss ÷ 2",
            slime_value_loss,
            "reward²",
            "slime/backends/megatron_utils/loss.py",
            differs="mean over completions",
        ),
    ),
    "areal": (
        Derived(
            "length/mean",
            ("ppo_actor/seq_len/avg", "ppo_actor/prompt_len/avg"),
            "ppo_actor/seq_len/avg − ppo_actor/prompt_len/avg",
            areal_length,
            "tokens",
            "areal/trainer/ppo/actor.py",
            differs="over the rollouts in the updates",
        ),
        Derived(
            "trained/kl_old",
            ("ppo_actor/update/approx_kl/avg",),
            "−ppo_actor/update/approx_kl/avg",
            areal_kl,
            "nats/token",
            "areal/utils/functional/functional.py",
        ),
        Derived(
            "time/forward",
            ("timeperf/compute_advantage",),
            " + ".join(AREAL_FORWARD),
            areal_forward,
            "s",
            "areal/trainer/rl_trainer.py",
            differs=WITHOUT_UPDATES,
        ),
        Derived(
            "cost/generated_tokens",
            ("ppo_actor/seq_len/avg", "ppo_actor/prompt_len/avg", "ppo_actor/n_seqs"),
            "sum over steps of (ppo_actor/seq_len/avg − ppo_actor/prompt_len/avg) × ppo_actor/n_seqs",
            areal_generated,
            "tokens",
            "areal/trainer/ppo/actor.py",
            running=True,
            differs="of the rollouts in the updates",
        ),
    ),
    "ms-swift": (),
}
STEPS: Mapping[str, Callable[[Rows], Rows]] = {
    "prime-rl": by_policy_version,
    "slime": by_rollout,
    "areal": from_zero,
}


def read(library: str) -> Vocabulary:
    """The metrics of a library, from its file."""
    table = bounded.read_toml(Path(__file__).with_name(f"{library}.toml"))
    names = [Name(*row) for row in table.pop("names")]
    return Vocabulary(
        library=library, names=names, derived=DERIVED[library], steps=STEPS.get(library), **table
    )


VOCABULARIES: Mapping[str, Vocabulary] = {library: read(library) for library in DERIVED}
