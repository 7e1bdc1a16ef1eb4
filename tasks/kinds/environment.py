"""The task of an environment, a class that says how an episode begins and what follows a turn."""

# Write a class as `Environment` describes, and name it in a recipe: ``tasks = ["env:module:Class"]``.
# Episodes are played in worker processes (`tasks/workers/environment.py`), which end what hangs, crashes or
# takes too much memory. A worker keeps the episodes that it plays, so that a turn costs one step; after a
# worker has died, an episode is replayed from the policy's turns.

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

from grpobench.tasks.data.messages import Message, Prompt
from grpobench.tasks.data.tables import DataError, ReferencesError
from grpobench.tasks.data.tools import Tool, ToolCall, Turn
from grpobench.tasks.task import BatchTask, Outcome, Problem, Reply, Split, Verdict
from grpobench.tasks.workers.environment import NEEDED, Environment, label
from grpobench.tasks.workers.keeper import MEMORY_BYTES
from grpobench.tasks.workers.pool import START_SECONDS, WALL_PER_CPU, Pool

__all__ = ["NEEDED", "Environment", "EnvironmentTask", "Message", "Tool", "ToolCall", "Turn"]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
SCORES: Final = ("correct", "return")
"""Scores of every environment: whether the episode was solved, and the sum of its rewards."""
TRAITS: Final = ("category", "difficulty", "cluster")
"""Keys of a problem that describe it for reports and curricula."""
QUESTIONS: Final = 10_000
"""Turns after which a worker is replaced; its episodes are then replayed."""
FILE_BYTES: Final = 2**28
"""Size of a file that an environment may write."""
PROBES: Final = ("", "1", '<tool_call>{"name": "?"}</tool_call>', "A\nB")
"""Turns of the replay check for an environment without reference episodes."""
MOST_FAILURES: Final = 10_000
"""Failures that a process remembers."""
LONGEST_ANSWER: Final = 2_000


@dataclass(frozen=True)
class Failure:
    """Why a worker gave no answer."""

    outcome: Outcome
    message: str


