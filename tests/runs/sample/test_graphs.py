"""Decoding in tensors that never move: the step that a GPU records, run without a recording, gives what plain
decoding gives, and does nothing that cannot be recorded."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
import torch
from helpers.cuda_graphs import WAITING_OPERATORS
from helpers.sampling import END, PROMPTS, demand_same, flat, requests, sampler
from helpers.toys import VOCABULARY, tiny
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from grpobench.algorithms.algorithm import Mixture
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample import graphs
from grpobench.runs.sample.decoding import Decoding
from grpobench.runs.sample.draws import Draws
from grpobench.runs.sample.fused import Fused
from grpobench.runs.sample.graphs import Graphs, StaticBatch, bucket, grid_for, proven
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import GREEDY, Mixing, Request

LIMIT = 40
"""More than a bucket of columns, so that a second one is recorded."""
MOST_LAUNCHES = 165
"""Kernels of a step of two layers."""


def static(architecture: str = "llama", **settings: Any) -> HFSampler:
    """A sampler that decodes as on a GPU."""
    made = sampler(architecture, **settings)
    made.graphs = Graphs(made.models)
    return made


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_completions_are_those_of_plain_decoding(architecture: str, temperature: float) -> None:
    plain, ours = sampler(architecture), static(architecture)
    plain.shares = plain.fuses = False
    expected = plain.sample(requests(5), LIMIT, temperature)
    demand_same(ours.sample(requests(5), LIMIT, temperature), expected)
    lengths = {len(rollout.completion) for rollout in flat(expected)}
    assert ours.graphs and ours.graphs.batches, "the static step was used"
    assert len(lengths) >= 3 and any(rollout.stopped for rollout in flat(expected))


def test_groups_of_different_sizes_and_greedy_answers_among_samples() -> None:
    mixed_requests = [
        Request(prompt, tuple(10 * i + j if j else GREEDY for j in range(size)))
        for i, (prompt, size) in enumerate(zip(PROMPTS, (1, 7, 2, 5), strict=True))
    ]
    demand_same(static().sample(mixed_requests, LIMIT, 1.0), sampler().sample(mixed_requests, LIMIT, 1.0))


@pytest.mark.parametrize("limit", [1, 2, 8, 32, 33])
def test_limits_at_the_edges_of_buckets(limit: int) -> None:
    never = (VOCABULARY,)
    ours = static(end=never).sample(requests(), limit, 1.0)
    demand_same(ours, sampler(end=never).sample(requests(), limit, 1.0))
    assert {len(rollout.completion) for rollout in flat(ours)} == {limit}


def test_rows_move_to_a_smaller_grid_when_most_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, move = [], StaticBatch.move

    def noted(self: StaticBatch, to: StaticBatch, *arguments: Any) -> None:
        moves.append((self.grid.rows, to.grid.rows))
        move(self, to, *arguments)

    monkeypatch.setattr(StaticBatch, "move", noted)
    many_requests, settings = requests(16), {"end": tuple(range(1, 5))}
    demand_same(
        *(made.sample(many_requests, LIMIT, 1.0) for made in (static(**settings), sampler(**settings)))
    )
    assert len(moves) >= 2 and all(2 * after <= before for before, after in moves)


def test_a_sample_alone_is_the_one_in_a_batch() -> None:
    together = static().sample(requests(), LIMIT, 1.0)
    alone = [
        static().sample([Request(request.prompt, (seed,))], LIMIT, 1.0)[0]
        for request in requests()
        for seed in request.seeds
    ]
    demand_same([flat(alone)], [flat(together)])


@pytest.mark.parametrize("kept_bytes", [graphs.KEPT, 0])
def test_weights_that_move_between_two_calls_are_followed(
    kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a parameter gets another tensor, as while a sampler lags."""
    monkeypatch.setattr(graphs, "KEPT", kept_bytes)
    ours, theirs = static(), sampler()
    for turn in range(3):
        demand_same(*(made.sample(requests(), LIMIT, 1.0) for made in (ours, theirs)))
        assert ours.graphs and bool(ours.graphs.batches) == bool(kept_bytes)
        for made in (ours, theirs):
            for p in made.models.language.parameters():
                p.data = p.data * 0.9 if turn else p.data.mul_(0.9)


def test_a_call_repeated_in_used_buffers_has_the_same_bits() -> None:
    made = static()
    first = flat(made.sample(requests(5), LIMIT, 1.0))
    made.sample(requests(5)[::-1], 7, 1.0)
    for first_rollout, other in zip(first, flat(made.sample(requests(5), LIMIT, 1.0)), strict=True):
        assert first_rollout.completion == other.completion
        assert first_rollout.sampler_logp.tobytes() == other.sampler_logp.tobytes()


def test_mixtures_and_conversations_are_decoded_by_the_other_ways() -> None:
    def half(drawn: torch.Tensor, logits: torch.Tensor, uniform: torch.Tensor) -> Mixture:
        pair = torch.stack([drawn, (drawn + 1) % VOCABULARY], -1)
        return Mixture(pair, torch.full(pair.shape, 0.5))

    rollouts_by_way = []
    for made in (static(), sampler()):
        with made.remembering():
            rollouts_by_way.append(made.sample(requests(), 6, 1.0))
        rollouts_by_way.append(made.sample(requests(), 6, 1.0, Mixing(half)))
        assert made.graphs is None or not made.graphs.batches
    demand_same(rollouts_by_way[0], rollouts_by_way[2])
    demand_same(rollouts_by_way[1], rollouts_by_way[3])


