"""The configuration of runs that only their folder matters of."""

from __future__ import annotations

from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from helpers import stand_ins
from helpers.warm import FORKING, begin_server

CONFIG = RunConfig(
    "experiment",
    "plain",
    0,
    stand_ins.Plain(),
    stand_ins.Sums(),
    ModelConfig(),
    SamplerConfig(),
    RewardConfig(),
    TrainConfig(),
    EvaluateConfig(),
    CheckpointConfig(keep=2),
)


def saving(folder: Path) -> BaseProcess:
    """A process that logs and saves step after step into a run folder until it is killed; it has begun."""
    begin_server()
    here, there = FORKING.Pipe()
    child: BaseProcess = FORKING.Process(target=save_on, args=(folder, there))
    child.start()
    there.close()
    assert here.recv() == "ready"
    return child


def save_on(folder: Path, ready: Connection) -> None:
    """From the last checkpoint on, without end."""
    import torch

    from grpobench.runs.runfolder.folder import RunFolder

    with RunFolder.open(folder, CONFIG, allow_change=True) as run:
        checkpoint = run.latest()
        done = checkpoint.step if checkpoint else 0
        run.rewind(done)
        ready.send("ready")
        for step in range(done + 1, 10**6):
            run.log({"step": step})
            run.save(step, {"policy": {"weight": torch.full((50_000,), float(step))}}, {"step": step})
