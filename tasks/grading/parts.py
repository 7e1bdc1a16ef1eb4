"""Cut the text of an answer at signs that stand outside of its brackets."""

from __future__ import annotations

import re

_OPENING, _CLOSING = "([{", ")]}"
COMMA = re.compile(",")


def split(text: str, separator: re.Pattern[str] = COMMA) -> list[str] | None:
    """The text cut where the separator stands outside of brackets, the pieces stripped; None where a bracket
    closes that was not opened in it. A half-open interval's brackets are a pair."""
    found = [match.span() for match in separator.finditer(text)]
    depth, start, pieces, ahead = 0, 0, [], iter([*found, (len(text), len(text))])
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
    """(opening bracket, items between commas outside of inner brackets, closing bracket), where brackets hold
    the whole text; else without brackets."""
    opening = next((sign for sign in ("(", "\\{", "[") if text.startswith(sign)), "")
    closed = next((sign for sign in (")", "\\}", "]") if text.endswith(sign)), "")
    if opening and closed and len(text) > len(opening) + len(closed):
        items = split(text[len(opening) : -len(closed)])
        if items is not None:
            return opening, items, closed
    return "", split(text) or [text], ""
