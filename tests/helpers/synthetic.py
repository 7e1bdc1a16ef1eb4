"""Write run folders that follow the run-folder format, with made-up numbers, for the tests of `analysis`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CATEGORIES = ("provenance", "trade", "clan", "quarter")
PHASES = {
    "sample": 0.9,
    "verify": 0.05,
    "forward": 0.2,
    "backward": 0.5,
    "optimize": 0.1,
    "sync": 0.01,
    "other": 0.02,
}
BIASED = ("nanobias", "bbq")


@dataclass(frozen=True)
class Synthetic:
    """An experiment of made-up runs. `gain[arm]` is what the arm adds to the final accuracy, as a share."""

    arms: Sequence[str] = ("grpo", "dapo", "gspo", "ppo")
    tasks: Sequence[str] = ("arithmetic", "nanobias", "function")
    seeds: Sequence[int] = (1, 2, 3)
    steps: int = 40
    every: int = 10
    problems: int = 32
    test_problems: int = 64
    samples: int = 2
    gain: Mapping[str, float] = field(
        default_factory=lambda: {"grpo": 0.3, "dapo": 0.35, "gspo": 0.28, "ppo": 0.2}
    )
    spread: float = 0.03
    """Standard deviation over seeds of the final accuracy."""
    states: Mapping[tuple[str, str, int], tuple[str, int]] = field(default_factory=dict)
    """(arm, task, seed) -> (state, last step), for runs that did not finish."""
    drop: Collection[str] = ()
    """Prefixes of metrics that are not logged."""
    accuracy: Callable[[str, str, int], float] | None = None
    """(arm, task, seed) -> final accuracy, exactly."""
    explained: Callable[[str, int, int], float | None] | None = None
    """(task, seed, step) -> what the critic explained, exactly; None is logged as null."""
    falls: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """(arm, task, seed) -> step from which the run earns and answers next to nothing."""
    name: str = "synthetic"

    def write(self, folder: Path) -> Path:
        """Write `folder/<name>` and return it."""
        root = folder / self.name
        runs = [(arm, task, seed) for arm in self.arms for task in self.tasks for seed in self.seeds]
        root.mkdir(parents=True)
        described = {
            "name": self.name,
            "summary": "made-up runs for tests",
            "runs": [f"{arm}-{task}-s{seed}" for arm, task, seed in runs],
            "seeds": list(self.seeds),
            "arms": list(self.arms),
            "tasks": list(self.tasks),
            "recipe": f'name = "{self.name}"\nseeds = {list(self.seeds)}\n',
        }
        (root / "experiment.json").write_text(json.dumps(described))
        for arm, task, seed in runs:
            self._run(root / f"{arm}-{task}-s{seed}", arm, task, seed)
        return root

    def _run(self, run_folder: Path, arm: str, task: str, seed: int) -> None:
        run_folder.mkdir()
        state, last = self.states.get((arm, task, seed), ("finished", self.steps))
        (run_folder / "run.toml").write_text(toml(self._config(arm, task, seed)))
        attempt = {
            "attempt": 1,
            "started": "2026-01-01T00:00:00",
            "id": f"{arm}-{task}-{seed}",
            "pid": 100 + seed,
            "host": f"worker-{seed}",
            "device": "cpu",
            "versions": {"python": "3.12.4", "torch": "2.13.0"},
            "commit": "0123abcd",
            "dirty": False,
            "diff": "",
            "code": {"algorithms/grpo.py": "aa"},
        }
        provenance = {"attempts": [attempt], "fingerprints": {}}
        (run_folder / "provenance.json").write_text(json.dumps(provenance))
        why = "" if state == "finished" else "policy/entropy became NaN" if state == "diverged" else "stopped"
        (run_folder / "status.json").write_text(
            json.dumps({"state": state, "why": why, "step": last, "attempt": 1})
        )
        rows, graded = self._logs(arm, task, seed, state, last)
        (run_folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run_folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in graded))

    def _config(self, arm: str, task: str, seed: int) -> dict[str, Any]:
        return {
            "experiment": self.name,
            "arm": arm,
            "seed": seed,
            "algorithm": {
                "name": arm,
                "settings": {"clip_low": 0.2, "clip_high": 0.28 if arm == "dapo" else 0.2},
            },
            "task": {"name": task, "settings": {"seed": 0}},
            "model": {"name": "nano", "dtype": "float32"},
            "sampler": {
                "kind": "hf",
                "temperature": 1.0,
                "max_completion_tokens": 40 if task == "arithmetic" else 4,
            },
            "reward": {"kind": "task", "weights": {"correct": 1.0}},
            "train": {
                "steps": self.steps,
                "prompts_per_step": 16,
                "group_size": 8,
                "learning_rate": {"policy": 1e-4 if arm != "ppo" else 5e-5},
            },
            "evaluate": {"every": self.every, "problems": self.problems, "greedy": True},
        }

    def _logs(
        self, arm: str, task: str, seed: int, state: str, last: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        rng = np.random.default_rng([seed, self.tasks.index(task), self.arms.index(arm)])
        base = 0.2 + 0.1 * self.tasks.index(task) + 0.01 * seed
        final = base + self.gain.get(arm, 0.2) + self.spread * rng.standard_normal()
        if self.accuracy is not None:
            final = self.accuracy(arm, task, seed)
        rows: list[dict[str, Any]] = []
        graded: list[dict[str, Any]] = []
        tokens = 0
        for step in range(last + 1):
            progress = (1 - math.exp(-3 * step / self.steps)) / (1 - math.exp(-3))
            level = base + (final - base) * progress
            if step >= self.falls.get((arm, task, seed), last + 1):
                level = 0.01
            row: dict[str, Any] = {"step": step}
            if step:
                tokens += int(rng.integers(3000, 5000))
                row |= self._training(arm, step, level, tokens, rng)
                if self.explained is not None and arm == "ppo":
                    row["critic/explained_variance"] = self.explained(task, seed, step)
                if state == "diverged" and step == last:
                    row |= {"policy/entropy": None, "grad_norm/policy": None, "grad/nonfinite": 1}
            ends = step == last and state in ("finished", "collapsed")
            splits = ["validation"] if step % self.every == 0 or ends else []
            splits += ["test"] if step == 0 or ends else []
            for split in splits:
                for mode in ("sampled", "greedy"):
                    row |= self._evaluate(task, step, split, mode, level, rng, graded)
            rows.append({name: value for name, value in row.items() if not name.startswith(tuple(self.drop))})
        return rows, graded

    def _training(
        self, arm: str, step: int, level: float, tokens: int, rng: np.random.Generator
    ) -> dict[str, float]:
        noise = float(rng.normal(0, 0.03)) if step > 1 else 0.0
        if step == 1:  # the first rollouts are the same in every arm
            level = 0.25
        row = {
            "reward/mean": level + noise,
            "reward/std": 0.4,
            "score/correct": level + noise,
            "score/format": 0.95,
            "groups/sampled": 32.0 if arm == "dapo" else 16.0,
            "groups/zero_signal": 0.3 + 0.4 * level + noise,
            "trained/share": 0.5 if arm == "dapo" else 1.0,
            "trained/zero_signal": 0.0 if arm == "dapo" else 0.3 + 0.4 * level + noise,
            "length/mean": 24 + 8 * level + 20 * noise,
            "length/truncated": 0.02,
            "policy/entropy": 0.8 * math.exp(-step / 30) + 0.05 + 0.2 * abs(noise),
            "trained/entropy": 0.8 * math.exp(-step / 30) + 0.05 + 0.2 * abs(noise),
            "trained/kl_old": 1e-3 * abs(noise),
            "policy/clip_low": 0.01 + 0.1 * abs(noise),
            "policy/clip_high": 0.02 + 0.1 * abs(noise),
            "grad_norm/policy": 0.5 + 5 * abs(noise),
            "learning_rate/policy": 1e-4,
            "cost/generated_tokens": tokens,
            "cost/trained_tokens": tokens * (2 if arm == "ppo" else 1),
            "cost/peak_memory_gb": 1.5 if arm == "ppo" else 0.9,
        }
        if arm == "ppo":
            row |= {
                "critic/explained_variance": 0.8 - math.exp(-step / 8) + noise,
                "critic/outcome_explained": 0.7 - math.exp(-step / 8) + noise,
                "critic/group_explained": 0.3 + noise,
                "grad_norm/value_head": 0.9,
            }
        if arm in ("grpo", "ppo"):
            row["policy/kl_reference_k3"] = 0.002 * step
        seconds = {phase: value * (1 + abs(noise)) for phase, value in PHASES.items()}
        if arm == "ppo":
            seconds["forward"] *= 3
        row |= {f"time/{phase}": value for phase, value in seconds.items()}
        return row | {"time/step": sum(seconds.values()), "time/wall": 2.0 * step}

    def _evaluate(
        self,
        task: str,
        step: int,
        split: str,
        mode: str,
        level: float,
        rng: np.random.Generator,
        graded: list[dict[str, Any]],
    ) -> dict[str, float]:
        count = self.problems if split == "validation" else self.test_problems
        prefix = f"eval/{split}/{mode}"
        row = {f"{prefix}/correct": min(max(level, 0.0), 1.0), f"{prefix}/length": 25.0}
        for problem in range(count):
            for sample in range(self.samples if mode == "sampled" else 1):
                correct = float(rng.random() < level)
                graded.append(
                    {
                        "step": step,
                        "split": split,
                        "mode": mode,
                        "problem": f"p{problem}",
                        "sample": sample,
                        "scores": {"correct": correct, "format": 1.0},
                        "answer": str(problem) if correct else "none",
                        "outcome": "graded",
                        "length": 25,
                        "stopped": True,
                        "traits": {"category": CATEGORIES[problem % 4]},
                    }
                )
        if task in BIASED:
            for suffix in ("", *(f"/{category}" for category in CATEGORIES)):
                shift = float(rng.normal(0, 0.05))
                row[f"{prefix}/accuracy_ambiguous{suffix}"] = level + shift
                row[f"{prefix}/accuracy_disambiguated{suffix}"] = level - shift
                row[f"{prefix}/unknown_rate{suffix}"] = 0.3 + shift
                row[f"{prefix}/bias_ambiguous{suffix}"] = 0.2 * (1 - level) + shift
                row[f"{prefix}/bias_disambiguated{suffix}"] = 0.1 + shift
        return row


def toml(tables: Mapping[str, Any], prefix: str = "") -> str:
    """Enough TOML for a run configuration: numbers, strings, booleans and nested tables."""
    plain = [
        f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, Mapping)
    ]
    text = "\n".join(plain) + "\n"
    for key, value in tables.items():
        if isinstance(value, Mapping):
            text += f"[{prefix}{key}]\n" + toml(value, f"{prefix}{key}.")
    return text
