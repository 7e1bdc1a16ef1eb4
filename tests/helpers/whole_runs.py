"""Whole runs of a tiny policy: their configuration, their logs, their weights."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.runfolder import checkpoints
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.runs.train.execute import execute
from grpobench.runs.train.progress import Preempted
from grpobench.tasks.arithmetic import Arithmetic
from helpers.toys import Letters, brief

QUIET = EvaluateConfig(every=0, problems=0, samples=0, test_problems=0)
"""Nothing is evaluated."""
TIMED = ("time/", "cost/peak_memory_gb")
"""What two runs of the same configuration may differ in."""


def configure(policy: str, algorithm: Algorithm[Any] | None = None, **sections: Any) -> RunConfig:
    """Three steps of 4 problems × 4 completions in 2 minibatches; `sections` override whole sections."""
    settings: dict[str, Any] = {
        "experiment": "m",
        "arm": "a",
        "seed": 3,
        "task": Letters(),
        "model": ModelConfig(name=policy),
        "sampler": SamplerConfig(),
        "reward": RewardConfig(),
        "train": TrainConfig(
            steps=3, prompts_per_step=4, group_size=4, num_minibatches=2, learning_rate={"policy": 1e-3}
        ),
        "evaluate": EvaluateConfig(every=2, problems=3, samples=2, test_problems=2),
        "checkpoint": CheckpointConfig(every=1),
    }
    config = RunConfig(algorithm=brief(algorithm or GRPO()), **{**settings, **sections})
    if "teacher" not in config.algorithm.reference_roles:
        return config
    return replace(config, model=replace(config.model, teacher="nano"))


def arithmetic(**sections: Any) -> RunConfig:
    """Two steps of the nano policy on arithmetic, 4 problems × 4 completions in 1 minibatch."""
    defaults: dict[str, Any] = {
        "task": Arithmetic(),
        "train": TrainConfig(steps=2, prompts_per_step=4, group_size=4, learning_rate={"policy": 1e-3}),
        "evaluate": EvaluateConfig(every=0, problems=2, samples=1, test_problems=2),
    }
    return configure("nano", **defaults | sections)


def training(config: RunConfig, **settings: Any) -> RunConfig:
    """The run with other settings of its training."""
    return replace(config, train=replace(config.train, **settings))


def run(config: RunConfig, path: Path, stop: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
    """Execute in a folder; the rows of metrics.jsonl."""
    with RunFolder.open(path, config) as folder:
        execute(config, folder, lambda progress: None, stop)
    return rows(path)


def after(path: Path, step: int) -> Callable[[], bool]:
    """Tells a run in a folder to stop once it has written the row of a step."""
    return lambda: last_step(path) >= step


def run_until_stopped(config: RunConfig, path: Path, step: int) -> None:
    """Execute in a folder until the row of a step is there, and then tell the run to stop."""
    with pytest.raises(Preempted):
        run(config, path, after(path, step))


def killing(path: Path, step: int, checkpoint: bool = False) -> Callable[[], bool]:
    """Kills this process's children once a run in a folder has written the row of a step and, if asked, a
    `checkpoint`, which its ranks write in the background. Asks for no stop."""
    killed: list[BaseProcess] = []

    def stop() -> bool:
        if not killed and last_step(path) >= step:
            deadline = time.monotonic() + 120
            while checkpoint and not checkpoints.steps(path):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            killed.extend(multiprocessing.active_children())
            for child in killed:
                child.kill()
        return False

    return stop


def resumed(config: RunConfig, folder: Path, step: int) -> tuple[list[dict[str, Any]], Any]:
    """(the rows of a run, its algorithm's state in the checkpoint of a step), after a check that a run that
    stops behind that step and goes on leaves the same logs and weights."""
    uninterrupted = run(config, folder / "whole")
    run_until_stopped(config, folder / "parts", step)
    checkpoint = folder / "parts" / "checkpoints" / f"step-{step}" / "state.json"
    state = json.loads(checkpoint.read_text())["algorithm"]
    run(config, folder / "parts")
    assert same(folder / "whole", folder / "parts")
    return uninterrupted, state


class Killed(Exception):
    """In place of a kill."""


def run_until_killed(config: RunConfig, path: Path, step: int) -> None:
    """Execute in a folder until the row of a step is there; its checkpoint is not."""

    def kill() -> bool:
        if last_step(path) == step:
            raise Killed
        return False

    with contextlib.suppress(Killed):
        run(config, path, kill)
        raise AssertionError("it was not killed")


def last_step(path: Path) -> int:
    """Of which a run has written the row; -1 before the first."""
    written_rows = rows(path) if (path / "metrics.jsonl").exists() else []
    return written_rows[-1]["step"] if written_rows else -1


def rows(path: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(text) for text in (path / name).read_text().splitlines()]


def same(first_run: Path, other: Path) -> bool:
    """Whether two runs left the same logs and the same weights, byte for byte."""
    final = [(path / "final" / "policy.safetensors").read_bytes() for path in (first_run, other)]
    logs = [json.dumps([timeless(row) for row in rows(path)]) for path in (first_run, other)]
    return final[0] == final[1] and logs[0] == logs[1]


def timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(TIMED)}


def transcript(path: Path, step: int) -> list[dict[str, Any]]:
    packed = (path / "rollouts" / f"step-{step}.jsonl.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)) as stream:
        return [json.loads(line) for line in stream.read().decode().splitlines()]


def weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def is_unmoved(policy: str, path: Path) -> bool:
    """Whether the final weights of a run are those of the policy in a folder."""
    start, final = weights(Path(policy) / "model.safetensors"), weights(path / "final" / "policy.safetensors")
    return all(torch.equal(final[name], start[name]) for name in start)
