"""Compare a final answer with the truth, with algebra only where it is needed."""

# This module decides what needs no algebra: equal spellings, exact numbers (`Fraction`), words, lists and
# tuples of these, intervals and inequalities with such bounds. Only the rest (`\sqrt{16}` for 4, `x+1` for
# `1+x`) goes to `grading/algebra.py`, and only if answer and truth are of one kind: math-verify would accept
# `5=6` for 6, `\ne 12` for 12 and `seat` for `east`.
#
# A unit may be left out, so it is never part of a value. But 10 m is wrong if the truth is 10 cm: `unit`
# recognizes the units in answers to school problems.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from grpobench.tasks.grading import reals
from grpobench.tasks.grading.algebra import Comparison, ask_all
from grpobench.tasks.grading.expressions import (
    FUNCTIONS,
    GREEK,
    Expression,
    exact,
    numeral,
    read,
    repeating,
    unfinished,
)
from grpobench.tasks.grading.extraction import LONGEST
from grpobench.tasks.grading.latex import balanced, clean, without_thousands
from grpobench.tasks.grading.notation import UNIT_LETTERS, operators
from grpobench.tasks.grading.reals import shape, split

SPELLINGS: Mapping[str, str] = {
    "mm": "mm|millimet(?:er|re)s?",
    "cm": "cm|centimet(?:er|re)s?",
    "m": "m|met(?:er|re)s?",
    "km": "km|kilomet(?:er|re)s?",
    "in": "in|inch|inches",
    "ft": "ft|foot|feet",
    "yd": "yds?|yards?",
    "mi": "mi|miles?",
    "s": "s|secs?|seconds?",
    "min": "mins?|minutes?",
    "h": "h|hrs?|hours?",
    "d": "days?",
    "week": "weeks?",
    "month": "months?",
    "year": "yrs?|years?",
    "mg": "mg|milligrams?",
    "g": "g|grams?",
    "kg": "kg|kilograms?",
    "oz": "oz|ounces?",
    "lb": "lbs?|pounds?",
    "ml": "ml|millilit(?:er|re)s?",
    "l": "l|lit(?:er|re)s?",
    "dollar": "dollars?",
    "cent": "cents?",
    "degree": "degrees?",
    "radian": "rads?|radians?",
}
_UNITS = {name: re.compile(spelling) for name, spelling in SPELLINGS.items()}
_BEHIND = re.compile(r"[0-9)}\s](?:\\text\{([^{}]*)\}|\s*([A-Za-z. ]+))(?:\^\{?[0-9]\}?)?")
_POWER = re.compile(r"\b(?:square|sq|cubic|cu)\b")


def unit(text: str) -> str:
    """The unit after the value in a cleaned text, as a key of `SPELLINGS`; empty for any other. Powers (cm,
    cm²) are ignored."""
    matches = [match for match in _BEHIND.finditer(text) if match.end() == len(text)]
    if not matches:
        return ""
    words = _POWER.sub("", (matches[0][1] or matches[0][2]).lower().replace(".", "")).strip()
    return next((name for name, spelling in _UNITS.items() if spelling.fullmatch(words)), "")


