"""`grpobench prune` frees what runs with a result no longer need, and nothing else."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.folders import CONFIG

from grpobench.runs.cli import main
from grpobench.runs.experiment.pruning import prune, prune_run, size_of
from grpobench.runs.runfolder import checkpoints, extend
from grpobench.runs.runfolder.folder import FolderError, RunFolder
from grpobench.runs.runfolder.logs import State, result_damage, settled
from grpobench.runs.settings.config import CheckpointConfig

KEEPS = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(final=True))


def made(path: Path, state: State, final: bool = True) -> Path:
    """A run of two checkpoints that ended in a state."""
    with RunFolder.open(path, KEEPS) as folder:
        folder.rewind(0)
        for step in (39, 40):
            folder.log({"step": step})
            folder.save(step, {"policy": {"weight": torch.full((300,), float(step))}}, {"step": step})
        if final:
            folder.keep_final("policy", {"weight": torch.ones(300)})
        folder.finish(state)
    return path


def test_pruning_a_finished_run_leaves_weights_and_logs_and_more_steps_are_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "run", "finished")
    content_by_file = {
        file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "step-40" not in file.parts
    }
    expected = size_of(path / "final" / "step-40")
    assert prune_run(path, dry=True).freed == expected > 1200 and (path / "final" / "step-40").is_dir()
    pruned = prune_run(path)
    assert (pruned.freed, pruned.why) == (expected, "")
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == content_by_file
    assert settled(path) and not result_damage(path) and prune_run(path).freed == 0
    more = dataclasses.replace(KEEPS, train=dataclasses.replace(KEEPS.train, steps=99))
    with pytest.raises(FolderError, match=r"its optimizer state was not kept .* or was pruned"):
        RunFolder.open(path, more)


@pytest.mark.parametrize("state", ["running", "preempted", "crashed"])
def test_a_run_without_a_result_keeps_its_checkpoints(state: State, tmp_path: Path) -> None:
    path = made(tmp_path / "run", state, final=False)
    pruned = prune_run(path)
    assert pruned.freed == 0 and "from which it resumes" in pruned.why
    with RunFolder.open(path, KEEPS) as folder:
        latest = folder.latest()
        assert latest is not None and latest.step == 40
        assert "uses it" in prune_run(path, dry=True).why and "in use" in prune_run(path).why


def test_a_diverged_run_keeps_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    path = made(tmp_path / "run", "diverged", final=False)
    (path / "checkpoints" / "step-40" / "policy.safetensors").write_bytes(b"torn")
    assert prune_run(path).freed and checkpoints.steps(path) == [39]
    assert "its only weights" in prune_run(path).why


def test_a_result_whose_final_weights_are_gone_keeps_everything(tmp_path: Path) -> None:
    path = made(tmp_path / "run", "finished")
    (path / "final" / "policy.safetensors").unlink()
    pruned = prune_run(path)
    assert pruned.freed == 0 and "policy.safetensors: is missing" in pruned.why
    assert (path / "final" / "step-40").is_dir()


def test_a_kill_during_the_removal_leaves_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next call removes the rest, also of a removal at the run's own end."""
    path = made(tmp_path / "x" / "run", "finished")
    shutil.copytree(path / "final" / "step-40", path / "checkpoints" / "step-40")
    shutil.copytree(path / "final" / "step-40", path / "checkpoints" / "step-39")

    def killed(name: str) -> Any:
        raise KeyboardInterrupt(name)

    with monkeypatch.context() as patch:
        patch.setattr(extend, "point", killed)
        with pytest.raises(KeyboardInterrupt):
            prune_run(path)
    assert settled(path) and not result_damage(path) and checkpoints.steps(path)
    (path.parent / "experiment.json").write_text('{"runs": ["run"]}')
    assert main(["prune", str(tmp_path)]) == 0
    assert "freed" in capsys.readouterr().out and not [*path.rglob("step-*")]
    assert [pruned_run.freed for pruned_run in prune(path.parent)] == [0]
