"""The records of a finding: its kept table, and the runs of a rerun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.inventory import folders
from grpobench.runs.inventory.findings.judging import judging_rule
from grpobench.runs.inventory.findings.parts import is_in, read_part, with_part
from grpobench.runs.settings import stored
from grpobench.runs.settings.findings import FindingFile, findings, read_finding, registered_runs
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record


@dataclass(frozen=True)
class Records:
    """A finding at a scale: what is kept of it, and what its runs in a folder say.

    A kept table is a conclusion that others read. It stays until a complete rerun is kept: a rerun that was
    interrupted, or one that nobody has kept yet, is reported next to it and never in its place."""

    study: FindingFile
    kept_record: Record | None
    runs: Record | None
    """Of the folder, where runs have begun there; None where the kept table is of these very runs."""
    folder: Path
    differences: tuple[str, ...] = ()
    """Why the runs beside a kept table are not the whole finding as its file has it."""

    @property
    def listed(self) -> Record | None:
        """What a listing shows: what is kept, and the runs only where nothing is."""
        return self.kept_record or self.runs

    @property
    def judged(self) -> Record | None:
        """What a verdict is asked of: runs that are the whole finding, else what is kept, else the runs."""
        if self.runs and self.kept_record and (self.runs.waits or self.differences):
            return self.kept_record
        return self.runs or self.kept_record

    @property
    def rerun(self) -> dict[str, Any] | None:
        """The runs beside a kept table, as JSON holds them."""
        if not (self.kept_record and self.runs):
            return None
        waits = self.runs.waits
        return {
            "folder": str(self.folder),
            "runs": len(set(self.runs.registration.settings) | set(waits)),
            "missing": len(waits),
            "differences": list(self.differences),
            "verdict": self.runs.result(judging_rule(self.study, self.runs)).verdict,
            "kept": self.kept_record.result(judging_rule(self.study, self.kept_record)).verdict,
        }


def rerun_words(rerun: Mapping[str, Any]) -> str:
    """Why the kept conclusion stands beside a rerun, as `Records.rerun` describes it."""
    stands = f"the kept conclusion ({rerun['kept']}) stands"
    if rerun["missing"]:
        count = f"{rerun['missing']} of {rerun['runs']} runs"
        return f"{stands}: {count} of the rerun in {rerun['folder']} are missing"
    if rerun["differences"]:
        reasons = "; ".join(rerun["differences"])
        return f"{stands}: the rerun in {rerun['folder']} is not the whole finding: {reasons}"
    return (
        f"{stands} until the rerun in {rerun['folder']} is kept; it is complete: {rerun['verdict']} "
        f"(grpobench keep {rerun['folder']})"
    )


def find_records(study: FindingFile, scale: str, out: Path) -> Records:
    """The kept table, and the runs in the finding's folder below `out` if any have begun there, together with
    a kept part. Raises LogError."""
    from grpobench.analysis.findings.record import FILE, read_kept
    from grpobench.analysis.runfolder.load import load

    folder = out / f"{study.finding.name}-{scale}"
    path = kept_path(study, scale)
    kept_record = read_kept(path) if path else None
    begun = (folder / FILE).exists() and any(folder.glob("*/run.toml"))
    part = read_part(study.finding.name, scale)
    runs = with_part(load(folder), part) if begun else part
    if kept_record and runs and is_of(kept_record, runs):
        runs = None
    reasons = differences(study, scale, folder, part) if kept_record and runs else ()
    return Records(study, kept_record, runs, folder, tuple(reasons))


def differences(study: FindingFile, scale: str, folder: Path, part: Record | None = None) -> list[str]:
    """How the runs in a folder and a part differ from those of the finding's file as it is now: runs that are
    missing, and settings that are others. More runs than these are none. Nothing where this machine cannot
    tell."""
    try:
        configs = registered_runs(study.finding, study.recipe(scale))
    except ConfigError:  # such as data that are not here
        return []
    absent, altered = [], dict[str, list[str]]()
    for config in configs:
        path = folder / config.folder / "run.toml"
        if is_in(part, config):
            continue
        if not path.exists():
            absent.append(config.folder)
            continue
        text = bounded.read_text(path)
        for change in stored.differences(text, stored.dump(config), stored.defaults(config)):
            key, _, values = change.partition(": ")
            ours, _, now = values.partition(" -> ")
            altered.setdefault(f"{key} is {ours} and not {now}", []).append(config.folder)
    reasons = [f"{alteration} in {_number(runs)}" for alteration, runs in altered.items()]
    if absent:
        share = f"{len(absent)} of {len(configs)} runs"
        if len(absent) == len(configs):
            share = "all registered runs (the seeds or the arms are others)"
        reasons.insert(0, f"{share} are missing, such as {absent[0]}")
    return reasons


def _number(runs: Sequence[str]) -> str:
    return runs[0] if len(runs) == 1 else f"{len(runs)} runs"


def demand_whole(record: Record, path: Path, source: Path) -> None:
    """Raises DataError where a partial rerun would replace what is kept at `path`: of fewer runs, or of other
    settings than the finding's file has. Two seeds are whole by their own registration, and still no
    substitute for eight."""
    from grpobench.analysis.findings.record import read_kept

    try:
        before = read_kept(path) if path.exists() else None
    except LogError:
        return  # a damaged table may be written again
    if before is None:
        return
    registration, scale = record.registration, record.registration.scale
    reasons: list[str] = []
    if registration.finding.name in findings():
        study = read_finding(registration.finding.name)
        part = read_part(study.finding.name, scale)
        reasons = differences(study, scale, source, part) if scale in study.scales else []
    same_rule = before.registration.finding.digest == registration.finding.digest
    lost = [run for run in before.states if run not in record.states]
    if not reasons and same_rule and lost:
        arm, task, seed = lost[0]
        count = f"{len(lost)} of {len(before.states)} kept runs are missing"
        reasons = [f"{count}, such as {arm} on {task}, seed {seed}"]
    if reasons:
        raise DataError(
            f"{path} stands: the runs in {source} are not the whole finding: {'; '.join(reasons)}; keep a "
            "partial rerun elsewhere with --to DIR"
        )


def set_aside(path: Path, record: Record) -> Path | None:
    """Move a kept table whose runs were registered by another rule to the folder of earlier tables; None if
    there is none."""
    from grpobench.analysis.findings.record import read_kept

    try:
        before = read_kept(path) if path.exists() else None
    except LogError:
        return None  # a damaged table says nothing
    if before is None or before.registration.finding.digest == record.registration.finding.digest:
        return None
    earlier = path.parents[1] / folders.SET_ASIDE / path.parent.name / path.name
    earlier.parent.mkdir(parents=True, exist_ok=True)
    path.replace(earlier)
    return earlier


def is_of(kept_record: Record, runs: Record) -> bool:
    """Whether a kept table is of these very runs, and perhaps of others that a part held."""
    rows = kept_record.plain()["runs"]
    return kept_record.registration == runs.registration and all(row in rows for row in runs.plain()["runs"])


def kept_path(study: FindingFile, scale: str) -> Path | None:
    """A finding's kept table; None where none is kept."""
    results = folders.results_folder()
    path = results and folders.kept_finding(results, study.finding.name, scale)
    return path if path and path.exists() else None
