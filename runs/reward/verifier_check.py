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
AnswerKind = Literal["reference", "wrong", "empty"]


@dataclass(frozen=True)
class VerifierCheck:
    """An answer and the verifier's verdict."""

    problem: str
    kind: AnswerKind
    text: str
    """The last turn."""
    verdict: Verdict

    @property
    def graded(self) -> bool:
        return self.verdict.outcome != "infra_error"

    @property
    def right(self) -> bool:
        """Whether the verifier accepts what it should, and nothing else."""
        return self.graded and accepted(self.verdict) == (self.kind == "reference")

    def described(self) -> str:
        """The answer and its verdict in words."""
        score = self.verdict.scores.get("correct")
        answer = "the empty answer" if self.kind == "empty" else f"the answer {self.text!r:.{MOST_SHOWN}}"
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
    answers_by_problem: list[list[tuple[AnswerKind, tuple[str, ...]]]] = []
    for i in chosen:
        reference = tuple(task.demonstrate_episode(problems[i]))
        answers: list[tuple[AnswerKind, tuple[str, ...]]] = [("reference", reference), ("empty", ("",))]
        if (wrong := corruption(task, problems, i, reference)) is not None:
            answers.append(("wrong", wrong))
        answers_by_problem.append(answers)
    episodes = [[episode for _, episode in answers] for answers in answers_by_problem]
    judged = task.verify_all([problems[i] for i in chosen], episodes)
    return [
        VerifierCheck(problems[i].id, kind, episode[-1], verdict)
        for i, answers, verdicts in zip(chosen, answers_by_problem, judged, strict=True)
        for (kind, episode), verdict in zip(answers, verdicts, strict=True)
    ]


def corruption(
    task: Task, problems: Sequence[Problem], index: int, reference: tuple[str, ...]
) -> tuple[str, ...] | None:
    """A wrong answer: the task's own corruption of the last turn, else the reference to the next problem with
    another truth and another reference; None if no problem has one."""
    problem = problems[index]
    if (text := task.corrupt(problem)) is not None:
        return (*reference[:-1], text)
    for ahead_by in range(1, len(problems)):
        other = problems[(index + ahead_by) % len(problems)]
        if other.truth != problem.truth:
            episode = tuple(task.demonstrate_episode(other))
            if episode != reference:
                return episode
    return None


def faults(checks: Sequence[VerifierCheck]) -> list[str]:
    """What the verifier gets wrong on all problems, in words; nothing if it is right on one. Answers that the
    machine failed to grade do not count."""
    kinds: dict[AnswerKind, str] = {
        "reference": "rejects every reference answer",
        "wrong": "accepts a wrong answer to every problem",
        "empty": "accepts every empty answer",
    }
    fault_texts = []
    for kind, fault in kinds.items():
        checks_of_kind = [check for check in checks if check.kind == kind and check.graded]
        if checks_of_kind and not any(check.right for check in checks_of_kind):
            fault_texts.append(f"{fault} in the check, such as {checks_of_kind[0].described()}")
    return fault_texts


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
        error_text = f"{type(error).__name__}: {error}"
        warnings.warn(f"the verifier of task {task.name} could not be checked: {error_text}", stacklevel=2)
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
