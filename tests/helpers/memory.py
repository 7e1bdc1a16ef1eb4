"""Memory that gives out: a device that holds so many tokens, and a process that may have so many bytes."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grpobench.runs.models.roles import Models
from grpobench.runs.sample.decoding import Decoding


def hold_tokens(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """A forward pass over more than `most` packed tokens fails as on a GPU that is full; the sizes that
    were tried, in order."""
    plain, tried = Models._states, list[int]()

    def states(self: Models, trunk: Any, layout: Any, batch: Any) -> torch.Tensor:
        tried.append(layout.tokens.numel())
        if tried[-1] > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {tried[-1]} tokens")
        return plain(self, trunk, layout, batch)

    monkeypatch.setattr(Models, "_states", states)
    return tried


def hold_sequences(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """The same for sequences that are decoded at once."""
    plain, tried = Decoding.__init__, list[int]()

    def begin(
        self: Decoding, models: Models, prompts: Any, owner: torch.Tensor, *rest: Any, **more: Any
    ) -> None:
        tried.append(len(owner))
        if len(owner) > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory. {len(owner)} sequences")
        plain(self, models, prompts, owner, *rest, **more)

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
