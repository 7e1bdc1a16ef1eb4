"""Small algorithms, tasks and runs for tests of the harness. Worker processes import this module by name."""

from __future__ import annotations

import ctypes
import errno
import functools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from grpobench.algorithms.algorithm import Algorithm, Batch, Loss, Metric, ModelOutput, Models, Role, Signal
from grpobench.runs.runfolder import fingerprints
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.train.progress import Preempted, Progress
from grpobench.tasks.task import Problem, Split, Task, Verdict


@dataclass(frozen=True)
class Plain(Algorithm[Signal]):
    name = "plain"
    paper = "none"
    summary = "does nothing"
    formula = "0"
    departures = "none"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("plain/size", "tokens", "how much"),)

    clip: float = 0.2
    """Clip range."""
    mode: Literal["soft", "hard"] = "soft"
    """How it
    clips."""
    bound: float | None = 1.0
    decay: tuple[float, ...] = (0.5,)
    shares: Mapping[str, float] = field(default_factory=dict)
    on: bool = True
    label: str = ""
    count: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.clip < 1:
            raise ValueError(f"clip: must be in (0, 1), not {self.clip}")

    def compute_signal(self, batch: Batch, models: Models) -> Signal:
        raise NotImplementedError

    def loss(self, batch: Batch, signal: Signal, now: Mapping[Role, ModelOutput]) -> Loss:
        raise NotImplementedError

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Critic(Plain):
    name = "critic"
    value_clip: float = 0.2

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy", "critic")


@dataclass(frozen=True)
class Pairs(Plain):
    name = "pairs"
    off_policy = True
    minimum_group = 4


@dataclass(frozen=True)
class Mixing(Plain):
    name = "mixing"
    off_policy = True

    def mixer(self) -> Any:
        return lambda *_: None


@dataclass(frozen=True)
class Consistent(Plain):
    name = "consistent"

    @property
    def scores(self) -> frozenset[str]:
        return frozenset({"consistent"})


@dataclass(frozen=True)
class Sums(Task):
    name = "sums"
    source = "invented"
    summary = "sums"
    scores = ("correct",)
    max_completion_tokens = 8
    digits: int = 2

    def problems(self, split: Split) -> Sequence[Problem]:
        return []

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return []

    def demonstrate(self, problem: Problem) -> str:
        return ""


@dataclass(frozen=True)
class Listed(Sums):
    """Sums in a file: one question and answer a line, of each split."""

    name = "listed"
    path: str = ""

    def problems(self, split: Split) -> Sequence[Problem]:
        lines = Path(self.path).read_text().splitlines()
        fields_by_line = [line.split() for line in lines]
        return [
            Problem(f"{split}-{n}", prompt, truth)
            for n, (of, prompt, truth) in enumerate(fields_by_line)
            if of == split
        ]


@dataclass(frozen=True)
class Proofs(Sums):
    name = "proofs"
    scores = ("correct", "consistent")


@dataclass(frozen=True)
class Absent(Sums):
    name = "absent"

    def missing(self) -> str:
        return "no data; fetch them"


ALGORITHMS = {cls.name: cls for cls in (Plain, Critic, Pairs, Mixing, Consistent)}
TASKS = {cls.name: cls for cls in (Sums, Listed, Proofs, Absent)}


class Nobody:
    """A launcher that wants nothing."""

    def report(self, progress: Any) -> None: ...

    def stop(self) -> bool:
        return False


def register(patch: Any) -> None:
    """Have them in the place of the suite's algorithms and tasks."""
    patch.setattr("grpobench.algorithms.ALGORITHMS", ALGORITHMS)
    patch.setattr("grpobench.tasks.TASKS", TASKS)


def run_graded(patch: Any) -> None:
    """Have them, and `graded` runs in processes that begin in no time."""
    from grpobench.runs.experiment.experiment import run_experiment
    from helpers.warm import Warm

    register(patch)
    patch.setattr("grpobench.runs.experiment.pool.multiprocessing", Warm)
    quick = functools.partial(run_experiment, execute="helpers.stand_ins.graded")
    for module in ("api.experiments", "experiment.interim"):
        patch.setattr(f"grpobench.runs.{module}.run_experiment", quick)


BROKEN: list[str] = []
"""The run that broke this process's device for good."""


