"""Files that survive a kill and a full disk: whole-row appends, atomic replacement, and JSON for the files of
a run."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder import checksums
from grpobench.runs.tools.lock import host, space
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""System errors that mean that nothing more can be written: no space, or the quota is used up."""
# macOS has no fdatasync.
sync_data = getattr(os, "fdatasync", os.fsync)


def append(descriptor: int, data: bytes, durable: bool = True) -> None:
    """Append all of `data` in one write, or nothing. The descriptor must be opened with O_APPEND. Raises
    OSError (ENOSPC for a short write) and leaves the file as it was."""
    before = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"wrote {written} of {len(data)} bytes")
        if durable:
            sync_data(descriptor)
    except OSError:
        os.ftruncate(descriptor, before)
        raise


def write_atomic(path: Path, data: bytes, durable: bool = True) -> None:
    """Replace a file; readers see the old content or the new. `durable` also survives a power cut."""
    aside = beside(path)
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def beside(path: Path) -> Path:
    """A temporary path beside `path`, to be renamed to it. The name holds host, pid namespace and process,
    because two containers on one storage may share all but the namespace."""
    return path.with_name(f".{path.name}.{machine()}.{namespace()}-{os.getpid()}.tmp")


def machine() -> str:
    """The name of this machine as part of a file name."""
    return host().replace(os.sep, "-")


def namespace() -> str:
    """The pid namespace of this process as part of a file name."""
    return "".join(filter(str.isdecimal, space()))


def sweep(folder: Path) -> None:
    """Remove temporary files in a folder that killed processes of this host left. Nothing is known about
    processes of other pid namespaces; older versions recorded no namespace."""
    for path in folder.glob(f".*.{machine()}.*.tmp"):
        where, _, number = path.name.removesuffix(".tmp").rpartition(".")[2].rpartition("-")
        if where in ("", namespace()) and number.isdecimal() and not running(int(number)):
            remove(path)


def running(pid: int) -> bool:
    """Whether such a process exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def remove(path: Path) -> None:
    """Remove a folder, or a file of that name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sums_of(folder: Path, paths: Iterable[Path]) -> bytes:
    """The content of sums.json for files in a folder: size and sha256 of each, with a checksum over all of
    it."""
    table = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": bounded.sha256(path)}
        for path in paths
    }
    return json.dumps(checksums.seal({"files": table}), indent=1).encode()


@contextlib.contextmanager
def becoming(folder: Path, alone: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder` that is then renamed, so that `folder` appears whole or not at all.
    If another process was first, its folder stays. `alone`: no other process can be creating it now, so
    leftovers of all attempts are removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent)
    for stray in folder.parent.glob(f".{folder.name}.*.tmp") if alone else ():
        remove(stray)
    aside = beside(folder)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        allowed = aside.stat().st_mode & 0o666  # by the umask; safetensors lets only the owner read its files
        for path in aside.rglob("*"):
            if path.is_file():
                if path.suffix == ".safetensors":
                    path.chmod(allowed)
                sync_file(path)
        try:
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def writable(folder: Path, option: str) -> Path:
    """The folder, created if necessary. Raises ConfigError, which names its option, if no file can be created
    in it; OSError for a full disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        if error.errno in FULL:
            raise
        why = error.strerror or type(error).__name__
        raise ConfigError([f"{option} {folder}: cannot write there ({why}); name another folder"]) from None


def demand_writable(folder: Path, option: str) -> None:
    """`writable` without creating anything: it checks the nearest existing folder."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "read-only" if nearest.is_dir() else f"{nearest} is no folder"
        raise ConfigError([f"{option} {folder}: cannot write there ({why}); name another folder"])


def sync_file(path: Path) -> None:
    with bounded.open_file(path) as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of ASCII JSON: lone surrogates and NULs survive, floats are exact."""
    return json.dumps(finite(row), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """The value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def read_rows(path: Path) -> list[Any]:
    """The rows of a file of whole lines; none where it is absent."""
    return bounded.read_rows(path) if path.exists() else []


def read_json(path: Path) -> Any:
    """The content of a JSON file; None when it is absent or damaged, which a check elsewhere reports."""
    try:
        return bounded.read_json(path)
    except bounded.FileError:
        return None