Shape = tuple[str, list[str], str]
"""Opening bracket, items and closing bracket of a text."""
Question = tuple[str, str]
"""Truth and answer that need algebra, for `grading/algebra.py`."""
_DIGITS = r"[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300}"
_DECIMAL = re.compile(rf"([-+]?)({_DIGITS})(?:[eE]([-+]?[0-9]{{1,3}}))?")
_TIMES_TEN = re.compile(rf"([-+]?)({_DIGITS})(?:\\times|\\cdot|×|\*)10\^\{{?([-+]?[0-9]{{1,3}})\}}?")
_RATIO = re.compile(r"([-+]?)([0-9]{1,300})\s*/\s*([0-9]{1,300})")
_FRACTION = re.compile(rf"([-+]?)\s*\\[dt]?frac\s*\{{(-?(?:{_DIGITS}))\}}\s*\{{(-?(?:{_DIGITS}))\}}")
_MIXED = re.compile(
    r"([-+]?)([0-9]{1,300})(?:\\frac\{([0-9]{1,9})\}\{([0-9]{1,9})\}| ([0-9]{1,9})/([0-9]{1,9}))"
)
_UNIT = re.compile(
    r"([-+]?[0-9./]+)((?:\s+[^0-9\\=^{}()/+*<>-]*|°|[A-Za-z]{2,}[ A-Za-z.]*)(?:/[A-Za-z]+)?)(\^\{?[23]\}?)?"
)
_FIRST_WORD = re.compile(r"^\s*([A-Za-z]+)")
_ABBREVIATION = re.compile(
    "am|at|by|cal|gal|gb|hz|in|is|j|kcal|kj|kmh|kph|kw|mb|mph|my|nd|of|on|pa|pcs?|pm|ppm|psi|pts?|qt|rd|rpm|sq|st"
    "|th|us|usd|wks?|a",
    re.IGNORECASE,
)
_TEXT_UNIT = re.compile(
    r"(.*[^\s(\[,;=<>+*/^_-])(?<!\\cdot)\s*(?:/|\\cdot)?\s*\\text\{([^{}0-9]*)\}(?:\^\{?-?[0-9]\}?)?",
    re.DOTALL,
)
_LINKING = re.compile(
    r"\b(?:and|or|not|to|than|least|most|if|when|unless|either|neither|both)\b", re.IGNORECASE
)
_UNFINISHED = re.compile(r"[0-9)}]\s*(?:[-+*/×÷]|\\times|\\cdot|\\div)\s*(?!10\s*\^)[0-9(\\]")
_LINK = re.compile(
    r"(\\text\{(?!\s*,?\s*(?:and|or)\s*\})[^{}]*\})|\\text\{[^{}]*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\(?:lor|land|vee|wedge)(?![A-Za-z])"
)
_LOOSE_COMMAS = re.compile(r"(?:\s*,\s*)+")
_RELATION = re.compile(
    r"[<>=]|\\(?:le|ge|ne|not|neg|approx|equiv|sim|in|notin|subset|implies|to)(?![A-Za-z])"
)
_SIDES = re.compile(r"=|\\approx(?![A-Za-z])")
_MIRROR = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_IDLE_SPACE = re.compile(r" (?![0-9])|(?<![0-9]) ")
_ORDERED = re.compile(r"(<|>|\\[lg]e)")
_SEVERAL = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_NAME = re.compile(r"\\?[A-Za-z]{1,12}(?:_\{?\w+\}?)?(?:\([A-Za-z]\))?|\\text\{[^{}]*\}")
_LETTER = re.compile(r"[A-Za-z](?:_\w)?")
_BASED = re.compile(r"(-?[0-9A-Fa-f.]+)_\{?([0-9]{1,3})\}?")
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])")
_DECIMALS = re.compile(r"-?[0-9]*\.?([0-9]*)")
_BRACKETED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")
_DESCRIPTION = re.compile(
    r"(?:\\(?:angle|arg|deg|det|Delta|gcd|lcm|mathbb|max|min|overline|overrightarrow|text|triangle|vec)(?![A-Za-z])"
    r"|[A-Za-z]+'*|[-+_^| ])+"
)
_NUMBERED = re.compile(r"\\text\{[^{}]*[0-9]")
_ANGULAR = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_WORDS = re.compile(r"\(?\\text\{[^{}]*\}\)?|\([A-Z]\)")
_HOUR = re.compile(r"[0-9]\s*\\text\{\s*[ap]\.?\s?m\.?\s*\}", re.IGNORECASE)
_WORD_DUST = re.compile(r"[\s.;()]+")


def normalize(text: str) -> str:
    """The text without parts that do not change a value: surrounding spaces, currency, %, thousands commas,
    emphasis, units after a number, a trailing dot."""
    text = text.replace("\\$", "").replace("$", "").replace("\\%", "").replace("%", "")
    text = text.replace("\\!", "").replace("\\,", "").replace("−", "-").replace("€", "").replace("£", "")
    text = without_thousands(text).strip(" \t\r\n*_`").removesuffix(".").strip()
    measured = _UNIT.fullmatch(text)
    return measured[1].removesuffix(".") if measured and _is_unit(measured[2], measured[3]) else text


def _is_unit(words: str, power: str | None) -> bool:
    """Whether the words behind a number leave its value as it is. Of one or two letters, or of three right
    behind the number, over a slash or with a power, a word is a unit only if it is a known one: ``5xy`` is a
    product."""
    if operators(f"0{words}"):
        return False
    above, slash, below = words.partition("/")
    close = bool(power or slash or words[:1].isalpha())
    return all(_is_unit_word(word, close) for part in (above, below) for word in _FIRST_WORD.findall(part))


