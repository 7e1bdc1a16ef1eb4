"""Which runs a file or a folder holds, and how each is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpobench.runs.importing.folder import parted
from grpobench.runs.importing.log import ImportFault, Log, head
from grpobench.runs.importing.readers import columns, console, tensorboard, trl, verl_dumps, wandb
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

FORMATS = ("trl", "verl", "openrlhf", "wandb", "tensorboard", "csv", "jsonl")
STATE, LINES, JSONL, CSV, WANDB, EVENTS = "state", "lines", "jsonl", "csv", "wandb", "events"
KINDS: Mapping[str, Sequence[str]] = {
    "": (STATE, WANDB, LINES, JSONL, CSV, EVENTS),
    "trl": (STATE, JSONL, CSV, WANDB, EVENTS),
    "verl": (JSONL, LINES, CSV, WANDB, EVENTS),
    "openrlhf": (LINES, JSONL, CSV, WANDB, EVENTS),
    "wandb": (WANDB,),
    "tensorboard": (EVENTS,),
    "csv": (CSV,),
    "jsonl": (JSONL,),
}
"""Formats and what each reads. If a folder has several, the first wins, because it holds most."""
SUFFIXES = {
    ".wandb": WANDB,
    ".csv": CSV,
    ".tsv": CSV,
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".log": LINES,
    ".txt": LINES,
    ".out": LINES,
}
NOTHING = "contains no known log format; see --from"
GENERIC = re.compile(
    r"((trainer|training|train|console|run|verl|openrlhf|trl|main)[-_.]?)?"
    r"(log|logs|log_history|history|output|out|stdout|stderr|metrics|results?|data)"
    r"|trainer|training|train|console|run|verl|openrlhf|trl|main|nohup|progress|slurm-\d+|wandb.*|[\d_-]+",
    re.IGNORECASE,
)
"""File names that say nothing about the run."""
DATED = re.compile(r"\D{3,}\d\d_\d\d-\d\d-\d\d_.")


@dataclass(frozen=True)
class ImportSource:
    """A run to be read."""

    path: Path
    kind: str
    label: str
    """Its path below the given folder, or its name; arm and seed are read from this."""
    folder: Path | None = None
    """The folder that belongs to this run alone, if there is one."""
    chart_run: str = ""
    """The run whose lines are read, for a chart of several runs."""


def sources(path: Path, form: str, faults: list[ImportFault]) -> list[ImportSource]:
    """Every run of a file or folder, in the order of their paths. Folders without a run are noted in
    `faults`. Raises DataError if the path does not exist."""
    if path.is_file():
        kind = kind_of(path, form) or (JSONL if not form and is_list(path) else "")
        if not kind:
            listed = "; --from jsonl reads a list of objects" if path.suffix == ".json" and not form else ""
            as_form = f" as {form}" if form else ""
            raise DataError(f"{path}: not a known log format{as_form}; see --from{listed}")
        return [*charted(ImportSource(path, kind, file_label(path, kind)))]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    noted = len(faults)
    runs = list(below(path, "", form, faults))
    if not runs and len(faults) == noted:
        faults.append(ImportFault(path, None, NOTHING))
    return [part for run in runs for part in charted(replace(run, label=whole_label(run, path)))]


def charted(source: ImportSource) -> Iterator[ImportSource]:
    """The runs of a W&B chart, or the source itself for any other file."""
    runs = columns.chart_runs(source.path) if source.kind == CSV else []
    yield from [replace(source, label=run, chart_run=run) for run in runs] or [source]


def file_label(file: Path, kind: str) -> str:
    """The label of a file that is imported by its name: as if its folder had no other log, unless its own
    name has a seed."""
    inside = file.resolve().parent
    if kind in (STATE, EVENTS):
        inside = run_folder(inside.parent if inside.name.startswith("checkpoint-") else inside)
        return whole_label(ImportSource(inside, STATE, ""), inside)
    if parted(file.stem)[1] is not None:
        return file.stem
    return whole_label(ImportSource(file, kind, single(file, kind, inside.name, "")), inside)


def whole_label(source: ImportSource, folder: Path) -> str:
    """The label of a run below the given folder. That folder's name is added if the label is empty or only a
    seed, because then the folder names the arm. If that name is only a seed too, its parent's is added."""
    folder = folder.resolve()
    label, name = source.label, folder.name if parted(folder.name)[0] else "/".join(folder.parts[-2:])
    if source.kind == EVENTS and (run := run_folder(source.path)) != source.path.resolve():
        label, name = "", run.name
        if run != folder and run.is_relative_to(folder):
            label, name = run.relative_to(folder).as_posix(), folder.name
    return label if parted(label)[0] else f"{name}/{label}".strip("/")


def run_folder(folder: Path) -> Path:
    """The folder of a run, above `runs/DATE_HOST`, in which transformers puts event files."""
    folder = folder.resolve()
    dated = folder.parent.name == "runs" and DATED.match(folder.name)
    return folder.parent.parent if dated else folder


