"""Read plain data (TOML, JSON) into dataclasses by their type hints, and collect every error at once.

pydantic checks and converts. This module defines which types a setting may have, and words errors in terms of
a recipe: the path of the value, what was given, what is expected, the nearest existing name. Functions that
need pydantic import it themselves, so that raising a ConfigError does not wait for it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

from grpobench.runs.tools import toml
from grpobench.runs.tools.frames import describe_error, innermost
from grpobench.tasks.data import bounded

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails

T = TypeVar("T")
KeyPath = str
"""The dotted path of a value as the user would type it, such as ``arm.grpo.train.steps``."""


class ConfigError(Exception):
    """A recipe or setting is wrong. `faults` holds one message per error, each with path and remedy."""

    def __init__(self, faults: Sequence[str], source: str = "") -> None:
        self.faults = list(dict.fromkeys(faults))
        self.source = source
        super().__init__(source, self.faults)

    def __str__(self) -> str:
        count = len(self.faults)
        head = f"{self.source}: " if self.source else ""
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        return f"{head}{count} error{'s' if count > 1 else ''}{lines}"


def read_text(path: Path, what: str) -> str:
    """The text of a file that holds `what`, such as a recipe. Raises ConfigError if it cannot be read."""
    try:
        return bounded.read_text(path)
    except FileNotFoundError as error:
        guess = nearest_file(path)
        did = f"; did you mean {guess}?" if guess else ""
        raise ConfigError([f"cannot read the {what}: {error.strerror}{did}"], str(path)) from None
    except bounded.FileError as error:
        raise ConfigError([error.reason], str(path)) from None


def read_toml(text: str, source: str) -> dict[str, Any]:
    """The tables of a text; `source` names it in messages. Raises ConfigError for what is not TOML."""
    try:
        return toml.read(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"not TOML: {error}"], source) from None


def user_seconds(variable: str, default: float) -> float:
    """The seconds in an environment variable; `default` if it is unset or empty. Raises ConfigError if it is
    not a finite number."""
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
"""The TOML value for a field that may be None, because TOML has no null."""


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word that is most similar to `word`, if any is similar; of equally similar ones that with the
    fewest slips of the keyboard, so that gpro is grpo and not gspo."""
    matches = difflib.get_close_matches(word, sorted(set(valid)), n=8, cutoff=0.6)
    if not matches:
        return None
    alike = [difflib.SequenceMatcher(None, match, word).ratio() for match in matches]
    ties = [match for match, ratio in zip(matches, alike, strict=True) if ratio == alike[0]]
    return min(ties, key=lambda match: slips(word, match))


def did_you_mean(word: str, valid: Iterable[str], otherwise: str = "", form: str = "{}") -> str:
    """A question for the nearest valid word, in a `form` such as ``{!r}``; `otherwise` if none is near."""
    guess = nearest(word, valid)
    return f"did you mean {form.format(guess)}?" if guess else otherwise


def nearest_file(source: str | Path, suffix: str = ".toml") -> str | None:
    """The file with this suffix that is most similar to a path that does not exist, from the path's folder:
    pets.tml and pets are pets.toml. None if there is none."""
    path = Path(source).expanduser()
    known = {file.stem: str(file) for file in path.parent.glob(f"*{suffix}") if file.is_file()}
    guess = path.stem if path.stem in known else nearest(path.stem, known)
    return known[guess] if guess else None


