"""The templates of the pages, and how text appears in them."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpobench.analysis.tools.text import fold as in_lines
from grpobench.runs.inventory import claims, showing

TEMPLATES = Path(__file__).parent / "templates"
REWORDED = {"half as dear again": "1.5 times as expensive"}
"""Words of registered rules, whose digests their texts must keep, and what pages say instead."""


@cache
def templates() -> Environment:
    """The Jinja environment of the pages. It keeps the templates that it has compiled."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=reworded,
    )
    environment.filters |= {"cell": cell, "value": value, "sentence": sentence, "fold": fold, "lines": lines}
    environment.filters |= {"plainly": showing.plainly, "standing": claims.standing_cell, "link": claims.link}
    environment.filters |= {"effect": claims.effect_sentence, "reservations": claims.reservations}
    environment.globals |= {"no_profile": claims.no_profile, "untested": claims.UNTESTED}
    return environment


def reworded(shown: Any) -> Any:
    """What an expression of a template gives, with the words of `REWORDED` replaced, also across lines."""
    if isinstance(shown, str):
        for words, plain_words in REWORDED.items():
            shown = re.sub(words.replace(" ", r"\s+"), plain_words, shown)
    return shown


def cell(text: Any) -> str:
    """Text as a table cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def lines(text: str) -> str:
    """Text of several lines as a table cell, with its characters unchanged."""
    shown = html.escape(text, quote=False).replace("|", "&#124;").replace("`", "&#96;").replace("\r", "")
    for sign in "*_~[]\\":
        shown = shown.replace(sign, f"&#{ord(sign)};")
    return "<pre>" + shown.replace("\n", "<br>") + "</pre>"


def value(item: Any) -> str:
    """A value as in a recipe."""
    return showing.ABSENT if item == showing.ABSENT else f"`{showing.plainly(item)}`"


def fold(text: str) -> str:
    """Reworded text in lines of 118 characters."""
    return in_lines(reworded(text))


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
