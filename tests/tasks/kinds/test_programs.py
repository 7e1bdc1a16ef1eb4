"""HumanEval, MBPP and what they share: asserts become calls and conditions, answers become programs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.rows import write_rows
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs import cli
from grpobench.tasks import humaneval, mbpp
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.grading.asserts import Inconvertible, convert, holds
from grpobench.tasks.humaneval import HumanEval
from grpobench.tasks.kinds import programs
from grpobench.tasks.kinds.jsonl import PythonRows
from grpobench.tasks.mbpp import MBPP
from grpobench.tasks.sandbox import choose
from grpobench.tasks.sandbox.protocol import Tier
from grpobench.tasks.task import Problem, Task

# Asserts


def test_assert_becomes_calls_and_a_condition() -> None:
    test = (
        "'''doc'''\nassert f(1, [2]) == 'a', 'why'\nassert abs(f(2) - 1 / 3) < 1e-6 and not f(3)\nassert True"
    )
    calls, conditions = convert(test, {"f"})
    assert calls == ["f(1, [2])", "f(2)", "f(3)"]
    assert conditions == ["_0 == 'a'", "abs(_1 - 1 / 3) < 1e-06 and (not _2)"]
    assert holds(conditions[0], ["a", None, None])
    assert holds(conditions[1], ["a", 0.3333333, 0]) and not holds(conditions[1], ["a", 0.34, 0])


@pytest.mark.parametrize(
    ("condition", "value", "true"),
    [
        ("_0 == 2", 2.0, True),
        ("_0 == True", 1, True),  # as in Python
        ("_0 is True", 1, False),
        ("_0 is True", True, True),
        ("_0 == [1, 2]", (1, 2), False),
        ("set(_0) == {1, 2}", [2, 1, 1], True),
        ("_0 == {'a': 1}", {"a": 1.0}, True),
        ("_0 in (1, 2)", 2, True),
        ("len(_0) == 1", 7, False),  # raises inside
        ("_0 < 3", "text", False),
        ("_0 == 1", float("nan"), False),
    ],
)
def test_conditions_mean_what_they_mean_in_python(condition: str, value: object, true: bool) -> None:
    assert holds(condition, [value]) is true


@pytest.mark.parametrize(
    "test",
    [
        "for i in range(3):\n    assert f(i) == i",
        "x = 1\nassert f(x) == x",
        "assert f(1).upper() == 'A'",
        "assert f(1)[0] == 1",
        "assert [x for x in f(1)] == []",
        "assert (lambda: f(1))() == 1",
        "assert __import__('os').system('true') == f(1)",
        "assert eval('1') == f(1)",
        "assert f(1) % 2 == 0",  # the value may be a format of any width
        "assert f(1) * 10**9 == 0",
        "assert f(1) == 9 ** 9 ** 9",
        "assert f(1) == other",
        "assert 1 == 2",
        "assert (y := f(1)) == 1",
        "assert f'{f(1)}' == '1'",
        "",
        "assert f(",
    ],
)
def test_other_tests_do_not_convert(test: str) -> None:
    with pytest.raises(Inconvertible):
        convert(test, {"f"})


@given(
    st.lists(st.integers(-9, 9), max_size=4),
    st.sampled_from(["sorted(v)", "v", "tuple(v)", "sum(v)", "len(v) > 2", "v[::-1]", "{1: v}"]),
    st.sampled_from(["== {w}", "!= {w}", "in [{w}, 3]", "is not None"]),
    st.lists(st.integers(-9, 9), max_size=4),
)
def test_converted_test_agrees_with_the_test_itself(
    argument: list[int], body: str, relation: str, other: list[int]
) -> None:
    space: dict[str, Any] = {}
    exec(f"def f(v):\n    return {body}", space)
    right_value = eval(body, {"v": other})
    test = f"assert f({argument}) {relation.format(w=right_value)}"
    try:
        exec(test, space)
        passes = True
    except AssertionError:
        passes = False
    calls, (condition,) = convert(test, {"f"})
    assert holds(condition, [eval(call, space) for call in calls]) is passes


# Reading a program

TRUTH = {
    "entry": "add",
    "before": "import math\n",
    "header": 'import math\ndef add(a, b):\n    """Sum."""\n',
    "after": "",
}
RIGHT = {
    "block": "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.",
    "helper first": "def plus(a, b):\n    return a + b\n\ndef add(a, b):\n    return plus(a, b)",
    "constant first": "ZERO: int = 0\ndef add(a, b):\n    return a + b + ZERO",
    "body that lost its first indent": "c = a\n    return c + b",
    "asks for input": "def add(a, b):\n    return a + b\n\nprint(input())",
}
"""Beside the many of `graded/completions.jsonl`."""
WRONG = {
    "nothing": "",
    "prose": "I cannot write this function.",
    "another function": "```python\ndef sub(a, b):\n    return a - b\n```",
    "another sum": "```python\ndef add(a, b):\n    return a - b\n```",
    "broken": "```python\ndef add(a, b)\n    return a + b\n```",
    "only a fence": "```",
    "surrogate": "```python\ndef add(a, b):\n    return '\ud800'\n```",
    "NUL": "```python\ndef add(a, b):\n    return a + b\0\n```",
}


def problem(**more: Any) -> Problem:
    return Problem("p", "", {**TRUTH, "calls": ["add(1, 2)"], "conditions": ["_0 == 3"], **more})


def test_a_repeated_program_runs_once_and_problems_of_one_id_are_apart(
    tmp_path: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in tasks of rows, whose problems are made anew for each answer."""
    row = {"question": "Add.", "answer": "def add(a, b):\n    return a + b", "tests": "assert add(1, 2) == 3"}
    path = write_rows(tmp_path / "rows.jsonl", [row])
    rows = PythonRows(name="rows", jsonl=path, prompt="question", validation=0, test=0, tier=tier)
    (of_row,) = rows.problems("train")
    graded: list[Any] = []
    honest = programs.grade
    monkeypatch.setattr(programs, "grade", lambda jobs, chosen: graded.extend(jobs) or honest(jobs, chosen))
    right, wrong = RIGHT["block"], WRONG["another sum"]
    assert [v.scores["correct"] for v in rows.verify(of_row, [right, wrong, right])] == [1, 0, 1]
    assert len(graded) == 2
    problems = [problem(), problem(conditions=["_0 == -1"])]
    verdicts = HumanEval(tier=tier).verify_all(problems, [[(right,), (wrong,)]] * 2)
    assert [[v.scores["correct"] for v in of_problem] for of_problem in verdicts] == [[1, 0], [0, 1]]


