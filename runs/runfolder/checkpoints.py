"""Checkpoints on disk: written under another name, then renamed, and verified before they are read."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from grpobench.analysis.runfolder import checksums
from grpobench.runs.runfolder import sharded
from grpobench.runs.tools import files
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.files import read_json, size
from grpobench.tasks.data import bounded

MANIFEST = "manifest.json"
REPLACED = ".replaced"
Logs = Mapping[str, Mapping[str, Any]]
"""Length in `bytes` and `sha256` of each log at the time of the checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    step: int
    path: Path
    state: Any
    """The JSON that `save` was given."""
    logs: Logs = field(default_factory=dict)

    @property
    def sharded(self) -> bool:
        """Whether several ranks have written it."""
        return is_sharded(self.path)

    def names(self) -> list[str]:
        """The names under which it holds tensors: by its manifest, since other files in the folder do not
        belong to the checkpoint."""
        if self.sharded:
            return sorted({key.partition("/")[0] for key in sharded.outline(self.path)})
        listed = map(Path, manifest(self.path)["files"])
        return sorted(path.stem for path in listed if path.suffix == ".safetensors")

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors saved under `name`, whole, on the CPU."""
        return tensors_of(self.path, name)


def is_sharded(folder: Path) -> bool:
    """Whether several ranks have written a checkpoint."""
    return any(folder.glob(sharded.FILES))


def tensors_of(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint has saved under `name`, whole, on the CPU."""
    return (
        sharded.load_full(folder, name)
        if is_sharded(folder)
        else read_tensors(folder / f"{name}.safetensors")
    )


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises FileError for a damaged or missing file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        raise bounded.FileError(path, f"not a safetensors file ({error}); restore the file") from error


def steps(run: Path) -> list[int]:
    """Steps that have a checkpoint, oldest first."""
    checkpoint_steps = [step_of(path) for path in run.glob("checkpoints/step-*") if path.is_dir()]
    return sorted(step for step in checkpoint_steps if step is not None)


def step_of(checkpoint: Path) -> int | None:
    """The step in the name of a checkpoint; None for another name."""
    name = checkpoint.name.removeprefix("step-")
    return int(name) if name.isdecimal() and name.isascii() else None


def checkpoint_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step}"


def write(
    folder: Path,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    state: Any,
    step: int,
    attempt: int,
    logs: Logs,
    demand: Callable[[], None] = lambda: None,
) -> None:
    """Write a checkpoint, which replaces an older one at once or not at all. `demand` raises if another
    process owns the folder by now."""
    with temporary_folder(folder) as aside:
        for name, entries in tensors.items():
            write_tensors(aside / f"{name}.safetensors", entries)
            point("save")
        complete(aside, folder, json.dumps(state), step, attempt, logs, demand)


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A new folder in which the tensors of a checkpoint are written. It is removed if that fails."""
    aside = files.beside(folder)
    aside.mkdir(parents=True)
    with removed_on_failure(aside):
        yield aside


@contextlib.contextmanager
def removed_on_failure(aside: Path) -> Iterator[None]:
    """Within, what goes wrong removes the folder."""
    try:
        yield
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def complete(
    aside: Path,
    folder: Path,
    state: str,
    step: int,
    attempt: int,
    logs: Logs,
    demand: Callable[[], None] = lambda: None,
) -> None:
    """Make a checkpoint of a `temporary_folder`, in which its tensors are by now. `state` is JSON."""
    (aside / "state.json").write_text(state, encoding="utf-8")
    write_manifest(aside, step, attempt, logs)
    files.sync_folder(aside)  # before the rename: a crash must not leave a name without content
    point("save-manifest")
    demand()
    replaced = folder.with_name(f".{folder.name}{REPLACED}")
    if folder.exists():  # The run has come back to a damaged checkpoint, or to one without evaluations.
        files.remove(replaced)
        folder.rename(replaced)
    aside.rename(folder)
    point("save-renamed")
    files.sync_folder(folder.parent)
    files.remove(replaced)


def bring_back(run: Path) -> None:
    """Rename checkpoints back that a killed process was about to replace."""
    for path in run.glob(f"checkpoints/.step-*{REPLACED}"):
        name = path.name.removeprefix(".").removesuffix(REPLACED)
        if not path.with_name(name).exists():
            path.rename(path.with_name(name))


def write_manifest(folder: Path, step: int, attempt: int, logs: Logs) -> None:
    """Write sizes and hashes of the files and of the logs at this step, with a checksum over all of it. This
    is written last."""
    paths = sorted(folder.iterdir())
    with ThreadPoolExecutor(
        1, "checksums"
    ) as hashing:  # One thread computes while the other waits for the disk.
        hashed = hashing.map(bounded.sha256, paths)
        for path in paths:
            files.sync_file(path)
        listed = {
            path.name: {"bytes": path.stat().st_size, "sha256": digest}
            for path, digest in zip(paths, hashed, strict=True)
        }
    table = checksums.seal({"step": step, "attempt": attempt, "files": listed, "logs": dict(logs)})
    (folder / MANIFEST).write_text(json.dumps(table, indent=1), encoding="utf-8")
    files.sync_file(folder / MANIFEST)


def manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest; empty if it is missing, torn or changed. Manifests of older versions hold only the
    lengths of the logs and no checksum of their own."""
    manifest_table = read_json(checkpoint / MANIFEST)
    if not isinstance(manifest_table, dict) or checksums.broken(manifest_table):
        return {}
    listed, logs = manifest_table.get("files"), manifest_table.get("logs", {})
    if not isinstance(listed, dict) or not isinstance(logs, dict):
        return {}
    for name, recorded in logs.items():
        logs[name] = {"bytes": recorded} if isinstance(recorded, int) else recorded
    is_complete = all(
        isinstance(file_entry, dict) and isinstance(file_entry.get("bytes"), int)
        for file_entry in [*listed.values(), *logs.values()]
    )
    return (
        manifest_table
        if is_complete and str(manifest_table.get("step")) == checkpoint.name.removeprefix("step-")
        else {}
    )


def damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint; empty if it is whole."""
    manifest_table = manifest(checkpoint)
    if not manifest_table:
        return f"{MANIFEST} is missing, torn or changed"
    for name, listed in manifest_table["files"].items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if size(path) != listed["bytes"]:
            return f"{name} has {size(path)} bytes instead of {listed['bytes']}"
        if bounded.sha256(path) != listed.get("sha256"):
            return f"the sha256 of {name} differs from the manifest's"
    saved_at = str(bounded.object_or_empty(checkpoint / "state.json").get("step", ""))
    if saved_at and saved_at != checkpoint.name.removeprefix("step-"):
        return f"state.json is of step {saved_at:.20}"
    if is_sharded(checkpoint):  # torch's reader takes every file of tensors for a part
        return next((f"{name} is no part of it" for name in strangers(checkpoint) if is_tensors(name)), "")
    return ""


def is_tensors(name: str) -> bool:
    return name.endswith(".safetensors")


def strangers(checkpoint: Path) -> list[str]:
    """Files in a checkpoint folder that its manifest does not list."""
    listed = {MANIFEST, *manifest(checkpoint).get("files", ())}
    return sorted(path.name for path in checkpoint.iterdir() if path.name not in listed)


def written(weights: Path) -> str:
    """The checksum recorded for final weights or for a checkpoint's weights; empty if an older version
    recorded none. Raises ValueError for a damaged sums.json."""
    if weights.parent.name == "final":
        return str(
            checksums.read_sums(weights.parent.parent).get(f"final/{weights.name}", {}).get("sha256", "")
        )
    return str(manifest(weights.parent).get("files", {}).get(weights.name, {}).get("sha256", ""))


def read(run: Path, step: int) -> Checkpoint:
    """Read a whole checkpoint."""
    path = checkpoint_path(run, step)
    state = bounded.read_json(path / "state.json", f"restore it, or delete {path} to resume an older one")
    return Checkpoint(step, path, state, manifest(path)["logs"])


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file, with the permissions that the umask leaves. Tensors that share memory (tied
    weights) are written once per name."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    addresses: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        entry = tensor.detach().cpu().contiguous()
        address = entry.untyped_storage().data_ptr()
        apart[name] = entry.clone() if address in addresses else entry
        addresses.add(address)
    path.touch()
    allowed = path.stat().st_mode
    try:
        save_file(apart, path)  # which replaces the file by one that only its owner may read
        path.chmod(allowed)
    except SafetensorError as error:  # The exception hides the error number.
        raise OSError(hidden(str(error)), str(error), str(path)) from error


def hidden(message: str) -> int:
    """The system's error number in the text of a message."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        if f"os error {number})" in message or os.strerror(number) in message:
            return number
    return errno.EIO
