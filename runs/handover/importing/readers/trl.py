"""TRL: `trainer_state.json`, which every checkpoint has, and the tables of completions next to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.runs.handover.importing.log import Log, as_step, demand, numbers, parsed
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

BETWEEN = re.compile(r"[\s,]*")
BATCH = 64
"""Rows of a parquet file that are read at a time."""
STATE = "trainer_state.json"
COLUMNS = ("step", "prompt", "completion", "advantage")
"""Columns of a table of completions that are not rewards."""


def read(source: Path) -> Log:
    """The run of a `trainer_state.json`, or of a folder with one or with checkpoints: of the last checkpoint.
    Raises DataError if the file has no history."""
    file = latest(source) if source.is_dir() else source
    log = Log(source, "trl", library="trl", files=[file])
    state = load(file, log)
    history = state.get("log_history")
    if not isinstance(history, list):
        raise DataError(f"{file}: has no log_history; give the trainer_state.json of a trainer of TRL's")
    for number, entry in enumerate(history, start=1):
        step = as_step(entry.get("step")) if isinstance(entry, Mapping) else None
        if step is None:
            log.fault(file, None, f"entry {number} of log_history has no whole `step`; it is left out")
            continue
        logged = {name: value for name, value in entry.items() if name != "step"}
        log.add(step, log.numbers(logged, file=file))
    demand(log)
    done, planned = as_step(state.get("global_step")), as_step(state.get("max_steps"))
    if planned:
        log.planned = planned
        if done is not None and done < planned:
            log.state, log.why = "preempted", f"the log ends at step {done} of {planned}"
    for name in ("num_train_epochs", "train_batch_size", "logging_steps", "eval_steps"):
        if state.get(name) is not None:
            log.settings[name] = state[name]
    folder = file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent
    cards = (card_folder / "README.md" for card_folder in (file.parent, folder))
    log.writer = next(filter(None, map(version, cards)), "")
    for table in sorted((folder / "completions").glob("completions_*")):
        completions(table, log)
    return log


def latest(folder: Path) -> Path:
    """The state of a finished run, else that of its last checkpoint."""
    step_by_path = {
        path: path.parent.name.rpartition("-")[2] for path in folder.glob(f"checkpoint-*/{STATE}")
    }
    checkpoints = sorted(
        (path for path in step_by_path if step_by_path[path].isdigit()),
        key=lambda path: int(step_by_path[path]),
    )
    return folder / STATE if (folder / STATE).exists() or not checkpoints else checkpoints[-1]


def load(file: Path, log: Log) -> dict[str, Any]:
    """The object in the file; for a cut file, what comes before the cut."""
    text = bounded.read_text(file, bounded.max_array(), "replace")
    try:
        state = parsed(text)
    except ValueError as error:
        line = getattr(error, "lineno", None)
        log.fault(file, line, f"not JSON ({error}); only the entries of log_history before it are read")
        start = re.search(r'"log_history"\s*:\s*\[', text)
        return {"log_history": list(entries(text, start.end())) if start else None}
    return state if isinstance(state, dict) else {}


def entries(text: str, position: int) -> Iterator[Any]:
    """The whole values of a JSON list, from `position` on."""
    decoder = json.JSONDecoder()
    while True:
        position = BETWEEN.match(text, position).end()  # type: ignore[union-attr]  # it matches the empty text too
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield value


def version(card: Path) -> str:
    """`trl` and the version in a model card."""
    if not card.is_file():
        return ""
    match = re.search(r"^- TRL: (\S+)", bounded.read_text(card, errors="replace"), re.MULTILINE)
    return f"trl {match[1]}" if match else ""


def completions(table: Path, log: Log) -> None:
    """A table of completions as rows of rollouts files, a row per group."""
    try:
        rows = parquet(table) if table.suffix == ".parquet" else lines(table)
        groups = grouped(rows)
    except (ValueError, OSError, KeyError, TypeError, OverflowError) as error:
        message = f"not a table of completions ({type(error).__name__}: {error}); it is left out"
        log.fault(table, None, message)
        return
    log.files.append(table)
    for step, group in groups:
        log.rollouts.setdefault(step, []).append(group)


def parquet(table: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file. Raises FileError for one that unpacks to more bytes than a file may
    hold."""
    import pyarrow.parquet

    with bounded.open_file(table) as file, pyarrow.parquet.ParquetFile(file) as source:
        groups = map(source.metadata.row_group, range(source.num_row_groups))
        bounded.demand_size(table, sum(group.total_byte_size for group in groups), bounded.max_array())
        rows: list[dict[str, Any]] = []
        count = 0
        for batch in source.iter_batches(BATCH):  # a page of equal values unpacks to more than it says
            count += batch.nbytes
            bounded.demand_size(table, count, bounded.max_array())
            rows += [dict(row) for row in batch.to_pandas().to_dict("records")]
    return rows


def lines(table: Path) -> list[dict[str, Any]]:
    return [parsed(line) for line in bounded.utf8_lines(table) if line.strip()]


def grouped(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """(step, group) for consecutive completions of the same prompt. A group has a reward only if there is one
    reward function, because TRL does not save the weights of several."""
    groups: list[tuple[int, dict[str, Any]]] = []
    for row in rows:
        step, prompt = int(row["step"]), message_text(row["prompt"])
        if not groups or groups[-1][0] != step or groups[-1][1]["prompt"] != prompt:
            groups.append((step, {"prompt": prompt, "completions": []}))
        rewards = numbers({name: value for name, value in row.items() if name not in COLUMNS})
        groups[-1][1]["completions"].append(
            {
                "text": message_text(row["completion"]),
                "reward": next(iter(rewards.values())) if len(rewards) == 1 else None,
                "components": rewards,
                "advantage": numbers(row).get("advantage"),
            }
        )
    return groups


def message_text(content: Any) -> str:
    """A prompt or completion as text: one message below the other."""
    if isinstance(content, str):
        return content
    return "\n".join(str(message.get("content", "")) for message in content)
