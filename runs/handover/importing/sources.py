"""Find the runs whose logs a file or folder holds, and read them."""

# `find_sources` lists an `ImportSource` for each run and `read_source` reads its log. A *format* is what the
# user names with --from: the library that wrote the log, or a type of file. A *kind* says how a file is
# parsed.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpobench.runs.handover.importing.folder import split_label
from grpobench.runs.handover.importing.log import ImportFault, Log, head
from grpobench.runs.handover.importing.names.vocabularies import VOCABULARIES
from grpobench.runs.handover.importing.readers import (
    columns,
    console,
    json_logs,
    tensorboard,
    trl,
    verl_dumps,
    wandb,
)
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

FORMATS = (*VOCABULARIES, "wandb", "tensorboard", "csv", "jsonl")
"""What --from accepts. The empty string means: detect the kind of each file."""

STATE = "state"
"""transformers' trainer_state.json, or a checkpoint folder with one."""
RUN_FILE = "run file"
"""The JSON lines that prime-rl or ms-swift writes into the folder of a run."""
LINES = "lines"
"""The console output of a library."""
JSONL = "jsonl"
CSV = "csv"
WANDB = "wandb"
EVENTS = "events"
"""The TensorBoard event files of a folder."""
KINDS: Mapping[str, Sequence[str]] = {
    "": (RUN_FILE, STATE, WANDB, LINES, JSONL, CSV, EVENTS),
    "trl": (STATE, JSONL, CSV, WANDB, EVENTS),
    "verl": (JSONL, LINES, CSV, WANDB, EVENTS),
    "ms-swift": (RUN_FILE, STATE, JSONL, CSV, WANDB, EVENTS),
    "prime-rl": (RUN_FILE, JSONL, CSV, WANDB, EVENTS),
    **dict.fromkeys(("openrlhf", *console.STEP_READERS, "slime"), (LINES, JSONL, CSV, WANDB, EVENTS)),
    "wandb": (WANDB,),
    "tensorboard": (EVENTS,),
    "csv": (CSV,),
    "jsonl": (JSONL,),
}
"""Format -> kinds of files that are read. If a folder has files of several kinds, only the first kind in this
order is read: it has the most metrics."""
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
NO_LOG = "contains no known log format; see --from"
GENERIC = "|".join(("trainer|training|train|console|run|main|driver|ray-driver", *VOCABULARIES))
GENERIC_NAME = re.compile(
    rf"(({GENERIC})[-_.]?)?"
    r"(log|logs|logging|log_history|history|output|out|stdout|stderr|metrics|results?|data)"
    rf"|{GENERIC}|nohup|progress|merged|slurm-\d+|wandb.*|[\d_-]+",
    re.IGNORECASE,
)
"""File names that say nothing about the run."""
DATE_HOST = re.compile(r"\D{3,}\d\d_\d\d-\d\d-\d\d_.")


@dataclass(frozen=True)
class ImportSource:
    """The log of one run, before it is read."""

    path: Path
    """The file, or for STATE and EVENTS maybe a folder."""
    kind: str
    """How it is parsed: RUN_FILE, STATE, LINES, JSONL, CSV, WANDB or EVENTS."""
    label: str
    """The run's name or its path below the imported folder. Arm and seed are taken from it."""
    folder: Path | None = None
    """The folder that belongs to this run alone, if there is one."""
    chart_run: str = ""
    """If the file is a W&B chart of several runs: the name of this run in it."""


def find_sources(path: Path, form: str, faults: list[ImportFault]) -> list[ImportSource]:
    """Every run of a file or folder, in the order of their paths.

    Args:
        form: one of FORMATS, or empty to detect the kind of each file.
        faults: folders without a run are appended here.

    Raises:
        DataError: the path does not exist, or it is a file of an unknown format.
    """
    if path.is_file():
        kind = detect_kind(path, form) or (JSONL if not form and is_list_of_steps(path) else "")
        if not kind:
            listed = "; --from jsonl reads a list of objects" if path.suffix == ".json" and not form else ""
            as_form = f" as {form}" if form else ""
            raise DataError(f"{path}: not a known log format{as_form}; see --from{listed}")
        return [*split_chart(ImportSource(path, kind, label_file(path, kind)))]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    fault_count = len(faults)
    runs = list(find_sources_below(path, "", form, faults))
    if not runs and len(faults) == fault_count:
        faults.append(ImportFault(path, None, NO_LOG))
    return [part for run in runs for part in split_chart(replace(run, label=complete_label(run, path)))]


