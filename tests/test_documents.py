"""Documents that lead through the code: a program runs as it stands, and the files that are named exist."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from helpers.block_commands import context
from helpers.programs import here

from grpobench.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]


def test_one_step_by_hand_gives_the_trainers_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "one-step.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "one_step.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert here("one_step.py").splitlines()[-1] == "all weights are equal"
    assert len(program.splitlines()) <= 120


def test_files_that_the_guides_name_exist() -> None:
    names = ("runs/README.md", "docs/architecture.md", "CONTRIBUTING.md", "AGENTS.md")
    for guide in (ROOT / name for name in names):
        paths = re.findall(r"`((?:algorithms|tasks|runs|analysis|tests|docs)/[\w./-]*)`", guide.read_text())
        paths = [name for name in paths if "NAME" not in name and "batch_reinforce" not in name]
        absent = {name for name in paths if not (ROOT / name).exists()}
        assert paths and not absent, f"{guide.name} names {absent}"


def test_the_page_for_agents_fits_on_a_screen() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_every_fault_has_a_test_that_exists() -> None:
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("| ") and not line.startswith("| fault |")]
    for line in table:
        fault, _, _, tests = (cell.strip() for cell in line.strip("|").split("|"))
        references = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
        assert references and len(references) == tests.count("`") / 2, f"{fault} names no test"
        absent = [f"{path}::{name}" for path, name in references if f"def {name}(" not in source(path)]
        assert not absent, f"{fault} names {absent}"
    assert len(table) > 25


def source(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.exists() else ""


def test_each_algorithms_own_tests_are_found_by_its_name() -> None:
    """By `pytest tests/algorithms -k NAME`: a file, a test or a case has it, beside what holds for all."""
    folder = ROOT / "tests" / "algorithms"
    common = {"test_conformance.py", "test_dialects.py", "test_verl_arguments.py"}
    text = "\n".join(path.read_text() for path in folder.glob("test_*.py") if path.name not in common)
    for name in ALGORITHMS:
        has_file = (folder / f"test_{name}.py").exists()
        assert has_file or re.search(rf'def test_(\w+_)?{name}[_(]|"{name}[", ]', text), name


def test_every_room_of_runs_stands_in_its_guide() -> None:
    guide = (ROOT / "runs" / "README.md").read_text(encoding="utf-8")
    rooms = {path.name for path in (ROOT / "runs").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(re.findall(r"^\| `(\w+)/` \|", guide, re.M))


def test_the_readme_says_what_setting_up_takes() -> None:
    """As many packages as the lock holds, the disk that they need, and from where they come."""
    packages = (ROOT / ".ci" / "lock.txt").read_text(encoding="utf-8").count("==")
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{packages} packages" in text
    assert re.search(r"\d\.\d GB of disk", text) and "package index" in text


def test_the_readme_is_read_aloud_in_ninety_seconds() -> None:
    """At 160 words a minute, an audiobook's pace; pictures, addresses and code are not read."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for silent in (r"```.*?```", r"!\[[^\]]*\]\([^)]*\)", r"(?<=\])\([^)]*\)"):
        text = re.sub(silent, "", text, flags=re.S)
    assert len(re.findall(r"[\w.]*\w", text)) <= 1.5 * 160


def test_every_row_of_measured_speeds_has_a_command_that_exists() -> None:
    """In each table of the page with a column of commands; the README has no speeds."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| command \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.M)
    rows = [line for table in tables for line in table.splitlines()]
    for row in rows:
        (command,) = re.findall(r"^\| `(grpobench bench .*?)` \|", row)
        context(shlex.split(command)[1:])  # fails for words that the command line does not take
    assert rows
    assert not re.search(r"tokens/s|tokens per second|TRL ÷ ours", (ROOT / "README.md").read_text("utf-8"))


def test_the_picture_of_the_report_is_small_enough_for_a_readme() -> None:
    picture = ROOT / "docs" / "figures" / "report.png"
    assert "](docs/figures/report.png)" in (ROOT / "README.md").read_text(encoding="utf-8")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) < 300_000
    assert int.from_bytes(content[16:20], "big") == 1400  # the width of the screen


def test_the_front_page_counts_the_claims_that_there_are() -> None:
    """Each row of the table of claims has one of three states."""
    page = (ROOT / "docs/claims.md").read_text("utf-8")
    rows = re.findall(r"\| (decided|undecided|registered)(?:: [^|]*)? \|$", page, re.M)
    states = Counter(rows)
    counts = f"{states['decided']} decided, {states['undecided']} partly or not"
    counts += f", {states['registered']} waiting" * (states["registered"] > 0)
    assert f"[{len(rows)} claims](docs/claims.md), {counts}" in (ROOT / "README.md").read_text("utf-8")
