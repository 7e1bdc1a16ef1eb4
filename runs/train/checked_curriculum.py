"""A curriculum whose return values are checked."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

from grpobench.algorithms.algorithm import State
from grpobench.algorithms.curriculum import (
    Curriculum,
    Informed,
    Shuffled,
    ValuedShuffle,
    expected_value,
    is_cumulative,
)
from grpobench.algorithms.modifiers import Refilled
from grpobench.algorithms.returned import ReturnError, described, line_of
from grpobench.runs.settings import plugins

METHODS = ("draw", "accept", "state", "restore")


class CheckedCurriculum:
    """Wraps a curriculum, which chooses among so many problems. An index that no problem has raises
    ReturnError with the name of its class: Python would take −1 for the last problem."""

    def __init__(self, inner: Curriculum, problems: int) -> None:
        self.inner, self.problems = inner, problems
        if lacks := [name for name in ("attempts", *METHODS) if not hasattr(inner, name)]:
            fault = f"{plugins.reference(type(inner))} is no curriculum: it lacks {', '.join(lacks)}"
            raise ReturnError(f"{line_of(type(inner))} {fault}".lstrip())
        self._state = ""
        """The state as text, once it was found to be JSON."""

    @property
    def attempts(self) -> int:
        attempts: Any = self.inner.attempts
        if not isinstance(attempts, int) or attempts < 1:
            fault = f"{plugins.reference(self._whose)}.attempts is {attempts!r:.80}"
            expected = "a whole number from 1 (as a @property or an attribute)"
            raise ReturnError(f"{line_of(self._whose)} {fault}, expected {expected}".lstrip())
        return attempts

    @property
    def cumulative(self) -> bool:
        return is_cumulative(self.inner)

    def inform(self, state: State) -> None:
        if isinstance(self.inner, Informed):
            self.inner.inform(state)

    def foreseen(self, step: int) -> list[int] | None:
        """What the first draw of a later step will be; None if that depends on what comes before."""
        plain = self.inner.inner if isinstance(self.inner, Refilled) else self.inner
        # Exact types: a subclass may draw by what it has learned.
        return plain.draw(step, 0) if type(plain) in (Shuffled, ValuedShuffle) else None

    def draw(self, step: int, attempt: int) -> list[int]:
        drawn: Any = self.inner.draw(step, attempt)
        if isinstance(drawn, str | bytes) or not hasattr(drawn, "__iter__"):  # a text is iterable
            raise self._refusal("draw", step, described(drawn), "a list of indices")
        indices = [self._index(drawn_index, step) for drawn_index in drawn]
        # A refill may draw nothing: the step then trains on what it has.
        if not indices and not attempt:
            raise self._refusal("draw", step, "no index", "at least one, or the step has nothing to train on")
        return indices

    def _index(self, value: Any, step: int) -> int:
        """The index of a problem. A bool is refused: it comes from a mask of problems."""
        try:
            # `operator.index` takes the integers of NumPy and torch, and no float.
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
        # By equality, since NumPy's booleans are no `bool`.
        if count != len(index) or any(decision not in (True, False) for decision in accepted):
            expected = f"True or False for each of {len(index)} problems"
            raise self._refusal("accept", step, described(accepted), expected)
        return [bool(decision) for decision in accepted]

    def expected(self, problem: int) -> float:
        """The value of a problem that the curriculum knows; NaN without one."""
        value: Any = expected_value(self.inner, problem)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refusal("expected", 0, described(value), "a number, NaN where there is none")
        return float(value)

    def state(self) -> Any:
        state = self.inner.state()
        if not self._state:
            try:
                self._state = json.dumps(state)
            except (TypeError, ValueError) as error:
                raise self._refusal("state", 0, described(state), f"what JSON can hold ({error})") from None
        return state

    def restore(self, state: Any) -> None:
        self.inner.restore(state)

    def _refusal(self, method: str, step: int, returned: str, expected: str) -> ReturnError:
        when = f" at step {step}" if step else ""
        fault = f"{plugins.reference(self._whose)}.{method} returned {returned}{when}, expected {expected}"
        return ReturnError(f"{line_of(getattr(self._whose, method))} {fault}".lstrip())

    @property
    def _whose(self) -> type:
        """The class of the curriculum itself."""
        return type(self.inner.inner if isinstance(self.inner, Refilled) else self.inner)
