"""What an inference engine with weights of its own must offer, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class Drawn:
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

    def sample(
        self, jobs: Sequence[tuple[tuple[int, ...], int]], limit: int, temperature: float, end: Sequence[int]
    ) -> list[Drawn]:
        """One completion per (prompt, seed), in order: up to a token of `end`, at most `limit` tokens. A seed
        of `GREEDY` decodes greedily, and so does temperature 0."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over weights, named as in a checkpoint of the model."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...
