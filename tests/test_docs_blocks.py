"""Every code block of every document is executed, or read by whatever would read it. A block that nothing can
execute fails, and so does one without a language that is no command."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from helpers.block_commands import (
    absences,
    carry_out,
    demand_extras,
    demand_json,
    demand_target,
    demand_usage,
    is_usage,
    known_recipe,
    lines,
)
from helpers.blocks import ELSEWHERE, ROOT, Block, blocks, spans
from helpers.pages import drawing

import grpobench
from grpobench.analysis.kept_tables import KINDS as TABLES
from grpobench.runs.inventory.marked import MARKER
from grpobench.runs.settings import observe, registries
from grpobench.runs.settings.findings import read_finding
from grpobench.runs.settings.recipe import read_recipe, read_table
from grpobench.runs.tools import toml
from grpobench.runs.tools.strict import ConfigError

BLOCKS = blocks()
SMALL = {
    "arms": ["grpo", "gspo"],
    "tasks": ["arithmetic"],
    "train.steps": 2,
    "train.prompts_per_step": 2,
    "train.group_size": 2,
    "train.num_minibatches": 1,
    "evaluate.problems": 4,
    "evaluate.test_problems": 4,
}
"""What makes the suite's recipes small where a page runs them."""
TEST = (
    '[[test]]\nname = "t"\noutcome = "accuracy"\nexpect = "higher"\nmatters = 0.1\ncontrast = { grpo = 1 }\n'
)
FINDING = '[nano]\ntasks = ["arithmetic"]\n[[nano.arm]]\nalgorithm = "grpo"\n'


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.kind == kind]


