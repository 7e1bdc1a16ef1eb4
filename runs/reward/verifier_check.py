"""A check of a task's verifier on answers that are known to be right or wrong, before a run relies on it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Task, Verdict

TRIED = 3
"""Number of problems that a run checks. Defects of published problems are not the verifier's."""
MOST_SHOWN = 200
"""Characters of an answer that are shown."""
What = Literal["reference", "wrong", "empty"]


@dataclass(frozen=True)
class VerifierCheck:
    """An answer and the verifier's verdict."""

    problem: str
    what: What
    text: str
    """The last turn."""
    verdict: Verdict

    @property
    def graded(self) -> bool:
        return self.verdict.outcome != "infra_error"

    @property
    def right(self) -> bool:
        """Whether the verifier accepts what it should, and nothing else."""
        return self.graded and accepted(self.verdict) == (self.what == "reference")

    def described(self) -> str:
        """The answer and its verdict in words."""
        score = self.verdict.scores.get("correct")
        answer = "the empty answer" if self.what == "empty" else f"the answer {self.text!r:.{MOST_SHOWN}}"
        return f"problem {self.problem}, {answer}: {self.verdict.outcome}, correct = {score}"


def accepted(verdict: Verdict) -> bool:
    """Whether a verdict is that of a right answer: only a full `correct` is."""
    return verdict.outcome == "graded" and verdict.scores.get("correct", 0.0) >= 1


def verifier_checks(task: Task, problems: Sequence[Problem], most: int = TRIED) -> list[VerifierCheck]:
    """The verdicts on reference, wrong and empty answers to `most` of the problems, spread evenly, without
    those whose published reference is known to be wrong. Raises what the task raises."""
    defects = task.defects()
    sound = [i for i, problem in enumerate(problems) if problem.id not in defects]
    chosen = sound[:: -(-len(sound) // most)] if sound else []
    asked: list[list[tuple[What, tuple[str, ...]]]] = []
    for i in chosen:
        reference = tuple(task.demonstrate_episode(problems[i]))
        own: list[tuple[What, tuple[str, ...]]] = [("reference", reference), ("empty", ("",))]
        if (wrong := corruption(task, problems, i, reference)) is not None:
            own.append(("wrong", wrong))
        asked.append(own)
    episodes = [[episode for _, episode in own] for own in asked]
    judged = task.verify_all([problems[i] for i in chosen], episodes)
    return [
        VerifierCheck(problems[i].id, what, episode[-1], verdict)
        for i, own, verdicts in zip(chosen, asked, judged, strict=True)
        for (what, episode), verdict in zip(own, verdicts, strict=True)
    ]


def corruption(
    task: Task, problems: Sequence[Problem], place: int, reference: tuple[str, ...]
) -> tuple[str, ...] | None:
    """A wrong answer: the task's own corruption of the last turn, else the reference to the next problem with
    another truth and another reference; None if no problem has one."""
    problem = problems[place]
    if (text := task.corrupt(problem)) is not None:
        return (*reference[:-1], text)
    for ahead_by in range(1, len(problems)):
        other = problems[(place + ahead_by) % len(problems)]
        if other.truth != problem.truth:
            episode = tuple(task.demonstrate_episode(other))
            if episode != reference:
                return episode
    return None


def faults(found: Sequence[VerifierCheck]) -> list[str]:
    """What the verifier gets wrong on all problems, in words; nothing if it is right on one. Answers that the
    machine failed to grade do not count."""
    kinds: dict[What, str] = {
        "reference": "rejects every reference answer",
        "wrong": "accepts a wrong answer to every problem",
        "empty": "accepts every empty answer",
    }
    told = []
    for what, fault in kinds.items():
        own = [one for one in found if one.what == what and one.graded]
        if own and not any(one.right for one in own):
            told.append(f"{fault} in the check, such as {own[0].described()}")
    return told


def demand(task: Task, problems: Sequence[Problem], reaction: Literal["stop", "warn", "off"]) -> None:
    """Check the task's verifier on a few of the problems. If it is wrong about all, raise DataError if the
    `reaction` is to stop, else warn. If the verifier raises, warn too; the run counts that. A task without
    reference answers is not checked."""
    if reaction == "off":
        return
    try:
        wrong = faults(verifier_checks(task, problems))
    except NotImplementedError:
        return
    except DataError:
        raise
    except Exception as error:  # the task's own code
        told = f"{type(error).__name__}: {error}"
        warnings.warn(f"the verifier of task {task.name} could not be checked: {told}", stacklevel=2)
        return
    if not wrong:
        return
    text = (
        f"the verifier of task {task.name} {'; it '.join(wrong)}; fix the verifier or the answers of the "
        f'training problems (`grpobench tasks check {task.name}`), or set checks.grader = "warn"'
    )
    if reaction == "stop":
        raise DataError(text)
    warnings.warn(text, stacklevel=2)
