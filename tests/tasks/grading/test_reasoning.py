"""What a chain of reasoning concludes, whether its equations hold, and the scores that tasks make of it."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks import TASKS
from grpobench.tasks.arithmetic import Arithmetic, grade
from grpobench.tasks.grading.reasoning import LONGEST, consistent, equations, supported


@pytest.mark.parametrize(
    ("chain", "value"),
    [
        ("7+8=15", 15),
        ("7+8=15\n15-19=-4", -4),
        ("3 times 4 is 12", 12),
        ("She has $1,234.50 left.", Fraction(2469, 2)),
        ("so 60 * .5 = $30 for 7 days", 30),  # the value of the equation, not the days
        ("12 - 5", 5),  # a minus between numbers is a sign of arithmetic
        ("the change is -5", -5),
        ("Total = 9.\nThat is all of them.", 9),
        ("x = 4\nThere are 3 more", 3),
        ("20% + 10% = 30%", Fraction(3, 10)),
        ("no number here", None),
        ("", None),
    ],
)
def test_last_value_of_a_chain(chain: str, value: Fraction | int | None) -> None:
    others = {Fraction(n) for n in (0, 5, 7, 15, 60)} - {value}
    assert not any(consistent(chain, other) for other in others)
    assert value is None or consistent(chain, Fraction(value)) == 1


@pytest.mark.parametrize(
    ("chain", "sides"),
    [
        ("7+8=15", [(15, 15)]),
        ("7+8=16", [(15, 16)]),
        ("2+3*4=14 and (2+3)*4=20", [(14, 14), (20, 20)]),
        ("10-4-3=3, then 24/4/2=3", [(3, 3), (3, 3)]),
        ("In 2 days he eats 5 + 3 = 8 eggs", [(8, 8)]),  # 2 is no part of the sum
        ("5 eggs + 3 eggs = 8 eggs", [(8, 8)]),
        ("$60/month / 4 weeks/month = $15/week", [(15, 15)]),
        ("3 boxes x 4 pens = 12", [(12, 12)]),
        ("20% of 50 = 10, 1/2 of 30 = 15", [(10, 10), (15, 15)]),
        ("3 piles of 210 / 3 = 70", [(70, 70)]),
        ("7(2+1) = 21", [(21, 21)]),
        ("2 * 3 = 6 = 12 / 2", [(6, 6)]),  # 6 = 12/2 has a value on the left
        ("8 - 6 = 10 / 5 = 2", [(2, 2), (2, 2)]),
        ("-4+3=-1", [(-1, -1)]),
        ("30 plus 28 equals 58", [(58, 58)]),
        ("5 divided by 0 equals 7", [(None, 7)]),
        ("total = 72", []),  # nothing to work out
        ("x = 4 + 5", []),
        ("3x + 4 = 10", []),  # an unknown
        ("11x=121", []),
        ("2^3 + 1 = 9", []),  # powers are not read
        ("= = 3 + = 4 =", []),
        ("10:30 = 5", []),
        ("+ 3 = 3", []),
    ],
)
def test_equations_that_can_be_worked_out(chain: str, sides: list[tuple[int | None, int]]) -> None:
    assert [(equation.left, equation.right) for equation in equations(chain)] == sides


@pytest.mark.parametrize(
    ("chain", "holds"),
    [
        ("100 / 3 = 33.33", True),  # rounded
        ("2 / 3 = .66", True),  # cut off
        ("2 / 3 = .65", False),
        ("100 / 3 = 33", False),  # a whole number claims to be exact
        ("30 / 40 = 75%", True),
        ("3 * 25 = 75%", True),
        ("30 / 40 = 74%", False),
        ("1 / 3 = 33.3%", True),
        ("4 / 0 = 0", False),
    ],
)
def test_an_equation_holds_up_to_the_decimals_that_are_written(chain: str, holds: bool) -> None:
    (equation,) = equations(chain)
    assert equation.holds == holds


@pytest.mark.parametrize(
    ("chain", "answer", "says"),
    [
        ("7+8=15\n15-19=-4", -4, (1, 1)),
        ("7+8=15\n15-19=-4", 4, (0, 0)),  # another answer
        ("7+8=16\n16-19=-3", -3, (1, 0)),  # a wrong step that is carried on: consistent, not supported
        ("7+8=15\n15-19=-4\n5", 5, (1, 0)),  # the answer set behind the chain: what a policy may learn
        ("7+8=15\n15-19=-4\n9", -4, (0, 1)),  # the other way round
        ("5", 5, (1, 0)),  # nothing that supports it
        ("", 5, (0, 0)),
        ("7+8=15", None, (0, 0)),
        ("30 / 40 = 75%", 75, (1, 1)),
    ],
)
def test_the_two_checkers_look_at_different_things(
    chain: str, answer: int | None, says: tuple[int, int]
) -> None:
    value = None if answer is None else Fraction(answer)
    assert (consistent(chain, value), supported(chain, value)) == says


def test_an_equation_whose_numbers_are_changed_no_longer_holds() -> None:
    for right in range(-50, 50):
        (equation,) = equations(f"so 6 * 7 - 4 = {right} eggs")
        assert equation.holds == (right == 38)


@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 999)), min_size=1, max_size=8))
def test_value_of_a_sum_is_pythons(terms: list[tuple[str, int]]) -> None:
    text = "7" + "".join(f"{sign}{number}" for sign, number in terms)
    (equation,) = equations(f"{text}={eval(text)}")
    assert equation.left == equation.right == eval(text)


@given(st.text(alphabet="0123456789+-*/×()=., xX%$a^\nof#<>\ud800\x00٣", max_size=200))
def test_no_text_raises(text: str) -> None:
    for score in (consistent(text, Fraction(3)), supported(text, Fraction(3))):
        assert score in (0.0, 1.0)


@pytest.mark.parametrize("piece", ["1=", "(", "1+", "-", "1/0=", "9" * 50, "a ", "1 of ", "\n=", "1%"])
def test_long_completions_cost_little(piece: str) -> None:
    text = piece * (2**20 // len(piece))
    began = time.process_time()
    consistent(text, Fraction(1))
    supported(text, Fraction(1))
    assert time.process_time() - began < 1.0
    assert len(text) > LONGEST


# In tasks


def test_arithmetic_scores_reasoning_apart_from_the_answer() -> None:
    scores = {
        text: tuple(grade("-4", text).scores[name] for name in Arithmetic.scores)
        for text in ("7+8=15,15-19=-4#-4", "7+8=16,16-19=-3#-3", "7+8=15,15-19=-4#4", "#-4", "7+8=15", "")
    }
    assert list(scores.values()) == [
        (1, 1, 1, 1),
        (0, 1, 1, 0),  # a wrong step, carried on
        (0, 1, 0, 0),  # another answer than the chain's
        (1, 1, 0, 0),  # right without reasons
        (0, 0, 0, 0),
        (0, 0, 0, 0),
    ]


def test_steps_of_three_digits_are_no_thousands() -> None:
    """Commas part the steps: ``7*30=210,210-9=201`` is not the number 210,210."""
    scores = grade("201", "7*30=210,210-9=201#201").scores
    assert (scores["consistent"], scores["supported"]) == (1, 1)


def test_every_demonstration_of_arithmetic_is_consistent_and_supported() -> None:
    task = Arithmetic(largest=999, operations=(2, 3, 6), train=200)
    for problem in task.problems("train"):
        (verdict,) = task.verify(problem, [task.demonstrate(problem)])
        assert set(verdict.scores.values()) == {1.0}, task.demonstrate(problem)


def test_reasoning_has_no_weight_in_a_reward_unless_a_recipe_gives_it_one() -> None:
    scored = [task for task in TASKS.values() if "consistent" in task.scores]
    assert {task.name for task in scored} == {"arithmetic", "gsm8k", "gsm_symbolic"}
    for task in scored:
        assert "supported" in task.scores
        assert not {"consistent", "supported"} & set(task.reward)
