"""Where a completion states its answer and where its parts begin, as places in its tokens."""

from __future__ import annotations

import re

from grpobench.runs.batch import Located, Rollout
from grpobench.runs.library import Loaded

BREAK = re.compile(
    r"(?<=\n)(?=\S)|(?<=[.!?;] )(?=\S)|(?<=,)(?=-?\d+ ?[-+*/])"
    r"|\b(?=(?:but|hmm|wait|so|then|therefore|thus|hence|however|alternatively|next|first|second|finally"
    r"|let me|because|since|check)\b)",
    re.IGNORECASE,
)
"""Places between characters at which a line, a sentence, an equation or a turn of thought begins."""


def locate(loaded: Loaded, marker: str, rollout: Rollout) -> Located:
    """The last statement of the final answer, and the breaks before it. An empty marker finds no answer."""
    text = loaded.decode(rollout.completion)
    start = text.rfind(marker) if marker else -1
    length = len(rollout.completion)
    places = [match.start() for match in BREAK.finditer(text, 0, start if start >= 0 else len(text))]
    wanted = sorted({*places, *([start] if start >= 0 else [])} - {0})
    tokens = dict(zip(wanted, begins(loaded, rollout.completion, wanted), strict=True))
    answer = length if start < 0 else tokens.get(start, 0)
    return Located(answer, tuple(sorted({tokens[p] for p in places if p} - {answer, length})))


def begins(loaded: Loaded, completion: tuple[int, ...], places: list[int]) -> list[int]:
    """For each of these ascending places in the text, the token that holds its character."""
    found, token, decoded = [], 0, 0
    for place in places:
        while token < len(completion) and decoded <= place:
            token += 1
            decoded = len(loaded.decode(completion[:token]))
        found.append(max(0, token - 1))
    return found
