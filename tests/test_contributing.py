"""The examples of CONTRIBUTING.md run as they stand."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every code block whose first line is a path, written to a file of that name."""
    blocks = re.findall(r"^```\w+\n(# (\S+\.\w+)\n.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    for text, path in blocks:
        (tmp_path / Path(path).name).write_text(text, encoding="utf-8")
    return tmp_path


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
