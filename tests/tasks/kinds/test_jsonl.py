"""Tasks from a JSONL file alone: columns, splits, the four ways of grading, and what is refused."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.rows import write_rows

from grpobench.runs.inventory import check
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.kinds.jsonl import FROM_DATA, JSONLTask, share_of
from grpobench.tasks.sandbox import choose

QUESTIONS: Sequence[Mapping[str, Any]] = [
    {"question": f"{a} + {b}", "answer": a + b, "category": "sum", "difficulty": a}
    for a in range(10)
    for b in range(10)
]


def task(folder: Path, rows: Sequence[Any], verify: str = "exact", **settings: Any) -> JSONLTask:
    """A task of these rows; all of a few are for training."""
    path = write_rows(folder / "problems.jsonl", rows)
    settings = ({"validation": 0, "test": 0} if len(rows) < 50 else {}) | settings
    return FROM_DATA[verify](**{"name": "mine", "jsonl": path, "prompt": "{question} =", **settings})


def scores(task: JSONLTask, answer: str, index: int = 0) -> Mapping[str, float]:
    problem = [problem for split in task.splits for problem in task.problems(split)][index]
    (verdict,) = task.verify(problem, [answer])
    return verdict.scores


def refusal(task: JSONLTask) -> str:
    with pytest.raises(DataError) as caught:
        task.problems("train")
    assert task.missing() == str(caught.value)
    return str(caught.value)


def passes(task: JSONLTask) -> None:
    """`grpobench tasks check` finds nothing wrong with it."""
    for report in check.check(task.name, task, 100):
        assert report.state == "ok", check.as_lines(report)
        assert report.references.answers and not report.references.faults


# Reading


def test_a_prompt_is_a_template_over_columns_or_a_column(tmp_path: Path) -> None:
    rows = [{"question": "2 {x}", "style": "Briefly", "n": 3, "tags": ["a", "b"], "answer": "7"}]
    template = task(tmp_path, rows, prompt="{style}: {question} \\boxed{} {{style}} {n}\n{tags}")
    assert template.problems("train")[0].prompt == "Briefly: 2 {x} \\boxed{} {style} 3\na\nb"
    assert task(tmp_path, rows, prompt="question").problems("train")[0].prompt == "2 {x}"


def test_hash_splits_share_no_prompt_and_do_not_depend_on_order(tmp_path: Path) -> None:
    rows_task = task(tmp_path, QUESTIONS, validation=0.2, test=0.1)
    prompts_by_split = {
        split: {problem.prompt for problem in rows_task.problems(split)} for split in rows_task.splits
    }
    assert sum(map(len, prompts_by_split.values())) == len(set().union(*prompts_by_split.values())) == 100
    for split, bounds in {"test": (0, 0.1), "validation": (0.1, 0.3), "train": (0.3, 1)}.items():
        assert all(bounds[0] <= share_of(prompt) < bounds[1] for prompt in prompts_by_split[split])
    # the first 8 bytes of sha256("3 + 4 ="), by `printf '3 + 4 =' | sha256sum`
    assert share_of("3 + 4 =") == int("114c4d69e2a5b349", 16) / 2**64
    turned = task(tmp_path, QUESTIONS[::-1], validation=0.2, test=0.1)
    assert {problem.prompt for problem in turned.problems("test")} == prompts_by_split["test"]


def test_a_column_says_the_split(tmp_path: Path) -> None:
    rows = [{**row, "split": "train" if i else "test"} for i, row in enumerate(QUESTIONS)]
    rows_task = task(tmp_path, rows)
    assert rows_task.splits == ("train", "test") and [p.prompt for p in rows_task.problems("test")] == [
        "0 + 0 ="
    ]
    with pytest.raises(DataError, match="no problem is in the split validation"):
        rows_task.problems("validation")


def test_rows_become_traits_and_columns(tmp_path: Path) -> None:
    rows_task = task(tmp_path, QUESTIONS[:1])
    (problem,) = rows_task.problems("train")
    assert problem.traits == {"category": "sum", "difficulty": 0.0}
    assert rows_task.columns(problem) == QUESTIONS[0]


def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    rows_task = task(tmp_path, QUESTIONS[:1])
    before = rows_task.sources("train")[0]
    assert before.table == "problems.jsonl" and before.rows == 1 and len(rows_task.problems("train")) == 1
    task(tmp_path, QUESTIONS[:2])
    assert len(rows_task.problems("train")) == 2 and rows_task.sources("train")[0].sha256 != before.sha256


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"question": "1", "answer": "1"}\n'))
    rows_task = FROM_DATA["exact"](name="mine", jsonl=path, prompt="question", validation=0, test=0)
    assert [problem.prompt for problem in rows_task.problems("train")] == ["1"]


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        ({"answer": "1"}, {}, "no column 'question', which the task's prompt names (it has answer)"),
        ({"question": "1"}, {}, "'answer' is missing"),
        ({"question": "1", "answer": None}, {}, "'answer' must be text, not null"),
        ({"question": "1", "answer": True}, {}, "'answer' must be text"),
        (
            {"question": "1", "answer": "1"},
            {"prompt": "qestion"},
            "no column 'qestion', which the task's prompt names (it has question, ",
        ),
        ({"question": "0 + 0", "answer": "1"}, {}, "a duplicate of line 1"),
        ({"question": "1", "answer": "1", "split": "dev"}, {}, "'split' must be one of train, validation"),
        ({"question": "1", "answer": "1", "category": [1]}, {}, "'category' must be text or a number"),
        ({"question": "1", "answer": "1"}, {"solution": "worked"}, "'worked' is missing"),
        ([1], {}, "must hold an object"),
    ],
)
def test_a_malformed_row_stops_with_its_line(row: Any, settings: Any, message: str, tmp_path: Path) -> None:
    good = {**QUESTIONS[0], "worked": "0", "qestion": "?"}
    fault = refusal(task(tmp_path, [good, row], **settings))
    assert fault.startswith(f"{tmp_path / 'problems.jsonl'}, line 2: ") and message in fault
    assert "fix or replace the file" in fault


def test_what_is_wrong_with_the_whole_file_is_said(tmp_path: Path) -> None:
    some = [{**QUESTIONS[0], "split": "train"}, QUESTIONS[1]]
    assert "1 of 2 rows say their split" in refusal(task(tmp_path, some))
    assert "empty" in refusal(task(tmp_path, []))
    lost = task(tmp_path, QUESTIONS)
    os.unlink(tmp_path / "problems.jsonl")
    assert "cannot be read (No such file" in refusal(lost)
    assert lost.splits == ("train", "validation", "test")


def test_settings_are_bounded() -> None:
    with pytest.raises(ValueError) as caught:
        FROM_DATA["exact"](name="a b", jsonl=Path("x.csv"), prompt=" ", answer="", validation=0.5, test=0.5)
    assert [str(fault).partition(":")[0] for fault in caught.value.args] == [
        *("name", "jsonl", "prompt", "answer", "validation"),
    ]


# Grading


def test_exact_answers_forgive_white_space_and_nothing_else(tmp_path: Path) -> None:
    exact_task = task(tmp_path, [{"question": "1", "answer": " Two  words\n"}])
    assert scores(exact_task, "\tTwo words ") == {"correct": 1.0}
    for wrong in ("two words", "Two words.", "Twowords", ""):
        assert scores(exact_task, wrong) == {"correct": 0.0}
    marked = task(tmp_path, [{"question": "1", "answer": 7}], answer_marker="=>")
    assert scores(marked, "3 => 4 => 7") == {"correct": 1.0} and scores(marked, "7 => 4") == {"correct": 0.0}


def test_math_answers_are_compared_by_value(tmp_path: Path) -> None:
    math_task = task(tmp_path, [{"question": "1", "answer": 0.5}], "math")
    assert scores(math_task, "so \\boxed{\\frac{1}{2}}") == {"correct": 1.0, "format": 1.0}
    assert scores(math_task, "#### 1/2") == {"correct": 1.0, "format": 1.0}
    assert (
        scores(math_task, "the answer is .5") == scores(math_task, " 2/4 ") == {"correct": 1.0, "format": 0.0}
    )
    # a number that happens to stand last is no answer
    assert (
        scores(math_task, "1\nor .5")["correct"]
        == scores(math_task, "it is 3 or " * 99 + ".5")["correct"]
        == 0.0
    )
    assert scores(math_task, "\\boxed{0.25}") == {"correct": 0.0, "format": 1.0}
    marked = task(tmp_path, [{"question": "1", "answer": 0.5}], "math", answer_marker="=>")
    assert scores(marked, "1 => 2 => 1/2\nyes") == {"correct": 1.0, "format": 1.0}
    assert scores(marked, "\\boxed{0.5}") == {"correct": 0.0, "format": 0.0}
    passes(marked)
    boxed = task(tmp_path, [{"question": "1", "answer": 0.5}], "math", answer_marker="\\boxed{")
    assert scores(boxed, "#### 0.5")["correct"] == 0.0 and scores(boxed, "\\boxed{.5}")["correct"] == 1.0


def test_choices_are_answered_by_letter(tmp_path: Path) -> None:
    rows = [
        {"question": "1", "candidates": ["red", "green", "B", "blue"], "answer": "green"},
        {"question": "2", "candidates": ["red", "green", "B", "blue"], "answer": "B"},
        {"question": "3", "candidates": ["red", "green", "D?", "blue"], "answer": "D"},
    ]
    choice_task = task(tmp_path, rows, "choice", prompt="{question}\n{candidates}\nAnswer:")
    assert choice_task.problems("train")[0].prompt == "1\nA. red\nB. green\nC. B\nD. blue\nAnswer:"
    # the text of a candidate comes before a letter
    assert [choice_task.graded_answer(problem)["letter"] for problem in choice_task.problems("train")] == [
        "B",
        "C",
        "D",
    ]
    assert scores(choice_task, " B") == {"correct": 1.0, "format": 1.0}
    assert scores(choice_task, "(A)") == {"correct": 0.0, "format": 1.0}
    assert scores(choice_task, "green") == {"correct": 0.0, "format": 0.0}
    assert choice_task.candidates(choice_task.problems("train")[0]) == (" A", " B", " C", " D")
    assert "likelihood" in choice_task.modes
    passes(choice_task)


@pytest.mark.parametrize(
    ("candidates", "answer", "message"),
    [
        (["a"], "a", "must be a list of 2 to 26 texts"),
        (["a", ""], "a", "must be a list of 2 to 26 texts"),
        ("ab", "a", "must be a list of 2 to 26 texts"),
        (["a", " a"], "a", "the same text twice"),
        (
            ["a", "b"],
            "C",
            "must be the text of a candidate, a letter from A to B or an index from 0 to 1, not 'C'",
        ),
    ],
)
def test_faulty_candidates_are_refused(candidates: Any, answer: str, message: str, tmp_path: Path) -> None:
    row = {"question": "1", "candidates": candidates, "answer": answer}
    fault = refusal(task(tmp_path, [row], "choice"))
    assert "line 1: " in fault and message in fault


PROGRAMS = [
    {
        "question": f"Write add{n}(x), which adds {n}.",
        "answer": f"def add{n}(x):\n    return x + {n}",
        "tests": [f"assert add{n}(1) == {1 + n}", f"assert add{n}(-5) == {n - 5}"],
    }
    for n in range(1, 5)
]


@pytest.mark.skipif(bool(choose.choose("auto")[1]), reason="no sandbox on this machine")
def test_programs_are_run_and_their_values_compared(tmp_path: Path) -> None:
    python_task = task(tmp_path, PROGRAMS, "python", prompt="question")
    assert scores(python_task, "```python\nadd1 = lambda x: 1 + x\n```")["correct"] == 1.0
    assert scores(python_task, "def add1(x):\n    return 2")["wrong"] == 1.0
    assert scores(python_task, "nothing")["syntax"] == 1.0
    assert python_task.sandbox()
    passes(python_task)


def test_asserts_that_call_no_function_of_the_reference_are_refused(tmp_path: Path) -> None:
    row = {**PROGRAMS[0], "tests": ["assert True"]}
    fault = refusal(task(tmp_path, [PROGRAMS[1], row], "python", prompt="question"))
    assert "line 2: 'tests': asserts on no function" in fault
    with pytest.raises(ValueError, match="seconds: must be above 0"):
        FROM_DATA["python"](name="a", jsonl=Path("a.jsonl"), prompt="q", seconds=0)


@pytest.mark.parametrize("verify", ["exact", "math"])
def test_tasks_check_takes_references_from_the_answer_column(verify: str, tmp_path: Path) -> None:
    passes(task(tmp_path, QUESTIONS, verify))
    worked = [{**row, "worked": f"We add. #### {row['answer']}"} for row in QUESTIONS]
    worked_task = task(tmp_path, worked, verify, solution="worked", answer_marker="####")
    assert worked_task.demonstrate(worked_task.problems("train")[0]).startswith("We add. #### ")
    passes(worked_task)
