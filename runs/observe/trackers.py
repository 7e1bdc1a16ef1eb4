"""Callbacks that send a run to a tracker: MLflow, TensorBoard, trackio, Weights & Biases."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpobench.runs.observe.callback import Callback
from grpobench.runs.tools import files, lock
from grpobench.tasks.data.bounded import object_or_empty

NO_SETTINGS = ("observe", "beside")
"""Keys of run.toml that are not sent to a tracker."""


def identity(folder: Path) -> str:
    """An id that all attempts that continue a run share: the attempt that began it. A run that begins again
    at step 0 is another run."""
    attempts = object_or_empty(folder / "provenance.json").get("attempts") or []
    began = [attempt["id"] for attempt in attempts if attempt.get("resumed_at", 0) == 0]
    if not began:
        raise ValueError(f"{folder / 'provenance.json'} names no attempt that began the run")
    return str(began[-1])[:16]


def parameters(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """run.toml as dotted keys."""
    dotted: dict[str, Any] = {}
    for key, value in config.items():
        if not prefix and key in NO_SETTINGS:
            continue
        if isinstance(value, Mapping) and value:
            dotted |= parameters(value, f"{prefix}{key}.")
        else:
            dotted[f"{prefix}{key}"] = value
    return dotted


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, without its step."""
    return {
        name: float(value)
        for name, value in row.items()
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class LastLogged:
    """The last step of a run that was sent to a tracker, kept beside the run for the next attempt. That
    attempt repeats the steps after its checkpoint with the same numbers, and the tracker would have them
    twice."""

    def __init__(self, folder: Path, tracker: str) -> None:
        self.path = folder / "callbacks" / f"{tracker}.json"
        self.run = identity(folder)
        saved_state = object_or_empty(self.path)
        self.step = int(saved_state["step"]) if saved_state.get("run") == self.run else -1

    def news(self, row: Mapping[str, Any]) -> bool:
        """Whether the tracker lacks the row's step."""
        return int(row["step"]) > self.step

    def keep(self, row: Mapping[str, Any]) -> None:
        self.step = int(row["step"])
        self.path.parent.mkdir(exist_ok=True)
        content = json.dumps({"run": self.run, "step": self.step})
        files.write_atomic(self.path, content.encode(), durable=False)


REFUSED = re.compile(r"[^\w\-. /]")
"""Characters that MLflow does not allow in the name of a metric or parameter."""
TAG = "grpobench.run"
ENDINGS = {"finished": "FINISHED", "preempted": "KILLED"}
"""MLflow's word for how a run ended; any other end is FAILED."""
MOST_AT_ONCE = 100
"""MLflow's limit of parameters per request."""
LONGEST = 500
"""Characters of a parameter that every version of MLflow accepts."""


@dataclass
class MLflow(Callback):
    """One MLflow run per run, in one MLflow experiment per experiment."""

    uri: str = ""
    """The tracking server or database. Empty: MLFLOW_TRACKING_URI, else `mlflow.db` in the experiment
    folder."""
    experiment: str = ""
    """Empty: the experiment's name."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        default_uri = f"sqlite:///{folder.parent / 'mlflow.db'}"
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri
        name = identity(folder)
        # One at a time: several runs may begin at once, and the first creates the tables.
        with lock.guarded(folder.parent / ".mlflow.lock"):
            self._client = MlflowClient(tracking_uri=uri)
            experiment = self._experiment(self.experiment or config["experiment"])
        earlier_runs = self._client.search_runs([experiment], f"tags.`{TAG}` = '{name}'", max_results=1)
        if earlier_runs:
            self._run = earlier_runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {
                TAG: name,
                "arm": config["arm"],
                "task": config["task"]["name"],
                "seed": str(config["seed"]),
            }
            self._run = self._client.create_run(experiment, tags=tags, run_name=folder.name).info.run_id
            self._parameters(parameters(config))
        self._last = self._last_step()

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))

    def _parameters(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(REFUSED.sub("_", key), str(value)[:LONGEST]) for key, value in settings.items()]
        for start in range(0, len(params), MOST_AT_ONCE):
            self._client.log_batch(self._run, params=params[start : start + MOST_AT_ONCE])

    def _last_step(self) -> int:
        """The last step that MLflow has of the run; an attempt that repeats it does not log it again."""
        latest = self._client.get_run(self._run).data.metrics
        if not latest:
            return -1
        return max(int(metric.step) for metric in self._client.get_metric_history(self._run, "time/wall"))

    def step(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        if row["step"] <= self._last:
            return
        now = int(time.time() * 1000)
        metrics = [
            Metric(REFUSED.sub("_", name), value, now, row["step"]) for name, value in numbers(row).items()
        ]
        self._client.log_batch(self._run, metrics=metrics)
        self._last = row["step"]

    def end(self, state: str, why: str) -> None:
        self._client.set_tag(self._run, "state", f"{state} {why}".strip())
        self._client.set_terminated(self._run, ENDINGS.get(state, "FAILED"))


@dataclass
class TensorBoard(Callback):
    """``tensorboard --logdir results/EXPERIMENT`` shows every run of an experiment."""

    folder: str = ""
    """Where the event files go, as FOLDER/EXPERIMENT/RUN; empty: `tensorboard` in the run folder."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        requested_folder = Path(self.folder).expanduser() / config["experiment"] / folder.name
        event_folder = requested_folder if self.folder else folder / "tensorboard"
        if done == 0:  # files of an attempt from which the run kept nothing
            for path in event_folder.glob("events.out.tfevents.*"):
                path.unlink()
        self._writer = EventFileWriter(str(event_folder))
        # Readers of the files drop the steps from here on that an earlier attempt wrote.
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=done + 1, session_log=start))
        if done == 0:
            self._text("run.toml", json.dumps(parameters(config), indent=1))

    def step(self, row: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(row).items()]
        event = Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()

    def end(self, state: str, why: str) -> None:
        self._text("end", f"{state} {why}".strip())
        self._writer.close()

    def _text(self, tag: str, text: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        shown = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=shown, tensor=tensor)
        self._writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))


