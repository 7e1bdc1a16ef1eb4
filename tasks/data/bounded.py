"""Read files that somebody else may have written, with limits on bytes and depth."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, cast

VARIABLE: Final = "GRPOBENCH_MAX_BYTES"
DEFAULT: Final = 1 << 30
PIECE: Final = 1 << 18
"""Bytes that are decompressed at a time."""
ARRAY: Final = 8
"""A JSON array, which is read as a whole, may have this part of the bytes of a file that is read by line."""
FRAME_PIECE: Final = 1 << 10
"""Compressed bytes given to zstd at a time, which makes at most 32768 times as many of them."""
WINDOW: Final = 1 << 27
"""Memory in bytes that a zstd file may demand for its window."""
MAX_DEPTH: Final = 100
MAX_DIGITS: Final = 308
"""Digits of an integer; one with more fits into no float."""


class FileError(ValueError):
    """A file is damaged, too large or not a regular file. The message is `path` and `reason`."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def max_bytes() -> int:
    """Bytes that a file may hold after decompression. Raises FileError for a variable that is no number.

    1 GiB, or what the variable GRPOBENCH_MAX_BYTES says."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return DEFAULT
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0):
        raise FileError(
            VARIABLE, f"must be a number of bytes above 0, not {text:.40}; the default is {DEFAULT}"
        )
    return int(text)


def max_text() -> int:
    """Bytes that one JSON document, or one line, may hold."""
    return max(max_bytes() // 32, 1)


def max_array() -> int:
    """Bytes that a JSON array of rows may hold."""
    return max(max_bytes() // ARRAY, 1)


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises FileNotFoundError if it is absent, FileError for a folder, a
    FIFO or a device, and for what the system refuses.

    A FIFO or a device would never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise FileError(path, f"cannot be read ({reason}); restore it") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise FileError(path, "cannot be read (Is a directory); restore it")
        raise FileError(path, "not a regular file; remove what stands there, and restore the file")
    return os.fdopen(descriptor, "rb")


def pieces(path: Path, limit: int | None = None, packed: bool = True) -> Iterator[bytes]:
    """The content of a file in pieces, without its compression if it has one and `packed` is true. Raises
    FileError for more than `limit` bytes (`max_bytes()` without one) and for a damaged file."""
    most = max_bytes() if limit is None else limit
    count = 0
    with open_file(path) as file:
        if not packed or path.suffix not in (".gz", ".zst"):
            demand_size(path, os.fstat(file.fileno()).st_size, most)
        try:
            for piece in _decompressed(path, file) if packed else iter(lambda: file.read(PIECE), b""):
                count += len(piece)
                demand_size(path, count, most)
                yield piece
        except (OSError, EOFError, zlib.error) as error:
            kind = "not a whole gzip file" if path.suffix == ".gz" else "damaged"
            raise FileError(path, f"{kind} ({error}); restore the file") from error


def demand_size(path: Path | str, count: int, most: int) -> None:
    """Raise FileError if a file, or a data set of that name, holds more bytes than it may."""
    if count > most:
        unpacked = " after decompression" if str(path).endswith((".gz", ".zst", ".parquet")) else ""
        raise FileError(
            path,
            f"holds more than {size_text(most)}{unpacked}, which is the limit; replace the file, or "
            f"raise the limit: {VARIABLE}={2 * max_bytes()}",
        )


def size_text(count: int) -> str:
    """``32 MiB``; bytes where that is not exact."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift and not count % (1 << shift):
            return f"{count >> shift} {unit}"
    return f"{count} bytes"