def _is_unit_word(word: str, close: bool) -> bool:
    if word in FUNCTIONS or word in ("pi", "sqrt") or GREEK.fullmatch(word):
        return False
    recognized = any(spelling.fullmatch(word.lower()) for spelling in _UNITS.values())
    return len(word) > 2 + close or recognized or word in UNIT_LETTERS or bool(_ABBREVIATION.fullmatch(word))


def number(text: str) -> Fraction | None:
    """The exact value of a normalized decimal (which may repeat), ratio, fraction, mixed number or
    multiple of a power of ten; None for anything else, for over 300 digits and for an exponent of over
    three digits."""
    if (period := repeating(text[text[:1] in ("+", "-") :])) is not None:
        sign, value = text[0], period
    elif match := (_DECIMAL.fullmatch(text) or _TIMES_TEN.fullmatch(text)):
        sign, digits, exponent = match.groups()
        value = Fraction(digits) * Fraction(10) ** int(exponent or 0)
    elif match := (_RATIO.fullmatch(text) or _FRACTION.fullmatch(text)):
        sign, above, below = match.groups()
        if not Fraction(below):
            return None
        value = Fraction(above) / Fraction(below)
    elif match := _MIXED.fullmatch(text):
        sign, integer = match.group(1), Fraction(match.group(2))
        above, below = int(match.group(3) or match.group(5)), int(match.group(4) or match.group(6))
        if above >= below:
            return None
        value = integer + Fraction(above, below)
    else:
        return None
    return -value if sign == "-" else value


def compare(truth: str, answer: str) -> Comparison:
    """Whether the answer has the value of the truth.

    Against a number, an answer with open arithmetic (``40+2``) is different, because working it out is the
    task. An answer with several values, or an undecided one, equals no single value. `timeout`, `crash` and
    `infra_error` say that there was no grade.
    """
    return compare_all([(truth, answer)])[0]


