"""`grpobench merge`: one matrix of several that were made on different machines.

What they must have in common is compared and named: the recipe but for what only chooses runs (seeds, arms,
tasks), and the settings of every arm and task but for the seed. A run that several have is taken where it has
a result; where several do, they must be the same. A run that is damaged anywhere is named, whole copies or
not: what it held may have differed. The sources are left as they are, and the new folder appears whole or not
at all.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.logs import sums
from grpobench.analysis.logs.files import read_lines
from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.matrix.damage import damage
from grpobench.runs.record.status import settled, status
from grpobench.runs.settings import stored
from grpobench.runs.settings.overrides import parse_set
from grpobench.runs.tools import files
from grpobench.runs.tools.json_lines import read_json
from grpobench.runs.tools.lock import FolderError, living
from grpobench.tasks.data.errors import DataError

CHOOSING = ("seeds", "arms", "tasks", "workers", "summary")
"""Keys of a recipe that choose runs, or say what it is for."""
PLANS = ("looks.json", "registration.json")
"""What was fixed before the runs, and must be the same in all."""
LISTS = ("runs", "seeds", "arms", "tasks")
TIMED = ("time/", "cost/peak_memory_gb")
"""Metrics in which two executions of the same run differ."""
MOST_NAMED = 10


@dataclass(frozen=True)
class Source:
    """A matrix folder."""

    folder: Path
    table: Mapping[str, Any]

    def runs(self) -> dict[str, Path]:
        """The runs that have begun, by name."""
        return {path.parent.name: path.parent for path in sorted(self.folder.glob("*/run.toml"))}

    def without_settings(self) -> dict[str, Path]:
        """Those that were planned and have a folder without run.toml."""
        places = {str(name): self.folder / str(name) for name in self.table["runs"]}
        return {
            name: path for name, path in places.items() if path.is_dir() and not (path / "run.toml").exists()
        }


@dataclass(frozen=True)
class Merged:
    """What was made."""

    folder: Path
    taken: Mapping[str, Path]
    """The runs, and where each is from."""
    missing: tuple[str, ...]
    """Planned, and begun nowhere."""


def merge(folders: Sequence[Path], out: Path) -> Merged:
    """Copy the runs of matrix folders into `out`, which must not exist. Raises DataError for a folder that is
    no matrix; FolderError where they differ, where one is at work or damaged, or where `out` is there."""
    if out.exists():
        raise FolderError(f"{out} is there already, and nothing is overwritten: name a new folder")
    sources = [read(folder) for folder in folders]
    owned = living([path for source in sources for path in (source.folder, *source.runs().values())])
    refuse([lease.named(path) for path, lease in owned.items()])
    refuse(damaged(sources))
    differences = [fault for source in sources[1:] for fault in recipe_differences(sources[0], source)]
    differences += settings_differences(sources)
    taken, clashes = choose(sources)
    refuse([*differences, *clashes])
    table = matrix_table(sources)
    with files.becoming(out) as aside:
        for name, path in taken.items():
            shutil.copytree(path, aside / name, ignore=shutil.ignore_patterns("lock", ".*"))
        for name in PLANS:
            if (first := sources[0].folder / name).exists():
                shutil.copy2(first, aside / name)
        (aside / "matrix.json").write_text(json.dumps(sums.seal(table), indent=1), encoding="utf-8")
    return Merged(out, taken, tuple(name for name in table["runs"] if name not in taken))


def refuse(faults: Sequence[str]) -> None:
    """Raise FolderError where there are faults."""
    if faults:
        more = f"\nand {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        raise FolderError("\n".join(faults[:MOST_NAMED]) + more)


def read(folder: Path) -> Source:
    if not folder.is_dir():
        raise DataError(f"{folder}: {why_no_folder(folder)}; give a matrix folder such as results/quickstart")
    table = read_json(folder / "matrix.json")
    if not isinstance(table, dict) or not isinstance(table.get("runs"), list) or sums.broken(table):
        raise DataError(f"{folder} is no matrix folder: its matrix.json is missing or damaged")
    return Source(folder, table)


def damaged(sources: Sequence[Source]) -> list[str]:
    """What cannot be read, or is not what was written: of plans, and of runs, each with what to do."""
    found = [
        f"{path}: damaged; restore it"
        for source in sources
        for name in PLANS
        if (path := source.folder / name).exists() and not isinstance(read_json(path), dict)
    ]
    whole: dict[str, Path] = {}
    torn: list[tuple[Path, list[str]]] = []
    for source in sources:
        for name, path in (source.runs() | source.without_settings()).items():
            if faults := damage(path):
                torn.append((path, faults))
            elif settled(path):
                whole.setdefault(name, path)
    for path, faults in torn:
        copy = f"; {whole[path.name]} is a whole copy" if path.name in whole else ""
        found += [f"{fault}; or move {path} elsewhere to merge without it{copy}" for fault in faults]
    return found


def recipe_differences(first: Source, other: Source) -> list[str]:
    """What two recipes differ in, but for which runs they choose."""
    ours, theirs = asked(first), asked(other)
    absent = "(absent)"
    pair = f"{first.folder} and {other.folder}"
    found = [
        f"{pair} have other recipes: {key}: {ours.get(key, absent)} and {theirs.get(key, absent)}"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key, absent) != theirs.get(key, absent)
    ]
    for name in PLANS:
        texts = [read_json(source.folder / name) for source in (first, other)]
        if texts[0] != texts[1]:
            found.append(f"{pair} have other plans, which were fixed before the runs: {name} differs")
    return found


def asked(source: Source) -> dict[str, str]:
    """What a matrix was asked for: its recipe's keys, its assignments and its doses."""
    try:
        table = tomllib.loads(source.table.get("recipe") or "")
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{source.folder / 'matrix.json'}: its recipe cannot be read: {error}") from error
    kept = {key: value for key, value in table.items() if key not in CHOOSING and key != "arm"}
    found = stored.flatten(kept)
    for arm in table.get("arm", []):
        name = arm.get("name", arm.get("algorithm"))
        found |= {f"arm.{name}.{key}": value for key, value in stored.flatten(arm).items()}
    for text in (*source.table.get("sets", []), *source.table.get("over", [])):
        parsed = parse_set(text)
        if parsed and parsed[0][0] not in CHOOSING:
            found[f"--set {'.'.join(parsed[0])}"] = str(parsed[1])
    return found | {"name": str(source.table.get("name")), "margin": str(source.table.get("margin"))}


