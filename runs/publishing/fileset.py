"""The layout of a published file set, version 1."""

# A folder that `datasets.load_dataset` reads, here or from a hub:
#
#     README.md                 the data card; its header names the tables for `load_dataset`
#     manifest.json             who published what: experiments, their runs, seeds and digests of settings
#     SHA256SUMS                the checksum of every other file; `sha256sum -c SHA256SUMS`
#     runs.jsonl.gz             a row per run: settings, state, provenance
#     metrics.jsonl.gz          a row per run, step and metric
#     answers.jsonl.gz          a row per evaluated answer
#     experiments/NAME.tar.zst  the run folders as they were written: logs, settings, provenance
#     profile/NAME.csv          outcomes on probes, where a profile was published
#
# It holds no weights, checkpoints, completions of rollouts or names of machines.

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import pandas as pd
import zstandard
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError, read_bytes
from grpobench.runs.publishing.contributed import MANIFEST
from grpobench.tasks.data import bounded

SUMS, CARD = "SHA256SUMS", "README.md"
TABLES = ("runs", "metrics", "answers")
ARCHIVES, PROFILE = "experiments", "profile"
KEPT = (
    *("run.toml", "status.json", "provenance.json", "sums.json", "problems.json.zst", "events.jsonl"),
    *("metrics.jsonl", "metrics.jsonl.sums", "eval.jsonl", "eval.jsonl.sums"),
)
"""Files of a run folder that are published."""
DESCRIBING = ("experiment.json", "registration.json", "interim.json", "search.json")
"""Files of an experiment folder that are published where they exist."""
LARGEST = 2 << 30
"""Most bytes that an archive may unpack to."""
MOST_MEMBER = 256 << 20
"""Most bytes of a file in an archive."""
MOST_RATIO, ANY_RATIO = 1000, 64 << 20
"""Bytes that a byte of an archive may unpack to, above the bytes that any archive may unpack to."""
MOST_DESCRIBED = 8 << 20
"""Most bytes of a manifest, a card, the checksums or a table of outcomes."""
MOST_FILES = 10_000
OUTCOMES = re.compile(r"profile/[A-Za-z0-9_-]+\.csv")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


Kind = Literal["experiment", "finding", "profile"]


