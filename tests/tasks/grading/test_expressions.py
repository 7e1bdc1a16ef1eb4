"""Locks: what is read as one expression and what is not, that values are computed right and nothing is lost
by rounding, and intervals and inequalities as sets of real numbers."""

from __future__ import annotations

import cmath
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.grading import numeric, reals, values
from grpobench.tasks.grading.expressions import exact, read, repeating, unfinished
from grpobench.tasks.grading.final_answer import number, unit
from grpobench.tasks.grading.latex import clean
from grpobench.tasks.grading.reals import shape, split


def computed(text: str) -> complex:
    tree = read(clean(text))
    assert tree is not None, text
    with numeric.mp.workprec(100):
        return complex(numeric.Computing({"x": numeric.mp.mpf(2), "y": numeric.mp.mpf(3)}).value(tree))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2x^2y", 24),
        ("-x^2", -4),
        ("2^{-x}", 0.25),
        ("x/y", 2 / 3),
        ("1-x-y", -4),
        ("2\\frac{1}{2}", 2.5),
        ("2\\frac{x}{2}", 2),
        ("\\frac12x", 1),
        ("|1-y|x", 4),
        ("|x|y|x|", 12),
        ("\\sqrt[3]{-8}", -2),
        ("\\sqrt{-4}", 2j),
        ("y!", 6),
        ("\\binom{5}{2}", 10),
        ("\\sin^2 x", math.sin(2) ** 2),
        ("\\sin x^2", math.sin(4)),
        ("\\sin(x)^2", math.sin(2) ** 2),
        ("\\sin 2x\\cos y", math.sin(4) * math.cos(3)),
        ("\\sin^{-1}\\frac{x}{4}", math.asin(0.5)),
        ("\\cos 60^\\circ", 0.5),
        ("\\tan(45°)", 1),
        ("\\log_2 8", 3),
        ("\\ln e^x", 2),
        ("e^{i\\pi/x}", 1j),
        ("\\lvert 3+4i\\rvert", 5),
        ("2 sqrt(x) + pi", 2 * math.sqrt(2) + math.pi),
        ("0.1\\overline{6}", 1 / 6),
        ("2(x+1)(y-1)", 12),
        ("5\\cdot-x", -10),
    ],
)
def test_an_expression_has_the_value_that_it_has_in_books(text: str, value: complex) -> None:
    assert cmath.isclose(computed(text), value, rel_tol=1e-14)  # a double holds 16 digits of the 30 computed


@pytest.mark.parametrize(
    "text",
    [
        *("", "7\\cup 3", "7\\iff 3", "7\\mid 3", "5\\bmod 3", "3 7", "x2", "2e5", "five", "x or y east"),
        *(
            "f(2)",
            "\\sin x/2",
            "1/2x",
            "5!!",
            "2^3^2",
            "--5",
            "(5",
            "5)",
            "|5",
            "5,6",
            "x=5",
            "x'",
            "\\frac12{",
        ),
        *(
            "3\\frac{7}{5}",
            "\\max(5,6)",
            "\\text{ab}",
            "a_{n+1}",
            "0.333\\ldots",
            "\\pm 3",
            "\\begin{pmatrix}1",
        ),
    ],
)
def test_what_is_no_expression_or_has_two_readings_is_not_read(text: str) -> None:
    assert read(clean(text)) is None


def test_depth_and_length_are_bounded() -> None:
    assert read("(" * 30 + "x" + ")" * 30) is not None
    assert read("(" * 150 + "x" + ")" * 149) is None
    assert read("(" * 140 + "x" + ")" * 140) is None
    assert read("-" * 300) is None
    assert exact(read("9^{9^{9}}")) is None  # type: ignore[arg-type]
    assert exact(read("2^{10}-2^{-1}")) == Fraction(2047, 2)  # type: ignore[arg-type]
    assert exact(read("0^{-1}")) is None  # type: ignore[arg-type]
    assert exact(read("1/(1-1)")) is None  # type: ignore[arg-type]


@given(st.text("0123456789.+-*/^(){}[]|!°_=<>xyei \\sinfracqtpw", max_size=60))
def test_no_text_raises(text: str) -> None:
    tree = read(text)
    reals.read(text)
    values.read(text)
    if tree is not None:
        exact(tree)
        unfinished(tree)


@given(st.integers(0, 99), st.integers(0, 3), st.integers(1, 10**6))
def test_a_repeating_decimal_is_the_fraction_that_long_division_repeats(
    integer: int, fixed: int, period: int
) -> None:
    digits = "7" * fixed
    value = repeating(f"{integer}.{digits}\\overline{{{period}}}")
    assert value is not None
    written = Fraction(f"{integer}.{digits}{str(period) * 40}")
    assert 0 <= value - written < Fraction(1, 10 ** (40 * len(str(period)) - 1))
    assert number(f"-{integer}.{digits}\\bar{{{period}}}") == -value


