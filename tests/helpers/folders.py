"""The configuration of runs that only their folder matters of."""

from __future__ import annotations

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
