"""A finished run goes on when more steps are asked for; what a newer version adds is no change; no result is
thrown away, and a first attempt that failed stands in nobody's way.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.folders import CONFIG
from helpers.whole_runs import configure, rows, run, timeless, training

from grpobench.algorithms.ppo import PPO
from grpobench.analysis.runfolder.load import load
from grpobench.runs.runfolder.folder import FolderError, RunFolder, changed, grows
from grpobench.runs.runfolder.logs import result_damage, settled, status
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import CheckpointConfig, EvaluateConfig, RunConfig, TrainConfig


def final(path: Path) -> bytes:
    return (path / "final" / "policy.safetensors").read_bytes()


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Without the evaluations, of which the last step of every run has more."""
    return {
        name: value
        for name, value in timeless(row).items()
        if not name.startswith("eval/") and name != "policy/kl_base"
    }


CONTINUES = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(final=True))


def done(path: Path, config: RunConfig = CONTINUES) -> Path:
    with RunFolder.open(path, config) as folder:
        folder.rewind(0)
        folder.log({"step": 40})
        folder.save(40, {"policy": {"weight": torch.ones(3)}}, {"step": 40})
        folder.keep_final("policy", {"weight": torch.ones(3)})
        folder.finish("finished")
    return path


def test_extended_finished_run_equals_run_of_as_many_steps(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the optimizers' moments, of the policy and of the critic: without them the weights would
    differ."""
    monkeypatch.setattr("grpobench.runs.train.base_evaluation.Base.shares", lambda self: False)
    quiet = EvaluateConfig(every=0, problems=0, test_problems=2)
    short = training(
        configure(policy, PPO(), evaluate=quiet, checkpoint=CheckpointConfig(every=0, final=True)), steps=2
    )
    run(short, tmp_path / "grown")
    before = final(tmp_path / "grown")
    longer = training(short, steps=4)
    assert status(tmp_path / "grown")["state"] == "finished" and grows(tmp_path / "grown", longer)
    grown, direct = run(longer, tmp_path / "grown"), run(longer, tmp_path / "whole")
    assert [*map(plain, grown)] == [*map(plain, direct)] and len(grown) == 5
    assert final(tmp_path / "grown") == final(tmp_path / "whole") != before
    attempts = json.loads((tmp_path / "grown" / "provenance.json").read_text())["attempts"]
    assert attempts[1]["grown"] == "train.steps: 2 -> 4" and attempts[1]["resumed_at"] == 2
    assert "changes" not in attempts[1] and not (tmp_path / "earlier").exists()


def test_steps_on_which_the_rate_depends_are_a_change(tmp_path: Path) -> None:
    """It goes on from its state all the same where that is allowed, and it is noted."""
    decaying = training(CONTINUES, steps=40, schedule="linear")
    path = done(tmp_path / "run", decaying)
    with pytest.raises(FolderError, match=r"train\.steps: 40 -> 50"):
        RunFolder.open(path, training(decaying, steps=50))
    assert settled(path)
    with RunFolder.open(path, training(decaying, steps=50), allow_change=True) as folder:
        checkpoint = folder.latest()
        assert checkpoint is not None and checkpoint.step == 40
        assert folder.provenance["attempts"][-1]["changes"] == ["train.steps: 40 -> 50"]


@pytest.mark.parametrize("moment", ["reopened", "status"])
def test_a_kill_while_a_run_begins_to_grow_costs_nothing(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, more = done(tmp_path / "run"), training(CONFIG, steps=50)
    with monkeypatch.context() as patch:
        target = "write_status" if moment == "reopened" else "write_provenance"

        def killed(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(RunFolder, target, killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder.open(path, more)
    with RunFolder.open(path, more) as folder:
        checkpoint = folder.latest()
        assert (
            checkpoint is not None and checkpoint.step == 40 and [row["step"] for row in rows(path)] == [40]
        )


def test_run_without_state_is_remade_only_when_asked_and_keeps_result(tmp_path: Path) -> None:
    lean = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(final=False))
    path = done(tmp_path / "m" / CONFIG.folder, lean)
    assert not list(path.glob("final/step-*"))
    with pytest.raises(
        FolderError, match=r"train\.steps: 40 -> 50(.|\n)*--allow-change.*moves the result to .*earlier"
    ):
        RunFolder.open(path, training(lean, steps=50))
    before = {
        name: (path / name).read_bytes() for name in ("metrics.jsonl", "final/policy.safetensors", "run.toml")
    }
    with RunFolder.open(path, training(lean, steps=50), allow_change=True) as folder:
        assert folder.latest() is None
        folder.rewind(0)
        folder.log({"step": 1})
        folder.keep_final("policy", {"weight": torch.zeros(3)})
        assert folder.provenance["attempts"][-1]["replaces"] == f"earlier/{CONFIG.folder}.1"
    earlier_folder = tmp_path / "m" / "earlier" / f"{CONFIG.folder}.1"
    assert {name: (earlier_folder / name).read_bytes() for name in before} == before
    assert status(earlier_folder)["state"] == "finished" and not (earlier_folder / "lock").exists()
    assert [loaded_run.name for loaded_run in load(tmp_path / "m").runs] == [CONFIG.folder]


def test_a_run_that_keeps_no_weights_keeps_every_log(policy: str, tmp_path: Path) -> None:
    """Its result is whole without them; what asks for them later is told why they are not there."""
    from grpobench.runs.evaluation.export import export
    from grpobench.tasks.data.tables import DataError

    quiet = EvaluateConfig(every=0, problems=0, test_problems=2)
    with_weights = training(configure(policy, evaluate=quiet, checkpoint=CheckpointConfig(every=1)), steps=2)
    lean = dataclasses.replace(with_weights, checkpoint=CheckpointConfig(every=1, weights=False))
    assert [*map(plain, run(lean, tmp_path / "lean"))] == [*map(plain, run(with_weights, tmp_path / "whole"))]
    assert [path.name for path in (tmp_path / "whole" / "final").iterdir()] == ["policy.safetensors"]
    assert not list((tmp_path / "lean").rglob("*.safetensors"))
    assert settled(tmp_path / "lean") and not result_damage(tmp_path / "lean")
    with pytest.raises(DataError, match=r"kept no weights \(checkpoint\.weights = false\)"):
        export(tmp_path / "lean", tmp_path / "exported")
    with pytest.raises(FolderError, match=r"train\.steps: 2 -> 3"):
        RunFolder.open(tmp_path / "lean", training(lean, steps=3))


def test_a_diverged_run_that_keeps_no_weights_drops_its_checkpoints(tmp_path: Path) -> None:
    lean = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(weights=False))
    for config, keeps_weights in ((lean, False), (CONFIG, True)):
        path = tmp_path / str(keeps_weights)
        with RunFolder.open(path, config) as folder:
            folder.rewind(0)
            folder.log({"step": 40})
            folder.save(40, {"policy": {"weight": torch.ones(3)}}, {"step": 40})
            folder.finish("diverged", "the loss is infinite")
        assert bool(list(path.rglob("*.safetensors"))) == keeps_weights


def test_settings_added_by_newer_version_are_no_change_at_default(tmp_path: Path) -> None:
    path = done(tmp_path / "run")
    text = (path / "run.toml").read_text()
    older = "".join(
        line + "\n"
        for line in text.splitlines()
        if not line.startswith(("weight_decay", "temperature", "final"))
    )
    older = older.replace(', mode = "soft"', "")
    assert len(older) < len(text)
    (path / "run.toml").write_text(older)
    (path / "sums.json").unlink()
    assert changed(path, CONFIG) == []
    other = dataclasses.replace(CONFIG, train=TrainConfig(weight_decay=0.5))
    assert changed(path, other) == ["train.weight_decay: (absent) -> 0.5"]


def test_what_is_kept_of_a_run_may_be_changed_at_any_time(tmp_path: Path) -> None:
    path = done(tmp_path / "run")
    other = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(every=1, keep=9, final=False))
    assert changed(path, other) == [] and stored.dump(other) != stored.dump(CONFIG)


def test_a_first_attempt_that_crashed_before_its_checkpoint_blocks_nothing(tmp_path: Path) -> None:
    """It would begin anew in any case: other settings, other threads, fewer steps."""
    path = tmp_path / "run"
    with RunFolder.open(path, CONFIG, threads=4) as folder:
        folder.log({"step": 3})
        folder.finish("crashed", "out of memory")
    other = training(dataclasses.replace(CONFIG, seed=7), steps=30)
    with RunFolder.open(path, other, threads=2) as folder:
        assert folder.threads == 2 and folder.latest() is None
        folder.rewind(0)
        assert "changes" not in folder.provenance["attempts"][-1]
    assert [row["step"] for row in rows(path, "metrics.orphan-1.jsonl")] == [3]
