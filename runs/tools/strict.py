"""Read plain data (TOML, JSON) into dataclasses by their type hints, and collect every error at once."""

# pydantic checks and converts. This module defines which types a setting may have, and words errors in terms
# of a recipe: the path of the value, what was given, what is expected, the nearest existing name. Functions
# that need pydantic import it themselves, so that raising a ConfigError does not wait for it.

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
    from pydantic import TypeAdapter, ValidationInfo
    from pydantic_core import ErrorDetails

T = TypeVar("T")
KeyPath = str
"""The dotted path of a value as the user would type it, such as ``arm.grpo.train.steps``."""
Where = KeyPath | Callable[[str], KeyPath]
"""The path of a value, or of a table by its keys, "" being the table itself."""


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


def read_text(path: Path, kind: str) -> str:
    """The text of a file of some `kind`, such as a recipe. Raises ConfigError if it cannot be read."""
    try:
        return bounded.read_text(path)
    except FileNotFoundError as error:
        guess = nearest_file(path)
        did = f"; did you mean {guess}?" if guess else ""
        raise ConfigError([f"cannot read the {kind}: {error.strerror}{did}"], str(path)) from None
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
    """The valid word that is most similar to `word`, if any is similar; of equally similar ones that of the
    same letters, so that gpro is grpo and not gspo."""

    def likeness(match: str) -> tuple[float, bool]:
        return difflib.SequenceMatcher(None, match, word).ratio(), sorted(match) == sorted(word)

    matches = difflib.get_close_matches(word, sorted(set(valid)), n=8, cutoff=0.6)
    return max(matches, key=likeness, default=None)


def did_you_mean(word: str, valid: Iterable[str], otherwise: str = "", form: str = "{}") -> str:
    """A question for the nearest valid word, in a `form` such as ``{!r}``; `otherwise` if none is near."""
    guess = nearest(word, valid)
    return f"did you mean {form.format(guess)}?" if guess else otherwise


def nearest_file(source: str | Path) -> str | None:
    """The TOML file that is most similar to a path that does not exist, from the path's folder: pets.tml and
    pets are pets.toml. None if there is none."""
    path = Path(source).expanduser()
    path_by_stem = {file.stem: str(file) for file in path.parent.glob("*.toml") if file.is_file()}
    guess = path.stem if path.stem in path_by_stem else nearest(path.stem, path_by_stem)
    return path_by_stem[guess] if guess else None


def unknown(
    key_path: KeyPath, key: str, valid: Iterable[str], elsewhere: Mapping[str, KeyPath] | None = None
) -> str:
    """The message for an unknown key. `elsewhere` maps keys of other tables to their path."""
    valid, elsewhere = sorted(set(valid)), elsewhere or {}
    guess = nearest(key, valid)
    meant = elsewhere.get(key) or (
        join(key_path, guess) if guess else elsewhere.get(nearest(key, elsewhere) or "")
    )
    remedy = f"did you mean {meant}?" if meant else f"valid here: {', '.join(valid) or 'none'}"
    return f"{join(key_path, key)}: unknown key; {remedy}"


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


def is_table(hint: Any) -> bool:
    """Whether a type is a dataclass, which is read from a table."""
    return dataclasses.is_dataclass(hint)


# Reading values


def convert(
    value: Any,
    hint: Any,
    path: Where,
    faults: list[str],
    folder: Path | None = None,
) -> Any:
    """`value` as the type `hint`; on an error, append to `faults` and return `BAD`. Integers convert to
    floats, lists to tuples, strings to paths, tables to dataclasses, and the string "none" to None. Nothing
    else is converted, and NaN is refused.

    `path` is where the value stands, or gives the path of each key of a table, "" being the table itself.
    Paths in a table are relative to `folder` (None: they stay).
    """
    try:
        read = adapter(hint).validate_python(value, context=folder)
        return construct(hint, read) if is_table(hint) else read
    except ValueError as error:  # pydantic's errors are of this class
        faults += explain(error, hint, value, path, {})
        return BAD


