"""Checkpoints of a run on several devices, of which every rank writes and reads its parts."""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias

import torch

FILES = "shard-*.safetensors"
# In quotes: torch is imported where it is first used.
Outline: TypeAlias = "Mapping[str, tuple[torch.Size, torch.dtype]]"
"""Shape and type of whole tensors by name."""


def flat(state: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Tensors by ``ROLE/NAME``."""
    return {f"{role}/{name}": tensor for role, tensors in state.items() for name, tensor in tensors.items()}


def by_role(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """The inverse of `flat`."""
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        role, _, name = key.partition("/")
        state.setdefault(role, {})[name] = tensor
    return state


def begin_save(folder: Path, tensors: Mapping[str, torch.Tensor], group: Any) -> Future[Any]:
    """Copy this rank's parts of tensors into the memory of the CPU, and go on to write them in the
    background. Every rank must call this at the same place; `group` is a process group of gloo that nothing
    else uses. The result of rank 0 is there when all ranks have written.

    torch's distributed checkpoint does it, in its safetensors format: a file for each rank, whose header says
    where the parts lie in the whole tensors. No rank needs a whole tensor, any number of ranks can read what
    another number has written, and nothing is unpickled. Names are ``ROLE/NAME``: of the tensors that a run
    on one device keeps under NAME in ROLE.safetensors."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import async_save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    begun: Any = async_save(dict(tensors), storage_writer=writer, process_group=group)
    return begun  # type: ignore[no-any-return]


def load_into(folder: Path, tensors: Mapping[str, torch.Tensor], group: Any = None) -> None:
    """Read tensors in place, sharded ones by parts, which every rank must do at the same place. Without a
    `group` this process reads alone."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with quiet(), as_os_errors():
        load(
            dict(tensors),
            storage_reader=HuggingFaceStorageReader(str(folder)),
            process_group=group,
            no_dist=group is None,
        )


def outline(folder: Path) -> Outline:
    """What a checkpoint holds."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    metadata_by_name: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: (metadata.size, metadata.properties.dtype) for name, metadata in metadata_by_name.items()}


def load_full(folder: Path, role: str) -> dict[str, torch.Tensor]:
    """The tensors of a role, whole, in the memory of the CPU."""
    head = f"{role}/"
    tensors = {
        name: torch.empty(shape, dtype=dtype)
        for name, (shape, dtype) in outline(folder).items()
        if name.startswith(head)
    }
    load_into(folder, tensors)
    return {name.removeprefix(head): tensor for name, tensor in tensors.items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that a process alone reads alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def await_written(begun: Future[Any]) -> None:
    """Wait for what `begin_save` has begun. Raises OSError if a rank could not write."""
    with as_os_errors():
        begun.result()


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Within, torch's CheckpointException, which is no Exception and hides which one a rank had, becomes an
    OSError."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        errors: list[Any] = [failure[0] for failure in error.failures.values()]
        cause = next((candidate for candidate in errors if isinstance(candidate, OSError)), errors[0])
        raise cause if isinstance(cause, OSError) else OSError(errno.EIO, str(cause)) from error
