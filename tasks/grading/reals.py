"""Sets of real numbers: parse intervals, inequalities and their unions, and compare them as sets."""

# `x>3`, `3<x`, `(3,\infty)` and `\{x : x>3\}` are one set. Only solved sets are parsed: the variable is
# alone, the bounds are constants. `2x>6` is not solved. A comma between two inequalities is rejected, because
# it means "and" to some and "or" to others.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Literal

from grpobench.tasks.grading.expressions import Expression, Unreadable
from grpobench.tasks.grading.expressions import read as expression

_OPENING, _CLOSING = "([{", ")]}"
COMMA = re.compile(",")


def split(text: str, separator: re.Pattern[str] = COMMA) -> list[str] | None:
    """The text cut at separators outside of brackets, the pieces stripped; None if a bracket closes that was
    not opened in it. A half-open interval's brackets are a pair."""
    spans = [match.span() for match in separator.finditer(text)]
    depth, start, pieces, ahead = 0, 0, [], iter([*spans, (len(text), len(text))])
    begin, end = next(ahead)
    for i, sign in enumerate(text):
        while begin < i:  # inside of brackets
            begin, end = next(ahead)
        if i == begin and depth == 0 and i >= start:
            pieces.append(text[start:begin].strip())
            start = end
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth < 0:
            return None
    return [*pieces, text[start:].strip()]


def shape(text: str) -> tuple[str, list[str], str]:
    """(opening bracket, items between commas outside of inner brackets, closing bracket) if brackets hold the
    whole text; else empty brackets."""
    opening = next((sign for sign in ("(", "\\{", "[") if text.startswith(sign)), "")
    closed = next((sign for sign in (")", "\\}", "]") if text.endswith(sign)), "")
    if opening and closed and len(text) > len(opening) + len(closed):
        items = split(text[len(opening) : -len(closed)])
        if items is not None:
            return opening, items, closed
    return "", split(text) or [text], ""


Op = Literal["interval", "or", "and", "without"]
Order = Callable[[Expression, Expression], int | None]
"""Below 0, 0 or above 0 if the first constant is smaller than, equal to or larger than the second; None if it
cannot tell."""


def _connective(words: str, commands: str) -> re.Pattern[str]:
    return re.compile(
        rf"\\text\{{\s*(?:{words})\s*\}}|(?<![A-Za-z\\])(?:{words})(?![A-Za-z])|\\(?:{commands})(?![A-Za-z])"
    )


_JOINED: Mapping[Op, re.Pattern[str]] = {
    "or": _connective("or", "cup|lor|vee"),
    "and": _connective("and", "cap|land|wedge"),
    "without": re.compile(r"\\(?:setminus|smallsetminus|backslash)(?![A-Za-z])"),
}
_SIGN = re.compile(r"<|>|=|\\(?:le|ge|ne)(?![A-Za-z])")
_MEMBER = re.compile(r"([A-Za-z](?:_\w)?)\s*\\in(?![A-Za-z])(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z](?:_\w)?|\\(?:alpha|beta|gamma|theta|lambda|mu|phi)")
_BUILDER = re.compile(r"\\\{(.+?)(?::|\\mid(?![A-Za-z])|\\colon(?![A-Za-z])|\|)(.+)\\\}", re.DOTALL)
_ALL = re.compile(
    r"\\mathbb\{?R\}?|\\(?:R|Reals|reals)|(?:\\text\{)?all real(?: number)?s?\}?", re.IGNORECASE
)
_SIGNS_OF_SETS = re.compile(
    r"[<>]|\\(?:le|ge|ne|in|cup|cap|setminus|smallsetminus|backslash|infty|mathbb|R|Reals)(?![A-Za-z])"
    r"|all real"
)


@dataclass(frozen=True)
class Region:
    """An interval, or regions combined by `op`. A bound of None is infinite."""

    op: Op = "interval"
    parts: tuple[Region, ...] = ()
    low: Expression | None = None
    high: Expression | None = None
    low_belongs: bool = False
    high_belongs: bool = False

    def bounds(self) -> list[Expression]:
        """Every finite bound in it."""
        ends = [bound for bound in (self.low, self.high) if bound is not None]
        return ends + [bound for part in self.parts for bound in part.bounds()]


LINE = Region()
EMPTY = Region("without", (LINE, LINE))


def is_set(text: str) -> bool:
    """Whether a cleaned text has a sign that only sets of numbers have; ``(1,2)`` may also be a point."""
    return _SIGNS_OF_SETS.search(text) is not None


@dataclass(frozen=True)
class Reading:
    """A region and its variable in the text; no variable for an interval alone."""

    region: Region
    name: str = ""


def read(text: str) -> Reading | None:
    """The set in a cleaned text; None if the grammar rejects it or it has several variables."""
    names: set[str] = set()
    try:
        region = _region(text.strip(), names)
    except Unreadable:
        return None
    return None if len(names) > 1 else Reading(region, "".join(names))


def same(first: Reading, second: Reading, order: Order) -> bool | None:
    """Whether both are the same set of the same variable; None if `order` cannot tell. The bounds of both cut
    the line into points and gaps, and a set is the points and gaps that belong to it."""
    if first.name and second.name and first.name != second.name:
        return False
    line: list[Expression] = []
    for bound in first.region.bounds() + second.region.bounds():
        slot = _position(bound, line, order)
        if slot is None:
            return None
        if not slot[1]:
            line.insert(slot[0], bound)
    members = [_members(reading.region, line, order) for reading in (first, second)]
    return None not in members and members[0] == members[1]


