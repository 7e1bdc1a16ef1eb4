"""TensorBoard: an event file in the run folder, or in a folder per run elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.observe.callback import Callback
from grpobench.runs.observe.trackers.naming import numbers, parameters


@dataclass
class TensorBoard(Callback):
    """``tensorboard --logdir results/EXPERIMENT`` shows every run of an experiment."""

    folder: str = ""
    """Where the event files go, as FOLDER/EXPERIMENT/RUN; empty: `tensorboard` in the run folder."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        own = Path(self.folder).expanduser() / config["experiment"] / folder.name
        place = own if self.folder else folder / "tensorboard"
        if done == 0:  # files of an attempt from which the run kept nothing
            for path in place.glob("events.out.tfevents.*"):
                path.unlink()
        self._writer = EventFileWriter(str(place))
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