@dataclass(frozen=True, kw_only=True)
class EnvironmentTask(BatchTask):
    """Episodes of an environment.

    `return` is the sum of the rewards of all turns, and is rewarded by default. `correct` is that of the
    environment's `grade`; without one, it is 1 if the return is at least 1. An environment that hangs has the
    outcome `timeout`; one that raises, exits or returns nonsense has the outcome `crash`. Either ends the
    episode with scores of 0, and a warning names class and method."""

    source = "an environment of yours"
    summary = "episodes of a class with reset and step"
    reward: ClassVar[Mapping[str, float]] = {"return": 1.0}
    replays = True

    name: str  # type: ignore[misc]
    """The task's name in arms, folders and reports."""
    environment: str
    """The class, as ``module:Class``; with an adapter, a function of this form."""
    adapter: str = ""
    """The class that makes an environment of it, for environments of packages."""
    folder: Path = Path()
    """The folder in which the module may stand."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the class."""
    scores: tuple[str, ...] = SCORES  # type: ignore[misc]
    """`correct`, `return`, and the names of other scores of `grade`."""
    turns: int = 8
    """Maximum number of the policy's turns in an episode."""
    turn_tokens: int = 64  # type: ignore[misc]
    """Maximum number of tokens of one turn."""
    turn_end: str = ""  # type: ignore[misc]
    """Text that ends a turn besides the model's end token."""
    max_completion_tokens: int = 1024  # type: ignore[misc]
    """Maximum number of tokens of an episode behind its prompt, replies included."""
    seed: int = 0
    """An episode's seed depends on this and on its problem alone."""
    step_seconds: float = 3.0
    """Seconds of CPU that one call of a method may take; on the clock three times as many."""
    live: int = 256
    """Episodes that a worker keeps, to continue them without a replay."""
    workers: int = 0
    """Worker processes; 0: one for each core."""
    caveat: str = ""  # type: ignore[misc]
    """What readers of reports should know of the environment."""
    load_seconds: float = 60.0
    """The same for `problems`, and for `prepare` beside it."""

    def __post_init__(self) -> None:
        rules = {
            f"name: must be letters, digits, - and _, not {self.name!r}": NAME.fullmatch(self.name),
            "turns: must be at least 1": self.turns >= 1,
            "turn_tokens: must be at least 1": self.turn_tokens >= 1,
            "max_completion_tokens: must be at least turn_tokens": self.turns == 1
            or self.max_completion_tokens >= self.turn_tokens,
            "live: must be at least 1": self.live >= 1,
            "workers: must be at least 0": self.workers >= 0,
            "step_seconds: must be above 0": self.step_seconds > 0,
            "load_seconds: must be above 0": self.load_seconds > 0,
            f"scores: must begin with {', '.join(SCORES)}": self.scores[: len(SCORES)] == SCORES,
        }
        if broken := [message for message, holds in rules.items() if not holds]:
            raise ValueError(*broken)

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self, split)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply | None:
        return self.reply_all([problem], [turns])[0]

    def reply_all(
        self, problems: Sequence[Problem], episodes: Sequence[Sequence[str]]
    ) -> Sequence[Reply | None]:
        """All turns go to the workers at once; equal episodes of a problem only once. A failure ends an
        episode."""
        answers = self._play("reply", list(zip(problems, episodes, strict=True)))
        return [
            None if answer is None or isinstance(answer, Failure) else _messages(answer) for answer in answers
        ]

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        answers = self._play("grade", pairs)
        return [self._verdict(turns, answer) for (_, turns), answer in zip(pairs, answers, strict=True)]

    def demonstrate(self, problem: Problem) -> str:
        """The last turn of the reference episode."""
        return self.demonstrate_episode(problem)[-1]

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        """The turns of the environment's `demonstrate`. Raises ReferencesError if it has no such method,
        DataError if it fails."""
        (turns,) = self._ask("demonstrate", [{"row": problem.truth}])
        if isinstance(turns, Failure):
            raise DataError(f"task {self.name}: problem {problem.id}: {turns.message}")
        if turns is None:
            lack = "has no method demonstrate, so no" if not self.adapter else "has no"
            raise ReferencesError(
                f"task {self.name}: {label(self.environment, self.adapter)} {lack} reference episodes; leave "
                "out what reads them, or name a file of answers (model.warm_start_answers, train.experts)"
            )
        return tuple(turns)

    def replay_faults(self, problems: Sequence[Problem]) -> list[str]:
        """What differs between two replays of the same turns, or between an episode's beginning and the
        problem's prompt; one message for each of the problems that has a difference."""
        faults = []
        for problem in problems:
            try:
                turns = self.demonstrate_episode(problem)
            except NotImplementedError:
                turns = PROBES
            question = {"row": problem.truth, "seed": self._seed(problem.id), "turns": turns}
            first, second = self._ask("replay", [question, question], shards=[0, 1])
            failures = [answer.message for answer in (first, second) if isinstance(answer, Failure)]
            if failures or first != second:
                where = "" if failures else first_difference(first, second)
                faults.append(f"problem {problem.id}: {failures[0] if failures else where}")
        return faults

    # Workers

    def _play(self, do: str, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Any]:
        """The answer for each problem and episode, or the Failure that ended it."""
        keys = [(problem.id, tuple(turns)) for problem, turns in pairs]
        failures = _failures(self)
        pending = {
            key: {"id": problem.id, "row": problem.truth, "seed": self._seed(problem.id), "turns": key[1]}
            for key, (problem, _) in zip(keys, pairs, strict=True)
            if key not in failures
        }
        shards = [_number(f"{name}/{turns[0] if turns else ''}") for name, turns in pending]
        answers = dict(zip(pending, self._ask(do, list(pending.values()), shards), strict=True))
        for key, answer in answers.items():
            if isinstance(answer, Failure):
                while len(failures) >= MOST_FAILURES:
                    failures.pop(next(iter(failures)))
                failures[key] = answer
        return [answers[key] if key in answers else failures[key] for key in keys]

    def _ask(
        self,
        do: str,
        questions: Sequence[Mapping[str, Any]],
        shards: Sequence[int] = (),
        seconds: float = 0.0,
    ) -> list[Any]:
        """The workers' answers, or a Failure; new messages of failures are warned of."""
        pool = self._pool()
        limit = seconds or self.step_seconds
        # The worker limits each call; this limit is for one that has disarmed its timers.
        calls = 4 + max((len(question.get("turns", ())) for question in questions), default=0)
        replies = pool.map([{"do": do, **question} for question in questions], calls * limit, shards=shards)
        method = f"{label(self.environment, self.adapter)}.{METHODS[do]}"
        messages = {
            "timeout": f"{method} took longer than {limit:g} s of CPU or {WALL_PER_CPU * limit:g} s",
            "crash": f"{method} ended its process, or took more than {MEMORY_BYTES / 2**30:g} GiB",
            "infra_error": f"{method} did not return: its process was killed from outside",
        }
        answers: list[Any] = []
        for reply in replies:
            if reply.ending == "done" and "fault" not in reply.value:
                answers.append(reply.value["value"])
                continue
            message = reply.value["fault"] if reply.ending == "done" else messages.get(reply.ending, "")
            if reply.value and reply.ending != "done":
                message = f"{message or method}: {reply.value}"
            outcome: Any = reply.ending if reply.ending in ("timeout", "infra_error") else "crash"
            answers.append(Failure(outcome, message))
            _warn(self.name, outcome, message)
        return answers

    def _pool(self) -> Pool:
        names = (self.environment, self.adapter, str(self.folder))
        settings = (*names, dict(self.arguments), self.step_seconds, self.live)
        key = json.dumps((self.workers, self.load_seconds, settings))
        if key not in POOLS:
            POOLS[key] = Pool(
                "grpobench.tasks.workers.environment:player",
                workers=self.workers,
                file=FILE_BYTES,
                questions=QUESTIONS,
                start_seconds=START_SECONDS + WALL_PER_CPU * self.load_seconds,
                settings=settings,
            )
        return POOLS[key]

    def _verdict(self, turns: Sequence[str], answer: Any) -> Verdict:
        text = turns[-1][:LONGEST_ANSWER] if turns else ""
        if isinstance(answer, Failure):
            return Verdict(dict.fromkeys(self.scores, 0.0), text, answer.outcome, fault=answer.message)
        total = sum(answer["rewards"])
        scores = {"correct": float(total >= 1 - 1e-9), **answer["scores"], "return": total}
        return Verdict(scores, text, turn_rewards=tuple(answer["rewards"]))

    def _seed(self, problem: str) -> int:
        return _number(f"{self.seed}/{problem}")


