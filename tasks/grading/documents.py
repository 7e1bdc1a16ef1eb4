"""JSON documents in completions: find one, read it strictly, compare it with another value by value."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import jsonschema.protocols

TAIL: Final = 16_384
"""The document is searched in this many characters at the end of a completion."""
DEEPEST: Final = 16
"""Most levels of objects and arrays."""
DIGITS: Final = 40
"""Most characters of a number."""
EXACT: Final = 2**53
"""Whole numbers below this one are exact as floats too."""
START: Final = re.compile(r'\{(?=\s*+["}])')
PART: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|["{}\[\]]', re.DOTALL)
"""Inside a document: a string, a quotation mark that no other one closes, or a bracket."""

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value."""


def find(completion: str) -> dict[str, Any] | None:
    """The last JSON object in a completion, with any text around it; None if there is none. An object inside
    another one, or inside one that breaks off, does not count."""
    text = completion[-TAIL:]
    for span in reversed([*spans(text)]):
        if (document := read(span)) is not None:
            return document
    return None


def spans(text: str) -> Iterator[str]:
    """Stretches from an opening brace that begins an object to its counterpart, outside of each other, up to
    an object that has no end or nests too deeply."""
    end = 0
    while (start := START.search(text, end)) and (end := closing(text, start.start())):
        yield text[start.start() : end]


def closing(text: str, start: int) -> int:
    """Where the object that begins at `start` ends; 0 if it does not, or nests too deeply. Braces inside
    strings do not count."""
    depth = 0
    for part in PART.finditer(text, start):
        if part[0] in "{[":
            depth += 1
        elif part[0] in "}]":
            depth -= 1
        if not depth:
            return part.end()
        if depth > DEEPEST or part[0] == '"':
            return 0
    return 0


def read(text: str) -> dict[str, Any] | None:
    """The object that a text is. None for anything else, and for what Python's reader accepts and this suite
    does not: NaN and infinities, a key twice in one object, long numbers. A whole number is an `int` however
    it is written (``2``, ``2.0``, ``2e0``), because JSON has only one kind of number."""
    try:
        document = json.loads(
            text,
            parse_int=lambda digits: int(short(digits)),
            parse_float=lambda digits: as_integer(float(short(digits))),
            parse_constant=short,
            object_pairs_hook=unique,
        )
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def short(digits: str) -> str:
    """The text of a number. Raises ValueError for a long one and for ``NaN`` and its like."""
    if len(digits) > DIGITS or digits[-1].isalpha():
        raise ValueError(f"not a number of at most {DIGITS} characters")
    return digits


def as_integer(value: float) -> int | float:
    """A whole number as `int`. Raises ValueError for an infinity."""
    if not math.isfinite(value):
        raise ValueError("too large for a float")
    return int(value) if value.is_integer() and abs(value) < EXACT else value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError if it has a key twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key twice")
    return members


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Each text, number, true, false or null of a document with its path. An empty object or array is a leaf
    too, so that it counts as a value that should not be there."""
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(entry, (*path, key))


def same(first: Any, second: Any) -> bool:
    """Whether two leaves are the same value of JSON: ``true`` is not 1, and ``"1"`` is not 1."""
    return type(first) is type(second) and bool(first == second)


def share_right(document: Any, expected: Mapping[KeyPath, Any]) -> float:
    """The share of right values among all values that are expected or that the document has."""
    answer_values = dict(leaves(document))
    right = sum(
        path in answer_values and same(answer_values[path], value) for path, value in expected.items()
    )
    return right / len(answer_values.keys() | expected.keys())


def canonical(document: Any) -> str:
    """One text for equal documents, in ASCII, so that also half a surrogate pair can be logged."""
    return json.dumps(document, sort_keys=True)


@functools.lru_cache(maxsize=4096)
def validator(schema: str) -> jsonschema.protocols.Validator:
    """The validator of a JSON schema (draft 2020-12) given as text. It knows no other document: a reference
    to one is an error and is never fetched. ``"format": "date"`` is checked."""
    import jsonschema
    import referencing

    checked = jsonschema.Draft202012Validator
    return checked(json.loads(schema), registry=referencing.Registry(), format_checker=checked.FORMAT_CHECKER)