def test_memory_that_runs_out_is_made_do_with(monkeypatch: pytest.MonkeyPatch) -> None:
    made, init = static(), StaticBatch.__init__

    def refusing(self: StaticBatch, grid: Any, *arguments: Any) -> None:
        if grid.rows > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        init(self, grid, *arguments)

    monkeypatch.setattr(StaticBatch, "__init__", refusing)
    with pytest.warns(UserWarning, match="out of memory"):
        ours = made.sample(requests(), LIMIT, 1.0)
    demand_same(ours, sampler().sample(requests(), LIMIT, 1.0))
    assert made.token_budget.limit <= 6


def test_without_memory_for_a_second_copy_each_call_has_graphs_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(fused: Fused) -> Fused:
        raise torch.OutOfMemoryError("CUDA out of memory")

    made = static()
    monkeypatch.setattr(graphs, "cloned", refusing)
    demand_same(made.sample(requests(), LIMIT, 1.0), sampler().sample(requests(), LIMIT, 1.0))
    assert made.graphs is not None and not made.graphs.batches and made.graphs.weights is None


# What can be recorded


class Operators(TorchDispatchMode):
    """Notes every operator with the shapes of what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, Any]] = []
        self.launches = 0
        """Operators that are no views: each is a kernel of its own, or several."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        returns = function._schema.returns
        self.launches += not any(part.alias_info and not part.alias_info.is_write for part in returns)
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else None
        self.operators.append((function.name().removeprefix("aten::").split(".")[0], shape))
        return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_neither_waits_for_the_device_nor_changes_its_shapes(dtype: str) -> None:
    models = RoleModels(tiny(), dtype=dtype)
    fused = Fused(models)
    owner, end = torch.tensor([0, 1, 1, 2, 0, 3]), torch.tensor(END)
    with torch.no_grad():
        batch = Decoding(models, PROMPTS, owner, 0, 0, True, fused=fused)
        made = StaticBatch(grid_for(4, 2, batch.column, LIMIT, 1.0, True), fused, batch, end)
        numbers = Draws(range(len(owner)), LIMIT, 1.0, torch.device("cpu"))
        made.fill(batch, numbers, batch.groups.cell, LIMIT)
        addresses = {name: value.data_ptr() for name, value in collect_tensors(made).items()}
        operators_by_step = []
        for _ in range(3):
            with graphs.unordered(), Operators() as noted:
                made.step(32)
            operators_by_step.append(noted.operators)
    assert (
        operators_by_step[0] == operators_by_step[1] == operators_by_step[2]
        and len(operators_by_step[0]) > 50
    )
    names = Counter(name for name, _ in operators_by_step[0])
    assert not set(WAITING_OPERATORS) & set(names)
    assert noted.launches <= MOST_LAUNCHES, (noted.launches, names)
    assert addresses == {name: value.data_ptr() for name, value in collect_tensors(made).items()}


def collect_tensors(made: StaticBatch) -> dict[str, torch.Tensor]:
    """Every tensor of a batch that a step reads or writes."""
    tensors = {name: value for name, value in vars(made).items() if isinstance(value, torch.Tensor)}
    layers = {f"{n}.{k}": t for n, layer in enumerate(made.cache.layers) for k, t in enumerate(layer.tensors)}
    return tensors | layers


def test_torchs_choice_of_operators_comes_back() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with contextlib.suppress(ZeroDivisionError), graphs.unordered():
            assert not torch.are_deterministic_algorithms_enabled()
            raise ZeroDivisionError
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# The proof


def test_a_model_is_proven_at_loading_and_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    models = RoleModels(tiny())
    with torch.no_grad():
        assert proven(models, 0) is not None
        assert proven(RoleModels(tiny(), dtype="bfloat16"), 0) is not None
        step = StaticBatch.step

        def one_too_far(self: StaticBatch, width: int) -> None:
            self.position.add_(1)
            step(self, width)

        monkeypatch.setattr(StaticBatch, "step", one_too_far)
        with pytest.warns(UserWarning, match="without CUDA graphs.*off by"):
            assert proven(models, 0) is None

        def refused(self: StaticBatch, width: int) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(StaticBatch, "step", refused)
        with pytest.warns(UserWarning, match="without CUDA graphs.*capturing"):
            assert proven(models, 0) is None


def test_without_a_gpu_nothing_is_recorded() -> None:
    assert sampler().graphs is None


# Sizes


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 6), (7, 8), (9, 12), (13, 16), (17, 24)],
)
def test_buckets_are_powers_of_two_and_what_lies_between(size: int, expected: int) -> None:
    assert bucket(size) == expected


@given(prompts=st.integers(1, 300), most=st.integers(1, 70), limit=st.integers(1, 3000))
def test_a_grid_holds_its_rows_and_is_at_most_two_and_a_quarter_times_as_large(
    prompts: int, most: int, limit: int
) -> None:
    grid = grid_for(prompts, most, 90, limit, 1.0, False)
    assert grid.prompts >= prompts and grid.most >= most
    assert grid.rows <= 2.25 * prompts * most
    assert (grid.prompt_columns, bucket(96, 32), bucket(97, 32)) == (96, 96, 128)
    assert limit <= grid.columns < max(2 * limit, 33)