METHODS: Final = {
    "rows": "problems",
    "start": "reset",
    "reply": "step",
    "grade": "grade",
    "replay": "step",
    "demonstrate": "demonstrate",
}
"""The method of an environment that a question mostly runs."""


POOLS: Final[dict[str, Pool]] = {}
"""The workers of each environment with its arguments."""


@cache
def _failures(task: EnvironmentTask) -> dict[tuple[str, tuple[str, ...]], Failure]:
    """The failures of episodes by problem and turns: what hung once is not waited for again."""
    return {}


@cache
def _warn(task: str, outcome: Outcome, message: str) -> None:
    warnings.warn(f"task {task}: outcome {outcome}: {message}", stacklevel=5)


@cache
def _problems(task: EnvironmentTask, split: Split) -> tuple[Problem, ...]:
    rows = _demand(
        task, task._ask("rows", [{"split": split, "seconds": task.load_seconds}], seconds=task.load_seconds)
    )[0]
    if not rows:
        raise DataError(
            f"task {task.name}: {task.environment}: problems({split!r}) is empty; return at least one problem"
        )
    starts = _demand(task, task._ask("start", [{"row": row, "seed": task._seed(id)} for id, row in rows]))
    return tuple(
        Problem(id, _prompt(start), row, {name: row[name] for name in TRAITS if name in row})
        for (id, row), start in zip(rows, starts, strict=True)
    )


def _demand(task: EnvironmentTask, answers: list[Any]) -> list[Any]:
    """The answers; raises DataError for a failure among them."""
    for answer in answers:
        if isinstance(answer, Failure):
            raise DataError(f"task {task.name}: {answer.message}; repair {task.environment}")
    return answers


def _prompt(start: Mapping[str, Any]) -> Prompt:
    """The prompt of a problem; tools stand in its system message, which may be empty."""
    messages = _messages(start["prompt"])
    tools = tuple(Tool(**tool) for tool in start["tools"])
    if not tools:
        return messages[0].content if len(messages) == 1 else messages
    system, after = ("", messages) if messages[0].role != "system" else (messages[0].content, messages[1:])
    return (Message("system", system, tools), *after)


def first_difference(replay: Sequence[Any], other: Sequence[Any]) -> str:
    """Where two replays of the same turns differ. They have the prompt, a part for each turn, whether the
    episode is done, and the scores."""
    number = next(n for n, (a, b) in enumerate(zip(replay, other, strict=True)) if a != b)
    parts = {0: "reset", len(replay) - 2: "the end", len(replay) - 1: "grade"}
    return (
        f"two replays of the same turns differ at {parts.get(number, f'turn {number}')}; let all randomness "
        "follow from the seed that reset gets"
    )


def _messages(pairs: Sequence[Sequence[Any]]) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in pairs)


def _number(text: str) -> int:
    """A number below 2^31 from a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
