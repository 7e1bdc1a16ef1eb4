"""Locks: which spellings of a mathematical answer are the same, which are not, and that no way of hedging,
breaking or blowing up an answer is ever accepted."""

from __future__ import annotations

import random
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.grading import algebra
from grpobench.tasks.grading.extraction import extract
from grpobench.tasks.grading.final_answer import compare_all, decide, normalize, number
from grpobench.tasks.grading.latex import balanced, clean


def test_percentages_are_graded_as_the_document_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tasks" / "math.md").read_text(encoding="utf-8")
    table = page.partition("| truth | accepted | refused |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[re.findall("`([^`]+)`", cell) for cell in line.split("|")[1:4]] for line in table.splitlines()]
    cases = [
        (truth, answer, outcome)
        for (truth,), *answers in rows
        for outcome, cell_answers in zip(("equal", "different"), answers, strict=True)
        for answer in cell_answers
    ]
    assert {("50\\%", "0.5", "different"), ("50\\%", "\\frac12", "different")} <= set(cases)
    assert compare_all([case[:2] for case in cases]) == [case[2] for case in cases]


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("\\dfrac 1 2", "\\frac{1}{2}"),
        ("\\frac1{12}", "\\frac{1}{12}"),
        ("\\tfrac\\pi2", "\\frac{\\pi}{2}"),
        ("\\frac{\\frac12}{\\sqrt3}", "\\frac{\\frac{1}{2}}{\\sqrt{3}}"),
        ("\\sqrt[3]2 x", "\\sqrt[3]{2}x"),
        ("\\left( -\\infty , 2 \\right]", "(-\\infty,2]"),
        ("\\left\\{ 1 ,\\, 2 \\right\\}", "\\{1,2\\}"),
        ("\\leftarrow", "\\leftarrow"),
        ("x^{2} + x_{1}", "x^2+x_1"),
        ("x^{2}3", "x^{2}3"),
        ("2^10", "2^{10}"),
        ("\\sin x", "\\sin x"),
        ("\\mbox{ two  words }", "\\text{two words}"),
        ("\\text{13}", "13"),
        ("June 20", "June 20"),
        ("3 1/2", "3 1/2"),
        ("1,234,567.8", "1234567.8"),
        ("(1,234)", "(1,234)"),
        ("1,23", "1,23"),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        ("1 \\\\ 4", "1\\\\4"),
        ("-.5.", "-.5"),
        (".5", ".5"),
        ("{ {5} }", "5"),
        ("\\frac{1", "\\frac{1"),
        ("\\frac", "\\frac"),
        ("", ""),
    ],
)
def test_spelling(text: str, spelling: str) -> None:
    assert clean(text) == spelling


@pytest.mark.parametrize(
    ("text", "closed"),
    [("", True), ("{{}}", True), ("\\{", True), ("\\\\}", False), ("}{", False), ("{", False)],
)
def test_balanced(text: str, closed: bool) -> None:
    assert balanced(text) is closed


TOKENS = (
    r"\frac|\sqrt|\left|\right|\text{|\mbox{ a }|{|}|(|)|[|]|\{|\}|\!|\,|\ |\\|$|\$|%|^|_|1|12|000|a|ab|,|.| "
    r"|\pi|π|−|^\circ|~|=|\leq|\ge|*|`|\gt|\>|{,}|;|:"
)
SNIPPETS = st.lists(st.sampled_from(TOKENS.split("|")), max_size=14).map("".join)


@given(SNIPPETS | st.text(max_size=60))
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(SNIPPETS, SNIPPETS)
def test_no_answer_raises(truth: str, answer: str) -> None:
    assert decide(truth, answer)
    assert not truth.strip() or decide(truth, truth) in ("equal", "different")


VALUES = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**4)


def spellings(value: Fraction) -> list[str]:
    """A number as people write it."""
    above, below = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    forms = [f"{sign}\\frac{{{above}}}{{{below}}}", f"{sign}\\dfrac {{{above}}} {{{below}}}", f"{value}"]
    forms += [
        f"\\frac{{{sign}{above}}}{{{below}}}",
        f"$ {sign}{above}/{below} $",
        f"\\left( {sign}{above}/{below} \\right)",
    ]
    if above < 10 and below < 10:
        forms.append(f"{sign}\\frac{above}{below}")
    if above > below > 1:
        forms.append(f"{sign}{above // below}\\frac{{{above % below}}}{{{below}}}")
    if below == 1:
        forms += [f"{value.numerator:,}", f"\\${value.numerator}.00", f"{value.numerator}\\text{{ cm}}^2"]
        forms += [f"{value.numerator:,}".replace(",", "{,}"), f"{value.numerator:,}".replace(",", ",\\!")]
        forms += [f"{value.numerator}^{{\\circ}}", f"x = {value.numerator}", f"\\text{{{value.numerator}}}"]
    return forms