def settings_differences(sources: Sequence[Source]) -> list[str]:
    """Where the runs of an arm on a task, seeds aside, were made with other settings."""
    known: dict[str, tuple[Path, str]] = {}
    found = []
    for source in sources:
        for name, path in source.runs().items():
            text = seedless((path / "run.toml").read_text(encoding="utf-8"))
            stem = name.rpartition("-s")[0]
            first, expected = known.setdefault(stem, (path, text))
            changes = stored.differences(expected, text) if expected != text else []
            found += [f"{first} and {path} have other settings: {change}" for change in changes]
    return found


def seedless(text: str) -> str:
    """A run.toml without the line of its seed."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("seed ="))


def choose(sources: Sequence[Source]) -> tuple[dict[str, Path], list[str]]:
    """Every run where it has come furthest, and which have several results that differ."""
    taken: dict[str, Path] = {}
    faults = []
    for source in sources:
        for name, path in source.runs().items():
            known = taken.get(name)
            if known is None:
                taken[name] = path
            elif settled(known) and settled(path):
                if what := unequal(known, path):
                    faults.append(f"{known} and {path} are the same run with other results: {what} differs")
            elif progress(path) > progress(known):
                taken[name] = path
    return taken, faults


def progress(run: Path) -> tuple[bool, int]:
    """How far a run has come; one with a result furthest."""
    return settled(run), int(status(run).get("step", 0))


def unequal(one: Path, other: Path) -> str:
    """The first file in which two executions of a run differ, times aside; empty where none does."""
    for name in ("metrics.jsonl", "eval.jsonl"):
        if timeless(one / name) != timeless(other / name):
            return name
    weights = [
        {path.name: files.sha256(path) for path in run.glob("final/*.safetensors")} for run in (one, other)
    ]
    return "" if weights[0] == weights[1] else "final/"


def timeless(path: Path) -> list[Any]:
    """The rows of a log without what depends on the machine's speed."""
    rows, _ = read_lines(path)
    return [{key: value for key, value in row.items() if not key.startswith(TIMED)} for _, row in rows]


def matrix_table(sources: Sequence[Source]) -> dict[str, Any]:
    """matrix.json: the first's, with what all of them planned."""
    table = dict(sources[0].table)
    for key in LISTS:
        entries: Iterable[Any] = (entry for source in sources for entry in source.table.get(key, []))
        table[key] = list(dict.fromkeys(entries))
    table["seeds"] = sorted(table["seeds"])
    table["doses"] = {arm: dose for source in sources for arm, dose in source.table.get("doses", {}).items()}
    table["sets"] = [text for text in table.get("sets", []) if text.partition("=")[0].strip() not in CHOOSING]
    return table
