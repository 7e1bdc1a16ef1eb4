"""The floor of a step: its FLOP as torch counts them, and the rate of the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from grpobench.benchmarks import floor
from grpobench.benchmarks.cases import BenchmarkCase
from grpobench.benchmarks.floor import Floor, MatrixProduct, PhaseRows, Products, WeightMatrix
from grpobench.benchmarks.sides import our_trainer, prompt_texts
from grpobench.runs.models.loading import load
from grpobench.runs.models.nano import architecture


def test_the_formula_is_what_torch_counts_in_a_real_step() -> None:
    texts = prompt_texts(load("nano").encode, count=3, tokens=12)
    case = BenchmarkCase(
        "tiny", "nano", prompts=3, group=4, prompt_tokens=12, completion_tokens=5, steps=2, texts=texts
    )
    trainer = our_trainer(case)
    with FlopCounterMode(display=False) as counter:
        trainer.step(1)
    made = counter.get_flop_counts()["Global"]
    # addmm is a product that is added to something at once, as fused layers decode
    products = made.pop(torch.ops.aten.mm) + made.pop(torch.ops.aten.addmm)
    trunk, head = floor.layers(trainer.loaded.model)
    forward = {name: rows.flop(trunk, head) for name, rows in floor.phases(case).items()}
    assert products == sum(forward.values()) + 2 * forward["forward"]  # the backward pass has twice as many
    # What else it counts is attention, which the floor leaves out.
    assert {str(name) for name in made} <= {
        "aten.bmm",
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
    }


def test_the_formula_by_hand() -> None:
    # W = 10, V·H = 4; one prompt of 3 tokens, two completions of 2
    trunk, head = [WeightMatrix(torch.zeros(5, 2))], WeightMatrix(torch.zeros(2, 2))
    case = BenchmarkCase("hand", "", prompts=1, group=2, prompt_tokens=3, completion_tokens=2, steps=1)
    flops = {name: rows.flop(trunk, head) for name, rows in floor.phases(case).items()}
    assert flops == {
        "prefill": 2 * (3 * 10 + 4),
        "decode": 2 * 1 * 2 * (10 + 4),
        "forward": 2 * ((3 + 2 * 1) * 10 + 2 * 2 * 4),
    }


def test_tables_are_no_products_and_a_token_meets_two_of_four_experts() -> None:
    def per_token(kind: str) -> float:
        trunk, head = floor.layers(architecture(kind))
        assert head.weight.shape == (99, 128)
        return sum(layer.flop(1) for layer in trunk) / 2

    attention, feed_forward, router = 4 * 128 * 128, 3 * 128 * 384, 4 * 128
    assert per_token("dense") == 4 * (attention + feed_forward)
    assert per_token("moe") == 4 * (attention + router + 2 * feed_forward)


def test_parts_add_up_and_the_rate_is_flop_over_seconds() -> None:
    row = Floor(
        {"decode": MatrixProduct(2.0, 0.5, "torch"), "backward": MatrixProduct(6.0, 0.5, "torch and onednn")}
    ).row()
    assert (row["gflop"], row["seconds"], row["gflop_per_s"]) == (8.0, 1.0, 8.0)
    assert row["phases"]["decode"] == {"gflop": 2.0, "seconds": 0.5, "gflop_per_s": 4.0, "way": "torch"}
    assert "attention" in row["without"]


def test_every_pass_makes_its_products_and_the_fastest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = architecture("dense", num_hidden_layers=1, hidden_size=32, intermediate_size=64)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    times = iter([0.4, 0.1, 0.3] * 99)
    product = torch.mm

    def watched(first: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        shapes.append((tuple(first.shape), tuple(other.shape)))
        return product(first, other, out=out)

    def once(call: object) -> float:
        assert callable(call)
        call()
        return next(times)

    monkeypatch.setattr(torch, "mm", watched)
    monkeypatch.setattr(floor, "fastest", once)
    monkeypatch.setattr(floor, "exact", lambda way, weights: False)
    part = Products(model).part(PhaseRows(trunk=6, head=2, times=10), ("weights",))
    # Gradients of four attention weights, two layers up, one down, and the head: out × rows and rows × in.
    width, up = ((32, 6), (6, 32)), ((64, 6), (6, 32))
    assert sorted(shapes) == sorted([*[width] * 4, *[up] * 2, ((32, 6), (6, 64)), ((99, 2), (2, 32))])
    assert part.seconds == pytest.approx(10 * (0.4 + 0.1))  # ten passes of trunk and head
    weights = 4 * 32 * 32 + 3 * 32 * 64
    assert part.gflop == pytest.approx(10 * 2 * (6 * weights + 2 * 99 * 32) / 1e9)


def test_many_rows_go_in_pieces_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "exact", lambda way, weights: False)
    bench = Products(architecture("dense", num_hidden_layers=1))
    monkeypatch.setattr(bench, "_timed", lambda weights, rows, kind: {3000: 1.0, 1000: 0.2, 8: 0.01}[rows])
    assert bench.seconds(PhaseRows(trunk=3000, head=8), "forward", "torch") == pytest.approx(3 * 0.2 + 0.01)


def test_the_fastest_of_several_calls_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([5.0, 1.0, 0.25, 2.0])  # the first call only warms up
    now = [0.0]
    monkeypatch.setattr(floor.time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += next(ends)

    assert floor.fastest(call) == 0.25


def test_a_way_that_rounds_its_factors_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.Tensor.__matmul__

    @contextlib.contextmanager
    def rounding() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "__matmul__", lambda a, b: plain(a.bfloat16(), b.bfloat16()))
            yield

    monkeypatch.setitem(floor.WAYS, "rounded", rounding)
    weights = [WeightMatrix(torch.randn(48, 32)), WeightMatrix(torch.randn(16, 48))]
    assert floor.exact("torch", weights)
    assert not floor.exact("rounded", weights)


def test_how_torch_makes_products_is_left_as_it_was() -> None:
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    with floor.through_onednn():
        assert settings.fp32_precision == "bf16"
    assert settings.fp32_precision == before
