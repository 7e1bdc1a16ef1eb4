"""Check a published file set, and keep its results next to ours."""

# Nothing of a contribution counts as ours: its tables lie in a folder with its name, and every page that
# shows them says whose they are.

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from grpobench.analysis.findings.record import (
    FOLDER,
    Record,
    record_of,
    record_text,
)
from grpobench.analysis.kept import MIXTURES, keep
from grpobench.analysis.profile import kept as profiles
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.record import as_text
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.experiment.profiling import safe
from grpobench.runs.publishing import fileset
from grpobench.runs.publishing.contributed import (
    CONTRIBUTED,
    EXPERIMENTS,
    MANIFEST,
    PROFILE,
    VERIFIED,
)
from grpobench.runs.publishing.fileset import Manifest, PublishedExperiment
from grpobench.runs.publishing.profile_rows import changed_settings, rows_of_run
from grpobench.runs.publishing.publish import PublishSource, part_of
from grpobench.runs.publishing.verify import Verification
from grpobench.runs.settings.probes import SCALES, common
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

ALGORITHM = re.compile("[A-Za-z0-9_.:@-]{1,80}")
"""What an algorithm of a contribution may be called, since pages show it."""


@dataclass(frozen=True)
class VerifiedFileSet:
    """A file set that holds what it says."""

    manifest: Manifest
    records: Mapping[str, Record]
    """By experiment, what its runs say of a finding."""
    tables: Mapping[str, str]
    """By experiment, the kept table."""
    outcomes: Mapping[str, Sequence[ProbeOutcome]]
    """By file of profile/, the outcomes on probes."""


class Faults(ConfigError):
    """Everything that is wrong with a file set."""

    def __init__(self, folder: Path, faults: Sequence[str]) -> None:
        super().__init__(faults, f"{folder}: refused")


