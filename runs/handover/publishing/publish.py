"""Write experiments as a file set for others."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from grpobench.analysis.findings.record import FILE as REGISTRATION
from grpobench.analysis.findings.record import anonymous
from grpobench.analysis.kept import demand_whole
from grpobench.analysis.record import as_text, command_of
from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import shorten_paths
from grpobench.runs.handover.publishing import fileset
from grpobench.runs.handover.publishing.fileset import Kind, Manifest
from grpobench.runs.handover.publishing.tables import manifest_of, tables_of, text_of
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

RUNS = "runs"
"""Folder of the experiments of a profile."""
PRIVATE = ("host", "pid")
"""What a published provenance does not say of the machine."""
VERBATIM = ("diff", "code")
"""What it says as it is: changes of the code, and digests by file."""


def publish(
    folders: Sequence[Path], out: Path, name: str, contributor: str, license: str
) -> tuple[Manifest, Path]:
    """Write the experiments of `folders` below `out`, which must be new or empty. Raises ConfigError and
    LogError."""
    sources = [source for folder in folders for source in sources_of(folder)]
    kinds = {source.name: kind for source, kind in sources}
    if len(kinds) < len(sources):
        raise ConfigError(["publish: two experiments have the same name; publish them apart"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError([f"{out}: not a new or empty folder"])
    published = time.strftime("%Y-%m-%d", time.gmtime())
    head = {"name": name, "contributor": contributor, "license": license, "published": published}
    with tempfile.TemporaryDirectory(prefix="grpobench-") as temporary:
        copies = {source.name: Path(temporary) / source.name for source, _ in sources}
        for source, _ in sources:
            copy_public(source, copies[source.name])
        # What is published is read, so that manifest and tables hold nothing that the archives do not.
        experiments = {copy.name: load(copy, strict=True).at_all_rates for copy in copies.values()}
        try:
            manifest = manifest_of(head, kinds, experiments)
        except ValueError as error:
            raise ConfigError([f"publish: {'; '.join(map(str, error.args))}"]) from error
        target = files.writable(out, "OUT")
        for copy in copies.values():
            fileset.pack(copy, fileset.archive_of(target, copy.name))
        frames = tables_of(experiments, kinds)
        for table, frame in frames.items():
            (target / f"{table}.jsonl.gz").write_bytes(gzip.compress(text_of(frame).encode(), mtime=0))
        rows = {table: len(frame) for table, frame in frames.items()}
        template = bounded.read_text(Path(__file__).parent / "templates/card.md.j2")
        card = Template(template, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).render(
            manifest=manifest, rows=rows, experiments=experiments, command_of=command_of
        )
    (target / fileset.MANIFEST).write_text(manifest.text(), encoding="utf-8")
    (target / fileset.CARD).write_text(card + "\n", encoding="utf-8")
    (target / fileset.SUMS).write_text(fileset.sums_text(target), encoding="utf-8")
    return manifest, target


def sources_of(folder: Path) -> Iterator[tuple[Path, Kind]]:
    """The experiments of a folder: itself, or those of a profile. Raises ConfigError."""
    if (folder / "experiment.json").is_file():
        yield folder, "finding" if (folder / REGISTRATION).is_file() else "experiment"
        return
    experiments = sorted(path.parent for path in (folder / RUNS).glob("*/experiment.json"))
    if not experiments:
        expected = f"neither an experiment (experiment.json) nor a profile ({RUNS}/)"
        raise ConfigError([f"{folder}: {expected}; give such as results/quickstart or results/profile"])
    yield from ((experiment, "profile") for experiment in experiments)


def copy_public(source: Path, target: Path) -> None:
    """Copy the files of an experiment that are published, without what names a machine or a folder of it.
    Raises LogError for one that is not whole, or was made before runs had checksums."""
    experiment = load(source, strict=True).at_all_rates
    demand_whole(experiment)
    if unproved := [run.name for run in experiment.runs if not run.proved]:
        raise LogError(f"{source}: {unproved[0]} has no checksums; runs of older versions must be run again")
    for folder in (source, *(source / run.name for run in experiment.runs)):
        copy = target / folder.relative_to(source)
        copy.mkdir(parents=True)
        for path in (folder / name for name in (*fileset.DESCRIBING, *fileset.KEPT)):
            if path.is_file():
                copy_file(path, copy / path.name)
        if folder != source:
            (copy / checksums.SUMS_FILE).write_bytes(files.sums_of(copy, sorted(copy.iterdir())))


def copy_file(path: Path, target: Path) -> None:
    if path.name == "run.toml":
        target.write_text(anonymous(bounded.read_text(path)), encoding="utf-8")
    elif path.name in ("experiment.json", "provenance.json", "status.json"):
        content = checksums.seal(without_machine(bounded.read_object(path)))
        target.write_text(as_text(content), encoding="utf-8")
    else:
        shutil.copyfile(path, target)


def without_machine(value: Any) -> Any:
    """A value without the machine's name, whose paths are shortened to their last part."""
    if isinstance(value, str):
        return shorten_paths(value)
    if isinstance(value, Mapping):
        return {
            name: inner if name in VERBATIM else without_machine(inner)
            for name, inner in value.items()
            if name not in PRIVATE
        }
    return [without_machine(inner) for inner in value] if isinstance(value, list) else value
