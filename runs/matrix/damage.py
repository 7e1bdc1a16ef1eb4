"""What is damaged of a run, content and all: what the report finds, what `run` finds, and weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from grpobench.analysis.logs import sums
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.load import Folder
from grpobench.runs.record.status import result_faults


def damage(run: Path) -> list[str]:
    """A line for every damaged file, which begins with its path; of a file that several looks find something
    in, what the first one says."""
    found: dict[str, str] = {}
    for fault in chain(unreadable(run), result_faults(run), lost_settings(run), changed_weights(run)):
        file = fault.partition(": ")[0].partition(", line ")[0]
        found.setdefault(file, fault)
    return list(found.values())


def unreadable(run: Path) -> list[str]:
    """What a report cannot read, or finds to be other than was written."""
    folder = Folder(run, {}, planned=True)
    try:
        folder.read()
    except LogError as error:
        return [*folder.faults, str(error)]
    return folder.faults


def lost_settings(run: Path) -> Iterator[str]:
    """run.toml, where it is gone and rows are there."""
    if (run / "metrics.jsonl").exists() and not (run / "run.toml").exists():
        yield f"{run / 'run.toml'}: is missing; restore it"


def changed_weights(run: Path) -> Iterator[str]:
    """Final weights that are not what was written."""
    try:
        kept = sums.kept(run)
    except ValueError:
        return
    for name, one in kept.items():
        path = run / name
        if name.startswith("final/") and path.is_file() and sums.file_sum(path) != one[sums.SEAL]:
            yield f"{path}: is not what was written, by {sums.KEPT}; restore it"