def execute(
    config: RunConfig, folder: RunFolder, report: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """A run that counts steps and checkpoints each of them. What goes wrong is in its algorithm's label;
    a file `mended` beside the run folder puts it right."""
    today = fingerprints.Today()
    folder.fingerprint(today.of(config))
    folder.problems(today.digests(config))
    checkpoint = folder.latest()
    done = checkpoint.step if checkpoint else 0
    folder.rewind(done)
    trouble = "" if (folder.path.parent / "mended").exists() else getattr(config.algorithm, "label", "")
    print(f"running {config.arm}")
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        print("on GPU", os.environ["CUDA_VISIBLE_DEVICES"])
    for step in range(done + 1, config.train.steps + 1):
        if trouble == "kill" and done:  # comes no further than its first checkpoint
            os.kill(os.getpid(), signal.SIGKILL)
        folder.log({"step": step, "reward/mean": step / 3})
        report(Progress(step, config.train.steps, step / 3, 1000.0, "training"))
        folder.save(step, {"policy": {"weight": torch.full((4,), step / 7)}}, {"step": step})
        if trouble == "sticky":
            BROKEN.append(config.arm)
        if trouble == "linger":
            threading.Thread(target=time.sleep, args=(600,)).start()
            raise RuntimeError("a thread of its process never ends")
        if BROKEN:
            raise RuntimeError(f"the device was broken by {BROKEN[0]}")
        if trouble == "storage" and not done:
            raise OSError(errno.EIO, "Input/output error")
        if trouble == "raise":
            raise ArithmeticError("it went wrong")
        if trouble in ("kill", "kill-often"):
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "diverge":
            folder.finish("diverged", "loss is not finite")
            return
        if trouble == "collapse":
            folder.keep_final("policy", {"weight": torch.full((4,), step / 7)})
            folder.finish("collapsed", "reward_collapse from step 1")
            return
        if trouble == "forget":
            return
        if trouble == "full":
            raise OSError(28, "No space left on device")
        if trouble == "slow":
            time.sleep(0.05)
        if trouble == "stuck":
            time.sleep(60)
        if trouble == "hang" and not done:
            ctypes.PyDLL(None).sleep(600)  # in C, with the interpreter's lock
        if trouble == "terminate" and not done:
            os.kill(os.getpid(), signal.SIGTERM)
        if trouble == "halt" and not done:
            os.kill(os.getpid(), signal.SIGSTOP)
        if stop():
            raise Preempted
    folder.keep_final("policy", {"weight": torch.full((4,), config.train.steps / 7)})
    folder.finish("finished")


def graded(
    config: RunConfig, folder: RunFolder, report: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """A run of one step with an accuracy: the arm `fine1` ends 10 points above the others, seed by seed, and
    `fine3` 5 points above or below them in turn. An arm labeled `raise` fails with seed 0."""
    today = fingerprints.Today()
    folder.fingerprint(today.of(config))
    folder.problems(today.digests(config))
    accuracy = 0.5 + 0.01 * config.seed + (0.1 + 0.001 * config.seed) * (config.arm == "fine1")
    accuracy += 0.05 * (-1) ** config.seed * (config.arm == "fine3")
    if getattr(config.algorithm, "label", "") == "raise" and config.seed == 0:
        raise ArithmeticError("it went wrong")
    folder.log({"step": 0, "eval/test/greedy/correct": 0.2})
    folder.log({"step": 1, "reward/mean": 1.0, "eval/test/greedy/correct": accuracy})
    folder.keep_final("policy", {"weight": torch.ones(4)})
    folder.finish("finished")


def answered(
    config: RunConfig, folder: RunFolder, report: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """The same run with an answer behind each accuracy."""
    answer = {"split": "test", "mode": "greedy", "problem": "p", "sample": 0, "scores": {"correct": 1.0}}
    answer |= {"answer": "", "outcome": "graded", "length": 1, "stopped": True, "traits": {}}
    folder.evaluations([{"step": step, **answer} for step in (0, 1)])
    graded(config, folder, report, stop)


def tuned(
    config: RunConfig, folder: RunFolder, report: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """A run of one step that ends the better the nearer its learning rate is to 1e-3, or to the number in its
    algorithm's label, and its critic's to 1e-2. It diverges from 0.1 on."""
    today = fingerprints.Today()
    folder.fingerprint(today.of(config))
    folder.problems(today.digests(config))
    rates = config.train.learning_rate
    best = float(getattr(config.algorithm, "label", "") or 1e-3)
    accuracy = 0.8 - 0.1 * abs(math.log10(rates["policy"] / best)) + 0.01 * (config.seed % 3)
    if "critic" in rates:
        accuracy -= 0.05 * abs(math.log10(rates["critic"] / 1e-2))
    folder.log({"step": 0, "eval/validation/greedy/correct": 0.2})
    row = {"step": 1, "reward/mean": 1.0, "time/step": 2.0, "cost/generated_tokens": 100}
    folder.log(row | {"eval/validation/greedy/correct": accuracy})
    folder.keep_final("policy", {"weight": torch.ones(4)})
    folder.finish("diverged" if rates["policy"] >= 0.1 else "finished", "")
