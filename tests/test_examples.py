"""Every folder of examples/ stands alone: its recipes run as they stand, with few steps."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import grpobench

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RECIPES = sorted(EXAMPLES.glob("*/*.toml"))
SMALL = {
    "train.steps": 1,
    "train.prompts_per_step": 2,
    "train.group_size": 2,
    "train.num_minibatches": 1,
    "evaluate.problems": 2,
    "evaluate.test_problems": 2,
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_an_example_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    assert len(grpobench.recipe(path).head.seeds) >= 6  # a verdict is possible


def test_the_table_names_every_example() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|.*\| `grpobench run (\S+)` \|$", table, re.M)
    assert sorted(listed) == [(path.parent.name, path.name) for path in RECIPES]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, id=path.parent.name, marks=[pytest.mark.slow] * (path.parent.name != "own_algorithm")
        )
        for path in RECIPES
    ],
)
def test_an_example_runs_elsewhere(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    example = Path(shutil.copytree(path.parent, tmp_path / path.parent.name))
    monkeypatch.chdir(example)
    recipe = grpobench.recipe(example / path.name)
    results = grpobench.run(example / path.name, set=SMALL, seeds=[0], workers=1, progress=False)
    assert len(results.arms) == len({config.arm for config in recipe.runs()})
    assert (results.runs["state"] == "finished").all()
