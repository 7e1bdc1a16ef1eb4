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
from grpobench.runs.models.ranks import ALONE, Ranks
from grpobench.runs.train.devices import joined
from helpers.batches import data
from helpers.toys import backward, models_for, off_policy
from helpers.warm import FORKING, LOADED

Result = tuple[dict[str, torch.Tensor], dict[str, float]]
"""(gradient by role and parameter, metrics)."""


def in_ranks(size: int, function: Callable[..., Any], *given: Any) -> list[Any]:
    """`function(ranks, *given)` of every rank. Each gives the same result where the function makes it so."""
    FORKING.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        processes = [
            FORKING.Process(target=_rank, args=(place, rank, size, function, given)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        said = [(place / f"{rank}.error") for rank in range(size)]
        assert not any(one.exists() for one in said), next(one.read_text() for one in said if one.exists())
        return [pickle.loads((place / f"{rank}.result").read_bytes()) for rank in range(size)]


def _rank(place: Path, rank: int, size: int, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    gc.freeze()  # what it shares with the server stays shared
    torch.set_num_threads(1)
    try:
        with joined(place, rank, size) as ranks:
            result = function(ranks, *given)
        (place / f"{rank}.result").write_bytes(pickle.dumps(result))
    except BaseException:
        (place / f"{rank}.error").write_text(traceback.format_exc())
        raise


def double() -> None:
    """float64 throughout, in this process."""
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)


def gradients(
    ranks: Ranks, names: Sequence[str], architecture: str, kind: str, wide: bool
) -> dict[str, Result]:
    """Gradient and metrics of algorithms with their default settings on a batch; with `wide` in float64."""
    if wide:
        double()
    return {name: gradient(ALGORITHMS[name](), architecture, kind, ranks) for name in names}


def gradient(algorithm: Algorithm[Any], architecture: str, kind: str, ranks: Ranks = ALONE) -> Result:
    models = models_for(algorithm, architecture, ranks=ranks)
    return backward(algorithm, models, off_policy(batch(kind), models))


def batch(kind: str) -> Batch:
    """`ragged`: four groups of rows of all lengths; `single`: one group of two rows, so that of three ranks
    or more some have nothing to do; `equal`: of the groups two have equal rewards, which some algorithms
    leave out."""
    whole = data()
    if kind == "single":
        first = (whole.group == whole.group[0]).nonzero().squeeze(-1)[:2]
        return whole[first]
    if kind == "equal":
        flat = whole.group <= whole.group.min() + 1
        reward = whole.reward.masked_fill(flat, 1.0)
        scores = whole.scores | {"correct": reward}
        return dataclasses.replace(whole, reward=reward, scores=scores)
    return whole


def met(ranks: Ranks) -> list[Any]:
    """What a rank learns of the others by each of their ways."""
    squares = ranks.dealt(range(5), lambda share: [one**2 for one in share])
    return [ranks.all_gather(torch.tensor(ranks.rank)), ranks.broadcast(lambda: ranks.rank), squares]
