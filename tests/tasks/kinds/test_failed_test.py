"""The first failed test of a program, from real sandboxes: its place, what was expected, what came."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.functions import Functions
from grpobench.tasks.grading.asserts import convert, restored
from grpobench.tasks.grading.failed_test import LONGEST, SHORT, values_got
from grpobench.tasks.humaneval import HumanEval
from grpobench.tasks.nanocode import NanoCode
from grpobench.tasks.sandbox.protocol import Tier
from grpobench.tasks.task import Problem, Verdict

TESTS = "assert f(1) == 2\nassert sorted(f(-1)) == [0] or f(0) is None\nassert abs(f(2.5) - 5) < 1e-6"


def problem(test: str = TESTS) -> Problem:
    calls, conditions = convert(test, {"f"})
    blank = dict.fromkeys(("before", "header", "after"), "")
    truth = {"entry": "f", **blank, "reference": "", "calls": calls, "conditions": conditions}
    return Problem("p", "", truth)


def graded(tier: Tier, body: str, seconds: float = 0.5) -> Verdict:
    task = HumanEval(tier=tier, seconds=seconds)
    (verdict,) = task.verify(problem(), [f"```python\ndef f(n):\n    {body}\n```"])
    assert len(verdict.failed_test) < 2 * LONGEST + 60 and "\n" not in verdict.failed_test
    return verdict


SECOND = "test 2 of 3: sorted(f(-1)) == [0] or f(0) is None, "
THIRD = "test 3 of 3: abs(f(2.5) - 5) < 1e-06, "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 7", "test 1 of 3: f(1) == 2, got 7"),
        ("return 2", f"{SECOND}got 2, 2"),
        ("return '<b>' * n if n == 0 else 2 * n", f"{SECOND}got -2, ''"),
        ("return [0] if n < 0 else n + 1", f"{THIRD}got 3.5"),
        ("return [0] if n < 0 else {'b', 'a'} if n > 2 else 2 * n", f"{THIRD}got {{'a', 'b'}}"),
        ("return 10**5000", "test 1 of 3: f(1) == 2, got a number of 16610 bits"),
        ("return [0] if n < 0 else 2 * n", ""),
    ],
)  # fmt: skip
def test_a_wrong_value_stands_beside_its_test(tier: Tier, body: str, expected: str) -> None:
    verdict = graded(tier, body)
    assert (verdict.failed_test, verdict.scores["correct"]) == (expected, float(not expected))


@pytest.mark.parametrize(
    ("body", "outcome", "parts"),
    [
        ("return 2 * n // n", "graded", (SECOND, "error: ZeroDivisionError")),
        ("if n == 0:\n        raise ValueError('<img src=x> at 0x7fab12')\n    return 2", "graded",
         (SECOND, "error: ValueError", "<img src=x> at 0x…")),
        ("return [0] * 10**9 if n < 0 else 2", "crash", (SECOND, "oom")),
        ("return undefined", "graded", ("test 1 of 3: f(1) == 2, error: NameError",)),
    ],
)  # fmt: skip
def test_an_error_stands_beside_the_test_that_it_ended(
    tier: Tier, body: str, outcome: str, parts: tuple[str, ...]
) -> None:
    verdict = graded(tier, body)
    assert verdict.outcome == outcome and all(part in verdict.failed_test for part in parts)
    assert verdict.failed_test == graded(tier, body).failed_test  # also in a run that is resumed


def test_a_program_that_does_not_end_is_told_with_the_test_where_the_tier_knows_it(tier: Tier) -> None:
    verdict = graded(tier, "while n == 0:\n        pass\n    return 2", seconds=0.2)
    expected = f"{SECOND}timeout" if tier == "bubblewrap" else "one of 3 tests: timeout"
    assert (verdict.outcome, verdict.failed_test) == ("timeout", expected)


@pytest.mark.parametrize("body", ["import os\n    os._exit(3)", "return 'x' * 10**7"])
@pytest.mark.parametrize("tier", ["bubblewrap"], indirect=True)
def test_a_program_that_leaves_or_floods_is_told_with_its_test(body: str, tier: Tier) -> None:
    ending = "error: ended with status 3" if "exit" in body else "output_limit"
    assert graded(tier, body).failed_test == f"test 1 of 3: f(1) == 2, {ending}"


@pytest.mark.parametrize("tier", ["bubblewrap"], indirect=True)
def test_a_program_cannot_place_its_failure_behind_the_tests(tier: Tier) -> None:
    """It writes more values than there are calls, into every descriptor."""
    write = "for number in range(20):\n        try:\n            os.write(number, b'value null\\n' * 9)"
    body = f"import os\n    {write}\n        except OSError:\n            pass\n    while True:\n        pass"
    failed = graded(tier, body, seconds=0.2).failed_test
    assert failed.startswith("test ") and failed.endswith("timeout")


@pytest.mark.parametrize("text", ["no program", "```python\ndef f(n)\n```"])
def test_what_is_no_program_failed_no_test(tier: Tier, text: str) -> None:
    (verdict,) = HumanEval(tier=tier).verify(problem(), [text])
    assert (verdict.outcome, verdict.failed_test) == ("unparsable", "")


def test_a_replayed_test_names_the_call_that_it_refuses(tier: Tier) -> None:
    judge = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == 2 * i\n"
    truth = problem().truth | {"judge": judge, "header": "def f(n):\n", "reference": "    return 2 * n\n"}
    del truth["calls"], truth["conditions"]
    bodies = ("return n", "return 10**5000", "return 1 // n", "return 2 * n")
    answers = [f"```\ndef f(n):\n    {body}\n```" for body in bodies]
    wrong, huge, error, right = HumanEval(tier=tier).verify(Problem("p", "", truth), answers)
    assert wrong.failed_test == "test 2 of 3: f(*(1,)), got 1, which the published test refuses"
    assert huge.failed_test == "one of 3 tests: the published test failed"
    assert error.failed_test.startswith("test 1 of 3: f(*(0,)), error: ZeroDivisionError")
    assert (right.failed_test, right.scores["correct"]) == ("", 1.0)


def test_generated_functions_name_a_hidden_input_with_its_result(tier: Tier) -> None:
    task = Functions(tier=tier, train=20)
    problem = task.problems("train")[0]
    verdicts = task.verify(problem, [task.demonstrate(problem), task.corrupt(problem)])
    assert [verdict.failed_test[:12] for verdict in verdicts] == ["", "test 1 of 9:"]
    condition = problem.truth["conditions"][0].replace("_0", problem.truth["calls"][0])
    assert condition[: LONGEST - 1] in verdicts[1].failed_test


@pytest.mark.parametrize(
    ("expression", "outcome", "failed"),
    [
        ("x+2", "graded", ""),
        ("3", "graded", "test 2 of 10: f(4) == 6, got 3"),
        ("True", "graded", "test 1 of 10: f(1) == 3, got True"),
        # Of a program that stops, no value is left: not even the wrong one before.
        ("5//(x-4)", "graded", "test 2 of 10: f(4) == 6, error: ZeroDivisionError('division by zero')"),
        ("x+2+0//(x-4)", "graded", "test 2 of 10: f(4) == 6, error: ZeroDivisionError('division by zero')"),
        ("y", "graded", "test 1 of 10: f(1) == 3, error: NameError(\"name 'y' is not defined\")"),
        ("[0]*10**9", "crash", "test 1 of 10: f(1) == 3, oom"),
        (
            "[0 for a in range(10**6) for b in range(10**6) for c in range(10**6) if 0]",
            "timeout",
            "one of 10 tests: timeout",
        ),
        ("'a'*9000", "graded", "one of 10 tests: values that are too long"),
        ("x+", "unparsable", ""),
    ],
)
@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("tier", ["monty"], indirect=True)
def test_nanocode_names_an_input_with_its_output(expression: str, outcome: str, failed: str) -> None:
    inputs = [1, 4, 0, 2, 3, 5, 6, 7, 8, 9]
    truth = {"expression": "x+2", "inputs": [*map(str, inputs)], "outputs": [x + 2 for x in inputs]}
    (verdict,) = NanoCode().verify(Problem("p", "", truth), [expression])
    assert (verdict.outcome, verdict.failed_test) == (outcome, failed)
    assert verdict.scores["correct"] == (expression == "x+2")


@pytest.mark.parametrize(
    "test",
    ["f(1, [2]) == 'a_0'", "f('_1') == f(2)", "abs(f(1.5) - 0.5) < 1e-06", "set(f(f(3))) == {1, 2}",
     "f(1) is None and (not f(2))"],
)  # fmt: skip
def test_a_condition_reads_as_the_assert_that_it_was(test: str) -> None:
    calls, (condition,) = convert(f"assert {test}", {"f"})
    assert restored(condition, calls) == (ast.unparse(ast.parse(test)), list(range(len(calls))))


SMALL = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab'\n", max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(0, 9) | st.text("xyz", max_size=2), min_size=1, max_size=4)
        | st.dictionaries(st.text("k", max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(SMALL)
def test_small_values_are_shown_as_python_writes_them(value: Any) -> None:
    assert ast.literal_eval(SHORT.repr(value)) == value


@given(st.lists(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner))))
def test_shown_values_are_one_short_line(values: list[Any]) -> None:
    shown = values_got(values)
    assert len(shown) <= LONGEST + len("got ") and "\n" not in shown


def test_values_beyond_every_size_are_shown_short() -> None:
    deep: Any = []
    for _ in range(32):
        deep = [deep, {1: deep}, {frozenset([2])}] if len(repr(deep)) < 10**5 else [deep]
    values = ("x" * 10**6, 10**9999, [0] * 10**6, b"y" * 10**6, Fraction(1, 10**300), deep, {})
    assert all(len(values_got([value])) <= LONGEST + len("got ") for value in values)


def test_sets_are_shown_alike_in_every_process() -> None:
    """Python orders the texts of a set differently in each process, unless its seed is fixed."""
    program = "from grpobench.tasks.grading.failed_test import SHORT; print(SHORT.repr({*'abcd', 1}))"
    shown = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert shown == {"{'a', 'b', 'c', 'd', 1}\n"}
