"""Which problems a step trains on: the protocol, a study of the problems, and the plain shuffle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Study:
    """The initial policy's view of every training problem with its reference solution."""

    embedding: torch.Tensor
    """Float (N, H): mean over tokens of the final hidden states of question and solution."""
    nll: torch.Tensor
    """Float (N,): mean negative log-likelihood of the solution's tokens, nats per token."""


class Curriculum(Protocol):
    """Chooses the problems of a step. Its whole state is JSON, saved in every checkpoint."""

    @property
    def attempts(self) -> int:
        """Most draws that a step may make to fill its prompts."""
        ...

    def draw(self, step: int, attempt: int) -> list[int]:
        """Indices of problems to sample at this step (from 1) and attempt (from 0)."""
        ...

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        """After grading: which problems are trained on, given the rewards of each group's graded
        completions."""
        ...

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


class Shuffled:
    """Uniform without replacement: every problem once per epoch, in an order derived from the seed."""

    def __init__(self, problems: int, prompts: int, seed: int) -> None:
        self.problems, self.prompts, self.seed = problems, prompts, seed

    @property
    def attempts(self) -> int:
        return 1

    def draw(self, step: int, attempt: int) -> list[int]:
        if attempt:  # a refill has a separate shuffle, so that later steps do not depend on it
            return self._order(f"refill/{step}/{attempt}")[: self.prompts]
        wanted = range((step - 1) * self.prompts, step * self.prompts)
        orders = {epoch: self._order(f"epoch/{epoch}") for epoch in {i // self.problems for i in wanted}}
        return [orders[i // self.problems][i % self.problems] for i in wanted]

    def _order(self, name: str) -> list[int]:
        order = list(range(self.problems))
        random.Random(f"{self.seed}/{name}").shuffle(order)
        return order

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        return [True] * len(index)

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        """Nothing to restore: the order is derived."""
