"""Lettered options: how a prompt lists them, and how the letter of an answer is read.

Find the final answer in a completion.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from grpobench.tasks.grading.latex import closing

LETTERS = "ABC"
"""The letters of tasks with three options."""
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def listed(options: Sequence[str]) -> str:
    """One option per line, each after its letter."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(ALPHABET, options, strict=False))


REQUEST = "Answer with a single letter."
"""The line that asks for the letter of an option. A chat model that is not asked may explain its answer until
its tokens run out, and the letter never comes. It names no letters: small models repeat them all."""


def asked(options: Sequence[str]) -> str:
    """The end of a prompt: the options, the request for a letter, and ``Answer:``."""
    return f"{listed(options)}\n{REQUEST}\nAnswer:"


def answers(count: int) -> tuple[str, ...]:
    """Possible answers to `count` options after ``Answer:``."""
    return tuple(f" {letter}" for letter in ALPHABET[:count])


def letter(completion: str, count: int) -> str | None:
    """The letter at the start of the completion, if it is alone: ``B``, ``B.``, ``(B)`` or ``**B**``, but not
    the article of ``A woman``. Otherwise the letter that the completion states: ``The answer is B.``,
    ``Option: (B)``. None if it states none, or two different ones."""
    alone, stated = _patterns(count)
    found = alone.match(completion.lstrip())
    if found:
        return found.group(1)
    letters = set(stated.findall(completion))
    return letters.pop() if len(letters) == 1 else None


def order(identity: str, count: int) -> list[int]:
    """An order of `count` options that depends only on a name; over many names all orders are equally
    frequent."""
    return sorted(range(count), key=lambda option: hashlib.sha256(f"{identity}/{option}".encode()).digest())


@cache
def _patterns(count: int) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A letter that is alone, and one after a word for an answer."""
    alone = rf"\*{{0,2}}\(?([{ALPHABET[:count]}])(?:[).:*](?!\w)|[ \t]*(?:\n|$))"
    words = r"\b(?:[Aa]nswer|[Oo]ption|[Cc]hoice|[Ll]etter)(?: is)?:?[ \t]{0,3}"
    return re.compile(alone), re.compile(words + alone)


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
_PHRASE = re.compile(r"answer(?: is|:)[ \t]{0,5}:?[ \t]{0,5}([^\n]{1,300})", re.IGNORECASE)
_STARTS_AS_VALUE = re.compile(r"[-+−$£€*({. ]{0,8}[0-9\\]|\$[^$\n]{1,200}\$")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_BETWEEN_BOXES = re.compile(
    r"[\s$.,)\]\\]*(?:(?<=,)|,|(?:\\(?:text|mbox)\{\s*)?\b(?:and|or)\b\s*\}?)"
    r"[\s$(\[\\]*(?:[A-Za-z]\w{0,3}\s*=\s*)?[\s$]*"
)


@dataclass(frozen=True)
class ExtractedAnswer:
    """A final answer as written, and the way that it was marked."""

    text: str
    how: How


def extract(
    completion: str, ways: Sequence[How] = ("marker", "boxed", "phrase", "last number")
) -> ExtractedAnswer | None:
    """The final answer by the first of `ways` that has one: after the last ``####``, in the last
    ``\\boxed{}``, after the last "answer is" or "answer:", the last number, the whole of one line. None if no
    way has one. Boxes with only "and", "or" or a comma between them are one answer with commas."""
    tail = completion[-TAIL:]
    for how in ways:
        text = _FINDERS[how](tail)
        if text:
            return ExtractedAnswer(text, how)
    return None


def _behind_marker(tail: str) -> str | None:
    _, marker, behind = tail.rpartition(MARKER)
    return behind.strip().partition("\n")[0].strip()[:LONGEST] if marker else None


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
    return text if _STARTS_AS_VALUE.match(text) else None


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
