"""Checks of what a task returns: its verdicts on completions, and its summary of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grpobench.algorithms.returned import ReturnError, described, line_of
from grpobench.tasks.task import Problem, Task, Verdict

METHODS = ("verify_all", "verify_episodes", "verify")
"""A task's ways to grade, from the outermost: the first that its class defines is the one that returned."""


def demand_verdicts(
    task: Task, problems: Sequence[Problem], episodes: Sequence[Sequence[Any]], judged: object
) -> list[list[Verdict]]:
    """`judged`, after a check that it has a verdict for every episode of each problem. Raises ReturnError.

    An exception in a verifier costs one completion its reward, because some text may be beyond it. A verifier
    that returns something other than verdicts is wrong for every text, and ends the run."""
    if not isinstance(judged, list | tuple) or len(judged) != len(problems):
        raise refused(task, counted(judged), f"a list for each of {len(problems)} problems")
    for problem, problem_episodes, verdicts in zip(problems, episodes, judged, strict=True):
        where = f"for problem {problem.id}"
        if not isinstance(verdicts, list | tuple) or len(verdicts) != len(problem_episodes):
            expected = f"a list of {len(problem_episodes)} Verdicts"
            raise refused(task, f"{counted(verdicts)} {where}", expected)
        for verdict in verdicts:
            if not isinstance(verdict, Verdict):
                raise refused(task, f"{described(verdict)} {where}", "a Verdict")
            demand_scores(task, verdict, where)
        for turns, verdict in zip(problem_episodes, verdicts, strict=True):
            demand_turn_rewards(task, verdict, turns, where)
    return [list(verdicts) for verdicts in judged]


def demand_scores(task: Task, verdict: Verdict, where: str) -> None:
    """A graded completion has every score of its task, as a number."""
    if verdict.outcome != "graded":
        return
    for name in task.scores:
        if name not in verdict.scores:
            raise refused(task, f"a Verdict without the score {name!r} {where}", "one with it")
    for name, score in verdict.scores.items():
        if not is_number(score):
            raise refused(task, f"the score {name} = {described(score)} {where}", "a number")


def demand_turn_rewards(task: Task, verdict: Verdict, turns: Sequence[Any], where: str) -> None:
    """Rewards of turns are finite numbers, one for each of the policy's turns, or there are none."""
    rewards = verdict.turn_rewards
    if not isinstance(rewards, list | tuple):
        raise refused(task, f"turn_rewards {described(rewards)} {where}", "a tuple of numbers")
    for reward in rewards:
        if not is_number(reward) or not math.isfinite(reward):
            raise refused(task, f"the turn reward {described(reward)} {where}", "a finite number")
    if rewards and len(rewards) != len(turns):
        expected = f"{len(turns)}, one for each of the policy's turns, or none"
        raise refused(task, f"{len(rewards)} turn_rewards {where}", expected)


def demand_summary(task: Task, summary: object) -> Mapping[str, float]:
    """What `summarize` returned, after a check that it is a mapping from names to numbers."""
    if not isinstance(summary, Mapping):
        raise refusal(task, "summarize", described(summary), "a number by the name of each metric")
    for name, value in summary.items():
        if not is_number(value):
            raise refusal(task, "summarize", f"{name} = {described(value)}", "a number")
    return summary


def is_number(value: Any) -> bool:
    """Whether a value is a number, also one of NumPy's or torch's; a text of digits is none."""
    try:
        return not isinstance(value, str | bytes) and isinstance(float(value), float)
    except (TypeError, ValueError):
        return False


def verifier(task: Task) -> str:
    """The method that grades: the outermost that a task's class or a base of it defines for itself."""
    mine = [name for name in METHODS if getattr(type(task), name) is not getattr(Task, name)]
    return mine[0] if mine else METHODS[-1]


def counted(value: object) -> str:
    """A list by its length, anything else by its value."""
    return f"{len(value)} of them" if isinstance(value, list | tuple) else described(value)


def refused(task: Task, returned: str, expected: str) -> ReturnError:
    """The error for what the task's verifier returned."""
    return refusal(task, verifier(task), returned, expected)


def refusal(task: Task, method: str, returned: str, expected: str) -> ReturnError:
    name = type(task).__name__
    line = line_of(getattr(task, method))
    return ReturnError(f"{line} {name}.{method} returned {returned}, expected {expected}".lstrip())
