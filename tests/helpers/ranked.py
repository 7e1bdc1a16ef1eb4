"""Functions in several processes that are the ranks of one run, over gloo on this machine."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm, Batch
from grpobench.runs.models.ranks import ALONE, DeviceRanks
from grpobench.runs.train.devices import joined
from helpers.batches import data
from helpers.toys import backward, models_for, off_policy
from helpers.warm import FORKING, begin_server

Result = tuple[dict[str, torch.Tensor], dict[str, float]]
"""(gradient by role and parameter, metrics)."""


def in_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(ranks, *given)` of every rank. Each gives the same result where the function makes it so."""
    begin_server()
    with tempfile.TemporaryDirectory() as folder:
        shared_folder = Path(folder)
        processes = [
            FORKING.Process(target=_rank, args=(shared_folder, rank, size, function, arguments))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        error_files = [(shared_folder / f"{rank}.error") for rank in range(size)]
        assert not any(error_file.exists() for error_file in error_files), next(
            error_file.read_text() for error_file in error_files if error_file.exists()
        )
        return [pickle.loads((shared_folder / f"{rank}.result").read_bytes()) for rank in range(size)]


def _rank(
    shared_folder: Path, rank: int, size: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    gc.freeze()  # what it shares with the server stays shared
    torch.set_num_threads(1)
    try:
        with joined(shared_folder, rank, size) as ranks:
            result = function(ranks, *arguments)
        (shared_folder / f"{rank}.result").write_bytes(pickle.dumps(result))
    except BaseException:
        (shared_folder / f"{rank}.error").write_text(traceback.format_exc())
        raise


def double() -> None:
    """float64 throughout, in this process."""
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)


def gradients(
    ranks: DeviceRanks, names: Sequence[str], architecture: str, kind: str, wide: bool
) -> dict[str, Result]:
    """Gradient and metrics of algorithms with their default settings on a batch; with `wide` in float64."""
    if wide:
        double()
    return {name: gradient(ALGORITHMS[name](), architecture, kind, ranks) for name in names}


def gradient(algorithm: Algorithm[Any], architecture: str, kind: str, ranks: DeviceRanks = ALONE) -> Result:
    models = models_for(algorithm, architecture, ranks=ranks)
    return backward(algorithm, models, off_policy(batch(kind), models))


def batch(kind: str) -> Batch:
    """`ragged`: four groups of rows of all lengths; `single`: one group of two rows, so that of three ranks
    or more some have nothing to do; `equal`: of the groups two have equal rewards, which some algorithms
    leave out."""
    full_batch = data()
    if kind == "single":
        first = (full_batch.group == full_batch.group[0]).nonzero().squeeze(-1)[:2]
        return full_batch[first]
    if kind == "equal":
        flat = full_batch.group <= full_batch.group.min() + 1
        reward = full_batch.reward.masked_fill(flat, 1.0)
        scores = full_batch.scores | {"correct": reward}
        return dataclasses.replace(full_batch, reward=reward, scores=scores)
    return full_batch


def met(ranks: DeviceRanks) -> list[Any]:
    """What a rank learns of the others by each of their ways."""
    squares = ranks.dealt(range(5), lambda share: [number**2 for number in share])
    return [ranks.all_gather(torch.tensor(ranks.rank)), ranks.broadcast(lambda: ranks.rank), squares]
