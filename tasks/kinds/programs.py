"""Base of the tasks whose answers are Python programs."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpobench.tasks.grading import program_values
from grpobench.tasks.grading.asserts import restored
from grpobench.tasks.grading.failed_test import failed_test, shortened, stopped
from grpobench.tasks.grading.reading import program
from grpobench.tasks.sandbox import choose
from grpobench.tasks.sandbox.protocol import Choice, Execution, Job, Limits, Sandbox
from grpobench.tasks.task import BatchTask, Outcome, Problem, Verdict

FAILURES: Final = ("wrong", "error", "syntax", "timeout", "oom", "output_limit")
SCORES: Final = ("correct", "format", *FAILURES)
"""`correct`; `format`: there is a program and it compiles; then the kinds of failure, at most one of them
1."""
OUTCOMES: Final[Mapping[str, Outcome]] = {
    "pass": "graded",
    "wrong": "graded",
    "error": "graded",
    "syntax": "unparsable",
    "timeout": "timeout",
    "oom": "crash",
    "output_limit": "crash",
    "infra_error": "infra_error",
}

# Grading


@dataclass(frozen=True)
class Programs(BatchTask):
    """A task whose problems ask for a Python function.

    `grading/reading.py` extracts the programs from completions. A problem's `truth` is JSON:

    - ``entry``: name of the requested function; ``before``: source in front of an answer that is a whole
      function; ``header``: source in front of one that is only a function's body; ``after``: source after the
      program.
    - ``calls`` and ``conditions`` of `asserts.convert`, and ``reference``, a right answer; or
    - ``judge``: source of a test that is not a list of asserts. It is replayed in a sandbox of its own
      without any model's program: once with the reference, to learn which calls it makes, then for each
      program with the values that the program returned for these calls."""

    scores = SCORES
    tier: Choice = "auto"
    """Where programs run: full CPython in bubblewrap, or Monty, which lacks parts of Python."""
    seconds: float = 10.0
    """Processor seconds that a program may use. The slowest published reference (MBPP 123) takes about 3."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 3600:
            raise ValueError("seconds: must be above 0 and at most 3600")

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        """Programs of all problems run in parallel; repeated programs run once."""
        sources = [program(turns[-1] if turns else "", problem.truth) for problem, turns in pairs]
        # By the object of the truth, which alone decides: another problem may have the same id.
        keys = [(id(problem.truth), source) for (problem, _), source in zip(pairs, sources, strict=True)]
        submissions = {
            key: (problem.truth, key[1]) for key, (problem, _) in zip(keys, pairs, strict=True) if key[1]
        }
        graded = grade(list(submissions.values()), choose.sandbox(self.tier, Limits(self.seconds)))
        judgments = dict(zip(submissions, graded, strict=True))
        return [verdict(key[1], *judgments.get(key, ("syntax", ""))) for key in keys]

    def corrupt(self, problem: Problem) -> str:
        truth = problem.truth
        return in_block(truth["header"] + truth["reference"] + SPOIL.format(entry=truth["entry"]))

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        """A function that returns one value whatever its arguments are."""
        return (in_block(f"def {problem.truth['entry']}(*args, **kwargs):\n    return {literal(answer)}"),)

    def sandbox(self) -> str:
        return choose.choose(self.tier)[0] or ""

    def missing(self) -> str:
        return super().missing() or choose.choose(self.tier)[1]


def verdict(source: str | None, outcome: str, failed: str) -> Verdict:
    scores = {name: float(name == outcome) for name in SCORES}
    scores["correct"] = float(outcome == "pass")
    scores["format"] = float(outcome != "syntax")
    return Verdict(scores, source, OUTCOMES[outcome], failed_test=failed)


def grade(submissions: Sequence[tuple[Mapping[str, Any], str]], chosen: Sandbox) -> list[tuple[str, str]]:
    """The outcome of each program, given with the truth of its problem, and the first test that it failed."""
    judgments = [("infra_error", "")] * len(submissions)
    jobs: dict[int, Job] = {}
    for i, (truth, source) in enumerate(submissions):
        if calls := called(truth, chosen):
            jobs[i] = Job(source, calls)
    questions: dict[int, program_values.ValueConditions] = {}
    for i, execution in zip(jobs, chosen.run_all(list(jobs.values())), strict=True):
        conditions, calls = submissions[i][0].get("conditions"), jobs[i].calls
        if execution.outcome == "pass":
            questions[i] = program_values.ValueConditions(execution.wire, conditions, calls)
        else:
            judgments[i] = execution.outcome, unfinished(execution, conditions, calls)
    replays: dict[int, Job] = {}
    for i, (outcome, text) in zip(questions, program_values.judge(list(questions.values())), strict=True):
        judgments[i] = outcome, text
        if outcome == "pass" and "judge" in submissions[i][0]:
            replays[i] = replay(submissions[i][0], text, chosen)
            judgments[i] = outcome, ""
    for i, execution in zip(replays, chosen.run_all(list(replays.values())), strict=True):
        if execution.outcome == "infra_error":
            judgments[i] = "infra_error", ""
        elif execution.values != (True,):
            judgments[i] = "wrong", rejected(execution, jobs[i].calls)
    return judgments


