"""Memory that gives out: a device that holds so many tokens, and a process that may have so many bytes."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grpobench.algorithms.grpo import GRPO
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.decoding import Decoding
from helpers.toys import models_for, rollouts
from helpers.warm import FORKING, begin_server


def hold_tokens(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """A forward pass over more than `most` packed tokens fails as on a GPU that is full; the sizes that
    were tried, in order."""
    plain, tried = RoleModels._states, list[int]()

    def states(self: RoleModels, trunk: Any, layout: Any, batch: Any) -> torch.Tensor:
        tried.append(layout.tokens.numel())
        if tried[-1] > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {tried[-1]} tokens")
        return plain(self, trunk, layout, batch)

    monkeypatch.setattr(RoleModels, "_states", states)
    return tried


def hold_sequences(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """The same for sequences that are decoded at once."""
    plain, tried = Decoding.__init__, list[int]()

    def begin(
        self: Decoding, models: RoleModels, prompts: Any, owner: torch.Tensor, *positional: Any, **more: Any
    ) -> None:
        tried.append(len(owner))
        if len(owner) > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory. {len(owner)} sequences")
        plain(self, models, prompts, owner, *positional, **more)

    monkeypatch.setattr(Decoding, "__init__", begin)
    return tried


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """Within, the system gives this process no more than `more` bytes beyond what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_with_little(sender: Any) -> None:
    """Read a batch whose attention masks take 39 MB, or 20 after one halving, with 32 MiB to be had; sends
    why less was read at once, and the largest difference from what is read without a limit."""
    models = models_for(GRPO(), "llama")
    batch = rollouts([[900] * 4] * 3, limit=1000)
    models.budget = 2000
    unlimited = models.forward("policy", batch).logp
    models.budget = models.token_budget.initial
    with at_most(32 * 2**20):
        limited = models.forward("policy", batch).logp
    sender.send(
        (
            [reduction["why"] for reduction in models.token_budget.lowered],
            (limited - unlimited).abs().max().item(),
        )
    )


def in_a_fresh_process(target: Callable[[Any], None]) -> Any:
    """What a function sends: in a process whose memory nobody has used before."""
    begin_server()
    receiver, sender = FORKING.Pipe(duplex=False)
    process = FORKING.Process(target=target, args=(sender,))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()
