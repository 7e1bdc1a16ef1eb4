"""Marks of a compact letter display: names that are not told apart share a mark."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations_with_replacement
from string import ascii_letters


def letter_marks(names: Sequence[str], different: Collection[tuple[str, str]]) -> dict[str, str]:
    """name -> its marks, for `names` ordered from the best on and the pairs that are told apart.

    Two names share a mark if and only if their pair is not told apart. The first mark is `a`; the best name
    has it. After a–z come A–Z, then a1, b1, …, so marks in one string stay readable. Raises `ValueError` for
    names that occur twice and pairs of unknown names.

    The display is that of Piepho, An algorithm for a letter-based representation of all-pairwise comparisons,
    Journal of Computational and Graphical Statistics 13(2):456–466, 2004. His insertion takes exponential
    time where few pairs are told apart. Here marks are grown instead, one for each pair that shares none yet,
    and swept as he does."""
    index_of = {name: i for i, name in enumerate(names)}
    if len(index_of) < len(names):
        raise ValueError("letter_marks: a name occurs twice; give every algorithm its own name")
    if unknown := sorted({name for pair in different for name in pair} - index_of.keys()):
        raise ValueError(f"letter_marks: a pair names {unknown[0]!r}, which is not among the names")
    alike = [(1 << len(names)) - 1] * len(names)
    for a, b in different:
        alike[index_of[a]] &= ~(1 << index_of[b])
        alike[index_of[b]] &= ~(1 << index_of[a])
    columns = sorted(_sweep(_grow(alike), len(names)), key=_members)
    return {
        name: "".join(_letter(index) for index, column in enumerate(columns) if column >> i & 1)
        for name, i in index_of.items()
    }


def _grow(alike: Sequence[int]) -> list[int]:
    """Sets as bits of one integer that cover every pair that is alike and every single name. `alike[i]` has
    the bits of the names that i is not told apart from, its own included."""
    columns: list[int] = []
    covered = [0] * len(alike)
    for i, j in combinations_with_replacement(range(len(alike)), 2):
        if not alike[i] >> j & 1 or covered[i] >> j & 1:
            continue
        column, candidates = 1 << i | 1 << j, alike[i] & alike[j]
        while fresh := candidates & ~column:
            # the one that gives most pairs their first mark; the best of equals
            k = max(_members(fresh), key=lambda name: ((column & ~covered[name]).bit_count(), -name))
            column |= 1 << k
            candidates &= alike[k]
        columns.append(column)
        for name in _members(column):
            covered[name] |= column
    return columns


def _sweep(columns: list[int], count: int) -> list[int]:
    """The columns without those all of whose pairs and members stand in others, from the smallest on."""
    shared = [[0] * count for _ in range(count)]
    pairs = {column: list(combinations_with_replacement(_members(column), 2)) for column in columns}
    for column in columns:
        for i, j in pairs[column]:
            shared[i][j] += 1
    needed = []
    for column in sorted(columns, key=lambda column: (column.bit_count(), column)):
        if all(shared[i][j] > 1 for i, j in pairs[column]):
            for i, j in pairs[column]:
                shared[i][j] -= 1
        else:
            needed.append(column)
    return needed


def _members(column: int) -> list[int]:
    return [i for i in range(column.bit_length()) if column >> i & 1]


def _letter(index: int) -> str:
    """a–z, A–Z, a1–Z1, a2, …"""
    lap, letter = divmod(index, len(ascii_letters))
    return ascii_letters[letter] + (str(lap) if lap else "")