def split_chart(source: ImportSource) -> Iterator[ImportSource]:
    """The runs of a W&B chart, or the source itself for any other file."""
    runs = columns.chart_runs(source.path) if source.kind == CSV else []
    yield from [replace(source, label=run, chart_run=run) for run in runs] or [source]


def label_file(file: Path, kind: str) -> str:
    """The label of a file that the user names: the file's name if it ends in a seed, else the label that it
    would have as the only log of its folder."""
    folder = file.resolve().parent
    if kind in (STATE, EVENTS):
        folder = find_run_folder(folder.parent if folder.name.startswith("checkpoint-") else folder)
        return complete_label(ImportSource(folder, STATE, ""), folder)
    if split_label(file.stem)[1] is not None:
        return file.stem
    return complete_label(ImportSource(file, kind, label_only_log(file, kind, folder.name, "")), folder)


def complete_label(source: ImportSource, folder: Path) -> str:
    """The label of a run, with an arm.

    A label that is empty or only a seed gets the name of `folder`, the imported one, in front. If that name
    is only a seed too, its parent's name comes before it.
    """
    folder = folder.resolve()
    label = source.label
    name = folder.name if split_label(folder.name)[0] else "/".join(folder.parts[-2:])
    if source.kind == EVENTS and (run_folder := find_run_folder(source.path)) != source.path.resolve():
        label, name = "", run_folder.name
        if run_folder != folder and run_folder.is_relative_to(folder):
            label, name = run_folder.relative_to(folder).as_posix(), folder.name
    return label if split_label(label)[0] else f"{name}/{label}".strip("/")


def find_run_folder(folder: Path) -> Path:
    """The run's folder: two above a folder `runs/DATE_HOST`, in which transformers puts event files, else
    `folder` itself."""
    folder = folder.resolve()
    is_of_transformers = folder.parent.name == "runs" and DATE_HOST.match(folder.name)
    return folder.parent.parent if is_of_transformers else folder


def find_sources_below(
    folder: Path, label: str, form: str, faults: list[ImportFault]
) -> Iterator[ImportSource]:
    """The runs of a folder and of its subfolders, whose labels begin with `label`."""
    if (folder / "run.toml").exists() and not form:
        faults.append(
            ImportFault(folder, None, "is a run folder of grpobench, which reports read without an import")
        )
        return
    kinds: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and (kind := detect_kind(path, form)):
            kinds.setdefault(kind, []).append(path)
    if STATE in KINDS[form] and trl.latest(folder).exists():
        kinds[STATE] = [folder]
    kind = next((kind for kind in KINDS[form] if kind in kinds), "")
    folder_sources = [*make_sources(folder, kind, kinds.get(kind, []), label)]
    yield from folder_sources
    if kind in (RUN_FILE, STATE, WANDB):  # The subfolders belong to that run.
        return
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.is_symlink() or path.name.startswith("."):
            continue
        inner_sources = list(find_sources_below(path, f"{label}/{path.name}".strip("/"), form, faults))
        # Only a subfolder of the imported folder, and only if that has no log itself, must contain a log.
        if not (label or folder_sources or inner_sources):
            faults.append(ImportFault(path, None, NO_LOG))
        yield from inner_sources


def make_sources(folder: Path, kind: str, files: Sequence[Path], label: str) -> Iterator[ImportSource]:
    """The runs of these files of one folder: one run for a trainer state or for all event files, else one run
    per file."""
    if kind in (STATE, EVENTS):
        yield ImportSource(folder, kind, label)
    elif len(files) == 1:
        yield ImportSource(
            files[0], kind, label_only_log(files[0], kind, label or folder.resolve().name, label), folder
        )
    else:
        yield from (ImportSource(path, kind, f"{label}/{path.stem}".strip("/")) for path in files)


