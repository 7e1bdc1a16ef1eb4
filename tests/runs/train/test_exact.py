"""Every algorithm, on one, two and four threads: killed twice beside busy programs, a run is byte for byte
the one that nobody touched on an idle machine. `make test-long` runs this."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from helpers import torture
from rich.console import Console

from grpobench.algorithms import ALGORITHMS
from grpobench.runs.experiment import launcher
from grpobench.runs.experiment.experiment import run_experiment
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools import faults

KILLS = ("update.1.kill", "log.3.kill~3")
"""Before anything is saved, and in the second process at or behind the row of a step that is redone."""


def carry(folder: Path, name: str, planned: tuple[str, ...]) -> dict[str, bytes]:
    """What a run comes to, started again by its launcher until it is finished."""
    torture.prepare(folder, name)
    for fault in planned:
        (folder / "faults" / fault).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.VARIABLE, str(folder / "faults"))
        recipe = read_recipe(str(folder / "torture.toml"), ["train.steps=4"])
        assert run_experiment(recipe, folder, 1, console=Console(file=io.StringIO())).code == 0
    struck = folder / "faults" / faults.STRUCK
    assert sorted(struck.read_text().split() if struck.exists() else []) == sorted(planned)
    return torture.outcome(folder)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_beside_busy_programs_is_the_undisturbed_one(
    name: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    monkeypatch.setattr(launcher, "PAUSES", (0.0,))
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    undisturbed = carry(tmp_path / "whole", name, ())
    assert torture.learned(undisturbed)
    with torture.company(True):
        assert carry(tmp_path / "killed", name, KILLS) == undisturbed
