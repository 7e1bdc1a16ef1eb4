"""The policy's weights before its last updates, for a sampler that lags behind the trainer."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import torch

from grpobench.runs.models.token_budgets import ModelError


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


@contextlib.contextmanager
def swapped_data(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Within, each parameter holds the tensor that stands beside it. Behind it the parameters hold the very
    tensors that they held before, also after an error. No update and no graph may be open meanwhile."""
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for parameter, tensor in pairs:
            before.append((parameter, parameter.data))
            # Only `data` changes hands: the optimizer finds its state by the parameter objects.
            parameter.data = tensor
        yield
    finally:
        # Backwards: a weight that two layers share may stand here twice.
        for parameter, tensor in reversed(before):
            parameter.data = tensor


class PastWeights:
    """A ring of copies of `parameters`, one for each of the last `lag` updates, on the parameters' devices.

    Before the first `lag` updates the ring holds fewer copies, and the oldest one is the initial policy. With
    `lag` 0 it stays empty, and nothing is copied.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], lag: int) -> None:
        self.parameters, self.lag = dict(parameters), lag
        self.ring: deque[dict[str, torch.Tensor]] = deque()
        """Oldest first."""
        self.updates = 0
        """Updates of the weights since this was made, or restored."""

    @property
    def staleness(self) -> int:
        """Updates between the oldest weights here and those of the parameters; 0 without any copy."""
        return len(self.ring)

    def before(self, updates: int) -> tuple[int, Mapping[str, torch.Tensor]]:
        """(version, weights) of so many updates ago, or the oldest there are; the version counts the updates
        before them. The weights are no copies."""
        back = min(updates, self.staleness)
        return self.updates - back, self.ring[-back] if back else self.parameters

    def demand_memory(self, updates: int, free: int | None) -> None:
        """Raises ModelError if the copies of a run of so many updates need more than `free` bytes. None means
        that nobody knows how many are free."""
        copies = min(self.lag, updates)
        each = sum(p.numel() * p.element_size() for p in self.parameters.values())
        if free is None or copies * each <= free:
            return
        most = free // each
        remedy = f"set sampler.lag = {most} or lower" if most else "set sampler.lag = 0"
        raise ModelError(
            f"sampler.lag = {self.lag} keeps {copies} copies of the policy's weights, {copies} × "
            f"{gigabytes(each)} = {gigabytes(copies * each)}, where {gigabytes(free)} are free; {remedy}, or "
            "take a smaller model"
        )

    def remember(self) -> None:
        """Copy the weights. To be called before every update, which overwrites them."""
        self.updates += 1
        if not self.lag:
            return
        # The memory of the copy that leaves the ring is used again: no update allocates once it is full.
        full = len(self.ring) == self.lag
        copy = (
            self.ring.popleft()
            if full
            else {name: torch.empty_like(p, requires_grad=False) for name, p in self.parameters.items()}
        )
        # Else every copy would hang on the graph of the parameter.
        with torch.no_grad():
            for name, p in self.parameters.items():
                copy[name].copy_(p)
        self.ring.append(copy)

    def swapped_in(self) -> contextlib.AbstractContextManager[None]:
        """Within, the parameters hold the oldest weights of the ring, as in `swapped_data`."""
        oldest = self.ring[0] if self.ring else {}
        return swapped_data((self.parameters[name], tensor) for name, tensor in oldest.items())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every copy as AGE:NAME, its age in updates, for a checkpoint."""
        # From the youngest: the oldest may be missing early in a run.
        aged = enumerate(reversed(self.ring), 1)
        return {f"{age}:{name}": tensor for age, copy in aged for name, tensor in copy.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The inverse of `tensors`. Raises KeyError for a copy that lacks a parameter, and ValueError for
        more copies than the ring has room for."""
        # Oldest first, as in the ring.
        ages = sorted({int(name.partition(":")[0]) for name in tensors}, reverse=True)
        if len(ages) > self.lag:
            raise ValueError(f"it holds {len(ages)} of them, and sampler.lag is {self.lag}")
        self.ring = deque(
            {
                # Copies, since `remember` writes into the tensors of the ring.
                name: tensors[f"{age}:{name}"].to(p.device, p.dtype, copy=True)
                for name, p in self.parameters.items()
            }
            for age in ages
        )
