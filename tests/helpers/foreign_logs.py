"""Small logs in the formats of other libraries, written as their code writes them.

verl: `verl/utils/logger/aggregate_logger.py` (console) and `verl/utils/tracking.py` (file logger) of
volcengine/verl@b178a3c. OpenRLHF: `openrlhf/trainer/ppo_trainer.py` and `openrlhf/utils/logging_utils.py` of
OpenRLHF/OpenRLHF@3c3be62. Tests make TRL's, W&B's and TensorBoard's with the libraries themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

RAY = "\x1b[36m(TaskRunner pid=4242)\x1b[0m "


def verl_row(step: int, reward: float, **more: float) -> dict[str, float]:
    """A few of the metrics of a step."""
    row = {
        "training/global_step": step,
        "critic/score/mean": reward,
        "critic/rewards/mean": reward,
        "actor/entropy": 1.0 / (step + 1),
        "actor/grad_norm": 0.5,
        "actor/pg_clipfrac": 0.01,
        "response_length/mean": 20.0,
        "prompt_length/mean": 60.0,
        "perf/total_num_tokens": 640,
        "timing_s/step": 4.0,
        "timing_s/gen": 2.5,
    }
    return row | more


def verl_console(rows: Mapping[int, Mapping[str, float]], planned: int | None = None) -> str:
    """What a run prints, as it stands behind Ray, with other lines between."""
    lines = [f"{RAY}Total training steps: {planned}"] if planned else []
    for step, row in rows.items():
        fields = [f"{name}:{value!r}" for name, value in row.items()]
        lines += [
            f"{RAY}{' - '.join([f'step:{step}', *fields])}",
            f"{RAY}Training Progress:  {step}%|█   | {step}/9",
        ]
    return "\n".join(lines) + "\n"


def verl_file(rows: Mapping[int, Mapping[str, float]]) -> str:
    """What the file logger writes."""
    return "".join(
        json.dumps({"step": step, "data": row}, separators=(",", ":")) + "\n" for step, row in rows.items()
    )


def openrlhf_row(reward: float, **more: Any) -> dict[str, Any]:
    """A few of the metrics of a step."""
    row = {
        "policy_loss": -0.01,
        "actor_lr": 1e-6,
        "actor_grad_norm": 0.25,
        "reward": reward,
        "kl": 0.001,
        "timing/generation": 2.0,
        "timing/step_total": 5.0,
        "rollout/reward_mean": reward,
        "rollout/response_length_mean": 30.0,
        "rollout/truncated_rate": 0.125,
        "rollout/num_samples": 16.0,
    }
    return row | more


def openrlhf_console(
    rows: Mapping[int, Mapping[str, Any]], evaluations: Mapping[int, Mapping[str, float]]
) -> str:
    """What a run prints, evaluations behind their steps."""
    lines = ["Episode [1/1]:   0%|          | 0/4 [00:00<?, ?it/s]"]
    head = "\x1b[36m(PPOTrainer pid=7)\x1b[0m INFO 08-13 19:25:45 ppo_trainer.py"
    for step, row in rows.items():
        lines.append(f"{head}:547] ✨ Global step {step}: {dict(row)}")
        if step in evaluations:
            done = "✨ Evaluation completed in 0:00:05"
            lines.append(f"{head}:594] {done}, global_step {step}, eval_metrics: {dict(evaluations[step])}")
    return "\n".join(lines) + "\n"


def trainer_state(history: Sequence[Mapping[str, Any]], done: int, planned: int) -> str:
    """`trainer_state.json` as transformers writes it: keys sorted, two spaces, NaN as NaN."""
    content = {
        "best_metric": None,
        "epoch": 1.0,
        "eval_steps": 500,
        "global_step": done,
        "is_world_process_zero": True,
        "log_history": list(history),
        "logging_steps": 1,
        "max_steps": planned,
        "num_train_epochs": 1,
        "train_batch_size": 8,
    }
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def trl_row(step: int, reward: float, **more: float) -> dict[str, float]:
    """A few of the metrics of an update of GRPOTrainer's."""
    row = {
        "step": step,
        "epoch": 0.1 * step,
        "loss": 0.01,
        "grad_norm": 0.5,
        "learning_rate": 1e-6,
        "reward": reward,
        "reward_std": 0.25,
        "rewards/exact/mean": reward,
        "frac_reward_zero_std": 0.5,
        "completions/mean_length": 12.0,
        "completions/clipped_ratio": 0.25,
        "entropy": 0.75,
        "kl": 0.001,
        "clip_ratio/low_mean": 0.0,
        "clip_ratio/high_mean": 0.0,
        "num_tokens": 100.0 * step,
        "step_time": 1.5,
    }
    return row | more
