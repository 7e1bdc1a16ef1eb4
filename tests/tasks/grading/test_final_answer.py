"""Locks: what counts as the final answer, exact comparison, and that no answer can raise, hang or pass a
time-out off as a wrong answer."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.grading import algebra
from grpobench.tasks.grading.extraction import ExtractedAnswer, extract
from grpobench.tasks.grading.final_answer import compare, compare_all, normalize, number
from grpobench.tasks.workers.pool import Reply

TOWER = "9^{9^{9^{9^{9}}}}"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("6 * 7 = 42\n#### 42", ExtractedAnswer("42", "marker")),
        ("#### 41\nno:\n#### 42\nbye", ExtractedAnswer("42", "marker")),
        ("####\n42", ExtractedAnswer("42", "marker")),
        ("so \\boxed{\\frac{84}{2}}.", ExtractedAnswer("\\frac{84}{2}", "boxed")),
        ("\\boxed{41} or rather \\boxed{42}", ExtractedAnswer("42", "boxed")),
        ("The answer is $42. Bye 7", ExtractedAnswer("$42", "phrase")),
        ("The final ANSWER IS: 4.5 apples", ExtractedAnswer("4.5 apples", "phrase")),
        ("The answer is unclear; 7 or 8", ExtractedAnswer("8", "last number")),
        ("He has $1,234.50 left.", ExtractedAnswer("$1,234.50", "last number")),
        ("from 5-3 we get -2", ExtractedAnswer("-2", "last number")),
        ("\\boxed{42", ExtractedAnswer("42", "last number")),
        ("#### ", None),
        ("", None),
        ("no idea", None),
    ],
)
def test_final_answer(completion: str, expected: ExtractedAnswer | None) -> None:
    assert extract(completion) == expected


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (" 1,234,567. ", "1234567"),
        ("\\$1,200", "1200"),
        ("-$5", "-5"),
        ("50%", "50"),
        ("**42**", "42"),
        ("42 apples per day.", "42"),
        ("5km", "5"),
        ("−3", "-3"),
        ("1,2", "1,2"),
        ("42x", "42x"),
        ("7 or 8", "7 or 8"),
    ],
)
def test_normalized(text: str, plain: str) -> None:
    assert normalize(text) == plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.50", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("-3/6", Fraction(-1, 2)),
        ("-\\frac{3}{6}", Fraction(-1, 2)),
        ("1.5e3", Fraction(1500)),
        ("1/0", None),
        ("\\frac{1}{0}", None),
        ("1e1000", None),
        ("9" * 301, None),
        ("٣", None),
        ("", None),
        ("forty", None),
    ],
)
def test_exact_value(text: str, value: Fraction | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("42", "equal"),
        ("42.000", "equal"),
        ("$42 dollars", "equal"),
        ("84/2", "equal"),
        ("x = 42", "equal"),
        ("40+2 = 42", "equal"),
        ("42.0001", "different"),
        ("42 or 43", "different"),
        ("40+2", "different"),
        ("6 \\cdot 7", "different"),
        ("\\frac{80}{2}+\\frac{4}{2}", "different"),
        ("", "different"),
        ("4" + "2" * 400, "different"),
        ("1e999999999", "different"),
    ],
)
def test_numbers_are_compared_without_math_verify(
    monkeypatch: pytest.MonkeyPatch, answer: str, outcome: str
) -> None:
    monkeypatch.setattr(
        "grpobench.tasks.grading.final_answer.ask_all", lambda pairs: pairs and pytest.fail("asked")
    )
    assert compare("42", answer) == outcome


def test_endless_expression_is_a_timeout_and_the_next_question_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    monkeypatch.setattr(algebra.POOL, "cpu_seconds", 0.5)
    strange = "\\gcd(84,126)"  # a truth that is math-verify's to read
    pairs = [("42", "\\sqrt{1764}"), (strange, TOWER), ("42", "\\sqrt{1765}"), (strange, TOWER)]
    assert compare_all(pairs) == ["equal", "timeout", "different", "timeout"]


@pytest.mark.parametrize(
    ("truth", "answer", "outcome"),
    [
        ("42", TOWER, "different"),
        ("3^{10^{12}}", "3^{10^{12}}+1", "different"),
        ("2^{10^{12}}", "4^{5\\cdot10^{11}}", "equal"),
        ("10^{200}", "10^{200}+1", "different"),
        ("\\frac{1}{2004!}", "\\frac{2005}{2005!}", "equal"),
        ("x", f"x+{TOWER}", "different"),
        ("0", "(10^9)!-(10^9)!", "different"),
    ],
)
def test_what_is_too_large_to_compute_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, truth: str, answer: str, outcome: str
) -> None:
    monkeypatch.setattr(algebra.POOL, "cpu_seconds", 0.5)  # a time-out would show as such
    assert compare(truth, answer) == outcome


def test_pair_that_comes_twice_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent_pairs: list[object] = []

    def record(pairs: list[object], wall_seconds: float) -> list[Reply]:
        sent_pairs.extend(pairs)
        return [Reply("done", True) for _ in pairs]

    monkeypatch.setattr(algebra.POOL, "map", record)
    assert algebra.ask_all([("1", "2"), ("1", "3"), ("1", "2")]) == ["equal"] * 3
    assert sent_pairs == [("1", "2"), ("1", "3")]


@pytest.mark.parametrize("ending", ["timeout", "crash", "infra_error"])
def test_no_answer_of_math_verify_is_never_a_plain_no(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(algebra.POOL, "map", lambda pairs, wall_seconds: [Reply(ending)] * len(pairs))
    assert compare_all([("42", "\\sqrt{1764}"), ("42", "43")]) == [ending, "different"]


def test_math_verify_is_not_imported_by_this_process() -> None:
    imported = "import sys, grpobench.tasks.grading.final_answer"
    code = f"{imported}; print({{'math_verify', 'sympy', 'torch'}} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set()"


@given(st.text(max_size=200) | st.text("0123456789.,-+/$%#\\{}^ e=answer iboxd", max_size=200))
def test_no_text_raises(text: str) -> None:
    extracted = extract(text)
    number(normalize(text))
    if extracted is not None:
        number(normalize(extracted.text))


WAYS = ("{}", "{:,}", "${:,}", "{}.", "{}.00", "{} apples", "**{}**")


@given(st.integers(-(10**12), 10**12), st.sampled_from(WAYS))
def test_whole_number_however_written_equals_itself_and_not_its_neighbor(value: int, way: str) -> None:
    completion = f"so 1 + 1 = 2\n#### {way.format(value)}"
    extracted = extract(completion)
    assert extracted is not None
    assert compare(str(value), extracted.text) == "equal"
    assert compare(str(value + 1), extracted.text) == "different"


@pytest.mark.parametrize(
    "answer", ["\ud800^{2}", "\x00^2", "((((((^", "\\frac{1}{0}", "\\input{/etc/passwd}"]
)
def test_hostile_expressions_are_different(answer: str) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    assert compare("42", answer) == "different"