def slips(word: str, other: str) -> int:
    """Letters to insert, delete, replace or swap with their neighbor to turn a word into another (optimal
    string alignment)."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, target in enumerate(other, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != target))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == target:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def unknown(
    key_path: KeyPath,
    key: str,
    valid: Iterable[str],
    elsewhere: Mapping[str, KeyPath] | None = None,
    renamed: Mapping[str, KeyPath] | None = None,
) -> str:
    """The message for an unknown key. `elsewhere` maps keys of other tables to their path, `renamed` maps
    keys of older versions to their current path."""
    valid, elsewhere = sorted(set(valid)), elsewhere or {}
    here = join(key_path, key)
    if renamed and key in renamed:
        return f"{here}: was renamed; write {renamed[key]}"
    if key in elsewhere:
        return f"{here}: unknown key; did you mean {elsewhere[key]}?"
    if guess := nearest(key, [*valid, *(renamed or {})]):
        meant = join(key_path, guess) if guess in valid else (renamed or {})[guess]
        return f"{here}: unknown key; did you mean {meant}?"
    if guess := nearest(key, elsewhere):
        return f"{here}: unknown key; did you mean {elsewhere[guess]}?"
    return f"{here}: unknown key; valid here: {', '.join(valid) or 'none'}"


def join(key_path: KeyPath, key: str) -> KeyPath:
    """The path of a key in a table, where "" is a recipe and "--set " the command line."""
    return f"{key_path}.{key}" if key_path and not key_path.endswith(" ") else key_path + key


def describe(value: Any) -> str:
    """A value as error messages show it."""
    kinds = {bool: "", int: "", float: "", str: "the string "}
    if type(value) in kinds:
        return f"{kinds[type(value)]}{str(value).lower() if isinstance(value, bool) else repr(value)}"
    return "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)


@functools.cache
def hints(cls: Any) -> dict[str, Any]:
    """Type hints of a dataclass's fields."""
    every = typing.get_type_hints(cls)
    return {f.name: every[f.name] for f in dataclasses.fields(cls) if f.init}


def convert(value: Any, hint: Any, key_path: KeyPath, faults: list[str]) -> Any:
    """`value` as the type `hint`; on an error, append to `faults` and return `BAD`. Integers convert to
    floats, lists to tuples, strings to paths, and the string "none" to None. Nothing else is converted, and
    NaN is refused."""
    from pydantic import ValidationError

    try:
        return adapter(hint).validate_python(value)
    except ValidationError as error:
        faults += explain(error, hint, key_path)
        return BAD


# Types as pydantic reads them


@functools.cache
def adapter(hint: Any) -> TypeAdapter[Any]:
    """pydantic's validator of a type. It is cached, because creating one takes longer than using it a hundred
    times."""
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(as_plain_data(hint), config=ConfigDict(strict=True))
    except PydanticUserError as error:
        raise TypeError(f"a setting cannot have the type {hint}") from error


def as_plain_data(hint: Any) -> Any:
    """A type hint with what pydantic's strict mode needs to read plain data."""
    from pydantic import AfterValidator, BeforeValidator, PlainValidator, Strict, WrapValidator

    annotated: Any = Annotated  # Type checkers cannot follow types that are created here.
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        cls: Any = hint
        return Annotated[Any, PlainValidator(functools.partial(read_nested, cls))]
    if hint is float:
        return Annotated[float, AfterValidator(refuse_nan)]
    if hint is Path:
        return Annotated[Path, BeforeValidator(path_of_text)]
    if hint is list:
        return Annotated[list, Strict(False)]
    if origin is None or origin is Literal:
        return hint
    if origin is Annotated:
        return annotated[as_plain_data(arguments[0]), *hint.__metadata__]
    inner = tuple(one if one is Ellipsis else as_plain_data(one) for one in arguments)
    if origin in (typing.Union, types.UnionType):
        union = functools.reduce(operator.or_, inner)
        return annotated[union, WrapValidator(functools.partial(read_union, types.NoneType in arguments))]
    # Strict mode accepts only tuples for a tuple, and TOML has only lists.
    lenient = annotated[origin[inner], Strict(False)]
    if origin is tuple and Ellipsis not in arguments:
        return annotated[lenient, BeforeValidator(functools.partial(demand_length, len(arguments)))]
    return lenient


def refuse_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("must be a number, not nan")
    return value


def path_of_text(value: Any) -> Any:
    """An empty string is not a path: Python would take it for the current folder."""
    return Path(value) if isinstance(value, str) and value else value


def demand_length(length: int, value: Any) -> Any:
    """Checks the length of a tuple. pydantic names each missing position instead of the required length."""
    if isinstance(value, (list, tuple)) and len(value) != length:
        raise ValueError(f"must be a list of {length} values, not {len(value)}")
    return value


def read_union(optional: bool, value: Any, read: Callable[[Any], Any]) -> Any:
    """The first type that fits. pydantic reports one error per type, at a path that names the type and is not
    a key of a recipe; this makes one message of them."""
    from pydantic import ValidationError

    if optional and (value is None or value == NONE):
        return None
    try:
        return read(value)
    except ValidationError as error:
        sentences = [text for one in error.errors() for text in sentences_of(one, {})]
        if inside := [text for text in sentences if HERE in text]:
            raise ValueError(*inside) from None  # it is a table, and these are the places in it
        raise ValueError(", ".join([*sentences, *([f'or "{NONE}"'] * optional)])) from None


