"""Running sums: the numbers of `cumsum`, without an operator that a GPU may refuse."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from grpobench.algorithms.parts import running_sum

ROOT = Path(__file__).parents[2]
INTEGERS = {
    "algorithms/flowrl.py": ("written.cumsum(-1)",),
    "algorithms/self_distillation.py": ("written.long().cumsum(-1)",),
    "runs/train/prepare/base_rollouts.py": ("np.cumsum(tensors['length'])",),
    "algorithms/turns.py": ("first.flatten().cumsum(0)", "self.count.cumsum(0)", "turns.count.cumsum(0)"),
    "algorithms/parts.py": ("begins.cumsum(0)", "begins.flatten().cumsum(0)", "written.flip(-1).cumsum(-1)"),
    "algorithms/rredcot.py": (
        "starts.cumsum(-1)",
        "batch.completion_mask.cumsum(-1)",
        "answer.cumsum(-1)",
        "written.cumsum(-1)",
        "marked.cumsum(-1)",
    ),
    "runs/models/packing.py": ("sizes.cumsum()", "counts.cumsum()"),
    "runs/metrics/ratios.py": ("completion_mask.cumsum(-1)",),
    "runs/sample/decoding.py": ("token_mask.cumsum(-1)", "count.cumsum(0)"),
    "runs/sample/draws.py": ("integers(probability).cumsum(-1)", "mass.cumsum(-1)"),
    "runs/sample/step_kernels.py": ("tl.cumsum(integer, 0)", "tl.cumsum(of_pieces, 0)"),
    "runs/calibration/measure.py": ("softmax(scenario.sampling_logits).cumsum(-1)",),
    "runs/train/trl/work.py": ("np.cumsum([len(items) for items in self.steps.values()])",),
}
"""Sums of integers or masks, which a GPU computes under deterministic operators too, one of a list, and one
of probabilities that is computed on the CPU alone."""
REFUSED = {"cumsum", "kthvalue", "histc"}
"""Operators that a GPU refuses under deterministic operators, `cumsum` for floats alone."""


@pytest.mark.parametrize("length", [1, 2, 3, 127, 128, 129, 1000, 16384])
def test_float64_sums_are_those_of_cumsum(length: int) -> None:
    value = torch.randn(3, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    scale = value.abs().cumsum(-1)
    assert ((running_sum(value) - value.cumsum(-1)).abs() <= 1e-12 * scale).all()


def test_float32_sums_are_as_near_to_the_exact_ones_as_those_of_cumsum() -> None:
    value = torch.randn(4, 16384, generator=torch.Generator().manual_seed(0))
    exact, scale = value.double().cumsum(-1), value.double().abs().cumsum(-1)
    ours, theirs = (((sums - exact).abs() / scale).max() for sums in (running_sum(value), value.cumsum(-1)))
    assert ours <= 14 * 2**-24  # one rounding in each of log2(16384) sums
    assert ours <= 2 * theirs


floats = st.floats(-1e6, 1e6, width=32)
shapes = st.tuples(st.integers(1, 3), st.integers(1, 70))


@given(arrays.arrays("float32", shapes, elements=floats), st.integers(0, 9), st.integers(0, 9))
def test_zeros_on_either_side_change_no_bit(value: object, before: int, behind: int) -> None:
    plain = torch.as_tensor(value)
    padded = running_sum(torch.nn.functional.pad(plain, (before, behind)))
    assert torch.equal(padded[:, before : before + plain.shape[1]], running_sum(plain))


@given(st.lists(st.integers(-1000, 1000), max_size=200))
def test_sums_of_whole_numbers_are_exact(values: list[int]) -> None:
    sums = running_sum(torch.tensor(values, dtype=torch.float32))
    assert sums.tolist() == list(itertools.accumulate(values))


def test_the_gradient_is_that_of_cumsum() -> None:
    value = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 9, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((sums * weight).sum(), value)[0]
        for sums in (running_sum(value), value.cumsum(-1))
    )
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def calls(path: Path) -> list[str]:
    """The calls of refused operators in a file."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        ast.unparse(node)
        for node in tree
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REFUSED
    ]


def test_no_other_code_calls_an_operator_that_a_gpu_refuses() -> None:
    """Sums of floats belong to `running_sum`; one of integers may be listed above."""
    operators_by_file = {
        path.relative_to(ROOT).as_posix(): set(operators)
        for room in ("algorithms", "runs")
        for path in sorted((ROOT / room).rglob("*.py"))
        if (operators := calls(path))
    }
    assert operators_by_file == {name: set(operators) for name, operators in INTEGERS.items()}