def equal(first: str, second: str) -> bool | None:
    return values.same(clean(first), clean(second))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("0", "\\sin\\pi", True),
        ("0", "\\sqrt2\\sqrt3-\\sqrt6", True),
        ("1", "1+\\sin\\pi", True),
        ("0", "10^{-200}", False),
        ("2^{1000}", "2^{1000}+2^{-1000}", False),
        ("\\sqrt{10^{200}+1}", "10^{100}", False),
        ("e^{\\pi\\sqrt{163}}", "640320^3+744", False),  # they agree to 30 digits
        ("\\sqrt{x^2}", "x", False),
        ("\\ln x^2", "2\\ln x", False),  # below 0 only the one is real
        ("\\log_2 x", "\\frac{\\log x}{\\log 2}", True),  # whatever the base
        ("\\log 100", "2", False),
        ("(-1)^{n}", "(-1)^{n+2}", True),
        ("x", "x+0\\cdot y", True),
        ("x", "x+y", False),
        ("\\frac{x^2-1}{x-1}", "x+1", True),
        ("\\frac{0}{0}", "\\frac00", True),  # as written
        ("\\frac{0}{0}", "\\frac{1}{0}", False),
        ("4x-5y=-50", "10y-8x=100", True),
        ("x+y<3", "2x+2y<6", True),
        ("x+y<3", "-x-y<-3", False),
        ("\\{1,\\sqrt8\\}", "2\\sqrt2,1", True),
        ("(1,\\sqrt8)", "(2\\sqrt2,1)", False),
        ("\\begin{pmatrix}\\sqrt8&1\\end{pmatrix}", "\\begin{pmatrix}\\sqrt8\\\\1\\end{pmatrix}", False),
        ("\\gcd(4,6)", "2", None),
    ],
)
def test_equal_means_equal_to_every_digit(first: str, second: str, same: bool | None) -> None:
    assert equal(first, second) is same


def as_set(text: str) -> reals.Reading:
    parsed = reals.read(clean(text))
    assert parsed is not None, text
    return parsed


ONE_SET = [
    ["(3,\\infty)", "x>3", "3<x", "\\{x:x>3\\}", "\\{x\\in\\mathbb{R}\\mid x>3\\}", "x\\in(3,\\infty)"],
    [
        "[1,2]",
        "1\\le x\\le2",
        "2\\ge x\\ge1",
        "x\\ge1\\text{ and }x\\le2",
        "[1,2]\\cap[0,5]",
        "[1,1.5]\\cup(1,2]",
    ],
    ["(-\\infty,2)\\cup(2,\\infty)", "x\\ne2", "\\mathbb{R}\\setminus\\{2\\}", "x<2\\text{ or }x>2"],
    ["\\mathbb{R}", "(-\\infty,\\infty)", "\\text{all real numbers}", "x\\le1\\text{ or }x>0"],
    ["[-\\sqrt2,\\sqrt2]", "-\\sqrt{2}\\le x\\le\\frac{2}{\\sqrt2}", "2^{1/2}\\ge x\\ge-\\sqrt2"],
    ["\\emptyset", "x>3\\text{ and }x<2", "(1,2)\\cap(2,3)"],
    ["\\{1,2\\}", "x=1\\text{ or }x=2", "\\{2\\}\\cup\\{1\\}", "[1,2]\\setminus(1,2)"],
    ["x\\ge3"],
    ["[1,2)"],
]


def test_sets_are_the_same_as_their_spellings_and_no_others() -> None:
    for i, spellings in enumerate(ONE_SET):
        for j, others in enumerate(ONE_SET):
            for spelling in spellings:
                for other in others:
                    is_same = reals.same(as_set(spelling), as_set(other), numeric.order)
                    assert is_same is (i == j), (spelling, other)


@pytest.mark.parametrize(
    "text",
    [
        "2x>6",
        "x<1, x>5",
        "1<x>3",
        "x<y",
        "[1,\\infty]",
        "[-\\infty,1)",
        "x>",
        "1<2",
        "x>\\infty",
        "3",
        "(1,2,3)",
    ],
)
def test_what_is_no_solved_set_is_not_read(text: str) -> None:
    assert reals.read(clean(text)) is None


def test_names_of_variables_must_agree_where_both_have_one() -> None:
    assert reals.same(as_set("x>3"), as_set("y>3"), numeric.order) is False
    assert reals.same(as_set("(5,3)"), as_set("x>3"), numeric.order) is False  # no interval


def test_cutting_at_commas_outside_of_brackets() -> None:
    assert split("1,(2,3),[4,5)") == ["1", "(2,3)", "[4,5)"]
    assert split("1),2") is None
    assert split("") == [""]
    assert shape("\\{1,(2,3)\\}") == ("\\{", ["1", "(2,3)"], "\\}")
    assert shape("(1),(2)") == ("", ["(1)", "(2)"], "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("10\\text{ cm}", "cm"),
        ("10 cm", "cm"),
        ("864\\mbox{ inches}^2", "in"),
        ("8\\sqrt3\\text{ square inches}", "in"),
        ("5\\text{ hours}", "h"),
        ("18\\text{ ways}", ""),
        ("10", ""),
        ("x", ""),
    ],
)
def test_unit_behind_a_value(text: str, name: str) -> None:
    assert unit(clean(text)) == name
