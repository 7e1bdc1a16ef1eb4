"""Locks: commas between numbers, words that change a value, upright letters, characters outside ASCII. Each
table has pairs of a truth and an answer: `SAME` are accepted, `OTHER` refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.grading.extraction import extract
from grpobench.tasks.grading.final_answer import compare, compare_all, normalize
from grpobench.tasks.grading.latex import clean

Pairs = list[tuple[str, str]]

COMMAS_SAME: Pairs = [
    ("5, 125", "125, 5"),
    ("5, 125", "5 and 125"),
    ("5, 125", "125 or 5"),
    ("5, 125", "5; 125"),
    ("5, 125", r"5,\ 125"),
    ("5, 125", r"5,~125"),
    ("5, 125", r"5,\quad 125"),
    ("5, 125", r"\{125, 5\}"),
    ("5, 125", "$5$, $125$"),
    ("-512, 512", "512, -512"),
    ("-512, 512", r"\pm 512"),
    ("100, 200, 300", "300, 100, 200"),
    ("100, 200, 300", "100, 200, and 300"),
    ("100, 200, 300", r"100, 200 \text{ and } 300"),
    ("100, 200, 300", r"100,\,200,\,300"),
    ("100, 200, 300", "x = 100, x = 200, x = 300"),
    (r"\{2, 300\}", "2, 300"),
    (r"\{2, 300\}", r"\{300,2\}"),
    (r"\{2,300\}", r"\left\{ 300, 2 \right\}"),
    ("(1, 200)", "(1,200)"),
    ("[100,250)", "[100, 250)"),
    ("1,234, 5", "5, 1234"),
    ("1,234, 567", "567, 1,234"),
    ("1,234", "1234"),
    ("1,234,567", r"1{,}234{,}567"),
    (r"\$1{,}234", "1234"),
    ("1234.5", r"\$1,234.50"),
    ("-1,234", "-1234"),
    ("1000000", r"1,\!000,\!000"),
    ("100,200", "100200"),
    ("(1,200),(3,4)", "(3,4), (1, 200)"),
    ("12, 34", "12,34"),
    ("2, 010", "2,10"),
]
COMMAS_OTHER: Pairs = [
    ("5, 125", "5125"),
    ("5125", "5, 125"),
    ("5125", "5 and 125"),
    ("5125", "5 or 125"),
    ("5125", "5; 125"),
    ("5125", r"5,\quad125"),
    ("5125", r"5\text{ and }125"),
    ("1, 200", "1200"),
    ("1200", r"\{1,200\}"),
    ("1200", "(1,200)"),
    ("1200", "[1,200]"),
    ("100, 200, 300", "100200300"),
    ("100, 200, 300", "100, 200"),
    ("100, 200, 300", "100, 200, 300, 400"),
    ("(1, 200)", "(200, 1)"),
    ("(1, 200)", "1200"),
    ("(1,200),(3,4)", "1200,(3,4)"),
    ("[100, 250)", "[250, 100)"),
    ("1234", "12,34"),
    ("1234567", "1234,567"),
    ("123", "0,123"),
    ("1,234, 5", "12345"),
    ("12345", "1,234,5"),
    (r"\{2, 300\}", "2300"),
    ("-512, 512", "-512512"),
    ("-512, 512", "512, 512"),
    ("512", "-512, 512"),
    ("125", "5, 125"),
]
WORDS_SAME: Pairs = [
    ("5 million", "5000000"),
    ("5000000", "5 million"),
    ("5000000", r"5\text{ million}"),
    ("5000000", r"\$5 million"),
    ("5000000", r"\$5\text{ million dollars}"),
    ("2.5 million", "2,500,000"),
    (r"2.5\times10^6", "2.5 million people"),
    ("1.5 billion", "1500 million"),
    ("3 dozen", "36"),
    ("36", r"3\text{ dozen eggs}"),
    ("12 hundred", "1200"),
    ("5 hundred thousand", "500000"),
    ("7 trillion", r"7\cdot10^{12}"),
    ("-3 thousand", "-3000"),
    ("20,000", "20 Thousand"),
    ("0.5", r"50\text{ percent}"),
    (r"\frac12", "50 percent"),
    ("50", "50 per cent"),
    (r"50\%", r"50\text{ percent}"),
    (r"12.5\%", "12.5 percent"),
    ("75 percent", r"75\%"),
    (r"\frac{100}{3}\%", r"\frac{100}{3}\text{ percent}"),
    ("25", "25 cm squared"),
    ("25", r"25\text{ meters cubed}"),
    ("5", "5 times"),
    ("5", "5 left over"),
    ("8", r"8\text{ square units}"),
    ("18", r"18\text{ ways per day}"),
    ("5", "5th"),
    (r"5\pi", "5 pi"),
    (r"5\pi", "5pi"),
    (r"5\text{ squared}", r"5\text{ squared}"),
    ("5", "5 points"),
    ("5", "5mph"),
    ("40", "40 seconds"),
]
WORDS_OTHER: Pairs = [
    ("5", "5 million"),
    ("5", r"5\text{ million}"),
    ("5", "5 Million dollars"),
    ("5 million", "5"),
    ("5 million", "5 billion"),
    ("5", r"5\text{ thousand}"),
    ("5", "5 dozen"),
    ("1.5", "1.5 billion"),
    ("5", "5 hundred"),
    ("5", "5 hundredths"),
    ("5000000", "5 millionths"),
    ("5", "5 halves"),
    ("5", r"5\text{ thirds}"),
    ("3", "3 quarters"),
    ("5", "5 tenths"),
    ("5", "5 squared"),
    ("5", r"5\text{ cubed}"),
    (r"\sqrt{2}", r"\sqrt{2}\text{ squared}"),
    ("x+1", r"(x+1)\text{ squared}"),
    ("5", "5 over two"),
    ("5", r"5\text{ over }x"),
    ("5", "5 minus x"),
    ("5", "5 plus two"),
    ("5", "5 plus x"),
    ("5", "5 times x"),
    ("5", "5 times two"),
    ("5", r"5\text{ times the radius}"),
    ("5", "5 divided by two"),
    ("5", "5 multiplied by n"),
    ("5", "5 factorial"),
    ("5", "5 and a half"),
    ("5", r"5\text{ and a half}"),
    ("5", "half of 5"),
    ("5", "5 mod seven"),
    ("5", "5 degrees below zero"),
    ("0.3", "0.3 repeating"),
    ("5", "5 pi"),
    ("5", "5pi"),
    ("5", "5 sin x"),
    ("5", "5xy"),
    ("5", "5 choose two"),
    ("5", "5 to the fourth"),
    ("5", "5 percent of x squared"),
    ("50", "0.5 percent"),
    ("1200000", "1/2 million"),
    ("5", "5 halves = 5"),
]
UPRIGHT_SAME: Pairs = [
    ("e^{3}", r"\mathrm{e}^{3}"),
    ("e", r"\mathrm{e}"),
    (r"\mathrm{e}", "e"),
    ("e^2", r"\text{e}^2"),
    ("e^2", r"{\rm e}^2"),
    ("e^2", r"\mathrm e^2"),
    ("e^{-x}", r"\operatorname{e}^{-\mathit{x}}"),
    ("4-3i", r"4-3\mathrm{i}"),
    ("4-3i", r"4-3\textrm{i}"),
    ("i", r"\mathrm{i}"),
    ("-1", r"\mathrm{e}^{\mathrm{i}\pi}"),
    (r"\arcsin\frac13", r"\operatorname{arcsin}\frac13"),
    (r"\ln 2", r"\operatorname{ln}2"),
    (r"\ln 2", r"\mathrm{ln}\,2"),
    (r"\ln 2", r"\text{ln }2"),
    (r"\log_2 3", r"\operatorname{log}_2 3"),
    (r"\sin^2 x", r"\mathrm{sin}^2x"),
    (r"2\sin\theta", r"2\operatorname{sin}(\theta)"),
    (r"\operatorname{lcm}(4,n)", r"\mathrm{lcm}(4,n)"),
    (r"\gcd(a,b)", r"\operatorname{gcd}(a,b)"),
    (r"2\pi r", r"2\pi\mathrm{r}"),
    (r"2\pi rh", r"2\pi\mathrm{r}\mathrm{h}"),
    ("3x+1", r"3\mathbf{x}+1"),
    ("x", r"\mathit{x}"),
    (r"x\,dx", r"x\,\mathrm{d}x"),
    ("10", r"10\mathrm{cm}"),
    (r"10\text{ m}", r"10\mathrm{~m}"),
    ("10", r"10\,\mathrm{m}"),
    ("5", r"5\mathrm{~m}^2"),
    ("5", r"5\mathrm{~m}/\mathrm{s}"),
    (r"5\pi", r"5\pi\text{ m}"),
    ("20", r"20^\circ\mathrm{C}"),
    (r"\text{(C)}", r"\mathrm{C}"),
    (r"\text{even}", r"\operatorname{even}"),
    ("5", r"\mathbf{5}"),
    (r"\frac12", r"\mathbf{\frac12}"),
    (r"1-\frac1e", r"1-\frac{1}{\mathrm{e}}"),
]
UPRIGHT_OTHER: Pairs = [
    (r"1-\frac1{\mathrm{e}}", r"1+\frac1{\mathrm{e}}"),
    ("e^{3}", r"\mathrm{e}^{2}"),
    ("4-3i", r"4+3\mathrm{i}"),
    ("4", r"4\mathrm{i}"),
    ("4", r"4\text{e}"),
    ("2", r"2\mathrm{x}"),
    (r"2\pi", r"2\pi\mathrm{r}"),
    (r"2\pi r", r"2\pi\mathrm{R}"),
    (r"2\pi r", r"2\pi\mathrm{r}\mathrm{h}"),
    ("2", r"\operatorname{ln}2"),
    (r"\ln 2", r"\operatorname{log}_{10} 2"),
    (r"\arcsin\frac13", r"\operatorname{arccos}\frac13"),
    (r"\frac13", r"\operatorname{arcsin}\frac13"),
    ("3", r"3\operatorname{ln}"),
    (r"\gcd(a,b)", r"\operatorname{lcm}(a,b)"),
    (r"10\text{ cm}", r"10\mathrm{m}"),
    (r"\text{E}", r"\mathrm{e}"),
    ("e", r"\mathrm{E}"),
    ("4p", r"4p\mathrm{i}"),
    (r"4\pi", r"4p\mathrm{i}"),
    (r"\text{even}", r"\operatorname{odd}"),
    ("x", r"\mathrm{X}"),
]
UNICODE_SAME: Pairs = [
    ("x^2", "x²"),
    ("x^{10}", "x¹⁰"),
    ("x^2y^3", "x²y³"),
    ("x^{-1}", "x⁻¹"),
    ("2^n", "2ⁿ"),
    ("(x+1)^2", "(x+1)²"),
    (r"2.5\times10^{-4}", "2.5 × 10⁻⁴"),
    ("0.00025", "2.5·10⁻⁴"),
    ("3000", "3×10³"),
    ("x_1", "x₁"),
    ("x_{12}", "x₁₂"),
    ("1011_2", "1011₂"),
    (r"\log_2 5", "log₂5"),
    (r"\frac12", "½"),
    ("1.5", "1½"),
    (r"-2\frac34", "−2¾"),
    (r"\frac23 x", "⅔x"),
    ("0.5", "1⁄2"),
    (r"\frac{3}{16}", "³⁄₁₆"),
    ("3", "6÷2=3"),
    (r"\sqrt{12}", "√12"),
    (r"2\sqrt3", "2√3"),
    (r"\sqrt{x+1}", "√(x+1)"),
    ("2", "∛8"),
    (r"2\pi", "2π"),
    (r"2\pi", "2𝜋"),
    (r"\alpha+\beta", "β+α"),
    (r"x\le 3", "x ≤ 3"),
    (r"x\geq 3", "x ⩾ 3"),
    (r"(-\infty,2]", "(−∞, 2]"),
    (r"\mathbb{R}", "ℝ"),
    ("90", "90°"),
    ("90", "90º"),
    ("42", "４２"),
    ("1,2", "１，２"),
    ("x+1", "𝑥＋1"),
    ("-3", "－3"),
    ("1234", "1,234\u200b"),
    ("1234", "1\u202f234"),
    ("25", "25 cm²"),
    ("25", r"25\text{ cm²}"),
    (r"\pm2", "±2"),
    ("12", "3⋅4=12"),
]
UNICODE_OTHER: Pairs = [
    ("x^2", "x³"),
    ("x^2", "x₂"),
    ("52", "5²"),
    ("5", "5²"),
    ("5", "5½"),
    ("12", "1½"),
    (r"\frac12", "⅓"),
    (r"2.5\times10^{-4}", "2.5 × 10⁴"),
    ("2.5", "2.5 × 10⁻⁴"),
    ("10", "10⁻¹"),
    ("x_1", "x₂"),
    ("x_1", "x¹"),
    ("1011_2", "1011₃"),
    ("12", "√12"),
    (r"2\sqrt{1}", "√12"),
    ("4", "∛8"),
    (r"2\pi", "2θ"),
    (r"x\le 3", "x ≥ 3"),
    ("42", "４３"),
    ("1200", "1，200"),
    ("12", "１，２"),
    ("5", "≠5"),
    ("5", "5‰"),
    ("3", "±3"),
    ("5", "5∞"),
]
KINDS = {
    "commas": (COMMAS_SAME, COMMAS_OTHER),
    "words": (WORDS_SAME, WORDS_OTHER),
    "upright letters": (UPRIGHT_SAME, UPRIGHT_OTHER),
    "unicode": (UNICODE_SAME, UNICODE_OTHER),
}


@pytest.mark.parametrize("kind", KINDS)
def test_notation_does_not_change_a_value(kind: str) -> None:
    same, other = KINDS[kind]
    results = dict(zip(same + other, compare_all(same + other), strict=True))
    assert [pair for pair in same if results[pair] != "equal"] == []
    assert [pair for pair in other if results[pair] != "different"] == []


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{41 \boxed{42}}",
        r"\boxed{\boxed{41} \boxed{42}}",
        r"\boxed{42 \boxed{41}}",
        r"so \boxed{42} or \boxed{41 \boxed{42}}",
        r"\boxed{x = 41, y = \boxed{42}}",
    ],
)
def test_box_inside_another_states_no_answer(completion: str) -> None:
    answer = extract(completion)
    assert answer is not None and compare("42", answer.text) == "different"


def test_box_around_a_box_is_one() -> None:
    answer = extract(r"\boxed{41}, no: $\boxed{\boxed{42}}$")
    assert answer is not None and compare("42", answer.text) == "equal"


NUMBERS = st.lists(st.integers(0, 999), min_size=2, max_size=4)


@given(NUMBERS)
def test_numbers_with_a_comma_and_a_space_are_a_list(numbers: list[int]) -> None:
    truth = ", ".join(map(str, numbers))
    assert compare(truth, ", ".join(map(str, reversed(numbers)))) == "equal"
    assert compare(truth, "".join(map(str, numbers))) == "different"
    assert compare(truth, f"({truth})") == "different"  # a point


@given(st.integers(-(10**9), 10**9))
def test_thousands_are_one_number_before_and_after_cleaning(value: int) -> None:
    for text in (f"{value:,}", f"{value:,}".replace(",", "{,}"), f"\\${value:,}"):
        assert compare(str(value), text) == "equal"
        assert normalize(clean(text)) == str(value)


@given(
    st.integers(1, 9999), st.integers(0, 3), st.sampled_from(["hundred", "thousand", "million", "billion"])
)
def test_scale_words_multiply_exactly(digits: int, decimals: int, word: str) -> None:
    scale = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9}[word]
    written = f"{digits / 10**decimals:.{decimals}f}"
    truth = f"{digits}\\cdot10^{{{scale - decimals}}}"
    assert compare(truth, f"{written} {word}") == "equal"
    assert compare(truth, written) == "different"
    assert compare(written, f"{written}\\text{{ {word}}}") == "different"


RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@given(st.integers(2, 99), st.integers(-99, 99))
def test_superscript_is_a_power_and_no_digit(base: int, exponent: int) -> None:
    raised = str(exponent).translate(RAISED)
    assert compare(f"x^{{{exponent}}}", f"x{raised}") == "equal"
    assert compare(f"{base}{abs(exponent)}", f"{base}{raised}") == "different"
