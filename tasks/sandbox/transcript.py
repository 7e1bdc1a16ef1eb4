"""Read the output of a program's process: exactly the lines of `inside.py`, or an error."""

from __future__ import annotations

from typing import Final

from grpobench.tasks.sandbox.protocol import Execution, ExecutionOutcome
from grpobench.tasks.sandbox.wire import Malformed

FAILURES: Final[tuple[ExecutionOutcome, ...]] = ("error", "syntax", "oom", "output_limit")
"""Failures that `inside.py` may report."""


def read(answer: bytes, calls: int) -> Execution | None:
    """The execution that an answer describes; None if it stops early, for example because the process died.
    It must have exactly one value per call, in order, then the end. Extra, repeated or malformed lines, and
    anything after the end, are errors. Values that are not brief are read later. Never raises."""
    try:
        lines = answer.decode("ascii").split("\n")
        if lines.pop() or not lines:  # The last line is not whole.
            return None
        if lines.pop(0) != "ready":
            raise Malformed("it does not begin with ready")
        execution = _lines(lines, calls)
    except ValueError as error:
        return Execution("error", detail=f"malformed answer: {error}"[:200])
    return execution and checked(execution)


def checked(execution: Execution) -> Execution:
    """The execution, or an error if it is brief and its values are invalid."""
    try:
        if execution.brief:
            _ = execution.values
    except (ValueError, RecursionError) as error:
        return Execution("error", detail=f"malformed answer: {error}"[:200])
    return execution


def _lines(lines: list[str], calls: int) -> Execution | None:
    texts: list[str] = []
    for number, line in enumerate(lines):
        word, _, content = line.partition(" ")
        last = number == len(lines) - 1
        if word == "value" and len(texts) < calls:
            texts.append(content)
        elif line == "end" and last and len(texts) == calls:
            return Execution("pass", tuple(texts))
        elif word == "failed" and last:
            kind, _, detail = content.partition(" ")
            for failure in FAILURES:
                if kind == failure:
                    return Execution(failure, detail=detail[:200], returned=len(texts))
            raise Malformed("unknown failure")
        else:
            raise Malformed(f"line {number + 2} is out of place")
    return None
