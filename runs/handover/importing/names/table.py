"""The rows of a table of names, and the look-up of an original name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

Rows = Mapping[int, Mapping[str, float]]
"""Numbers by step and name."""
SOURCE = "<source>"
"""Placeholder in an original name: the evaluated data set. If a run has several, our name ends in it."""


@dataclass(frozen=True)
class Name:
    """An original metric and ours."""

    theirs: str
    """The name as they log it; ``<name>`` stands for any text."""
    ours: str
    """A name of the catalog, which may contain the placeholder's text."""
    unit: str
    source: str
    """The file of their code that computes it."""
    differs: str = ""
    """How it differs from the number that we would log; empty if it does not."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches their names, with a group per placeholder."""
        parts = re.split(r"<(\w+)>", self.theirs)
        made = [
            f"(?P<{part}>\\d+)" if part == "n" else f"(?P<{part}>.+?)" if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        ]
        return re.compile("".join(made))

    def match(self, theirs: str) -> dict[str, str] | None:
        """The placeholders' texts in an original name; None if the name does not match."""
        matched = self.pattern.fullmatch(theirs)
        return None if matched is None else matched.groupdict()

    def our_name(self, parts: Mapping[str, str]) -> str:
        """Our name with the placeholders filled in."""
        return re.sub(r"<(\w+)>", lambda match: parts.get(match[1], match[0]), self.ours)


@dataclass(frozen=True)
class Settled:
    """How a derived metric is computed from the numbers of one log."""

    formula: str
    compute: Callable[[Mapping[str, float]], float]
    note: str = ""
    """A note on it for the reader of the report."""


@dataclass(frozen=True)
class Derived:
    """A metric of ours that is computed from several of theirs."""

    ours: str
    of: Sequence[str]
    """Their metrics, all of which a step must have."""
    formula: str
    compute: Callable[[Mapping[str, float]], float]
    """Computes the metric from their metrics of a step, of which those outside `of` may be missing."""
    unit: str
    source: str
    settle: Callable[[Sequence[Mapping[str, float]]], Settled] | None = None
    """Chooses the computation for one log, from all of its rows, if versions of the library differ; used
    instead of `compute`."""
    running: bool = False
    """Whether it is the sum over the steps so far, which needs every step from 1 on."""
    differs: str = ""


@dataclass(frozen=True)
class Vocabulary:
    """The metrics of a library."""

    library: str
    title: str
    read: str
    """The version of its code that was read."""
    names: Sequence[Name]
    """If several of theirs have the same name of ours, the first that a run has is used."""
    derived: Sequence[Derived] = ()
    about: Sequence[str] = ()
    """Notes on all of its logs."""
    steps: Callable[[Rows], Rows] | None = None
    """Puts the library's rows at our steps, where it counts otherwise."""
    like: str = ""
    """A library whose names it shares, and to which logs belong that do not tell the two apart."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """Prefixes of its trackers and their replacements in the table; the first that fits is used."""

    @cached_property
    def plain(self) -> Mapping[str, int]:
        """Index by name, for names without a placeholder."""
        return {name.theirs: index for index, name in enumerate(self.names) if "<" not in name.theirs}

    @cached_property
    def patterns(self) -> Sequence[tuple[int, Name]]:
        """The names with a placeholder."""
        return [(index, name) for index, name in enumerate(self.names) if "<" in name.theirs]

    def find(self, theirs: str) -> tuple[int, dict[str, str]] | None:
        """Index in `names` and the placeholders' texts; None for an unknown name. Tracker prefixes are
        removed first."""
        form = self.bare(theirs)
        if (plain_index := self.plain.get(form)) is not None:
            return plain_index, {}
        for index, name in self.patterns:
            if (parts := name.match(form)) is not None:
                return index, parts
        return None

    def bare(self, theirs: str) -> str:
        """A name as the library itself has it, without a tracker's prefix."""
        for prefix, instead in self.prefixes.items():
            if theirs.startswith(prefix) and theirs != prefix:
                return instead + theirs.removeprefix(prefix)
        return theirs
