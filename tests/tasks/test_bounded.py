"""Readers of files that somebody else may have written: what they refuse, and how much memory they take."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from grpobench.tasks.data import bounded
from grpobench.tasks.data.bounded import FileError

MIB = 1 << 20
SUFFIXES = ("", ".gz", ".zst")


def packed(path: Path, content: bytes) -> Path:
    """A file whose suffix says how it is compressed."""
    squeeze: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    }
    path.write_bytes(squeeze.get(path.suffix, bytes)(content))
    return path


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bounded.VARIABLE, str(MIB))  # a JSON text may have 32 KiB


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_content_up_to_the_limit_is_read_and_a_byte_more_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    assert bounded.read_bytes(packed(path, b"x" * MIB)) == b"x" * MIB
    with pytest.raises(FileError, match=rf"{path}: holds more than 1 MiB.*{bounded.VARIABLE}=2097152"):
        bounded.read_bytes(packed(path, b"x" * (MIB + 1)))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bomb_takes_no_more_memory_than_the_limit(tmp_path: Path, suffix: str) -> None:
    bomb = packed(tmp_path / f"bomb{suffix}", bytes(128 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="after decompression"):
            bounded.read_bytes(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 * MIB  # the limit, its copy, and what one piece of a zstd frame can make: 32 MiB


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_lines_are_those_of_split_and_a_long_one_is_refused_by_number(tmp_path: Path, suffix: str) -> None:
    content = b"a\n\n" + b"b" * 32768 + b"\nend"
    path = packed(tmp_path / f"rows{suffix}", content)
    assert list(bounded.lines(path)) == content.splitlines(keepends=True)
    with pytest.raises(FileError, match="line 2 has more than 32 KiB"):
        list(bounded.lines(packed(path, b"a\n" + b"b" * 32769 + b"\n")))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_compressed_file_that_was_cut_is_refused(tmp_path: Path, suffix: str, cut: int) -> None:
    path = packed(tmp_path / f"rows{suffix}", os.urandom(4096))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(FileError, match=r"damaged|not a whole gzip file"):
        bounded.read_bytes(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 30_000, "100 brackets"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "100 brackets"),
        (b'{"a": ' + b"9" * 309 + b"}", "309 digits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"a": \0}', "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b"", "not JSON"),
        (b"[]", "must contain a JSON object"),
        (b'"text"', "must contain a JSON object"),
        (b" " * 32769, "32 KiB"),
    ],
)
def test_a_damaged_document_is_refused_by_name(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=reason) as caught:
        bounded.read_object(path)
    assert str(path) in str(caught.value)
    assert bounded.object_or_empty(path) == {}


@pytest.mark.parametrize(
    "content", ['{"a": NaN}', '{"a": "\\ud800"}', '{"a": 1, "a": 2}', "[" * 100 + "]" * 100]
)
def test_what_python_itself_writes_is_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "status.json"
    path.write_text(content, encoding="utf-8")
    assert repr(bounded.read_json(path)) == repr(json.loads(content))


def test_a_byte_order_mark_inside_a_file_is_named_as_json_names_it(tmp_path: Path) -> None:
    """Two files with one, put together."""
    with pytest.raises(json.JSONDecodeError) as python:
        json.loads("\ufeff1")
    with pytest.raises(json.JSONDecodeError) as ours:
        bounded.parse_json("\ufeff1")
    assert str(ours.value) == str(python.value)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(FileError, match=r"not a regular file|Is a directory"):
            bounded.read_bytes(path)
    with pytest.raises(FileNotFoundError):
        bounded.read_bytes(tmp_path / "absent")
    with pytest.raises(FileError, match="null"):
        bounded.read_bytes(Path("a\0b"))


@pytest.mark.parametrize("text", ["0", "-1", "1e9", "much"])
def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(bounded.VARIABLE, text)
    with pytest.raises(FileError, match=bounded.VARIABLE):
        bounded.max_bytes()