def label_only_log(file: Path, kind: str, folder: str, label: str) -> str:
    """The label of the only log of a folder.

    It is the folder's `label` for a W&B file, for a file with a generic name, and if the name `folder` has an
    arm and a seed. Otherwise it contains the file's name: behind the label, or before a name that is only a
    seed.
    """
    arm, seed = split_label(folder)
    if kind == WANDB or GENERIC_NAME.fullmatch(file.stem) or (arm and seed is not None):
        return label
    return f"{label}/{file.stem}".strip("/") if seed is None else f"{file.stem}/{folder}"


def detect_kind(path: Path, form: str) -> str:
    """The kind of a file; empty if it is not a log, or no log of the format `form`."""
    if path.name.startswith("."):
        return ""
    if path.name == trl.STATE or (path.suffix == ".json" and is_trainer_state(path)):
        kind = STATE
    elif "tfevents" in path.name:
        kind = EVENTS
    elif RUN_FILE in KINDS[form] and json_logs.is_of_run(path):
        kind = RUN_FILE
    elif path.suffix == ".json" and form:
        kind = JSONL
    else:
        kind = SUFFIXES.get(path.suffix, "")
    if kind == LINES:
        libraries = (form,) if form in console.LIBRARIES else console.LIBRARIES
        if detect_library(path) not in libraries:
            return ""
    if kind == JSONL and verl_dumps.is_dump(path):
        return ""
    return kind if kind in KINDS[form] else ""


def is_trainer_state(path: Path) -> bool:
    """Whether a JSON file is a trainer state, whatever its name."""
    return b'"log_history"' in head(path)


def parse_start_time(file: Path) -> float:
    """When an event file was created, from its name, in seconds since 1970; 0 if the name has no time."""
    match = re.search(r"tfevents\.(\d+)", file.name)
    return float(match[1]) if match else 0.0


def is_list_of_steps(path: Path) -> bool:
    """Whether a JSON file is a list of objects whose first one has a step."""
    if path.suffix != ".json":
        return False
    first = head(path).partition(b"}")[0]
    steps = "|".join(map(re.escape, columns.STEPS)).encode()
    return re.match(rb'\s*\[\s*\{.*"(?:' + steps + rb')"\s*:\s*\d', first, re.DOTALL) is not None


def detect_library(path: Path) -> str:
    """The library, of console.LIBRARIES, whose console output a file holds; empty for none."""
    lines = (line.decode("utf-8", "replace") for line in bounded.utf8_lines(path))
    return next(filter(None, map(console.speaks, lines)), "")


def read_source(source: ImportSource, form: str, mapped: Mapping[str, str]) -> Log:
    """Read the log of a run.

    Args:
        form: one of FORMATS, or empty.
        mapped: the names of columns that the user assigns with --map.

    Raises:
        DataError: the log cannot be read.
        ConfigError: a package that reads it is missing.
    """
    path = source.path
    if source.kind == STATE:
        log = trl.read(path)
    elif source.kind == LINES:
        log = console.read(path, detect_library(path))
    elif source.kind == WANDB:
        log = wandb.read(path)
    elif source.kind == EVENTS:
        log = tensorboard.read(path)
    elif source.kind == CSV:
        log = columns.read_csv(path, mapped, source.chart_run)
    elif form != "jsonl" and (library := json_logs.library_of(path)):
        log = json_logs.read(path, library)
    else:
        log = columns.read_jsonl(path, mapped)
    if form in VOCABULARIES:
        log.library = form
    if source.kind == EVENTS and (run_folder := find_run_folder(path)) != path.resolve() and path.is_dir():
        log.identity, log.started = str(run_folder), min(map(parse_start_time, log.files))
    if log.library == "verl" and source.folder is not None:
        verl_dumps.take(source.folder, log)
    return log
