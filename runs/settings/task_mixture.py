"""A task that mixes several tasks, each with its share of the problems."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from grpobench.runs.settings import stored
from grpobench.tasks.data.tables import Package, Source, Table
from grpobench.tasks.kinds.generated import accuracy_by_category
from grpobench.tasks.kinds.jsonl import NAME
from grpobench.tasks.task import Graded, Problem, Split, Task, Verdict

INNER_CATEGORY = "part_category"
"""The trait with the category that a problem has in its own task."""


@dataclass(frozen=True, kw_only=True)
class TaskMixture(Task):
    """Problems of several tasks of one turn, each graded by its own task.

    A split has as many problems as its tasks have for these shares, none of them twice: min over tasks of
    problems / share. They are in an order in which every beginning has the shares, as nearly as whole
    problems can. So an epoch of training and the first problems of an evaluation have them too; a step's
    problems are drawn from the shuffled split. A problem's `category` is its task, by which training and
    evaluations are accounted for."""

    source = "several tasks, each with a source of its own"
    summary = "a mixture of tasks"
    reads_thoughts = True  # here, since each of the tasks decides for itself

    name: str  # type: ignore[misc]
    """The task's name in arms, folders and reports."""
    mixture: Mapping[str, float] = field(hash=False)
    """Share of each task, relative to the sum."""
    parts: Mapping[str, Mapping[str, Any]] = field(hash=False)
    """The tasks as a run.toml has them: name, settings and, of others, class."""
    folder: Path = Path()
    """The folder with code and data of the tasks."""

    def __post_init__(self) -> None:
        faults = []
        if not NAME.fullmatch(self.name):
            faults.append(f"name: must be letters, digits, - and _, not {self.name!r}")
        if len(self.mixture) < 2:
            faults.append("mixture: needs two tasks or more, such as { arithmetic = 0.7, letters = 0.3 }")
        for name, share in self.mixture.items():
            if not 0 < share < math.inf:
                faults.append(f"mixture.{name}: must be above 0 and finite, not {share:g}")
        if set(self.mixture) != set(self.parts):
            raise ValueError(*faults, "parts: must be the tasks of mixture")
        for name, task in self.tasks.items():
            if task.turns != 1:
                faults.append(f"mixture.{name}: has several turns, and tasks of one turn can be mixed")
            if "correct" not in task.scores:
                faults.append(f"mixture.{name}: has no score correct, by which tasks are compared")
        if faults:
            raise ValueError(*faults)

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """The mixed tasks by name."""
        faults: list[str] = []
        tasks = {
            name: stored.built("task", entry, str(self.folder), faults) for name, entry in self.parts.items()
        }
        if faults:
            raise ValueError(*(f"parts: {fault}" for fault in faults))
        return tasks

    def inner(self, problem: Problem) -> tuple[Task, Problem]:
        """The task of a problem, and the problem as that task has it."""
        name, _, key = problem.id.partition("/")
        traits = {trait: value for trait, value in problem.traits.items() if trait != "category"}
        if INNER_CATEGORY in traits:
            traits["category"] = traits.pop(INNER_CATEGORY)
        return self.tasks[name], replace(problem, id=key, traits=traits)

    def mixed(self, problems: Mapping[str, Sequence[Problem]]) -> tuple[Problem, ...]:
        """Problems of all tasks in the order of the shares."""
        total = sum(self.mixture.values())
        shares = {name: self.mixture[name] / total for name in problems}
        count = int(min(len(problems[name]) / share for name, share in shares.items()) + 1e-9)
        taken, drawn = dict.fromkeys(shares, 0), []
        for position in range(1, count + 1):
            name = max(shares, key=lambda name: shares[name] * position - taken[name])
            drawn.append(outer(name, problems[name][taken[name]]))
            taken[name] += 1
        return tuple(drawn)

    # The protocol of tasks

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those that all tasks give."""
        first, *others = self.tasks.values()
        return tuple(score for score in first.scores if all(score in task.scores for task in others))

    @property
    def reward(self) -> Mapping[str, float]:  # type: ignore[override]
        """The tasks' own weights if they agree, else `correct` alone."""
        first, *others = self.tasks.values()
        same = all(task.reward == first.reward for task in others)
        return first.reward if same else {"correct": 1.0}

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """The largest budget of a task."""
        return max(task.max_completion_tokens for task in self.tasks.values())

    @property
    def answer_marker(self) -> str:  # type: ignore[override]
        """The tasks' own if they agree, else none."""
        markers = {task.answer_marker for task in self.tasks.values()}
        return markers.pop() if len(markers) == 1 else ""

    @property
    def splits(self) -> tuple[Split, ...]:  # type: ignore[override]
        """Those that all tasks have."""
        first, *others = self.tasks.values()
        return tuple(split for split in first.splits if all(split in task.splits for task in others))

    @property
    def tables(self) -> tuple[Table, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(table for task in self.tasks.values() for table in task.tables))

    @property
    def packages(self) -> tuple[Package, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(package for task in self.tasks.values() for package in task.packages))

    @property
    def license(self) -> str:  # type: ignore[override]
        return ", ".join(dict.fromkeys(task.license for task in self.tasks.values() if task.license))

    @property
    def caveat(self) -> str:  # type: ignore[override]
        return " ".join(f"{name}: {task.caveat}" for name, task in self.tasks.items() if task.caveat)

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self, split)

    def lessons(self) -> Sequence[Problem]:
        return self.mixed({name: task.lessons() for name, task in self.tasks.items()})

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        task, inner = self.inner(problem)
        return task.verify(inner, completions)

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        task, inner = self.inner(problem)
        return task.verify_episodes(inner, episodes)

    def verify_all(
        self, problems: Sequence[Problem], episodes: Sequence[Sequence[Sequence[str]]]
    ) -> list[list[Verdict]]:
        pairs = [self.inner(problem) for problem in problems]
        judged: dict[int, list[Verdict]] = {}
        for task in self.tasks.values():
            rows = [row for row, (owner, _) in enumerate(pairs) if owner is task]
            verdicts = task.verify_all([pairs[row][1] for row in rows], [episodes[row] for row in rows])
            judged |= zip(rows, verdicts, strict=True)
        return [judged[row] for row in range(len(pairs))]

    def demonstrate(self, problem: Problem) -> str:
        task, inner = self.inner(problem)
        return task.demonstrate(inner)

    def draw_episode(self, problem: Problem, rng: random.Random) -> Sequence[str]:
        task, inner = self.inner(problem)
        return task.draw_episode(inner, rng)

    def corrupt(self, problem: Problem) -> str | None:
        task, inner = self.inner(problem)
        return task.corrupt(inner)

    def columns(self, problem: Problem) -> Mapping[str, Any]:
        task, inner = self.inner(problem)
        return task.columns(inner)

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        """``accuracy/<task>``, and each task's own summary as ``<task>/<metric>``."""
        numbers = accuracy_by_category(graded)
        for name, task in self.tasks.items():
            rows = [
                Graded(self.inner(row.problem)[1], row.verdict)
                for row in graded
                if row.problem.traits["category"] == name
            ]
            summary = task.summarize(rows) if rows else {}
            numbers |= {f"{name}/{metric}": value for metric, value in summary.items()}
        return numbers

    def sources(self, split: Split) -> Sequence[Source]:
        return [source for task in self.tasks.values() for source in task.sources(split)]

    def sandbox(self) -> str:
        return next(filter(None, (task.sandbox() for task in self.tasks.values())), "")

    def missing(self) -> str:
        lacks = {name: task.missing() for name, task in self.tasks.items()}
        return "; ".join(f"{name}: {lack}" for name, lack in lacks.items() if lack)


def with_parts(task: Task) -> tuple[Task, ...]:
    """A task, with the tasks that it mixes."""
    return (task, *task.tasks.values()) if isinstance(task, TaskMixture) else (task,)


def outer(name: str, problem: Problem) -> Problem:
    """A problem of the task `name` as the mixture has it."""
    inner = {INNER_CATEGORY: problem.traits["category"]} if "category" in problem.traits else {}
    return replace(problem, id=f"{name}/{problem.id}", traits={**problem.traits, **inner, "category": name})


@lru_cache(maxsize=8)
def _problems(mixture: TaskMixture, split: Split) -> tuple[Problem, ...]:
    return mixture.mixed({name: task.problems(split) for name, task in mixture.tasks.items()})