@given(VALUES | st.integers(-(10**7), 10**7).map(Fraction), VALUES)
def test_a_number_equals_itself_however_written_and_no_other(value: Fraction, other: Fraction) -> None:
    for truth in spellings(value)[:3]:
        for answer in spellings(value):
            assert decide(truth, answer) == "equal", (truth, answer)
        for answer in spellings(other):
            assert decide(truth, answer) == ("equal" if value == other else "different"), (truth, answer)


@given(VALUES)
def test_cleaning_keeps_the_value(value: Fraction) -> None:
    for text in spellings(value)[:5]:
        assert number(normalize(clean(text))) == value


ATOMS = ["x", "y", "3", "12", "\\pi", "\\sqrt{2}", "\\frac{1}{3}", "x^{2}", "\\sin{x}", "(x+1)", "e^{-x}"]
ROOM = ["", " ", "\\,", "\\;", "~", "\\!"]


def test_another_spelling_of_an_expression_keeps_its_value_for_math_verify() -> None:
    """Sums of products, typeset in two ways: one cleaned, one raw. The judge is math-verify alone."""
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    rng = random.Random(7)
    pairs = []
    for _ in range(16):
        terms = [[rng.choice(ATOMS) for _ in range(rng.randint(1, 2))] for _ in range(rng.randint(1, 3))]
        raw = " + ".join(" \\cdot ".join(term) for term in terms)
        loose = rng.choice(ROOM).join(raw.split(" ")).replace("\\cdot", "\\cdot ").replace("\\pi", "\\pi ")
        loose = loose.replace("\\frac{1}{3}", rng.choice(["\\frac13", "\\dfrac{1}{3}", "\\tfrac 1 3"]))
        loose = loose.replace("\\sqrt{2}", rng.choice(["\\sqrt2", "\\sqrt {2}"])).replace("x^{2}", "x^2")
        loose = loose.replace("(x+1)", "\\left( x+1 \\right)").replace("\\sin{x}", "\\sin x")
        pairs.append((raw, clean(loose)))
    assert algebra.ask_all(pairs) == ["equal"] * len(pairs)


# Whole completions for a problem with the answer 2.
HEDGES = [
    "\\boxed{1} or \\boxed{2}",
    "$\\boxed{2}$ or $\\boxed{1}$.",
    "\\boxed{1}, \\boxed{2}",
    "\\boxed{1} \\text{ and } \\boxed{2}",
    "x = \\boxed{1} or x = \\boxed{2}",
    "\\boxed{1 \\text{ or } 2}",
    "\\boxed{1, 2, 3}",
    "\\boxed{\\{1, 2\\}}",
    "\\boxed{[1, 2]}",
    "\\boxed{1 = 2}",
    "\\boxed{\\pm 2}",
    "\\boxed{\\ge 2}",
    "\\boxed{1 < x < 3}",
    "\\boxed{\\text{not } 2}",
    "\\boxed{2?} \\boxed{3}",
    "#### 1 or 2",
    "#### 2 or 1",
    "#### 1, 2",
    "#### 1 2",
    "#### 2; 3",
    "#### 1 = 2",
    "#### 2 ####",
    "The answer is 1 or 2",
    "The answer is 2 or 3.",
    "The answer is between 1 and 3",
    "\\boxed{{2}",
    "\\boxed{2",
    "\\boxed{\\frac{4}{2}",
    "\\boxed{}",
    "\\boxed{\\boxed{}}",
    "\\boxed{10^{10^{10^{10}}}}",
    "\\boxed{2^{1e9999}}",
    "\\boxed{1e999999999}",
    "\\boxed{2\\uparrow\\uparrow 9}",
    "\\boxed{" + "(" * 200 + "2" + ")" * 199 + "}",
    "\\boxed{" + "1," * 140 + "2}",
    "\\boxed{" + "2" * 400 + "}",
]


def test_hedged_broken_and_boundless_answers_are_never_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    monkeypatch.setattr(algebra.POOL, "cpu_seconds", 0.5)
    texts = {text: extract(text, ("boxed", "marker", "phrase")) for text in HEDGES}
    outcomes = compare_all([("2", answer.text) for answer in texts.values() if answer])
    accepted = [
        text
        for text, outcome in zip([text for text, answer in texts.items() if answer], outcomes, strict=True)
        if outcome == "equal"
    ]
    assert accepted == []


