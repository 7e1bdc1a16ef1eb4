"""Files that others may have written, wherever the suite reads one: too large, nested too deep, or
not a file. The error names the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from grpobench.analysis import kept, readable
from grpobench.analysis.calibration import table
from grpobench.analysis.findings import record
from grpobench.analysis.profile import kept as profile_kept
from grpobench.analysis.runfolder import files as log_files
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.theory import comparison
from grpobench.runs.handover.importing.readers import columns, console, json_logs, trl
from grpobench.runs.models import sizes
from grpobench.runs.runfolder.logs import LogFile as RunLog
from grpobench.runs.settings.findings import read_finding
from grpobench.runs.settings.probes import read_probe
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.lock import Lock
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train.prepare.demonstrations import read_answers
from grpobench.tasks.data import bounded
from grpobench.tasks.data.bounded import FileError
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.prompts.templates import template

ERRORS = (ConfigError, DataError, FileError, LogError)
LIMIT = 1 << 20
READERS: dict[str, Callable[[Path], object]] = {
    "calibration.json": table.read,
    "kept.json": kept.read,
    "readable.json": readable.read,
    "theory.json": comparison.read,
    "finding.json": record.read_kept,
    "registration.json": lambda path: record.read_registration(path.parent),
    "grpo.csv": profile_kept.read,
    "run.toml": log_files.read_toml,
    "recipe.toml": lambda path: read_recipe(str(path)),
    "finding.toml": lambda path: read_finding(str(path)),
    "probe.toml": read_probe,
    "template.txt": lambda path: template(str(path)),
    "answers.jsonl": read_answers,
    "lock": lambda path: Lock(path.parent).owner(),
    "metrics.jsonl": lambda path: RunLog(path).open(),
    "log.csv": columns.read_csv,
    "log.jsonl": columns.read_jsonl,
    "console.log": lambda path: console.read(path, "verl"),
    "logger.jsonl": lambda path: json_logs.read(path, "verl"),
    "trainer_state.json": trl.read,
    "config.json": lambda path: sizes.count_weights(str(path.parent)),
}


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bounded.VARIABLE, str(LIMIT))


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_too_large_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"step": 1, "input": "' + b"x" * LIMIT + b'"}\n')
    with pytest.raises(ERRORS, match=r"which is the limit.*raise the limit: GRPOBENCH_MAX_BYTES=") as error:
        READERS[name](path)
    assert name in str(error.value)


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ERRORS, match="not a regular file"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", [name for name in READERS if name.endswith((".json", ".jsonl"))])
def test_deep_json_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"[" * 30_000)
    if name in ("metrics.jsonl", "logger.jsonl"):
        pytest.skip("its lines are not parsed here, or left out one by one")
    with pytest.raises(
        ERRORS, match=r"brackets inside each other|nested too deep|no log_history|no row"
    ) as error:
        READERS[name](path)
    assert name in str(error.value)


def test_deep_toml_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text in ("a = " + "[" * 5000, f"[{'.'.join('a' * 5000)}]"):
        path.write_text(text)
        with pytest.raises(FileError, match=r"run\.toml.*not TOML"):
            bounded.read_toml(path)


def test_completions_that_unpack_to_too_much_are_left_out_and_said(tmp_path: Path) -> None:
    """Equal values take hardly a byte each in a parquet file, whatever its footer says."""
    state = tmp_path / "trainer_state.json"
    state.write_text('{"log_history": [{"step": 1, "loss": 0.5}]}')
    table = tmp_path / "completions" / "completions_00001.parquet"
    table.parent.mkdir()
    row = {"step": 1, "prompt": "2 + 3", "completion": "x" * 1000, "accuracy": 1.0}
    pd.DataFrame([row] * 10).to_parquet(table)
    assert len(trl.read(state).rollouts[1][0]["completions"]) == 10
    pd.DataFrame([row] * 1000).to_parquet(table)
    assert table.stat().st_size < 10_000
    log = trl.read(state)
    assert log.rows == {1: {"loss": 0.5}} and not log.rollouts
    assert f"{table}: holds more than 128 KiB after decompression" in log.faults[0].message


def test_a_cut_state_is_read_in_one_pass(tmp_path: Path) -> None:
    """Whitespace between the entries was copied with all the text behind it, twice an entry."""
    state = tmp_path / "trainer_state.json"
    entries = ",  ".join(f'{{"step": {step}, "loss": 0.5}}' for step in range(1, 3001))
    state.write_text(f'{{"log_history": [{entries}')
    assert list(trl.read(state).rows) == list(range(1, 3001))
