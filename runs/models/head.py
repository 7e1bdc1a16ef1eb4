"""What a language model's output head says about tokens, from the states before them, a piece at a time."""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from grpobench.runs.models.token_budgets import LARGER_PIECES, first_line, is_out_of_memory

ROUNDED = (torch.bfloat16, torch.float16)
"""Types of logits whose log-softmax is computed in float32 without keeping it."""


def token_statistics(
    hidden: torch.Tensor,
    head: nn.Module,
    target: torch.Tensor,
    temperature: float,
    chunk: int,
    differentiate_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of `target` (N,) and entropy in nats of the tempered softmax over head(hidden (N, H)).

    At most `chunk` logits exist at once, or `LARGER_PIECES` times as many where a kernel reads them. If there
    are more, each piece is computed again for its gradient.
    """
    vocabulary: int = head.weight.shape[0]  # type: ignore[assignment, index]
    if not differentiate_entropy and product_type(head) in ROUNDED and KERNELS.serve(hidden.device):
        chunk *= LARGER_PIECES
    rows = max(1, chunk // vocabulary)

    def piece(states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = head(states)
        # RoundedLogits has no gradient of the entropy.
        if logits.dtype in ROUNDED and not differentiate_entropy:
            return RoundedLogits.apply(logits, tokens, temperature)  # type: ignore[no-any-return, no-untyped-call]
        logits = logits.float()  # a log-softmax in bfloat16 is off by more than an update moves it
        if temperature != 1.0:  # a division by 1 would copy all logits
            logits = logits / temperature
        # Not log_softmax, which would make and keep another tensor of all logits.
        total = logits.logsumexp(-1)
        logp = logits.gather(-1, tokens[:, None]).squeeze(-1) - total
        if differentiate_entropy:
            return logp, total - ((logits - total[:, None]).exp() * logits).sum(-1)
        # Most algorithms only log the entropy: without its graph one copy of the logits less is kept.
        with torch.no_grad():
            # A logit of −∞ has probability 0, and 0 · −∞ is no number.
            return logp, total - (logits - total[:, None]).exp_().mul_(logits).nan_to_num_(0.0).sum(-1)

    logp, entropy = in_pieces(piece, rows, hidden, target)
    return logp, entropy


def in_pieces(
    piece: Callable[..., tuple[torch.Tensor, ...]], rows: int, hidden: torch.Tensor, other: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """`piece(hidden, other)`, of at most so many rows at a time."""
    # A single piece is kept, not computed again: its logits fit.
    if len(hidden) <= rows:
        return piece(hidden, other)
    recompute = torch.is_grad_enabled() and hidden.requires_grad
    parts = [
        checkpoint(piece, *states, use_reentrant=False) if recompute else piece(*states)
        for states in zip(hidden.split(rows), other.split(rows), strict=True)
    ]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def product_type(head: nn.Module) -> torch.dtype:
    """The type of a head's logits."""
    weight: Any = head.weight
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


@torch.no_grad()
def token_squares(hidden: torch.Tensor, head: nn.Module, temperature: float, chunk: int) -> torch.Tensor:
    """Σ_v π_v² (N,) of the tempered softmax π over head(hidden (N, H)), at most `chunk` logits at once."""
    vocabulary: int = head.weight.shape[0]  # type: ignore[assignment, index]
    pieces = hidden.split(max(1, chunk // vocabulary))
    return torch.cat([(head(states).float() / temperature).softmax(-1).square().sum(-1) for states in pieces])


@torch.no_grad()
def token_kl(
    hidden: Sequence[torch.Tensor], heads: Sequence[nn.Module | None], temperature: float, chunk: int
) -> torch.Tensor:
    """Σ_v π_v (log π_v − log μ_v) (N,) of the tempered softmaxes π and μ over two heads' logits of two
    states (N, H), at most `chunk` logits at once."""
    assert heads[0] is not None and heads[1] is not None
    vocabulary: int = heads[0].weight.shape[0]  # type: ignore[assignment, index]
    rows = max(1, chunk // (2 * vocabulary))  # the logits of two models are there at once
    parts = []
    for ours, theirs in zip(hidden[0].split(rows), hidden[1].split(rows), strict=True):
        logp = (heads[0](ours).float() / temperature).log_softmax(-1)
        other = (heads[1](theirs).float() / temperature).log_softmax(-1)
        parts.append((logp.exp() * (logp - other)).sum(-1))
    return torch.cat(parts)


def token_divergence(
    hidden: torch.Tensor,
    head: nn.Module,
    teacher: torch.Tensor,
    teacher_head: nn.Module,
    temperature: float,
    chunk: int,
    beta: float,
) -> torch.Tensor:
    """Divergence (N,) in nats between the tempered softmaxes p of the teacher's states (N, H') and q of the
    policy's (N, H), whose gradient goes to the policy alone.

    `beta` 0 is KL(p‖q), 1 is KL(q‖p), and between them, with m = βp + (1 − β)q, β·KL(p‖m) + (1 − β)·KL(q‖m)
    (arXiv:2306.13649, eq. 1), which goes to 0 at both ends where the KLs do not. At most `chunk` logits exist
    at once. If there are more, each piece is computed again for its gradient.
    """
    vocabulary: int = head.weight.shape[0]  # type: ignore[assignment, index]
    rows = max(1, chunk // (2 * vocabulary))

    def piece(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor]:
        q: torch.Tensor = (head(ours).float() / temperature).log_softmax(-1)
        # A policy that is its own teacher must get no gradient through p, and a teacher needs no graph.
        with torch.no_grad():
            p: torch.Tensor = (teacher_head(theirs).float() / temperature).log_softmax(-1)
        if beta == 0:
            return ((p.exp() * (p - q)).sum(-1),)
        if beta == 1:
            return ((q.exp() * (q - p)).sum(-1),)
        # In logs: a sum of two tiny probabilities would be 0 in float32, and its log −∞.
        m = torch.logaddexp(p + math.log(beta), q + math.log1p(-beta))
        return (beta * (p.exp() * (p - m)).sum(-1) + (1 - beta) * (q.exp() * (q - m)).sum(-1),)

    (divergence,) = in_pieces(piece, rows, hidden, teacher)
    return divergence


class HeadKernels:
    """Launches the kernels of head_kernels.py on a CUDA device with Triton, until one of them fails."""

    def __init__(self) -> None:
        self.failed = False

    def serve(self, device: torch.device) -> bool:
        """Whether logits on this device are read by a kernel."""
        return device.type == "cuda" and not self.failed and has_triton()

    def launch(self, kernel: str, logits: torch.Tensor, *arguments: Any) -> Any:
        """What a kernel gives for logits (N, V). None where plain torch is to be used instead; with a warning
        after a failure."""
        if not self.serve(logits.device):
            return None
        try:
            from grpobench.runs.models import head_kernels

            # Triton launches on the current device, which need not be that of the logits.
            with torch.cuda.device_of(logits):
                return getattr(head_kernels, kernel)(logits, *arguments)
        except Exception as error:  # a compiler fails as it likes
            if is_out_of_memory(error):
                raise
            why = first_line(error)
        self.failed = True
        warnings.warn(
            f"logits are read by several operations of torch, because a Triton kernel failed: {why}",
            stacklevel=2,
        )
        return None


KERNELS = HeadKernels()
"""Of this process: what fails once, fails for every model."""


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed; torch brings it along where it is built for CUDA."""
    return importlib.util.find_spec("triton") is not None


class RoundedLogits(torch.autograd.Function):
    """Log-probability of tokens (N,) and entropy in nats, which has no gradient, of 16-bit logits (N, V).

    Computed in float32, as without this function. What differs is what is kept for the gradient: the logits
    as they are and two numbers a row, instead of the float32 copies that autograd makes. A kernel reads and
    writes each logit once; plain torch does the same in several operations.
    ∂ log π(a)/∂ z_v = (1[v = a] − π_v)/T.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, tokens: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits, tokens = logits.contiguous(), tokens.contiguous()
        statistics = KERNELS.launch("row_statistics", logits, tokens, temperature)
        if statistics is None:
            statistics = row_statistics(logits, tokens, temperature)
        logp, entropy, largest, total = statistics
        ctx.save_for_backward(logits, tokens, largest, total)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, *saved = ctx.saved_tensors
        arguments = (*saved, gradients[0].float().contiguous(), ctx.temperature)
        gradient = KERNELS.launch("row_gradient", logits, *arguments)
        return row_gradient(logits, *arguments) if gradient is None else gradient, None, None


def row_statistics(
    logits: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`row_statistics` of head_kernels.py in plain torch."""
    # Always a copy, since the logits have 16 bits: what follows may work in place.
    shifted = logits.float()
    # exp overflows in float32 above 88.
    largest = shifted.amax(-1)
    shifted.sub_(largest[:, None])
    if temperature != 1.0:
        shifted.div_(temperature)
    chosen = shifted.gather(-1, tokens[:, None]).squeeze(-1)
    weight = shifted.exp()
    total = weight.sum(-1)
    log_total = total.log()
    # As above, a logit of −∞ adds nothing.
    entropy = log_total - weight.mul_(shifted).nan_to_num_(0.0).sum(-1) / total
    return chosen - log_total, entropy, largest, total


def row_gradient(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """`row_gradient` of head_kernels.py in plain torch."""
    gradient = weight / temperature
    # In place, so that the backward pass makes one float32 tensor of the logits and no more.
    each = logits.float().sub_(largest[:, None])
    if temperature != 1.0:
        each.div_(temperature)
    each.exp_().mul_((-gradient / total)[:, None])
    # One entry a row, so that no two additions meet: a GPU may refuse a scattered sum as out of order.
    rows = torch.arange(len(tokens), device=tokens.device)
    each[rows, tokens] += gradient
    return each.to(logits.dtype)
