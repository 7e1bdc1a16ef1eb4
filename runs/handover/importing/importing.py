"""`grpobench import`: turn logs of other libraries into run folders, which reports read like our own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpobench.runs.handover.importing import beside, folder, handed
from grpobench.runs.handover.importing.folder import KeyOverrides, RunKey
from grpobench.runs.handover.importing.log import ImportFault, Log
from grpobench.runs.handover.importing.sources import ImportSource, find_sources, read_source
from grpobench.runs.handover.importing.translate import (
    STEP,
    Translated,
    diverged,
    divided,
    language,
    translate,
)
from grpobench.runs.tools.files import demand_writable
from grpobench.tasks.data.tables import DataError


@dataclass(frozen=True)
class ImportRequest:
    """The request of the command line."""

    sources: Sequence[Path]
    out: Path
    form: str = ""
    """One of `sources.FORMATS`; empty: detect the format of each file."""
    mapped: Mapping[str, str] = field(default_factory=dict)
    overrides: KeyOverrides = field(default_factory=KeyOverrides)
    experiment: str = ""
    strict: bool = False
    beside: Sequence[Path] = ()
    """Experiments of ours whose runs are copied into `out`."""


@dataclass(frozen=True)
class ReadRun:
    """A run that was read, and its target."""

    source: ImportSource
    target: RunKey
    log: Log
    translated: Translated
    library: str


@dataclass(frozen=True)
class Imported:
    """What an import created, and what it could not import."""

    experiment: Path
    runs: Sequence[ReadRun]
    faults: Sequence[ImportFault]
    """Faults of sources that could not be read at all."""
    unused: Sequence[str] = ()
    """Names in --map that no log has."""

    @property
    def every_fault(self) -> list[ImportFault]:
        """These faults and those of the runs."""
        return [*self.faults, *(fault for run in self.runs for fault in run.log.faults)]


def carry_out(request: ImportRequest) -> Imported:
    """Read every source, then write a run folder for each run, and experiment.json. Nothing is written if
    nothing can be read, or if `strict` and anything cannot be read. Raises DataError in these cases,
    ConfigError for an `out` with other content and for a missing package."""
    demand_writable(request.out, "OUT")
    ours = beside.settled_runs(request.beside)
    before = folder.described(request.out)
    originals: folder.Originals = before.get("originals", {})
    faults: list[ImportFault] = []
    design = beside.shared_design(request.beside, ours, faults)
    made: dict[RunKey, ReadRun] = {}
    for source, log in joined(logs(request, faults)):
        try:
            run = translated_run(source, log, request, made)
        except DataError as error:
            faults.append(ImportFault(source.path, None, message_of(error, source)))
            continue
        clash = folder.find_confusion(run.target, originals) or occupied(run, made, request.out)
        if clash:
            faults.append(ImportFault(source.path, None, clash))
        else:
            made[run.target] = run
    result = Imported(request.out, list(made.values()), faults, unused(request, made.values()))
    if request.strict and result.every_fault:
        raise DataError("--strict: " + "\n".join(map(str, result.every_fault)))
    if not made:
        raise DataError("\n".join(map(str, faults)) or "nothing to import")
    name = request.experiment or str(before.get("name") or request.out.resolve().name)
    for run in made.values():
        folder.write(request.out, name, run.target, run.log, run.translated, run.library)
    beside.copy(ours, request.out)
    run_keys = [*ours_keys(ours), *made]
    folder.write_experiment(request.out, name, before, run_keys, originals, list(map(str, faults)), design)
    return result


def ours_keys(runs: Iterable[beside.OwnRun]) -> list[RunKey]:
    """Our own runs as the targets of an import."""
    return [RunKey(run.arm, run.task.replace(":", "-"), run.seed) for run in runs]


def logs(request: ImportRequest, faults: list[ImportFault]) -> Iterator[tuple[ImportSource, Log]]:
    """The log of every source; whatever cannot be read is added to `faults`."""
    for path in request.sources:
        for source in find_sources(path, request.form, faults):
            try:
                log = read_source(source, request.form, request.mapped)
            except DataError as error:
                faults.append(ImportFault(source.path, None, message_of(error, source)))
                continue
            handed.adopt(source.path, log)
            yield source, log


def message_of(error: DataError, source: ImportSource) -> str:
    """The text of an error, without the path that a fault already has."""
    return str(error).removeprefix(f"{source.path}: ").removeprefix(f"{source.path}, ")


def joined(source_logs: Iterable[tuple[ImportSource, Log]]) -> list[tuple[ImportSource, Log]]:
    """Join the parts of a run that was stopped and resumed, in the position of its first part."""
    runs: dict[object, list[tuple[ImportSource, Log]]] = {}
    for number, (source, log) in enumerate(source_logs):
        runs.setdefault(log.identity or number, []).append((source, log))
    for parts in runs.values():
        parts.sort(key=lambda part: part[1].started)
        for _, later in parts[1:]:
            parts[0][1].go_on(later)
        if len(parts) > 1:
            parts[0][1].notes.append(f"{len(parts)} files are parts of one resumed run")
    return [parts[0] for parts in runs.values()]


def translated_run(
    source: ImportSource, log: Log, request: ImportRequest, made: Mapping[RunKey, ReadRun]
) -> ReadRun:
    """A log under our names, with its target. Raises DataError for numbers outside their range."""
    log.notes += log.repeated()
    mapped = {theirs: ours for theirs, ours in {**log.mapped, **request.mapped}.items() if ours != STEP}
    vocabulary = language(log)
    translated = translate(log, vocabulary, mapped)
    if log.state in ("finished", "preempted") and (why := diverged(translated)):
        log.state, log.why = "diverged", why
    where = folder.run_key(source.label, log, translated.task, request.overrides, made)
    return ReadRun(source, where, log, translated, vocabulary.library if vocabulary else "")


def occupied(run: ReadRun, made: Mapping[RunKey, ReadRun], out: Path) -> str:
    """Why a run cannot be written to its target; empty if it can."""
    where = f"{run.target.arm} on {run.target.task} with seed {run.target.seed}"
    remedy = "distinguish them with --arm, --task or --seed, or by the names of their folders"
    if run.target in made:
        return f"is {where}, as {made[run.target].source.path} is; {remedy}"
    if (out / run.target.folder).exists():
        return f"is {where}, which {out} has already; remove it there, or {remedy}"
    return ""


def unused(request: ImportRequest, runs: Iterable[ReadRun]) -> list[str]:
    """Names in --map that no log has."""
    names = {name for run in runs for row in run.log.rows.values() for name in row}
    return [
        theirs
        for theirs, ours in request.mapped.items()
        if ours != STEP and theirs not in names and divided(theirs)[0] not in names
    ]
