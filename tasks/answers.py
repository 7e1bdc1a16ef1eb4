"""Read the final answer out of a completion and compare it with the truth.

What can be settled without algebra is settled here: equal spellings, exact numbers (`Fraction`), words, and
lists and tuples of these. Only the rest (``\\sqrt{16}`` for 4, ``x+1`` for ``1+x``) goes to math-verify, and
only where answer and truth are of one kind: it would take ``5=6`` for 6, ``\\ne 12`` for 12 and ``seat`` for
``east``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from grpobench.tasks.latex import balanced, clean, closing
from grpobench.tasks.symbolic import Comparison, ask_all

MARKER = "####"
TAIL = 4096
"""The final answer is looked for in this many characters at the end of a completion."""
LONGEST = 300
"""A longer text is not an answer."""
APART = 60
"""Boxes with more characters than this between them are two answers."""

How = Literal["marker", "boxed", "phrase", "last number"]
Question = tuple[str, str]
"""Truth and answer for math-verify."""
_NUMBER = r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+"
_LAST_NUMBER = re.compile(rf"(?<![0-9A-Za-z.])-?\$?(?:{_NUMBER})(?![0-9])")
_PHRASE = re.compile(r"answer(?: is|:)[ \t]{0,5}:?[ \t]{0,5}([^\n]{1,300})", re.IGNORECASE)
_STARTS_AS_VALUE = re.compile(r"[-+−$£€*({. ]{0,8}[0-9\\]|\$[^$\n]{1,200}\$")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_BETWEEN_BOXES = re.compile(
    r"[\s$.,)\]\\]*(?:(?<=,)|,|(?:\\(?:text|mbox)\{\s*)?\b(?:and|or)\b\s*\}?)"
    r"[\s$(\[\\]*(?:[A-Za-z]\w{0,3}\s*=\s*)?[\s$]*"
)
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_DIGITS = r"[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300}"
_DECIMAL = re.compile(rf"([-+]?)({_DIGITS})(?:[eE]([-+]?[0-9]{{1,3}}))?")
_TIMES_TEN = re.compile(rf"([-+]?)({_DIGITS})(?:\\times|\\cdot|×|\*)10\^\{{?([-+]?[0-9]{{1,3}})\}}?")
_RATIO = re.compile(r"([-+]?)([0-9]{1,300})\s*/\s*([0-9]{1,300})")
_FRACTION = re.compile(rf"([-+]?)\s*\\[dt]?frac\s*\{{(-?(?:{_DIGITS}))\}}\s*\{{(-?(?:{_DIGITS}))\}}")
_MIXED = re.compile(
    r"([-+]?)([0-9]{1,300})(?:\\frac\{([0-9]{1,9})\}\{([0-9]{1,9})\}| ([0-9]{1,9})/([0-9]{1,9}))"
)
_UNIT = re.compile(r"([-+]?[0-9./]+)(?:\s+[^0-9\\=^{}()/+*<>-]*|°|[A-Za-z]{2,}[ A-Za-z.]*)")
_TEXT_UNIT = re.compile(r"(.*[^\s(\[,;=<>+*/^_-])\s*\\text\{([^{}0-9]*)\}(?:\^\{?[0-9]\}?)?", re.DOTALL)
_LINKING = re.compile(
    r"\b(?:and|or|not|to|than|least|most|if|when|unless|either|neither|both)\b", re.IGNORECASE
)
_LATEX = re.compile(r"[\\^√π]")
_UNFINISHED = re.compile(r"[0-9)}]\s*(?:[-+*/×÷]|\\times|\\cdot|\\div)\s*(?!10\s*\^)[0-9(\\]")
_LINK = re.compile(
    r"(\\text\{(?!\s*,?\s*(?:and|or)\s*\})[^{}]*\})|\\text\{[^{}]*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\(?:lor|land|vee)(?![A-Za-z])"
)
_LOOSE_COMMAS = re.compile(r"(?:\s*,\s*)+")
_RELATION = re.compile(
    r"[<>=]|\\(?:le|ge|ne|not|neg|approx|equiv|sim|in|notin|subset|implies|to)(?![A-Za-z])"
)
_SEVERAL = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_NAME = re.compile(r"\\?[A-Za-z]{1,12}(?:_\{?\w+\}?)?(?:\([A-Za-z]\))?|\\text\{[^{}]*\}")
_BASED = re.compile(r"(-?[0-9A-Fa-f.]+)_\{?([0-9]{1,3})\}?")
_EQUALS = re.compile(r"=|\\approx(?![A-Za-z])")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_WORDS = re.compile(r"\(?\\text\{[^{}]*\}\)?|\([A-Z]\)")
_HOUR = re.compile(r"[0-9]\s*\\text\{\s*[ap]\.?\s?m\.?\s*\}", re.IGNORECASE)
_WORD_DUST = re.compile(r"[\s.;()]+")


@dataclass(frozen=True)
class Found:
    """A final answer as written, and what pointed to it."""

    text: str
    how: How


def extract(
    completion: str, ways: Sequence[How] = ("marker", "boxed", "phrase", "last number")
) -> Found | None:
    """The final answer by the first of `ways` that finds one: behind the last ``####``, in the last
    ``\\boxed{}``, behind the last "answer is" or "answer:", the last number. None where none does.

    Boxes that only "and", "or" or a comma part are one answer with commas.
    """
    tail = completion[-TAIL:]
    for how in ways:
        text = _FINDERS[how](tail)
        if text:
            return Found(text, how)
    return None


def _behind_marker(tail: str) -> str | None:
    _, marker, behind = tail.rpartition(MARKER)
    return behind.strip().partition("\n")[0].strip()[:LONGEST] if marker else None


def _boxed(tail: str) -> str | None:
    end = start = len(tail)
    boxes: list[str] = []
    while (start := tail.rfind("\\boxed{", 0, start)) >= 0:
        close = closing(tail[: start + LONGEST + 8], start + len("\\boxed"))
        between = tail[close + 1 : end]
        if close < 0 or (boxes and (len(between) > APART or not _BETWEEN_BOXES.fullmatch(between))):
            break
        boxes.insert(0, tail[start + len("\\boxed{") : close].strip())
        end = start
    return ", ".join(boxes)[:LONGEST] or None


def _behind_phrase(tail: str) -> str | None:
    phrases = _PHRASE.findall(tail)
    if not phrases:
        return None
    text: str = _SENTENCE_END.split(phrases[-1], maxsplit=1)[0].strip()
    return text if _STARTS_AS_VALUE.match(text) else None


def _last_number(tail: str) -> str | None:
    numbers = _LAST_NUMBER.findall(tail)
    return numbers[-1] if numbers else None


_FINDERS = {
    "marker": _behind_marker,
    "boxed": _boxed,
    "phrase": _behind_phrase,
    "last number": _last_number,
}


def normalise(text: str) -> str:
    """Without what does not change a value: spaces around, currency, %, thousands commas, emphasis, units
    behind a number, a trailing dot."""
    text = text.replace("\\$", "").replace("$", "").replace("\\%", "").replace("%", "")
    text = text.replace("\\!", "").replace("\\,", "").replace("−", "-").replace("€", "").replace("£", "")
    text = _THOUSANDS.sub("", text).strip(" \t\r\n*_`").removesuffix(".").strip()
    unit = _UNIT.fullmatch(text)
    return unit.group(1).removesuffix(".") if unit else text


def number(text: str) -> Fraction | None:
    """The exact value of a normalised decimal, ratio, fraction, mixed number or multiple of a power of ten;
    None for anything else, for more than 300 digits and for an exponent of more than three."""
    if match := (_DECIMAL.fullmatch(text) or _TIMES_TEN.fullmatch(text)):
        sign, digits, exponent = match.groups()
        value = Fraction(digits) * Fraction(10) ** int(exponent or 0)
    elif match := (_RATIO.fullmatch(text) or _FRACTION.fullmatch(text)):
        sign, above, below = match.groups()
        if not Fraction(below):
            return None
        value = Fraction(above) / Fraction(below)
    elif match := _MIXED.fullmatch(text):
        sign, whole = match.group(1), Fraction(match.group(2))
        above, below = int(match.group(3) or match.group(5)), int(match.group(4) or match.group(6))
        if above >= below:
            return None
        value = whole + Fraction(above, below)
    else:
        return None
    return -value if sign == "-" else value


def compare(truth: str, answer: str) -> Comparison:
    """Whether the answer has the value of the truth.

    Against a number, an answer that still asks for arithmetic (``40+2``) is different: working it out is
    the task. An answer that gives several values, or leaves one open, equals no single value. `timeout`,
    `crash` and `infra_error` say that math-verify gave no grade.
    """
    return compare_all([(truth, answer)])[0]


def compare_all(pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
    """`compare` of many pairs of truth and answer; what needs math-verify is asked all at once."""
    settled = [decide(truth, answer) for truth, answer in pairs]
    asked = ask_all([question for question in settled if not isinstance(question, str)])
    replies = iter(asked)
    return [known if isinstance(known, str) else next(replies) for known in settled]


def decide(truth: str, answer: str) -> Comparison | Question:
    """The comparison where it needs no algebra; else the question for math-verify."""
    if len(answer) > LONGEST:
        return "different"
    wanted, given = clean(truth), clean(answer)
    if not given or not balanced(given):
        return "different"
    if given == wanted:
        return "equal"
    words = _words(wanted)
    if words is not None:
        return _same(words == _words(given, plain=True))
    wanted, given = _without_unit(_linked(wanted)), _without_unit(_linked(given))
    if based := _BASED.fullmatch(wanted):
        other = _BASED.fullmatch(given)
        return _same(based.groups() == other.groups() if other else based[1] == given)
    value = number(normalise(wanted))
    if value is not None:
        return _against_number(value, wanted, given)
    return _against_expression(wanted, given)


def _same(same: bool) -> Comparison:
    return "equal" if same else "different"


def _against_number(value: Fraction, wanted: str, given: str) -> Comparison | Question:
    sides = [_within_brackets(side) for side in _EQUALS.split(given)]
    given = sides[-1]
    if "," in given or "\\text{" in given or _SEVERAL.search(given) or _RELATION.search(given):
        return "different"
    known = [number(normalise(side)) for side in sides]
    if any(other not in (None, known[-1]) for other in known):
        return "different"  # 5=6
    read = known[-1]
    if read is not None:
        hundredths = "%" in given and "%" not in wanted
        return _same(value == read or (hundredths and value == read / 100))
    if not _LATEX.search(given) or _UNFINISHED.search(given):
        return "different"
    return normalise(wanted), normalise(given)


def _against_expression(wanted: str, given: str) -> Comparison | Question:
    wanted, given = _same_left_sides(_without_names(wanted), _without_names(given))
    if wanted.casefold() == given.casefold():  # math-verify does not mind the case of letters
        return _same(wanted == given)
    if set(_RELATION.findall(wanted)) != set(_RELATION.findall(given)):
        return "different"
    if "\\text{" in given and "\\text{" not in wanted:
        return "different"
    opening, items, closed = _shape(wanted)
    other_opening, other_items, other_closed = _shape(given)
    several = len(items) > 1 or bool(_SEVERAL.search(wanted))
    if not several:
        if len(other_items) > 1 or _SEVERAL.search(given):
            return "different"
        return _settle(wanted, given) or (wanted, given)
    settled: Comparison | None
    if opening in ("(", "["):
        if (opening, closed, len(items)) != (other_opening, other_closed, len(other_items)):
            return "different"
        settled = _all(_settle(*pair) for pair in zip(items, other_items, strict=True))
    elif other_opening in ("(", "[") and len(other_items) > 1:
        return "different"
    else:
        settled = _all(
            [*(_any(items, item) for item in other_items), *(_any(other_items, item) for item in items)]
        )
    return settled or (wanted, given)


def _same_left_sides(wanted: str, given: str) -> tuple[str, str]:
    """Both without the name on the left (``y = 2x`` as ``2x``), unless the names differ or one of the two is
    an equation of another kind."""
    name, right = _named(wanted)
    sides = _EQUALS.split(given)
    if name or not _RELATION.search(wanted):
        known = {value for side in sides if (value := number(normalise(side))) is not None}
        other, rest = _named(given)
        if not other and len(sides) > 1 and len(known) < 2:
            other, rest = sides[0], sides[-1]  # a chain of equal values: its end is the answer
        if not name or not other or name == other:
            return (right, rest) if name or not _RELATION.search(rest) else (wanted, given)
    return wanted, given


def _named(text: str) -> tuple[str, str]:
    """The name on the left of ``name = value`` or ``name \\in value`` and the value; no name elsewhere."""
    parts = re.split(r"=|\\in(?![A-Za-z])", text)
    if len(parts) == 2 and parts[1] and _NAME.fullmatch(parts[0].strip()):
        return parts[0].strip(), parts[1].strip()
    return "", text


def _without_names(text: str) -> str:
    """``x=1, x=2`` as ``1, 2``; a list with several names, or with none, is left as it is."""
    named = [_named(item) for item in _split(text) or ()]
    single = len(named) > 1 and len({name for name, _ in named}) == 1
    return ",".join(value for _, value in named) if single else text


def _settle(wanted: str, given: str) -> Comparison | None:
    """Equal or different where spelling or numbers tell; None where it takes algebra."""
    if wanted == given:
        return "equal"
    one, other = number(normalise(wanted)), number(normalise(given))
    return None if one is None or other is None else _same(one == other)


def _any(items: Sequence[str], wanted: str) -> Comparison | None:
    """Whether `wanted` is among the items."""
    found = [_settle(item, wanted) for item in items]
    return "equal" if "equal" in found else None if None in found else "different"


def _all(found: Iterable[Comparison | None]) -> Comparison | None:
    found = list(found)
    return "different" if "different" in found else None if None in found else "equal"


def _linked(text: str) -> str:
    """With commas for "and", "or" and semicolons."""
    text = _LINK.sub(lambda found: found[1] or ",", text).replace(";", ",")
    return _LOOSE_COMMAS.sub(",", text).strip(", ")


def _without_unit(text: str) -> str:
    """Without words behind a value: ``10\\text{ cm}^2`` as ``10``. Words that change the sense stay."""
    unit = _TEXT_UNIT.fullmatch(text)
    return unit[1] if unit and not _LINKING.search(unit[2]) else text


def _words(text: str, plain: bool = False) -> tuple[str, ...] | None:
    """An answer in words, without regard to case (of more than one letter), points and brackets; several,
    parted by commas, without regard to order. None for anything that is not words; with `plain`, words need
    no ``\\text{}``."""
    if not plain and not _WORDS.fullmatch(text) and not _HOUR.search(text):
        return None
    inside = _TEXT.sub(r"\1", text)
    if "\\" in inside:
        return None
    parts = [_WORD_DUST.sub("", part) for part in inside.split(",")]
    return tuple(sorted(part.casefold() if len(part) > 1 else part for part in parts if part))


def _within_brackets(text: str) -> str:
    """Without brackets around the whole, as in ``(42)``."""
    opening, items, closed = _shape(text)
    return items[0] if (opening, closed) == ("(", ")") and len(items) == 1 else text.strip()


def _shape(text: str) -> tuple[str, list[str], str]:
    """(opening bracket, items between commas outside of inner brackets, closing bracket), where brackets hold
    the whole text; else without brackets."""
    pairs = {"(": 1, "\\{": 2, "[": 1}
    opening = next((sign for sign in pairs if text.startswith(sign)), "")
    closed = next((sign for sign in (")", "\\}", "]") if text.endswith(sign)), "")
    if opening and closed and len(text) > len(opening) + len(closed):
        inner = text[len(opening) : -len(closed)]
        items = _split(inner)
        if items is not None:
            return opening, items, closed
    return "", _split(text) or [text], ""


def _split(text: str) -> list[str] | None:
    """The text cut at commas outside of brackets; None where a bracket closes that was not opened in it."""
    depth, start, items = 0, 0, []
    for i, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return None
        if sign == "," and depth == 0:
            items.append(text[start:i].strip())
            start = i + 1
    return [*items, text[start:].strip()]
