"""What an inference engine with weights of its own must offer, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from grpobench.runs.settings.truncation import FULL, Truncation


@dataclass(frozen=True)
class EngineCompletion:
    """One completion."""

    tokens: tuple[int, ...]
    """With the end token when the model wrote one."""
    logp: np.ndarray
    """Float32 (T,): log-probabilities under the tempered distribution; at temperature 0 those of 1."""


class Engine(Protocol):
    """Something that decodes with weights of its own."""

    dtype: torch.dtype
    """Of its weights."""
    context: int
    """Most tokens of prompt and completion together."""
    block: int
    """Tokens per block of its prefix cache."""
    provenance: Mapping[str, Any]
    """What it is, for provenance.json."""
    adapts: bool
    """Whether it computes with an adapter beside its weights."""
    asleep: bool
    """Whether it has given its memory back, so that it must take over weights before it can sample."""

    def sample(
        self,
        jobs: Sequence[tuple[tuple[int, ...], int]],
        limit: int,
        temperature: float,
        end: Sequence[int],
        truncation: Truncation = FULL,
    ) -> list[EngineCompletion]:
        """One completion per (prompt, seed), in order: up to a token of `end`, at most `limit` tokens. A seed
        of `GREEDY` decodes greedily, and so does temperature 0."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over weights, named as in a checkpoint of the model. An engine that is asleep wakes up, and an
        adapter is gone."""
        ...

    def load_adapter(self, config: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over an adapter in place of the last one, in peft's format (`adapters.as_peft`); the weights
        stay. An engine that is asleep wakes up."""
        ...

    def sleep(self) -> None:
        """Give memory back, if the engine shares a device with the trainer and can."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...
