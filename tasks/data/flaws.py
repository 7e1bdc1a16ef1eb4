"""Values that Python's JSON reader accepts and no data set may have: NaN, infinities, half surrogate
pairs."""

# A NaN is not JSON, equals nothing, and turns every mean that it enters into NaN. Text with half a surrogate
# pair cannot be encoded, and stops a run when the tokenizer or a log meets it. Our own logs are not read with
# this module.

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

STRICT = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def find_flaw(value: Any) -> str:
    """The first flaw of a parsed JSON value and its place; empty if there is none."""
    if _is_sound(value):
        return ""
    for where, part in _walk(value):
        if isinstance(part, str) and (half := find_half_pair(part)):
            return f"{where} holds {half}, half a surrogate pair, which is not valid text"
        if isinstance(part, float) and not math.isfinite(part):
            return f"{where} is {json.dumps(part)}, which is not a number in JSON"
    return ""


def _is_sound(value: Any) -> bool:
    """Whether a value has surely no flaw: JSON's own writer goes through it four times as fast. False says
    nothing, such as of a date from the hub, which JSON has no text for."""
    try:
        STRICT.encode(value).encode("utf-8")
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def find_half_pair(text: str) -> str:
    """The first half of a surrogate pair in a text, as JSON writes it; empty if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return ""


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value with its name, in order. This does not recurse, because JSON may nest deeply."""
    waiting = [("the row", value)]
    while waiting:
        where, part = waiting.pop()
        yield where, part
        inside: list[tuple[str, Any]] = []
        if isinstance(part, dict):
            for key, entry in part.items():
                inside += [("a key", key), (repr(key)[:40], entry)]
        elif isinstance(part, list):
            inside = [(where, entry) for entry in part]
        waiting += reversed(inside)