@dataclass
class Trackio(Callback):
    """One trackio run per run."""

    project: str = ""
    """Empty: the experiment's name."""
    group: str = ""
    """Empty: the arm, or, in a project of another name, the experiment."""
    folder: str = ""
    """Folder of the databases; empty: trackio's own folder, which TRACKIO_DIR names."""
    space: str = ""
    """A Hugging Face Space to log to, OWNER/NAME; empty: only this machine."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        if self.folder:  # trackio reads it once, at its import.
            os.environ["TRACKIO_DIR"] = str(Path(self.folder).expanduser().resolve())
        import trackio

        self._told = LastLogged(folder, "trackio")
        self._run = trackio.init(
            project=self.project or config["experiment"],
            name=f"{folder.name}-{self._told.run}",  # trackio finds a run again by its name.
            group=self.group or config["experiment" if self.project else "arm"],
            space_id=self.space or None,
            config=parameters(config) | {"run": folder.name},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def step(self, row: Mapping[str, Any]) -> None:
        if self._told.news(row):
            self._run.log(numbers(row), step=row["step"])
            self._told.keep(row)

    def end(self, state: str, why: str) -> None:
        self._run.finish()


@dataclass
class WandB(Callback):
    """One W&B run per run; its files are in the run folder. `wandb sync RUN/wandb/offline-run-*` uploads what
    was written offline."""

    project: str = ""
    """Empty: the experiment's name."""
    entity: str = ""
    """Empty: W&B's own default."""
    group: str = ""
    """Empty: the arm, or, in a project of another name, the experiment."""
    mode: Literal["", "online", "offline"] = ""
    """Empty: W&B's own choice, which WANDB_MODE sets."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        import wandb

        self._told = LastLogged(folder, "wandb")
        self._run = wandb.init(
            project=self.project or config["experiment"],
            entity=self.entity or None,
            group=self.group or config["experiment" if self.project else "arm"],
            name=folder.name,
            id=self._told.run,
            resume="allow",
            mode=self.mode or None,
            dir=str(folder),
            config=parameters(config) | {"run": folder.name},
            settings=wandb.Settings(console="off", x_disable_stats=True, silent=True),
        )

    def step(self, row: Mapping[str, Any]) -> None:
        if self._told.news(row):
            self._run.log(numbers(row), step=row["step"])
            self._told.keep(row)

    def end(self, state: str, why: str) -> None:
        self._run.summary.update({"state": state, "why": why})
        self._run.finish(exit_code=0 if state == "finished" else 1)