def build(cls: type[T], table: Any, path: KeyPath, faults: list[str], folder: Path | None = None) -> T | Bad:
    """A dataclass from a whole table; `folder` as in `convert`."""
    built: T | Bad = convert(table, cls, path, faults, folder)
    return built


def check(
    cls: type,
    table: Any,
    path: KeyPath,
    faults: list[str],
    elsewhere: Mapping[str, KeyPath] | None = None,
) -> dict[str, Any]:
    """The entries, as they are written, of a table that may leave out fields of `cls`; those that `cls` does
    not have or cannot take are left out, with a fault. Bounds are checked in `build`, because only the last
    layer's value counts. For `elsewhere` see `unknown`."""
    from pydantic import ValidationError

    try:
        adapter(cls).validate_python(table)
    except ValidationError as error:
        faults += explain(error, cls, table, path, elsewhere or {})
        wrong = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
        return {key: table[key] for key in table if key not in wrong} if wrong else {}
    return dict(table)


@functools.cache
def adapter(hint: Any) -> TypeAdapter[Any]:
    """pydantic's validator of a type; for a dataclass, of a table of some of its fields. It is cached,
    because creating one takes longer than using it a hundred times."""
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticUserError

    plain = table_of(hint) if is_table(hint) else as_plain_data(hint)
    try:
        return TypeAdapter(plain, config=None if is_table(hint) else ConfigDict(strict=True))
    except (PydanticUserError, RuntimeError) as error:
        raise TypeError(f"a setting cannot have the type {hint}") from error


def table_of(cls: Any) -> Any:
    """The type of a table that holds fields of a dataclass, and of any mapping that does."""
    from pydantic import ConfigDict, Strict, with_config
    from typing_extensions import TypedDict

    typed_dict: Any = TypedDict  # Type checkers cannot follow types that are created here.
    fields = {name: writable(hint) for name, hint in hints(cls).items()}
    table = with_config(ConfigDict(strict=True, extra="forbid"))(
        typed_dict(cls.__name__, fields, total=False)
    )
    annotated: Any = Annotated
    return annotated[table, Strict(False)]


def writable(hint: Any) -> Any:
    """A field's type, or one that refuses every value: a class of others may have fields that no recipe can
    write, such as functions and arrays."""
    from pydantic import BeforeValidator

    try:
        adapter(hint)
    except TypeError:
        return Annotated[Any, BeforeValidator(functools.partial(refuse, hint))]
    return as_plain_data(hint)


def refuse(hint: Any, value: Any) -> None:
    raise ValueError(f"no recipe can write a {getattr(hint, '__name__', hint)}; leave it away")


def as_plain_data(hint: Any) -> Any:
    """A type hint with what pydantic's strict mode needs to read plain data."""
    from pydantic import AfterValidator, BeforeValidator, PlainValidator, Strict, WrapValidator

    annotated: Any = Annotated  # Type checkers cannot follow types that are created here.
    origin, arguments = get_origin(hint), get_args(hint)
    if is_table(hint):
        return annotated[table_of(hint), AfterValidator(functools.partial(construct, hint))]
    if hint is float:
        return annotated[float, AfterValidator(refuse_nan)]
    if hint is Path:
        return annotated[Path, BeforeValidator(path_of_text)]
    if hint is list:
        return annotated[list, Strict(False)]
    if origin is None or origin is Literal:
        return hint
    if origin is Annotated:
        return annotated[as_plain_data(arguments[0]), *hint.__metadata__]
    if origin in UNIONS and (table := next(filter(is_table, arguments), None)) and arguments[1:] == (table,):
        return annotated[Any, PlainValidator(functools.partial(read_either, arguments[0], table))]
    inner = tuple(argument if argument is Ellipsis else as_plain_data(argument) for argument in arguments)
    if origin in UNIONS:
        union = functools.reduce(operator.or_, inner)
        return annotated[union, WrapValidator(functools.partial(read_union, types.NoneType in arguments))]
    # Strict mode accepts only tuples for a tuple, and TOML has only lists.
    lenient = annotated[origin[inner], Strict(False)]
    if origin is tuple and Ellipsis not in arguments:
        return annotated[lenient, BeforeValidator(functools.partial(demand_length, len(arguments)))]
    return lenient