def unfinished(execution: Execution, conditions: Sequence[str] | None, calls: Sequence[str]) -> str:
    """The test at which a program stopped; empty if none began."""
    if execution.outcome in ("syntax", "infra_error"):
        return ""
    tests = [(call, [number]) for number, call in enumerate(calls)]
    if conditions is not None:
        tests = [restored(condition, calls) for condition in conditions]
    index = next((i for i, (_, numbers) in enumerate(tests) if execution.returned in numbers), None)
    return failed_test([test for test, _ in tests], index, stopped(execution))


def rejected(execution: Execution, calls: Sequence[str]) -> str:
    """The call after which a replayed test failed."""
    if execution.outcome != "pass" or execution.values == (False,):
        return failed_test(calls, None, "the published test failed")
    ((number, value),) = execution.values
    return failed_test(calls, number - 1, f"got {shortened(value)}, which the published test refuses")


# Tests that are replayed


def called(truth: Mapping[str, Any], chosen: Sandbox) -> tuple[str, ...]:
    """The calls that a test makes; empty if its judge does not run in this tier."""
    if "judge" not in truth:
        return tuple(truth["calls"])
    try:
        return tuple(f"{truth['entry']}(*{arguments})" for arguments in recorded(*key(truth), chosen))
    except JudgeError:
        return ()


def replay(truth: Mapping[str, Any], values: str, chosen: Sandbox) -> Job:
    """The judge with these values (source of a list) for its calls; its own value is True if they satisfy
    it."""
    arguments = ", ".join(recorded(*key(truth), chosen))
    return Job(truth["judge"] + REPLAY, (f"_replay([{arguments}], {values})",))


def key(truth: Mapping[str, Any]) -> tuple[str, str, str]:
    return truth["header"] + truth["reference"], truth["judge"], truth["entry"]


class JudgeError(RuntimeError):
    """A published test does not run in a tier."""


@functools.lru_cache(maxsize=256)
def recorded(reference: str, judge: str, entry: str, chosen: Sandbox) -> tuple[str, ...]:
    """The arguments of each call that a judge makes, as text of a tuple. Raises JudgeError."""
    execution = chosen.run(f"{reference}\n{judge}{RECORD}", [f"_record({entry})"])
    if execution.outcome != "pass":
        raise JudgeError(f"{entry}: {execution.outcome} {execution.detail}")
    return tuple(repr(arguments) for arguments in execution.values[0])


RECORD: Final = """
def _record(function):
    import copy
    calls = []
    def candidate(*arguments):
        calls.append(copy.deepcopy(arguments))
        return function(*arguments)
    check(candidate)
    return calls
"""
REPLAY: Final = """
nan, inf = float("nan"), float("inf")
def _replay(arguments, values):
    calls = []
    def candidate(*given):
        assert len(calls) < len(values) and given == arguments[len(calls)]
        calls.append(given)
        return values[len(calls) - 1]
    try:
        check(candidate)
    except Exception:
        return (len(calls), repr(values[len(calls) - 1])[:200]) if calls else False
    return len(calls) == len(values)
"""

SPOIL: Final = """
_right = {entry}
def {entry}(*args, **kwargs):
    value = _right(*args, **kwargs)
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "?"
    return [value, 0]
"""
"""Source after a program that changes the results of its function slightly each time."""


def asserted(
    entry: str, reference: str, calls: Sequence[str], conditions: Sequence[str], after: str = ""
) -> dict[str, Any]:
    """The truth of a problem that asks for a whole function and is graded by asserts."""
    blank = {"before": "", "header": ""}
    test = {"calls": calls, "conditions": conditions}
    return {"entry": entry, **blank, "after": after, "reference": reference, **test}


def in_block(source: str) -> str:
    """Source as in an answer in prose."""
    return f"```python\n{source.strip(chr(10))}\n```"


def literal(text: str) -> str:
    """The value of a text, as source: a number or literal of Python, else the text itself."""
    for read in (ast.literal_eval, float):
        try:
            value = read(text)
        except (ValueError, SyntaxError):
            continue
        return f"float('{value}')" if isinstance(value, float) else repr(value)
    return repr(text)
