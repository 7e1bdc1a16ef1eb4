"""A curriculum whose return values are checked."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from grpobench.algorithms.curriculum import Curriculum
from grpobench.algorithms.modifiers import Refilled
from grpobench.algorithms.returned import ReturnError, line_of
from grpobench.runs.settings import plugins

METHODS = ("draw", "accept", "state", "restore")


class Checked:
    """Wraps a curriculum, which chooses among so many problems. An index that no problem has raises
    ReturnError with the name of its class: Python would take −1 for the last problem."""

    def __init__(self, inner: Curriculum, problems: int) -> None:
        self.inner, self.problems = inner, problems
        if lacks := [name for name in ("attempts", *METHODS) if not hasattr(inner, name)]:
            raise ReturnError(
                f"{plugins.reference(type(inner))} is no curriculum: it lacks {', '.join(lacks)}"
            )

    @property
    def attempts(self) -> int:
        return self.inner.attempts

    def draw(self, step: int, attempt: int) -> list[int]:
        drawn: Any = self.inner.draw(step, attempt)
        if isinstance(drawn, str | bytes) or not hasattr(drawn, "__iter__"):
            raise self._refusal("draw", step, f"{drawn!r:.80}", "a list of indices")
        return [self._index(one, step) for one in drawn]

    def _index(self, value: Any, step: int) -> int:
        """The index of a problem. A bool is refused: it comes from a mask of problems."""
        try:
            index = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            index = -1
        if not 0 <= index < self.problems:
            expected = f"whole numbers from 0 to {self.problems - 1}, one for each problem"
            raise self._refusal("draw", step, f"the index {value!r:.80}", expected)
        return index

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        accepted: Any = self.inner.accept(step, index, reward)
        count = len(accepted) if hasattr(accepted, "__len__") else -1
        if count != len(index) or any(one not in (True, False) for one in accepted):
            expected = f"True or False for each of {len(index)} problems"
            raise self._refusal("accept", step, f"{accepted!r:.80}", expected)
        return [bool(one) for one in accepted]

    def state(self) -> Any:
        return self.inner.state()

    def restore(self, state: Any) -> None:
        self.inner.restore(state)

    def _refusal(self, method: str, step: int, returned: str, expected: str) -> ReturnError:
        plain = self.inner.inner if isinstance(self.inner, Refilled) else self.inner
        what = f"{plugins.reference(type(plain))}.{method} returned {returned} at step {step}"
        return ReturnError(f"{line_of(getattr(plain, method))} {what}, expected {expected}".lstrip())
