"""Find the final answer in a completion."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from grpobench.tasks.grading.latex import closing

MARKER = "####"
TAIL = 4096
"""The final answer is searched in this many characters at the end of a completion."""
LONGEST = 300
"""A longer text is not an answer."""
APART = 60
"""Boxes with more characters than this between them are two answers."""

How = Literal["marker", "boxed", "phrase", "last number", "whole"]
_GROUPED = "[0-9]{1,3}(?:(?:\\\\[ ,;:]|[~\u00a0\u2009\u202f])[0-9]{3}(?![0-9]))+"
"""Digits in groups of three, separated by the spaces that `latex.clean` recognizes."""
_NUMBER = rf"(?:{_GROUPED}|[0-9]+(?:,[0-9]{{3}})*)(?:\.[0-9]+)?|\.[0-9]+"
_LAST_NUMBER = re.compile(rf"(?<![0-9A-Za-z.])-?\$?(?:{_NUMBER})(?![0-9])")
_PHRASE = re.compile(
    r"answer(?:[*_]{1,3}[ \t]{0,5}:|[*_]{0,3}(?:[ \t](?:is|would be|must be|should be)|:))"
    r"[*_]{0,3}[ \t]{0,5}:?[*_]{0,3}\s{0,5}([^\n]{1,300})",
    re.IGNORECASE,
)
_STARTS_AS_VALUE = re.compile(r"[-+−$£€*({. ]{0,8}[0-9\\]|\$[^$\n]{1,200}\$")
_STARTS_AS_HEDGE = re.compile(
    r"(?:either|neither|between|not|from|at (?:least|most)|(?:more|less|fewer) than)\b[^\n]*[0-9]",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_BETWEEN_BOXES = re.compile(
    r"[\s$.,)\]\\]*(?:(?<=,)|,|(?:\\(?:text|mbox)\{\s*)?\b(?:and|or)\b\s*\}?)"
    r"[\s$(\[\\]*(?:[A-Za-z]\w{0,3}\s*=\s*)?[\s$]*"
)


# Words behind a value

_NUMERIC = r"(?:[-+−]?[$£€*_({ \t]{0,6}(?:\\\$)?[-+−]?(?:[0-9]|\.[0-9]))"
_EMPHASIS = re.compile(r"(?<![\w)\]}*])(\*\*|__)(?=[^\s*_])([^*_\n]{1,300})(?<=\S)\1(?![\w(*])")
_OPENER = (
    r"(?:which|because|since|as|where|given|obtained|calculated|found|being|so that|by|after|due|thanks"
    r"|i\.e\.)"
)
_EXPLAINED = re.compile(rf"[,;:]?\s(?:[-–—]{{1,2}}\s)?{_OPENER}\b", re.IGNORECASE)
"""Words with which an explanation begins. What follows them may have numbers."""
_ASIDE = re.compile(r"(?:[,;]\s|\s?[–—]\s?|\s--?\s|[.!]\s)(?=[A-Za-z]{2})")
_PARENTHESIS = re.compile(r"\s\(([^()]{1,200})\)(?=[\s.,;!]|$)")
_DOUBT = re.compile(
    r"\b(?:or|nor|not|no|but|maybe|perhaps|possibly|either|neither|both|unless|if|when|else|otherwise|except|any"
    r"|wait|actually|instead|rather|alternatively|versus|vs|wrong|incorrect|false|mistake|however|although|though"
    r"|could|might|may|correction|sorry|least|most|up to|negative|minus|approximately|and)\b|\?|n't\b",
    re.IGNORECASE,
)
"""Words that may turn what they follow into another value, or into several."""
_SCALE = re.compile(
    r"\b(?:hundreds?|thousands?|[mbtr]+illions?|dozens?|percent(?:age)?|squared|cubed|hal(?:f|ves)|thirds?|quarters?"
    r"|fourths?|fifths?|tenths?|hundredths?|thousandths?|times|twice|more|less|over|under|greater|plus|pi|infinity"
    r"|inf|none|sqrt|sin|cos|tan|log|ln|exp|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|[a-z]+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)\b|[0-9\\=^%$√∞π½⅓¼¾]|\b[B-HJ-Zb-hj-z]\b",
    re.IGNORECASE,
)
"""What may state or change a value; an explanation may have it, an aside may not."""
_WORKED_OUT = re.compile(r"[A-Za-z]{2}|=")


def without_explanation(text: str) -> str:
    """A value without the words behind it that explain it: ``96, which is the total``,
    ``96 loaves, altogether`` and ``96 (8 times 12)`` become 96 and ``96 loaves``. What may add a second value
    or change the first stays, so that it equals no single value: ``96 or 97``, ``96, not 97``, ``96 (97)``,
    ``3, x``."""
    text = _EMPHASIS.sub(r"\2", text)
    if _DOUBT.search(text):
        return text
    opener = _EXPLAINED.search(text)
    if opener and opener.start():
        return without_explanation(text[: opener.start()])
    if not re.match(_NUMERIC, text):
        return text
    parenthesis = _PARENTHESIS.search(text)
    if parenthesis and _explains(parenthesis[1]):
        return without_explanation(f"{text[: parenthesis.start()]}{text[parenthesis.end() :]}".strip())
    aside = _ASIDE.search(text)
    if aside and not _SCALE.search(text, aside.end()):
        return text[: aside.start()]
    return text


def _explains(inside: str) -> bool:
    """Whether the text in parentheses shows how a value came about: not another number, nor a unit."""
    numbers = len(re.findall(r"[0-9]+", inside))
    if not _WORKED_OUT.search(inside):
        return False
    return numbers > 1 or (numbers == 0 and " " in inside.strip() and not _SCALE.search(inside))


@dataclass(frozen=True)
class ExtractedAnswer:
    """A final answer as written, and the way that it was marked."""

    text: str
    how: How


_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def between_tags(completion: str) -> str | None:
    """The text in ``<answer>…</answer>``: up to the end of the completion without an end tag, and from its
    beginning without a start tag, which is then in the prompt. A start tag before another one, and tags
    around nothing, are ignored. None if two pairs of tags hold different texts. The completion itself if it
    has no tag."""
    texts: list[str] = []
    start: int | None = 0
    for tag in _TAG.finditer(completion):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            texts.append(completion[start : tag.start()])
            start = None
    if start == 0:
        return completion
    if start is not None:
        texts.append(completion[start:])
    stated = {" ".join(text.split()): text for text in texts if text.strip()}
    return None if len(stated) > 1 else next(iter(stated.values()), "")


def behind(completion: str, marker: str) -> str | None:
    """The text behind the last `marker`; None if there is no marker, or `between_tags` states no answer. The
    marker ``<answer>`` is read as a tag. Tags behind or around another marker are no part of the answer."""
    if marker.lower() == "<answer>":
        return between_tags(completion) if _TAG.search(completion) else None
    _, matched, text = completion.rpartition(marker)
    return between_tags(text) if matched else None


def extract(
    completion: str, ways: Sequence[How] = ("marker", "boxed", "phrase", "last number")
) -> ExtractedAnswer | None:
    """The final answer by the first of `ways` that has one: after the last ``####``, in the last
    ``\\boxed{}``, after the last "answer is" or "answer:", the last number, the whole of one line. None if no
    way has one. Boxes with only "and", "or" or a comma between them are one answer with commas. If the
    completion has ``<answer>…</answer>``, only the text between these tags is read."""
    tail = between_tags(completion[-TAIL:])
    if not tail:
        return None
    for how in ways:
        text = _FINDERS[how](tail)
        if text:
            return ExtractedAnswer(without_explanation(text) if how in ("phrase", "whole") else text, how)
    return None


def first_line(text: str) -> str:
    """The value in the first line of a text that is not empty, also after "answer is"."""
    line = text.strip().partition("\n")[0].strip()
    return without_explanation(_behind_phrase(line) or line)


def _behind_marker(tail: str) -> str | None:
    _, marker, text = tail.rpartition(MARKER)
    return first_line(text)[:LONGEST] if marker else None


def _boxed(tail: str) -> str | None:
    end = len(tail)
    texts: list[str] = []
    for start, close in reversed([*_boxes(tail)]):
        between = tail[close + 1 : end]
        if close < 0 or (texts and (len(between) > APART or not _BETWEEN_BOXES.fullmatch(between))):
            break
        texts.insert(0, tail[start + len("\\boxed{") : close].strip())
        end = start
    return ", ".join(texts)[:LONGEST] or None


def _boxes(tail: str) -> Iterator[tuple[int, int]]:
    """Where each box that is in no other one starts, and where it is closed; −1 for a box without an end."""
    position = 0
    while (start := tail.find("\\boxed{", position)) >= 0:
        close = closing(tail[: start + LONGEST + 8], start + len("\\boxed"))
        yield start, close
        position = (start + len("\\boxed") if close < 0 else close) + 1


def _behind_phrase(tail: str) -> str | None:
    phrases = _PHRASE.findall(tail)
    if not phrases:
        return None
    text: str = _SENTENCE_END.split(phrases[-1], maxsplit=1)[0].strip()
    return text if _STARTS_AS_VALUE.match(text) or _STARTS_AS_HEDGE.match(text) else None


def _last_number(tail: str) -> str | None:
    numbers = _LAST_NUMBER.findall(tail)
    return numbers[-1] if numbers else None


def _whole(tail: str) -> str | None:
    """The whole completion, if it is one line."""
    text = tail.strip()
    return text if len(text) <= LONGEST and "\n" not in text else None


_FINDERS = {
    "marker": _behind_marker,
    "boxed": _boxed,
    "phrase": _behind_phrase,
    "last number": _last_number,
    "whole": _whole,
}
