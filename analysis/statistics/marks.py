"""Marks of a compact letter display: what is not told apart shares a mark.

Insert and absorb (Piepho, An algorithm for a letter-based representation of all-pairwise comparisons, Journal
of Computational and Graphical Statistics 13(2):456–466, 2004), then his sweep, which drops marks that say
nothing new.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations_with_replacement
from string import ascii_letters


def letter_marks(names: Sequence[str], different: Collection[tuple[str, str]]) -> dict[str, str]:
    """name -> its marks, for `names` ordered from the best on and the pairs that are told apart.

    Two names share a mark if and only if their pair is not told apart. The first mark is `a`; the best name has
    it. After a–z come A–Z, then a1, b1, …, so marks in one string stay readable. Raises `ValueError` for names
    that occur twice and pairs of unknown names.
    """
    place = {name: i for i, name in enumerate(names)}
    if len(place) < len(names):
        raise ValueError("letter_marks: a name occurs twice; give every algorithm its own name")
    if unknown := sorted({name for pair in different for name in pair} - place.keys()):
        raise ValueError(f"letter_marks: a pair names {unknown[0]!r}, which is not among the names")
    columns = _sweep(_insert_absorb(len(names), [(place[a], place[b]) for a, b in different]), len(names))
    columns.sort(key=_members)
    return {
        name: "".join(_letter(index) for index, column in enumerate(columns) if column >> i & 1)
        for name, i in place.items()
    }


def _insert_absorb(count: int, different: Sequence[tuple[int, int]]) -> list[int]:
    """Every largest set without a pair that is told apart, as bits of one integer."""
    columns = [(1 << count) - 1] if count else []
    for i, j in sorted(different):
        both = 1 << i | 1 << j
        split = [column for column in columns if column & both == both]
        columns = [column for column in columns if column & both != both]
        for column in (part for whole in split for part in (whole & ~(1 << i), whole & ~(1 << j))):
            if not any(column & other == column for other in columns):
                columns = [other for other in columns if other & column != other]
                columns.append(column)
    return columns


def _sweep(columns: list[int], count: int) -> list[int]:
    """The columns without those all of whose pairs and members stand in others, smallest columns first."""
    shared = [[0] * count for _ in range(count)]
    pairs = {column: list(combinations_with_replacement(_members(column), 2)) for column in columns}
    for column in columns:
        for i, j in pairs[column]:
            shared[i][j] += 1
    kept = []
    for column in sorted(columns, key=lambda column: (column.bit_count(), column)):
        if all(shared[i][j] > 1 for i, j in pairs[column]):
            for i, j in pairs[column]:
                shared[i][j] -= 1
        else:
            kept.append(column)
    return kept


def _members(column: int) -> list[int]:
    return [i for i in range(column.bit_length()) if column >> i & 1]


def _letter(index: int) -> str:
    """a–z, A–Z, a1–Z1, a2, …"""
    round_, place = divmod(index, len(ascii_letters))
    return ascii_letters[place] + (str(round_) if round_ else "")
