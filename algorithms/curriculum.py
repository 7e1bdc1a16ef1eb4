"""Which problems a step trains on: the protocol, a study of the problems, and the plain shuffle."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch


@dataclass(frozen=True)
class Study:
    """The initial policy's view of every training problem: with its reference solution (for algorithms with
    `studies`, else the first two are empty), and by what it answers (for those with `base_rollouts`)."""

    embedding: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """Float (N, H): mean over tokens of the final hidden states of question and solution."""
    nll: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """Float (N,): mean negative log-likelihood of the solution's tokens, nats per token."""
    reward: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """Float (N, n): rewards of n completions of the initial policy, NaN where one could not be graded."""


class NoProblems(ValueError):
    """A curriculum has too few problems to choose from; the message names the setting and the remedy."""


class Curriculum(Protocol):
    """Chooses the problems of a step. Its whole state is JSON, saved in every checkpoint.

    It may have a method ``expected(problem: int) -> float``: the value of a problem that it knows before the
    problem's completions of the step are graded, NaN without one. Rows get it as `Batch.expected`. An
    attribute ``cumulative`` says that rejected groups wait for their problem's next draw (`is_cumulative`).
    """

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


@runtime_checkable
class Informed(Protocol):
    """A curriculum that chooses by the algorithm's state. It is told that state, None at first if there is
    none, before the first draw of every step; it does not save it."""

    def inform(self, state: Mapping[str, Any] | None) -> None: ...


def is_cumulative(curriculum: Curriculum) -> bool:
    """Whether a step keeps the groups of a problem that it rejects until it accepts one: the step then trains
    on all of them. A curriculum says so with an attribute `cumulative`, and may draw a problem again in
    later attempts of a step; its `accept` gets the new completions alone."""
    return bool(getattr(curriculum, "cumulative", False))


@functools.lru_cache(maxsize=4)  # several steps share an epoch
def _order(problems: int, name: str) -> tuple[int, ...]:
    order = list(range(problems))
    random.Random(name).shuffle(order)
    return tuple(order)


def weighted_order(weights: Sequence[float], name: str) -> list[int]:
    """All indices in the order of a draw without replacement by these weights, a function of the name."""
    rng = random.Random(name)
    # The shortest exponential waiting times are a weighted draw without replacement.
    wait = [-math.log(1 - rng.random()) / max(weight, 1e-300) for weight in weights]
    return sorted(range(len(wait)), key=wait.__getitem__)


class Shuffled:
    """Uniform without replacement: every problem once per epoch, in an order derived from the seed."""

    def __init__(self, problems: int, prompts: int, seed: int) -> None:
        self.problems, self.prompts, self.seed = problems, prompts, seed

    @property
    def attempts(self) -> int:
        return 1

    def draw(self, step: int, attempt: int) -> list[int]:
        if attempt:  # a refill has a separate shuffle, so that later steps do not depend on it
            return list(_order(self.problems, f"{self.seed}/refill/{step}/{attempt}")[: self.prompts])
        first = (step - 1) * self.prompts
        drawn: list[int] = []
        while len(drawn) < self.prompts:
            epoch, offset = divmod(first + len(drawn), self.problems)
            order = _order(self.problems, f"{self.seed}/epoch/{epoch}")
            drawn += order[offset : offset + self.prompts - len(drawn)]
        return drawn

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        return [True] * len(index)

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        """Nothing to restore: the order is derived."""


class ValuedShuffle(Shuffled):
    """The plain shuffle of the problems at `offered`, with a value for each of all problems."""

    def __init__(self, value: Sequence[float], offered: Sequence[int], prompts: int, seed: int) -> None:
        super().__init__(len(offered), prompts, seed)
        self.value, self.offered = list(value), list(offered)

    def draw(self, step: int, attempt: int) -> list[int]:
        return [self.offered[index] for index in super().draw(step, attempt)]

    def expected(self, problem: int) -> float:
        return self.value[problem]

    def state(self) -> Any:
        # In checkpoints: rewards that are measured again on another machine might round differently.
        return {
            "value": [None if math.isnan(value) else value for value in self.value],
            "offered": self.offered,
        }

    def restore(self, state: Any) -> None:
        self.value = [math.nan if value is None else float(value) for value in state["value"]]
        self.offered = list(state["offered"])
        self.problems = len(self.offered)


def expected_value(curriculum: Curriculum, problem: int) -> float:
    """The value of a problem that a curriculum with a method `expected` knows; NaN without one."""
    estimate = getattr(curriculum, "expected", None)
    return math.nan if estimate is None else estimate(problem)
