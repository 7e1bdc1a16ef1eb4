"""Weights & Biases: the file of a run, `run-ID.wandb`, in folders `offline-run-…` and `run-…`."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpobench.runs.handover.importing.log import Log, as_step, parsed
from grpobench.runs.handover.importing.readers.json_logs import apart
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

MAGIC = b":W&B"
HEADER = 7
BLOCK = 2**15
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
STEPS = ("train/global_step", "eval/global_step", "global_step")
"""Metrics that hold the training step, because W&B's own counter counts calls."""
DECLARED_STEPS = ("step", "rollout/step", "train/step", "eval/step")
"""The same, in runs that declare them as the step of others, as prime-rl and slime do."""
TIMED = "profiling/Time taken: "
SEEDS = ("seed", "train.seed", "data.seed", "trainer.seed")


@dataclass
class Content:
    """What the records of a file hold, before it becomes rows by training step."""

    log: Log
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    axes: set[str] = field(default_factory=set)
    """Metrics that serve as the step of others."""
    ended: bool = False

    def add(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            self.rows.append(history(record.history, self.log))
        elif kind == "metric":
            self.axes.add(record.metric.step_metric)
        elif kind == "summary":
            items = record.summary.update
            self.summary |= {name: parsed(item.value_json) for item in items if (name := summed(item))}
        elif kind == "run":
            self.describe(record.run)
        elif kind == "config":
            configure(self.log, record.config)
        elif kind == "header":
            self.log.writer = f"wandb {record.header.version_info.producer.partition('+')[0]}"
        elif kind == "exit":
            self.ended = True
            if record.exit.exit_code:
                self.log.state, self.log.why = "crashed", f"W&B noted exit code {record.exit.exit_code}"

    def describe(self, run: Any) -> None:
        """Add the run's name, identity, start and settings."""
        self.log.name, self.log.group = run.display_name or run.run_id, run.run_group
        self.log.identity = f"{run.entity}/{run.project}/{run.run_id}"
        self.log.started = run.start_time.seconds + run.start_time.nanos / 1e9
        configure(self.log, run.config)


def read(file: Path) -> Log:
    """The run of a `.wandb` file. Raises ConfigError if the package is missing, DataError for a file that is
    not W&B's or has no history."""
    log = Log(file, "wandb", files=[file])
    content = read_records(file, log)
    rows, names = content.rows, {name for _, row in content.rows for name in row}
    steps = (*STEPS, *(name for name in DECLARED_STEPS if name in content.axes))
    lay(log, [(own_step, lasting(row, steps)) for own_step, row in filled(rows, content.axes)], steps)
    if any(name.startswith(TIMED) for name in names):
        log.notes.append(f"`{TIMED}…` is left out: TRL logs it several times a step, and only to W&B")
    sum_up(log, content.summary, names)
    if not log.rows:
        raise DataError(f"{file}: has no history")
    if not content.ended:
        log.state, log.why = "preempted", "the file has no end: the run was killed, or is still running"
    log.seed = next((seed for name in SEEDS if (seed := as_step(setting(log, name))) is not None), None)
    return log


def read_records(file: Path, log: Log) -> Content:
    """Read every record of a file; those that cannot be parsed are noted in the log."""
    record = message()
    content = Content(log)
    for position, data in records(file, log):
        try:
            parsed_record = record.FromString(data)
        except Exception as error:  # DecodeError's class depends on the installed protobuf.
            if type(error).__name__ != "DecodeError":
                raise
            log.fault(file, None, f"byte {position}: not a record ({error}); it is left out")
            continue
        try:
            content.add(parsed_record)
        except (ValueError, TypeError) as error:  # a value that is no JSON, or a step that is no number
            log.fault(file, None, f"byte {position}: a record cannot be read ({error}); it is left out")
    return content


def message() -> Any:
    """The package's class of records. Raises ConfigError if it is not installed."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        remedy = 'pip install ".[wandb]" in a checkout'
        raise ConfigError([f"files of W&B need the package wandb: {remedy}"]) from None
    return Record


def records(file: Path, log: Log) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) of every whole record. Damage is noted, and the rest of its block is lost.

    A file is a log of records in blocks of 32 KiB, in LevelDB's log format: a header of seven bytes, then
    pieces of checksum (4 bytes), length (2) and kind (1: whole, 2: first, 3: middle, 4: last). A record is a
    message of the wandb package's own protocol, so the package is needed to read it."""
    content = bounded.read_bytes(file)
    if content[:4] != MAGIC:
        raise DataError(f"{file}: not a file of W&B")
    position, payload, start = HEADER, b"", HEADER
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        checksum, length, kind = struct.unpack("<IHB", content[position : position + HEADER])
        piece = content[position + HEADER : position + HEADER + length]
        if kind not in (WHOLE, FIRST, MIDDLE, LAST) or len(piece) < length:
            cut = position + left >= len(content)
            damage = "the file is cut here" if cut else "damaged; the rest of its block is left out"
            log.fault(file, None, f"byte {position}: {damage}")
            position, payload = position + left, b""
            continue
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            log.fault(file, None, f"byte {position}: a record's checksum is wrong; it is left out")
            position, payload = position + HEADER + length, b""
            continue
        if kind in (WHOLE, FIRST):
            payload, start = b"", position
        payload += piece
        position += HEADER + length
        if kind in (WHOLE, LAST):
            yield start, payload
    if 0 < len(content) - position < HEADER and content[position:].strip(b"\0"):
        log.fault(file, None, f"byte {position}: the file is cut here")


def history(row: Any, log: Log) -> tuple[int, dict[str, float]]:
    """(W&B's own step, numbers by name) of a row."""
    media = {tuple(item.nested_key[:-1]) for item in row.item if item.nested_key[-1:] == ["_type"]}
    values = {
        item.key or ".".join(item.nested_key): parsed(item.value_json)
        for item in row.item
        if tuple(item.nested_key[:-1]) not in media
    }
    wandb_step = int(values.get("_step", row.step.num))
    numbers = log.numbers({name: value for name, value in values.items() if not is_media(value)})
    return wandb_step, {name: value for name, value in numbers.items() if not name.startswith("_")}


def summed(item: Any) -> str:
    """The name of an item of the summary; empty for a part of one, such as a maximum, and for W&B's own."""
    name = item.key or ("" if len(item.nested_key) > 1 else "".join(item.nested_key))
    return "" if name.startswith("_") else name


def sum_up(log: Log, last: Mapping[str, Any], logged_names: set[str]) -> None:
    """Add, at the last step, numbers of the summary that the history lacks: transformers puts those of the
    whole run, such as `train_runtime`, only there."""
    alone = {name: value for name, value in last.items() if name not in logged_names and not is_media(value)}
    if log.rows:
        log.put(max(log.rows), log.numbers(alone))


def filled(rows: list[tuple[int, dict[str, float]]], axes: set[str]) -> list[tuple[int, dict[str, float]]]:
    """The rows without axes that were never logged, which W&B itself fills with 0."""
    never = {axis for axis in axes - set(STEPS) if not any(row.get(axis) for _, row in rows)}
    return [(step, {name: row[name] for name in row if name not in never}) for step, row in rows]


def lasting(row: Mapping[str, float], steps: Collection[str]) -> dict[str, float]:
    """A row without TRL's timings; empty if only a step remains, which W&B fills in."""
    untimed = {name: value for name, value in row.items() if not name.startswith(TIMED)}
    return untimed if untimed.keys() - set(steps) else {}


def is_media(value: Any) -> bool:
    """Whether a value is a table, an image or similar."""
    return isinstance(value, dict) and "_type" in value


def lay(log: Log, rows: list[tuple[int, dict[str, float]]], steps: Collection[str]) -> None:
    """Rows by training step: by the metric that holds it, one of `steps`, if there is one."""
    counted = any(name in row for _, row in rows for name in steps)
    lost = 0
    for wandb_step, row in rows:
        logged_step = next((row[name] for name in steps if name in row), None)
        step = as_step(logged_step) if counted else wandb_step
        if not row:
            continue
        if step is None:
            lost += bool(row)
            continue
        log.add(step, apart({name: value for name, value in row.items() if name not in steps}))
    if lost:
        log.notes.append(f"{lost} rows without a step of the training are left out")


def configure(log: Log, config: Any) -> None:
    """Add the settings of the run in a record."""
    for item in config.update:
        name = item.key or ".".join(item.nested_key)
        if not name.startswith("_wandb"):
            log.settings[name] = parsed(item.value_json)


def setting(log: Log, name: str) -> Any:
    """A setting by its dotted name, nested or flat."""
    if name in log.settings:
        return log.settings[name]
    setting_value: Any = log.settings
    for part in name.split("."):
        setting_value = setting_value.get(part) if isinstance(setting_value, dict) else None
    return setting_value
