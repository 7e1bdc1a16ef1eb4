"""Curricula of others: what they draw and accept is checked, and they are named."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpobench.algorithms.curriculum import Shuffled
from grpobench.algorithms.modifiers import Refilled
from grpobench.algorithms.returned import ReturnError
from grpobench.runs.settings import plugins
from grpobench.runs.train.checked_curriculum import CheckedCurriculum

MINE = """
from grpobench.algorithms.curriculum import Shuffled


class Mine(Shuffled):
    drawn = accepted = None

    def draw(self, step, attempt):
        return self.drawn

    def accept(self, step, index, reward):
        return self.accepted
"""


@pytest.fixture
def mine(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(MINE)
    made: Any = plugins.load("mine:Mine", tmp_path)
    return made(6, 2, 0)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        ([0, 6], "the index 6"),
        ([-1, 0], "the index -1"),
        ([0, 1.0], "the index 1.0"),
        (["a"], "the index 'a'"),
        ([True, False], "the index True"),
        ([None], "the index None"),
        ([[0, 1]], "the index [0, 1]"),
    ],
)
def test_an_index_that_no_problem_has_is_refused(drawn: Any, message: str, mine: Any) -> None:
    mine.drawn = drawn
    with pytest.raises(ReturnError) as caught:
        CheckedCurriculum(mine, 6).draw(3, 0)
    assert str(caught.value) == (
        f"mine.py:8 mine:Mine.draw returned {message} at step 3, expected whole numbers from 0 to 5, "
        "one for each problem"
    )


@pytest.mark.parametrize("drawn", [None, 3, "01"])
def test_a_draw_is_a_list(drawn: Any, mine: Any) -> None:
    mine.drawn = drawn
    message = rf"returned {drawn!r} of type {type(drawn).__name__} at step 1, expected a list of indices"
    with pytest.raises(ReturnError, match=message):
        CheckedCurriculum(mine, 6).draw(1, 0)


def test_a_step_draws_something_and_a_refill_may_draw_nothing(mine: Any) -> None:
    mine.drawn = []
    with pytest.raises(
        ReturnError, match=r"mine:Mine\.draw returned no index at step 1, expected at least one"
    ):
        CheckedCurriculum(mine, 6).draw(1, 0)
    assert CheckedCurriculum(mine, 6).draw(1, 1) == []


@pytest.mark.parametrize("drawn", [[0, 5], (0, 5), np.array([0, 5]), [np.int64(0), 5], range(0, 6, 5)])
def test_every_whole_number_of_a_problem_is_an_index(drawn: Any, mine: Any) -> None:
    mine.drawn = drawn
    indices = CheckedCurriculum(mine, 6).draw(1, 0)
    assert indices == [0, 5] and {type(index) for index in indices} == {int}


@pytest.mark.parametrize("accepted", [None, [True], [True] * 3, ["yes", "no"], True])
def test_what_is_accepted_is_told_of_every_problem(accepted: Any, mine: Any) -> None:
    mine.accepted = accepted
    value_text = f"{accepted!r} of type {type(accepted).__name__}"
    message = (
        f"mine:Mine.accept returned {value_text} at step 1, expected True or False for each of 2 problems"
    )
    with pytest.raises(ReturnError, match=re.escape(message)):
        Refilled(CheckedCurriculum(mine, 6), 2).accept(1, [0, 1], [[0.0, 1.0]] * 2)


def test_a_refilled_curriculum_is_named_itself(mine: Any) -> None:
    mine.drawn = [9]
    with pytest.raises(ReturnError, match=r"^mine\.py:8 mine:Mine\.draw returned the index 9"):
        CheckedCurriculum(Refilled(mine, 2), 6).draw(1, 0)


def test_what_is_no_curriculum_says_what_it_lacks() -> None:
    with pytest.raises(ReturnError, match="builtins:dict is no curriculum: it lacks attempts, draw, accept"):
        CheckedCurriculum({}, 6)  # type: ignore[arg-type]


def test_checking_changes_nothing() -> None:
    plain, checked = Shuffled(6, 2, 0), CheckedCurriculum(Shuffled(6, 2, 0), 6)
    assert [checked.draw(step, 0) for step in range(1, 9)] == [plain.draw(step, 0) for step in range(1, 9)]
    assert checked.attempts == 1 and checked.accept(1, [0, 1], [[], []]) == [True, True]


def test_a_value_that_a_curriculum_expects_is_told_through_every_wrapper(mine: Any) -> None:
    expected_values = {0: 0.25, 1: math.nan}
    type(mine).expected = lambda self, problem: expected_values.get(problem, "much")
    for curriculum in (
        CheckedCurriculum(mine, 6),
        CheckedCurriculum(Refilled(mine, 2), 6),
        Refilled(CheckedCurriculum(mine, 6), 2),
    ):
        assert curriculum.expected(0) == 0.25 and math.isnan(curriculum.expected(1))
    with pytest.raises(ReturnError, match="expected returned 'much' of type str, expected a number"):
        CheckedCurriculum(mine, 6).expected(2)


def test_most_curricula_expect_nothing() -> None:
    assert math.isnan(CheckedCurriculum(Refilled(Shuffled(6, 2, 0), 1), 6).expected(0))