UNIONS = (typing.Union, types.UnionType)


def refuse_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("must be a number, not nan")
    return value


def path_of_text(value: Any, info: ValidationInfo) -> Any:
    """An empty string is not a path: Python would take it for the current folder. A relative path is one of
    the folder in the context, if there is one."""
    if not isinstance(value, (str, Path)) or not value:
        return value
    return info.context / Path(value).expanduser() if info.context else Path(value)


def demand_length(length: int, value: Any) -> Any:
    """Checks the length of a tuple. pydantic names each missing position instead of the required length."""
    if isinstance(value, (list, tuple)) and len(value) != length:
        raise ValueError(f"must be a list of {length} values, not {len(value)}")
    return value


def read_union(optional: bool, value: Any, read: Callable[[Any], Any]) -> Any:
    """The first type that fits. pydantic reports one error per type, at a path that names the type and is not
    a key of a recipe; this makes one message of them, except of what is wrong inside a table."""
    from pydantic import ValidationError

    if optional and (value is None or value == NONE):
        return None
    try:
        return read(value)
    except ValidationError as error:
        if isinstance(value, Mapping):
            raise
        sentences = [sentence(detail, {}) for detail in error.errors()]
        raise ValueError(", ".join([*sentences, *([f'or "{NONE}"'] * optional)])) from None


def read_either(plain_hint: Any, cls: Any, value: Any, info: ValidationInfo) -> Any:
    """A table as the dataclass, anything else as the plain type. So no error names a type that was not
    meant."""
    if isinstance(value, cls):
        return value
    read = adapter(cls if isinstance(value, Mapping) else plain_hint).validate_python(
        value, context=info.context
    )
    return construct(cls, read) if isinstance(value, Mapping) else read


def construct(cls: Any, values: Mapping[str, Any]) -> Any:
    """Call the constructor of a dataclass with values of its fields' types. Raises ValueError with a message
    for each fault: "field: must be ...", or ": ..." about the whole table."""
    absent = [
        f.name
        for f in dataclasses.fields(cls)
        if f.init and f.name not in values and f.default is f.default_factory is dataclasses.MISSING
    ]
    if absent:
        others = f", which {whose(cls)} gives no default" if foreign(cls) else ""
        raise ValueError(f": missing {', '.join(absent)}{others}")
    try:
        return cls(**values)
    except Exception as error:
        has_message = (
            isinstance(error, ValueError) and error.args
        )  # pydantic's own, of others' code, has none
        if has_message or not foreign(cls):
            raise
        frame = innermost(error, files_of(cls))
        why = f"{whose(cls)} cannot be made with its settings: {describe_error(error)}"
        raise ValueError(f": {frame.message if frame else why}") from error


def foreign(cls: type) -> bool:
    """Whether a class is others' code."""
    return not str(cls.__module__).startswith("grpobench.")


def files_of(cls: type) -> set[Path]:
    """The files of a class of others and of its bases."""
    modules = [sys.modules.get(base.__module__) for base in cls.__mro__ if foreign(base)]
    return {Path(file).resolve() for module in modules if (file := getattr(module, "__file__", None))}


def whose(cls: type) -> str:
    """A class of others with its file and line."""
    from grpobench.algorithms.returned import line_of  # which loads torch

    return f"{line_of(cls)} {cls.__name__}".lstrip()


# Errors in words of a recipe


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


