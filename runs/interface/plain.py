"""Values of Python as TOML holds them, and a word about those that it cannot hold."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

from grpobench.runs.tools import strict

HERE = "__main__"
"""The module of what a notebook or a script defines itself."""


def plain(value: Any, place: str, faults: list[str]) -> Any:
    """`value` with nothing in it but what TOML holds: numbers and arrays of NumPy as Python's own, iterables
    as lists, paths as text, None as "none". What is none of these is left out, with a fault."""
    if hasattr(value, "tolist") and not inspect.isclass(value):
        value = value.tolist()
    if value is None:
        return strict.NONE
    if isinstance(value, str | os.PathLike):
        return named(str(value), place, faults)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry, strict.join(place, str(key)), faults) for key, entry in value.items()}
    if isinstance(value, Iterable) and not inspect.isclass(value):
        return [plain(entry, f"{place}[{index}]", faults) for index, entry in enumerate(value)]
    faults.append(f"{place}: {refused(value)}")
    return ""


def named(text: str, place: str, faults: list[str]) -> str:
    """A text, unless it names something of the program itself, which no worker process has."""
    module, colon, name = text.partition(":")
    if module == HERE and colon:
        faults.append(f"{place}: {text} {unreachable(name)}")
    return text


def refused(value: Any) -> str:
    """Why a recipe cannot hold a value, and what to write instead."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"must be plain data such as a TOML file holds, not {type(value).__name__}"
    if value.__module__ == HERE:
        return f"{value.__qualname__} {unreachable(value.__name__)}"
    return f'name it by its module: "{value.__module__}:{value.__qualname__}", not the object itself'


def unreachable(name: str) -> str:
    """What a name of the program itself cannot do, and the remedy."""
    return (
        "is defined in this notebook or script, which the processes that train do not run; "
        f'write it to a file, such as mine.py, and name it "mine:{name}"'
    )
