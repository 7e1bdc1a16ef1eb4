"""Read notation that changes a value: characters outside ASCII, upright letters, words behind a number."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import partial
from typing import Final

from grpobench.tasks.grading.expressions import FUNCTIONS

SIGNS: Final[Mapping[str, str]] = {
    **dict.fromkeys("−–‐‑‒", "-"),
    **dict.fromkeys("×✕✖", "\\times "),
    **dict.fromkeys("·⋅∙", "\\cdot "),
    **dict.fromkeys("∕⁄", "/"),
    **dict.fromkeys("≤⩽≦", "\\le "),
    **dict.fromkeys("≥⩾≧", "\\ge "),
    **dict.fromkeys("º˚", "°"),
    **dict.fromkeys("，、", ", "),
    **dict.fromkeys("\u202f\u2007\u2009", "\\,"),
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u2060\u2061\u2062\ufeff", ""),
    "∗": "*",
    "÷": "\\div ",
    "√": "\\sqrt ",
    "∛": "\\sqrt[3]",
    "∜": "\\sqrt[4]",
    "∞": "\\infty ",
    "≠": "\\ne ",
    "≈": "\\approx ",
    "∈": "\\in ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∖": "\\setminus ",
    "∧": "\\land ",
    "∨": "\\lor ",
    "∅": "\\emptyset ",
    "±": "\\pm ",
    "∓": "\\mp ",
    "∠": "\\angle ",
    "…": "\\ldots ",
    "\u00a0": "~",
    **{sign: f"\\mathbb{{{letter}}}" for sign, letter in zip("ℂℕℚℝℤ", "CNQRZ", strict=True)},
    **{sign: f"\\{unicodedata.name(sign).split()[-1].lower()} " for sign in "αβγδεθμνπρστφψω"},
    **{sign: f"\\{unicodedata.name(sign).split()[-1].capitalize()} " for sign in "ΔΣΩ"},
    "λ": "\\lambda ",  # LAMDA in Unicode
}
"""Characters as LaTeX."""
_SIGNS = re.compile("|".join(SIGNS))


def _decomposed(tag: str) -> str:
    """The characters whose decomposition in Unicode has a tag, as the inside of a character class."""
    return "".join(
        chr(code)
        for code in range(0x80, 0x3000)
        if unicodedata.decomposition(chr(code)).startswith(f"<{tag}>") and chr(code) not in "ªº™℠"
    )


_RAISED, _LOWERED = _decomposed("super"), _decomposed("sub")
_QUOTIENT = re.compile(rf"([{_RAISED}]+)[/⁄∕]([{_LOWERED}]+)")
_RUN = re.compile(rf"([{_RAISED}]+)|([{_LOWERED}]+)")
_VARIANT = re.compile("[\u2100-\u215e\u00bc-\u00be\uff01-\uff5e\U0001d400-\U0001d7ff]")
_ROOT = re.compile(r"([√∛∜])\s*([0-9]+(?:\.[0-9]+)?)")


def as_latex(text: str) -> str:
    """The text with LaTeX for superscripts, subscripts, fractions, signs and Greek letters, and with ASCII
    for mathematical and full-width letters and digits."""
    if text.isascii():
        return text
    text = _QUOTIENT.sub(lambda match: f"\\frac{{{_plain(match[1])}}}{{{_plain(match[2])}}}", text)
    text = _RUN.sub(lambda match: ("^" if match[1] else "_") + f"{{{_plain(match.group())}}}", text)
    text = _VARIANT.sub(_variant, text)
    text = _ROOT.sub(lambda match: f"{SIGNS[match[1]].strip()}{{{match[2]}}}", text)
    return _SIGNS.sub(lambda match: SIGNS[match.group()], text)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("−", "-")


def _variant(match: re.Match[str]) -> str:
    sign = match.group()
    tag = unicodedata.decomposition(sign).partition(" ")[0]
    if sign in SIGNS or tag not in ("<fraction>", "<font>", "<wide>"):
        return sign
    above, slash, below = (plain := _plain(sign)).partition("⁄")
    return f"\\frac{{{above}}}{{{below}}}" if slash and below else SIGNS.get(plain, plain)


# Upright letters

FONTS: Final = (
    *("mbox", "hbox", "textbf", "textit", "textrm", "textnormal", "textsf", "texttt", "textup", "emph"),
    *("mathrm", "mathbf", "mathit", "mathsf", "mathtt", "mathnormal", "boldsymbol", "bm", "operatorname"),
)
"""Commands that set text or letters in another font."""
UNIT_LETTERS: Final = frozenset("msglLhAVWJNKCFT")
"""Units of one letter; other single letters are names."""
_UPRIGHT_FUNCTIONS = FUNCTIONS | {"gcd", "lcm", "max", "min", "det"}
_SWITCH = re.compile(r"\{\\(?:rm|bf|it|sf|tt)\s+([^{}]*)\}")
_SWITCH_ALONE = re.compile(r"\\(?:rm|bf|it|sf|tt)(?![A-Za-z])\s*")
_UNBRACED = re.compile(r"\\text\s+([A-Za-z0-9])(?![A-Za-z])")
_INNER_POWER = re.compile(r"(\\text ?\{[A-Za-z. /]+)\^\{?([0-9])\}?\}")
_UPRIGHT = re.compile(r"\\text ?\{\s*([A-Za-z]+)\s*\}")
_FORMULA = re.compile(r"\\text ?(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})")
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2}")
_MEASURED = re.compile(r"(?:[0-9)}°%]|\\pi|\\text ?\{[^{}]*\}(?:\^\{?-?[0-9]\}?)?\s*(?:/|\\cdot))\s*")
_UNIT_ENDS = re.compile(r"\s*(?:\^\{?-?[0-9]\}?)?\s*(?:$|[],;/.)}=<>]|\\(?:cdot|text|approx)(?![A-Za-z]))")


def with_names(text: str) -> str:
    r"""The text with names instead of ``\text{}`` around a single letter or a function: ``\text{e}`` as
    ``e``, ``\text{ln}`` as ``\ln``. Units (``5\text{ m}``), words and a single capital stay."""
    text = _SWITCH_ALONE.sub(" ", _SWITCH.sub(r"\\text{\1}", text.replace("\\text*", "\\text")))
    text = _INNER_POWER.sub(r"\1}^\2", _UNBRACED.sub(r"\\text{\1}", text))
    text = _FORMULA.sub(lambda match: match[1] if _is_formula(match[1]) else match.group(), text)
    for units in (False, True):  # Units last: what a name stands before is no unit.
        text = _UPRIGHT.sub(partial(_named, units), text)
    return text


def _is_formula(inside: str) -> bool:
    return "\\" in inside.replace("\\ ", "") and not _WORD.search(inside) and "\\text" not in inside


def _named(units: bool, match: re.Match[str]) -> str:
    word, before, behind = match[1], match.string[: match.start()], match.string[match.end() :]
    alone = not before.strip(" ({") and not behind.strip(" )}")
    if alone and (len(word) > 1 or word.isupper()):
        return match.group()
    if word in UNIT_LETTERS or word in ("min", "sec"):
        measured = _ends_with(_MEASURED, before) and _UNIT_ENDS.match(behind)
        if measured or not units:
            return match.group()
    if len(word) > 1:
        return f"\\{word} " if word in _UPRIGHT_FUNCTIONS else match.group()
    if re.search(r"\\[A-Za-z]+$", before):
        return f" {word}"
    return f"{{{word}}}" if before[-1:].isalpha() or behind[:1].isalpha() else word


def _ends_with(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a match of the pattern ends the text; only its last 60 characters are read."""
    return re.search(f"(?:{pattern.pattern})$", text[-60:]) is not None


