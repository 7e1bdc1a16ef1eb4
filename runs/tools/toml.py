"""Write plain values as TOML that `tomllib` reads back unchanged, floats to the last bit; read TOML of
others."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")


LARGEST = 2**63
"""TOML integers have 64 bits."""


class Unholdable(tomllib.TOMLDecodeError):
    """A document that is nested too deeply or has numbers too large to represent."""


def read(text: str) -> dict[str, Any]:
    """The tables of a document. Raises TOMLDecodeError, a ValueError, for invalid TOML, and `Unholdable`."""
    try:
        table = tomllib.loads(text)
        demand_small(table)
    except RecursionError:
        raise Unholdable("nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, OverflowError) as error:
        raise Unholdable(str(error)) from None
    return table


def demand_small(item: Any) -> None:
    """Raise ValueError for an integer beyond 64 bits."""
    if isinstance(item, int) and not -LARGEST <= item < LARGEST:
        raise ValueError("a whole number is beyond 64 bits")
    inner = item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ()
    for entry in inner:
        demand_small(entry)


def key(text: str) -> str:
    """A key, quoted if necessary."""
    return text if BARE.fullmatch(text) else string(text)


def string(text: str) -> str:
    """A basic string. JSON escapes are valid in TOML, except that TOML also forbids a bare DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(item: Any) -> str:
    """One value on one line: bool, int, float, str, a sequence of values or a mapping with string keys."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return (
            repr(item) if math.isfinite(item) else str(item)
        )  # Python and TOML spell inf, -inf and nan the same way.
    if isinstance(item, str):
        return string(item)
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key(name)} = {value(entry)}" for name, entry in item.items()) + "}"
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(value(entry) for entry in item) + "]"
    raise TypeError(f"TOML cannot hold {type(item).__name__}")


def write(table: Mapping[str, Any]) -> str:
    """A document: plain values first, then one ``[section]`` per mapping, and one ``[[section]]`` per entry
    of a list of mappings. Deeper mappings are inline."""
    sections = {name: sections_of(entry) for name, entry in table.items()}
    lines = [f"{key(name)} = {value(entry)}" for name, entry in table.items() if not sections[name]]
    for name, entries in sections.items():
        for entry in entries:
            single = isinstance(table[name], Mapping)
            lines += ["", f"[{key(name)}]" if single else f"[[{key(name)}]]"]
            lines += [f"{key(field)} = {value(item)}" for field, item in entry.items()]
    return "\n".join(lines) + "\n"


def sections_of(entry: Any) -> Sequence[Mapping[str, Any]]:
    """The sections that a value is written as; empty for a value that fits on a line."""
    if isinstance(entry, Mapping):
        return [entry]
    tables = isinstance(entry, (list, tuple)) and all(isinstance(item, Mapping) for item in entry)
    return entry if tables else []
