"""Read the letter of an option in a completion."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from grpobench.tasks.grading.extraction import between_tags
from grpobench.tasks.grading.lettered import ALPHABET

_OPEN = r"(?:[*_($\[]|\\\(|\\boxed\{|\\(?:text|textbf|mathrm|mathbf)\{){0,6}[ \t]{0,3}"
"""What may stand between the words that announce a letter and the letter."""
_CLOSE = r"(?:[*_)}$\]:.;]|\\\)){0,8}"
_ROOM = r"[*_]{0,3}[\s*_]{0,6}"
_IS = r"(?:[ \t](?:is|was|(?:sh|w)ould be|must be))"
_SURELY = r"(?:[ \t](?:therefore|thus|clearly|simply|definitely|option|choice|letter|indeed))?"
_STRONG = rf"(?i:\banswer\b[*_]{{0,3}}(?:{_IS}{_SURELY}[*_]{{0,3}}:?|[ \t]?[:=]))"
_CHOICE = r"(?i:\b(?:choose|chose|pick|select|go(?:ing)? with)(?:[ \t](?:option|choice|letter))?:?)"
_WEAK = rf"(?i:\b(?:answer|option|choice|letter)\b{_IS}?:?)"
_JOINED = r"(?:\s{0,4}(?:,\s{0,3})?(?:or|and/or|nor|versus|vs\.?)\b|\s{0,3}[/|&]|,?[ \t]{1,3}and|,|(?=[ \t]))"
_MAYBE = (
    r"(?:\s{0,3}(?:maybe|perhaps|possibly|also|either|option|choice|letter|answer(?:\sis)?:?)){0,3}\s{0,3}"
)
_WHY = r"(?:because|since|as|for|which|where|due|given|from|in|and|so|but|with|based|by|that|matches)"
_RIGHT = (
    r"[ \t]is[ \t](?:the[ \t])?(?:correct|right|best)(?:[ \t](?:answer|option|choice|one))?(?=[\s.,;!]|$)"
)


class _Patterns(NamedTuple):
    """Patterns for a number of options."""

    box: re.Pattern[str]
    strong: re.Pattern[str]
    weak: re.Pattern[str]
    right: re.Pattern[str]
    start: re.Pattern[str]
    joined: re.Pattern[str]
    label: re.Pattern[str]
    several: re.Pattern[str]


_ENDS = re.compile(
    rf"(?:[*_)}}$\]:.;!?,]|\\\)){{1,8}}(?!\w)|[ \t]*(?:\n|$)"
    rf"|[ \t]+(?:{_WHY}\b|[-–—(\[]|\\)|[ \t]*(?:[–—]|->|=>)"
)
"""What may follow the letter of an answer, unlike the noun after the article of ``A woman``."""


def option_letter(completion: str, count: int) -> str | None:
    """The letter of one of `count` options that a completion answers with; None if it gives none, or several.

    1. The letter in ``\\boxed{C}`` and after words for an answer: ``The answer is B.``, ``I choose (B)``,
       ``B is correct``. It counts wherever it stands, so options may be repeated before it.
    2. Else the letter after ``Option`` or ``Choice``: ``Option: (B)``.
    3. Else the letter with which the completion begins, if it is alone: ``B``, ``B.``, ``(B) blue``,
       ``**B**``, ``B, because``, but not the article of ``A woman`` and not the first of a list of options.

    ``A or B`` and ``A) and B)`` are no answer, and neither are two statements that differ. If the completion
    has ``<answer>…</answer>``, only the text between these tags is read.
    """
    text = between_tags(completion)
    if text is None:
        return None
    find = _patterns(count)
    for stated in (
        [*find.box.finditer(text), *find.strong.finditer(text), *find.right.finditer(text)],
        find.weak.finditer(text),
    ):
        if letters := {_read(text, match, find) for match in stated} - {""}:
            return letters.pop() if len(letters) == 1 and None not in letters else None
    begins = find.start.match(text.lstrip())
    if begins is None or _lists(text.lstrip(), begins[1], find):
        return None
    return _read(text.lstrip(), begins, find) or None


def _read(text: str, match: re.Match[str], find: _Patterns) -> str | None:
    """The letter of a statement; None if others are joined to it, empty if it is an ordinary word."""
    if find.joined.match(text, match.end(1)):
        return None
    return match[1] if match.re is find.right or _ENDS.match(text, match.end(1)) else ""


def _lists(text: str, first: str, find: _Patterns) -> bool:
    """Whether a text that begins with a letter lists options: B follows A on another line, another letter is
    alone on a line, or one line has all letters in order."""
    labels = find.label.findall(text)
    return (
        any(bare and bare != first for _, bare in labels)
        or (first == "A" and any("B" in pair for pair in labels))
        or find.several.match(text) is not None
    )


@cache
def _patterns(count: int) -> _Patterns:
    letters = ALPHABET[:count]
    single = rf"([{letters}])(?![\w'’])"
    article = r"(?!A[ \t]{1,3}(?!(?:or|and|because|since|is)\b)[a-z])"
    order = r"[^\n]{0,300}?[\s(]".join(rf"{letter}[.):]" for letter in letters)
    return _Patterns(
        box=re.compile(rf"\\boxed\{{[ \t]{{0,3}}{_OPEN}{single}"),
        strong=re.compile(rf"(?:{_STRONG}|{_CHOICE}){_ROOM}{_OPEN}{single}"),
        weak=re.compile(rf"{_WEAK}{_ROOM}{_OPEN}{single}"),
        right=re.compile(rf"(?<![\w'’]){single}{_CLOSE}{_RIGHT}"),
        start=re.compile(rf"{_OPEN}{single}"),
        joined=re.compile(rf"{_CLOSE}{_JOINED}{_MAYBE}{_OPEN}{article}[{letters}](?![\w'’])"),
        label=re.compile(
            rf"^[ \t]{{0,8}}[*(]{{0,3}}(?:([{letters}])[.):]|([{letters}])[*)]{{0,3}}[ \t]*$)", re.M
        ),
        several=re.compile(rf"[*(]{{0,3}}{order}"),
    )
