"""The clock of a step's phases."""

from __future__ import annotations

import pytest
import torch

from grpobench.runs.tools import progress
from grpobench.runs.tools.progress import Clock, device_done


def test_a_phase_is_charged_for_the_work_that_it_gave_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a GPU: work is queued at once and done only when it is waited for."""
    now, queued = [0.0], [0.0]

    def wait() -> None:
        now[0] += queued[0]
        queued[0] = 0.0

    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    watch = Clock(wait)
    with watch("read"):
        queued[0] += 3.0
        with watch("backward"):
            queued[0] += 5.0
        queued[0] += 1.0
    with watch("optimize"):
        now[0] += 0.5
    assert watch.seconds == {"read": 4.0, "backward": 5.0, "optimize": 0.5}


def test_a_gpu_is_waited_for_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    with Clock(device_done())("read"):
        pass
    assert len(waited) == 2
