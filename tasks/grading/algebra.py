"""Decide by algebra whether an answer equals the truth, in processes that can be killed."""

# `grading/values.py` decides on truths that it can read, by computing both sides with many digits, and
# math-verify on others. math-verify's own alarm does not fire inside C code, fails in threads, and reports a
# time-out as a plain "no".

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from grpobench.tasks.task import Outcome
from grpobench.tasks.workers.keeper import Ending
from grpobench.tasks.workers.pool import Pool, Reply

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
    unique_pairs = list(dict.fromkeys(pairs))
    replies = POOL.map(unique_pairs, wall_seconds=wall_seconds)
    comparisons = dict(zip(unique_pairs, map(compared, replies), strict=True))
    return [comparisons[pair] for pair in pairs]


def compared(reply: Reply) -> Comparison:
    """The comparison that a worker's reply gives."""
    return FAILURES.get(reply.ending, "equal" if reply.value else "different")


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
        same = values.same(*pair)
        return verified(pair) if same is None else same

    def verified(pair: Sequence[str]) -> bool:
        try:
            gold, answer = (list(read(text)) for text in pair)
            same = bool(gold) and bool(answer) and bool(verify(gold, answer, timeout_seconds=None))
            return same and ("%" in "".join(pair) or _near(gold[0], answer[0]))
        except MemoryError:
            raise
        except Exception:  # An expression that cannot be parsed or compared equals nothing.
            return False

    for pair in USUAL:
        values.same(*pair)
        verified(pair)
    return compare


def _near(first: Any, second: Any) -> bool:
    """Whether two numbers agree to five digits; True if one of the two is not a number. math-verify rounds
    differences to that many decimals, so that 1/2004! would equal 2/2004!."""
    from sympy import Expr

    if not all(isinstance(number, Expr) and not number.free_symbols for number in (first, second)):
        return True
    try:
        size = max(abs(number.evalf(20)) for number in (first, second))
        return bool(abs((first - second).evalf(20)) <= 1e-5 * size)
    except (TypeError, ValueError, AttributeError, ArithmeticError):  # for example infinity
        return True
