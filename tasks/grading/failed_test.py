"""The first test that a program failed, as a line of text for people."""

from __future__ import annotations

import itertools
import re
import reprlib
from collections.abc import Sequence
from typing import Any, Final

from grpobench.tasks.sandbox.protocol import Execution

LONGEST: Final = 120
"""Characters of a test, and of what came of it."""
ADDRESS: Final = re.compile(r"\bat 0x[0-9a-fA-F]+")


def failed_test(tests: Sequence[str], index: int | None, ending: str) -> str:
    """``test 2 of 3: f(4) == 7, got 6``. `index` is None where the tier does not know at which test a program
    stopped."""
    if index is None:
        return f"one of {len(tests)} tests: {ending}"
    return f"test {index + 1} of {len(tests)}: {shortened(tests[index])}, {ending}"


def values_got(values: Sequence[Any]) -> str:
    """The values of a test's calls, with sets in the order of their texts: the same in every process."""
    return f"got {shortened(', '.join(map(SHORT.repr, values)))}"


def stopped(execution: Execution) -> str:
    """How an execution without values ended, without what differs between equal ones: seconds, addresses."""
    if execution.outcome != "error" or not execution.detail:
        return execution.outcome
    return f"error: {shortened(ADDRESS.sub('at 0x…', execution.detail))}"


def shortened(text: str) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


class ShortRepr(reprlib.Repr):
    """`repr` of plain values at a bounded cost, with sets in the order of their texts."""

    def __init__(self) -> None:
        super().__init__()
        for size in ("string", "other", "long", "list", "tuple", "dict"):
            setattr(self, f"max{size}", LONGEST)

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python writes no number of thousands of digits.
            return f"a number of {x.bit_length()} bits"

    def repr_set(self, x: set[Any], level: int) -> str:
        return f"{{{self._sorted(x, level)}}}" if x else "set()"

    def repr_frozenset(self, x: frozenset[Any], level: int) -> str:
        return f"frozenset({{{self._sorted(x, level)}}})" if x else "frozenset()"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        # The base class sorts the keys, which a program can make costly.
        if level <= 0 and x:
            return "{...}"
        pairs = itertools.islice(x.items(), self.maxdict)
        return f"{{{', '.join(': '.join(self.repr1(part, level - 1) for part in pair) for pair in pairs)}}}"

    def _sorted(self, elements: set[Any] | frozenset[Any], level: int) -> str:
        return ", ".join(sorted(self.repr1(element, level - 1) for element in elements))


SHORT: Final = ShortRepr()
