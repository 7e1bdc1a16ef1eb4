"""What the runs were made with, from origin.json: code, versions and machines."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping

from grpobench.analysis.logs.changes import attempts
from grpobench.analysis.logs.imported import imported
from grpobench.analysis.logs.matrix import Matrix, Run
from grpobench.analysis.summary.settings import flatten, value_text

ATTEMPT_ONLY = (
    "attempts",
    "attempt",
    "id",
    "started",
    "pid",
    "command",
    "diff",
    "changes",
    "resumed_at",
    "caveat",
    "imported",
)
"""Keys of origin.json that say nothing about how runs compare."""
UNPROVED = "none kept (an older version, or imported): a changed digit would not show"
LOGS = ("by", "format", "names", "writer")
"""What is told of the log that a run was imported from."""


def run_origins(matrix: Matrix) -> dict[str, list[tuple[str, int]]]:
    """Where the runs come from, by their last attempt: key -> (value, number of runs), most frequent first.

    `code`, the digests of the source files, is shortened to one digest, which differs between runs only where
    a file that both depend on does; what is the attempt's own (process, start, command, uncommitted diff) is
    left to origin.json.
    """
    counted: dict[str, Counter[str]] = {}
    everywhere = {file: next(iter(found)) for file, found in digests(matrix).items() if len(found) == 1}
    for run in matrix.runs:
        tried = attempts(run)
        told = {**run.origin, **(tried[-1] if tried else {})}
        if code := source_files(run):
            told["code"] = hashlib.sha256(
                json.dumps({**everywhere, **code}, sort_keys=True).encode()
            ).hexdigest()[:12]
        kept = {key: value for key, value in told.items() if key not in ATTEMPT_ONLY and value != {}}
        if tried:
            kept["attempts"] = len(tried)
        if logs := imported(run):
            kept["imported"] = {name: logs[name] for name in LOGS if logs.get(name)}
        if run.origin and run.rows:
            kept["checksums"] = "right" if run.proved else UNPROVED
        for key, value in flatten(kept).items():
            counted.setdefault(key, Counter())[value_text(value)] += 1
    return {key: values.most_common() for key, values in counted.items()}


def source_files(run: Run) -> Mapping[str, str]:
    """Digest by source file of the run's last attempt."""
    tried = attempts(run)
    found = tried[-1].get("code") if tried else run.origin.get("code")
    return found if isinstance(found, Mapping) else {}


def digests(matrix: Matrix) -> dict[str, dict[str, list[str]]]:
    """Source file -> digest -> the runs that were made with it."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in matrix.runs:
        for file, digest in source_files(run).items():
            found.setdefault(file, {}).setdefault(digest, []).append(run.name)
    return found
