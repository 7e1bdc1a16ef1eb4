"""Read the files of a run folder strictly: damage raises an error that names file and line."""

# Only a last line that a kill cut off is tolerated, and counted.

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder import checksums
from grpobench.tasks.data import bounded

PROBLEMS = "problems.json.zst"


class LogError(Exception):
    """A log cannot be read. The message names the file, the line and the remedy."""


def read_lines(path: Path, expected_sum: str = "") -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """(line number, object) of a JSON-lines file, and how many half-written last lines were left out (0, 1).

    Only a last line without a line end may be malformed. A missing file has no lines. Checksums of the lines,
    and the checksum `expected_sum` of the whole file, must be correct if they exist.
    """
    if not path.exists():
        return [], 0
    content = written(path, expected_sum)
    lines = content.split(b"\n")
    read: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            bounded.demand_line(path, number, line, bounded.max_text())
            row = bounded.parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, found {type(row).__name__}")
        except bounded.FileError as error:
            raise LogError(str(error)) from error
        except ValueError as error:  # JSON and UTF-8 decoding errors are both ValueErrors
            if number == len(lines):  # without a line end: the writer was stopped in the middle
                return read, 1
            problem = f"not a JSON object ({error}); mend or delete the line"
            raise LogError(f"{path}, line {number}: {problem}") from error
        read.append((number, row))
    return read, 0


def written(path: Path, expected_sum: str = "") -> bytes:
    """The content of a log, if it is unchanged; raises LogError otherwise. A run that resumes at the same
    time cuts checksums and log one after the other, so both are read again if the checksums changed."""
    side = path.with_name(path.name + checksums.SIDE)

    def marks() -> bytes:
        return read_bytes(side) if side.exists() else b""

    before = marks()  # Before the log, to which a run may be adding.
    while True:
        content = read_bytes(path)
        try:
            demand_written(path, content, before, expected_sum)
        except LogError:
            if (now := marks()) == before:
                raise
            before = now
            continue
        return content


def demand_written(path: Path, content: bytes, marks: bytes, expected_sum: str) -> None:
    """Raise LogError if the content of a log has changed, according to the checksums of its lines and the
    checksum `expected_sum` of the whole log."""
    if expected_sum and hashlib.sha256(content).hexdigest() == expected_sum:
        return
    result = checksums.check(content, marks)
    if result.problem:
        raise LogError(
            f"{path}, line {result.line}: {result.problem}, by {path.name}{checksums.SIDE}; restore the file"
        )
    if expected_sum:
        raise LogError(f"{path}: is not what was written, by {checksums.SUMS_FILE}; restore the file")


def problem_digests(run: Path) -> dict[str, dict[str, str]]:
    """{split: {problem: digest}} of the problems that a run could train on and evaluated; empty where they
    were not stored. The first ten characters of a digest identify the prompt, the others prompt and truth."""
    path = run / PROBLEMS
    if not path.exists():
        return {}
    try:
        content = bounded.read_object(path, "restore or delete the file")
    except bounded.FileError as error:
        raise LogError(str(error)) from error
    if not all(isinstance(digests, dict) for digests in content.values()):
        raise LogError(f"{path}: contains no digests by split and problem; restore or delete the file")
    return dict(content)


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises LogError if the system cannot read it."""
    try:
        return bounded.read_bytes(path)
    except FileNotFoundError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}); restore it") from error
    except bounded.FileError as error:
        raise LogError(str(error)) from error


def read_json(path: Path, remedy: str = "restore the file") -> dict[str, Any]:
    """The object in a JSON file. The error for a damaged file ends with `remedy`."""
    try:
        content = bounded.read_object(path, remedy)
    except bounded.FileError as error:
        raise LogError(str(error)) from error
    if checksums.broken(content):
        raise LogError(f"{path}: is not what was written, by its own `{checksums.SEAL}`; {remedy}")
    return {key: value for key, value in content.items() if key != checksums.SEAL}


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return bounded.read_toml(path)
    except bounded.FileError as error:
        raise LogError(str(error)) from error


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; an empty table is kept as {}."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
