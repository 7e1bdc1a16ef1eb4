"""What contributions show, for the pages and commands that show it next to ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpobench.analysis import kept
from grpobench.analysis.findings.record import FOLDER, Record, read_kept
from grpobench.analysis.kept import KeptTable
from grpobench.analysis.profile import kept as profiles
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.runfolder.files import LogError, read_json

CONTRIBUTED = "contributed"
"""Folder of contributions below docs/results, each with its name."""
MANIFEST = "manifest.json"
VERIFIED = "verified.json"
"""What `grpobench contribute --verify` has run again of a contribution."""
EXPERIMENTS = "experiments"
"""Folder of kept tables in a contribution."""
PROFILE = "profile"
"""Folder of outcomes on probes in a contribution."""


@dataclass(frozen=True)
class ContributedRecord:
    """What a contribution says of a finding."""

    name: str
    contributor: str
    record: Record


def contributions(results: Path) -> dict[str, Path]:
    """The folders of contributions by name."""
    return {path.parent.name: path.parent for path in sorted((results / CONTRIBUTED).glob(f"*/{MANIFEST}"))}


def contributed_records(results: Path, finding: str, scale: str) -> list[ContributedRecord]:
    """What contributions say of a finding. Raises LogError."""
    records = []
    for name, folder in contributions(results).items():
        path = folder / FOLDER / f"{finding}-{scale}.json"
        if path.exists():
            records.append(ContributedRecord(name, contributor_of(folder), read_kept(path)))
    return records


@dataclass(frozen=True)
class ContributedTables:
    """The experiments of a contribution."""

    contributor: str
    published: str
    tables: Mapping[str, KeptTable]
    verified: Mapping[str, Any]
    """`Verification.plain`; empty where nothing was run again."""


def contributed_tables(results: Path) -> dict[str, ContributedTables]:
    """The experiments of contributions, by contribution. Raises LogError."""
    return {
        name: ContributedTables(
            contributor_of(folder),
            str(read_json(folder / MANIFEST).get("published", "")),
            {path.stem: kept.read(path) for path in sorted((folder / EXPERIMENTS).glob("*.json"))},
            read_json(folder / VERIFIED) if (folder / VERIFIED).exists() else {},
        )
        for name, folder in contributions(results).items()
    }


def contributor_of(folder: Path) -> str:
    """Raises LogError."""
    try:
        return str(read_json(folder / MANIFEST)["contributor"])
    except KeyError as error:
        raise LogError(f"{folder / MANIFEST}: names no contributor") from error


def contributed_rows(results: Path) -> tuple[dict[str, list[ProbeOutcome]], list[ProbeOutcome]]:
    """Outcomes of contributed profiles and searches; an algorithm is called CONTRIBUTION/ALGORITHM."""
    by_algorithm: dict[str, list[ProbeOutcome]] = {}
    search: list[ProbeOutcome] = []
    for name, folder in contributions(results).items():
        for path in sorted((folder / PROFILE).glob("*.csv")):
            rows = [renamed(row, name) for row in profiles.read(path)]
            if path.stem == profiles.SEARCH:
                search += rows
            elif path.stem != profiles.CONTROLS:
                for row in rows:
                    by_algorithm.setdefault(row.algorithm, []).append(row)
    return by_algorithm, search


def renamed(row: ProbeOutcome, contribution: str) -> ProbeOutcome:
    return replace(row, algorithm=f"{contribution}/{row.algorithm}")
