"""The layout of a published file set: its manifest, checksums and archives."""

# A folder that `datasets.load_dataset` reads, here or from a hub:
#
#     README.md                 the data card; its header names the tables for `load_dataset`
#     manifest.json             who published which runs, in the format of kept results
#     SHA256SUMS                the checksum of every other file; `sha256sum -c SHA256SUMS`
#     runs.jsonl.gz             a row per run: settings, state, provenance
#     metrics.jsonl.gz          a row per run, step and metric
#     answers.jsonl.gz          a row per evaluated answer
#     outcomes.jsonl.gz         a row per run of a profile and probe that it serves
#     experiments/NAME.tar.zst  the run folders: logs, settings, provenance
#
# The archives are the results. Manifest and tables say the same again, and are checked against the archives.
# A set holds no weights, checkpoints, completions of rollouts or names of machines.

from __future__ import annotations

import re
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import zstandard
from pydantic import AfterValidator, Field

from grpobench.analysis import record
from grpobench.analysis.record import Provenance
from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.tools.strict import Settings
from grpobench.tasks.data import bounded

KIND = "contribution"
"""Kind of a manifest, as `analysis/record.py` has it."""
MANIFEST, SUMS, CARD = "manifest.json", "SHA256SUMS", "README.md"
TABLES = ("runs", "metrics", "answers", "outcomes")
ARCHIVES = "experiments"
KEPT = (
    *("run.toml", "status.json", "provenance.json", "problems.json.zst"),
    *("events.jsonl", "metrics.jsonl", "eval.jsonl"),
)
"""Files of a run folder that are published, beside their checksums."""
DESCRIBING = ("experiment.json", "registration.json", "interim.json", "search.json")
"""Files of an experiment folder that are published where they exist."""
NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
MEMBERS = re.compile(
    "|".join(map(re.escape, (SUMS, CARD, MANIFEST, *(f"{name}.jsonl.gz" for name in TABLES))))
    + rf"|{ARCHIVES}(/{NAME}\.tar\.zst)?"
)
"""Files and folders of a file set."""
ARCHIVED = re.compile(
    "|".join(map(re.escape, DESCRIBING))
    + rf"|(?!\.)[^/\\]+/({'|'.join(map(re.escape, (*KEPT, checksums.SUMS_FILE)))})"
)
"""Files of an archive."""
Kind: TypeAlias = Literal["experiment", "finding", "profile"]


@dataclass(frozen=True)
class Manifest(Settings):
    """What a file set says of itself. Its constructor raises ValueError with every fault."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")]
    contributor: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+( [A-Za-z0-9_-]+)*$", max_length=120)]
    license: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,59}$")]
    published: Annotated[str, AfterValidator(date.fromisoformat)]
    kinds: Annotated[dict[str, Kind], Field(min_length=1)]
    """By experiment."""
    runs: Annotated[list[str], Field()]
    """EXPERIMENT/RUN of every run."""
    provenance: Provenance
    """Of all runs."""

    def text(self) -> str:
        """The content of the file, in the format of kept results."""
        fields = {key: value for key, value in asdict(self).items() if key not in ("name", "provenance")}
        return record.as_text(record.content_of(KIND, self.name, self.provenance, fields))


def read_manifest(folder: Path) -> Manifest:
    """Raises LogError with every fault."""
    return record.read(
        folder / MANIFEST, KIND, lambda content: Manifest(provenance=Provenance.pop(content), **content)
    )


def archive_of(folder: Path, experiment: str) -> Path:
    return folder / ARCHIVES / f"{experiment}.tar.zst"


def foreign_files(folder: Path) -> Iterator[str]:
    """What does not belong into a file set: links, pipes and devices, which must not be opened, and files of
    other names. This opens nothing."""
    for path in folder.rglob("*"):
        mode, name = path.lstat().st_mode, path.relative_to(folder).as_posix()
        if not MEMBERS.fullmatch(name):
            yield f"files: {name} does not belong into a file set"
        elif not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            yield f"files: {name} does not belong into a file set: no regular file"


def sums_text(folder: Path) -> str:
    """SHA256SUMS of a folder, in the format of sha256sum."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return "".join(f"{bounded.sha256(folder / name)}  {name}\n" for name in names if name != SUMS)


def demand_sums(experiment: Path) -> None:
    """Raise LogError for a file of an unpacked run that is not as the run's sums.json lists it."""
    for run in (path for path in sorted(experiment.iterdir()) if path.is_dir()):
        listed = {name: sums[checksums.SEAL] for name, sums in checksums.read_sums(run).items()}
        present = {path.name: bounded.sha256(path) for path in run.iterdir()}
        for name in sorted({*listed, *present} - {checksums.SUMS_FILE}):
            if listed.get(name) != present.get(name):
                raise LogError(f"{run.name}/{name} is not what was written, by {checksums.SUMS_FILE}")


def pack(source: Path, path: Path) -> None:
    """Write a folder as a tar that is compressed by zstd; equal files give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = zstandard.ZstdCompressionParameters.from_level(10, enable_ldm=True, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with (
        path.open("wb") as packed,
        compressor.stream_writer(packed) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for member in sorted(member for member in source.rglob("*") if member.is_file()):
            entry = tarfile.TarInfo(member.relative_to(source).as_posix())  # without owner and time
            entry.size = member.stat().st_size
            with bounded.open_file(member) as file:
                archive.addfile(entry, file)


class Header(tarfile.TarInfo):
    """A header as `pack` writes it. The others hold text of any size, which tarfile reads into memory, or
    sizes that no bytes follow."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type != tarfile.REGTYPE:
            raise LogError(f"{header.name!a} does not belong into a file set: no plain file")
        return header


def unpack(path: Path, folder: Path) -> None:
    """Write what an archive holds below a folder. Raises LogError for anything but the plain files that it
    may hold, and FileError for more bytes than `bounded` reads."""
    unpacked = 0
    decompressor = zstandard.ZstdDecompressor(max_window_size=bounded.WINDOW)
    try:
        with (
            bounded.open_file(path) as packed,
            decompressor.stream_reader(packed) as stream,
            tarfile.open(fileobj=stream, mode="r|", tarinfo=Header) as archive,
        ):
            for entry in archive:
                unpacked += max(entry.size, tarfile.BLOCKSIZE)  # of an empty file too
                bounded.demand_size(path, unpacked, bounded.max_bytes())
                content, target = archive.extractfile(entry), folder / entry.name
                if content is None or not ARCHIVED.fullmatch(entry.name):
                    raise LogError(f"{path.name}: {entry.name} does not belong into a file set")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:  # a second file of that name is an error
                    shutil.copyfileobj(content, file)
    except (OSError, tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise LogError(f"{path.name}: cannot be unpacked ({error})") from error
