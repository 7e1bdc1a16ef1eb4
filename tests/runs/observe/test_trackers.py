"""Built-in trackers against the real libraries: what they have on disk is what metrics.jsonl holds."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.whole_runs import configure, run, run_until_killed

from grpobench.runs.settings.config import CheckpointConfig, EvaluateConfig, RunConfig, TrainConfig
from grpobench.runs.settings.observe import Observe

Series = Mapping[str, Mapping[int, list[float]]]
"""By metric and step, the values that a tracker has: one each, where nothing was told twice."""


def installed(name: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(absent, reason=f"{name} is not installed; make test-trackers installs it")


def observed(policy: str, *callbacks: Observe) -> RunConfig:
    train = TrainConfig(steps=4, prompts_per_step=2, group_size=2, learning_rate={"policy": 1e-3})
    evaluate = EvaluateConfig(every=2, problems=2, samples=1, test_problems=1)
    checkpoint = CheckpointConfig(every=2)
    return configure(policy, observe=callbacks, train=train, evaluate=evaluate, checkpoint=checkpoint)


def killed_and_resumed(config: RunConfig, path: Path, step: int = 3, resumed_at: int = 2) -> list[Any]:
    """The rows of a run that is killed once a step is told, and then carried to its end."""
    run_until_killed(config, path, step)
    written = run(config, path)
    attempts = json.loads((path / "provenance.json").read_text())["attempts"]
    assert [attempt["resumed_at"] for attempt in attempts] == [0, resumed_at]
    assert not any("callbacks_failed" in attempt for attempt in attempts), attempts[-1]
    return written


def expected(written: list[dict[str, Any]]) -> dict[str, dict[int, list[float]]]:
    series: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for row in written:
        for name, value in row.items():
            if name != "step" and value is not None:
                series[name][row["step"]] = [float(value)]
    return dict(series)


def timeless(series: Series) -> dict[str, Mapping[int, list[float]]]:
    """Without what a step that is made again does not repeat."""
    return {n: steps for n, steps in series.items() if not n.startswith(("time/", "cost/peak_memory"))}


def same(series: Series, written: list[dict[str, Any]], rel: float = 0.0) -> None:
    expected_series, got = timeless(expected(written)), timeless(series)
    assert got.keys() == expected_series.keys()
    for name, steps in expected_series.items():
        assert got[name].keys() == steps.keys(), name
        for step, values in steps.items():
            assert got[name][step] == pytest.approx(values, rel=rel, abs=0), (name, step)
    assert series["time/wall"].keys() == {row["step"] for row in written}
    assert all(len(values) == 1 for values in series["time/wall"].values())


@installed("tensorboard")
def test_tensorboard(policy: str, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = observed(policy, Observe("tensorboard", {}))
    written = killed_and_resumed(config, tmp_path / "m" / "a-letters-s3")
    reader = EventAccumulator(str(tmp_path / "m" / "a-letters-s3" / "tensorboard"), {"scalars": 0})
    reader.Reload()
    series: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for tag in reader.Tags()["scalars"]:
        for event in reader.Scalars(tag):
            series[tag][event.step].append(event.value)
    same(series, written, rel=2**-23)  # TensorBoard keeps scalars in float32
    texts = {tag: reader.Tensors(tag)[-1].tensor_proto.string_val[0] for tag in reader.Tags()["tensors"]}
    assert texts["end/text_summary"] == b"finished"
    assert json.loads(texts["run.toml/text_summary"])["train.steps"] == 4


@installed("tensorboard")
def test_tensorboard_in_a_folder_of_ones_own(policy: str, tmp_path: Path) -> None:
    run(observed(policy, Observe("tensorboard", {"folder": str(tmp_path / "tb")})), tmp_path / "a-letters-s3")
    assert list((tmp_path / "tb" / "m" / "a-letters-s3").glob("events.out.tfevents.*"))
    assert not (tmp_path / "a-letters-s3" / "tensorboard").exists()


def records(path: Path) -> Iterator[Any]:
    """The records of a W&B file: LevelDB's log format behind a header of 7 bytes, each a protobuf message."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = 2**15 - position % 2**15
        if left < 7:  # a record's header is not split over blocks
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield Record.FromString(parts)
            parts = b""


