"""Marks: two names share one if and only if they are not told apart."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.statistics.marks import letter_marks


def read_marks(marks: str) -> set[str]:
    assert re.fullmatch(r"(?:[A-Za-z]\d*)+", marks)
    return set(re.findall(r"[A-Za-z]\d*", marks))


@st.composite
def displays(draw: st.DrawFn) -> tuple[list[str], set[tuple[str, str]]]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 12)))]
    pairs = list(combinations(names, 2))
    return names, draw(st.sets(st.sampled_from(pairs))) if pairs else set()


@given(displays())
def test_names_share_a_mark_if_and_only_if_they_are_not_told_apart(
    display: tuple[list[str], set[tuple[str, str]]],
) -> None:
    names, different = display
    marks = {name: read_marks(text) for name, text in letter_marks(names, different).items()}
    for pair in combinations(names, 2):
        assert bool(marks[pair[0]] & marks[pair[1]]) is (pair not in different)
    assert all(marks.values()) and "a" in marks[names[0]]


def test_marks_of_an_order_worked_by_hand() -> None:
    assert letter_marks(["x", "y", "z"], [("z", "x")]) == {"x": "a", "y": "ab", "z": "b"}


def test_no_mark_is_superfluous_where_nothing_or_everything_is_told_apart() -> None:
    names = [f"n{i}" for i in range(60)]
    assert set(letter_marks(names, []).values()) == {"a"}
    alone = letter_marks(names, list(combinations(names, 2)))
    assert len(set(alone.values())) == 60
    assert [alone[names[i]] for i in (0, 25, 26, 51, 52, 59)] == ["a", "z", "A", "Z", "a1", "h1"]


def test_bad_names_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        letter_marks(["x", "x"], [])
    with pytest.raises(ValueError, match="'y'"):
        letter_marks(["x"], [("x", "y")])
