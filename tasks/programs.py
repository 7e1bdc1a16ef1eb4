"""What the tasks share whose answers are Python programs: reading one out of a completion, and grading it.

A problem's `truth` is JSON:

- ``entry``: name of the function that is asked for; ``before``: source that goes before an answer that is a
  whole function, ``header``: before one that is a function's body only; ``after``: source behind the program.
- ``calls`` and ``conditions`` of `asserts.convert`, and ``reference``, an answer that is right; or
- ``judge``: source of a test that is no list of asserts. It is replayed: the judge runs in a sandbox of its
  own where no model's program is, once with the reference to learn which calls it makes, then for each
  program with the values that the program returned for these calls.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpobench.tasks import sandbox
from grpobench.tasks.asserts import holds
from grpobench.tasks.sandbox import Choice, Execution, Job, Limits, Sandbox
from grpobench.tasks.task import DataError, Outcome, Problem, Verdict

FAILURES: Final = ("wrong", "error", "syntax", "timeout", "oom", "output_limit")
SCORES: Final = ("correct", "format", *FAILURES)
"""`correct`; `format`: a program was found and compiles; then how it failed, one of them 1 where it did."""
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
SECONDS: Final = 10.0
"""Default processor seconds of a program. The slowest published reference (MBPP 123) takes about 3."""

# Reading a program


def program(completion: str, truth: Mapping[str, Any]) -> str | None:
    """The program in a completion: its code block, else its first stretch of code; None where none defines
    the function and none can be its body."""
    text = completion.replace("\r\n", "\n")
    blocks = fenced(text)
    defines = re.compile(rf"^(?:async\s+def|def|class)\s+{re.escape(truth['entry'])}\b", re.MULTILINE)
    for code in (*blocks, unfenced(text)):
        if defines.search(code):
            return f"{truth['before']}\n{code}\n{truth['after']}"
    body = blocks[0] if blocks else until_prose(text)
    if not truth["header"] or not body.strip():
        return None
    return f"{truth['header']}{indented(body)}\n{truth['after']}"


def fenced(text: str) -> list[str]:
    """The contents of code blocks between lines that begin with three backticks; the last may be open."""
    blocks: list[list[str]] = []
    inside = False
    for line in text.split("\n"):
        if line.lstrip(" \t").startswith("```"):
            inside = not inside
            if inside:
                blocks.append([])
        elif inside:
            blocks[-1].append(line)
    return ["\n".join(block) for block in blocks]


CODE: Final = re.compile(
    r"(?:async )?def |class |import |from [\w.]+ import |@\w|[A-Za-z_]\w*(?: ?: ?[^=]+)? ?= ?[^=]"
)
"""How a line in the first column begins that is code rather than prose."""
BESIDE: Final = re.compile(r"$|[ \t#)\]}]")
"""Lines that stand between code."""


def unfenced(text: str) -> str:
    """From the first line of code at the left edge to the last before something that is none."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if CODE.match(line)), len(lines))
    last = first
    while last < len(lines) and (CODE.match(lines[last]) or BESIDE.match(lines[last])):
        last += 1
    return "\n".join(lines[first:last])


def until_prose(text: str) -> str:
    """A function's body: up to the first line, but the very first, that begins at the left edge."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip()), 0)
    end = next((i for i in range(start + 1, len(lines)) if lines[i][:1].strip()), len(lines))
    return "\n".join(lines[start:end])


def indented(body: str) -> str:
    """A body whose first line, or all of it, has lost its indentation gets it back."""
    lines = [line for line in body.split("\n") if line.strip()]
    if lines[0][0] in " \t":
        return body
    rest = any(line[0] not in " \t" for line in lines[1:])
    return textwrap.indent(body, "    ") if rest else "    " + body.lstrip("\n")


# Grading


def verify(problem: Problem, completions: Sequence[str], tier: Choice, seconds: float) -> list[Verdict]:
    """Grade completions, several at once; a program that comes twice is run once."""
    truth = problem.truth
    programs = [program(completion, truth) for completion in completions]
    wanted = list(dict.fromkeys(source for source in programs if source is not None))
    chosen = sandbox.sandbox(tier, Limits(seconds))
    grade = replayed if "judge" in truth else compared
    outcomes = dict(zip(wanted, grade(truth, wanted, chosen), strict=True))
    return [verdict(source, outcomes.get(source or "", "syntax")) for source in programs]


def verdict(source: str | None, outcome: str) -> Verdict:
    scores = {name: float(name == outcome) for name in SCORES}
    scores["correct"] = float(outcome == "pass")
    scores["format"] = float(outcome != "syntax")
    return Verdict(scores, source, OUTCOMES[outcome])


def compared(truth: Mapping[str, Any], programs: Sequence[str], chosen: Sandbox) -> list[str]:
    """Outcomes by the values of the calls, compared here."""
    calls, conditions = tuple(truth["calls"]), truth["conditions"]

    def outcome(execution: Execution) -> str:
        if execution.outcome != "pass":
            return execution.outcome
        return "pass" if all(holds(text, execution.values) for text in conditions) else "wrong"

    return [outcome(e) for e in chosen.run_all([Job(source, calls) for source in programs])]


def replayed(truth: Mapping[str, Any], programs: Sequence[str], chosen: Sandbox) -> list[str]:
    """Outcomes by a test that is run on the values that the program gave for its calls."""
    arguments = recorded(json.dumps(truth, sort_keys=True), chosen)
    calls = tuple(f"{truth['entry']}(*{text})" for text in arguments)
    executions = chosen.run_all([Job(source, calls) for source in programs])
    asked = [i for i, execution in enumerate(executions) if execution.outcome == "pass"]
    replays = [
        Job(truth["judge"] + REPLAY, (f"_replay([{', '.join(arguments)}], {list(executions[i].values)!r})",))
        for i in asked
    ]
    outcomes: list[str] = [execution.outcome for execution in executions]
    for i, execution in zip(asked, chosen.run_all(replays), strict=True):
        if execution.outcome == "infra_error":
            outcomes[i] = "infra_error"
        elif execution.values != (True,):
            outcomes[i] = "wrong"
    return outcomes


@functools.cache
def recorded(truth: str, chosen: Sandbox) -> tuple[str, ...]:
    """The arguments of each call that a judge makes, as text of a tuple. Raises DataError where the tier
    cannot run it."""
    table = json.loads(truth)
    source = f"{table['header']}{table['reference']}\n{table['judge']}{RECORD}"
    execution = chosen.run(source, [f"_record({table['entry']})"])
    if execution.outcome != "pass":
        raise DataError(
            f"the test of {table['entry']} does not run in the tier {chosen.tier} "
            f"({execution.outcome} {execution.detail}); set the task's tier to bubblewrap"
        )
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
        return False
    return len(calls) == len(values)
"""

# Wrong answers for self-checks

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


def spoiled(source: str, entry: str) -> str:
    """A program whose function returns something slightly else each time."""
    return source + SPOIL.format(entry=entry)


def in_block(source: str) -> str:
    """Source as an answer in prose has it."""
    return f"```python\n{source.strip(chr(10))}\n```"
