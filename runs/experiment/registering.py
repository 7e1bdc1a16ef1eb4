"""The registration of a finding: claim, rule and settings, written before its first run."""

from __future__ import annotations

import json
import time
from pathlib import Path

from grpobench.analysis.findings.record import FILE, Registration, read_registration, text_digest
from grpobench.analysis.findings.rule import Finding
from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.runfolder import provenance
from grpobench.runs.runfolder.folder import FolderError
from grpobench.runs.settings import stored
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import files
from grpobench.tasks.data.tables import DataError


def register(finding: Finding, scale: str, recipe: Recipe, out: Path) -> Registration:
    """The registration in the experiment's folder. It is written, or replaces an earlier one, if nothing has
    run in the folder.

    Raises FolderError if the folder has runs without a registration, DataError for a damaged registration.
    """
    folder = out / recipe.name
    begun = sorted(path.parent.name for path in folder.glob("*/run.toml"))
    settings = {config.folder: text_digest(stored.dump(config)) for config in recipe.runs()}
    if (folder / FILE).exists():
        try:
            known = read_registration(folder)
        except LogError as error:
            raise DataError(str(error)) from error
        if begun or (known.finding.digest, known.settings) == (finding.digest, settings):
            return known
    elif begun:
        raise FolderError(
            f"{folder}: has runs, such as {begun[0]}, but no {FILE}; a finding must be registered "
            "before its runs: choose another --out"
        )
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
