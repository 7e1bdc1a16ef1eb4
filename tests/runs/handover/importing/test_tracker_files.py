"""Files that W&B and TensorBoard have written: every number comes back, and damage is named.

`make test-trackers` runs these; they are skipped where the package is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.foreign_logs import trl_row

from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli
from grpobench.runs.handover.importing.readers import tensorboard, wandb
from grpobench.tasks.data.tables import DataError

STEPS = range(1, 41)


def installed(name: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(absent, reason=f"{name} is not installed; make test-trackers installs it")


def tracked(step: int) -> dict[str, float]:
    """What transformers' callbacks tell a tracker of an update of TRL's."""
    row = trl_row(step, step / 64)  # exact in float32, which TensorBoard keeps
    del row["step"]
    return {f"train/{name}": value for name, value in row.items()}


def wandb_file(folder: Path, name: str, ended: int | None = 0, seed: int = 7, **settings: Any) -> Path:
    """The file of an offline run."""
    import wandb as package

    run = package.init(
        project="study",
        group=settings.pop("group", None),
        name=name,
        dir=str(folder),
        mode="offline",
        config={"seed": seed, "trainer": {"beta": 0.04}, "output_dir": name, **settings},
        settings=package.Settings(console="off", x_disable_stats=True, silent=True),
    )
    for step in STEPS:
        run.log(tracked(step) | {"train/global_step": step, "note": "text"})
        if step % 20 == 0:
            run.log({"eval/reward": step / 64, "train/global_step": step})
    run.finish(exit_code=ended)
    package.teardown()  # the file is whole once the process that writes it has ended
    (path,) = folder.glob(f"wandb/offline-run-*-{run.id}/*.wandb")
    return path


@installed("wandb")
def test_a_file_of_wandb_gives_back_every_number_settings_and_end(tmp_path: Path) -> None:
    log = wandb.read(wandb_file(tmp_path, "grpo-a"))
    assert list(log.rows) == list(STEPS)
    assert log.rows[20] == tracked(20) | {"eval/reward": 20 / 64}
    assert (log.name, log.seed, log.state, log.faults) == ("grpo-a", 7, "finished", [])
    assert log.settings["trainer"] == {"beta": 0.04}
    assert log.writer.startswith("wandb 0.")
    crashed = wandb.read(wandb_file(tmp_path, "grpo-b", ended=3))
    assert (crashed.state, crashed.why) == ("crashed", "W&B noted exit code 3")


@installed("wandb")
def test_a_folder_of_wandb_is_an_experiment_by_group_and_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for group in ("grpo", "dapo"):
        for seed in (1, 2):
            wandb_file(tmp_path, f"{group}-run{seed}", seed=seed, group=group)
    assert cli.main(["import", str(tmp_path), str(tmp_path / "out"), "--task", "sums"]) == 0
    assert "names of TRL" in capsys.readouterr().out
    experiment = load(tmp_path / "out")
    assert {(run.arm, run.seed) for run in experiment.runs} == {
        (a, s) for a in ("grpo", "dapo") for s in (1, 2)
    }
    assert experiment.configs["grpo-sums-s1"]["theirs"] == {"trainer.beta": 0.04}
    kl = experiment.select("policy/kl_reference_k3")
    assert len(kl) == 4 * len(STEPS) and set(kl["value"]) == {0.001}
    assert cli.main(["report", str(tmp_path / "out"), "--format", "html,json"]) == 0


@installed("wandb")
def test_the_files_of_a_run_that_was_resumed_are_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb as package

    settings = package.Settings(console="off", x_disable_stats=True, silent=True)
    for first, last, ended in ((1, 6, 1), (4, 9, 0)):  # killed behind 6, resumed from a checkpoint of step 3
        run = package.init(
            project="study", id="abc", resume="allow", dir=str(tmp_path), mode="offline", settings=settings
        )
        for step in range(first, last + 1):
            run.log(tracked(step) | {"train/global_step": step, "train/part": first})
        run.finish(exit_code=ended)
        package.teardown()
        time.sleep(1.1)  # W&B names folders by the second
    assert cli.main(["import", str(tmp_path / "wandb"), str(tmp_path / "out"), "--task", "sums"]) == 0
    output = capsys.readouterr().out
    assert "2 files are parts of one resumed run" in output and "goes back from 6 to 4" in output
    (run,) = load(tmp_path / "out").runs
    assert (run.state, run.step, run.rows) == ("finished", 9, 9)
    parts = load(tmp_path / "out").select("other/part")
    assert list(parts["value"]) == [1] * 3 + [4] * 6
    assert len(run.provenance["imported"]["files"]) == 2


@installed("wandb")
def test_a_file_of_wandb_that_is_cut_or_damaged_keeps_the_rest(tmp_path: Path) -> None:
    path = wandb_file(tmp_path, "grpo-a")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    log = wandb.read(path)
    assert 0 < len(log.rows) < len(STEPS)
    assert log.rows[1] == tracked(1)
    assert [fault.message.partition(": ")[2] for fault in log.faults] == ["the file is cut here"]
    assert (log.state, log.why) == (
        "preempted",
        "the file has no end: the run was killed, or is still running",
    )
    position = content.index(b"train/reward", len(content) // 3)
    path.write_bytes(content[:position] + b"XXXXX" + content[position + 5 :])
    damaged = wandb.read(path)
    assert len(damaged.rows) >= len(STEPS) - 1 and damaged.state == "finished"
    assert "checksum is wrong" in damaged.faults[0].message
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="not a file of W&B"):
        wandb.read(path)


def event_file(folder: Path) -> Path:
    """An event file as torch's SummaryWriter writes it, which verl, OpenRLHF and transformers use."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in STEPS:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in tracked(step).items()]
        writer.add_event(Event(wall_time=float(step), step=step, summary=Summary(value=values)))
    writer.close()
    (path,) = folder.glob("events.out.tfevents.*")
    return path