@pytest.mark.parametrize("wrong", [False, True])
def test_program_is_found_in_an_answer(wrong: bool, tier: Tier) -> None:
    texts = WRONG if wrong else RIGHT
    verdicts = HumanEval(tier=tier).verify(problem(), list(texts.values()))
    for name, verdict in zip(texts, verdicts, strict=True):
        assert verdict.scores["correct"] == (not wrong), (name, verdict)
        assert set(verdict.scores) == set(HumanEval.scores)
        assert sum(verdict.scores[failure] for failure in programs.FAILURES) == wrong


@pytest.mark.parametrize("tier", ["monty"], indirect=True)
def test_fine_outcomes_are_scores_and_coarse_ones_are_the_verdicts(tier: Tier) -> None:
    chosen = HumanEval(tier=tier, seconds=0.2)
    bodies = {
        ("wrong", "graded"): "return 1",
        ("error", "graded"): "return 1 // 0",
        ("syntax", "unparsable"): "return (",
        ("timeout", "timeout"): "while True:\n        pass",
        ("oom", "crash"): "return [0] * 10**9",
        ("output_limit", "crash"): "return 'x' * 10**6",
    }
    verdicts = chosen.verify(problem(), [f"```\ndef add(a, b):\n    {body}\n```" for body in bodies.values()])
    for (fine, coarse), verdict in zip(bodies, verdicts, strict=True):
        assert (verdict.scores[fine], verdict.outcome) == (1, coarse)


# Values of other types than the built-in ones

