"""Answers that know nothing of their problem, and how many of them a verifier takes for right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grpobench.runs.reward.canary import accepted
from grpobench.tasks.task import Problem, Task, Verdict

CONSTANTS: Final = (
    *("nan", "-nan", "inf", "-inf", "Infinity", "1e999", "nan+nani", "[NaN]"),
    *("0", "1", "-1", "2", "10", "0.0", "0.5", "0/1"),
    *("", " ", '""', "[]", "{}", "()", "[[]]", "None", "null", "?", "-"),
    *("yes", "no", "Yes", "No", "true", "false", "True", "False"),
    *("A", "B", "C", "D", "E", "x"),
    "0 or 1, yes or no, A or B or C or D or E. " * 200,
)
"""What is tried on every problem, as its final answer. The last is long."""
MOST: Final = 32
"""Problems of a task on which they are tried, spread evenly."""
OTHERS: Final = 6
"""Reference answers of other problems that are tried on each."""


@dataclass(frozen=True)
class Tried:
    """An answer that knows nothing of the problem."""

    problem: Problem
    what: str
    verdict: Verdict
    right: bool
    """Whether it happens to be the right answer."""


def tried(task: Task, problems: Sequence[Problem], references: Mapping[str, Verdict]) -> list[Tried]:
    """Every constant, and references of other problems, on at most `MOST` of the problems.

    `references` are the verdicts on the problems' own references, by id. An answer counts as right where it
    is that reference by spelling or by value, or where the task finds it right in another way than by its
    verifier (`Task.right_besides`): what the verifier says of it decides nothing.
    """
    chosen = problems[:: -(-len(problems) // MOST)] if problems else []
    asked: list[list[tuple[str, Sequence[str]]]] = []
    for place, problem in enumerate(chosen):
        constants = [(text, task.state(problem, text)) for text in CONSTANTS]
        asked.append([*constants, *others(task, chosen, place, references)])
    graded = task.verify_all(chosen, [[episode for _, episode in own] for own in asked])
    found = []
    for problem, own, verdicts in zip(chosen, asked, graded, strict=True):
        reference = references[problem.id].answer
        for (text, episode), verdict in zip(own, verdicts, strict=True):
            right = alike(text, reference) or (
                accepted(verdict) and task.right_besides(problem, tuple(episode))
            )
            found.append(Tried(problem, text, verdict, right))
    return found


def others(
    task: Task, problems: Sequence[Problem], place: int, references: Mapping[str, Verdict]
) -> list[tuple[str, Sequence[str]]]:
    """Reference answers of other problems with other truths: (answer, episode)."""
    found: dict[str, Sequence[str]] = {}
    for step in range(1, len(problems)):
        other = problems[(place + step) % len(problems)]
        if other.truth != problems[place].truth and len(found) < OTHERS:
            found[references[other.id].answer or ""] = task.demonstrate_episode(other)
    return list(found.items())


def graded_scores(found: Sequence[Tried]) -> dict[str, float]:
    """What the answers that are not right earn on average, by score."""
    wrong = [one.verdict.scores for one in found if not one.right and one.verdict.outcome == "graded"]
    names = dict.fromkeys(name for scores in wrong for name in scores)
    return {name: sum(scores.get(name, 0.0) for scores in wrong) / len(wrong) for name in names}


def alike(answer: str, reference: str | None) -> bool:
    """Whether two answers have the same letters, digits and signs, or the same value as numbers."""
    if reference is None:
        return False
    one_bare, other_bare = bare(answer), bare(reference)
    if one_bare == other_bare:
        return bool(one_bare) or "".join(answer.split()) == "".join(reference.split())
    one, other = value(answer), value(reference)
    return one is not None and one == other


def bare(text: str) -> str:
    return re.sub(r"\\(?:text|mbox|mathrm|textbf)\b|[^\w.+\-/*^<>=]", "", text).casefold()


def value(text: str) -> complex | None:
    """The number that a text is; None for anything else."""
    text = re.sub(r"[\s,$]", "", text).strip("\"'")
    try:
        above, slash, below = text.partition("/")
        if slash:
            return complex(float(above) / float(below))
        return complex(text.replace("i", "j") if re.fullmatch(r"[-+.\dji]+", text) else text)
    except (ValueError, ZeroDivisionError):
        return None
