"""What a new user types in place of what works is refused with the command or setting that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.kinds.jsonl import MathRows


@pytest.mark.parametrize(
    ("text", "sets", "message"),
    [
        ("", ["train.steps=1,train.lr=2"], "write --set train.steps=1 --set train.lr=2"),
        ('tasks = [{name = "q", csv = "q.csv"}]', [], r"tasks\[0\].csv: tasks read JSONL; convert"),
    ],
)
def test_assignments_in_one_and_other_formats_are_refused_with_a_remedy(
    text: str, sets: list[str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'{text or "tasks = []"}\n[[arm]]\nalgorithm = "grpo"\n')
    with pytest.raises(ConfigError, match=message):
        read_recipe(str(path), sets)


def test_a_file_of_python_is_no_recipe() -> None:
    with pytest.raises(ConfigError, match="grpobench compare mine:CLASS --with grpo"):
        read_recipe("folder/mine.py")


def test_a_placeholder_without_a_column_is_a_fault_of_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "1+1", "answer": "2"}\n')
    task = MathRows(name="q", jsonl=path, prompt="{qestion}")
    lack = "no column 'qestion', which the task's prompt names (it has question, answer)"
    assert task.missing().endswith(f"{lack}; in the task's prompt, correct the mistyped name")
