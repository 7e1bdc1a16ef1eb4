"""Recipes in Python: from a name, a path or a dict."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from grpobench.runs.settings.recipe import Recipe, read_recipe, read_text
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import ConfigError

HERE = "__main__"
"""The module of definitions in a notebook or a script."""


def plain(value: Any, key_path: str, faults: list[str]) -> Any:
    """`value` with only what TOML can hold: numbers and arrays of NumPy as Python's own, iterables as lists,
    paths as text, None as "none". Anything else is left out, and a fault is added."""
    if hasattr(value, "tolist") and not inspect.isclass(value):
        value = value.tolist()
    if value is None:
        return strict.NONE
    if isinstance(value, str | os.PathLike):
        return check_picklable_name(str(value), key_path, faults)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            str(key): plain(member, strict.join(key_path, str(key)), faults) for key, member in value.items()
        }
    if isinstance(value, Iterable) and not inspect.isclass(value):
        return [plain(member, f"{key_path}[{index}]", faults) for index, member in enumerate(value)]
    faults.append(f"{key_path}: {refused(value)}")
    return ""


def check_picklable_name(text: str, key_path: str, faults: list[str]) -> str:
    """A text, unless it names something in the program itself, which no worker process has."""
    module, colon, name = text.partition(":")
    if module == HERE and colon:
        faults.append(f"{key_path}: {text} {unreachable(name)}")
    return text


def refused(value: Any) -> str:
    """Why a recipe cannot hold a value, and what to write instead."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"must be plain data such as a TOML file holds, not {type(value).__name__}"
    if value.__module__ == HERE:
        return f"{value.__qualname__} {unreachable(value.__name__)}"
    return f'name it by its module: "{value.__module__}:{value.__qualname__}", not the object itself'


def unreachable(name: str) -> str:
    """Why a name in the program itself cannot be used, and the remedy."""
    return (
        "is defined in this notebook or script, which the processes that train do not run; "
        f'write it to a file, such as mine.py, and name it "mine:{name}"'
    )


Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Recipe
"""A recipe's name, its path, its structure as a dict, or a recipe that was already read."""
Sets: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Assignments on top of a recipe: ``{"train.steps": 100}``, or ``["train.steps=100"]`` as on the command
line."""
UNNAMED = "unnamed"


def recipe(
    source: Source,
    *,
    set: Sets = (),
    seeds: Iterable[int] | None = None,
    arms: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    rates: Iterable[float] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Recipe:
    """Read a recipe and check all of it, without running anything or loading a model.

    `source` is the name of a recipe that comes with grpobench, the path of a TOML file, a dict with the
    structure of such a file (``{"name": ..., "tasks": [...], "arm": [{"algorithm": ...}, ...], ...}``), or a
    recipe to be changed. `set` holds assignments as for ``--set`` of the command line; `seeds`, `arms` and
    `tasks` choose those that run; every arm also runs at `rates`, multiples of its own learning rate. Files
    of a ``"module:Name"`` in a dict are looked up in `folder` first; the default is the current folder.
    Raises `ConfigError` with every error of the recipe and the assignments at once.
    """
    faults: list[str] = []
    sets = assignments(set, faults)
    for key, chosen in (
        ("seeds", seeds),
        ("arms", arms),
        ("tasks", tasks),
        ("rates", rates),
    ):
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
    """The recipe in a text. Raises `ConfigError` with the `faults` known so far and the recipe's own."""
    try:
        parsed_recipe = read_text(text, stem, folder, sets, source)
    except ConfigError as error:
        faulty_keys = tuple(fault.partition(": ")[0] + ":" for fault in faults)
        new_faults = [fault for fault in error.faults if not fault.startswith(faulty_keys)]
        raise ConfigError([*faults, *new_faults], source) from None
    if faults:
        raise ConfigError(faults, source)
    return parsed_recipe
