"""Locks: the program that is graded is the last complete one outside of a thought, whole, with what it needs;
what other libraries read of the same completions is kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.rows import write_rows
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs import cli
from grpobench.tasks.grading import reading, readings
from grpobench.tasks.sandbox import choose
from grpobench.tasks.sandbox.protocol import Tier

KEPT = readings.load()
NAMED = {(completion.kind, completion.what): completion for completion in KEPT}


# The table


def test_the_table_has_at_least_forty_completions_and_none_twice() -> None:
    assert len(KEPT) >= 40
    assert len({(completion.text, completion.begun) for completion in KEPT}) == len(NAMED) == len(KEPT)
    kinds = Counter(completion.kind for completion in KEPT)
    assert {"several blocks", "parts", "thought", "list or quotation", "no fence", "form"} <= kinds.keys()
    assert {completion.right for completion in KEPT if completion.kind == "thought"} == {True, False}


def test_ours_reads_in_each_what_should_be_read(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Monty as well, but for a class with `__new__` and the module `operator`, which it lacks."""
    monkeypatch.setattr(readings, "TIER", tier)
    lacks = {
        completion.text
        for completion in KEPT
        if tier == "monty"
        and ("operator" in completion.text or "__new__" in completion.text or "typing" in completion.text)
    }
    fitting = [completion for completion in KEPT if completion.text not in lacks]
    results = readings.say(readings.ours, fitting)
    now = [
        replace(completion, said={readings.OURS: result})
        for completion, result in zip(fitting, results, strict=True)
    ]
    assert list(readings.faults(fitting, now)) == []
    assert [completion.said[readings.OURS] for completion in fitting] == results
    assert len(fitting) >= 60


@pytest.mark.parametrize("reader", readings.READERS, ids=lambda reader: reader.name)
def test_others_read_what_is_kept(reader: readings.Reader) -> None:
    if lack := reader.missing():
        pytest.skip(lack)
    assert readings.say(reader.read, KEPT) == [completion.said[reader.name] for completion in KEPT]


def test_reader_that_is_not_here_says_what_to_install() -> None:
    absent = replace(readings.READERS[0], name="no_such", package="no-such-package", version="1.2")
    expected = "no_such: no-such-package is not here; it takes pip install 'no-such-package==1.2'"
    assert absent.missing() == expected


def test_command_fails_where_ours_reads_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if choose.choose("auto")[0] is None:
        pytest.skip("no sandbox")
    rows = [NAMED["one block", "no language"].row(), NAMED["thought", "draft in a thought"].row()]
    path = write_rows(tmp_path / "completions.jsonl", rows)
    monkeypatch.setattr(readings, "TABLE", path)
    monkeypatch.setattr(readings, "READERS", ())
    monkeypatch.setattr(readings, "EACH", (readings.OURS,))
    assert cli.main(["tasks", "readings"]) == 0
    assert "ours: 2 of 2 programs read as they should be" in capsys.readouterr().out
    rows[1]["right"] = False
    write_rows(path, rows)
    assert cli.main(["tasks", "readings", "--keep", "--json"]) == 70
    assert [completion.said[readings.OURS] for completion in readings.load()] == ["right", "right"]


def test_file_is_as_it_is_written() -> None:
    assert readings.as_text(KEPT) == readings.TABLE.read_text(encoding="utf-8")


# Blocks and stretches


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("```\na\n```\nb\n```\nc\n```", ["a", "c"]),
        ("~~~\na\n```\nb\n~~~", ["a\n```\nb"]),
        ("````\na\n```\nb\n````", ["a\n```\nb"]),
        ("```\na\n    ```\nb\n```", ["a\n    ```\nb"]),
        ("1. ```\n   a\n     b\n   ```", ["a\n  b"]),
        ("> ```\n> a\n> ```\nb", ["a"]),
        ("> ```\n> a > b\nc > d\n> ```", ["a > b\nc > d"]),
        ("use ``` to fence", []),
        ("```\na", ["a"]),
        ("```", [""]),
        ("", []),
    ],
)
def test_contents_of_blocks(text: str, codes: list[str]) -> None:
    assert [block.code for block in reading.fenced(text)] == codes


def test_names_that_a_program_needs_are_those_it_does_not_bind() -> None:
    code = (
        "import os\nX = 1\ndef f(a):\n    b = g(a) + X\n    return [c(b) for d in os.e]\n"
        "class K(L):\n    m = n\n"
    )
    assert reading.free(code) == {"g", "c", "L", "n"}
    assert reading.free("def f(:") == set()


def test_imports_from_the_future_come_first_and_nothing_else_moves() -> None:
    truth = {"entry": "add", "before": "import math", "header": "", "after": "x = 1"}
    text = "```\nimport os\nfrom __future__ import annotations\ndef add(a, b):\n    return a\n```"
    source = reading.program(text, truth)
    assert source == (
        "from __future__ import annotations\nimport math\nimport os\n\ndef add(a, b):\n    return a\nx = 1"
    )


def test_what_the_prompt_brings_is_not_taken_from_the_completion() -> None:
    truth = {"entry": "add", "before": "def plus(a, b):\n    return a + b", "header": "", "after": ""}
    helper = "```\ndef plus(a, b):\n    return 0\n```\n```\ndef add(a, b):\n    return plus(a, b)\n```"
    source = reading.program(helper, truth)
    assert source is not None and source.count("def plus") == 1 and "return 0" not in source


@pytest.mark.parametrize("header", ["", readings.HEADER])
@given(
    text=st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            ["```", "~~~", "python", "\n", "    ", "def add(a, b):", "return a", "<think>", "</think>"]
        )
        | st.text("`>-1. \n\0\ud800", max_size=3),
        max_size=25,
    ).map("".join)
)
def test_no_text_breaks_the_reading(header: str, text: str) -> None:
    truth = {"entry": "add", "before": "", "header": header, "after": ""}
    source = reading.program(text, truth)
    assert source is None or isinstance(source, str)


HOSTILE = {
    "fences": "```\n" * 20_000,
    "lists": "- " * 40_000 + "```",
    "quotations": "> " * 40_000 + "```\na",
    "marks": "1. " * 30_000,
    "thoughts": "<think>" * 20_000 + "</think>" * 20_000,
    "brackets": "```\n" + "(" * 50_000 + "\n```",
    "minus": "```\nx = " + "-" * 50_000 + "1\n```",
    "chunks": "x = 1\nyy\n" * 5_000 + "(",
    "open chunks": "```\n" + "x = (\n" * 8_000,
    "backticks": "`" * 100_000 + "a",
    "words": "a " * 50_000 + "```",
    "tildes": "~" * 100_000 + "`",
    "tildes behind words": "a~~~" * 25_000 + "`",
    "inline": "```a" * 25_000,
    "spaces": "> ```\n" + " " * 100_000 + "a\n```",
    "long code, then prose": "```\n" + "x = 1\n" * 20_000 + "no code\n" * 60,
    "helpers": "".join(f"```\ndef f{i}():\n    return f{i + 1}()\n```\n" for i in range(400))
    + "```\ndef add(a, b):\n    return f0()\n```",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_read(name: str) -> None:
    """Each takes well under a second; one whose steps grow with the square of the length does not end."""
    truth = {"entry": "add", "before": "", "header": readings.HEADER, "after": ""}
    source = reading.program(HOSTILE[name], truth)
    assert source is None or len(source) < 2 * len(HOSTILE[name]) + 1_000
