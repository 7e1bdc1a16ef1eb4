"""Read values that came out of a sandbox: bytes that anyone inside may have written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final

DEEPEST: Final = 32
"""Maximum levels of containers in a value."""
LARGEST: Final = 1_000_000
"""Maximum characters of all values of a program together."""
MOST_KEYS: Final = 3_000
"""Maximum elements of a set or dictionary: with equal hashes, building one takes the square of their
number."""
MOST_WORK: Final = 3_000_000
"""Maximum steps of comparing elements with equal hashes while values are built: a fraction of a second."""
HIGHEST: Final = 1000
"""Maximum exponent of a decimal, and maximum digits of a decimal and of a fraction's parts."""


class Malformed(ValueError):
    """These are not the bytes that an honest run writes."""


class ComparisonBudget:
    """How much comparing elements with equal hashes may still cost."""

    def __init__(self, left: int = MOST_WORK) -> None:
        self.left = left

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise Malformed("too much work to compare")


def values(texts: Sequence[str]) -> tuple[Any, ...]:
    """The values of the texts. Raises ValueError for an invalid one, or one that takes too much work."""
    work = ComparisonBudget()
    try:
        return tuple(decode(json.loads(text), work) for text in texts)
    except RecursionError:
        raise Malformed("too deep") from None


def decode(node: Any, work: ComparisonBudget, depth: int = 0) -> Any:
    """The value of a parsed JSON node. Raises ValueError for an invalid one."""
    if node is None or node is True or node is False:
        return node
    if type(node) is str:
        return bytes.fromhex(node).decode("utf-8", "surrogatepass")
    if type(node) is not list or not node or type(node[0]) is not str:
        raise Malformed("not a value")
    tag, *content = node
    if tag in SINGLE and all(type(part) is str for part in content):
        return _single(tag, content)
    if tag not in MANY or len(content) != 1 or type(content[0]) is not list or depth == DEEPEST:
        raise Malformed("not a value")
    try:
        return _many(tag, content[0], work, depth + 1)
    except TypeError:
        raise Malformed("an element cannot be hashed") from None


def _single(tag: str, content: list[str]) -> Any:
    if len(content) != (2 if tag in "cqm" else 1):
        raise Malformed("not a value")
    try:
        return SINGLE[tag](*content)
    except (OverflowError, ZeroDivisionError):
        raise Malformed("a number too large") from None


def _many(tag: str, content: list[Any], work: ComparisonBudget, depth: int) -> Any:
    if tag in "szd" and len(content) > MOST_KEYS:
        raise Malformed("too many elements in a set or dictionary")
    if tag == "d":
        if any(type(pair) is not list or len(pair) != 2 for pair in content):
            raise Malformed("not a pair")
        keys = [decode(key, work, depth) for key, _ in content]
        charge(keys, work)
        value: Any = dict(zip(keys, (decode(item, work, depth) for _, item in content), strict=True))
    else:
        items = [decode(item, work, depth) for item in content]
        if tag in "sz":
            charge(items, work)
        value = MANY[tag](items)
    if len(value) != len(content):
        raise Malformed("the same element twice")
    return value


def charge(elements: Sequence[Any], work: ComparisonBudget) -> None:
    """Count the cost of making a set of these elements: those with equal hashes are compared, each with each.
    Raises TypeError for an element that cannot be hashed."""
    groups: dict[int, list[Any]] = {}
    for element in elements:
        groups.setdefault(hash(element), []).append(element)
    for group in groups.values():
        if len(group) > 1:
            work.spend(len(group) ** 2 * max(weight(element, work) for element in group))


def weight(value: Any, work: ComparisonBudget) -> int:
    """Maximum steps of comparing a value with an equal one."""
    work.spend(1)
    if type(value) in (tuple, list):
        return 1 + sum(weight(item, work) for item in value)
    if type(value) in (set, frozenset):
        groups: dict[int, list[int]] = {}
        for item in value:
            groups.setdefault(hash(item), []).append(weight(item, work))
        return 1 + sum(len(group) ** 2 * max(group) for group in groups.values())
    return 1 + (len(value) // 64 if type(value) in (str, bytes) else 0)


NUMBER: Final = re.compile(r"(-?)([0-9a-f]{1,1001})")
EXPONENT: Final = re.compile(r"-?[0-9]{1,4}")


def fraction(above: str, below: str) -> Fraction:
    if not (NUMBER.fullmatch(above) and NUMBER.fullmatch(below)):
        raise Malformed("no fraction")
    return Fraction(int(above, 16), int(below, 16))


def decimal(digits: str, exponent: str) -> Decimal:
    if not (NUMBER.fullmatch(digits) and EXPONENT.fullmatch(exponent) and abs(int(exponent)) <= HIGHEST):
        raise Malformed("no decimal")
    try:
        return Decimal(f"{digits}E{exponent}")
    except InvalidOperation:
        raise Malformed("no decimal") from None


SINGLE: Final[Mapping[str, Callable[..., Any]]] = {
    "i": lambda text: int(text, 16),
    "f": float.fromhex,
    "r": float,
    "c": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "b": bytes.fromhex,
    "q": fraction,
    "m": decimal,
}
MANY: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "z": frozenset,
    "d": dict,
}
