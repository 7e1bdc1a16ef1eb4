"""TensorBoard: the event files of a folder, read together as TensorBoard does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpobench.runs.handover.importing.log import Log, as_step, parsed
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

FILES = "*tfevents*"
AROUND = 16
"""Bytes of a record beside its data: length, checksum of the length, checksum of the data."""


def read(path: Path) -> Log:
    """The run of an event file, or of all in a folder. Raises ConfigError if the package is missing,
    DataError if there is no scalar."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        remedy = 'pip install ".[tensorboard]" in a checkout'
        raise ConfigError([f"event files need the package tensorboard: {remedy}"]) from None
    files = [path] if path.is_file() else sorted(path.glob(FILES))
    log = Log(path, "tensorboard", files=files)
    for file in files:
        if (cut := whole_bytes(file)) is not None:
            log.fault(file, None, f"byte {cut}: the file is cut here")
    # 0 keeps all entries; other kinds are not read.
    reader = EventAccumulator(str(path), {"scalars": 0, "tensors": 0, "images": 1, "histograms": 1})
    try:
        reader.Reload()
    except Exception as error:
        if type(error).__name__ not in ("DataLossError", "DecodeError"):
            raise
        log.fault(path, None, f"damaged ({error}); only what comes before is read")
    for tag, step, value in scalars(reader):
        log.put(step, {tag: value})
    log.rows = dict(sorted(log.rows.items()))
    if not log.rows:
        raise DataError(f"{path}: has no scalar")
    log.settings = arguments(reader)
    log.seed, log.planned = as_step(log.settings.get("seed")), as_step(log.settings.get("max_steps")) or None
    return log


def scalars(reader: Any) -> Iterator[tuple[str, int, float]]:
    """(tag, step, value) of all scalars, including those of TensorFlow 2, which are tensors of one number."""
    tags = reader.Tags()
    for tag in tags["scalars"]:
        for event in reader.Scalars(tag):
            yield tag, int(event.step), float(event.value)
    for tag in tags["tensors"]:
        if reader.SummaryMetadata(tag).plugin_data.plugin_name != "scalars":
            continue
        from tensorboard.util.tensor_util import make_ndarray

        for event in reader.Tensors(tag):
            yield tag, int(event.step), float(make_ndarray(event.tensor_proto))


def arguments(reader: Any) -> dict[str, Any]:
    """The trainer's arguments, which transformers writes as a text called `args`."""
    tag = "args/text_summary"
    if tag not in reader.Tags()["tensors"]:
        return {}
    text = reader.Tensors(tag)[-1].tensor_proto.string_val[0]
    try:
        parsed_arguments = parsed(text)
    except ValueError:
        return {}
    return parsed_arguments if isinstance(parsed_arguments, dict) else {}


def whole_bytes(file: Path) -> int | None:
    """Where a file is cut inside a record; None for a whole one."""
    position = 0
    with bounded.open_file(file) as content:
        size = content.seek(0, 2)
        bounded.demand_size(file, size, bounded.max_bytes())
        while position < size:
            content.seek(position)
            head = content.read(8)
            if len(head) < 8:
                return position
            after = position + AROUND + int(struct.unpack("<Q", head)[0])
            if after > size:
                return position
            position = after
    return None
