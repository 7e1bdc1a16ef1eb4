"""The metrics of each library: names from `LIBRARY.toml`, and what is computed from several of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpobench.runs.handover.importing.names.steps import by_policy_version, by_rollout, from_zero
from grpobench.runs.handover.importing.names.table import Derived, Name, Rows, Vocabulary
from grpobench.runs.handover.importing.names.verl_time import settle, step_seconds
from grpobench.tasks.data import bounded


def generated(of: Sequence[str], origin: str, differs: str = "") -> Derived:
    """The tokens generated so far, of steps that log two factors of theirs."""
    length, count = of

    def compute(row: Mapping[str, float]) -> float:
        return row[length] * row[count]

    return generated_by(of, f"{length} × {count}", compute, origin, differs)


def generated_by(
    of: Sequence[str],
    formula: str,
    compute: Callable[[Mapping[str, float]], float],
    origin: str,
    differs: str = "",
) -> Derived:
    """The tokens generated so far, from a formula for those of a step."""
    return Derived(
        "cost/generated_tokens",
        of,
        f"sum over steps of {formula}",
        compute,
        "tokens",
        origin,
        running=True,
        differs=differs,
    )


def forward(of: str, parts: Sequence[str], origin: str) -> Derived:
    """Seconds of forward passes before the updates, the sum of parts of which a library logs some."""

    def compute(row: Mapping[str, float]) -> float:
        return sum(row.get(name, 0.0) for name in parts)

    differs = "the forward passes of the updates are not in it"
    return Derived("time/forward", (of,), " + ".join(parts), compute, "s", origin, differs=differs)


def step_without(step: str, beside: Sequence[str], origin: str) -> Derived:
    """Seconds of the step without the validation and the checkpoints that it holds."""

    def compute(row: Mapping[str, float]) -> float:
        return row[step] - sum(row.get(name, 0.0) for name in beside)

    return Derived("time/step", (step,), " − ".join([step, *beside]), compute, "s", origin)


def nemo_mean(theirs: str, ours: str, unit: str, differs: str = "") -> Derived:
    """A metric of NeMo-RL's loss, which adds it up over the updates of a step."""
    of = (f"train/{theirs}", "train/global_valid_seqs", "train/num_valid_samples")

    def compute(row: Mapping[str, float]) -> float:
        return row[of[0]] * row[of[1]] / row[of[2]]

    formula = f"{of[0]} × {of[1]} ÷ {of[2]}"
    return Derived(ours, of, formula, compute, unit, f"{NEMO}loss/loss_functions.py", differs=differs)


def verl_generated(row: Mapping[str, float]) -> float:
    """The completions' share of all tokens of the step."""
    answer, prompt = row["response_length/mean"], row["prompt_length/mean"]
    return row["perf/total_num_tokens"] * answer / (answer + prompt) if answer else 0.0


def nemo_generated(row: Mapping[str, float]) -> float:
    """Tokens of the step's rollouts, whose number is that of turns over turns each."""
    samples = row["train/total_turns"] / row["train/avg_turns_per_sample"]
    return row["train/mean_gen_tokens_per_sample"] * samples


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


NEMO = "nemo_rl/algorithms/"
NEMO_ENTROPY = "an estimate, −(π/π_sampler) log π of the drawn tokens, as the updates meet the policy"
NEMO_KL = "in the estimator `reference_policy_kl_type` (k3 by default), as the updates meet the policy"
VERL_TRAINER = "verl/trainer/ppo/ray_trainer.py"
DERIVED: Mapping[str, Sequence[Derived]] = {
    "trl": (),
    "verl": (
        Derived(
            "time/step",
            ("timing_s/step",),
            "timing_s/step, less what it holds of timing_s/testing and timing_s/save_checkpoint",
            step_seconds,
            "s",
            VERL_TRAINER,
            settle=settle,
        ),
        forward(
            "timing_s/old_log_prob",
            ("timing_s/old_log_prob", "timing_s/ref", "timing_s/values"),
            VERL_TRAINER,
        ),
        generated_by(
            ("perf/total_num_tokens", "response_length/mean", "prompt_length/mean"),
            "perf/total_num_tokens × response_length/mean ÷ (response_length/mean + prompt_length/mean)",
            verl_generated,
            "verl/trainer/ppo/metric_utils.py",
        ),
    ),
    "openrlhf": (
        generated(("rollout/response_length_mean", "rollout/num_samples"), "openrlhf/trainer/ppo_trainer.py"),
    ),
    "prime-rl": (
        generated(
            ("train/agg/all/num_output_tokens/mean", "progress/rollouts"),
            "src/prime_rl/orchestrator/orchestrator.py",
            "with several agents in an episode too large",
        ),
    ),
    "nemo-rl": (
        step_without(
            "timing/train/total_step_time",
            ("timing/validation/total_validation_time", "timing/train/checkpointing"),
            f"{NEMO}grpo.py",
        ),
        nemo_mean("approx_entropy", "policy/entropy", "nats/token", NEMO_ENTROPY),
        nemo_mean("kl_penalty", "policy/kl_reference_k3", "nats/token", NEMO_KL),
        nemo_mean("probs_ratio", "trained/ratio_mean", "ratio"),
        nemo_mean("gen_kl_error", "gap/k3", "nats/token", "in the estimator of the KL to the reference"),
        nemo_mean("sampling_importance_ratio", "correction/weight_mean", "ratio"),
        generated_by(
            ("train/mean_gen_tokens_per_sample", "train/total_turns", "train/avg_turns_per_sample"),
            "train/mean_gen_tokens_per_sample × train/total_turns ÷ train/avg_turns_per_sample",
            nemo_generated,
            "nemo_rl/experience/rollouts.py",
        ),
    ),
    "skyrl": (
        step_without(
            "timing/step",
            ("timing/save_checkpoints", "timing/save_hf_model"),
            "skyrl/train/trainer.py",
        ),
        generated(
            ("generate/avg_num_tokens", "generate/batch_num_seq"),
            "skyrl/train/trainer.py",
            "with replies of tools, in many turns",
        ),
    ),
    "slime": (
        forward(
            "perf/log_probs_time",
            ("perf/log_probs_time", "perf/ref_log_probs_time"),
            "slime/backends/megatron_utils/actor.py",
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
        forward(
            "timeperf/compute_advantage",
            ("timeperf/recompute_logp", "timeperf/ref_logp", "timeperf/critic_values"),
            "areal/trainer/rl_trainer.py",
        ),
        generated_by(
            ("ppo_actor/seq_len/avg", "ppo_actor/prompt_len/avg", "ppo_actor/n_seqs"),
            "(ppo_actor/seq_len/avg − ppo_actor/prompt_len/avg) × ppo_actor/n_seqs",
            areal_generated,
            "areal/trainer/ppo/actor.py",
            "of the rollouts in the updates",
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