BUILT_ON = {
    "named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'a b')",
        "P(1, 2)",
        "_0 == (1, 2)",
    ),
    "typed tuple": (
        "from typing import NamedTuple\nclass P(NamedTuple):\n    a: int",
        "[P(1)]",
        "_0 == [(1,)]",
    ),
    "IntEnum": ("from enum import IntEnum\nclass C(IntEnum):\n    RED = 3", "C.RED", "_0 == 3"),
    "IntFlag": ("from enum import IntFlag\nclass C(IntFlag):\n    A = 1\n    B = 2", "C.A | C.B", "_0 == 3"),
    "text enum": (
        "from enum import Enum\nclass C(str, Enum):\n    RED = 'r'",
        "{C.RED: 1}",
        "_0 == {'r': 1}",
    ),
    "fraction": ("from fractions import Fraction as F", "F(1, 2)", "_0 == 0.5 and abs(_0 - 1 / 2) < 1e-9"),
    "fractions in a set": ("from fractions import Fraction as F", "{F(4, 2), F(3)}", "_0 == {2, 3}"),
    "decimal": ("from decimal import Decimal", "Decimal('2.50')", "_0 == 2.5"),
    "number": ("class N(float):\n    pass", "N(-0.5)", "_0 == -0.5"),
    "bytes": ("class N(bytes):\n    pass", "N(b'a')", "_0 == b'a'"),
    "list": ("class L(list):\n    pass", "(L([1, L()]),)", "_0 == ([1, []],)"),
    "dictionary": ("from collections import Counter", "Counter('aab')", "_0 == {'a': 2, 'b': 1}"),
}
FORGED = {
    "equal to everything": (
        "class N(int):\n    def __eq__(self, other):\n        return True",
        "N(1)",
        "_0 == 2",
    ),
    "not unequal": (
        "class N(int):\n    def __ne__(self, other):\n        return False",
        "N(1)",
        "not _0 != 2",
    ),
    "converts to another": (
        "class N(int):\n    __int__ = __index__ = __add__ = __radd__ = lambda *a: 2",
        "N(1)",
        "_0 == 2",
    ),
    "text of another": (
        "class N(str):\n    __str__ = __add__ = __repr__ = lambda *a: 'b'",
        "N('a')",
        "_0 == 'b'",
    ),
    "walks another": (
        "class L(list):\n    def __iter__(self):\n        return iter([2])",
        "L([1])",
        "_0 == [2]",
    ),
    "says another class": (
        "class N:\n    __class__ = property(lambda self: int)\n    __eq__ = lambda *a: True",
        "N()",
        "_0 == 2",
    ),
    "member of another kind": ("from enum import Enum\nclass C(Enum):\n    RED = 3", "C.RED", "_0 == 3"),
    "generator": ("", "(i for i in [1])", "_0 == [1]"),
    "fraction with another numerator": (
        "from fractions import Fraction\nclass F(Fraction):\n    __eq__ = lambda *a: True",
        "F(1, 2)",
        "_0 == 2",
    ),
}


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("tier", ["bubblewrap"], indirect=True)
def test_values_compare_as_their_base_types_and_by_no_program_method(right: bool, tier: Tier) -> None:
    for name, (before, value, condition) in (BUILT_ON if right else FORGED).items():
        built_problem = problem(conditions=[condition])
        program = f"```python\n{before}\ndef add(a, b):\n    return {value}\n```"
        (verdict,) = HumanEval(tier=tier).verify(built_problem, [program])
        assert verdict.scores["correct"] == right, (name, verdict)


@pytest.mark.parametrize("tier", ["monty"], indirect=True)
def test_a_named_tuple_is_a_tuple_in_monty_too(tier: Tier) -> None:
    before, value, condition = BUILT_ON["named tuple"]
    program = f"```\n{before}\ndef add(a, b):\n    return {value}\n```"
    (verdict,) = HumanEval(tier=tier).verify(problem(conditions=[condition]), [program])
    assert verdict.scores["correct"] == 1


