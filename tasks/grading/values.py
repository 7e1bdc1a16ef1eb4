"""Read an answer as a value, a point, a list, a matrix or a relation, and compare two of one kind."""

# For a process that can be killed: `grading/numeric.py` compares single values.

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from grpobench.tasks.grading import numeric, reals
from grpobench.tasks.grading.expressions import Expression
from grpobench.tasks.grading.expressions import read as expression
from grpobench.tasks.grading.reals import shape, split

BRACE = "\\{"
CACHE_SIZE = 512
"""Answers that are kept parsed: a truth is compared with every completion of its group."""
APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])")
_RELATION = re.compile(r"<|>|=|\\(?:le|ge|ne)(?![A-Za-z])")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_TURNED = {">": "<", "\\ge": "\\le"}
_DECIMAL = re.compile(r"-?[0-9]*(?:\.([0-9]*))?")
Kind = Literal["one", "list", "point", "matrix", "relation"]


@dataclass(frozen=True)
class Value:
    """The content of an answer. A list is in any order. The `sign` is a point's brackets, a brace for a list
    in braces, the number of a matrix' columns, or the sign between a relation's two parts, of which the first
    is not the larger."""

    kind: Kind
    tree: Expression | None = None
    parts: tuple[Value, ...] = ()
    sign: str = ""


def same(truth_text: str, answer_text: str) -> bool | None:
    """Whether two cleaned texts have the same content; None if the truth cannot be read. An answer that
    cannot be read is not the same."""
    if reals.is_set(truth_text) or reals.is_set(answer_text):
        truth_set, answer_set = reals.read(truth_text), reals.read(answer_text)
        same_set = reals.same(truth_set, answer_set, numeric.order) if truth_set and answer_set else None
        if same_set is not None:
            return same_set
    truth = read(truth_text)
    if truth is None:
        return None
    if truth.kind == "one" and ("=" in answer_text or APPROXIMATELY.search(answer_text)):
        return _chain(truth, answer_text)
    answer = read(answer_text)
    return answer is not None and _alike(truth, answer)


@lru_cache(maxsize=CACHE_SIZE)
def read(text: str) -> Value | None:
    """The value in a cleaned text; None if it is none of these."""
    if matrix := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in matrix[2].split("\\\\")]
        if len({len(row) for row in rows}) > 1:
            return None
        return _collected("matrix", [cell for row in rows for cell in row], str(len(rows[0])))
    opening, items, closed = shape(text)
    if (opening, closed) == ("\\{", "\\}") or (not opening and len(items) > 1):
        return _collected("list", items, BRACE if opening else "")
    if opening in ("(", "[") and len(items) > 1:
        return _collected("point", items, opening + closed) if closed in (")", "]") else None
    if _PLUS_MINUS.search(text):
        both = [text.replace("\\pm", pm_sign).replace("\\mp", mp_sign) for pm_sign, mp_sign in ("+-", "-+")]
        return _collected("list", [alternative.lstrip("+") for alternative in both])
    return _relation(text) if _RELATION.search(text) else _single(text)


def _single(text: str) -> Value | None:
    tree = expression(text)
    return None if tree is None else Value("one", tree)


def _collected(
    kind: Literal["list", "point", "matrix"], items: Sequence[str], sign: str = ""
) -> Value | None:
    parts = [read(item.strip()) for item in items]
    read_parts = [part for part in parts if part is not None]
    if len(read_parts) < len(parts):
        return None
    if kind == "list":  # 1\pm 2, 5 is a list of three
        read_parts = [list_item for part in read_parts for list_item in _items(part)]
    return Value(kind, parts=tuple(read_parts), sign=sign)


def _relation(text: str) -> Value | None:
    sides, signs = split(text, _RELATION), _RELATION.findall(text)
    if sides is None or len(sides) != 2 or len(signs) != 1:
        return None
    left, right = map(_single, sides)
    if left is None or right is None:
        return None
    if signs[0] in _TURNED:
        left, right = right, left
    return Value("relation", parts=(left, right), sign=_TURNED.get(signs[0], signs[0]))


def _alike(first: Value, second: Value) -> bool:
    if "list" in (first.kind, second.kind):
        if first.sign == second.sign == BRACE:  # {1, 2, 2} is the set {1, 2}
            return _each_in(first, second) and _each_in(second, first)
        return _as_often(first, second)
    if (first.kind, first.sign) != (second.kind, second.sign):
        return False
    if first.tree is not None and second.tree is not None:
        return numeric.equal(first.tree, second.tree)
    if first.kind == "relation":
        sign = numeric.ratio(_difference(first), _difference(second))
        return sign == 1 or (sign == -1 and first.sign in ("=", "\\ne"))
    return len(first.parts) == len(second.parts) and all(map(_alike, first.parts, second.parts))


def _each_in(first: Value, second: Value) -> bool:
    return all(any(_alike(item, candidate) for candidate in _items(second)) for item in _items(first))


def _as_often(first: Value, second: Value) -> bool:
    """Whether both have the same items, each equally often."""
    unmatched = list(_items(second))
    for item in _items(first):
        match = next((i for i, candidate in enumerate(unmatched) if _alike(item, candidate)), None)
        if match is None:
            return False
        del unmatched[match]
    return not unmatched


def _items(value: Value) -> tuple[Value, ...]:
    return value.parts if value.kind == "list" else (value,)


def _difference(relation: Value) -> Expression:
    left, right = (part.tree for part in relation.parts)
    assert left is not None and right is not None  # A relation is made of single values.
    return Expression("+", (left, Expression("-", (right,))))


def _chain(truth: Value, answer: str) -> bool:
    """An answer such as ``2/\\sqrt2=\\sqrt2\\approx1.41``: all sides have the same value, the rounded one is
    near it, and the truth is one or the other."""
    exactly, *rounded = APPROXIMATELY.split(answer)
    sides = [expression(side.strip()) for side in exactly.split("=")]
    trees = [side for side in sides if side is not None]
    if truth.tree is None or len(trees) < len(sides) or len(rounded) > 1:
        return False
    if not all(numeric.equal(trees[0], tree) for tree in trees[1:]):
        return False
    if not rounded:
        return numeric.equal(truth.tree, trees[0])
    text = rounded[0].strip()
    digits, decimal = _DECIMAL.fullmatch(text), expression(text)
    if digits is None or decimal is None or not numeric.rounds_to(trees[0], decimal, len(digits[1] or "")):
        return False
    return numeric.equal(truth.tree, trees[0]) or numeric.equal(truth.tree, decimal)
