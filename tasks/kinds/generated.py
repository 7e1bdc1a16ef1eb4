"""Base of the generated tasks: sizes, a seed, and splits that can never share a problem."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, Protocol, runtime_checkable

from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Graded, Problem, Split, Task

SHARES: dict[Split, range] = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
"""Hash buckets (of ten) of a problem's identity that belong to a split, whatever the seed or the size."""


@dataclass(frozen=True)
class Generated:
    """Settings of a generated task."""

    name: ClassVar[str]
    seed: int = 0
    train: int = 4096
    """Problems in the training split."""
    validation: int = 512
    test: int = 1024

    def __post_init__(self) -> None:
        for split in ("train", "validation", "test"):
            if getattr(self, split) < 1:
                raise ValueError(f"{split}: must be at least 1")


@dataclass(frozen=True)
class Drawn(Generated, Task):
    """A generated task whose problems are drawn one by one."""

    @abstractmethod
    def draw(self, split: Split, rng: random.Random) -> Problem:
        """A random problem. Those of another split and those that were drawn before are dropped."""

    def unshared(self, problem: Problem) -> str:
        """What no two splits may share; by default the whole problem."""
        return problem.id

    def problems(self, split: Split) -> Sequence[Problem]:
        return drawn_problems(self, split)


@cache
def drawn_problems(task: Drawn, split: Split) -> tuple[Problem, ...]:
    return distinct(task, split, partial(task.draw, split), task.unshared)


@runtime_checkable
class Lapsing(Protocol):
    """A task with typical careless answers to its problems."""

    def lapse(self, problem: Problem) -> str:
        """An answer in a poor style that base models also use: right by luck at best."""
        ...


def demand_range(task: object, low: float, high: float, *names: str) -> None:
    """Raise ValueError with the first of these settings that is out of range."""
    for name in names:
        if not low <= getattr(task, name) <= high:
            raise ValueError(f"{name}: must be from {low} to {high}, not {getattr(task, name)}")


def bucket(identity: str) -> int:
    """A stable bucket from 0 to 9."""
    return hashlib.sha256(identity.encode()).digest()[0] % 10


def distinct(
    task: Generated,
    split: Split,
    draw: Callable[[random.Random], Problem],
    identity: Callable[[Problem], str] = lambda problem: problem.id,
) -> tuple[Problem, ...]:
    """As many different problems as the split has, in a fixed order. `identity` is what two splits must not
    share (the whole problem by default; a task may choose the hidden function or the template). Raises
    DataError if the generator is exhausted."""
    size: int = getattr(task, split)
    rng = random.Random(f"{type(task).__name__}/{task.seed}/{split}")
    problems: dict[str, Problem] = {}
    for _ in range(200 * size):
        problem = draw(rng)
        if bucket(identity(problem)) in SHARES[split]:
            problems.setdefault(problem.id, problem)
            if len(problems) == size:
                return tuple(problems.values())
    raise DataError(
        f"{task.name}: {split} = {size:,}: with these settings the generator has only about "
        f"{len(problems):,} different problems for that split; ask for fewer "
        f"(settings.{split}), or let them vary more"
    )


def accuracy_by_category(graded: Sequence[Graded]) -> dict[str, float]:
    """``accuracy/<category>``: share of right answers by the problem's category. Rows with outcome
    `infra_error` were not graded and are left out."""
    rows: defaultdict[str, list[float]] = defaultdict(list)
    for row in graded:
        if row.verdict.outcome != "infra_error":
            rows[str(row.problem.traits["category"])].append(row.verdict.scores["correct"])
    return {f"accuracy/{category}": sum(correct) / len(correct) for category, correct in sorted(rows.items())}