@installed("wandb")
def test_wandb_offline(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")  # what the recipe says comes first
    config = observed(policy, Observe("wandb", {"project": "study", "mode": "offline"}))
    path = tmp_path / "a-letters-s3"
    written = killed_and_resumed(config, path)
    series: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    starts, exits = [], []
    for file in sorted(path.glob("wandb/offline-run-*/*.wandb")):
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                starts.append(record.run)
            elif kind == "exit":
                exits.append(record.exit.exit_code)
            elif kind == "history":
                row = {
                    "/".join([item.key] if item.key else item.nested_key): item.value_json
                    for item in record.history.item
                }
                for name, text in row.items():
                    if not name.startswith("_"):
                        series[name][int(row["_step"])].append(float(text))
    same(series, written)
    first = json.loads((path / "provenance.json").read_text())["attempts"][0]["id"][:16]
    assert {start.run_id for start in starts} == {first}
    assert {(start.project, start.run_group, start.display_name) for start in starts} == {
        ("study", "m", "a-letters-s3")
    }
    settings = {item.key: json.loads(item.value_json) for item in starts[0].config.update}
    assert (settings["arm"], settings["task.name"], settings["seed"]) == ("a", "letters", 3)
    assert exits == [1, 0]  # the killed attempt, and the one that finished


@installed("trackio")
def test_trackio(policy: str, tmp_path: Path) -> None:
    config = observed(policy, Observe("trackio", {"folder": str(tmp_path / "db")}))
    written = killed_and_resumed(config, tmp_path / "a-letters-s3")
    script = (
        "import json\nfrom trackio.sqlite_storage import SQLiteStorage as S\n"
        "(name,) = S.get_runs('m')\n"
        "print('\\n' + json.dumps([name, S.get_logs('m', name), S.get_run_config('m', name)]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"TRACKIO_DIR": str(tmp_path / "db")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    name, logs, settings = json.loads(process.stdout.splitlines()[-1])
    series: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in logs:
        for key, value in row.items():
            if key not in ("step", "timestamp"):
                series[key][row["step"]].append(value)
    same(series, written)
    assert name.startswith("a-letters-s3-") and settings["_Group"] == "a"
    assert (settings["arm"], settings["task.name"], settings["seed"]) == ("a", "letters", 3)


def mlflow_series(uri: str, experiment: str) -> tuple[Any, dict[str, dict[int, list[float]]]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    mlflow_experiment = client.get_experiment_by_name(experiment)
    assert mlflow_experiment is not None
    (mlflow_run,) = client.search_runs([mlflow_experiment.experiment_id])
    series: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name in mlflow_run.data.metrics:
        for metric in client.get_metric_history(mlflow_run.info.run_id, name):
            series[name][metric.step].append(metric.value)
    return mlflow_run, series


@installed("mlflow")
@pytest.mark.parametrize("settings", [{}, {"experiment": "study"}])
def test_mlflow(
    settings: dict[str, str], policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = observed(policy, Observe("mlflow", settings, seconds=120))
    written = killed_and_resumed(config, tmp_path / "m" / "a-letters-s3")
    uri = f"sqlite:///{tmp_path / 'm' / 'mlflow.db'}"
    mlflow_run, series = mlflow_series(uri, settings.get("experiment", "m"))
    same(series, written)
    assert mlflow_run.info.run_name == "a-letters-s3" and mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.params["train.steps"] == "4" and mlflow_run.data.tags["arm"] == "a"


ALL: dict[str, Callable[[Path], Observe]] = {
    "tensorboard": lambda path: Observe("tensorboard", {}),
    "wandb": lambda path: Observe("wandb", {"mode": "offline"}),
    "trackio": lambda path: Observe("trackio", {"folder": str(path / "db")}),
    "mlflow": lambda path: Observe("mlflow", {}, seconds=120),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=installed(name)) for name in ALL])
def test_a_run_that_begins_again_is_another_run(name: str, policy: str, tmp_path: Path) -> None:
    """Preempted before its first checkpoint: step 0 is made again, and told to a run of its own."""
    path = tmp_path / "m" / "a-letters-s3"
    config = observed(policy, ALL[name](tmp_path))
    config = dataclasses.replace(config, checkpoint=CheckpointConfig(every=0))
    killed_and_resumed(config, path, step=1, resumed_at=0)
    if name != "tensorboard":
        return
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(path / "tensorboard"), {"scalars": 0})
    reader.Reload()
    assert [event.step for event in reader.Scalars("time/wall")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", [pytest.param(name, marks=installed(name)) for name in ALL])
def test_a_tracker_that_cannot_write_stops_no_run(
    name: str, policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file stands where its folder should be. W&B then writes to the system's folder for temporary files,
    and trackio only warns; the others raise, and are dropped."""
    path = tmp_path / "m" / "a-letters-s3"
    path.mkdir(parents=True)
    config = observed(policy, ALL[name](tmp_path))
    for obstacle in (path / "tensorboard", path / "wandb", tmp_path / "db", tmp_path / "m" / "mlflow.db"):
        obstacle.write_text("in the way")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        logged_rows = run(config, path)
    assert [row["step"] for row in logged_rows] == [0, 1, 2, 3, 4]
    noted = json.loads((path / "provenance.json").read_text())["attempts"][-1].get("callbacks_failed", [])
    if name == "trackio":
        assert "trackio failed to flush metric logs" in capfd.readouterr().err
    elif name != "wandb":
        assert [failure["name"] for failure in noted] == [name]
