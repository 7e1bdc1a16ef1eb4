"""MBPP's training and validation problems: from a folder, without some, and where they are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.rows import write_rows

from grpobench.runs import cli
from grpobench.runs.evaluation import question
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.mbpp import LEFT_OUT, MBPP, MORE, TABLES


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A problem in the form of the data set: add `number` to an argument."""
    return {
        "task_id": number,
        "text": f"Write a function to add {number}.",
        "code": f"def add_{number}(x):\r\n  return x + {number}",
        "test_list": [f"assert add_{number}({x}) == {x + number}" for x in (1, 2, 5)],
        "test_setup_code": "",
        **changes,
    }


ROWS: Mapping[str, list[dict[str, Any]]] = {
    "train": [row(601), row(602), row(816, test_list=["assert f((1,)) == ()"] * 3)],
    "validation": [row(511), row(596, test_list=["assert f(1) == sys.getsizeof(1)"] * 3)],
    "test": [row(11), row(12)],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for split, rows in ROWS.items():
        write(tmp_path, split, rows)
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sources, "_hub_trouble", lambda *_: "there is no network")
    yield tmp_path


def write(folder: Path, split: str, rows: list[dict[str, Any]]) -> None:
    write_rows(folder / "mbpp" / f"{split}.jsonl", rows)


def test_each_split_is_read_from_its_own_file(folder: Path) -> None:
    task = MBPP()
    assert task.missing() == ""
    ids_by_split = {split: [problem.id for problem in task.problems(split)] for split in task.splits}
    assert ids_by_split == {"train": ["601", "602"], "validation": ["511"], "test": ["11", "12"]}
    for split in task.splits:
        source, prompt = task.sources(split)
        assert (
            source.location == str(folder / "mbpp" / f"{split}.jsonl") and prompt.table == "prompts/mbpp.txt"
        )
    first = task.problems("train")[0]
    assert "assert add_601(1) == 602" in first.prompt and "add_601(2)" not in first.prompt
    right, wrong, constant = task.verify(
        first, [task.demonstrate(first), task.corrupt(first), task.state(first, "602")[0]]
    )
    assert [v.scores["correct"] for v in (right, wrong, constant)] == [1, 0, 0]


def test_problems_that_cannot_be_graded_are_left_out_and_recorded(folder: Path) -> None:
    task = MBPP()
    for split, number in (("train", "816"), ("validation", "596")):
        source = task.sources(split)[0]
        assert source.skipped == (f"problem {number}: {LEFT_OUT[number]}",)
        assert source.rows == len(ROWS[split])
    write(folder, "train", [row(601), row(601)])
    with pytest.raises(DataError, match="duplicate of line 1"):
        MBPP(shown=2).problems("train")


def test_a_constant_right_on_all_published_asserts_fails_a_further_one(folder: Path) -> None:
    code = "def Check_Vow(string, vowels):\n    return len([each for each in string if each in vowels])"
    asserts = [f"assert Check_Vow({text!r}, 'AaEeIiOoUu') == 2" for text in ("corner", "valid", "kilo")]
    write(folder, "train", [row(667, code=code, test_list=asserts)])
    task = MBPP(shown=3)
    (problem,) = task.problems("train")
    right, constant = task.verify(problem, [task.demonstrate(problem), task.state(problem, "2")[0]])
    assert (right.scores["correct"], constant.scores["correct"]) == (1, 0)
    assert "sky" in MORE["667"] and "sky" not in problem.prompt
    numbers = {int(number) for number in (*MORE, *LEFT_OUT)}
    assert all(11 <= number <= 974 for number in numbers) and not set(MORE) & set(LEFT_OUT)


def test_where_training_problems_are_missing_the_remedy_is_named_and_the_test_set_still_works(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "validation"):
        (folder / TABLES[split].path).unlink()
    out = tmp_path / "out"
    assert cli.main(["run", "quickstart", "--set", "tasks=mbpp", "--out", str(out)]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert "mbpp/train.jsonl: not found" in errors and "--data-dir DIR" in errors
    assert "google-research-datasets/mbpp" in errors and not out.exists()
    with pytest.raises(DataError, match=r"mbpp/train\.jsonl: not found"):
        MBPP(shown=2).problems("train")
    assert question._lack(MBPP(), "test") == "" and len(MBPP().problems("test")) == 2
    assert "mbpp/validation.jsonl: not found" in question._lack(MBPP(), "validation")
