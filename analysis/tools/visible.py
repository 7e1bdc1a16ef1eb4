"""Text of others made safe to show: what a model wrote, what an arm or a run is called, what an error says.

A control character moves the cursor of a terminal, makes a file no XML, or turns the direction of what
follows; a spreadsheet runs a cell that begins like a formula. Whatever leaves for a page, a figure, a table
or a terminal goes through here.
"""

from __future__ import annotations

import re
from typing import Any, Final

HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and line feed
    "\u00ad\u061c\u180e\u200b\u200e\u200f"  # invisible, and marks of direction
    "\u2028-\u202e\u2060-\u206f"  # separators of lines, embeddings, overrides and isolates of direction
    "\ud800-\udfff"  # halves of characters, which no file can hold
    "\ufeff\ufff9-\ufffb\ufffe\uffff"  # marks of order and annotation, and no characters
    "\U000e0000-\U000e0fff]"  # tags, which nobody sees
)
FORMULA: Final = ("=", "+", "-", "@", "\t", "\n")
NUMBERS: Final = re.compile(r"[+-]?[\d.,eE\s()\[\]%;:–−+-]*")


def visible(text: str) -> str:
    """The text with such characters as the escapes by which Python writes them; tabs and line feeds stay."""
    return HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def cell(value: Any) -> Any:
    """A value for a table that a spreadsheet may open: text that begins like a formula, and is more than
    numbers, has an apostrophe before it. Other values as they are."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBERS.fullmatch(text) else text


def json_text(text: str) -> str:
    """JSON as it is, with such characters in its strings as JSON's own escapes."""
    return HIDDEN.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in units(found[0])), text)


def units(character: str) -> list[int]:
    """The UTF-16 code units of a character."""
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
