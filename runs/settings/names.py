"""The names that a recipe gives: looked up, or reported with the nearest that exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.settings import registries
from grpobench.runs.settings.registries import Kind
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD, ConfigError


def registered(registry: Mapping[str, Any], name: Any, place: str, kind: str, faults: list[str]) -> Any:
    """What a registry holds under a name; None, with a fault, for one that it lacks."""
    if isinstance(name, str) and name in registry:
        return registry[name]
    guess = strict.nearest(str(name), registry)
    did = f"did you mean {guess!r}?" if guess else f"`grpobench list {kind}s` shows the known ones"
    faults.append(f"{place}: unknown {kind} {name!r}; {did}")
    return None


def found(kind: Kind, name: Any, folder: Path | None, place: str, faults: list[str]) -> Any:
    """The class that a name of a recipe in `folder` stands for; None, with a fault, where there is none."""
    if not isinstance(name, str):
        faults.append(f"{place}: must be the name of one, not {strict.describe(name)}")
        return None
    try:
        return registries.find(kind, name, folder, place).cls
    except ConfigError as error:
        faults += error.faults
        return None


def no_such(kind: str, name: str, place: str, valid: Iterable[str]) -> str:
    """The message for an arm or task that the recipe lacks."""
    guess = strict.nearest(name, valid)
    did = f"did you mean {guess!r}?" if guess else f"this recipe has {', '.join(valid) or 'none'}"
    return f"{place}: no {kind} {name!r} in this recipe; {did}"


def name_list(value: Any, place: str, faults: list[str]) -> list[str]:
    """A list of names; a plain string is split at its commas."""
    items = value.split(",") if isinstance(value, str) else value
    names = strict.convert(items, tuple[str, ...], place, faults)
    return [] if names is BAD else list(dict.fromkeys(name.strip() for name in names))
