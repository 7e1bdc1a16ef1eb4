"""What the output head says about tokens: 16-bit logits against torch's own autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs.models.head import RoundedLogits, token_statistics


def drawn(
    seed: int, rows: int, vocabulary: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (N, V), tokens (N,) and a gradient (N,)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, vocabulary, generator=generator)
    tokens = torch.randint(0, vocabulary, (rows,), generator=generator)
    return logits.to(dtype), tokens, torch.randn(rows, generator=generator)


@given(
    st.integers(0, 1000),
    st.integers(1, 5),
    st.integers(2, 40),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_values_and_gradient_are_those_of_torchs_log_softmax(
    seed: int, rows: int, vocabulary: int, temperature: float, dtype: torch.dtype
) -> None:
    """Values to 1e-5 nats: both are sums in float32, in another order. Gradients to the rounding of the type
    in which both end, 2^-7 of a bfloat16 and less of a float16, relative, or 1e-6."""
    logits, tokens, gradient = drawn(seed, rows, vocabulary, dtype)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    logp, entropy = RoundedLogits.apply(ours, tokens, temperature)
    reference = (theirs.float() / temperature).log_softmax(-1)
    expected_entropy = torch.distributions.Categorical(logits=logits.float() / temperature).entropy()
    torch.testing.assert_close(logp, reference.gather(-1, tokens[:, None]).squeeze(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=1e-5)
    assert not entropy.requires_grad
    logp.backward(gradient)
    reference.gather(-1, tokens[:, None]).squeeze(-1).backward(gradient)
    assert ours.grad is not None and theirs.grad is not None and ours.grad.dtype == dtype
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_that_is_ruled_out_has_no_weight_in_the_entropy(dtype: torch.dtype) -> None:
    head = torch.nn.Linear(1, 3, dtype=dtype)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, 0.0, -torch.inf]))
    states = torch.ones(1, 1, dtype=dtype)
    logp, entropy = token_statistics(states, head, torch.tensor([1]), 1.0, 100, False)
    assert logp.item() == pytest.approx(-0.6931472) and entropy.item() == pytest.approx(0.6931472)


@pytest.mark.parametrize("chunk", [10**9, 3 * 50])
def test_a_head_in_bfloat16_takes_this_way_in_pieces_too(chunk: int) -> None:
    """Against the same head in float32, to the rounding of its weights and states."""
    generator = torch.Generator().manual_seed(1)
    head = torch.nn.Linear(16, 50, bias=False)
    hidden = torch.randn(10, 16, generator=generator)
    target = torch.randint(0, 50, (10,), generator=generator)
    statistics = []
    for dtype in (torch.float32, torch.bfloat16):
        states = hidden.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logp, entropy = token_statistics(states, head, target, 1.0, chunk, False)
        assert logp.dtype == entropy.dtype == torch.float32
        (gradient,) = torch.autograd.grad(logp.sum(), states)
        statistics.append((logp.detach(), entropy, gradient))
    for ours, reference in zip(statistics[1], statistics[0], strict=True):
        torch.testing.assert_close(ours, reference, rtol=0.03, atol=0.03)


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that a graph keeps."""

    def __init__(self) -> None:
        self.bytes = 0
        super().__init__(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.bytes += tensor.nbytes
        return tensor


def test_the_graph_keeps_the_logits_once_and_in_sixteen_bits() -> None:
    logits, tokens, _ = drawn(0, 8, 1000, torch.bfloat16)
    logits.requires_grad_()
    ours, plain = Kept(), Kept()
    with ours:
        RoundedLogits.apply(logits, tokens, 1.0)
    with plain:
        (logits.float() / 1.5).log_softmax(-1).gather(-1, tokens[:, None])
    rows = 8 * (8 + 4 + 4)  # a token, the largest logit and a sum for each row
    assert ours.bytes == logits.nbytes + rows
    assert plain.bytes > 1.9 * logits.nbytes
