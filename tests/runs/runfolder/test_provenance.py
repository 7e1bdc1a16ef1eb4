"""The commit in a run's record, and whether files of the package differ from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from grpobench.runs.runfolder import provenance

ENTRY = ".src/grpobench/__init__.py"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed checkout that provenance takes for its own."""
    for name in (
        "algorithms/grpo.py",
        "runs/runfolder/provenance.py",
        "docs/index.md",
        "pyproject.toml",
        ENTRY,
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first\n", encoding="utf-8")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *author, *arguments], check=True)
    monkeypatch.setattr(provenance, "ROOMS", tmp_path)
    return tmp_path


def test_results_and_documents_are_no_changes(checkout: Path) -> None:
    (checkout / "out").mkdir()
    (checkout / "out/metrics.jsonl").write_text("{}\n", encoding="utf-8")
    (checkout / "docs/index.md").write_text("second\n", encoding="utf-8")
    record = provenance.commit.__wrapped__()
    assert len(record["commit"]) == 40
    assert (record["dirty"], record["diff"]) == (False, "")


@pytest.mark.parametrize("name", ["algorithms/grpo.py", "pyproject.toml", ENTRY])
def test_a_change_of_the_package_is_recorded_with_its_diff(checkout: Path, name: str) -> None:
    (checkout / name).write_text("second\n", encoding="utf-8")
    (checkout / "docs/index.md").write_text("second\n", encoding="utf-8")
    record = provenance.commit.__wrapped__()
    assert record["dirty"]
    assert "+second" in record["diff"]
    assert "docs" not in record["diff"]


def test_a_new_file_is_a_change_also_where_git_is_configured_to_hide_new_files(checkout: Path) -> None:
    (checkout / ".git/config").write_text("[status]\nshowUntrackedFiles = no\n", encoding="utf-8")
    (checkout / "algorithms/mine.py").write_text("x = 1\n", encoding="utf-8")
    assert provenance.commit.__wrapped__()["dirty"]


def test_a_copy_outside_of_a_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOMS", tmp_path)
    assert provenance.commit.__wrapped__() == {}
