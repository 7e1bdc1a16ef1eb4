"""`grpobench prune`: remove checkpoints and optimizer states that runs with a result no longer need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.experiment.preflight import size
from grpobench.runs.experiment.run_status import overviews
from grpobench.runs.runfolder import checkpoints, extend
from grpobench.runs.runfolder.logs import status
from grpobench.runs.tools.lock import FolderError, Lock


@dataclass(frozen=True)
class Pruned:
    """What was removed of one run, or would be."""

    run: Path
    state: str
    """As in status.json."""
    freed: int = 0
    """Bytes of the removed checkpoints and optimizer states."""
    left: int = 0
    """Bytes of the files that stay."""
    why: str = ""
    """Why checkpoints stay; empty if there is no reason to keep any."""

    def row(self) -> dict[str, Any]:
        """For machines."""
        return {**vars(self), "run": str(self.run)}


def prune(folder: Path, dry: bool = False) -> Iterator[Pruned]:
    """Prune the runs of an experiment folder, of a run folder or of a folder of experiment folders, one after
    another. With `dry` nothing is removed. Raises DataError for another folder.

    Logs, rollouts and final weights stay, so that `report`, `eval`, `export` and `run` work as before. A run
    without a result keeps all that its resume needs. A kill leaves runs with a result as they are, and the
    next call removes the rest."""
    for overview in overviews(folder):
        for run in overview.runs:
            path = overview.folder if (overview.folder / "run.toml").exists() else overview.folder / run.run
            if (path / "run.toml").exists():
                yield prune_run(path, dry)


def prune_run(path: Path, dry: bool = False) -> Pruned:
    """Prune one run under its lock. With `dry` nothing is removed or locked."""
    lock, state = Lock(path), str(status(path).get("state", ""))
    try:
        if dry:
            if owner := lock.owner():
                raise FolderError(f"process {owner.pid} on {owner.host} uses it")
        else:
            lock.take()
    except FolderError as error:
        return Pruned(path, state, left=size_of(path), why=str(error))
    try:
        paths = extend.unneeded(path)
        freed = sum(map(size_of, paths))
        if not dry:
            extend.drop(paths)
            extend.remove_empty(path)
    except ValueError as error:
        return Pruned(path, state, left=size_of(path), why=str(error))
    finally:
        if not dry:
            lock.release()
    why = ""
    removed_steps = {
        checkpoints.step_of(checkpoint) for checkpoint in paths if checkpoint.parent.name == "checkpoints"
    }
    if staying_steps := set(checkpoints.steps(path)) - removed_steps:
        staying_bytes = sum(size_of(checkpoints.checkpoint_path(path, step)) for step in staying_steps)
        why = f"{size(staying_bytes)} of checkpoints stay, " + (
            "its only weights" if state == "diverged" else "from which it resumes"
        )
    return Pruned(path, state, freed, size_of(path) - (freed if dry else 0), why)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


def as_lines(pruned: list[Pruned], dry: bool) -> list[str]:
    """For people: a line per run of which something goes or checkpoints stay, and the sum."""
    verb = "would free" if dry else "freed"
    lines = []
    for run in pruned:
        parts = [f"{verb} {size(run.freed)}"] if run.freed else []
        if parts or run.why:
            lines.append(f"{run.run} ({run.state}): {'; '.join([*parts, *filter(None, [run.why])])}")
    freed, left = sum(run.freed for run in pruned), sum(run.left for run in pruned)
    count = f"{len(pruned)} run{'' if len(pruned) == 1 else 's'}"
    return [*lines, f"{verb} {size(freed)} of {count}, {size(left)} stay"]
