"""Recorded steps through several calls of a sampler, with a stand-in for the CUDA graphs of torch 2.11."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import cuda_graphs
from helpers.cuda_graphs import Pools, record_steps
from helpers.sampling import demand_same, flat, requests, sampler

from grpobench.runs.sample import graphs
from grpobench.runs.sample.graphs import StaticBatch
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.recording import RecordingError, StepRecorder

LIMIT = 40
"""More than a bucket of columns, so that two graphs are recorded for a grid."""


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    return cuda_graphs.install(monkeypatch)


def demand_completions_of(ours: HFSampler, theirs: HFSampler) -> None:
    demand_same(*(made.sample(requests(), LIMIT, 1.0) for made in (ours, theirs)))


@pytest.mark.parametrize("kept_bytes", [graphs.KEPT, 0])
def test_steps_are_recorded_in_every_call_whether_graphs_outlive_it_or_not(
    kept_bytes: int, monkeypatch: pytest.MonkeyPatch, pools: Pools
) -> None:
    """0: a policy larger than KEPT, whose graphs and pool end with each call."""
    monkeypatch.setattr(graphs, "KEPT", kept_bytes)
    ours, theirs = record_steps(sampler()), sampler()
    captures = []
    for _ in range(3):
        demand_completions_of(ours, theirs)
        gc.collect()
        captures.append(pools.captures)
    assert ours.graphs is not None and captures[0] >= 2
    if kept_bytes:
        assert captures[0] == captures[2] and not pools.ended
    else:
        assert captures == [captures[0], 2 * captures[0], 3 * captures[0]] and len(pools.ended) == 3


def test_the_stand_in_refuses_a_pool_without_a_living_graph(pools: Pools) -> None:
    """As torch did to a recorder that named its first pool for ever."""

    class OnePool(StepRecorder):
        def pool(self) -> Any:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            return self._pool

    counter, recorder = torch.zeros(1), OnePool()

    def step() -> None:
        counter.add_(1)

    recorder.run(step)
    replay = recorder.record(step)
    replay()
    assert counter == 2  # the capture does not count
    del replay
    with pytest.raises(RuntimeError, match="use_count > 0"):
        recorder.record(step)


def test_the_stand_in_refuses_what_a_library_would_allocate_within_a_capture(pools: Pools) -> None:
    """A step runs once before it is recorded; without that a capture would be its first call."""
    matrix, graph = torch.ones(2, 2), torch.cuda.CUDAGraph()
    refused = pytest.raises(RuntimeError, match="not permitted when stream is capturing: mm")
    with refused, torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        matrix @ matrix
    recorder = StepRecorder()
    recorder.run(lambda: matrix.copy_(matrix @ matrix))
    assert recorder.record(lambda: matrix.copy_(matrix @ matrix))


def test_the_stand_in_refuses_work_whose_order_is_left_open(pools: Pools) -> None:
    stream, counter, recorder = torch.cuda.Stream(), torch.zeros(1), StepRecorder()
    with pytest.raises(RuntimeError, match="did not wait"), torch.cuda.stream(stream):
        counter.add_(1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        counter.add_(1)
    with pytest.raises(RecordingError, match="did not wait"):
        recorder.record(lambda: counter.add_(1))  # type: ignore[arg-type, return-value]
    torch.cuda.current_stream().wait_stream(stream)
    recorder.record(lambda: counter.add_(1))()  # type: ignore[arg-type, return-value]
    assert counter == 2


def test_a_width_is_recorded_when_a_completion_reaches_it(pools: Pools) -> None:
    """A limit of 100 tokens has widths of 32, 64 and 128, of which short completions need the first."""
    made = record_steps(sampler(end=tuple(range(1, 20))))
    assert max(len(rollout.completion) for rollout in flat(made.sample(requests(), 100, 1.0))) < 32
    assert made.graphs is not None
    widths = [width for batch in made.graphs.batches.values() for width in batch.steps]
    assert set(widths) == {32} and pools.captures == len(widths)


def refuse(*_: Any) -> None:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def wait_for_the_device(self: StaticBatch, width: int) -> None:
    original_step(self, width)
    self.greedy[0] = bool(self.stopped.sum().item() < 0)


original_step = StaticBatch.step


@pytest.mark.parametrize(
    ("where", "name", "failure"),
    [
        (cuda_graphs.Pools, "begin_capture", refuse),
        (StaticBatch, "step", refuse),
        (StaticBatch, "step", wait_for_the_device),
    ],
)
def test_a_failure_to_record_falls_back_to_fused_decoding_with_one_warning(
    where: type, name: str, failure: Callable[..., None], monkeypatch: pytest.MonkeyPatch, pools: Pools
) -> None:
    ours, theirs = record_steps(sampler()), sampler()
    monkeypatch.setattr(where, name, failure)
    with pytest.warns(UserWarning, match="without CUDA graphs") as warned:
        demand_completions_of(ours, theirs)
        demand_completions_of(ours, theirs)
    assert len(warned) == 1 and ours.graphs is None


def test_graphs_for_which_there_is_no_memory_are_given_up_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, pools: Pools
) -> None:
    def out_of_memory(self: Pools, pool: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    ours, theirs = record_steps(sampler()), sampler()
    monkeypatch.setattr(cuda_graphs.Pools, "begin_capture", out_of_memory)
    with pytest.warns(UserWarning, match="without CUDA graphs|out of memory"):
        demand_completions_of(ours, theirs)
    assert ours.graphs is None and ours.token_budget.limit == ours.token_budget.initial
