"""The evaluator: the same code inside runs and for `grpobench eval`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from grpobench.runs.config import EvaluateConfig, RewardConfig
from grpobench.runs.episodes import episodes
from grpobench.runs.library import Loaded, load
from grpobench.runs.models import Models
from grpobench.runs.rewards import Grader
from grpobench.runs.sampler import HFSampler, Sampler
from grpobench.runs.seeds import derive
from grpobench.tasks.task import DataError, Graded, Split, Task

Mode = Literal["sampled", "greedy"]


@dataclass(frozen=True)
class Evaluator:
    """Answers the first problems of a split and grades them.

    Random numbers depend on seed, problem and sample but not on the step: two evaluations of a run answer
    the same problems with the same numbers, so that their difference is the policy's.
    """

    task: Task
    loaded: Loaded
    sampler: Sampler
    settings: EvaluateConfig
    seed: int
    limit: int
    temperature: float

    def evaluate(self, step: int, split: Split) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """(rows of eval.jsonl, ``eval/<split>/<mode>/<metric>`` numbers)."""
        rows: list[dict[str, Any]] = []
        summary: dict[str, float] = {}
        modes: list[tuple[Mode, int]] = [
            ("sampled", self.settings.samples),
            ("greedy", int(self.settings.greedy)),
        ]
        for mode, samples in modes:
            if samples:
                found, numbers = self._mode(step, split, mode, samples)
                rows += found
                summary |= {f"eval/{split}/{mode}/{name}": value for name, value in numbers.items()}
        return rows, summary

    def _mode(
        self, step: int, split: Split, mode: Mode, samples: int
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        count = self.settings.test_problems if split == "test" else self.settings.problems
        problems = self.task.problems(split)[:count]
        grader = Grader(self.task, RewardConfig(), self.loaded, self.seed)
        seeds = [
            tuple(derive(self.seed, "evaluate", split, problem.id, i) for i in range(samples))
            for problem in problems
        ]
        temperature = 0.0 if mode == "greedy" else self.temperature
        answers = episodes(self.sampler, self.loaded, self.task, problems, seeds, self.limit, temperature)
        rows, graded = [], []
        for problem, rollouts in zip(problems, answers, strict=True):
            for i, (rollout, verdict) in enumerate(
                zip(rollouts, grader.verify(problem, rollouts), strict=True)
            ):
                rows.append(
                    {
                        "step": step,
                        "split": split,
                        "mode": mode,
                        "problem": problem.id,
                        "sample": i,
                        "scores": dict(verdict.scores),
                        "answer": verdict.answer,
                        "outcome": verdict.outcome,
                        "length": rollout.length,
                        "stopped": rollout.stopped,
                        "traits": dict(problem.traits),
                    }
                )
                if verdict.outcome != "infra_error":
                    graded.append(Graded(problem, verdict))
        numbers = summarise(self.task, graded)
        return rows, numbers | {"length": float(np.mean([row["length"] for row in rows]))}


def summarise(task: Task, graded: Sequence[Graded]) -> dict[str, float]:
    """The mean of every score, and the task's own summary."""
    names = sorted({name for entry in graded for name in entry.verdict.scores})
    means = {
        name: float(np.mean([e.verdict.scores[name] for e in graded if name in e.verdict.scores]))
        for name in names
    }
    return means | task.summarise(graded)


def evaluate_command(
    target: str,
    task: Task,
    *,
    split: Split = "test",
    samples: int = 1,
    problems: int = 0,
    greedy: bool = True,
    temperature: float = 1.0,
    max_new_tokens: int = 0,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Evaluate a model by name, or the final weights of a run folder. Returns rows and summary."""
    loaded = trained(Path(target)) if (Path(target) / "run.toml").exists() else load(target)
    settings = EvaluateConfig(
        samples=samples, greedy=greedy, problems=problems or 10**9, test_problems=problems or 10**9
    )
    sampler = HFSampler(Models(loaded.model), loaded.end, loaded.pad, 256, loaded.context)
    limit = max_new_tokens or task.max_new_tokens
    return Evaluator(task, loaded, sampler, settings, seed, limit, temperature).evaluate(0, split)


def trained(folder: Path) -> Loaded:
    """The model of a run folder with its final weights, or those of its newest checkpoint."""
    import torch
    from safetensors.torch import load_file

    name = tomllib.loads((folder / "run.toml").read_text())["model"]["name"]
    loaded = load(name)
    final = folder / "final" / "policy.safetensors"
    steps = sorted(folder.glob("checkpoints/step-*/policy.safetensors"), key=lambda p: int(p.parent.name[5:]))
    if not final.exists() and not steps:
        raise DataError(
            f"{folder} holds no weights: neither final/policy.safetensors nor a checkpoint; run it first"
        )
    weights: Mapping[str, torch.Tensor] = load_file(final if final.exists() else steps[-1])
    with torch.no_grad():
        for key, parameter in loaded.model.named_parameters():
            parameter.copy_(weights[key])
    return loaded
