"""The examples of CONTRIBUTING.md run as they stand."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "CONTRIBUTING.md"
FILES = {
    path: text
    for text, path in re.findall(
        r"^```\w+\n(# (\S+\.\w+)\n.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S
    )
}
"""The code blocks whose first line is a path, by path."""
CHANGES = re.findall(r"^```diff\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
"""The changes of files that exist, as diffs."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds every file of the guide by its name."""
    for path, text in FILES.items():
        (tmp_path / Path(path).name).write_text(text, encoding="utf-8")
    return tmp_path


def apply(change: str, root: Path, *options: str) -> None:
    done = subprocess.run(
        ["git", "apply", *options, "-"], cwd=root, input=change, text=True, capture_output=True, check=False
    )
    assert not done.returncode, f"{done.stderr}\n{change}"


def test_changes_of_the_guide_fit_the_files() -> None:
    assert len(CHANGES) == 6
    for change in CHANGES:
        apply(change, ROOT, "--check")


def load(file: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> object:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_example_algorithm_passes_its_example_tests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder / "batch_reinforce.py", "grpobench.algorithms.batch_reinforce", monkeypatch)
    tests = load(folder / "test_batch_reinforce.py", "test_batch_reinforce", monkeypatch)
    tests.test_gradient_is_the_centered_reward_over_all_tokens()
    for reward in (0.0, 1.0):
        tests.test_equal_rewards_give_no_gradient(reward)


def test_example_recipe_reads_with_the_example_algorithm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpobench.algorithms import ALGORITHMS
    from grpobench.runs.settings.recipe import read_recipe

    module = load(folder / "batch_reinforce.py", "grpobench.algorithms.batch_reinforce", monkeypatch)
    monkeypatch.setitem(ALGORITHMS, "batch_reinforce", module.BatchReinforce)
    runs = read_recipe(str(folder / "baseline.toml")).runs()
    assert [(run.arm, run.seed) for run in runs[::3]] == [
        ("grpo", 0),
        ("batch_reinforce", 0),
        ("no-baseline", 0),
    ]
    assert [run.algorithm.center for run in runs[3::3]] == [True, False]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tracked files in which the guide was followed, as a repository of its own."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    root = tmp_path / "copy"
    for name in listed.splitlines():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path, follow_symlinks=False)
    for name, text in FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    for change in CHANGES:
        apply(change, root)
    return root


@pytest.mark.slow
def test_guide_followed_to_the_letter_passes_the_gates(copy: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy / ".src"), "OMP_NUM_THREADS": "1"}

    def call(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=copy,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
        assert not done.returncode, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    call("grpobench", "docs")
    call("ruff", "check", ".")
    call("ruff", "format", "--check", ".")
    call("mypy")
    call("pytest", "-q", "tests/test_rooms.py")
    call("pytest", "-q", "tests/algorithms/test_batch_reinforce.py")
    general = "tests/algorithms/test_conformance.py", "tests/runs/inventory/test_pages.py"
    call("pytest", "-q", *general, "-k", "batch_reinforce")
    call("grpobench", "tasks", "check", "parity")
    assert call("grpobench", "seeds", "baseline") == "0 1 2\n"
    small = {"seeds": "[0, 1]", "train.steps": 2, "train.prompts_per_step": 4, "evaluate.test_problems": 8}
    sets = [
        word
        for key, value in {**small, "reward.negate": "true"}.items()
        for word in ("--set", f"{key}={value}")
    ]
    call("grpobench", "run", "baseline", "--workers", "1", *sets)
    assert list((copy / "results/baseline/report").rglob("median_length.*"))
    refused = subprocess.run(
        [sys.executable, "-m", "grpobench", "run", "baseline", "--dry-run", "--set", "reward.negate=2"],
        cwd=copy,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert refused.returncode == 2 and "reward.negate" in refused.stderr
