"""Read plain data (TOML, JSON) into dataclasses by their type hints, and collect every error at once.

A *place* is the dotted path of a value as the user would type it, such as ``arm.grpo.train.steps``.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")


class ConfigError(Exception):
    """A recipe or setting is wrong. `faults` holds one message per error, each with place and remedy."""

    def __init__(self, faults: Sequence[str], source: str = "") -> None:
        self.faults = list(dict.fromkeys(faults))
        self.source = source
        super().__init__(source, self.faults)

    def __str__(self) -> str:
        count = len(self.faults)
        head = f"{self.source}: " if self.source else ""
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        return f"{head}{count} error{'s' if count > 1 else ''}{lines}"


def user_seconds(variable: str, default: float) -> float:
    """The seconds in an environment variable; `default` where it is unset or empty. Raises ConfigError where
    it holds no finite number."""
    text = os.environ.get(variable, "").strip()
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ConfigError(
            [f"the environment's {variable}: must be a number of seconds such as {default:g}, not {text!r}"]
        )
    return seconds


class Bad:
    """What `convert` returns for a value that it has reported."""


BAD: Final = Bad()
NONE: Final = "none"
"""How a field that may be None is written in TOML, which has no null."""


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word that looks most like `word`, if any looks like it."""
    found = difflib.get_close_matches(word, sorted(set(valid)), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(place: str, key: str, valid: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """The message for a key that does not exist. `elsewhere` maps keys of other tables to their place."""
    valid = sorted(set(valid))
    here = join(place, key)
    if elsewhere and key in elsewhere:
        return f"{here}: unknown key; did you mean {elsewhere[key]}?"
    guess = nearest(key, valid)
    if guess:
        return f"{here}: unknown key; did you mean {join(place, guess)}?"
    guess = nearest(key, elsewhere) if elsewhere else None
    if guess and elsewhere:
        return f"{here}: unknown key; did you mean {elsewhere[guess]}?"
    return f"{here}: unknown key; valid here: {', '.join(valid) or 'none'}"


def join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def describe(value: Any) -> str:
    """A value as an error message names it."""
    kinds = {bool: "", int: "", float: "", str: "the string "}
    if type(value) in kinds:
        return f"{kinds[type(value)]}{str(value).lower() if isinstance(value, bool) else repr(value)}"
    return "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)


@functools.cache
def hints(cls: Any) -> dict[str, Any]:
    """Type hints of a dataclass's fields."""
    found = typing.get_type_hints(cls)
    return {f.name: found[f.name] for f in dataclasses.fields(cls) if f.init}


def convert(value: Any, hint: Any, place: str, faults: list[str]) -> Any:
    """`value` as the type `hint`, or `BAD` after appending to `faults`.

    Integers are taken for floats, the string "none" for None, lists for tuples; nothing else is coerced.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or (hint is object):
        return value
    if origin in (Union, types.UnionType):
        return convert_union(value, arguments, place, faults)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
        choices = ", ".join(repr(choice) for choice in arguments)
        words = [choice for choice in arguments if isinstance(choice, str)]
        guess = nearest(value, words) if isinstance(value, str) else None
        hint_text = f"; did you mean {guess!r}?" if guess else ""
        return report(faults, f"{place}: must be one of {choices}, not {describe(value)}{hint_text}")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, place, faults)
    if origin is not None:
        return convert_container(value, origin, arguments, place, faults)
    if isinstance(hint, type):
        return convert_plain(value, hint, place, faults)
    raise TypeError(f"{place}: a setting cannot have the type {hint}")


def report(faults: list[str], message: str) -> Bad:
    faults.append(message)
    return BAD


PLAIN: Mapping[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: (
        "a number",
        lambda value: (
            isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        ),
    ),
    str: ("a string", lambda value: isinstance(value, str)),
    Path: ("a path", lambda value: isinstance(value, (str, Path)) and bool(str(value))),
    list: ("a list", lambda value: isinstance(value, (list, tuple))),
    dict: ("a table", lambda value: isinstance(value, Mapping)),
}


def convert_plain(value: Any, hint: type, place: str, faults: list[str]) -> Any:
    if hint is type(None):
        return None if value == NONE else report(faults, f'{place}: must be "{NONE}", not {describe(value)}')
    if hint not in PLAIN:
        raise TypeError(f"{place}: a setting cannot have the type {hint}")
    wanted, fits = PLAIN[hint]
    if not fits(value):
        return report(faults, f"{place}: must be {wanted}, not {describe(value)}")
    return hint(value) if hint in (float, list, dict, Path) else value


def convert_union(value: Any, choices: Sequence[Any], place: str, faults: list[str]) -> Any:
    if type(None) in choices and (value is None or value == NONE):
        return None
    attempts: list[list[str]] = []
    # A float is not tried before an int, so that 1 stays 1 in `int | float`.
    for choice in sorted((c for c in choices if c is not type(None)), key=lambda c: c is float):
        attempt: list[str] = []
        result = convert(value, choice, place, attempt)
        if not attempt:
            return result
        attempts.append(attempt)
    messages = [fault.removeprefix(f"{place}: ") for attempt in attempts for fault in attempt]
    if type(None) in choices:
        messages.append(f'or "{NONE}"')
    return report(faults, f"{place}: {', '.join(messages)}")


def convert_container(
    value: Any, origin: Any, arguments: Sequence[Any], place: str, faults: list[str]
) -> Any:
    if issubclass(origin, Mapping):
        return convert_mapping(value, arguments, place, faults)
    if not isinstance(value, (list, tuple)):
        return report(faults, f"{place}: must be a list, not {describe(value)}")
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(value) != len(arguments):
            return report(faults, f"{place}: must be a list of {len(arguments)} values, not {len(value)}")
        kinds = list(arguments)
    else:
        kinds = [arguments[0]] * len(value)
    pairs = enumerate(zip(value, kinds, strict=True))
    items = [convert(item, kind, f"{place}[{index}]", faults) for index, (item, kind) in pairs]
    if any(item is BAD for item in items):
        return BAD
    return items if origin is list else frozenset(items) if origin is frozenset else tuple(items)


def convert_mapping(value: Any, arguments: Sequence[Any], place: str, faults: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return report(faults, f"{place}: must be a table, not {describe(value)}")
    keys, kind = arguments
    valid = get_args(keys) if get_origin(keys) is Literal else None
    found = {}
    for key, entry in value.items():
        if valid is not None and key not in valid:
            faults.append(unknown(place, key, valid))
            continue
        found[key] = convert(entry, kind, join(place, key), faults)
    return {key: entry for key, entry in found.items() if entry is not BAD}


def check(
    cls: type,
    table: Any,
    place: str,
    faults: list[str],
    elsewhere: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Convert the entries of a table that may leave out fields of `cls`; bad entries are left out."""
    if not isinstance(table, Mapping):
        faults.append(f"{place}: must be a table, not {describe(table)}")
        return {}
    known = hints(cls)
    found = {}
    for key, value in table.items():
        if key not in known:
            faults.append(unknown(place, key, known, elsewhere))
            continue
        result = convert(value, known[key], join(place, key), faults)
        if result is not BAD:
            found[key] = result
    return found


def build(cls: type[T], table: Any, place: str, faults: list[str]) -> T | Bad:
    """A dataclass from a whole table."""
    before = len(faults)
    values = check(cls, table, place, faults)
    if len(faults) > before:
        return BAD
    return construct(cls, values, faults, lambda name: join(place, name) if name else place)


def construct(
    cls: type[T], values: Mapping[str, Any], faults: list[str], place: Callable[[str], str]
) -> T | Bad:
    """Call the constructor. Each argument of a ValueError that it raises is one fault, at the place of the
    field that it names: "field: must be ...". `place("")` is the place of the table itself."""
    kind: Any = cls  # A dataclass; `type[T]` cannot say so.
    required = [
        f.name
        for f in dataclasses.fields(kind)
        if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    absent = [name for name in required if name not in values]
    if absent:
        return report(faults, f"{place('') or cls.__name__}: missing {', '.join(absent)}")
    try:
        return cls(**values)
    except ValueError as error:
        for message in map(str, error.args):
            field, rest = blame(message, hints(kind))
            where = place(field)
            faults.append(f"{where}: {rest}" if where else rest)
        return BAD


def blame(message: str, fields: Iterable[str]) -> tuple[str, str]:
    """The field that a message is about (empty: none) and the message without a leading "field: "."""
    field, colon, rest = message.partition(": ")
    if colon and field in fields:
        return field, rest
    named = [word for word in re.findall(r"\w+", message) if word in fields]
    return (named[0] if named else ""), message


def plain(value: Any) -> Any:
    """A dataclass, and what is in it, as data that TOML holds; `convert` reads it back equal."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, frozenset):
        return [plain(entry) for entry in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    return NONE if value is None else value