def read_nested(cls: type, value: Any) -> Any:
    """A dataclass inside a value. Unknown keys are reported with the nearest one, as in a section."""
    faults: list[str] = []
    built = build(cls, value, HERE, faults)
    if faults:
        raise ValueError(*faults)
    return built


# pydantic's errors in words of a recipe


WANTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "is_instance_of": "a path",
    "list_type": "a list",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "none_required": f'"{NONE}"',
}
"""What a value must be, by pydantic's error name. pydantic's own sentences use Python's terms, but a tuple is
a list in TOML, and a dictionary a table."""
SIDES = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
HERE = "\0"
"""Placeholder for the path of a nested table, which only knows what is inside it."""


def explain(error: ValidationError, hint: Any, key_path: KeyPath) -> Iterator[str]:
    """A message for each of pydantic's errors, with its path and the given value."""
    bounds = bounds_of(hint)
    for one in error.errors(include_url=False):
        if one["type"] == "literal_error" and one["loc"][-1:] == ("[key]",):
            *parts, key, _ = one["loc"]
            yield unknown(key_path + steps(parts), str(key), quoted(one["ctx"]["expected"]))
            continue
        path = key_path + steps(one["loc"])
        for text in sentences_of(one, bounds):
            yield text.replace(HERE, path) if HERE in text else f"{path}: {text}"


def steps(location: Iterable[int | str]) -> str:
    """pydantic's location inside a value, appended to the path of the value."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)


def sentences_of(error: ErrorDetails, bounds: Mapping[str, float]) -> list[str]:
    """What is wrong, without the path. There are several messages only if one of our validators raised
    several."""
    kind, value = error["type"], error["input"]
    if kind == "value_error":
        return [str(argument) for argument in error["ctx"]["error"].args]
    if kind == "literal_error":
        expected = error["ctx"]["expected"]
        guess = nearest(value, quoted(expected)) if isinstance(value, str) else None
        remedy = f"; did you mean {guess!r}?" if guess else ""
        return [f"must be {expected}, not {describe(value)}{remedy}"]
    if kind in OUT_OF_BOUNDS:
        return [f"must be {within(bounds, value)}, not {describe(value)}"]
    return [f"must be {WANTED[kind]}, not {describe(value)}" if kind in WANTED else error["msg"]]


def quoted(expected: str) -> list[str]:
    """The words that a value may be; pydantic's errors hold them only in a sentence."""
    return re.findall(r"'([^']*)'", expected)


def bounds_of(hint: Any) -> dict[str, float]:
    """The bounds in a type hint, by their names in annotated_types; for a list, those of its entries."""
    bounds: dict[str, float] = {}
    for inner in get_args(hint):
        bounds |= bounds_of(inner)
        bounds |= {side: getattr(inner, side) for side in SIDES if getattr(inner, side, None) is not None}
    return bounds


def within(bounds: Mapping[str, float], value: float) -> str:
    """What the bounds require. pydantic names only the violated bound, but a user wants both."""
    finite = {side: bound for side, bound in bounds.items() if math.isfinite(bound)}
    if math.isinf(value) and len(finite) < len(bounds):
        return "finite"
    return " and ".join(f"{SIDES[side]} {bound:,}" for side, bound in finite.items())


# Tables and dataclasses


