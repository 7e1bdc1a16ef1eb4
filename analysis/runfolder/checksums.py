"""Checksums over what a run keeps: how they are written, and what they say of a file.

Three kinds, all of sha256::

    metrics.jsonl.sums   a line for each line of the log: the sum over the log up to it, 16 characters
    sums.json            written with a run's result: size and sum of every file that it keeps
    "sha256" in JSON     of provenance.json, sums.json and manifests: the sum over everything else in it

``head -n 5 metrics.jsonl | sha256sum`` begins with the fifth line of metrics.jsonl.sums. Folders that were
made before there were sums lack them; nothing is said of their files then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIDE = ".sums"
"""What the name of a log's sums ends in."""
SUMS_FILE = "sums.json"
MARK = 16
"""Characters of a line's sum."""
SEAL = "sha256"


@dataclass(frozen=True)
class LogCheck:
    """What the sums say of a log."""

    line: int = 0
    """The first line that is not what was written, from 1; 0: there is none."""
    what: str = ""
    covered: int = 0
    """Lines, from the first, that were proved."""


def marks_of(content: bytes) -> bytes:
    """The sums of a log's whole lines, as they stand beside it."""
    return b"".join(mark + b"\n" for mark in running(content))


def running(content: bytes) -> Iterator[bytes]:
    """The sum over a log up to each of its whole lines."""
    chain = hashlib.sha256()
    for line in content.split(b"\n")[:-1]:
        chain.update(line + b"\n")
        yield chain.hexdigest()[:MARK].encode()


def check(content: bytes, side: bytes) -> LogCheck:
    """Hold a log against its sums. Lines behind the last sum are not judged: a process that was killed
    between the two writes leaves one. Where a later sum is right, the lines before it are, whatever their own
    say."""
    marks = side.split(b"\n")[:-1]
    end = content.rfind(b"\n") + 1
    count = content.count(b"\n")
    if not marks:
        return LogCheck()
    if count == len(marks) and hashlib.sha256(content[:end]).hexdigest()[:MARK].encode() == marks[-1]:
        return LogCheck(covered=count)
    pairs = zip(running(content), marks, strict=False)
    right = [number for number, (now, then) in enumerate(pairs, 1) if now == then]
    proved = right[-1] if right else 0
    if proved == len(marks):
        return LogCheck(covered=proved)
    if proved == count:
        return LogCheck(count + 1, f"{len(marks) - count} lines that were written are missing", proved)
    return LogCheck(proved + 1, "is not what was written", proved)


def seal(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table as JSON holds it, with the sum over it."""
    plain = {key: value for key, value in json.loads(json.dumps(table, default=str)).items() if key != SEAL}
    return plain | {SEAL: _sum(plain)}


def broken(table: Mapping[str, Any]) -> bool:
    """Whether a table that was sealed is another one by now."""
    return SEAL in table and table[SEAL] != _sum({key: value for key, value in table.items() if key != SEAL})


def _sum(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def file_sum(path: Path) -> str:
    """The sum over a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(run: Path) -> dict[str, dict[str, Any]]:
    """sums.json: {file: {bytes, sha256}} of what a run with a result keeps; empty where it was made before
    there were sums. Raises ValueError for a damaged one."""
    path = run / SUMS_FILE
    if not path.exists():
        return {}
    damaged = f"{path}: damaged; restore it, or delete it to do without the checks that it serves"
    try:
        table = json.loads(path.read_bytes())
        if broken(table):
            raise ValueError
        return {
            str(name): {"bytes": int(one["bytes"]), SEAL: str(one[SEAL])}
            for name, one in table["files"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(damaged) from None


def absent(run: Path, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The files of `kept` that are not there any more, or have another size, in words that begin with the
    path. Nothing is read."""
    faults = []
    for name, one in files.items():
        path = run / name
        if not path.is_file():
            faults.append(f"{path}: is missing, and the run's result counts on it; restore it")
        elif (size := path.stat().st_size) != one["bytes"]:
            faults.append(f"{path}: holds {size} bytes and was written with {one['bytes']}; restore it")
    return faults