OTHERS = {
    "3": "7",
    "12": "5",
    "-1": "4",
    "\\sqrt{2}": "\\sqrt{3}",
    "\\frac{1}{2}": "\\frac{1}{3}",
    "2\\pi": "3\\pi",
    "x+1": "x+2",
    "(1,2)": "(2,1)",
    "[1,2]": "[3,4]",
    "x=3": "x=7",
    "1,2": "3,4",
    "y=2x+3": "y=2x+4",
    "\\text{(A)}": "\\text{(B)}",
    "\\overline{CD}": "\\overline{AB}",
    "x>3": "x<7",
}
"""A wrong answer by the right one."""
SIGNS = (
    r",|;| |:|::|:=|=|<|>|?|!|@|#|~|'|_|&|\\|.|...|(|[|{|\}|\$|\%| or | and | vs |\text{ or }|\mbox{ or }"
    r"|\mathrm{or}"
    r"|\text{ rather }|\text{}|\quad|\newline|\cup|\cap|\iff|\implies|\Rightarrow|\to|\mid|\lor|\land|\vee"
    r"|\wedge|\veebar|\ne|\not=|\approx|\equiv|\sim|\cong|\le|\gg|\doteq|\triangleq|\in|\subset|\pm|\mp|\star"
    r"|\circ|\bullet|\dagger|\oplus|\parallel|\perp|\bmod|\pmod|\choose|\over|\colon|\ldots|\cdots|\therefore"
    r"|\because|\leadsto|\uparrow|\hline"
)
FORMS = ("{1}{2}{0}", "{0}{2}{1}", "{1} {2} {0}", "x={1}{2}x={0}", "x={1}{2} y={0}", "{1}{2}{0}{2}{1}")


def test_two_answers_are_none_whatever_stands_between_them() -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    signs = SIGNS.split("|")
    pairs = [
        (truth, form.format(truth, wrong, sign))
        for row, (truth, wrong) in enumerate(OTHERS.items())
        for column, sign in enumerate(signs)
        for form in FORMS[(row + column) % 3 :: 3]  # each sign with each form, for a third of the answers
    ]
    assert len(pairs) > 2000
    accepted = [pair for pair, outcome in zip(pairs, compare_all(pairs), strict=True) if outcome == "equal"]
    assert accepted == []


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "1", "-", "{", "}", "1,", "1/", "$", " ", "^_", "((", "or ", "####", "answer is "),
        *("\\frac", "\\frac{", "\\boxed{", "\\text{a}", "\\left(", "\x00", "\ud800"),
        "\\boxed{1}" + " " * 59,
        "\\boxed{1}" + " $" * 29,
        "\\boxed{1}, and ",
    ],
)
def test_a_megabyte_takes_no_time(unit: str) -> None:
    text = unit * (10**6 // len(unit))
    began = time.process_time()
    for answer in (text, f"\\boxed{{{text}}}", f"#### {text}", f"The answer is {text}"):
        extracted = extract(answer)
        assert decide("2", extracted.text if extracted else answer) == "different"
    for short in (text[:300], text[:299] + "2"):
        decide("x+1", short)
        decide("2", short)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("\\boxed{-3}$. Note: $\\boxed{3}$", "3"),
        ("\\boxed{\\frac{25}{13}} = \\boxed{1\\frac{12}{13}}", "1\\frac{12}{13}"),
        ("$\\boxed{-2}$ and $\\boxed{1}$.", "-2, 1"),
        ("\\boxed{(1,2)} \\text{ and } \\boxed{(3,4)}", "(1,2), (3,4)"),
        ("$a = \\boxed{-1}$ and $a = \\boxed{2}.$", "-1, 2"),
        ("\\boxed{15\\frac{39}{40}},$ or $\\boxed{\\frac{639}{40}}", "15\\frac{39}{40}, \\frac{639}{40}"),
        ("\\boxed{1}. It follows that x = \\boxed{2}", "2"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{\\left\\{1\\right\\}}", "\\left\\{1\\right\\}"),
        ("\\boxed{ } and then", None),
        ("\\fbox{3}", None),
    ],
)
def test_boxes(completion: str, expected: str | None) -> None:
    boxed = extract(completion, ("boxed",))
    assert (boxed.text if boxed else None) == expected