@installed("tensorboard")
def test_event_files_give_back_every_scalar(tmp_path: Path) -> None:
    path = event_file(tmp_path / "grpo-s3")
    log = tensorboard.read(tmp_path / "grpo-s3")
    assert list(log.rows) == list(STEPS) and not log.faults and log.files == [path]
    for step in STEPS:
        assert log.rows[step] == pytest.approx(tracked(step), rel=2**-23)  # kept in float32
    out = tmp_path / "out"
    assert cli.main(["import", str(tmp_path / "grpo-s3"), str(out), "--task", "sums"]) == 0
    experiment = load(out)
    assert [(run.name, run.state) for run in experiment.runs] == [("grpo-sums-s3", "finished")]
    assert list(experiment.select("reward/mean")["value"]) == [step / 64 for step in STEPS]
    assert json.loads((out / "grpo-sums-s3" / "provenance.json").read_text())["imported"]["names"] == "trl"


@installed("tensorboard")
def test_an_event_file_that_is_cut_keeps_what_stands_before(tmp_path: Path) -> None:
    path = event_file(tmp_path / "a")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    log = tensorboard.read(tmp_path / "a")
    assert 0 < len(log.rows) < len(STEPS) and math.isclose(log.rows[1]["train/reward"], 1 / 64)
    assert [fault.path for fault in log.faults] == [path] and "the file is cut here" in log.faults[0].message
    path.write_bytes(b"")
    with pytest.raises(DataError, match="has no scalar"):
        tensorboard.read(tmp_path / "a")


@installed("tensorboard")
def test_tensorflow_2_scalars_and_transformers_arguments_are_read(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    text = TensorProto(
        dtype=DT_STRING, string_val=[json.dumps({"seed": 5, "max_steps": 9, "beta": 0.04}).encode()]
    )
    shown = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    summary_value = Summary.Value(tag="args/text_summary", metadata=shown, tensor=text)
    writer.add_event(Event(wall_time=1.0, step=0, summary=Summary(value=[summary_value])))
    for step in (1, 2):
        writer.add_event(
            Event(wall_time=2.0, step=step, summary=Summary(value=scalar_pb("reward", 0.5).value))
        )
    writer.close()
    log = tensorboard.read(tmp_path)
    assert log.rows == {1: {"reward": 0.5}, 2: {"reward": 0.5}}
    assert (log.seed, log.planned, log.settings["beta"]) == (5, 9, 0.04)
