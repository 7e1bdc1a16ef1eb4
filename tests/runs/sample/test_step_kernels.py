"""The Triton kernels of a decoding step against the operations of torch that they stand for."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.kernels import compile_for_h100, interpret
from helpers.sampling import sampler

from grpobench.runs.sample import graphs
from grpobench.runs.sample.graphs import gaps_to_fused, proven

DRAWN = """
import itertools

import torch

from grpobench.runs.sample import step_kernels
from grpobench.runs.sample.draws import choose
from grpobench.runs.settings.truncation import FULL

step_kernels.PIECE = 64
generator = torch.Generator().manual_seed(0)
for vocabulary, temperature, dtype in itertools.product(
    (1, 63, 64, 65, 300), (1.0, 0.7), (torch.float32, torch.bfloat16)
):
    logits = (4 * torch.randn(5, vocabulary, generator=generator)).to(dtype)
    logits[0, : vocabulary - 1] = -torch.inf
    uniform = torch.rand(5, 3, dtype=torch.float64, generator=generator)
    uniform[1], uniform[2] = 0.0, 1 - 2.0**-53
    drawn, logp, entropy = step_kernels.draw(logits, uniform, torch.tensor([2]), temperature)
    expected = choose((logits.float() / temperature).log_softmax(-1), uniform[:, 2], None, FULL)
    assert torch.equal(drawn, expected[0])
    torch.testing.assert_close(logp, expected[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, expected[2], rtol=1e-5, atol=1e-5)
"""
STEPPED = """
import torch
from helpers.sampling import sampler

from grpobench.runs.sample import step_kernels
from grpobench.runs.sample.graphs import Graphs, gaps_to_fused

for architecture in ("llama", "qwen2"):
    made = sampler(architecture)
    # Two kinds of keys: of the prompt, and of what was written; and two blocks of keys of the prompt.
    step_kernels.COLUMNS = 16
    gaps = gaps_to_fused(Graphs(made.models, step_kernels), made.pad)
    assert float(gaps.max()) < 1e-5, gaps
"""


@pytest.mark.parametrize("program", [DRAWN, STEPPED], ids=["draw", "step"])
def test_kernels_compute_what_torch_computes(program: str) -> None:
    """To 1e-5 nats: sums in float32 in another order. The drawn tokens are equal."""
    interpret(program)


INTEGERS = ("hidden", "columns", "most", "prompt_columns", "width", "vocabulary", "pieces", "stride")
FLOATS = ("epsilon", "temperature")
WIDE: dict[str, dict[str, str]] = {
    "normalize_rows": {"states": "*fp32", "weight": "*fp32"},
    "turn_and_store": {"cos": "*fp32", "sin": "*fp32", "position": "*i64", "last": "*i64"},
    "attend": {"padding": "*i1", "last": "*i64"},
    "gate": {},
    "sum_exponentials": {"largest": "*fp32", "total": "*fp32"},
    "sum_masses": {"largest": "*fp32", "total": "*fp32", "mass": "*i64", "entropy": "*fp64"},
    "invert": {
        "largest": "*fp32",
        "total": "*fp32",
        "mass": "*i64",
        "entropy": "*fp64",
        "uniform": "*fp64",
        "last": "*i64",
        "drawn": "*i64",
        "drawn_logp": "*fp32",
        "row_entropy": "*fp32",
    },
}
"""The arguments of each kernel that are not in the type of the products."""
CONSTANTS = {"ADDS": True, "WEIGHS": True, "HEADS": 14, "KEY_HEADS": 2, "REPEAT": 7, "SIZE": 64, "ROWS": 16}
BLOCKS = {"normalize_rows": 1024, "sum_exponentials": 2048, "sum_masses": 2048, "invert": 2048}


@pytest.mark.parametrize("products", ["bf16", "fp32"])
@pytest.mark.parametrize("name", WIDE)
def test_kernels_compile_for_an_h100(
    name: str, products: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    from grpobench.runs.sample import step_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = CONSTANTS | {"BLOCK": BLOCKS.get(name, 64), "WIDE": 64 if name == "attend" else 128}
    kinds = dict.fromkeys(INTEGERS, "i32") | dict.fromkeys(FLOATS, "fp32") | WIDE[name]
    of_products = defaultdict(lambda: f"*{products}", kinds)
    compile_for_h100(getattr(step_kernels, name), of_products, constants, {})


class Failing:
    """Kernels that cannot be compiled."""

    def draw(self, *_: Any) -> Any:
        raise OSError("no compiler")

    step_logits = draw


def test_kernels_that_fail_are_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sampler("llama")
    monkeypatch.setattr(graphs, "step_kernels", lambda device: Failing())
    with pytest.warns(UserWarning, match="without kernels of its own: OSError: no compiler"):
        graphs_without = proven(made.models, made.pad)
    assert graphs_without is not None and graphs_without.kernels is None
    assert gaps_to_fused(graphs_without, made.pad).detach().max() < 1e-3


def test_a_cpu_has_no_kernels() -> None:
    assert graphs.step_kernels(torch.device("cpu")) is None
