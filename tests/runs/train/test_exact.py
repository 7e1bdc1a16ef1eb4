"""Every algorithm, on one, two and four threads: killed twice beside busy programs, a run is byte for byte
the one that nobody touched on an idle machine. `make test-long` runs this."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import torture

from grpobench.algorithms import ALGORITHMS
from grpobench.runs.experiment import launcher

SETS = ("train.steps=4",)
KILLS = ("update.1.kill", "log.3.kill~3")
"""Before anything is saved, and in the second process at or behind the row of a step that is redone."""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_beside_busy_programs_is_the_undisturbed_one(
    name: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    monkeypatch.setattr(launcher, "PAUSES", (0.0,))
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    undisturbed = torture.carried(tmp_path / "whole", name, (), SETS)
    assert torture.learned(undisturbed)
    with torture.company(True):
        assert torture.carried(tmp_path / "killed", name, KILLS, SETS) == undisturbed
