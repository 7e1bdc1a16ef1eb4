"""Check a published file set, and keep its results next to ours."""

# Nothing of a contribution counts as ours: its tables lie in a folder with its name, and every page that
# shows them says whose they are.

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from grpobench.analysis.checks.gaps import find_unplanned_runs
from grpobench.analysis.findings.record import FOLDER as FINDINGS
from grpobench.analysis.findings.record import record_of, record_text
from grpobench.analysis.kept import demand_whole, keep
from grpobench.analysis.profile import kept as profiles
from grpobench.analysis.record import as_text
from grpobench.analysis.runfolder.experiment import Experiment, attempts
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.handover.publishing import contributed, fileset
from grpobench.runs.handover.publishing.contributed import CONTRIBUTED, EXPERIMENTS, PROFILE, VERIFIED
from grpobench.runs.handover.publishing.fileset import MANIFEST, Kind, Manifest
from grpobench.runs.handover.publishing.tables import (
    CONTROLS,
    SEARCH,
    changed_settings,
    manifest_of,
    outcomes,
    scale_of,
    tables_of,
    text_of,
)
from grpobench.runs.settings.probes import NANO, common
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

ALGORITHM = re.compile("[A-Za-z0-9_.:@-]{1,80}")
"""What an algorithm of a contribution may be called, since pages show it."""
MOST_NAMED = 20
"""Files that do not belong into a set, of which messages name so many."""


@dataclass(frozen=True)
class CheckedFileSet:
    """A file set that holds what it says."""

    folder: Path
    manifest: Manifest
    experiments: Mapping[str, Experiment]
    """By name, at all rates; their folders exist while the set is open."""
    shown: Mapping[str, str]
    """The texts that a contribution shows, by path: tables of findings, experiments and outcomes."""


