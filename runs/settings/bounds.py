"""What settings must fulfil: bounds that stand beside their field, and rules over several fields."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """What must hold, and the message for where it does not."""

    holds: bool
    message: str


def unmet(rules: Iterable[Rule]) -> list[str]:
    """The messages of the rules that do not hold."""
    return [rule.message for rule in rules if not rule.holds]


@dataclass(frozen=True)
class Bound:
    """What a field's value must be; stands beside its type: ``Annotated[int, at_least(1)]``."""

    holds: Callable[[Any], bool]
    """Written so that NaN does not hold."""
    wanted: str

    def rule(self, name: str, value: Any) -> Rule:
        return Rule(self.holds(value), f"{name}: must be {self.wanted}, not {value}")


FINITE = Bound(lambda value: value != math.inf, "finite")
"""Beside a lower bound of a number that may not be inf."""


def at_least(low: float) -> Bound:
    return Bound(lambda value: value >= low, f"at least {low}")


def above(low: float, below: float | None = None) -> Bound:
    """Greater than `low`, and where it is given smaller than `below`, which goes without saying."""
    return Bound(lambda value: value > low and (below is None or value < below), f"above {low}")


def interval(text: str) -> Bound:
    """An interval in mathematical notation: ``(0, 10]`` holds 10 and not 0."""
    low, high = map(float, text[1:-1].split(","))
    open_below, open_above = text[0] == "(", text[-1] == ")"

    def holds(value: float) -> bool:
        above_low = value > low if open_below else value >= low
        return above_low and (value < high if open_above else value <= high)

    return Bound(holds, f"in {text}")


def each(bound: Bound) -> Bound:
    """The bound of every entry of a list."""
    return Bound(lambda values: all(map(bound.holds, values)), bound.wanted)


@functools.cache
def bounds(cls: Any) -> dict[str, tuple[Bound, ...]]:
    """What stands beside each field of a dataclass, in the order of the fields."""
    found = typing.get_type_hints(cls, include_extras=True)
    beside = {f.name: getattr(found[f.name], "__metadata__", ()) for f in fields(cls)}
    return {name: tuple(one for one in extras if isinstance(one, Bound)) for name, extras in beside.items()}


def demand(settings: object, *rules: Rule) -> None:
    """Raise one ValueError with every message of the dataclass's bounds and of `rules` that does not hold, in
    the order of the fields. A message starts with its field: "field: must be ..."."""
    cls: Any = type(settings)  # A dataclass; its type hints cannot say so.
    beside = bounds(cls)
    own = [bound.rule(name, getattr(settings, name)) for name, found in beside.items() for bound in found]
    order = list(beside)
    if messages := unmet([*own, *rules]):
        raise ValueError(*sorted(messages, key=lambda message: order.index(message.partition(":")[0])))