@pytest.mark.parametrize("tier", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ("Fraction(1, 2**3000)", "pass"),
        ("Fraction(1, 2**9000)", "output_limit"),
        ("Decimal(10)**900", "pass"),
        ("Decimal('1e99999')", "output_limit"),
        ("Decimal('nan')", "error"),
    ],
)
def test_exact_numbers_have_a_limit(value: str, outcome: str, tier: Tier) -> None:
    """Whoever adds up fractions of any size is busy for hours."""
    program = "from fractions import Fraction\nfrom decimal import Decimal\ndef f():\n    return " + value
    assert choose.sandbox(tier).run(program, ["f()"]).outcome == outcome


# Tests that are replayed

JUDGED = {
    "reference": "    return a + b\n",
    "judge": "import math\ndef check(candidate):\n    for i in range(3):\n"
    "        assert math.fabs(candidate(i, i) - 2 * i) < 1e-6\n",
}


def test_replayed_test_takes_right_programs_and_no_others(tier: Tier) -> None:
    judged = problem(**JUDGED)
    del judged.truth["calls"], judged.truth["conditions"]
    bodies = {
        "return a + b": True,
        "return float(a + b)": True,
        "return a + b + 1e-9": True,
        "return a": False,
        "return None": False,
        "return float('nan')": False,
        "return 'x'": False,
        "return 0": False,
        "raise AssertionError": False,
        "return {1: [a]}": False,
        "return 10**5000": False,  # Python writes no whole number of so many digits
        "return [set(), {1: (1,)}, float('inf'), b'x', 'é']": False,
    }
    if tier != "monty":  # which has no fractions
        bodies["from fractions import Fraction\n    return Fraction(2 * (a + b), 2)"] = True
    answers = [f"```\ndef add(a, b):\n    {body}\n```" for body in bodies]
    # The check's own name, its arguments and its verdict are not in the program's process.
    answers += [
        "```\ndef add(a, b):\n    return 0\ndef check(c):\n    pass\ndef _replay(*a):\n    return True\n```"
    ]
    verdicts = HumanEval(tier=tier).verify(judged, answers)
    assert [v.scores["correct"] for v in verdicts] == [*bodies.values(), False]


def test_judge_that_does_not_run_masks_the_answer(tier: Tier) -> None:
    judged = problem(
        reference="    return 1\n", judge="import nothing_of_this_name\ndef check(c):\n    pass\n"
    )
    (verdict,) = HumanEval(tier=tier).verify(judged, ["    return 1\n"])
    assert verdict.outcome == "infra_error"


# The tasks, on rows of our own

ROWS: Mapping[str, list[dict[str, Any]]] = {
    "humaneval/test.jsonl": [
        {
            "task_id": "Own/0",
            "prompt": "def twice(n: int) -> int:\n    '''Twice n.'''\n",
            "canonical_solution": "    return 2 * n\n",
            "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate(3) == 6\n"
            "    assert candidate(-1) == -2\n",
            "entry_point": "twice",
        },
        {
            "task_id": "Own/1",
            "prompt": "def one(n):\n    return n + 1\n\n\ndef back(n):\n    '''Undoes one.'''\n",
            "canonical_solution": "    return n - 1\n",
            "test": "def check(candidate):\n    from random import randint\n    for _ in range(5):\n"
            "        x = randint(0, 99)\n        assert candidate(one(x)) == x\n",
            "entry_point": "back",
        },
    ],
    "mbpp/test.jsonl": [
        {
            "task_id": 1,
            "text": "Write a function to add up a list.",
            "code": "def total(v):\r\n  return sum(v)",
            "test_list": [f"assert total({v}) == {sum(v)}" for v in ([1, 2], [], [-1])],
            "test_setup_code": "",
        },
        {
            "task_id": 2,
            "text": "Write a class for pairs and a function that compares them.",
            "code": "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n\n"
            "def less(p, q):\n    return p.a < q.a",
            "test_list": [
                "assert less(p, q) == True",
                "assert less(q, p) == False",
                "assert less(p, p) == 0",
            ],
            "test_setup_code": "p = Pair(1, 2)\nq = Pair(3, 0)",
        },
    ],
}
ROWS |= {f"mbpp/{split}.jsonl": ROWS["mbpp/test.jsonl"] for split in ("train", "validation")}


