"""Recipes in Python: from a name, a path or a dict."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from grpobench.runs.interface.plain import plain
from grpobench.runs.settings.recipe import Recipe, read_recipe, read_text
from grpobench.runs.tools import toml
from grpobench.runs.tools.strict import ConfigError

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Recipe
"""A recipe's name, its path, its structure as a dict, or one that was read already."""
Sets: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Assignments over a recipe: ``{"train.steps": 100}``, or ``["train.steps=100"]`` as on the command line."""
UNNAMED = "unnamed"


def recipe(
    source: Source,
    *,
    set: Sets = (),
    seeds: Iterable[int] | None = None,
    arms: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Recipe:
    """Read a recipe and check all of it; nothing is run, and no model is loaded.

    `source` is the name of a recipe that comes with grpobench, the path of a TOML file, a dict with the
    structure of such a file (``{"name": ..., "tasks": [...], "arm": [{"algorithm": ...}, ...], ...}``), or a
    recipe, to be changed. `set` holds assignments as for ``--set`` of the command line; `seeds`, `arms` and
    `tasks` choose those that run. `folder` is where the files of a ``"module:Name"`` in a dict are looked for
    first: the current folder unless told.

    Raises `ConfigError` with every error of the recipe and the assignments at once.
    """
    faults: list[str] = []
    sets = assignments(set, faults)
    for key, chosen in (("seeds", seeds), ("arms", arms), ("tasks", tasks)):
        if chosen is not None:
            sets.append(f"{key}={toml.value(plain(chosen, key, faults))}")
    if isinstance(source, Recipe):
        home = source.folder if folder is None else Path(folder)
        return checked(source.text, source.name, home, [*source.sets, *sets], f"recipe {source.name}", faults)
    if isinstance(source, Mapping):
        table = plain(source, "", faults)
        if "name" not in table:
            faults.append('name: missing; write "name": "mine", and the runs go to results/mine')
        home = Path.cwd() if folder is None else Path(folder)
        return checked(toml.write(table), UNNAMED, home, sets, "recipe of a dict", faults)
    if faults:
        raise ConfigError(faults, os.fspath(source))
    return read_recipe(os.fspath(source), sets)


def assignments(sets: Sets, faults: list[str]) -> list[str]:
    """``KEY=VALUE`` texts as `--set` takes them."""
    if isinstance(sets, str):
        return [sets]
    if isinstance(sets, Mapping):
        return [f"{key}={toml.value(plain(value, key, faults))}" for key, value in sets.items()]
    return list(sets)


def checked(
    text: str, stem: str, folder: Path, sets: Sequence[str], source: str, faults: Sequence[str]
) -> Recipe:
    """The recipe of a text. Raises `ConfigError` with the `faults` that are known before it is read, and with
    its own."""
    try:
        found = read_text(text, stem, folder, sets, source)
    except ConfigError as error:
        told = tuple(fault.partition(": ")[0] + ":" for fault in faults)
        rest = [fault for fault in error.faults if not fault.startswith(told)]
        raise ConfigError([*faults, *rest], source) from None
    if faults:
        raise ConfigError(faults, source)
    return found