def check(
    cls: type,
    table: Any,
    key_path: KeyPath,
    faults: list[str],
    elsewhere: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Convert the entries of a table that may leave out fields of `cls`; bad entries are left out. For
    `elsewhere` and `renamed` see `unknown`."""
    if not isinstance(table, Mapping):
        faults.append(f"{key_path}: must be a table, not {describe(table)}")
        return {}
    known = hints(cls)
    values = {}
    for key, value in table.items():
        if key not in known:
            faults.append(unknown(key_path, key, known, elsewhere, renamed))
            continue
        result = convert(value, known[key], join(key_path, key), faults)
        if result is not BAD:
            values[key] = result
    return values


def build(
    cls: type[T],
    table: Any,
    key_path: KeyPath,
    faults: list[str],
    renamed: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> T | Bad:
    """A dataclass from a whole table; `renamed` as in `check`. Its paths are relative to `folder`."""
    before = len(faults)
    values = in_folder(check(cls, table, key_path, faults, renamed=renamed), folder)
    if len(faults) > before:
        return BAD
    return construct(cls, values, faults, lambda name: join(key_path, name) if name else key_path)


def in_folder(values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Settings whose relative paths are those of a folder (None: they stay)."""
    if folder is None:
        return dict(values)
    return {
        key: folder / value.expanduser() if isinstance(value, Path) else value
        for key, value in values.items()
    }


def construct(
    cls: type[T], values: Mapping[str, Any], faults: list[str], path_of: Callable[[str], KeyPath]
) -> T | Bad:
    """Call the constructor. Each argument of its ValueError is one fault, at the path of the field that the
    message begins with: "field: must be ...". `path_of("")` is the path of the table itself."""
    kind: Any = cls  # A dataclass; `type[T]` cannot say so.
    required = [
        f.name
        for f in dataclasses.fields(kind)
        if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    absent = [name for name in required if name not in values]
    if absent:
        others = f", which {whose(cls)} gives no default" if foreign(cls) else ""
        faults.append(f"{path_of('') or cls.__name__}: missing {', '.join(absent)}{others}")
        return BAD
    try:
        return cls(**values)
    except ValueError as error:
        for message in map(str, error.args):
            field, inner, text = blame(message, hints(kind))
            path = path_of(field) + inner
            faults.append(f"{path}: {text}" if path else text)
        return BAD
    except Exception as error:
        if not foreign(cls):
            raise
        frame = innermost(error, files_of(cls))
        told = (
            frame.message
            if frame
            else f"{whose(cls)} cannot be made with its settings: {describe_error(error)}"
        )
        faults.append(f"{path_of('') or cls.__name__}: {told}")
        return BAD


def foreign(cls: type) -> bool:
    """Whether a class is others' code."""
    return not cls.__module__.startswith("grpobench.")


def files_of(cls: type) -> set[Path]:
    """The files of a class of others and of its bases."""
    modules = [sys.modules.get(base.__module__) for base in cls.__mro__ if foreign(base)]
    return {Path(file).resolve() for module in modules if (file := getattr(module, "__file__", None))}


def whose(cls: type) -> str:
    """A class of others with its file and line."""
    from grpobench.algorithms.returned import line_of  # which loads torch

    return f"{line_of(cls)} {cls.__name__}".lstrip()


def blame(message: str, fields: Iterable[str]) -> tuple[str, str, str]:
    """(field, path inside it, text) of a message such as "field[1]: must be ...". A message without a field
    at its start is about the first field that it names, or else about the table."""
    match = re.match(r"(\w+)([.\[][^:\s]*)?: (.*)", message, re.DOTALL)
    if match and match[1] in fields:
        return match[1], match[2] or "", match[3]
    return next((word for word in re.findall(r"\w+", message) if word in fields), ""), "", message


# What a dataclass demands of its fields


@functools.cache
def bounded_hints(cls: type) -> dict[str, Any]:
    """The type hints with bounds of a dataclass's fields, such as ``Annotated[int, Ge(1)]``."""
    whole, bare = typing.get_type_hints(cls, include_extras=True), hints(cls)
    return {name: whole[name] for name in bare if whole[name] != bare[name]}


class Settings:
    """Base of a dataclass of settings. Its constructor raises one ValueError with a message for each bound of
    its fields that does not hold, such as ``Annotated[int, Ge(1)]``, and for each of its clashes.

    Bounds are checked there and not when a value is read, because only the last layer's value counts.
    """

    def __post_init__(self) -> None:
        cls: Any = type(self)
        messages: list[str] = []
        for name, hint in bounded_hints(cls).items():
            convert(getattr(self, name), hint, name, messages)
        messages += self.clashes()
        order = list(hints(cls))
        if messages:
            raise ValueError(*sorted(messages, key=lambda text: order.index(re.split(r"\W", text)[0])))

    def clashes(self) -> Iterator[str]:
        """What is wrong with fields together. A message starts with its field: "field: must be ..."."""
        yield from ()


def plain(value: Any) -> Any:
    """A dataclass and its content as data that TOML can hold; `convert` reads it back unchanged."""
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
