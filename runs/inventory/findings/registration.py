"""The registration of a finding: claim, rule and settings, written before its first run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.findings.record import FILE, Registration, read_registration, settings_digest
from grpobench.analysis.findings.rule import Finding
from grpobench.runs.inventory.findings.parts import announced
from grpobench.runs.runfolder import provenance
from grpobench.runs.runfolder.folder import FolderError
from grpobench.runs.settings import stored
from grpobench.runs.settings.findings import registered_runs
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import files

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record


def register(
    finding: Finding, scale: str, recipe: Recipe, out: Path, part: Record | None = None
) -> Registration:
    """The registration in the experiment's folder. It is written, or replaces an earlier one, if nothing has
    run in the folder. If a part of the finding is kept, it is the part's.

    Raises FolderError if the folder has runs without a registration, LogError for a damaged registration,
    DataError for a part that was registered with another rule or other settings.
    """
    folder = out / recipe.name
    begun = sorted(path.parent.name for path in folder.glob("*/run.toml"))
    configs = registered_runs(finding, recipe)
    settings = {config.folder: settings_digest(stored.dump(config)) for config in configs}
    if (folder / FILE).exists():
        existing = read_registration(folder)
        if begun or (existing.finding.digest, existing.settings) == (finding.digest, settings):
            return existing
    elif begun:
        raise FolderError(
            f"{folder}: has runs, such as {begun[0]}, but no {FILE}; a finding must be registered "
            "before its runs: choose another --out"
        )
    registration = announced(part, finding.digest, settings)
    if registration is None:
        made = provenance.commit()
        commit = str(made.get("commit", ""))
        registration = Registration(
            finding=finding,
            scale=scale,
            seeds=recipe.head.seeds,
            settings=settings,
            commit=commit + (" and changes" if commit and made.get("dirty") else ""),
            registered=time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime()),
        )
    text = json.dumps(registration.plain(), indent=1, ensure_ascii=False)
    files.write_atomic(files.writable(folder, "--out") / FILE, text.encode())
    return registration
