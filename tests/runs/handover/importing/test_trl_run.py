"""A run of TRL's own trainer, imported: what it logged is what the report reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import zstandard

from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli

trl = pytest.importorskip("trl", reason="trl makes this run: pip install 'grpobench[trl]'")


def length(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs between completions of a group."""
    return [len(set(text)) / 8 for text in completions]


def train(policy: str, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Two updates with an evaluation behind them; the history as TRL holds it."""
    from datasets import Dataset

    prompts = Dataset.from_dict({"prompt": ["ab", "cd", "ef", "ba"]})
    arguments = trl.GRPOConfig(
        output_dir=str(folder),
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=seed,
        max_steps=2,
        save_steps=2,
        eval_steps=2,
        eval_strategy="steps",
        logging_steps=1,
        log_completions=True,
        num_generations=4,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_completion_length=6,
        learning_rate=1e-2,
        beta=0.04,
    )
    made = trl.GRPOTrainer(
        model=policy, reward_funcs=length, args=arguments, train_dataset=prompts, eval_dataset=prompts
    )
    made.train()
    return list(made.state.log_history)


@pytest.mark.slow
def test_a_run_of_trl_imports_and_reports(policy: str, tmp_path: Path) -> None:
    logs = {seed: train(policy, tmp_path / "logs" / f"grpo-seed{seed}", seed) for seed in (0, 1)}
    out = tmp_path / "out"
    assert cli.main(["import", str(tmp_path / "logs"), str(out), "--task", "letters"]) == 0
    experiment = load(out)
    assert [(run.name, run.state, run.step) for run in experiment.runs] == [
        (f"grpo-letters-s{seed}", "finished", 2) for seed in (0, 1)
    ]
    ours = {
        "reward": "reward/mean",
        "kl": "policy/kl_reference_k3",
        "entropy": "policy/entropy",
        "grad_norm": "grad_norm/policy",
        "learning_rate": "learning_rate/policy",
        "completions/mean_length": "length/mean",
        "frac_reward_zero_std": "groups/zero_signal",
        "clip_ratio/high_mean": "policy/clip_high",
        "rewards/length/mean": "reward/length",
        "step_time": "time/step",
        "eval_reward": "eval/validation/sampled/reward",
    }
    for theirs, name in ours.items():
        imported_values = experiment.select(name).set_index(["seed", "step"])["value"].to_dict()
        logged_values = {
            (s, row["step"]): row[theirs] for s, history in logs.items() for row in history if theirs in row
        }
        assert imported_values == logged_values and logged_values, theirs
    run_folder = out / "grpo-letters-s0"
    imported_record = json.loads((run_folder / "provenance.json").read_text())["imported"]
    assert imported_record["faults"] == [] and "other/num_tokens" in imported_record["other"]
    packed = (run_folder / "rollouts" / "step-1.jsonl.zst").read_bytes()
    groups = [json.loads(line) for line in zstandard.ZstdDecompressor().decompress(packed).splitlines()]
    rewards = [completion["reward"] for group in groups for completion in group["completions"]]
    assert len(groups) == 2 and all(len(group["completions"]) == 4 for group in groups)
    mean = sum(rewards) / len(rewards)  # TRL's is a mean in float32
    assert math.isclose(mean, logs[0][0]["reward"], rel_tol=1e-6)
    assert cli.main(["report", str(out), "--format", "html,json"]) == 0
    assert (
        "1 run"
        not in json.loads((out / "report" / "report.json").read_text())["alarms"][
            "Imported from logs of others"
        ][0]
    )