def _decompressed(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    if path.suffix == ".zst":
        yield from _frames(file)
        return
    source = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
    while piece := source.read(PIECE):
        yield piece


def _frames(file: IO[bytes]) -> Iterator[bytes]:
    """The content of one zstd frame. Raises OSError for a damaged frame, one that was cut (zstandard's reader
    of streams accepts that) and one that bytes follow."""
    import zstandard  # here, because the interpreter of a sandbox, which reads no such file, may lack it

    frame = zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj()
    while piece := file.read(FRAME_PIECE):
        if frame.eof:
            raise OSError("bytes follow the end of its frame")
        try:
            yield frame.decompress(piece)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        if frame.unused_data:
            raise OSError("bytes follow the end of its frame")
    if not frame.eof:
        raise OSError("its end is missing")


def read_bytes(path: Path, limit: int | None = None, packed: bool = True) -> bytes:
    """The content of a file, at most `limit` bytes of it; see `pieces`."""
    return b"".join(pieces(path, limit, packed))


def head(path: Path, count: int) -> bytes:
    """The first `count` bytes of a file, as they stand there."""
    with open_file(path) as file:
        return file.read(count)


def sha256(path: Path) -> str:
    """The sha256 of a file of any size, in hexadecimal."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_utf8(content: bytes) -> bytes:
    """The same text in UTF-8 without a byte-order mark. UTF-16 is recognized by its mark, and half a
    character at the end of the content becomes U+FFFD. Content without a mark is returned as it is."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode("utf-8", errors="replace")
    return content.removeprefix(codecs.BOM_UTF8)


def read_text(path: Path, limit: int | None = None, errors: str = "strict") -> str:
    """The content of a text file of at most `limit` bytes (`max_text()` without one), with every line end as
    a newline. It is in UTF-8, or in UTF-16 if a byte-order mark says so. Raises FileError; with `errors` as
    "replace", bytes that are no text become U+FFFD."""
    content = as_utf8(read_bytes(path, max_text() if limit is None else limit))
    try:
        text = content.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise FileError(path, f"not UTF-8 text ({error}); save it as UTF-8, or restore it") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def lines(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """The lines of a file, each with its line end, but for a last one without. Raises FileError for a line of
    more than `max_text()` bytes, before the rest of it is read."""
    most, partial_line, number = max_text(), b"", 1
    for piece in pieces(path, limit):
        parts = piece.split(b"\n")
        partial_line += parts[0]
        for part in parts[1:]:
            demand_line(path, number, partial_line, most)
            yield partial_line + b"\n"
            partial_line, number = part, number + 1
        demand_line(path, number, partial_line, most)
    if partial_line:
        yield partial_line


def utf8_lines(path: Path) -> Iterator[bytes]:
    """`lines` of a text file in UTF-8 or UTF-16, as UTF-8 without its byte-order mark."""
    source = lines(path)
    first = next(source, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # A line end in UTF-16 has two bytes, and a byte of another character can look like one.
        yield from as_utf8(read_bytes(path)).splitlines(keepends=True)
        return
    if first:
        yield as_utf8(first)
    yield from source


def demand_line(path: Path | str, number: int, line: bytes, most: int) -> None:
    """Raise FileError for a line that is too long."""
    if len(line) > most:
        raise FileError(
            path,
            f"line {number} has more than {size_text(most)}, which is the limit; split or delete it, or "
            f"raise the limit: {VARIABLE}={2 * max_bytes()}",
        )


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError (JSONDecodeError is one) for text that is not JSON, for
    more than `MAX_DEPTH` brackets inside each other, and for an integer that fits into no float."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")  # as json.loads does
    elif text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} brackets inside each other") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise ValueError(f"more than {MAX_DEPTH} brackets inside each other")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large for a number")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)
"""One for all lines of a log: `json.loads` makes one for each."""


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True


def read_json(path: Path, remedy: str = "restore the file") -> Any:
    """The value in a JSON file, which may be compressed. Raises FileError, which ends with `remedy`, for a
    file that is absent or damaged."""
    try:
        content = read_bytes(path, max_text())
    except FileNotFoundError as error:
        raise FileError(path, f"not found; {remedy}") from error
    try:
        return parse_json(content)
    except json.JSONDecodeError as error:
        raise FileError(f"{path}, line {error.lineno}", f"not JSON ({error}); {remedy}") from error
    except ValueError as error:
        raise FileError(path, f"not JSON ({error}); {remedy}") from error


def read_rows(path: Path) -> list[Any]:
    """The values of the lines of a JSON-lines file that are not blank. Raises FileError with the number of a
    damaged line."""
    rows = []
    for number, line in enumerate(lines(path), 1):
        try:
            rows += [parse_json(line)] if line.strip() else []
        except ValueError as error:
            raise FileError(f"{path}, line {number}", f"not JSON ({error}); restore the file") from error
    return rows


def read_toml(path: Path, remedy: str = "restore the file") -> dict[str, Any]:
    """The tables of a TOML file. Raises FileError, which ends with `remedy`, for a file that is absent or
    damaged, or has more than `MAX_DEPTH` tables inside each other."""
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise FileError(path, f"not found; {remedy}") from error
    try:
        table = tomllib.loads(text)
        if _is_deep(table):
            raise ValueError(f"more than {MAX_DEPTH} tables inside each other")
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError says at which line and column
        match = re.search(r"line (\d+)", str(error))
        line = f", line {match[1]}" if match else ""
        raise FileError(f"{path}{line}", f"not TOML ({error}); {remedy}") from error
    return table


def read_object(path: Path, remedy: str = "restore the file") -> dict[str, Any]:
    """The object in a JSON file. Raises FileError as `read_json` does, and for any other value."""
    content = read_json(path, remedy)
    if not isinstance(content, dict):
        raise FileError(path, f"must contain a JSON object; {remedy}")
    return content


def read_object_if_any(path: Path, remedy: str = "restore the file") -> dict[str, Any]:
    """`read_object`; empty where there is no file."""
    return read_object(path, remedy) if os.path.lexists(path) else {}


def object_or_empty(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where the file is absent or damaged. Only for readers that can do
    without it."""
    with contextlib.suppress(FileError):
        return read_object(path)
    return {}
