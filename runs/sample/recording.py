"""Records decoding steps as CUDA graphs that share one pool of memory."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from grpobench.runs.models.token_budgets import is_out_of_memory, summarize_error


class RecordingError(RuntimeError):
    """A step that cannot be recorded as a CUDA graph. The message is the reason in one line."""


class StepRecorder:
    """Records steps on a GPU.

    All graphs use one pool of memory for intermediate tensors: nothing in it outlives a step, and no two
    steps run at once. Torch ends a pool with its last graph and refuses its handle from then on, so a
    recording that finds no living graph begins a new pool.
    """

    def __init__(self) -> None:
        self._living_graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def pool(self) -> Any:
        """The handle of a pool that torch accepts now."""
        if not self._living_graphs:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def run(self, step: Callable[[], None]) -> None:
        """Run `step` on a stream of its own, as torch demands before it is recorded: libraries allocate and
        load at their first call, which a recording must not do. Raises as `record`."""
        with recordable():
            # One for all steps: memory that a stream has used serves no other one.
            stream = self._stream = self._stream or torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            torch.cuda.current_stream().wait_stream(stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record `step`, which ran before, and return its replay. Recording computes nothing. Raises
        RecordingError, or torch's error if memory runs out."""
        with recordable():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool()):
                step()
            self._living_graphs.add(graph)  # only now: a capture that failed does not hold the pool
        return graph.replay


@contextlib.contextmanager
def recordable() -> Iterator[None]:
    """Within, an error becomes a RecordingError, unless memory ran out."""
    try:
        yield
    except Exception as error:  # torch raises many classes here, and none may end a run
        if is_out_of_memory(error):
            raise
        raise RecordingError(summarize_error(error)) from error