@cache
def folder_of(page: str, base: Path) -> Path:
    """The folder of a page, with the files that its blocks are."""
    folder = base / page.replace("/", "-")
    folder.mkdir()
    for block in BLOCKS:
        if block.page == page and block.name:
            (folder / Path(block.name).name).write_text(block.text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def inside(page: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's folder, as the current one."""
    folder = folder_of(page, base)
    monkeypatch.chdir(folder)
    return folder


def test_every_block_has_an_executor() -> None:
    unknown = [str(block) for block in BLOCKS if not block.kind]
    assert not unknown, f"give them a fence with a language (helpers/blocks.py): {unknown}"
    counts = Counter(block.kind for block in BLOCKS)
    assert sum(counts.values()) == len(BLOCKS) > 80 and min(counts["commands"], counts["toml"]) > 5, counts


@pytest.mark.parametrize("block", of_kind("elsewhere"))
def test_a_block_that_another_test_executes_has_that_test(block: Block) -> None:
    path, _, name = block.elsewhere.partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    assert f"def {name}" in source and Path(block.page).name in source


def test_no_test_is_named_for_a_block_that_is_gone() -> None:
    block_keys = {(block.page, key) for block in BLOCKS for key in (block.name, block.language)}
    assert set(ELSEWHERE) <= block_keys


@pytest.mark.parametrize("block", of_kind("commands"))
def test_commands_are_understood(
    block: Block, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inside(block.page, base, monkeypatch)
    commands = list(lines(block.text))
    assert commands
    for words in commands:
        carry_out(words, block.needs)


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.kind == "python"}))
def test_python_runs_in_the_order_of_its_page(
    page: str, base: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    inside(page, base, monkeypatch)
    monkeypatch.setattr(grpobench, "run", small_runs)
    names: dict[str, Any] = {"__name__": "page"}
    monkeypatch.setitem(sys.modules, "page", type(sys)("page"))  # where dataclasses look for names
    with drawing("final_accuracy"):
        for block in BLOCKS:
            if block.page == page and block.kind == "python":
                code = "\n" * (block.line - 1) + block.text  # errors name the page's line
                exec(compile(code, str(ROOT / page), "exec"), names)


RUN = grpobench.run


def small_runs(source: Any, **options: Any) -> grpobench.Results:
    """`grpobench.run`, with few steps for a recipe of the suite; other recipes stay as they are."""
    if known_recipe(source):
        options = {**options, "set": {**options.get("set", {}), **SMALL}, "workers": 1}
    return RUN(source, **options)


@pytest.mark.parametrize("block", of_kind("toml"))
def test_toml_is_read(block: Block, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = inside(block.page, base, monkeypatch)
    table = toml.read(block.text)
    with absences(block.needs):
        read(block, table, folder)


def read(block: Block, table: Mapping[str, Any], folder: Path) -> None:
    """A file of the page, a test of a finding, or a part of a recipe, put into the smallest one."""
    if block.name == "pyproject.toml":
        demand_entry_points(table)
    elif any(isinstance(table.get(kind), list) for kind in ("test", "check", "control")):
        test = "" if "test" in table else TEST
        (folder / "finding.toml").write_text(f'claim = "a"\nsource = "b"\n{block.text}\n{test}{FINDING}')
        finding = read_finding("finding.toml").finding
        assert len(finding.measured) == sum(
            len(table.get(kind, ())) for kind in ("test", "check", "control")
        ) + bool(test)
    elif block.name:
        assert read_recipe(Path(block.name).name).runs()
    else:
        assert read_table({**MINIMAL, **table}, block.text, "fragment", folder).runs()


MINIMAL: Mapping[str, Any] = {"tasks": ["arithmetic"], "arm": [{"algorithm": "grpo"}]}
"""What a part of a recipe is put into."""


def demand_entry_points(table: Mapping[str, Any]) -> None:
    """That the suite asks for these groups, and each point is `module:Name`."""
    groups = {observe.GROUP, *(f"grpobench.{kind}s" for kind in get_args(registries.Kind))}
    for group, points in table["project"]["entry-points"].items():
        assert group in groups
        assert all(re.fullmatch(r"[\w.]+:\w+", point) for point in points.values())


def test_json_is_read() -> None:
    for block in BLOCKS:
        if block.kind == "json":
            demand_json(block.text)
    demand_json('{"a": 1}\n{"a": 2}\n')
    with pytest.raises(ValueError):
        demand_json("{a: 1}")


@pytest.mark.parametrize("block", of_kind("request"))
def test_a_request_for_a_table_is_one(block: Block) -> None:
    (match,) = MARKER.finditer(block.text)
    assert match["asked"].split()[1] in TABLES


@pytest.mark.parametrize("block", of_kind("text"))
def test_text_holds_no_command_that_does_not_exist(block: Block) -> None:
    assert block.text.strip()
    for line in block.text.splitlines():
        if is_usage(line):
            demand_usage(line)


def test_what_is_wrong_with_a_block_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Block("a.md", 1, "rust", True, "fn main() {}").kind == ""
    assert Block("a.md", 1, "", False, "grpobench list tasks").kind == ""  # indented
    for command in (
        "A sentence",
        "grpobench run quickstart --sets a=1",
        "grpobench list taskss",
        "grpobench show task arithmetics",
        "make tset",
        "pip install grpobench[rays]",
        "python mine.py",
    ):
        with pytest.raises((AssertionError, ConfigError, pytest.fail.Exception)):
            carry_out(command.split())
    with pytest.raises(ConfigError, match="stesp"), absences(["vLLM"]):
        read(Block("a.md", 1, "toml", True, ""), {"train": {"stesp": 1}}, tmp_path)
    for usage in ("grpobench lists", "grpobench data list [--jsn]", "grpobench finding run|juge NAME"):
        with pytest.raises(AssertionError):
            demand_usage(usage)


SPANS = [span for span in spans() if re.match(r"grpobench |make |pip ", span[2])]


@pytest.mark.parametrize("page", sorted({page for page, _, _ in SPANS}))
def test_commands_in_sentences_exist(page: str) -> None:
    wrong = []
    for _, line, text in (span for span in SPANS if span[0] == page):
        with faults(wrong, f"{page}:{line} "):
            if is_usage(text):
                demand_usage(text)
            elif text.startswith("make "):
                demand_target(text.split()[:2])
            else:
                demand_extras([text])
    assert not wrong


@contextlib.contextmanager
def faults(into: list[str], prefix: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        into.append(f"{prefix}{error}")
