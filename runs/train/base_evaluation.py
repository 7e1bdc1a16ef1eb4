"""The evaluation before training, made once for all runs that start from the same policy."""

# Arms of one seed and task start from the same weights and answer the same problems with the same random
# numbers, so that their evaluations before training have the same rows. Where nothing is sampled, runs of all
# seeds have the same. The first run that makes one saves it in the experiment's folder, under a hash of
# everything that its numbers can depend on. The others load it.

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import zstandard

from grpobench.runs.metrics.evaluator import Evaluator, Row
from grpobench.runs.runfolder import fingerprints, provenance
from grpobench.runs.tools import files, strict
from grpobench.runs.train.devices import together
from grpobench.runs.train.trainer import Trainer
from grpobench.tasks.data import bounded
from grpobench.tasks.task import Split

FOLDER = "shared"
"""The folder of an experiment that holds the evaluations, beside its runs."""


ELSEWHERE = ("train problems", "preference file", "expert file", "reward model")
"""Fingerprints of a run that the evaluation before training does not depend on."""


BESIDE = ("also", "kl_base")
"""Settings of evaluation on which the numbers of a task do not depend."""


Evaluation = tuple[list[Row], dict[str, float]]
"""Rows of eval.jsonl, and numbers by metric."""


class Base:
    """The evaluations before training. `made_from` are hashes of model, warm start and problems."""

    def __init__(self, trainer: Trainer, run: Path, made_from: Mapping[str, str]) -> None:
        self.trainer, self.run = trainer, run
        self.path = run.parent / FOLDER
        self.made_from = made_from
        self.evaluated_by: dict[str, str] = {}
        """By split, the run whose evaluation this one uses."""

    def evaluate(self, evaluator: Evaluator, split: Split) -> Evaluation:
        """The evaluation before training: another run's of the same policy, or a new one."""
        if not self.shares():
            return evaluate(self.trainer, evaluator, 0, split)
        path = self.path / f"base-{split}-{self.key(evaluator, split)}.json.zst"
        if cached := read(path):
            self.evaluated_by[self.name(evaluator, split)] = str(cached["run"])
            return cached["rows"], cached["numbers"]
        rows, numbers = evaluate(self.trainer, evaluator, 0, split)
        write(path, {"run": self.run.name, "rows": rows, "numbers": numbers})
        return rows, numbers

    def shares(self) -> bool:
        """Whether the numbers depend on the policy alone, and the policy has a hash. Those of an engine also
        depend on its cache, and a model whose files are not on this machine has no hash."""
        return self.trainer.sampler.deterministic and "model weights" in self.made_from

    def name(self, evaluator: Evaluator, split: Split) -> str:
        """The split, with the task where it is not the run's own."""
        is_run_evaluator = evaluator is self.trainer.parts.evaluator
        return split if is_run_evaluator else fingerprints.further(evaluator.task, split)

    def key(self, evaluator: Evaluator, split: Split) -> str:
        """A hash of what the numbers depend on: weights, problems, settings, seed, code and machine."""
        config, task = self.trainer.config, evaluator.task
        problems = f"{self.name(evaluator, split)} problems"
        evaluate = strict.plain(config.evaluate)
        fingerprint_by_name = {name: value for name, value in self.made_from.items() if name not in ELSEWHERE}
        inputs = {
            "made from": {
                n: v for n, v in fingerprint_by_name.items() if not n.endswith("problems") or n == problems
            },
            "seed": config.seed if depends_on_seed(evaluator) else None,
            "task": [task.name, split, strict.plain(task)],
            "evaluate": {name: setting for name, setting in evaluate.items() if name not in BESIDE},
            "sampler": [
                config.sampler.max_completion_tokens,
                config.sampler.max_batch_size,
                config.sampler.temperature,
            ],
            "model": [
                config.model.dtype,
                config.model.weights,
                config.model.attention,
                config.model.long_prompts,
                config.train.micro_batch_tokens,
            ],
            "backend": config.train.backend,
            # They decide what is decoded and read together, and so how it is rounded.
            "devices": config.train.devices,
            "code": provenance.code("runs/train/run_loop.py", task),
            "versions": dict(provenance.versions()),
            "machine": [provenance.device(), provenance.vectors(), torch.get_num_threads()],
        }
        return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:24]


def depends_on_seed(evaluator: Evaluator) -> bool:
    """Whether a seed changes the numbers. Greedy answers and likelihoods are the same for every seed, also
    with an adapter, which begins as no change (its B is 0)."""
    sampled = evaluator.settings.samples > 0 and "sampled" in evaluator.task.modes
    # A judge writes its verdicts, with random numbers of its own.
    return sampled or evaluator.judge is not None


def evaluate(trainer: Trainer, evaluator: Evaluator, step: int, split: Split) -> Evaluation:
    """The rows and numbers of an evaluation that all ranks make."""
    # By number, because every rank has evaluators of its own.
    number = trainer.parts.evaluators.index(evaluator)
    evaluation: Evaluation = together(trainer, "evaluate", number, step, split)
    return evaluation


def read(path: Path) -> dict[str, Any]:
    """The content that `write` saved; empty if the file is missing or damaged."""
    try:
        content = bounded.parse_json(
            bounded.read_bytes(path)
        )  # of every problem: more than a document may hold
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write(path: Path, content: dict[str, Any]) -> None:
    """Save an evaluation. The frame has a checksum."""
    # Another run of the experiment may just have made it.
    path.parent.mkdir(exist_ok=True)
    # `read` takes a damaged file for a missing one, and that needs a checksum.
    packer = zstandard.ZstdCompressor(write_checksum=True)
    # Atomic: several runs of an experiment may load and save the same evaluation at once.
    # Not durable: one that is lost is made again.
    files.write_atomic(path, packer.compress(json.dumps(content).encode()), durable=False)
