"""The processes of one run, its ranks, and their communication."""

# With `train.devices = N` a run is N processes, its ranks, with a device each. All execute the same program
# on the same configuration and the same random seeds, and hold the same batches, signals and metrics. Each
# samples, grades and differentiates its share, and the shares are gathered. Rank 0 alone writes and talks to
# the launcher.
#
# Anything that two ranks could see differently (a clock, a file that another run may write, a verifier that
# may time out) must come from one of them: `broadcast` and `all_gather` are the only ways by which a rank
# learns of another.

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")


def nobody_asks() -> bool:
    return False


def nothing() -> None:
    """Nothing to heed."""


class DeviceRanks:
    """The ranks of a run as one of them sees the others. `ALONE` is a run in one process."""

    def __init__(
        self, rank: int = 0, size: int = 1, group: Any = None, device: torch.device | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self.device = device
        """Of this rank; None: where the model is."""
        self.group = group
        """A process group of gloo, by which objects travel; None for a single rank."""
        self.background: Any = None
        """Another one, for what goes on beside the run: writing checkpoints."""
        self.written: Future[Any] | None = None
        """This rank's last part of a checkpoint, which is written in the background."""
        self.asks: Callable[[], bool] = nobody_asks
        """Rank 0: whether the run should stop where the ranks meet next."""
        self.stop: Callable[[], None] = nothing
        """Called on every rank, at the same place, once rank 0 has asked; may raise."""
        self.demand: Callable[[], None] = nothing
        """Rank 0: raises OSError if another rank has died. For long work in which the ranks do not meet."""

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def writes(self) -> bool:
        """Whether this rank writes files."""
        return self.rank == 0

    def all_gather(self, local_value: T, *, stops: bool = True) -> list[T]:
        """What each rank has, in the order of the ranks. Tensors arrive on the CPU. With `stops` a run that
        is asked to stop does so here."""
        if self.alone:
            return [local_value]
        gathered: list[Any] = [None] * self.size
        # On the CPU: a pickled CUDA tensor would come to life on its sender's device.
        torch.distributed.all_gather_object(
            gathered, (moved(local_value, "cpu"), stops and self.asks()), group=self.group
        )
        # Rank 0 decides for all: ranks that decided for themselves could stop at different places.
        if gathered[0][1]:
            self.stop()
        return [value for value, _ in gathered]

    def broadcast(self, make: Callable[[], T]) -> T:
        """What rank 0 makes; the others do not call `make`."""
        if self.alone:
            return make()
        box = [make() if self.writes else None]
        torch.distributed.broadcast_object_list(box, 0, group=self.group)
        made: Any = box[0]
        return made  # type: ignore[no-any-return]

    def send(self, order: Any) -> None:
        """Rank 0: give the others something to do (see `receive`)."""
        self.broadcast(lambda: order)

    def receive(self) -> Any:
        """The others: what rank 0 gives them to do, once it does."""
        return self.broadcast(lambda: None)

    def share(self, items: Sequence[A]) -> Sequence[A]:
        """The items that this rank takes: every N-th."""
        return items[self.rank :: self.size]

    def dealt(self, items: Sequence[A], work: Callable[[Sequence[A]], Sequence[B]]) -> list[B]:
        """`work(items)`, of which each rank does its share. `work` gives one result for each item and treats
        every item by itself."""
        if self.alone:
            return list(work(items))
        parts = self.all_gather(list(work(self.share(items))))
        results: list[Any] = [None] * len(items)
        for rank, part in enumerate(parts):
            # Every N-th, as `share` took them.
            results[rank :: self.size] = part
        return results


ALONE = DeviceRanks()


def moved(value: Any, device: torch.device | str) -> Any:
    """A value whose tensors are on `device`: tensors, dataclasses, mappings, lists and tuples of them."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # `replace` refuses fields that __init__ does not take.
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        # Others stay as they are: `replace` would run their __post_init__ again for nothing.
        if any(map(holds_tensor, fields.values())):
            return dataclasses.replace(
                value, **{n: moved(field_value, device) for n, field_value in fields.items()}
            )
        return value
    move = functools.partial(moved, device=device)
    if isinstance(value, dict):
        return {key: move(member) for key, member in value.items()}
    # Not isinstance: a named tuple takes its fields one by one.
    if type(value) in (list, tuple):
        return type(value)(map(move, value))
    return value


def holds_tensor(value: Any) -> bool:
    """Whether `moved` would find a tensor in a value."""
    if isinstance(value, torch.Tensor):
        return True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(holds_tensor(getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return any(map(holds_tensor, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_tensor, value))