def _position(bound: Expression, line: list[Expression], order: Order) -> tuple[int, bool] | None:
    """The position of a bound among sorted bounds, and whether it is already there."""
    for i, other in enumerate(line):
        sign = order(bound, other)
        if sign is None:
            return None
        if sign <= 0:
            return i, sign == 0
    return len(line), False


def _members(region: Region, line: list[Expression], order: Order) -> frozenset[int] | None:
    """The cells of a region: the gap below bound i is cell 2i, the bound itself 2i + 1, the last gap 2n. None
    for an interval with its bounds in the wrong order."""
    if region.op == "interval":
        low, high = 0, 2 * len(line)
        if region.low is not None:
            low = 2 * (_position(region.low, line, order) or (0, False))[0] + 2 - region.low_belongs
        if region.high is not None:
            high = 2 * (_position(region.high, line, order) or (0, False))[0] + region.high_belongs
        return frozenset(range(low, high + 1)) if low <= high else None
    parts = [_members(part, line, order) for part in region.parts]
    part_members = [part for part in parts if part is not None]
    if len(part_members) < len(parts):
        return None
    if region.op == "or":
        return frozenset().union(*part_members)
    if region.op == "and":
        return reduce(frozenset.intersection, part_members)
    return part_members[0].difference(*part_members[1:])


def _region(text: str, names: set[str]) -> Region:
    for op, separator in _JOINED.items():
        pieces = split(text, separator)
        if pieces is None:
            raise Unreadable(text)
        if len(pieces) > 1:
            return Region(op, tuple(_region(piece, names) for piece in pieces))
    if builder := _BUILDER.fullmatch(text):
        head = _MEMBER.fullmatch(builder[1].strip())
        name = head[1] if head else builder[1].strip()
        if not _NAME.fullmatch(name) or (head and not _ALL.fullmatch(head[2].strip())):
            raise Unreadable(text)
        names.add(name)
        return _region(builder[2].strip(), names)
    if member := _MEMBER.fullmatch(text):
        names.add(member[1])
        return _plain(member[2].strip())
    return _inequality(text, names) if _SIGN.search(text) else _plain(text)


def _plain(text: str) -> Region:
    """A set without a variable."""
    if _ALL.fullmatch(text):
        return LINE
    if text == "\\emptyset":
        return EMPTY
    opening, items, closed = shape(text)
    if (opening, closed) == ("\\{", "\\}"):
        return Region("or", tuple(_point(item) for item in items))
    if opening not in ("(", "[") or closed not in (")", "]") or len(items) != 2:
        raise Unreadable(text)
    low, high = _bound(items[0], -1), _bound(items[1], 1)
    if (low is None and opening == "[") or (high is None and closed == "]"):
        raise Unreadable(text)
    return Region("interval", (), low, high, opening == "[", closed == "]")


def _point(text: str) -> Region:
    value = _bound(text, 0)
    return Region("interval", (), value, value, True, True)


def _bound(text: str, side: int) -> Expression | None:
    """A constant, or None for infinity on that side."""
    tree = expression(text)
    if tree is None or tree.names:
        raise Unreadable(text)
    infinite = [node for node in tree.walk() if node.kind == "constant" and node.name == "infinity"]
    if not infinite:
        return tree
    sign = {"constant": 1, "-": -1}.get(tree.kind, 0)
    if sign != side or len(list(tree.walk())) > 2:
        raise Unreadable(text)
    return None


def _inequality(text: str, names: set[str]) -> Region:
    """``a<x\\le b`` and similar: one variable, alone on its side, and constants in one order."""
    signs = _SIGN.findall(text)
    sides = split(text, _SIGN)
    if sides is None or len(sides) != len(signs) + 1 or not 2 <= len(sides) <= 3:
        raise Unreadable(text)
    variable_sides = [i for i, side in enumerate(sides) if _NAME.fullmatch(side) and side not in ("e", "i")]
    if len(variable_sides) != 1 or ({"<", "\\le"} & {*signs} and {">", "\\ge"} & {*signs}):
        raise Unreadable(text)
    if len(sides) == 3 and (variable_sides != [1] or {"=", "\\ne"} & {*signs}):
        raise Unreadable(text)
    names.add(sides[variable_sides[0]])
    parts = []
    for i, (left, right) in enumerate(pairwise(sides)):
        sign = signs[i]
        if i < variable_sides[0]:  # The variable is on the right: swap the sides.
            left, right = right, left
            sign = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(sign, sign)
        parts.append(_half(sign, right))
    return parts[0] if len(parts) == 1 else Region("and", tuple(parts))


def _half(sign: str, bound: str) -> Region:
    """The numbers x with ``x sign bound``."""
    if sign in ("<", "\\le"):
        return Region("interval", (), None, _bound(bound, 1), False, sign == "\\le")
    if sign in (">", "\\ge"):
        return Region("interval", (), _bound(bound, -1), None, sign == "\\ge", False)
    return _point(bound) if sign == "=" else Region("without", (LINE, _point(bound)))
