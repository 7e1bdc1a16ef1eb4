"""Runs of our own that an import puts into the same folder, so that one report has both."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder import checksums
from grpobench.runs.handover.importing.log import ImportFault
from grpobench.runs.runfolder.logs import settled
from grpobench.runs.tools.files import read_json
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

LEFT = ("lock", ".*", "checkpoints", "*.tmp")
"""What a report does not read and a running experiment needs."""


@dataclass(frozen=True)
class OwnRun:
    """A run of ours that is copied."""

    path: Path
    arm: str
    task: str
    seed: int


def settled_runs(folders: Sequence[Path]) -> list[OwnRun]:
    """The runs with a result of these experiments. Raises DataError for a folder that is none, and for two
    runs of one name."""
    run_by_name: dict[str, OwnRun] = {}
    for folder in folders:
        table = read_json(folder / "experiment.json")
        if not isinstance(table, dict) or checksums.broken(table) or not isinstance(table.get("runs"), list):
            raise DataError(f"--beside {folder}: no experiment folder; give one such as results/quickstart")
        names = [str(name) for name in table["runs"] if (folder / str(name) / "run.toml").is_file()]
        for name in names:
            if name in run_by_name:
                raise DataError(
                    f"--beside {folder}: has {name}, as {run_by_name[name].path.parent} has; give one"
                )
            if settled(folder / name):
                run_by_name[name] = described(folder / name)
    if folders and not run_by_name:
        raise DataError(f"--beside {folders[0]}: no run there has a result yet")
    return list(run_by_name.values())


def described(path: Path) -> OwnRun:
    """A run by its run.toml. Raises DataError if that cannot be read."""
    try:
        table: dict[str, Any] = bounded.read_toml(path / "run.toml")
        return OwnRun(path, str(table["arm"]), str(table["task"]["name"]), int(table["seed"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / 'run.toml'}: cannot be read ({error}); restore it") from None


def shared_design(
    folders: Sequence[Path], runs: Sequence[OwnRun], faults: list[ImportFault]
) -> dict[str, Any]:
    """The entries of these experiments' experiment.json that decide how a report compares the runs: control,
    margin and rates that were not searched. If experiments have different controls or margins, `faults` says
    so and none is used."""
    tables = {folder: read_json(folder / "experiment.json") for folder in folders}
    arms = {run.arm for run in runs}
    rates = [table.get("borrowed_rates", {}).items() for table in tables.values()]
    design: dict[str, Any] = {
        "borrowed_rates": {arm: origin for each in rates for arm, origin in each if arm in arms}
    }
    for key in ("control", "margin"):
        values = {folder: table[key] for folder, table in tables.items() if table.get(key)}
        if len({*values.values()}) > 1:
            each = ", ".join(f"{value} in {folder}" for folder, value in values.items())
            faults.append(
                ImportFault(folders[0], None, f"--beside: different values of {key} ({each}); none is used")
            )
        elif values and (key != "control" or {*values.values()} <= arms):
            design[key] = next(iter(values.values()))
    return design


def copy(runs: Sequence[OwnRun], out: Path) -> None:
    """Copy the runs into a folder, without what only a running experiment needs; one that is there stays."""
    for run in runs:
        if not (out / run.path.name).exists():
            shutil.copytree(run.path, out / run.path.name, ignore=shutil.ignore_patterns(*LEFT))