@contextlib.contextmanager
def checked(folder: Path) -> Iterator[CheckedFileSet]:
    """The file set in a folder, with its experiments in a temporary one. Raises ConfigError with everything
    that is wrong; what lies behind a fault cannot be trusted and is not checked."""
    if not folder.is_dir():
        refuse(folder, [f"{why_no_folder(folder)}; give a file set that `grpobench publish` wrote"])
    refuse(folder, islice(fileset.foreign_files(folder), MOST_NAMED))  # before anything is opened
    with tempfile.TemporaryDirectory(prefix="grpobench-") as temporary:
        try:
            claimed = fileset.read_manifest(folder)
            refuse(folder, wrong_sums(folder))
            experiments = unpacked(folder, claimed, Path(temporary))
            refuse(folder, [*wrong_claims(folder, claimed, experiments), *wrong_runs(claimed, experiments)])
            shown = dict(shown_of(name, kind, experiments[name]) for name, kind in claimed.kinds.items())
        except (LogError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # Files of others may hold anything.
            refuse(folder, [f"cannot be read: {error if error.args else type(error).__name__}"])
        yield CheckedFileSet(folder, claimed, experiments, shown)


def refuse(folder: Path, faults: Iterable[str]) -> None:
    """Raise ConfigError if there are faults."""
    if lines := list(faults):
        raise ConfigError(lines, f"{folder}: refused")


def wrong_sums(folder: Path) -> Iterator[str]:
    """Files that are missing, changed or not listed."""
    listed = bounded.read_text(folder / fileset.SUMS).splitlines()
    changed = {*listed} ^ {*fileset.sums_text(folder).splitlines()}
    for name in sorted({line.partition("  ")[2] for line in changed}):
        yield f"checksums: {name} is not as {fileset.SUMS} lists it"


def unpacked(folder: Path, claimed: Manifest, temporary: Path) -> dict[str, Experiment]:
    """The experiments of a file set by name, at all rates, unpacked below a folder. Raises ConfigError."""
    experiments, faults = {}, []
    # Names come from the files, so that no name of the manifest leads out of the folders.
    names = sorted(path.name.removesuffix(".tar.zst") for path in (folder / fileset.ARCHIVES).iterdir())
    if names != sorted(claimed.kinds):
        refuse(folder, [f"manifest: names {', '.join(claimed.kinds)}, and there are {', '.join(names)}"])
    for name in claimed.kinds:
        try:
            fileset.unpack(fileset.archive_of(folder, name), temporary / name)
            fileset.demand_sums(temporary / name)
            experiments[name] = load(temporary / name, strict=True).at_all_rates
            demand_whole(experiments[name])
        except (LogError, ValueError) as error:
            faults.append(f"logs of {name}: {error}")
    refuse(folder, faults)
    return experiments


def wrong_claims(folder: Path, claimed: Manifest, experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """Manifest and tables that are not what the logs say."""
    head = {key: getattr(claimed, key) for key in ("name", "contributor", "license", "published")}
    frames = tables_of(experiments, claimed.kinds)
    texts = {f"{name}.jsonl.gz": text_of(frames[name]) if name in frames else "" for name in fileset.TABLES}
    texts[MANIFEST] = manifest_of(head, claimed.kinds, experiments).text()
    for name, text in texts.items():
        if (bounded.read_bytes(folder / name) if (folder / name).exists() else b"") != text.encode():
            yield f"{name} is not what the logs say"


def wrong_runs(claimed: Manifest, experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """Runs without provenance or seeds, and those that began after the set was published."""
    latest = ""
    for name, experiment in experiments.items():
        for run in experiment.runs:
            *_, last = [{}, *attempts(run)]
            latest = max(latest, str(last.get("started", ""))[:10])
            # An installed package has no commit; digests of its code are there all the same.
            lacking = [key for key in ("versions", "code", "device", "threads") if not last.get(key)]
            if lacking or not run.provenance.get("fingerprints"):
                yield f"provenance of {name}: {run.name} lacks {', '.join(lacking) or 'fingerprints'}"
        if claimed.kinds[name] == "profile":
            yield from wrong_probes(name, experiment)
        else:
            yield from (f"runs of {name}: {line}" for line in find_unplanned_runs(experiment))
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()  # clocks differ
    if not latest <= claimed.published <= tomorrow:
        yield f"manifest: published is {claimed.published}, not between the last run ({latest}) and today"


def wrong_probes(name: str, experiment: Experiment) -> Iterator[str]:
    """Runs of a profile with other settings than the probe's, seeds that are not the first of the probe's,
    and names that no page can show. Controls change what they exaggerate, and are not shown."""
    if name.startswith(CONTROLS):
        return
    for run in experiment.runs:
        if lines := changed_settings(experiment, run):
            yield f"settings of {name}: {run.name}: {lines[0]}"
    cells: dict[tuple[Any, ...], list[int]] = {}
    for run, row in outcomes(name, experiment):
        if not ALGORITHM.fullmatch(row.algorithm):
            yield f"profile: {row.algorithm[:80]!a} is no name of an algorithm"
        cells.setdefault((scale_of(run), *row.key[:-1]), []).append(row.seed)
    table = "search" if name.startswith(SEARCH) else "profile"
    for (scale, algorithm, probe, *_), seeds in cells.items():
        if {*seeds} != {*common(scale)[table]["seeds"][: len(seeds)]}:
            run_seeds = f"{algorithm} on {probe} has {sorted(seeds)}"
            yield f"seeds of {name}: {run_seeds}, which are not the first of the probes'"


def shown_of(name: str, kind: Kind, experiment: Experiment) -> tuple[str, str]:
    """Path and text of what a contribution shows of an experiment. Raises LogError."""
    if kind == "finding":
        record = record_of(experiment.at_own_rates())
        finding = f"{record.registration.finding.name}-{record.registration.scale}"
        return f"{FINDINGS}/{finding}.json", record_text(record)
    if kind == "experiment":
        return f"{EXPERIMENTS}/{name}.json", as_text(keep(experiment.at_own_rates()))
    rows = [row for run, row in outcomes(name, experiment) if scale_of(run) == NANO]  # as the pages have them
    return f"{contributed.SEARCH if name.startswith(SEARCH) else PROFILE}/{name}.csv", profiles.text_of(rows)


def accept(file_set: CheckedFileSet, results: Path, verified: Mapping[str, Any] | None = None) -> list[Path]:
    """Write what a contribution shows below `results`/contributed/NAME, with what was run again. Raises
    LogError where the name is of another contributor, or of more runs."""
    claimed = file_set.manifest
    folder = results / CONTRIBUTED / claimed.name
    if (folder / MANIFEST).exists():
        before = fileset.read_manifest(folder)
        if before.contributor != claimed.contributor:
            raise LogError(f"{folder}: is a contribution of {before.contributor}; choose another name")
        if lost := sorted({*before.runs} - {*claimed.runs}):
            raise LogError(
                f"{folder}: was contributed with more runs, such as {lost[0]}; choose another name"
            )
    texts = {MANIFEST: claimed.text(), **file_set.shown}
    if verified:
        texts[VERIFIED] = as_text(verified)
    files.remove(folder)  # an earlier version of the contribution
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(folder / path, text.encode())
    return [folder / path for path in texts]
