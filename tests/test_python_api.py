"""The pages on the Python interface: every example and every script runs as it stands there, and nothing that
is public is left out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import drawing
from helpers.programs import here, program

import grpobench

DOCS = Path(__file__).parents[1] / "docs"
API, SCRIPTS = DOCS / "python-api.md", DOCS / "scripts.md"


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, text) of each block of Python."""
    text = page.read_text(encoding="utf-8")
    matches = re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in matches]


def scripts() -> dict[str, str]:
    """The scripts by name, in the order of the page."""
    script_by_name = {text.partition("\n")[0].removeprefix("# "): text for _, text in blocks(SCRIPTS)}
    assert all(name.endswith(".py") for name in script_by_name)
    return script_by_name


def test_examples_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with drawing("final_accuracy", "reward"):
        for line, text in blocks(API):
            exec(compile("\n" * line + text, str(API), "exec"), names)  # errors tell the page's line
    results, compared = names["results"], names["compared"]
    assert results.runs["state"].tolist() == ["finished"] * 4
    assert names["longer"].runs()[0].train.steps == 100
    assert (tmp_path / "reward.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "results" / "tiny" / "report" / "index.html").is_file()
    assert list((tmp_path / "for-the-paper" / "tables").glob("*.tex"))
    assert [pair.task for pair in compared] == ["arithmetic"]
    assert names["figure"].get_figwidth() == 7.0


@pytest.fixture
def one_core() -> Iterator[None]:
    """The processes of the test see one core, so that a script starts one worker: most of what a small
    experiment
    costs is workers that import torch."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[os.getpid() % len(before)]})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    "run", [here, pytest.param(program, marks=pytest.mark.slow)], ids=["in this process", "as programs"]
)
def test_scripts_run_in_their_order_without_a_guard(
    run: Callable[[str], str], one_core: None, warm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program without a guard is started by test_matrices.py."""
    monkeypatch.chdir(tmp_path)
    script_by_name = scripts()
    assert 3 <= len(script_by_name) <= 5
    for name, text in script_by_name.items():
        assert "__main__" not in text
        (tmp_path / name).write_text(text, encoding="utf-8")
        written_file = tmp_path / run(name).splitlines()[-1]  # each ends with the path of what it made
        assert written_file.is_file() and written_file.stat().st_size, name
    width = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", (tmp_path / "accuracy.pdf").read_bytes())
    assert width is not None and float(width[1]) == pytest.approx(3.4 * 72)  # points


def test_the_page_leaves_nothing_public_out() -> None:
    text = API.read_text(encoding="utf-8")
    assert {name for name in grpobench.__all__ if f"grpobench.{name}" not in text} == set()
    for cls, stem in ((grpobench.Results, "results"), (grpobench.Compared, "compared")):
        public = {name for name in dir(cls) if not name.startswith("_")} - {"facts", "experiment", "pairs"}
        assert {name for name in public if f"{stem}.{name}" not in text} == set()