@pytest.fixture
def own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for path, rows in ROWS.items():
        write_rows(tmp_path / path, rows)
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sources, "_hub_trouble", lambda *_: "there is no network")
    yield tmp_path


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_references_are_right_and_corrupted_ones_wrong(name: str, own_rows: Path, tier: Tier) -> None:
    task: Task = {"humaneval": HumanEval, "mbpp": MBPP}[name](tier=tier)
    problems = task.problems("test")
    assert len(problems) == 2 and task.missing() == ""
    answers = [[(task.demonstrate(p),), (task.corrupt(p) or "",), ("",)] for p in problems]
    verdicts = task.verify_all(problems, answers)
    assert [[v.scores["correct"] for v in problem_verdicts] for problem_verdicts in verdicts] == [
        [1, 0, 0],
        [1, 0, 0],
    ]
    assert task.sandbox() == tier


def test_what_is_asked_and_what_is_hidden(own_rows: Path) -> None:
    first, second = HumanEval().problems("test")
    assert first.truth["calls"] == ["twice(3)", "twice(-1)"]
    assert first.truth["conditions"] == ["_0 == 6", "_1 == -2"]
    assert first.traits["trust"] == "values" and second.traits["trust"] == "asserts"
    bare = HumanEval(template="humaneval_complete")
    prompt = bare.problems("test")[0]
    assert prompt.prompt == ROWS["humaneval/test.jsonl"][0]["prompt"]
    assert bare.demonstrate(prompt) == "    return 2 * n\n"
    total, _ = MBPP().problems("test")
    assert "assert total([1, 2]) == 3" in total.prompt and "total([])" not in total.prompt
    assert "total([-1]) == -1" in MBPP(shown=3).problems("test")[0].prompt
    assert "sum" not in total.prompt


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("humaneval/test.jsonl", {"entry_point": "other"}, "does not define other"),
        ("humaneval/test.jsonl", {"prompt": None}, "'prompt' must be text"),
        ("mbpp/test.jsonl", {"test_list": ["assert total([]) == 0"]}, "must be a list of 3 asserts"),
        ("mbpp/test.jsonl", {"test_list": ["assert"] * 3}, "not Python"),
        (
            "mbpp/test.jsonl",
            {"test_list": ["assert other(1)"] * 2 + ["assert third(1)"]},
            "not on one function",
        ),
        ("mbpp/test.jsonl", {"task_id": 2}, "duplicate"),
    ],
)
def test_malformed_row_is_named(path: str, change: dict[str, Any], message: str, own_rows: Path) -> None:
    rows = [dict(row) for row in ROWS[path]]
    rows[0] |= change
    write_rows(own_rows / path, rows)
    task = HumanEval() if path.startswith("humaneval") else MBPP()
    with pytest.raises(DataError, match=message) as raised:
        task.problems("test")
    assert path in str(raised.value) and "line" in str(raised.value)


# The command line


