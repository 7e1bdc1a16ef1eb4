"""`grpobench merge`: one experiment from several that were run on different machines."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder import checksums, formats
from grpobench.analysis.runfolder.files import LogError, read_lines
from grpobench.analysis.runfolder.load import Folder
from grpobench.analysis.tools.text import why_no_experiment
from grpobench.runs.runfolder.logs import result_faults, settled, status
from grpobench.runs.settings import stored
from grpobench.runs.settings.layers import parse_set
from grpobench.runs.tools import files, toml
from grpobench.runs.tools.files import read_json
from grpobench.runs.tools.lock import FolderError, living
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError


def damage(run: Path) -> list[str]:
    """One line per damaged file, beginning with its path. If several checks find damage in a file, the first
    one's line counts."""
    fault_by_file: dict[str, str] = {}
    for fault in chain(unreadable(run), result_faults(run), lost_settings(run), changed_weights(run)):
        file = fault.partition(": ")[0].partition(", line ")[0]
        fault_by_file.setdefault(file, fault)
    return list(fault_by_file.values())


def unreadable(run: Path) -> list[str]:
    """Files that a report cannot read, or that were changed since they were written."""
    folder = Folder(run, {}, planned=True)
    try:
        folder.read()
    except LogError as error:
        return [*folder.faults, str(error)]
    return folder.faults


def lost_settings(run: Path) -> Iterator[str]:
    """A missing run.toml beside existing rows."""
    if (run / "metrics.jsonl").exists() and not (run / "run.toml").exists():
        yield f"{run / 'run.toml'}: missing; restore it"


def changed_weights(run: Path) -> Iterator[str]:
    """Final weights that were changed since they were written."""
    try:
        recorded_sums = checksums.read_sums(run)
    except ValueError:
        return
    for name, sums in recorded_sums.items():
        path = run / name
        if name.startswith("final/") and path.is_file() and bounded.sha256(path) != sums[checksums.SEAL]:
            yield f"{path}: was changed since it was written (see {checksums.SUMS_FILE}); restore it"


CHOOSING = ("seeds", "arms", "tasks", "rates", "rate_tasks", "workers", "summary")
"""Keys of a recipe that choose runs or describe the recipe."""
PLANS = ("interim.json", "registration.json")
"""Files that are fixed before the runs and must be the same in all experiments."""
LISTS = ("runs", "seeds", "arms", "tasks")
TIMED = ("time/", "cost/peak_memory_gb")
"""Metrics that differ between two executions of the same run."""
MOST_NAMED = 10


@dataclass(frozen=True)
class MergedExperiment:
    """An experiment folder."""

    folder: Path
    table: Mapping[str, Any]

    def runs(self) -> dict[str, Path]:
        """The runs that have begun, by name."""
        return {path.parent.name: path.parent for path in sorted(self.folder.glob("*/run.toml"))}

    def without_settings(self) -> dict[str, Path]:
        """Planned runs with a folder but no run.toml."""
        folders = {str(name): self.folder / str(name) for name in self.table["runs"]}
        return {
            name: path for name, path in folders.items() if path.is_dir() and not (path / "run.toml").exists()
        }


@dataclass(frozen=True)
class Merged:
    """The merged experiment."""

    folder: Path
    sources: Mapping[str, Path]
    """The runs, and the source of each."""
    missing: tuple[str, ...]
    """Planned runs that no source has begun."""


def merge(folders: Sequence[Path], out: Path) -> Merged:
    """Copy the runs of experiment folders into `out`, which must not exist. Raises DataError for a folder
    that is not an experiment; FolderError if the experiments differ, if one is running or damaged, or if
    `out` exists.

    The experiments must agree in their recipe, apart from keys that only choose runs (seeds, arms, tasks),
    and in the settings of every arm and task, apart from the seed. If several have the same run, the merge
    takes the one that has a result; if several have results, these must be equal. A damaged run is an error
    even if there is a whole copy, because the damaged one may have differed. The sources stay as they are,
    and the new folder appears whole or not at all."""
    if out.exists():
        raise FolderError(f"{out} already exists; name a new folder")
    sources = [read(folder) for folder in folders]
    owned = living([path for source in sources for path in (source.folder, *source.runs().values())])
    refuse([lease.describe_owner(path) for path, lease in owned.items()])
    refuse(damaged(sources))
    differences = [fault for source in sources[1:] for fault in recipe_differences(sources[0], source)]
    differences += settings_differences(sources)
    taken, clashes = choose(sources)
    refuse([*differences, *clashes])
    table = experiment_table(sources)
    with files.becoming(out) as aside:
        for name, path in taken.items():
            shutil.copytree(path, aside / name, ignore=shutil.ignore_patterns("lock", ".*"))
        for name in PLANS:
            if (first := sources[0].folder / name).exists():
                shutil.copy2(first, aside / name)
        (aside / "experiment.json").write_text(json.dumps(checksums.seal(table), indent=1), encoding="utf-8")
    return Merged(out, taken, tuple(name for name in table["runs"] if name not in taken))


def refuse(faults: Sequence[str]) -> None:
    """Raise FolderError if there are faults."""
    if faults:
        more = f"\nand {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        raise FolderError("\n".join(faults[:MOST_NAMED]) + more)


def read(folder: Path) -> MergedExperiment:
    if not folder.is_dir():
        raise DataError(why_no_experiment(folder))
    if why := formats.refusal(folder):
        raise DataError(why)
    table = read_json(folder / "experiment.json")
    if not isinstance(table, dict) or not isinstance(table.get("runs"), list) or checksums.broken(table):
        raise DataError(f"{folder}: not an experiment folder: experiment.json is missing or damaged")
    return MergedExperiment(folder, table)


