"""Where a completion states its answer and where its parts begin, as indices of its tokens."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Callable, Sequence

from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.rollouts import AnswerLocation, Rollout

BREAK = re.compile(
    r"(?<=\n)(?=\S)|(?<=[.!?;] )(?=\S)|(?<=,)(?=-?\d+ ?[-+*/])"
    r"|\b(?=(?:but|hmm|wait|so|then|therefore|thus|hence|however|alternatively|next|first|second|finally"
    r"|let me|because|since|check)\b)",
    re.IGNORECASE,
)
"""Places between characters at which a line, a sentence, an equation or a turn of thought begins."""


def locate(loaded: Loaded, marker: str, rollout: Rollout) -> AnswerLocation:
    """The last statement of the final answer, and the breaks before it. An empty marker finds no answer."""
    text = loaded.decode(rollout.completion)
    start = text.rfind(marker) if marker else -1
    length = len(rollout.completion)
    breaks = [match.start() for match in BREAK.finditer(text, 0, start if start >= 0 else len(text))]
    # Without 0, which lies in the first token whatever that is.
    positions = sorted({*breaks, *([start] if start >= 0 else [])} - {0})
    tokens = dict(zip(positions, begins(loaded, rollout.completion, positions), strict=True))
    answer = length if start < 0 else tokens.get(start, 0)
    return AnswerLocation(
        answer, tuple(sorted({tokens[position] for position in breaks if position} - {0, answer, length}))
    )


def begins(loaded: Loaded, completion: tuple[int, ...], positions: Sequence[int]) -> list[int]:
    """For each of these ascending positions in the text, the token that holds the character."""
    if not positions:
        return []
    ends = token_ends(loaded, completion, positions[-1])
    return [min(bisect.bisect_right(ends, position), len(completion) - 1) for position in positions]


def token_ends(loaded: Loaded, completion: tuple[int, ...], last: float = math.inf) -> list[int]:
    """Where the text of each token ends in the text of a completion, as a number of characters, up to the
    token that holds the character `last`."""
    pieces = [loaded.decode((token,)) for token in completion]
    ends = list(itertools.accumulate(map(len, pieces)))
    if "".join(pieces) != loaded.decode(completion):  # characters of several tokens, or spaces left out
        ends = []
        while len(ends) < len(completion) and (not ends or ends[-1] <= last):
            ends.append(len(loaded.decode(completion[: len(ends) + 1])))
        # The text may become shorter: bytes of a character stand as � until the last one has come.
        ends = list(itertools.accumulate(ends, max))
    return ends


def announces(loaded: Loaded, marker: str) -> Callable[[Sequence[int]], bool] | None:
    """A function that says whether tokens state `marker`, to be called at every new token; None for an empty
    marker. It decodes the text only if the last token can end the marker."""
    if not marker:
        return None
    ends: dict[int, bool] = {}
    last = marker[-1]

    def states_marker(tokens: Sequence[int]) -> bool:
        token = tokens[-1]
        if token not in ends:
            text = loaded.decode((token,))
            # A token may hold a part of a character, and some decoders drop the space of one that stands
            # alone.
            ends[token] = last in text or "\ufffd" in text or last.isspace()
        return ends[token] and marker in loaded.decode(tokens)

    return states_marker
