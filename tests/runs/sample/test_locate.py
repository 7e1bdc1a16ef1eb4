"""Where a completion states its answer and where its parts begin, in tokens of several kinds of tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.nano import character_tokenizer
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.train.answer_locations import announces, begins, locate


class Pieces:
    """A tokenizer whose tokens are byte strings; token 0 ends a text and is invisible."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = (b"", *pieces)
        self.decoded = 0

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.decoded += 1
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")


class Spaced(Pieces):
    """As of some tokenizers, a text's first space is left out."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return super().decode(tokens).removeprefix(" ")


def loaded(tokenizer: Any) -> Loaded:
    return Loaded(None, tokenizer, {}, (0,))


def split(text: str, *sizes: int) -> tuple[Loaded, tuple[int, ...]]:
    """The text's UTF-8 bytes in tokens of these sizes, the last one of the rest, and an end token."""
    data, pieces = text.encode(), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    pieces += [data] if data else []
    return loaded(Pieces(*pieces)), (*range(1, len(pieces) + 1), 0)


def rollout(completion: tuple[int, ...]) -> Rollout:
    return Rollout((5,), completion, np.zeros(len(completion), dtype=np.float32), True)


def parts(text: str, marker: str) -> list[str]:
    """The text cut at its breaks and at its answer, one character a token."""
    tokenizer = character_tokenizer()
    tokens = tuple(tokenizer.encode(text, add_special_tokens=False))
    location = locate(loaded(tokenizer), marker, rollout(tokens))
    assert location.breaks == tuple(sorted(set(location.breaks)))
    bounds = [
        0,
        *location.breaks,
        *([location.answer] if 0 < location.answer < len(tokens) else []),
        len(tokens),
    ]
    assert bounds == sorted(set(bounds))
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize(
    ("text", "marker", "expected"),
    [
        ("7+8=15,15-19=-4#-4", "#", ["7+8=15,", "15-19=-4", "#-4"]),
        ("7+8=15,-4*2=-8#-8", "#", ["7+8=15,", "-4*2=-8", "#-8"]),
        ("One. Two! three? four", "#", ["One. ", "Two! ", "three? ", "four"]),
        ("One\nTwo\n\nThree\n#### 3", "####", ["One\n", "Two\n\n", "Three\n", "#### 3"]),
        ("It is 3, so we wait.", "#", ["It is 3, ", "so we ", "wait."]),
        ("sofa and butter", "#", ["sofa and butter"]),  # words, not beginnings of words
        ("3.14 is not a sentence", "#", ["3.14 is not a sentence"]),
        ("#1 then #2", "#", ["#1 ", "then ", "#2"]),  # the last statement counts
        ("#4", "#", ["#4"]),
        ("Then", "#", ["Then"]),  # a break at the beginning is none
        ("2+2=4 then#4", "", ["2+2=4 ", "then#4"]),  # no marker: nothing is found
        ("behind #4. Next. But", "#", ["behind ", "#4. Next. But"]),  # no breaks in the answer
    ],
)
def test_places_in_a_text(text: str, marker: str, expected: list[str]) -> None:
    assert parts(text, marker) == expected


def test_answer_is_the_length_where_there_is_none() -> None:
    where, tokens = split("no answer", 3, 3)
    assert locate(where, "#", rollout(tokens)).answer == len(tokens) == 4
    empty = locate(where, "#", rollout(()))
    assert (empty.answer, empty.breaks) == (0, ())


def test_token_that_holds_the_first_character_begins_the_answer() -> None:
    where, tokens = split("so 4\n#### 4", 2, 4, 4)  # "so", " 4\n#", "### ", "4"
    location = locate(where, "####", rollout(tokens))
    assert (location.answer, location.breaks) == (1, ())


def test_answer_in_the_first_token() -> None:
    where, tokens = split("#4", 1)
    assert locate(where, "#", rollout(tokens)).answer == 0


def test_characters_of_several_tokens_are_found_all_the_same() -> None:
    """é has two bytes, 😀 four; tokens cut both. Decoded alone such a token is not a part of the text."""
    text = "é😀. Then 😀#4"
    where, tokens = split(text, 1, 3, 2, 2, 5, 2, 2, 1)
    decoded = where.decode(tokens)
    assert decoded == text
    pieces = [where.decode((token,)) for token in tokens]
    assert "".join(pieces) != decoded
    location = locate(where, "#", rollout(tokens))
    assert where.tokenizer.pieces[tokens[location.answer]].startswith(b"#")
    assert [where.tokenizer.pieces[tokens[position]] for position in location.breaks] == [b"Then "]


def test_tokenizer_that_leaves_the_first_space_out() -> None:
    tokenizer = Spaced(b" One", b".", b" Two", b" #", b"4")
    location = locate(loaded(tokenizer), "#", rollout((1, 2, 3, 4, 5, 0)))
    assert (location.breaks, location.answer) == ((2,), 3)


@given(st.text(alphabet="aé😀 .#\n", max_size=20), st.lists(st.integers(1, 5), max_size=12), st.data())
def test_each_place_is_in_the_token_that_completes_its_character(
    text: str, sizes: list[int], data: st.DataObject
) -> None:
    where, tokens = split(text, *sizes)
    if not text:
        return
    position = data.draw(st.integers(0, len(text) - 1))
    (token_index,) = begins(where, tokens, [position])
    before = b"".join(where.tokenizer.pieces[token] for token in tokens[: token_index + 1])
    ends = len(text[: position + 1].encode())
    assert len(before) >= len(text[:position].encode()) + 1, "the token reaches the character"
    start = len(before) - len(where.tokenizer.pieces[tokens[token_index]])
    assert start < ends, "and does not begin behind it"


def test_plain_tokens_are_decoded_once_each() -> None:
    where, tokens = split("a. " * 200, *([1] * 600))
    locate(where, "#", rollout(tokens))
    assert where.tokenizer.decoded <= len(tokens) + 2


# The same while decoding


def test_marker_is_announced_by_the_token_that_completes_it() -> None:
    where, tokens = split("so \\boxed{4} is it", 3, 2, 5, 1, 3)  # "so ", "\b", "oxed{", "4", "} i", "s it"
    says = announces(where, "\\boxed{")
    assert says is not None
    assert [says(tokens[:n]) for n in range(1, len(tokens))] == [False, False, True, False, False, False]


def test_only_tokens_that_may_end_the_marker_are_looked_at_twice() -> None:
    where, tokens = split("aaaa####4", *([1] * 9))
    says = announces(where, "####")
    before = where.tokenizer.decoded
    for _ in range(10):
        assert [says(tokens[:n]) for n in range(1, 9)] == [*[False] * 7, True]
    # each token once alone, and the texts that end in "#"
    assert where.tokenizer.decoded - before == 8 + 10 * 4


def test_marker_that_ends_in_half_a_character_is_announced() -> None:
    where, tokens = split("答案😀5", 3, 3, 2, 2, 1)
    says = announces(where, "😀")
    assert [says(tokens[:n]) for n in range(1, 6)] == [False, False, False, True, False]


def test_empty_marker_is_never_announced() -> None:
    assert announces(loaded(character_tokenizer()), "") is None