def check(folder: Path) -> VerifiedFileSet:
    """Raises Faults."""
    if not folder.is_dir():
        raise Faults(folder, [f"{why_no_folder(folder)}; give a file set that `grpobench publish` wrote"])
    if faults := list(fileset.irregular_files(folder)):
        raise Faults(folder, faults)  # before anything is opened
    try:
        manifest = fileset.read_manifest(folder)
    except LogError as error:
        raise Faults(folder, [f"manifest: {error}"]) from error
    if faults := [*wrong_date(manifest), *wrong_files(folder, manifest), *wrong_archives(folder, manifest)]:
        raise Faults(folder, faults)  # what lies behind them cannot be trusted
    try:
        return check_logs(folder, manifest)
    except (LogError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # Logs of others may hold anything.
        raise Faults(folder, [f"logs: cannot be read ({type(error).__name__}: {error})"]) from error


def check_logs(folder: Path, manifest: Manifest) -> VerifiedFileSet:
    """What the logs say. Raises Faults, and any error of reading logs that nothing wrote."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="grpobench-") as temporary:
        experiments = []
        for part in manifest.experiments:
            try:
                fileset.unpack(archive_of(folder, part.name), Path(temporary) / part.name)
                if unsealed := fileset.files_without_checksum(Path(temporary) / part.name):
                    faults.append(f"logs of {part.name}: {unsealed[0]}")
                    continue
                if wrong := list(fileset.wrong_sums(Path(temporary) / part.name)):
                    faults.append(f"logs of {part.name}: {wrong[0]}")
                    continue
                experiments.append(load(Path(temporary) / part.name, strict=True).at_all_rates)
            except LogError as error:
                faults.append(f"logs of {part.name}: {error}")
        if faults:
            raise Faults(folder, faults)
        for part, experiment in zip(manifest.experiments, experiments, strict=True):
            faults += [*wrong_runs(part, experiment), *wrong_times(manifest, experiment)]
        faults += wrong_tables(folder, experiments)
        outcomes, wrong_outcomes = read_outcomes(folder, manifest, experiments)
        faults += wrong_outcomes
        if faults:
            raise Faults(folder, faults)
        kinds = {part.name: part.kind for part in manifest.experiments}
        return VerifiedFileSet(
            manifest,
            {
                experiment.folder.name: finding_record(folder, experiment.at_own_rates())
                for experiment in experiments
                if kinds[experiment.folder.name] == "finding"
            },
            {
                experiment.folder.name: as_text(keep(experiment.at_own_rates()))
                for experiment in experiments
                if kinds[experiment.folder.name] == "experiment"
            },
            outcomes,
        )


def finding_record(folder: Path, experiment: Experiment) -> Record:
    """The record of a finding whose folder has the finding's name. Raises Faults."""
    record = record_of(experiment)
    registration = record.registration
    if experiment.folder.name != f"{registration.finding.name}-{registration.scale}":
        mismatch = f"{experiment.folder.name} holds {registration.finding.name} at {registration.scale} scale"
        raise Faults(folder, [f"manifest: {mismatch}"])
    return record


def wrong_date(manifest: Manifest) -> Iterator[str]:
    """A date of publishing that does not exist or is to come."""
    try:
        published = date.fromisoformat(manifest.published)
    except ValueError:
        yield f"manifest: published is {manifest.published}, which is no date"
        return
    if published > datetime.now(UTC).date() + timedelta(days=1):  # clocks differ
        yield f"manifest: published is {manifest.published}, which is to come"


def wrong_times(manifest: Manifest, experiment: Experiment) -> Iterator[str]:
    """Runs that began after the set was published, or with a later version than it was published with."""
    for run in experiment.runs:
        for attempt in run.provenance.get("attempts", ()):
            if str(attempt.get("started", ""))[:10] > manifest.published:
                yield f"manifest: published is {manifest.published}, and {run.name} began later"
            used = str(attempt.get("versions", {}).get("grpobench", "0"))
            if numbers(used) > numbers(manifest.grpobench):
                yield f"manifest: grpobench is {manifest.grpobench}, and {run.name} ran with {used[:40]}"


def numbers(version: str) -> list[int]:
    """The numbers at the beginning of a version."""
    return [int(part) for part in re.match(r"[0-9.]*", version)[0].split(".") if part]  # type: ignore[index]


def archive_of(folder: Path, name: str) -> Path:
    return folder / fileset.ARCHIVES / f"{name}.tar.zst"


def wrong_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Files that are missing, changed, foreign, or not in the list of checksums."""
    yield from (
        f"files: {name} does not belong into a file set" for name in fileset.foreign_files(folder, manifest)
    )
    try:
        listed = fileset.read_sums(folder)
    except LogError as error:
        yield f"checksums: {error}"
        return
    there = fileset.contents(folder)
    for name in sorted({*listed, *there}):
        if name not in there:
            yield f"checksums: {name} is missing"
        elif name not in listed:
            yield f"checksums: {name} is not listed in {fileset.SUMS}"
        elif bounded.sha256(there[name]) != listed[name]:
            yield f"checksums: {name} is not what was published"


def wrong_archives(folder: Path, manifest: Manifest) -> Iterator[str]:
    manifest_names = {part.name for part in manifest.experiments}
    archive_names = {path.name.removesuffix(".tar.zst") for path in (folder / fileset.ARCHIVES).glob("*")}
    if manifest_names != archive_names:
        listed, present = (", ".join(sorted(names)) for names in (manifest_names, archive_names))
        yield f"manifest: names {listed}, and there are {present}"
    if len(manifest_names) < len(manifest.experiments):
        yield "manifest: names an experiment twice"


def wrong_runs(part: PublishedExperiment, experiment: Experiment) -> Iterator[str]:
    """Runs that are not those of the manifest, lack a result or provenance, or do not belong together."""
    about = f"of {part.name}"
    now = part_of(PublishSource(experiment.folder, part.kind), experiment)
    for key in ("command", "arms", "tasks", "seeds", "commits", "versions", "machine"):
        if getattr(part, key) != getattr(now, key):
            yield f"manifest {about}: {key} is {getattr(part, key)}, by the logs {getattr(now, key)}"
    if now.runs != part.runs:
        changed = sorted(
            name for name in {*now.runs, *part.runs} if now.runs.get(name) != part.runs.get(name)
        )
        yield f"settings {about}: {changed[0]} is not the run that the manifest describes"
    for run in experiment.runs:
        if not run.settled:
            yield f"runs {about}: {run.name} has no result"
        if run.state == "finished" and run.step != run.config["train"]["steps"]:
            yield f"runs {about}: {run.name} is {run.state} at step {run.step}"
        attempts = run.provenance.get("attempts") or [{}]
        # An installed package has no commit; digests of its code are there all the same.
        lacking = [key for key in ("versions", "code", "device", "threads") if not attempts[-1].get(key)]
        if lacking or not run.provenance.get("fingerprints"):
            yield f"provenance {about}: {run.name} lacks {', '.join(lacking) or 'fingerprints'}"
    cells = {(run.arm, run.task): set[int]() for run in experiment.runs}
    for run in experiment.runs:
        cells[run.arm, run.task].add(run.seed)
    for (arm, task), seeds in cells.items():
        if lost := sorted({*part.seeds} - seeds):
            yield f"seeds {about}: {arm} on {task} lacks {', '.join(map(str, lost))}"
    for find in MIXTURES:
        yield from (f"runs {about}: {line}" for line in find(experiment))


def wrong_tables(folder: Path, experiments: Sequence[Experiment]) -> Iterator[str]:
    """Tables that are not those of the logs."""
    for name, frame in fileset.tables(experiments).items():
        path = folder / f"{name}.jsonl.gz"
        stored_bytes = bounded.read_bytes(path, packed=False) if path.exists() else b""
        if stored_bytes != (fileset.table_bytes(frame) if len(frame) else b""):
            yield f"tables: {path.name} is not what the logs say"


# Profiles

Measured: TypeAlias = dict[tuple[str, str, float, float, int], ProbeOutcome]


def read_outcomes(
    folder: Path, manifest: Manifest, experiments: Sequence[Experiment]
) -> tuple[dict[str, list[ProbeOutcome]], list[str]]:
    """The tables of outcomes by file, and what is wrong with them: runs with other settings than the probe's,
    rows that are not what the logs say, rows that were left out, and seeds that are not the probes'."""
    kinds = {part.name: part.kind for part in manifest.experiments}
    own_rows: Measured = {}
    others: Measured = {}
    faults: list[str] = []
    for experiment in experiments:
        if kinds[experiment.folder.name] != "profile":
            continue
        for run in experiment.runs:
            if lines := changed_settings(experiment, run):
                faults.append(f"settings of {experiment.folder.name}: {run.name}: {lines[0]}")
            rows = [*rows_of_run(experiment, run)]
            own_rows |= {row.key: row for row in rows[:1]}
            others |= {row.key: row for row in rows[1:]}
    tables: dict[str, list[ProbeOutcome]] = {}
    for path in sorted((folder / fileset.PROFILE).glob("*.csv")):
        try:
            tables[path.name] = profiles.read(path)
        except LogError as error:
            faults.append(f"profile: {error}")
    listed = [with_safe_name(row).key for rows in tables.values() for row in rows]
    if len({*listed}) < len(listed):
        faults.append("profile: a run is in the tables twice")
    if left := [row for key, row in own_rows.items() if key not in listed]:
        faults.append(f"profile: {describe_row(left[0])}, was run and is in no table")
    for row in (row for rows in tables.values() for row in rows):
        if not ALGORITHM.fullmatch(row.algorithm):
            faults.append(f"profile: {row.algorithm[:80]!a} is no name of an algorithm")
    for name, rows in tables.items():
        faults += [*wrong_rows(name, rows, {**others, **own_rows}), *wrong_seeds(name, rows)]
    return tables, faults


def wrong_seeds(name: str, rows: Sequence[ProbeOutcome]) -> Iterator[str]:
    """Rows in a table of another kind, and probes without the first of their seeds."""
    shared = [common(scale) for scale in SCALES]
    kinds = {profiles.SEARCH: ("search", "seeds"), profiles.CONTROLS: ("profile", "control_seeds")}
    table, key = kinds.get(name.removesuffix(".csv"), ("profile", "seeds"))
    lists = [settings[table][key] for settings in shared]
    cells: dict[tuple[str, str, float, float], set[int]] = {}
    for row in rows:
        cells.setdefault(row.key[:-1], set()).add(row.seed)
    for cell, seeds in cells.items():
        if not any(seeds == {*seed_list[: len(seeds)]} for seed_list in lists):
            cell_seeds = f"{cell[0]} on {cell[1]} has {sorted(seeds)}"
            yield f"seeds: {name}: {cell_seeds}, which are not the first of the probes' {key}"
            return


def with_safe_name(row: ProbeOutcome) -> ProbeOutcome:
    """A row whose algorithm is written as in the name of its experiment."""
    return replace(row, algorithm=safe(row.algorithm))


def describe_row(row: ProbeOutcome) -> str:
    return f"{row.algorithm} on {row.probe}, seed {row.seed}"


def wrong_rows(name: str, rows: Sequence[ProbeOutcome], measured: Measured) -> Iterator[str]:
    """The first row of a table that its logs do not bear out."""
    for row in rows:
        measured_row = measured.get(with_safe_name(row).key)
        if measured_row is None:
            yield f"profile: {name}: {describe_row(row)}, has no run"
        elif (f"{measured_row.outcome:.6g}", measured_row.state) != (f"{row.outcome:.6g}", row.state):
            logged = f"is {measured_row.outcome:.6g} by its logs, not {row.outcome:.6g}"
            yield f"profile: {name}: {describe_row(row)}, {logged}"
        elif row.failed not in (None, measured_row.failed):
            logged = f"failed is {measured_row.failed!r} by its logs, not {row.failed!r}"
            yield f"profile: {name}: {describe_row(row)}, {logged}"
        else:
            continue
        return


# What is accepted


def accept(checked: VerifiedFileSet, results: Path, verification: Verification | None = None) -> list[Path]:
    """Write what a contribution shows below `results`/contributed/NAME, with what was run again. Raises
    LogError where the name is of another contributor."""
    folder = results / CONTRIBUTED / checked.manifest.name
    if (folder / MANIFEST).exists():
        before = fileset.read_manifest(folder)
        if before.contributor != checked.manifest.contributor:
            raise LogError(f"{folder}: is a contribution of {before.contributor}; choose another name")
        now = {part.name: {*part.runs} for part in checked.manifest.experiments}
        if lost := [part.name for part in before.experiments if {*part.runs} - now.get(part.name, set())]:
            raise LogError(f"{folder}: was contributed with more runs of {lost[0]}; choose another name")
    written = {folder / MANIFEST: checked.manifest.text()}
    for name, record in checked.records.items():
        written[folder / FOLDER / f"{name}.json"] = record_text(record)
    for name, table in checked.tables.items():
        written[folder / EXPERIMENTS / f"{name}.json"] = table
    for name, rows in checked.outcomes.items():
        written[folder / PROFILE / name] = profiles.text_of(rows)
    if verification:
        written[folder / VERIFIED] = as_text(verification.plain())
    for path in folder.rglob("*.*"):
        if path not in written:
            path.unlink()  # of an earlier version of the contribution
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, text.encode())
    return list(written)
