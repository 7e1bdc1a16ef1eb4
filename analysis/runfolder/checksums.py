"""Checksums of the files of a run: how they are written and checked."""

# There are three kinds, all SHA-256:
#
#     metrics.jsonl.sums   one line per line of the log: the checksum of the log up to it, 16 characters
#     sums.json            written with a run's result: size and checksum of every file that is kept
#     "sha256" in JSON     in provenance.json, sums.json and manifests: the checksum of all other keys
#
# `head -n 5 metrics.jsonl | sha256sum` begins with the fifth line of metrics.jsonl.sums. Older run folders
# have no checksums, and their files are not checked.

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.tasks.data import bounded

SIDE = ".sums"
"""Suffix of the file with a log's checksums."""
SUMS_FILE = "sums.json"
MARK = 16
"""Characters of a line's checksum."""
SEAL = "sha256"


@dataclass(frozen=True)
class LogCheck:
    """The result of checking a log."""

    line: int = 0
    """The first line that was changed, counted from 1; 0 if there is none."""
    problem: str = ""


def marks_of(content: bytes) -> bytes:
    """The checksums of a log's complete lines, as their file contains them."""
    return b"".join(mark + b"\n" for mark in running(content))


def running(content: bytes) -> Iterator[bytes]:
    """The checksum of a log up to each of its complete lines."""
    chain = hashlib.sha256()
    for line in content.split(b"\n")[:-1]:
        chain.update(line + b"\n")
        yield chain.hexdigest()[:MARK].encode()


def check(content: bytes, side: bytes) -> LogCheck:
    """Check a log against its checksums. Lines after the last checksum are not checked: a process that was
    killed between the two writes leaves one. If a later checksum is correct, all lines before it are
    correct."""
    marks = side.split(b"\n")[:-1]
    end = content.rfind(b"\n") + 1
    count = content.count(b"\n")
    if not marks:
        return LogCheck()
    if count == len(marks) and hashlib.sha256(content[:end]).hexdigest()[:MARK].encode() == marks[-1]:
        return LogCheck()
    pairs = zip(running(content), marks, strict=False)
    right = [number for number, (now, then) in enumerate(pairs, 1) if now == then]
    proved = right[-1] if right else 0
    if proved == len(marks):
        return LogCheck()
    if proved == count:
        return LogCheck(count + 1, f"{len(marks) - count} lines that were written are missing")
    return LogCheck(proved + 1, "is not what was written")


def seal(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table as plain JSON, with its checksum."""
    plain = {key: value for key, value in json.loads(json.dumps(table, default=str)).items() if key != SEAL}
    return plain | {SEAL: sum_of(plain)}


def broken(table: Mapping[str, Any]) -> bool:
    """Whether a sealed table has changed."""
    return SEAL in table and table[SEAL] != sum_of(
        {key: value for key, value in table.items() if key != SEAL}
    )


def sum_of(table: Any) -> str:
    """A hash of plain data."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_sums(run: Path) -> dict[str, dict[str, Any]]:
    """sums.json: {file: {bytes, sha256}} of the files of a run with a result; empty for older runs without
    checksums. Raises ValueError if the file is damaged."""
    path = run / SUMS_FILE
    if not path.exists():
        return {}
    damaged = f"{path}: damaged; restore it, or delete it to skip its checks"
    try:
        table = bounded.read_object(path)
        if broken(table):
            raise ValueError
        return {
            str(name): {"bytes": int(sums["bytes"]), SEAL: str(sums[SEAL])}
            for name, sums in table["files"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(damaged) from None


def absent(run: Path, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Messages about files that are missing or have another size; each begins with the path. The files are
    not read."""
    faults = []
    for name, sums in files.items():
        path = run / name
        if not path.is_file():
            faults.append(f"{path}: is missing, and the run's result counts on it; restore it")
        elif (size := path.stat().st_size) != sums["bytes"]:
            faults.append(f"{path}: holds {size} bytes and was written with {sums['bytes']}; restore it")
    return faults