def below(folder: Path, label: str, form: str, faults: list[ImportFault]) -> Iterator[ImportSource]:
    """The runs of a folder and of its subfolders."""
    if (folder / "run.toml").exists() and not form:
        faults.append(
            ImportFault(folder, None, "is a run folder of grpobench, which reports read without an import")
        )
        return
    kinds: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and (kind := kind_of(path, form)):
            kinds.setdefault(kind, []).append(path)
    if STATE in KINDS[form] and trl.latest(folder).exists():
        kinds[STATE] = [folder]
    kind = next((kind for kind in KINDS[form] if kind in kinds), "")
    sources_here = [*here(folder, kind, kinds.get(kind, []), label)]
    if kind in (STATE, WANDB):  # The subfolders belong to that run.
        yield from sources_here
        return
    yield from sources_here
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.is_symlink() or path.name.startswith("."):
            continue
        inner = list(below(path, f"{label}/{path.name}".strip("/"), form, faults))
        if not (label or sources_here or inner):  # Deeper files, or files beside a log, need not be logs.
            faults.append(ImportFault(path, None, NOTHING))
        yield from inner


def here(folder: Path, kind: str, files: Sequence[Path], label: str) -> Iterator[ImportSource]:
    """The runs of one folder: one for all event files, else one per file."""
    if kind in (STATE, EVENTS):
        yield ImportSource(folder, kind, label)
    elif len(files) == 1:
        yield ImportSource(
            files[0], kind, single(files[0], kind, label or folder.resolve().name, label), folder
        )
    else:
        yield from (ImportSource(path, kind, f"{label}/{path.stem}".strip("/")) for path in files)


def single(file: Path, kind: str, folder: str, label: str) -> str:
    """The label of a folder's only log: the folder's label if that has a seed or if the file name is generic;
    else with the file name, as in a folder with several logs."""
    arm, seed = parted(folder)
    if kind == WANDB or GENERIC.fullmatch(file.stem) or (arm and seed is not None):
        return label
    return f"{label}/{file.stem}".strip("/") if seed is None else f"{file.stem}/{folder}"


def kind_of(path: Path, form: str) -> str:
    """The format of a file; empty if it is not a log, or not one of the given format."""
    if path.name.startswith("."):
        return ""
    if path.name == trl.STATE or (path.suffix == ".json" and has_history(path)):
        kind = STATE
    elif "tfevents" in path.name:
        kind = EVENTS
    elif path.suffix == ".json" and form:
        kind = JSONL
    else:
        kind = SUFFIXES.get(path.suffix, "")
    if kind == LINES:
        libraries = (form,) if form in console.LIBRARIES else console.LIBRARIES
        if library_of(path) not in libraries:
            return ""
    if kind == JSONL and verl_dumps.is_dump(path):
        return ""
    return kind if kind in KINDS[form] else ""


def has_history(path: Path) -> bool:
    """Whether a JSON file is a trainer state under another name."""
    return b'"log_history"' in head(path)


def began(file: Path) -> float:
    """Seconds since 1970 at which an event file began, from its name."""
    match = re.search(r"tfevents\.(\d+)", file.name)
    return float(match[1]) if match else 0.0


def is_list(path: Path) -> bool:
    """Whether a JSON file is a list of objects whose first one has a step."""
    if path.suffix != ".json":
        return False
    first = head(path).partition(b"}")[0]
    steps = "|".join(map(re.escape, columns.STEPS)).encode()
    return re.match(rb'\s*\[\s*\{.*"(?:' + steps + rb')"\s*:\s*\d', first, re.DOTALL) is not None


def library_of(path: Path) -> str:
    """The library whose console output a file holds; empty for none."""
    lines = (line.decode("utf-8", "replace") for line in bounded.utf8_lines(path))
    return next(filter(None, map(console.speaks, lines)), "")


def is_file_logger(path: Path) -> bool:
    """Whether a file of JSON lines comes from verl's file logger."""
    return re.match(rb'\s*\{\s*"step"\s*:\s*\d+\s*,\s*"data"\s*:\s*\{', head(path)) is not None


def read(source: ImportSource, form: str, mapped: Mapping[str, str]) -> Log:
    """The log of a run. `mapped` are the columns given with --map. Raises DataError if it cannot be read, and
    ConfigError if a package is missing."""
    path = source.path
    if source.kind == STATE:
        log = trl.read(path)
    elif source.kind == LINES:
        log = console.read(path, library_of(path))
    elif source.kind == WANDB:
        log = wandb.read(path)
    elif source.kind == EVENTS:
        log = tensorboard.read(path)
    elif source.kind == CSV:
        log = columns.read_csv(path, mapped, source.chart_run)
    elif form != "jsonl" and is_file_logger(path):
        log = console.read_file_logger(path)
    else:
        log = columns.read_jsonl(path, mapped)
    if form in ("trl", "verl", "openrlhf"):
        log.library = form
    if source.kind == EVENTS and (run := run_folder(path)) != path.resolve() and path.is_dir():
        log.identity, log.started = str(run), min(map(began, log.files))
    if log.library == "verl" and source.folder is not None:
        verl_dumps.take(source.folder, log)
    return log
