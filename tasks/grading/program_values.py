"""Judge the values that programs return, in processes that can be killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from grpobench.tasks.grading.asserts import holds, restored
from grpobench.tasks.grading.failed_test import failed_test, values_got
from grpobench.tasks.sandbox import wire as sandbox_wire
from grpobench.tasks.sandbox.protocol import BRIEF
from grpobench.tasks.workers.pool import Pool

SECONDS: Final = 4.0
"""Processor time of one judgment. The longest values that a program may give take about a second."""


MEMORY: Final = 2**30


Judgment = tuple[str, str]
"""One of "pass", "wrong", "error", "output_limit", "infra_error"; and the values as source of a list, if
requested, or else the first failed test."""


@dataclass(frozen=True)
class ValueConditions:
    """Whether the values of calls satisfy the conditions (of `asserts.convert`); None asks for their source
    instead."""

    wire: tuple[str, ...]
    conditions: Sequence[str] | None
    calls: Sequence[str]


_pool = Pool(f"{__name__}:judged", SECONDS, MEMORY)


def judge(questions: Sequence[ValueConditions]) -> list[Judgment]:
    """A judgment of each. Values that cost too much to compare exceed the limit on output.

    Anyone in a sandbox may have written the values. Brief ones are judged in this process, longer ones in
    processes with limits on processor time and memory, so no value can block the process that trains or
    evaluates."""
    answers: dict[int, Judgment] = {}
    long: dict[int, list[Any]] = {}
    for i, question in enumerate(questions):
        conditions = question.conditions and list(question.conditions)
        argument = [list(question.wire), conditions, list(question.calls)]
        if sum(map(len, question.wire)) <= BRIEF:
            answers[i] = judgment(argument)
        else:
            long[i] = argument
    for i, reply in zip(long, _pool.map(list(long.values())), strict=True):
        if reply.ending == "done":
            answers[i] = reply.value[0], reply.value[1]
        elif reply.ending == "infra_error":
            answers[i] = "infra_error", ""
        else:
            tests = questions[i].conditions or questions[i].calls
            answers[i] = "output_limit", failed_test(tests, None, "values that cost too much to compare")
    return [answers[i] for i in range(len(questions))]


def judged() -> Callable[[Any], Judgment]:
    """The function that the pool runs."""
    return judgment


def judgment(argument: Any) -> Judgment:
    texts, conditions, calls = argument
    try:
        values = sandbox_wire.values(texts)
    except ValueError:
        return "error", failed_test(conditions or calls, None, "values that cannot be read")
    if conditions is None:
        return "pass", source(list(values))
    for index, condition in enumerate(conditions):
        if not holds(condition, values):
            tests = [restored(other, calls) for other in conditions]
            ending = values_got([values[number] for number in tests[index][1]])
            return "wrong", failed_test([test for test, _ in tests], index, ending)
    return "pass", ""


def source(value: Any) -> str:
    """A plain value as Python source, in which `nan` and `inf` are names. Integers are hexadecimal, because
    Python refuses to write long ones as decimals."""
    if type(value) is int:
        return hex(value)
    if type(value) is Fraction:
        parts = hex(value.numerator), hex(value.denominator)
        return f"__import__('fractions').Fraction({', '.join(parts)})"
    if type(value) is Decimal:
        return f"__import__('decimal').Decimal({str(value)!r})"
    if type(value) is dict:
        return "{" + ", ".join(f"{source(key)}: {source(item)}" for key, item in value.items()) + "}"
    if type(value) not in BRACKETS:
        return repr(value)
    before, behind = BRACKETS[type(value)]
    return before + "".join(f"{source(item)}, " for item in value) + behind


BRACKETS: Final[Mapping[type, tuple[str, str]]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{*[", "]}"),
    frozenset: ("frozenset([", "])"),
}