# Words behind a number

SCALES: Final[Mapping[str, int]] = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_SCALED = re.compile(
    r"(?<![\w.,^/}\\])([0-9]{1,30})(?:\.([0-9]{1,30}))?\s*(\\text ?\{\s*)?"
    rf"({'|'.join(SCALES)})s?(?![A-Za-z-])",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"(?<=[0-9)}])\s*(\\text ?\{\s*)?(?:per ?cent|pct)(?![A-Za-z-])", re.IGNORECASE)
_COUNTS = (
    "zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    "|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
)
_OPERATOR = re.compile(
    r"(?<![A-Za-z\\])(?:(?:hundred|thousand|dozen|score|gross|[mbtr]r?illion)s?"
    r"|half|halves|(?:third|fourth|quarter|fifth|sixth|seventh|eighth|ninth|tenth|[a-z]*dth|[a-z]*llionth)s?"
    r"|(?<![A-Za-z]{2} )(?:squared|cubed)|(?:square|cube) root"
    r"|plus|minus|less|raised|upon|divided|multiplied|(?<!left )over|below|mod|modulo|choose|factorial|base"
    r"|per ?cent|pct"
    r"|halved|doubled|tripled|twice|negative|reciprocal|inverse|repeating|recurring"
    rf"|times(?=\W*(?:[a-z](?![a-z])|[0-9]|\\(?!text)|the\b|itself|{_COUNTS}))|(?:{_COUNTS})(?!-))(?![A-Za-z])",
    re.IGNORECASE,
)
_SIDES = re.compile(r"=|\\approx(?![A-Za-z])")
_DIGIT = re.compile("[0-9]")


def with_scales(text: str) -> str:
    r"""The text with numbers multiplied by the scale word behind them (``5\text{ million}`` as
    ``5000000\text{}``) and with ``\%`` for "percent" behind a value."""
    return _SCALED.sub(_multiplied, _PERCENT.sub(lambda match: "\\%" + (match[1] or ""), text))


def _multiplied(match: re.Match[str]) -> str:
    integer, decimals, opening, word = match[1], match[2] or "", match[3] or "", match[4].lower()
    digits = str(int(integer + decimals) * SCALES[word]).zfill(len(decimals) + 1)
    if decimals:
        digits = f"{digits[: -len(decimals)]}.{digits[-len(decimals) :]}".rstrip("0").rstrip(".")
    return digits + opening


def operators(text: str) -> list[str]:
    """The words of a cleaned answer that change its value, sorted. In a side before the last, which may
    describe what has the value, only the words behind a digit count.

    Nothing computes these words (``5 halves``, ``5 over two``): an answer must have the same ones as the
    truth."""
    *sides, last = _SIDES.split(text)
    behind = [side[digit.start() :] for side in sides if (digit := _DIGIT.search(side))]
    return sorted(word.lower() for part in (*behind, last) for word in _OPERATOR.findall(part))