def explain(
    error: ValueError,
    hint: Any,
    value: Any,
    path: Where,
    elsewhere: Mapping[str, KeyPath],
) -> Iterator[str]:
    """A message for each error, with its path and what was given, in the order of the table."""
    from pydantic import ValidationError

    ranks = {key: index for index, key in enumerate(value)} if isinstance(value, Mapping) else {}
    details: list[Any] = [{"type": "value_error", "loc": (), "ctx": {"error": error}}]
    if isinstance(error, ValidationError):
        details = sorted(
            error.errors(include_url=False), key=lambda each: ranks.get((*each["loc"], "")[0], 0)
        )
    for detail in details:
        location = detail["loc"]
        if detail["type"] == "extra_forbidden":
            *parts, key = location
            valid = hints(inside(hint, parts))
            yield unknown(path_to(path, parts), key, valid, {} if parts else elsewhere)
        elif location[-1:] == ("[key]",):
            *parts, key, _ = location
            yield unknown(path_to(path, parts), str(key), quoted(detail["ctx"]["expected"]))
        elif detail["type"] == "value_error":
            yield from of_constructor(detail["ctx"]["error"], inside(hint, location), path, location)
        else:
            yield f"{path_to(path, location)}: {sentence(detail, bounds_of(hint))}"


def of_constructor(error: ValueError, cls: Any, path: Where, location: Sequence[int | str]) -> Iterator[str]:
    """The messages of a dataclass's constructor, or of a validator, each with the path of its field."""
    for message in map(str, error.args):
        field, inner, text = blame(message, hints(cls) if is_table(cls) else ())
        at = path_to(path, [*location, field] if field else location) + inner
        yield f"{at or cls.__name__}: {text}"


def path_to(path: Where, location: Sequence[int | str]) -> KeyPath:
    """The path of a location inside a value."""
    if callable(path):
        path, location = path(str(location[0]) if location else ""), location[1:]
    for step in location:
        path = f"{path}[{step}]" if isinstance(step, int) else join(path, step)
    return path


def inside(hint: Any, location: Sequence[int | str]) -> Any:
    """The type at a location inside a type. Where a type has several types for what is in it, the last one,
    as of a mapping."""
    if is_table(hint):
        return inside(hints(hint)[str(location[0])], location[1:]) if location else hint
    inner = [kind for kind in get_args(hint) if kind not in (types.NoneType, Ellipsis)]
    if get_origin(hint) in UNIONS:
        return inside(next(filter(is_table, inner), inner[0]), location)
    return inside(inner[-1], location[1:]) if location and inner else hint


def sentence(error: ErrorDetails, bounds: Mapping[str, float]) -> str:
    """What is wrong, without the path."""
    kind, value = error["type"], error["input"]
    if kind == "value_error":
        return ", ".join(map(str, error["ctx"]["error"].args))
    if kind == "literal_error":
        expected = error["ctx"]["expected"]
        did = did_you_mean(value, quoted(expected), form="{!r}") if isinstance(value, str) else ""
        return f"must be {expected}, not {describe(value)}{f'; {did}' if did else ''}"
    if kind in OUT_OF_BOUNDS:
        return f"must be {within(bounds, value)}, not {describe(value)}"
    return f"must be {WANTED[kind]}, not {describe(value)}" if kind in WANTED else error["msg"]


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


def blame(message: str, fields: Iterable[str]) -> tuple[str, str, str]:
    """(field, path inside it, text) of a message such as "field[1]: must be ...". A message without a field
    at its start is about the first field that it names, or else about the table."""
    match = re.match(r"(\w*)([.\[][^:\s]*)?: (.*)", message, re.DOTALL)
    if match and match[1] in ("", *fields):
        return match[1], match[2] or "", match[3]
    return next((word for word in re.findall(r"\w+", message) if word in fields), ""), "", message


# What a dataclass demands of its fields


@functools.cache
def bounded_hints(cls: type) -> dict[str, Any]:
    """The type hints with bounds of a dataclass's fields, such as ``Annotated[int, Ge(1)]``."""
    with_bounds, bare = typing.get_type_hints(cls, include_extras=True), hints(cls)
    return {name: with_bounds[name] for name in bare if with_bounds[name] != bare[name]}


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
