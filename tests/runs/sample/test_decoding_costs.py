"""What decoding by recorded steps costs: what a token reads, what a call launches, and what outlives it.
Counted on CPU tensors."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from helpers import cuda_graphs
from helpers.cuda_graphs import Pools, record_steps
from helpers.sampling import END, PROMPTS, requests, sampler
from helpers.toys import VOCABULARY, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample import graphs
from grpobench.runs.sample.decoding import Decoding
from grpobench.runs.sample.draws import Draws
from grpobench.runs.sample.fused import Fused
from grpobench.runs.sample.graphs import COLUMNS, Graphs, StaticBatch, grid_for, most_kept

LIMIT = 100
"""Tokens of a completion: widths of 32, 64 and 128 columns."""


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    return cuda_graphs.install(monkeypatch)


class Reads(TorchDispatchMode):
    """The elements that operators read of each tensor's memory. Views read nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[int, list[int]] = defaultdict(list)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = function._schema.returns
        views = any(part.alias_info and not part.alias_info.is_write for part in returns)
        flat = [value for arg in args for value in (arg if isinstance(arg, list | tuple) else (arg,))]
        for argument in () if views else flat:
            if isinstance(argument, torch.Tensor):
                self.elements[argument.untyped_storage().data_ptr()].append(argument.numel())
        return function(*args, **(kwargs or {}))

    def of(self, tensor: torch.Tensor) -> list[int]:
        """By operator, the elements that it reads of a tensor."""
        return self.elements[tensor.untyped_storage().data_ptr()]


@pytest.mark.parametrize(("dtype", "rank"), [("float32", 0), ("bfloat16", 0), ("bfloat16", 4)])
def test_a_token_reads_weights_and_prompts_once_and_few_columns_that_are_not_written(
    dtype: str, rank: int
) -> None:
    language = tiny()
    adapter = Adapter(rank=rank) if rank else None
    models = RoleModels(language, dtype=dtype, adapter=adapter)
    fused = Fused(models)
    samples = 3
    owner, end = torch.arange(len(PROMPTS)).repeat_interleave(samples), torch.tensor(END)
    with torch.no_grad(), graphs.unordered():
        batch = Decoding(models, PROMPTS, owner, 0, 0, True, fused=fused)
        grid = grid_for(len(PROMPTS), samples, batch.column, LIMIT, 1.0, False)
        made = StaticBatch(grid, fused, batch, end)
        made.fill(batch, Draws(range(len(owner)), LIMIT, 1.0, end.device), batch.groups.cell, LIMIT)
        for written in range(1, LIMIT):
            width = min(grid.columns, graphs.bucket_width(written))
            with Reads() as read:
                made.step(width)
            if written not in (1, 32, 33, 65, LIMIT - 1):
                continue
            for weight in graphs.tensors(fused):
                assert read.of(weight) == [weight.numel()], "each weight is part of one product"
            for layer in made.cache.layers:
                for prompt in (layer.prompt_keys, layer.prompt_values):
                    assert read.of(prompt) == [prompt.numel()], "once, whatever the rows of a prompt"
                for states in (layer.keys, layer.values):
                    write, product = read.of(states)
                    assert write == states.numel(), "the target of index_copy_, which writes one column"
                    assert product == states.numel() // grid.columns * width
            assert written <= width < max(2 * written, COLUMNS + 1)


@pytest.mark.parametrize("limit", [2, 3, 33, 34, LIMIT])
def test_the_first_call_launches_no_more_steps_than_one_without_graphs(
    limit: int, monkeypatch: pytest.MonkeyPatch, pools: Pools
) -> None:
    """A replay is one launch. A step that is recorded is launched, although the GPU does not compute it."""
    launched: Counter[str] = Counter()
    step = StaticBatch.step

    def counted(self: StaticBatch, width: int, name: str) -> None:
        launched[name] += 1
        step(self, width)

    for settings in ({"end": (VOCABULARY,)}, {"end": tuple(range(1, 5))}):
        launched.clear()
        recorded, plain = record_steps(sampler(**settings)), sampler(**settings)
        plain.graphs = Graphs(plain.models)
        captures = pools.captures
        for made, name in ((recorded, "recorded"), (plain, "plain")):
            monkeypatch.setattr(StaticBatch, "step", functools.partialmethod(counted, name=name))
            made.sample(requests(8), limit, 1.0)
            monkeypatch.setattr(StaticBatch, "step", step)
        assert recorded.graphs is not None
        widths = sum(len(batch.steps) for batch in recorded.graphs.batches.values())
        assert pools.captures - captures <= widths
        assert launched["recorded"] <= min(launched["plain"], 2 * widths)


def test_graphs_of_half_a_billion_weights_outlive_a_call_and_those_of_seven_do_not() -> None:
    """Bytes in bfloat16 of 16 × 8 completions of 256 tokens behind prompts of 128."""
    grid = grid_for(16, 8, 128, 256, 1.0, False)

    def bytes_of(weights: float, layers: int, keys: int, vocabulary: int) -> float:
        return 2 * weights + grid.cache_bytes(layers * keys * 4) + grid.graph_bytes(vocabulary, kernels=False)

    for memory in (79 * 2**30, 140 * 2**30):
        assert (
            bytes_of(0.494e9, 24, 2 * 64, 151_936) < most_kept(memory) < bytes_of(7.6e9, 28, 4 * 128, 152_064)
        )
    assert most_kept(None) == most_kept(8 * 2**30) == graphs.KEPT