def test_recipe_that_trains_on_a_test_set_is_refused(
    own_rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "quickstart", "--set", "tasks=humaneval", "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert "no training split" in errors and "grpobench eval MODEL --task humaneval" in errors
    assert not (tmp_path / "out").exists()


def test_without_a_tier_nothing_is_run(
    own_rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choose, "trouble", lambda tier: "does not work here")
    monkeypatch.setattr(choose, "start", lambda *_: pytest.fail("a sandbox was started"))
    assert cli.main(["run", "quickstart", "--set", "tasks=nanocode"]) == 2
    assert "apt-get install bubblewrap" in capsys.readouterr().err
    assert "apt-get install bubblewrap" in HumanEval().missing()
    with pytest.raises(DataError, match="apt-get install bubblewrap"):
        HumanEval().verify(problem(), [RIGHT["block"]])


def test_only_the_typed_option_opens_the_plain_subprocess(
    own_rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    works = {"bubblewrap": "no", "monty": "no", "unsafe": ""}
    monkeypatch.setattr(choose, "trouble", lambda tier: works[tier])
    for left_behind in ("", "1"):
        monkeypatch.setenv(choose.UNSAFE_VARIABLE, left_behind)
        cli.main(["tasks", "check", "humaneval"])
        output = capsys.readouterr().out
        assert "absent" in output and "only with --unsafe-exec" in output
    assert cli.main(["tasks", "check", "humaneval", "--unsafe-exec", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["references"]["accepted"]) == ("ok", 1.0)


# The published sets

EVERY = 12


def published(task: Task, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    monkeypatch.delenv(sources.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "_hub_trouble", lambda *_: "not asked")
    tests = [table for table in task.tables if table.path.endswith("/test.jsonl")]
    if lack := sources.missing(tests, None):
        pytest.skip(lack)
    problems = list(task.problems("test"))
    assert len(problems) == count
    return problems


@pytest.mark.parametrize(("cls", "count"), [(HumanEval, 164), (MBPP, 500)])
def test_published_references_are_right(
    cls: type[programs.Programs], count: int, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = cls(tier=tier)
    problems = [p for p in published(task, count, monkeypatch) if p.id not in SLOW][
        :: EVERY if tier == "bubblewrap" else 1
    ]
    assert failing(task, problems) == EXCEPTIONS[tier, task.name] & {p.id for p in problems}


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize(("cls", "count"), [(HumanEval, 164), (MBPP, 500)])
def test_published_references_are_right_under_double_load(
    cls: type[programs.Programs], count: int, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())
    ]
    try:
        task = cls(tier=tier)
        assert failing(task, published(task, count, monkeypatch)) == set()
    finally:
        for process in busy:
            process.kill()
            process.wait()


def failing(task: Task, problems: list[Problem]) -> set[str]:
    verdicts = task.verify_all(problems, [[(task.demonstrate(p),)] for p in problems])
    return {p.id for p, (v,) in zip(problems, verdicts, strict=True) if v.scores["correct"] != 1}


EXCEPTIONS: Mapping[tuple[str, str], set[str]] = {
    ("bubblewrap", "humaneval"): set(),
    ("bubblewrap", "mbpp"): set(),
    ("monty", "humaneval"): {"HumanEval/38", "HumanEval/50"},  # their tests import `string`
    ("monty", "mbpp"): {
        *("31", "39", "108", "209", "232", "342", "372", "408", "496"),  # import heapq
        *("94", "124", "137", "252", "381", "442"),  # import operator, cmath or array
        *("38", "87", "111", "221", "326"),  # use iter() or a method that is not there
        "193",  # takes the order of a set for granted
        "353",  # has a `del` statement
    },
}
SLOW = {"123"}
"""Takes about 3 s in CPython, and in Monty more than the limit of 30 s."""


def test_published_tests_are_converted_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = published(HumanEval(), 164, monkeypatch)
    assert {p.id for p in problems if p.traits["trust"] == "asserts"} == {
        f"HumanEval/{number}" for number in (32, 38, 44, 50, 53, 151)
    }
    assert sum(len(p.truth.get("conditions", ())) for p in problems) > 1000
    few = published(MBPP(), 500, monkeypatch)
    more = {p.id for p in few if len(p.truth["conditions"]) != mbpp.ASSERTS}
    assert more == {"37", "203", "339"}  # of which a constant satisfies all that are published
    assert all(p.prompt.count("assert ") == 1 for p in few if p.id in more)
    assert humaneval.TEST.package is not None


def test_no_constant_satisfies_a_published_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [*published(HumanEval(), 164, monkeypatch), *published(MBPP(), 500, monkeypatch)]
    for published_problem in both:
        conditions = published_problem.truth.get("conditions", ["False"])
        nodes = [
            node
            for condition in conditions
            for node in ast.walk(ast.parse(condition))
            if isinstance(node, ast.expr)
        ]
        for value in [*map(constant, nodes), True, False, None, 0, 1, "", []]:
            values = [value] * len(published_problem.truth.get("calls", ()))
            assert not all(holds(condition, values) for condition in conditions), (
                published_problem.id,
                value,
            )


def constant(node: ast.expr) -> object:
    """The value of an expression that is one; NaN of any other."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return float("nan")