def damaged(sources: Sequence[MergedExperiment]) -> list[str]:
    """Plans and runs that cannot be read or were changed, each with its remedy."""
    damage_lines = [
        f"{path}: damaged; restore it"
        for source in sources
        for name in PLANS
        if (path := source.folder / name).exists() and not isinstance(read_json(path), dict)
    ]
    intact: dict[str, Path] = {}
    torn: list[tuple[Path, list[str]]] = []
    for source in sources:
        for name, path in (source.runs() | source.without_settings()).items():
            if faults := damage(path):
                torn.append((path, faults))
            elif settled(path):
                intact.setdefault(name, path)
    for path, faults in torn:
        copy = f"; {intact[path.name]} is a whole copy" if path.name in intact else ""
        damage_lines += [f"{fault}; or move {path} away to merge without it{copy}" for fault in faults]
    return damage_lines


def recipe_differences(first: MergedExperiment, other: MergedExperiment) -> list[str]:
    """Differences between two recipes, apart from the runs that they choose."""
    ours, theirs = requested_settings(first), requested_settings(other)
    absent = "(absent)"
    pair = f"{first.folder} and {other.folder}"
    differences = [
        f"{pair} have different recipes: {key}: {ours.get(key, absent)} and {theirs.get(key, absent)}"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key, absent) != theirs.get(key, absent)
    ]
    for name in PLANS:
        texts = [read_json(source.folder / name) for source in (first, other)]
        if texts[0] != texts[1]:
            differences.append(
                f"{pair} have different plans, which were fixed before the runs: {name} differs"
            )
    return differences


def requested_settings(source: MergedExperiment) -> dict[str, str]:
    """The request behind an experiment: its recipe's keys, its assignments and its sweep values."""
    try:
        table = toml.read(source.table.get("recipe") or "")
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{source.folder / 'experiment.json'}: its recipe cannot be read: {error}") from error
    settings = {key: value for key, value in table.items() if key not in CHOOSING and key != "arm"}
    requested = stored.flatten(settings)
    for arm in table.get("arm", []):
        name = arm.get("name", arm.get("algorithm"))
        requested |= {f"arm.{name}.{key}": value for key, value in stored.flatten(arm).items()}
    for text in (*source.table.get("sets", []), *source.table.get("over", [])):
        parsed = parse_set(text)
        if parsed and parsed[0][0] not in CHOOSING:
            requested[f"--set {'.'.join(parsed[0])}"] = str(parsed[1])
    plan = {"name": str(source.table.get("name")), "margin": str(source.table.get("margin"))}
    return requested | plan | {"control": str(source.table.get("control", ""))}


def settings_differences(sources: Sequence[MergedExperiment]) -> list[str]:
    """Settings that differ between runs of the same arm and task, apart from seeds."""
    first_by_stem: dict[str, tuple[Path, str]] = {}
    differences = []
    for source in sources:
        for name, path in source.runs().items():
            text = seedless(bounded.read_text(path / "run.toml"))
            stem = name.rpartition("-s")[0]
            first, expected = first_by_stem.setdefault(stem, (path, text))
            changes = stored.differences(expected, text) if expected != text else []
            differences += [f"{first} and {path} have different settings: {change}" for change in changes]
    return differences


def seedless(text: str) -> str:
    """A run.toml without the line of its seed."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("seed ="))


def choose(sources: Sequence[MergedExperiment]) -> tuple[dict[str, Path], list[str]]:
    """The furthest copy of every run, and the runs that have several results that differ."""
    taken: dict[str, Path] = {}
    faults = []
    for source in sources:
        for name, path in source.runs().items():
            earlier = taken.get(name)
            if earlier is None:
                taken[name] = path
            elif settled(earlier) and settled(path):
                if differing := unequal(earlier, path):
                    faults.append(
                        f"{earlier} and {path} are the same run with different results: {differing} differs"
                    )
            elif progress(path) > progress(earlier):
                taken[name] = path
    return taken, faults


def progress(run: Path) -> tuple[bool, int]:
    """How far a run has come; a result is furthest."""
    return settled(run), int(status(run).get("step", 0))


def unequal(first: Path, other: Path) -> str:
    """The first file in which two executions of a run differ, apart from times; empty if none does."""
    for name in ("metrics.jsonl", "eval.jsonl"):
        if timeless(first / name) != timeless(other / name):
            return name
    weights = [
        {path.name: bounded.sha256(path) for path in run.glob("final/*.safetensors")}
        for run in (first, other)
    ]
    return "" if weights[0] == weights[1] else "final/"


def timeless(path: Path) -> list[Any]:
    """The rows of a log without what depends on the machine's speed."""
    rows, _ = read_lines(path)
    return [{key: value for key, value in row.items() if not key.startswith(TIMED)} for _, row in rows]


def experiment_table(sources: Sequence[MergedExperiment]) -> dict[str, Any]:
    """experiment.json of the first source, with the planned runs of all."""
    table = dict(sources[0].table)
    for key in LISTS:
        entries: Iterable[Any] = (entry for source in sources for entry in source.table.get(key, []))
        table[key] = list(dict.fromkeys(entries))
    table["seeds"] = sorted(table["seeds"])
    for key in ("sweep_values", "rate_arms"):
        table[key] = {arm: origin for source in sources for arm, origin in source.table.get(key, {}).items()}
    table["sets"] = [text for text in table.get("sets", []) if text.partition("=")[0].strip() not in CHOOSING]
    return table
