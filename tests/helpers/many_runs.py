"""Logs of verl's file logger by the hundred, to import: on them reports of many runs are measured.

python tests/helpers/many_runs.py logs --arms 20 --seeds 50
grpobench import logs results/many --task sums && time grpobench report results/many
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.foreign_logs import verl_file, verl_row

DATA = "val-core/gsm8k/acc/mean@1"


def write(folder: Path, arms: int, seeds: int, steps: int = 100, every: int = 20) -> Path:
    """A folder `armA-seedS` per run: `steps` updates of eighteen metrics, a validation every so many."""
    for arm in range(arms):
        for seed in range(seeds):
            run_folder = folder / f"arm{arm:03}-seed{seed}"
            run_folder.mkdir(parents=True)
            (run_folder / "metrics.jsonl").write_text(
                verl_file(rows(arm, seed, steps, every)), encoding="utf-8"
            )
    return folder


def rows(arm: int, seed: int, steps: int, every: int) -> dict[int, dict[str, float]]:
    """Accuracies that rise to a level of the arm's and the seed's own, and metrics with noise."""
    rng = np.random.default_rng([arm, seed])
    level = 0.5 + 0.01 * (arm % 20) + 0.02 * float(rng.standard_normal())
    row_by_step: dict[int, dict[str, float]] = {0: {DATA: 0.25}}
    for step in range(1, steps + 1):
        noise = rng.random(6)
        now = 0.25 + (level - 0.25) * step / steps
        row_by_step[step] = verl_row(step, now + 0.02 * float(noise[0])) | {
            "actor/entropy": float(0.5 + noise[1] / 10),
            "actor/grad_norm": float(0.4 + noise[2]),
            "actor/ppo_kl": float(1e-3 * noise[3]),
            "actor/lr": 1e-6,
            "response_length/mean": float(20 + noise[4]),
            "response_length/clip_ratio": float(noise[5] / 50),
            "timing_s/old_log_prob": 0.25,
            "timing_s/update_actor": 1.25,
        }
        if step % every == 0:
            row_by_step[step][DATA] = round(now * 512) / 512
    return row_by_step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in (("arms", 20), ("seeds", 50), ("steps", 100), ("every", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    write(chosen.folder, chosen.arms, chosen.seeds, chosen.steps, chosen.every)
