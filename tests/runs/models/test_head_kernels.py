"""The Triton kernels of the head against float64 and plain torch, which is used where they are not."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.kernels import compile_for_h100, interpret

from grpobench.runs.models import head
from grpobench.runs.models.head import HeadKernels, RoundedLogits, token_statistics

ROWS = 4


def test_a_cpu_reads_logits_in_plain_torch() -> None:
    kernels = HeadKernels()
    logits = torch.zeros(2, 3, dtype=torch.bfloat16)
    assert not kernels.serve(logits.device)
    assert kernels.launch("row_statistics", logits, torch.tensor([0, 1]), 1.0) is None and not kernels.failed


class OnCuda(HeadKernels):
    """Takes every device for one with kernels."""

    def serve(self, device: torch.device) -> bool:
        return not self.failed


def stand_in(monkeypatch: pytest.MonkeyPatch, error: Exception) -> HeadKernels:
    """Kernels that serve the CPU and raise `error`."""

    def fail(*_: Any) -> Any:
        raise error

    module: Any = types.ModuleType("grpobench.runs.models.head_kernels")
    module.row_statistics = module.row_gradient = fail
    monkeypatch.setitem(sys.modules, module.__name__, module)
    # If it was imported before, it is an attribute of its package, too.
    monkeypatch.setattr(sys.modules["grpobench.runs.models"], "head_kernels", module, raising=False)
    monkeypatch.setattr(head, "KERNELS", kernels := OnCuda())
    return kernels


def test_a_kernel_that_fails_leaves_the_logits_to_plain_torch_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(ROWS, 30, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    tokens = torch.arange(ROWS)
    expected = RoundedLogits.apply(logits, tokens, 0.7)
    kernels = stand_in(monkeypatch, RuntimeError("no C compiler\nsecond line"))
    with pytest.warns(UserWarning, match="Triton kernel failed: RuntimeError: no C compiler$") as warned:
        logp, entropy = RoundedLogits.apply(logits, tokens, 0.7)
    assert len(warned) == 1 and kernels.failed
    assert torch.equal(logp, expected[0]) and torch.equal(entropy, expected[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logp.sum().backward()
        RoundedLogits.apply(logits, tokens, 0.7)


def test_a_kernel_that_runs_out_of_memory_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on with smaller micro-batches, in which the kernel is used again."""
    kernels = stand_in(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        RoundedLogits.apply(torch.zeros(1, 3, dtype=torch.bfloat16), torch.tensor([0]), 1.0)
    assert not kernels.failed


@pytest.mark.parametrize(
    ("dtype", "differentiate_entropy", "pieces"),
    [(torch.bfloat16, False, 1), (torch.bfloat16, True, 4), (torch.float32, False, 4)],
)
def test_four_times_as_many_logits_go_at_once_where_a_kernel_reads_them(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, differentiate_entropy: bool, pieces: int
) -> None:
    kernels = OnCuda()
    monkeypatch.setattr(head, "KERNELS", kernels)
    monkeypatch.setattr(kernels, "launch", lambda *_: None)
    sizes: list[int] = []
    layer = torch.nn.Linear(2, 5, dtype=dtype)
    layer.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    states = torch.ones(8, 2, dtype=dtype)
    token_statistics(states, layer, torch.zeros(8, dtype=torch.long), 1.0, 10, differentiate_entropy)
    assert sizes == [8 // pieces] * pieces


INTERPRETED = """
import itertools

import torch

from grpobench.runs.models import head, head_kernels

head_kernels.BLOCK = 64
generator = torch.Generator().manual_seed(0)
vocabularies, temperatures = (1, 2, 63, 64, 65, 200), (0.5, 1.0, 1.3)
for vocabulary, temperature, dtype in itertools.product(
    vocabularies, temperatures, (torch.bfloat16, torch.float16)
):
    # The step of the type: Triton's interpreter truncates where a GPU rounds to the nearest number.
    rounding = {torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    logits = (4 * torch.randn(4, vocabulary, generator=generator)).to(dtype)
    tokens = torch.randint(0, vocabulary, (4,), generator=generator)
    if vocabulary > 64:
        # Whole blocks of -inf, in front and behind; and the lowest number, which some models rule out with.
        logits[0, :64] = logits[1, 64:] = -torch.inf
        logits[2, :64] = torch.finfo(dtype).min
        tokens[:3] = torch.tensor([vocabulary - 1, 0, vocabulary - 1])
    weight = torch.randn(4, generator=generator)
    logp, entropy, largest, total = head_kernels.row_statistics(logits, tokens, temperature)
    gradient = head_kernels.row_gradient(logits, tokens, largest, total, weight, temperature)
    assert gradient.dtype == dtype
    exact = logits.double().requires_grad_()
    every = (exact / temperature).log_softmax(-1)
    reference = every.gather(-1, tokens[:, None]).squeeze(-1)
    reference.backward(weight.double())
    nats = -(every.exp() * every).nan_to_num(0.0).sum(-1)
    torch.testing.assert_close(logp.double(), reference, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), nats, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), exact.grad, rtol=rounding, atol=1e-6)
    plain = head.row_statistics(logits, tokens, temperature)
    assert torch.equal(largest, plain[2])
    for ours, theirs in zip((logp, entropy, total), (plain[0], plain[1], plain[3]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    # The results of either way serve the other, which takes over where a kernel fails in a backward pass.
    theirs = head.row_gradient(logits, tokens, largest, total, weight, temperature)
    torch.testing.assert_close(gradient, theirs, rtol=1.5 * rounding, atol=1e-6)
for rows in (0, 1):
    logits, tokens = torch.zeros(rows, 70, dtype=torch.bfloat16), torch.zeros(rows, dtype=torch.long)
    logp, entropy, largest, total = head_kernels.row_statistics(logits, tokens, 1.0)
    assert logp.shape == entropy.shape == (rows,)
    torch.testing.assert_close(entropy, torch.full((rows,), 70.0).log())
    gradient = head_kernels.row_gradient(logits, tokens, largest, total, torch.ones(rows), 1.0)
    assert gradient.shape == (rows, 70)
"""


def test_values_and_gradients_are_those_of_float64_and_of_plain_torch() -> None:
    """Interpreted, in blocks of 64 logits. Values to 1e-5 nats: sums in float32. Gradients to the rounding of
    the type in which they end."""
    interpret(INTERPRETED)


@pytest.mark.parametrize("logits", ["bf16", "fp16"])
def test_the_kernels_compile_for_an_h100(
    logits: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    from grpobench.runs.models import head_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = dict.fromkeys(("logp", "entropy", "largest", "total", "weight"), "*fp32")
    pointers |= {"logits": f"*{logits}", "gradient": f"*{logits}", "tokens": "*i64"}
    numbers = {"row_stride": "i32", "vocabulary": "i32", "inverse_temperature": "fp32"}
    constants, options = {"BLOCK": head_kernels.BLOCK}, {"num_warps": head_kernels.WARPS}
    for kernel in (head_kernels._row_statistics, head_kernels._row_gradient):
        compile_for_h100(kernel, pointers | numbers, constants, options)
