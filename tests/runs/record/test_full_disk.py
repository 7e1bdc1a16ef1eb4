"""A disk that is full, for real: a run ends at once, its checkpoint loads, no row is torn, and with space
again it becomes the run that it would have been.

A quota that is exceeded says EDQUOT in the same places; a kernel with quotas for a file system of one's own
is rare, so that test_kills.py has the system's number from a fail point.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.storage import filled, on_small_disk
from helpers.whole_runs import configure

from grpobench.algorithms.ppo import PPO
from grpobench.runs.matrix.matrix import CODES
from grpobench.runs.settings.config import CheckpointConfig, EvaluateConfig, TrainConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no namespaces")


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(0, id="nothing left", marks=pytest.mark.slow),
        pytest.param(100_000, id="half a checkpoint left"),
    ],
)
def test_a_full_disk_ends_a_run_at_once_and_costs_it_nothing(policy: str, tmp_path: Path, leave: int) -> None:
    config = configure(
        policy,
        PPO(),
        train=TrainConfig(steps=5, prompts=4, group=4, learning_rate={"policy": 1e-3}),
        evaluate=EvaluateConfig(every=1, problems=3, samples=2, test_problems=2),
        checkpoint=CheckpointConfig(every=1),
    )
    found = on_small_disk(tmp_path / "disk", filled, config, leave)
    first = found["first"]
    assert first.fate == "disk full" and "No space left on device" in first.why and not first.machine
    assert CODES["disk full"] == 70 and found["seconds"] < 5
    assert found["rows"] > 20 and not found["torn"]
    assert found["loaded"] == 3, "the checkpoint before the disk was full"
    assert found["last"].fate == "finished" and found["same"] and not found["left"]
