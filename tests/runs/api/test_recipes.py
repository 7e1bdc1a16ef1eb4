"""Recipes in Python: a dict reads as the file with its structure does, and every error comes at once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grpobench
from grpobench.runs.settings.recipe import read_recipe, read_text, recipes

QUICKSTART = recipes()["quickstart"].read_text(encoding="utf-8")
TABLE: dict[str, Any] = {
    "name": "small",
    "tasks": ["sums"],
    "train": {"steps": 5},
    "arm": [{"algorithm": "plain"}, {"algorithm": "critic", "name": "second"}],
}


def test_a_dict_a_name_and_a_path_are_the_same_recipe(tmp_path: Path) -> None:
    path = tmp_path / "quickstart.toml"
    path.write_text(QUICKSTART, encoding="utf-8")
    table = tomllib.loads(QUICKSTART)
    from_dict = grpobench.recipe(table)
    assert from_dict.configs == read_recipe("quickstart").configs
    assert grpobench.recipe("quickstart") == read_recipe("quickstart")
    assert grpobench.recipe(path).configs == grpobench.recipe(str(path)).configs == from_dict.configs
    assert tomllib.loads(from_dict.text) == table  # what experiment.json keeps can be run again
    assert read_text(from_dict.text, "other", tmp_path).configs == from_dict.configs


def test_assignments_are_those_of_the_command_line(stands: None) -> None:
    assignments = ["train.steps=7", "arm.second.settings.clip=0.3", "seeds=[3, 4]", 'arms=["second"]']
    shell = grpobench.recipe(TABLE, set=assignments)
    python = grpobench.recipe(
        TABLE,
        set={"train.steps": 7, "arm.second.settings.clip": 0.3},
        seeds=range(3, 5),
        arms=("second",),
    )
    assert python.configs == shell.configs
    assert [(c.arm, c.seed, c.train.steps, c.algorithm.clip) for c in python.runs()] == [
        ("second", 3, 7, 0.3),
        ("second", 4, 7, 0.3),
    ]
    assert grpobench.recipe(TABLE, set="train.steps=7").runs()[0].train.steps == 7
    # A recipe that was read is changed like its source: what is assigned last counts.
    again = grpobench.recipe(python, set={"train.steps": 9}, seeds=[5])
    assert [(c.arm, c.seed, c.train.steps, c.algorithm.clip) for c in again.runs()] == [("second", 5, 9, 0.3)]
    assert again.sets[: len(python.sets)] == python.sets


def test_values_of_python_become_those_of_toml(stands: None) -> None:
    table = TABLE | {
        "seeds": np.arange(2),
        "train": {"steps": np.int64(4), "learning_rate": np.float64(0.1)},
        "model": {"name": Path("some/model")},
        "arm": ({"algorithm": "plain", "settings": {"bound": None}},),
    }
    configs = grpobench.recipe(table).runs()
    assert [(c.seed, c.train.steps, c.train.learning_rate["policy"]) for c in configs] == [
        (0, 4, 0.1),
        (1, 4, 0.1),
    ]
    assert configs[0].model.name == "some/model" and configs[0].algorithm.bound is None


def test_every_error_of_a_dict_comes_at_once(stands: None) -> None:
    table = {key: value for key, value in TABLE.items() if key != "name"}
    table |= {"train": {"stesp": 5}, "model": {"name": object()}, "task": ["sums"]}
    with pytest.raises(grpobench.ConfigError) as caught:
        grpobench.recipe(table, set={"train.group_size": lambda: 4})
    message = str(caught.value)
    for part in (
        'name: missing; write "name": "mine"',
        "train.stesp: unknown key; did you mean train.steps?",
        "model.name: must be plain data such as a TOML file holds, not object",
        "task: unknown key; did you mean tasks?",
    ):
        assert part in message
    assert len(caught.value.faults) >= 5 and message.startswith("recipe of a dict: ")


def test_what_a_notebook_defines_itself_is_refused_with_the_remedy(stands: None) -> None:
    here: dict[str, Any] = {"__name__": "__main__"}
    exec("class Mine: pass", here)
    remedy = 'write it to a file, such as mine.py, and name it "mine:Mine"'
    for algorithm in (here["Mine"], "__main__:Mine"):
        with pytest.raises(grpobench.ConfigError) as caught:
            grpobench.recipe(TABLE | {"arm": [{"algorithm": algorithm}]})
        (message,) = caught.value.faults
        assert remedy in message and message.startswith("arm[0].algorithm: ")
    with pytest.raises(grpobench.ConfigError, match='name it by its module: "pathlib:Path"'):
        grpobench.recipe(TABLE | {"arm": [{"algorithm": Path}]})


def test_files_beside_a_dict_are_in_the_folder_that_is_told(
    stands: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("class Printer: ...\n")
    table = TABLE | {"observe": ["mine:Printer"]}
    from_dict = grpobench.recipe(table, folder=tmp_path)
    assert from_dict.runs()[0].beside == str(tmp_path.resolve()) and from_dict.folder == tmp_path
    assert grpobench.recipe(from_dict, set={"train.steps": 9}).runs()[0].beside == str(tmp_path.resolve())
    with pytest.raises(grpobench.ConfigError, match="no module 'mine'"):
        grpobench.recipe(table, folder=tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    assert grpobench.recipe(table).configs == from_dict.configs  # the current folder, unless told