def compare_all(pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
    """`compare` of many pairs of truth and answer; questions that need algebra are asked together."""
    settled = [decide(truth, answer) for truth, answer in pairs]
    comparisons = ask_all([question for question in settled if not isinstance(question, str)])
    replies = iter(comparisons)
    return [decision if isinstance(decision, str) else next(replies) for decision in settled]


def decide(truth: str, answer: str) -> Comparison | Question:
    """The comparison if it needs no algebra; else the question for `grading/algebra.py`."""
    if len(answer) > LONGEST:
        return "different"
    clean_truth, clean_answer = clean(truth), clean(answer)
    if not clean_answer or not balanced(clean_answer):
        return "different"
    clean_truth, clean_answer = _without_degrees(clean_truth, clean_answer)
    if clean_answer == clean_truth or _mirrored(clean_truth, clean_answer):
        return "equal"
    words = _words(clean_truth)
    if words is not None:
        return _same(words == _words(clean_answer, plain=True))
    if operators(clean_answer) != operators(clean_truth) or "\\boxed" in clean_answer:
        return "different"  # 5 halves, 5 over two
    bare = _without_unit(_linked(clean_truth))
    value = None if _BASED.fullmatch(bare) else number(normalize(bare))
    if value is None and (reals.is_set(clean_truth) or reals.is_set(clean_answer)):
        comparison = _as_sets(clean_truth, clean_answer)
        if comparison is not None:
            return comparison
    if (measured := unit(clean_truth)) and unit(clean_answer) not in ("", measured):
        return "different"  # 10 m for 10 cm
    clean_truth, clean_answer = bare, _without_unit(_linked(clean_answer))
    if based := _BASED.fullmatch(clean_truth):
        other = _BASED.fullmatch(clean_answer)
        return _same(based.groups() == other.groups() if other else based[1] == clean_answer)
    if value is not None:
        return _against_number(value, clean_truth, clean_answer)
    return _against_expression(clean_truth, clean_answer)


def _same(same: bool) -> Comparison:
    return "equal" if same else "different"


def _without_degrees(truth: str, answer: str) -> tuple[str, str]:
    """Both without degree signs, which may be left out like any unit. Inside a sine or similar function they
    change the number; there only the answer may leave out those of the truth."""
    bare = truth.replace("°", ""), answer.replace("°", "")
    left_out = bare[0] == answer and "°" in truth
    return (truth, answer) if _ANGULAR.search(truth + answer) and not left_out else bare


def _as_sets(truth: str, answer: str) -> Comparison | Question | None:
    """Compare both as sets of real numbers; None if the truth is not a set. Against an interval or a solved
    inequality, an unsolved set (``2x>6``) is different."""
    truth_set, answer_set = reals.read(truth), reals.read(_without_unit(answer))
    if truth_set is None or answer_set is None:
        return "different" if truth_set and reals.is_set(truth) else None
    same = reals.same(truth_set, answer_set, _order)
    return (truth, _without_unit(answer)) if same is None else _same(same)


def _order(first: Expression, second: Expression) -> int | None:
    if first == second:
        return 0
    left, right = exact(first), exact(second)
    return None if left is None or right is None else (left > right) - (left < right)


def _against_number(value: Fraction, truth: str, answer: str) -> Comparison | Question:
    claims = _claims(answer, numeral(value))
    if claims is None or len(split(answer) or ()) != 1 or _SEVERAL.search(answer):
        return "different"  # several values, or a bracket that was never opened
    if any(sign in claim for claim in claims.exactly for sign in (",", "\\text{")):
        return "different"
    exact_values = [_exact(claim) for claim in claims.exactly]
    if claims.exactly and _left_to_do(claims.exactly[-1]):
        return "different"
    if claims.rounded:
        return _against_rounded(value, truth, claims, exact_values)
    values = {value for value in exact_values if value is not None}
    if None not in exact_values:
        return _same(len(values) == 1 and values <= _as_written(value, truth, answer))  # not 5=6
    trees = [read(normalize(claim)) for claim in claims.exactly]
    if not values <= {value} or any(tree is None or tree.names for tree in trees):
        return "different"
    return normalize(truth), "=".join(map(normalize, claims.exactly))


def _as_written(value: Fraction, truth: str, answer: str) -> set[Fraction]:
    """The numbers that a right answer may give: one half is 50 %, and also 50 if the truth is in percent."""
    if "%" not in answer or "%" in truth:
        return {value}
    return {value * 100} if "\\frac" in truth or "/" in truth else {value, value * 100}


def _against_rounded(
    value: Fraction, truth: str, claims: Claims, exact_values: Sequence[Fraction | None]
) -> Comparison | Question:
    """``\\frac13\\approx 0.33`` for one third, or for 0.33: if the two are close, either is right."""
    rounded = number(claims.rounded)
    digits = _DECIMALS.fullmatch(claims.rounded)
    if rounded is None or digits is None:
        return "different"
    if not exact_values:
        return _same(rounded == value)
    if None in exact_values:
        texts = [normalize(claim) for claim in claims.exactly]
        return normalize(truth), "=".join(texts) + f"\\approx {claims.rounded}"
    exactly = exact_values[0] if len(set(exact_values)) == 1 else None
    near = exactly is not None and abs(exactly - rounded) < Fraction(1, 10 ** len(digits[1]))
    return _same(near and value in (rounded, exactly))


def _exact(text: str) -> Fraction | None:
    """The value of a number, or of arithmetic on numbers."""
    value = number(normalize(text))
    tree = read(normalize(text)) if value is None else None
    return exact(tree) if tree else value


def _left_to_do(text: str) -> bool:
    """Whether a sum or product of plain numbers is open, as in ``40+2`` for 42."""
    plain = normalize(text)
    tree = read(plain) if number(plain) is None else None
    return tree is not None and (unfinished(tree) or _UNFINISHED.search(plain) is not None)


@dataclass(frozen=True)
class Claims:
    """The sides of an answer that give a value, without names and descriptions of what has the value."""

    exactly: tuple[str, ...]
    rounded: str = ""
    """The text after "approximately"."""


def _claims(answer: str, truth: Expression | None) -> Claims | None:
    """Of ``A = 2^2\\pi = 4\\pi`` the last side, and all sides whose variables are only the truth's. None if
    the first side is neither such a side nor a description, or if a later side is not such a side."""
    names: frozenset[str] = truth.names if truth else frozenset()
    text, *rounded = _APPROXIMATELY.split(answer)
    sides = [_within_brackets(side) for side in text.split("=")] if text.strip() or not rounded else []
    if len(rounded) > 1 or not all(sides):
        return None
    claims: list[str] = []
    for i, side in enumerate(sides):
        tree, last = read(normalize(side)), i == len(sides) - 1
        if last and claims and _LETTER.fullmatch(side):
            continue  # 5 = x
        of_these = (tree is not None and tree.names <= names) or number(normalize(side)) is not None
        if of_these or (last and not rounded):
            claims.append(side)
        elif i > 0 or not _describes(side, tree, truth):
            return None
    return Claims(tuple(claims), normalize(rounded[0]) if rounded else "")


def _describes(side: str, tree: Expression | None, truth: Expression | None) -> bool:
    """Whether a left side names what has the value instead of giving another value: an expression in other
    variables, a name, names in brackets, ``P(A)`` or ``\\text{area}``. If the truth is not an expression,
    only names count."""
    _, items, _ = shape(side)
    if _NAME.fullmatch(side) or (len(items) > 1 and all(map(_LETTER.fullmatch, items))):
        return True
    if truth is None or _NUMBERED.search(side):
        return False
    return tree is not None or _DESCRIPTION.fullmatch(_outside_brackets(side)) is not None


def _outside_brackets(text: str) -> str:
    while (shorter := _BRACKETED.sub("", text)) != text:
        text = shorter
    return text


def _against_expression(truth: str, answer: str) -> Comparison | Question:
    """Compare with a truth that is no number: a name, an expression, a relation, a point or a list."""
    has_name, truth, answer = _same_left_sides(_without_names(truth), _without_names(answer))
    value = number(normalize(truth)) if has_name else None
    if value is not None:
        return _against_number(value, truth, answer)
    if truth.casefold() == answer.casefold():  # math-verify ignores the case of letters
        return _same(truth == answer)
    if not _RELATION.search(truth) and _SIDES.search(answer) and len(split(answer) or ()) == 1:
        claims = _claims(answer, read(normalize(truth)))
        if claims is None or _SEVERAL.search(answer):
            return "different"
        if claims.rounded or len(claims.exactly) > 1:
            return _against_chain(truth, claims)
        answer = claims.exactly[0]
    if not _same_relations(truth, answer) or ("\\text{" in answer and "\\text{" not in truth):
        return "different"
    return _against_items(truth, answer)


def _same_relations(truth: str, answer: str) -> bool:
    """Whether both have the same relation signs, or each has the mirrored signs of the other."""
    signs = set(_RELATION.findall(truth))
    return set(_RELATION.findall(answer)) in (signs, {_MIRROR.get(sign, sign) for sign in signs})


def _against_items(truth: str, answer: str) -> Comparison | Question:
    """Compare two single values, two points or intervals, or two lists."""
    truth_shape, answer_shape = shape(truth), shape(answer)
    if len(truth_shape[1]) <= 1 and not _SEVERAL.search(truth):
        if len(answer_shape[1]) > 1 or _SEVERAL.search(answer):
            return "different"
        return _settle(truth, answer) or (truth, answer)
    settled: Comparison | None
    if truth_shape[0] in ("(", "["):
        settled = _as_points(truth_shape, answer_shape)
    elif answer_shape[0] in ("(", "[") and len(answer_shape[1]) > 1:
        settled = "different"
    else:
        settled = _as_lists(truth, answer)
    return settled or (truth, answer)


def _as_points(truth_shape: Shape, answer_shape: Shape) -> Comparison | None:
    """Compare two points or intervals: same brackets, and equal items in the same order."""
    (opening, items, closed), (other_opening, other_items, other_closed) = truth_shape, answer_shape
    if (opening, closed, len(items)) != (other_opening, other_closed, len(other_items)):
        return "different"
    return _all(_settle(*pair) for pair in zip(items, other_items, strict=True))


def _as_lists(truth: str, answer: str) -> Comparison | None:
    """Compare two lists in any order. Repeated items count, except where both lists stand in braces."""
    (opening, items, _), (other_opening, other_items, _) = shape(truth), shape(answer)
    settled = _all(
        [*(_any(items, item) for item in other_items), *(_any(other_items, item) for item in items)]
    )
    if settled == "different" or opening == other_opening == "\\{":
        return settled
    return _as_often(truth, answer, items, other_items)


def _against_chain(truth: str, claims: Claims) -> Comparison | Question:
    """An answer of several sides, all of which must equal the truth, exactly or rounded."""
    if claims.rounded:
        exactly = "=".join(claims.exactly)
        return (truth, f"{exactly}\\approx {claims.rounded}") if exactly else "different"
    settled = _all(_settle(truth, claim) for claim in claims.exactly)
    return settled or (truth, "=".join(claims.exactly))


def _mirrored(truth: str, answer: str) -> bool:
    """Whether one is the other's chain of relations from right to left: ``3<x`` and ``x>3``."""
    truth_chain, answer_chain = (_ORDERED.split(_IDLE_SPACE.sub("", text)) for text in (truth, answer))
    return len(truth_chain) > 1 and truth_chain == [
        _MIRROR.get(side, side) for side in reversed(answer_chain)
    ]


def _same_left_sides(truth: str, answer: str) -> tuple[bool, str, str]:
    """Whether the truth had a name on the left, and both without it (``y = 2x`` as ``2x``), unless the names
    differ or one of the two is a relation of another kind."""
    truth_name, truth_side = _split_name(truth)
    answer_name, answer_side = _split_name(answer)
    if truth_name and (not answer_name or answer_name == truth_name):
        return True, truth_side, answer_side
    if answer_name and not truth_name and not _RELATION.search(truth):
        return False, truth, answer_side
    return False, truth, answer


def _split_name(text: str) -> tuple[str, str]:
    """The name in ``name = value``, ``value = name`` or ``name \\in value``, and the value; else an empty
    name."""
    parts = re.split(r"=|\\in(?![A-Za-z])", text)
    if "=" in text and _LETTER.fullmatch(parts[-1].strip()) and not _NAME.fullmatch(parts[0].strip()):
        parts.reverse()
    if len(parts) != 2 or not parts[1] or not _NAME.fullmatch(parts[0].strip()):
        return "", text
    tree = read(parts[0].strip())
    constant = tree is not None and not tree.names  # e, i and \pi
    return ("", text) if constant else (parts[0].strip(), parts[1].strip())


def _without_names(text: str) -> str:
    """``x=1, x=2`` as ``1, 2``; a list with several names, or with none, stays as it is."""
    named_values = [_split_name(item) for item in split(text) or ()]
    single = len(named_values) > 1 and len({name for name, _ in named_values}) == 1
    return ", ".join(value for _, value in named_values) if single else text


def _settle(truth: str, answer: str) -> Comparison | None:
    """Equal or different if spelling or numbers decide; None if it needs algebra."""
    if truth == answer:
        return "equal"
    truth_value, answer_value = _exact(truth), _exact(answer)
    return None if truth_value is None or answer_value is None else _same(truth_value == answer_value)


def _any(items: Sequence[str], candidate: str) -> Comparison | None:
    """Whether `candidate` is among the items."""
    comparisons = [_settle(item, candidate) for item in items]
    return "equal" if "equal" in comparisons else None if None in comparisons else "different"


def _as_often(truth: str, answer: str, items: Sequence[str], others: Sequence[str]) -> Comparison | None:
    """Whether each item occurs equally often in both lists: ``1,2,3`` is not ``1,2,3,3``. Two lists in braces
    are sets and are not compared this way."""
    if len(items) != len(others) and not _SEVERAL.search(truth + answer):
        return "different"
    for item in items:
        counted = [[_settle(item, candidate) for candidate in side] for side in (items, others)]
        if any(None in comparisons for comparisons in counted):
            return None
        if counted[0].count("equal") != counted[1].count("equal"):
            return "different"
    return "equal"


def _all(comparisons: Iterable[Comparison | None]) -> Comparison | None:
    comparisons = list(comparisons)
    return "different" if "different" in comparisons else None if None in comparisons else "equal"


def _linked(text: str) -> str:
    """The text with commas for "and", "or" and semicolons."""
    text = _LINK.sub(lambda match: match[1] or ",", text).replace(";", ",")
    return _LOOSE_COMMAS.sub(", ", text).strip(", ")


def _without_unit(text: str) -> str:
    """The text without words after a value: ``10\\text{ cm}^2`` as ``10``. Words that change the meaning
    stay."""
    while (unit := _TEXT_UNIT.fullmatch(text)) and not _LINKING.search(unit[2]):
        text = unit[1]
    return text


def _words(text: str, plain: bool = False) -> tuple[str, ...] | None:
    """An answer in words, ignoring case (of more than one letter), dots and brackets; several, separated by
    commas, in any order. None for anything that is not words; with `plain`, words need no ``\\text{}``."""
    if not plain and not _WORDS.fullmatch(text) and not _HOUR.search(text):
        return None
    inside = _TEXT.sub(r"\1", text)
    if "\\" in inside:
        return None
    parts = [_WORD_DUST.sub("", part) for part in inside.split(",")]
    return tuple(sorted(part.casefold() if len(part) > 1 else part for part in parts if part))


def _within_brackets(text: str) -> str:
    """The text without brackets around the whole, as in ``(42)``."""
    opening, items, closed = shape(text)
    return items[0] if (opening, closed) == ("(", ")") and len(items) == 1 else text.strip()
