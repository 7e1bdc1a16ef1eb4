"""Accepted contributions, for the pages and commands that show them next to ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grpobench.analysis import kept
from grpobench.analysis.findings.record import FOLDER as FINDINGS
from grpobench.analysis.findings.record import Record, read_kept
from grpobench.analysis.kept import KeptTable
from grpobench.analysis.profile import kept as profiles
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.runfolder.files import read_json
from grpobench.runs.handover.publishing.fileset import MANIFEST, Manifest, read_manifest

CONTRIBUTED = "contributed"
"""Folder of contributions below docs/results, each with its name."""
VERIFIED = "verified.json"
"""What `grpobench contribute --verify` has run again of a contribution."""
EXPERIMENTS, PROFILE, SEARCH = "experiments", "profile", "search"
"""Folders in a contribution: kept tables, outcomes on probes, and those of searches of learning rates."""


@dataclass(frozen=True)
class Contribution:
    """What a contribution shows. Its members raise LogError for damaged files."""

    folder: Path

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder)

    @property
    def whose(self) -> dict[str, str]:
        """Its name and contributor."""
        return {"name": self.folder.name, "contributor": self.manifest.contributor}

    @property
    def verified(self) -> Mapping[str, Any]:
        """What `verify` returns; empty where nothing was run again."""
        path = self.folder / VERIFIED
        return read_json(path) if path.exists() else {}

    @property
    def tables(self) -> dict[str, KeptTable]:
        """The experiments by name."""
        return {path.stem: kept.read(path) for path in sorted((self.folder / EXPERIMENTS).glob("*.json"))}

    def record(self, finding: str, scale: str) -> Record | None:
        """What it says of a finding."""
        path = self.folder / FINDINGS / f"{finding}-{scale}.json"
        return read_kept(path) if path.exists() else None

    @property
    def outcomes(self) -> dict[str, list[ProbeOutcome]]:
        """Outcomes on probes by algorithm, which is called CONTRIBUTION/ALGORITHM."""
        return self._outcomes(PROFILE)

    @property
    def search(self) -> list[ProbeOutcome]:
        """Outcomes of its searches of learning rates."""
        return [row for rows in self._outcomes(SEARCH).values() for row in rows]

    def _outcomes(self, part: str) -> dict[str, list[ProbeOutcome]]:
        by_algorithm = profiles.read_all([self.folder / part])
        return {
            (shown := f"{self.folder.name}/{name}"): [replace(row, algorithm=shown) for row in rows]
            for name, rows in by_algorithm.items()
        }


def contributions(results: Path) -> list[Contribution]:
    """The contributions in a folder of results, by name."""
    return [Contribution(path.parent) for path in sorted((results / CONTRIBUTED).glob(f"*/{MANIFEST}"))]
