"""Which unit stands behind a value, for the units that answers to school problems have.

A unit may be left out, so it is never part of a value. But 10 m is no answer where the truth is 10 cm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SPELLINGS: Mapping[str, str] = {
    "mm": "mm|millimet(?:er|re)s?",
    "cm": "cm|centimet(?:er|re)s?",
    "m": "m|met(?:er|re)s?",
    "km": "km|kilomet(?:er|re)s?",
    "in": "in|inch|inches",
    "ft": "ft|foot|feet",
    "yd": "yds?|yards?",
    "mi": "mi|miles?",
    "s": "s|secs?|seconds?",
    "min": "mins?|minutes?",
    "h": "h|hrs?|hours?",
    "d": "days?",
    "week": "weeks?",
    "month": "months?",
    "year": "yrs?|years?",
    "mg": "mg|milligrams?",
    "g": "g|grams?",
    "kg": "kg|kilograms?",
    "oz": "oz|ounces?",
    "lb": "lbs?|pounds?",
    "ml": "ml|millilit(?:er|re)s?",
    "l": "l|lit(?:er|re)s?",
    "dollar": "dollars?",
    "cent": "cents?",
    "degree": "degrees?",
    "radian": "rads?|radians?",
}
_UNITS = {name: re.compile(spelling) for name, spelling in SPELLINGS.items()}
_BEHIND = re.compile(r"[0-9)}\s](?:\\text\{([^{}]*)\}|\s*([A-Za-z. ]+))(?:\^\{?[0-9]\}?)?")
_POWER = re.compile(r"\b(?:square|sq|cubic|cu)\b")


def unit(text: str) -> str:
    """The unit, by the key of `SPELLINGS`, behind the value that a cleaned text is; empty for none of these.
    Its power (cm, cm²) makes no difference."""
    found = [match for match in _BEHIND.finditer(text) if match.end() == len(text)]
    if not found:
        return ""
    words = _POWER.sub("", (found[0][1] or found[0][2]).lower().replace(".", "")).strip()
    return next((name for name, spelling in _UNITS.items() if spelling.fullmatch(words)), "")
