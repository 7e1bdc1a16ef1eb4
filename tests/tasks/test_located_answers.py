"""Locks: where an answer stands in a completion: outside of thoughts, between tags, before the words that
explain it; which letter a completion states. Completions that state two answers, or none, are never right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from helpers.rows import write_rows

from grpobench.tasks.bbq import BBQ
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.grading.extraction import between_tags, without_explanation
from grpobench.tasks.grading.options import option_letter
from grpobench.tasks.gsm8k import GSM8K
from grpobench.tasks.horizon import Horizon1
from grpobench.tasks.kinds.jsonl import FROM_DATA, JSONLTask
from grpobench.tasks.task import Problem, Task, Verdict
from grpobench.tasks.thoughts import without_thoughts

COLORS = ["red", "green", "blue", "grey"]


def rows(folder: Path, verify: str, marker: str = "", **row: Any) -> JSONLTask:
    columns = {"question": "q", "split": "train", "candidates": COLORS, **row}
    path = write_rows(folder / "rows.jsonl", [columns])
    prompt = "{question}\n{candidates}" if verify == "choice" else "{question}"
    return FROM_DATA[verify](name="x", jsonl=path, prompt=prompt, answer_marker=marker)


def correct(task: Task, problem: Problem, completion: str) -> bool:
    return task.verify(problem, [completion])[0].scores["correct"] == 1.0


def graded(folder: Path, verify: str, truth: str, completion: str, marker: str = "") -> bool:
    if verify == "gsm8k":
        return correct(GSM8K(), Problem("q", "q", {"answer": truth}), completion)
    task = rows(folder, verify, marker, answer=truth)
    return correct(task, task.problems("train")[0], completion)


# Thoughts


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a<think>b</think>c", "a\nc"),
        ("a<think>b", "a"),
        ("b</think>\n\nc", "c"),
        ("<think>a</think>b<think>c</think>d", "b\nd"),
        ("<think>a<think>b</think>c", "c"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think>a</thinking>b", ""),
        ("<Thinking>a</thinking >b", "b"),
        ("<reasoning>a</reasoning>b", "b"),
        ("[THINK]a[/THINK]b", "b"),
        ("◁think▷a◁/think▷b", "b"),
        ("<|begin_of_thought|>a<|end_of_thought|>b", "b"),
        ("<thi<think>a</think>nk>b", "<thi\nnk>b"),
        ("'<think>' a", "'<think>' a"),
        ("`</think>` a", "`</think>` a"),
        ("```</think>a", "a"),
        ("</think>```", "```"),
        ("I think so", "I think so"),
        ("", ""),
    ],
)
def test_what_is_left_without_thoughts(text: str, left: str) -> None:
    assert without_thoughts(text) == left
    assert without_thoughts(left) == left


RIGHT = {
    "math": ("31", "\\boxed{31}", "\\boxed{30}"),
    "exact": ("Oslo", "Oslo", "Rome"),
    "choice": ("blue", "C", "B"),
    "gsm8k": ("31", "#### 31", "#### 30"),
    "python": (
        "def f(x):\n    return x + 1",
        "```python\ndef f(x):\n    return x + 1\n```",
        "```python\ndef f(x):\n    return x\n```",
    ),
}


@pytest.mark.parametrize("verify", RIGHT)
def test_no_verifier_reads_thoughts(verify: str, tmp_path: Path) -> None:
    truth, right, wrong = RIGHT[verify]
    if verify == "gsm8k":
        task: Task = GSM8K()
        problem = Problem("q", "q", {"answer": truth})
    else:
        task = rows(tmp_path, verify, answer=truth, tests="assert f(1) == 2")
        problem = task.problems("train")[0]
    if task.missing() and verify != "gsm8k":
        pytest.skip(task.missing())
    accepted = [right, f"<think>\n{wrong}\n</think>\n\n{right}", f"{wrong}\n</think>\n{right}"]
    accepted += [f"<think>\n\n</think>\n\n{right}", f"<think>{wrong}</think><think>{wrong}</think>{right}"]
    refused = [
        f"<think>\n{right}",
        f"<think>{right}</think>",
        f"{right}</think>",
        f"<think>{right}</think>{wrong}",
    ]
    refused += [f"<think><think>x</think>{right}</think>", f"<reasoning>{right}</reasoning>"]
    assert [correct(task, problem, text) for text in accepted] == [True] * len(accepted)
    assert [correct(task, problem, text) for text in refused] == [False] * len(refused)


def test_tasks_of_letters_and_of_several_turns_read_no_thoughts() -> None:
    bbq = Problem("x", "", {"correct": "C", "biased": "A", "unknown": "C"})
    assert BBQ().verify(bbq, ["<think>A</think>\n C"])[0].answer == "C"
    task = Horizon1()
    problem = task.problems("train")[0]
    look, answer = task.demonstrate_episode(problem)
    thought = f"<think>={problem.truth['keys'][-1]}</think>"
    assert task.reply(problem, [thought + look]) == task.reply(problem, [look])
    verdicts = task.verify_episodes(problem, [[thought + look, thought + answer], [look, thought]])
    assert [verdict.scores["correct"] for verdict in verdicts] == [1.0, 0.0]


def test_a_task_may_read_thoughts() -> None:
    class Tagged(Horizon1):
        reads_thoughts = True

        def verify(self, problem: Problem, completions: Any) -> list[Verdict]:
            return [Verdict({"correct": float("<think>" in text)}, text) for text in completions]

    class Blind(Tagged):
        reads_thoughts = False

    assert Tagged().verify(None, ["<think>a</think>b"])[0].answer == "<think>a</think>b"
    assert Blind().verify(None, ["<think>a</think>b"])[0].answer == "b"


# Tags


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("31", "31"),
        ("<answer>31</answer> 32", "31"),
        ("31</answer> 32", "31"),
        ("<answer>31", "31"),
        ("<answer>31</answer><answer> 31 </answer>", " 31 "),
        ("<answer>31</answer><answer>32</answer>", None),
        ("<answer>31</answer> or <answer>32", None),
        ("31</answer><answer>32</answer>", None),
        ("<answer></answer><answer>31</answer>", "31"),
        ("<answer><answer>31</answer></answer>", "31"),
        ("<answer></answer>", ""),
        ("<ans\u200bwer>31</answer>", "<ans\u200bwer>31"),
    ],
)
def test_text_between_answer_tags(text: str, inside: str | None) -> None:
    assert between_tags(text) == inside


@pytest.mark.parametrize(
    ("verify", "truth", "completion", "right"),
    [
        ("math", "31", "<answer>31</answer>", True),
        ("math", "31", "<answer>\n31\n</answer>", True),
        ("math", "31", "<answer>\\boxed{31}</answer>\nDone", True),
        ("math", "31", "<think>\\boxed{32}</think>\n<answer>The answer is 31.</answer>", True),
        ("math", "31", "<think><answer>31</answer></think>", False),
        ("math", "31", "<think><answer>31</answer></think><answer>32</answer>", False),
        ("math", "31", "<answer>31</answer> <answer>32</answer>", False),
        ("math", "31", "<answer>31 or 32</answer>", False),
        ("gsm8k", "31", "It is 5.\n<answer>31</answer>\nI used 8 steps.", True),
        ("exact", "Oslo", "The capital:\n<answer> Oslo </answer>\nDone", True),
        ("exact", "Oslo", "<answer>Oslo</answer><answer>Rome</answer>", False),
        ("choice", "C", "A is red. <answer>C</answer>", True),
        ("choice", "C", "<answer>(C) blue</answer>", True),
        ("choice", "C", "<answer>A</answer> C", False),
    ],
)
@pytest.mark.parametrize("marker", ["", "<answer>"])
def test_answers_between_tags_with_and_without_a_marker(
    verify: str, truth: str, completion: str, right: bool, marker: str, tmp_path: Path
) -> None:
    if marker and verify == "math":
        completion = completion.replace("\\boxed{31}", "31")
    assert graded(tmp_path, verify, truth, completion, marker) == right


def test_tags_around_and_behind_another_marker(tmp_path: Path) -> None:
    for completion in ("<answer># 31</answer>", "# <answer>31</answer>", "# 31"):
        assert graded(tmp_path, "math", "31", completion, "#")
    assert not graded(tmp_path, "math", "31", "<answer>31</answer> # 32", "#")


# Words behind the number


EXPLAINED = [
    "96, which is the total.",
    "96, which is 8 times 12.",
    "96 because 8 times 12 is 96",
    "96 loaves, altogether.",
    "96 loaves (8 trays of 12).",
    "96 (8 × 12 = 96).",
    "96 (in total).",
    "96 — the total.",
    "**96**, as required.",
    "$96$, since $8 \\cdot 12 = 96$.",
    "$96.00 per week, in total.",
]
DOUBTFUL = [
    "96 or 97",
    "96, or maybe 97",
    "96, 97",
    "96 (97)",
    "96 (or 97)",
    "96 (97 loaves)",
    "96 to 97",
    "96 - 97",
    "96, no, 97",
    "96, x",
    "96, or more",
    "96, in dozens",
    "96 if Bob comes, which he does",
    "either 96 or 97",
    "between 95 and 96",
    "not 96",
]


@pytest.mark.parametrize("verify", ["math", "gsm8k"])
@pytest.mark.parametrize(
    "form", ["The answer is {}", "**Answer**: {}", "**Answer:** {}", "#### {}", "#### The answer is {}"]
)
def test_words_that_explain_a_value_do_not_change_it(verify: str, form: str, tmp_path: Path) -> None:
    accepted = [text for text in EXPLAINED if graded(tmp_path, verify, "96", form.format(text))]
    assert accepted == EXPLAINED
    assert [text for text in EXPLAINED if graded(tmp_path, verify, "12", form.format(text))] == []
    assert [text for text in DOUBTFUL if graded(tmp_path, verify, "96", form.format(text))] == []


@pytest.mark.parametrize(
    "text", ["3, x", "east, west", "x, y", "5 - sin x", "2 (3)", "96 (97)", "(1, 2)", "\\pi, e"]
)
def test_lists_and_products_are_left_whole(text: str) -> None:
    assert without_explanation(text) == text


# Letters


@pytest.mark.parametrize(
    ("completion", "stated"),
    [
        ("\\boxed{C}", "C"),
        ("So it is $\\boxed{\\text{C}}$.", "C"),
        ("\\boxed{(C)}", "C"),
        ("\\boxed{A} or \\boxed{B}", None),
        ("\\boxed{A, B}", None),
        ("The answer is C because A is red.", "C"),
        ("The answer is A because it is warm.", "A"),
        ("The answer is A red one.", None),
        ("The answer is:\n\n**C**", "C"),
        ("**Answer:** C", "C"),
        ("**C**", "C"),
        ("(C)", "C"),
        ("C. blue", "C"),
        ("C, because it is cold", "C"),
        ("C because it is cold", "C"),
        ("C - blue", "C"),
        ("C, not A", "C"),
        ("C) blue, since A) is red", "C"),
        ("Option C", "C"),
        ("I choose C.", "C"),
        ("I would go with option (C).", "C"),
        ("C is the correct answer.", "C"),
        ("Option A is wrong. Option C is correct.", "C"),
        ("A. red\nB. green\nC. blue\nD. grey\n\nAnswer: B", "B"),
        ("Option A: red\nOption B: green\nThe answer is B.", "B"),
        ("A. red\nB. green\nC. blue\nD. grey", None),
        ("A. red B. green C. blue D. grey", None),
        ("A.\nB.\nC.", None),
        ("A) and B)", None),
        ("(A) or (B)", None),
        ("A, B", None),
        ("A/B", None),
        ("A B", None),
        ("Answer: A or B", None),
        ("Answer: A and B", None),
        ("Answer: A, B or C because", None),
        ("answer: A or answer: B", None),
        ("Answer: A\nor B", None),
        ("The answer is A. The answer is B.", None),
        ("The answer is not A.", None),
        ("A is wrong, so it may be B", None),
        ("A red one is warm.", None),
        ("I am sure.", None),
        ("c", None),
        (" C\n", "C"),
        ("A\nB", None),
        ("**C.** Unknown", "C"),
        ("A: the first", "A"),
        ("The correct answer is: **C**", "C"),
        ("I think the right option is (B) because", "B"),
        ("The answer is B.\nThe answer is B", "B"),
        ("The answer is B.\nNo, the answer is C.", None),
        ("A. The first\nThe answer is B.", "B"),
        ("Answer with a single letter: A, B or C.", None),
        ("The answer is Because", None),
        ("It depends on A and B", None),
        ("AB", None),
        ("B.C", None),
        ("E", None),
        ("", None),
        ("\ud800", None),
        (" " * 10**6, None),
        ("A" * 10**6, None),
        ("answer " * 10**5, None),
    ],
)
def test_letter_that_a_completion_states(completion: str, stated: str | None) -> None:
    assert option_letter(completion, 4) == stated


# Indices


def test_an_answer_may_be_an_index_from_0(tmp_path: Path) -> None:
    for index, letter in enumerate("ABCD"):
        task = rows(tmp_path, "choice", answer=index)
        assert task.demonstrate(task.problems("train")[0]) == f" {letter}"


@pytest.mark.parametrize(
    ("candidates", "answer", "message"),
    [
        (COLORS, 4, "an index from 0 to 3, not '4'"),
        (COLORS, -1, "an index from 0 to 3, not '-1'"),
        (COLORS, 1.0, "an index from 0 to 3, not '1.0'"),
        (["1", "2", "3"], 1, "1 is the text of candidate A and the index of candidate B"),
    ],
)
def test_an_index_out_of_range_or_with_two_meanings_is_refused(
    candidates: list[str], answer: float, message: str, tmp_path: Path
) -> None:
    task = rows(tmp_path, "choice", answer=answer, candidates=candidates)
    with pytest.raises(DataError) as caught:
        task.problems("train")
    assert "line 1" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize(
    ("candidates", "answer", "letter"), [(["0", "1"], 1, "B"), (["7", "8"], 8, "B"), (["8", "9"], 0, "A")]
)
def test_numbers_as_candidates(candidates: list[str], answer: int, letter: str, tmp_path: Path) -> None:
    task = rows(tmp_path, "choice", answer=answer, candidates=candidates)
    assert task.demonstrate(task.problems("train")[0]) == f" {letter}"


@pytest.mark.parametrize(
    "piece",
    [
        "<think>",
        "</think>",
        "<think></think>",
        "<answer>",
        "<answer>1</answer>",
        "answer is A ",
        "A. ",
        "A or ",
        "**",
        "\\boxed{",
        "96, which ",
        "96 (",
        "Answer: 9 ",
        "A\n",
        " ",
    ],
)
def test_long_completions_are_read_in_no_time(piece: str, tmp_path: Path) -> None:
    text = piece * (300_000 // len(piece))
    began = time.process_time()
    graded(tmp_path, "math", "31", text)
    graded(tmp_path, "choice", "C", text)
    graded(tmp_path, "gsm8k", "96", text)
    assert time.process_time() - began < 2