class PublishedExperiment(BaseModel):
    """An experiment of a file set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    kind: Kind
    command: str
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: dict[str, Digest]
    """By run folder, the digest of run.toml."""
    commits: dict[str, int]
    versions: dict[str, list[str]]
    machine: list[str]


class Manifest(BaseModel):
    """What a file set says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1]
    name: Name
    contributor: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+( [A-Za-z0-9_-]+)*$", max_length=120)]
    license: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,59}$")]
    published: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    grpobench: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)+[A-Za-z0-9.+-]{0,30}$")]
    experiments: Annotated[tuple[PublishedExperiment, ...], Field(min_length=1)]

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Raises LogError with every fault."""
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise LogError(f"{path}: {'; '.join(faults_of(error))}") from error


def irregular_files(folder: Path) -> Iterator[str]:
    """Links, pipes, devices, and files that are too large: they must not be opened. This opens nothing."""
    count = 0
    for directory, folders, names in os.walk(folder):
        count += len(folders) + len(names)
        if count > MOST_FILES:
            yield f"files: there are more than {MOST_FILES}"
            return
        for name in (*folders, *names):
            path = Path(directory, name)
            status, relative = path.lstat(), path.relative_to(folder).as_posix()
            packed = path.suffix in (".gz", ".zst")
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode):
                yield f"files: {relative} does not belong into a file set: no regular file"
            elif status.st_size > (LARGEST if packed else MOST_DESCRIBED):
                yield f"files: {relative} is too large, with {status.st_size >> 20} MiB"


def faults_of(error: ValidationError) -> list[str]:
    """Each fault with the key it is at."""
    return [f"{'.'.join(map(str, detail['loc'])) or 'content'}: {detail['msg']}" for detail in error.errors()]


# Checksums


def sums_text(folder: Path) -> str:
    """SHA256SUMS of a folder, in the format of sha256sum."""
    return "".join(f"{bounded.sha256(path)}  {name}\n" for name, path in sorted(contents(folder).items()))


def contents(folder: Path) -> dict[str, Path]:
    """Every file of a file set but its checksums, by its path with slashes."""
    path_by_name = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()
    }
    return {name: path for name, path in path_by_name.items() if name != SUMS}


def read_sums(folder: Path) -> dict[str, str]:
    """Checksum by file. Raises LogError."""
    path = folder / SUMS
    try:
        pairs = [line.split("  ", 1) for line in read_bytes(path).decode().splitlines()]
        return {name: digest for digest, name in pairs}
    except ValueError as error:
        raise LogError(f"{path}: cannot be read ({error})") from error


def foreign_files(folder: Path, manifest: Manifest) -> list[str]:
    """Files that do not belong into a file set, links among them."""
    allowed = {CARD, MANIFEST, *(f"{name}.jsonl.gz" for name in TABLES)}
    allowed |= {f"{ARCHIVES}/{part.name}.tar.zst" for part in manifest.experiments}
    links = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink()}
    foreign = {name for name in contents(folder) if name not in allowed and not OUTCOMES.fullmatch(name)}
    return sorted(links | foreign)


# Seals: what a run wrote when it ended

SEALED = ("provenance.json", "sums.json")
UNLISTED = ("status.json", "sums.json", "provenance.json")
"""Files of a run that sums.json does not list."""


def files_without_checksum(experiment: Path) -> list[str]:
    """Files of an experiment folder that are not protected by the checksums that every run writes."""
    faults = []
    if not has_checksum(experiment / "experiment.json"):
        faults.append("experiment.json has no checksum of its own")
    for run in sorted(path.parent for path in experiment.glob("*/run.toml")):
        for name in SEALED:
            if not has_checksum(run / name):
                faults.append(f"{run.name}/{name} has no checksum of its own, or is missing")
        try:
            listed = checksums.read_sums(run)
        except ValueError as error:
            faults.append(str(error))
            continue
        there = {name for name in KEPT if (run / name).is_file() and not name.endswith(checksums.SIDE)}
        if missing := sorted(there - {*UNLISTED} - {*listed}):
            faults.append(f"{run.name}/{missing[0]} is not listed in sums.json")
    return faults


def wrong_sums(experiment: Path) -> Iterator[str]:
    """Files of an unpacked experiment that are not what its runs' checksums say, or have none.
    `files_without_checksum` is about provenance.json and sums.json, which have a checksum of their own."""
    for run in sorted(path.parent for path in experiment.glob("*/run.toml")):
        listed = checksums.read_sums(run)
        for name in sorted({*KEPT, *listed} - {*SEALED}):
            path = run / name
            if name.endswith(checksums.SIDE):
                log = path.with_suffix("")
                content = read_bytes(log) if log.is_file() else b""
                side = read_bytes(path) if path.is_file() else b""
                if content and checksums.check(content, side).covered < content.count(b"\n"):
                    yield f"{run.name}/{name} is missing or does not have every line of the log"
            elif path.is_file() and name not in listed:
                yield f"{run.name}/{name} is not listed in sums.json"
            elif name in listed and not path.is_file():
                yield f"{run.name}/{name} is missing"
            elif name in listed and bounded.sha256(path) != listed[name][checksums.SEAL]:
                yield f"{run.name}/{name} is not what was written, by sums.json"


def has_checksum(path: Path) -> bool:
    try:
        content = bounded.read_json(path)
    except bounded.FileError:
        return False
    return isinstance(content, dict) and checksums.SEAL in content and not checksums.broken(content)


# Archives


def pack(members: Mapping[str, bytes], path: Path) -> None:
    """Write files as a tar that is compressed by zstd; equal files give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = zstandard.ZstdCompressionParameters.from_level(10, enable_ldm=True, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with (
        path.open("wb") as file,
        compressor.stream_writer(file) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in sorted(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


class Header(tarfile.TarInfo):
    """A header as `pack` writes it. The others hold text of any size, which tarfile reads into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type not in tarfile.REGULAR_TYPES:
            raise LogError(f"{header.name!a} does not belong into a file set: no plain file")
        return header


def unpack(path: Path, folder: Path) -> None:
    """Write what an archive holds below a folder. Raises LogError for anything but plain files that a file
    set has, and for more bytes than `LARGEST`, `MOST_MEMBER` or `MOST_RATIO` allow."""
    left = min(LARGEST, ANY_RATIO + MOST_RATIO * path.stat().st_size) if path.exists() else 0
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    try:
        with (
            path.open("rb") as packed,
            decompressor.stream_reader(packed) as stream,
            tarfile.open(fileobj=stream, mode="r|", tarinfo=Header) as archive,
        ):
            for entry in archive:
                demand_plain(path, entry)
                if (folder / entry.name).exists():
                    raise LogError(f"{path}: holds {entry.name} twice")
                left -= max(entry.size, tarfile.BLOCKSIZE)  # of an empty file too
                content = archive.extractfile(entry)
                if left < 0 or entry.size > MOST_MEMBER or content is None:
                    raise LogError(f"{path}: unpacks to more bytes than a file set may have, at {entry.name}")
                target = folder / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (OSError, tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise LogError(f"{path}: cannot be unpacked ({error})") from error


def demand_plain(path: Path, entry: tarfile.TarInfo) -> None:
    """Raise LogError for a member that is no file of an experiment or of one of its runs."""
    parts = PurePosixPath(entry.name).parts
    allowed = DESCRIBING if len(parts) == 1 else KEPT
    plain = entry.isreg() and len(parts) in (1, 2) and entry.name == "/".join(parts) and ".." not in parts
    if not plain or "\\" in entry.name or parts[-1] not in allowed:
        raise LogError(f"{path}: {entry.name} does not belong into a file set")


# Tables


def tables(experiments: Iterable[Experiment]) -> dict[str, pd.DataFrame]:
    """The tables of a file set."""
    frames_by_table: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    for experiment in experiments:
        for name, frame in zip(
            TABLES, (run_rows(experiment), experiment.metrics, answer_rows(experiment)), strict=True
        ):
            frames_by_table[name].append(frame.assign(experiment=experiment.name))
    return {
        name: pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        for name, frames in frames_by_table.items()
    }


def run_rows(experiment: Experiment) -> pd.DataFrame:
    """A row per run; settings and provenance as JSON."""
    return pd.DataFrame(
        {
            "arm": run.arm,
            "task": run.task,
            "seed": run.seed,
            "state": run.state,
            "step": run.step,
            "settings": json.dumps(run.config, ensure_ascii=False, sort_keys=True, default=str),
            "provenance": json.dumps(run.provenance, ensure_ascii=False, sort_keys=True, default=str),
        }
        for run in experiment.runs
    )


COLUMNS = (
    *("arm", "task", "seed", "step", "split", "mode", "problem", "sample"),
    *("answer", "outcome", "length", "stopped"),
)
"""Columns of every evaluated answer; scores and traits differ by task and are JSON."""


def answer_rows(experiment: Experiment) -> pd.DataFrame:
    frame = experiment.evaluations
    names_by_column = {
        column: [name for name in frame.columns if name.startswith(prefix)]
        for column, prefix in (("scores", "score/"), ("traits", "trait/"))
    }
    answers = pd.DataFrame({name: frame[name] for name in COLUMNS if name in frame})
    for column, names in names_by_column.items():
        answers[column] = [as_json(row, names) for row in frame[names].to_dict("records")]
    return answers


def as_json(row: Mapping[Any, Any], names: Iterable[str]) -> str:
    present = {
        name.partition("/")[2]: row[name]
        for name in names
        if not (row[name] is None or (isinstance(row[name], float) and math.isnan(row[name])))
    }
    return json.dumps(present, ensure_ascii=False, default=str)


def table_bytes(frame: pd.DataFrame) -> bytes:
    """JSON lines, compressed by gzip; equal frames give equal bytes. NaN is null."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        for chunk in chunks(frame):
            text = chunk.to_json(orient="records", lines=True, double_precision=15, force_ascii=False)
            file.write(text.encode())
    return buffer.getvalue()


def chunks(frame: pd.DataFrame, rows: int = 100_000) -> Iterator[pd.DataFrame]:
    for start in range(0, len(frame), rows):
        yield frame.iloc[start : start + rows]
