"""Decisions that take much computation, made in processes that can be killed.

Values of programs: the values are text that anyone in a sandbox may have written. Brief values are judged in
this process, longer ones in processes with limits on processor time and memory. So no value can block the
process that trains or evaluates.

Algebra: a truth that `grading/values.py` can read is decided there, by computing both sides with many digits;
otherwise math-verify decides. Its own alarm does not fire inside C code, fails in threads, and reports a
time-out as a plain "no".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Literal

from grpobench.tasks.grading.asserts import holds
from grpobench.tasks.sandbox import wire as sandbox_wire
from grpobench.tasks.sandbox.protocol import BRIEF
from grpobench.tasks.task import Outcome
from grpobench.tasks.workers.keeper import Ending
from grpobench.tasks.workers.pool import Pool

SECONDS: Final = 4.0
"""Processor time of one judgment. The longest values that a program may give take about a second."""
MEMORY: Final = 2**30

Judgment = tuple[str, str]
"""One of "pass", "wrong", "error", "output_limit", "infra_error"; and the values as source of a list, if
requested."""


@dataclass(frozen=True)
class Question:
    """Whether values satisfy the conditions (of `asserts.convert`); None asks for their source instead."""

    wire: tuple[str, ...]
    conditions: Sequence[str] | None


_pool = Pool(f"{__name__}:judged", SECONDS, MEMORY)


def judge(questions: Sequence[Question]) -> list[Judgment]:
    """A judgment of each. Values that cost too much to compare exceed the limit on output."""
    answers: dict[int, Judgment] = {}
    long: dict[int, list[Any]] = {}
    for i, question in enumerate(questions):
        argument = [list(question.wire), question.conditions and list(question.conditions)]
        if sum(map(len, question.wire)) <= BRIEF:
            answers[i] = judgment(argument)
        else:
            long[i] = argument
    for i, reply in zip(long, _pool.map(list(long.values())), strict=True):
        if reply.ending == "done":
            answers[i] = reply.value[0], reply.value[1]
        else:
            answers[i] = "infra_error" if reply.ending == "infra_error" else "output_limit", ""
    return [answers[i] for i in range(len(questions))]


def judged() -> Callable[[Any], Judgment]:
    """The function that the pool runs."""
    return judgment


def judgment(argument: Any) -> Judgment:
    texts, conditions = argument
    try:
        values = sandbox_wire.values(texts)
    except ValueError:
        return "error", ""
    if conditions is None:
        return "pass", source(list(values))
    return "pass" if all(holds(condition, values) for condition in conditions) else "wrong", ""


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


Comparison = Literal["equal", "different", "timeout", "crash", "infra_error"]

POOL = Pool("grpobench.tasks.grading.algebra:comparer")
"""3 seconds of CPU and 2 GB per question."""
OUTCOMES: Mapping[Comparison, Outcome] = {
    "equal": "graded",
    "different": "graded",
    "timeout": "timeout",
    "crash": "crash",
    "infra_error": "infra_error",
}
"""The comparison for each verdict."""
FAILURES: Mapping[Ending, Comparison] = {
    "raised": "crash",
    "timeout": "timeout",
    "crash": "crash",
    "infra_error": "infra_error",
}
USUAL = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2-1", "(x-1)(x+1)"),
    ("2\\sqrt{3}", "\\sqrt{12}"),
    ("(-\\infty,2]\\cup(3,\\infty)", "(-\\infty,2]\\cup[3,\\infty)"),
    ("\\{1,2\\}", "2, 1"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{bmatrix} 1 \\\\ 3 \\end{bmatrix}"),
    ("\\frac{\\pi}{3}+2\\sin x", "2i"),
)
"""Compared once before workers are forked, so that they start with the parser's tables filled."""


CACHE_SIZE = 256
"""Expressions that a worker keeps parsed: a truth is compared with every completion of its group."""


def ask_all(pairs: Sequence[tuple[str, str]], wall_seconds: float = 0.0) -> list[Comparison]:
    """Compare pairs of cleaned texts; the truth comes first in each, because the order matters. Repeated
    pairs are asked once. `timeout` and `crash` are caused by the answer. `infra_error` means that there was
    no grade."""
    asked = list(dict.fromkeys(pairs))
    replies = POOL.map(asked, wall_seconds=wall_seconds)
    found: dict[tuple[str, str], Comparison] = {}
    for pair, reply in zip(asked, replies, strict=True):
        said: Comparison = "equal" if reply.value else "different"
        found[pair] = FAILURES.get(reply.ending, said)
    return [found[pair] for pair in pairs]


def ask(truth: str, answer: str, wall_seconds: float = 0.0) -> Comparison:
    """`ask_all` of one pair."""
    return ask_all([(truth, answer)], wall_seconds)[0]


def comparer() -> Callable[[Sequence[str]], bool]:
    """The function that the pool's workers run. Imports mpmath and math-verify."""
    import logging

    from math_verify import parse, verify

    from grpobench.tasks.grading import values

    logging.disable(logging.CRITICAL)

    @lru_cache(maxsize=CACHE_SIZE)
    def read(text: str) -> tuple[Any, ...]:
        return tuple(parse(f"\\boxed{{{text}}}", parsing_timeout=None))

    def compare(pair: Sequence[str]) -> bool:
        said = values.same(*pair)
        return verified(pair) if said is None else said

    def verified(pair: Sequence[str]) -> bool:
        try:
            gold, given = (list(read(text)) for text in pair)
            same = bool(gold) and bool(given) and bool(verify(gold, given, timeout_seconds=None))
            return same and ("%" in "".join(pair) or _near(gold[0], given[0]))
        except MemoryError:
            raise
        except Exception:  # An expression that cannot be parsed or compared equals nothing.
            return False

    for pair in USUAL:
        values.same(*pair)
        verified(pair)
    return compare


def _near(one: Any, other: Any) -> bool:
    """Whether two numbers agree to five digits; True if one of the two is not a number. math-verify rounds
    differences to that many decimals, so that 1/2004! would equal 2/2004!."""
    from sympy import Expr

    if not all(isinstance(each, Expr) and not each.free_symbols for each in (one, other)):
        return True
    try:
        size = max(abs(each.evalf(20)) for each in (one, other))
        return bool(abs((one - other).evalf(20)) <= 1e-5 * size)
    except (TypeError, ValueError, AttributeError, ArithmeticError):  # for example infinity
        return True
