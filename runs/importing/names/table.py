"""What a row of a table of names is, and how a name of theirs is looked up."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

SOURCE = "<source>"
"""In a name of theirs: the data set that was evaluated. Where a run has several, ours ends in it."""


@dataclass(frozen=True)
class Name:
    """A metric of theirs and what it is here."""

    theirs: str
    """As they log it; ``<name>`` stands for whatever is there."""
    ours: str
    """A name of the catalog, which may take up what a placeholder of theirs stood for."""
    unit: str
    source: str
    """The file of their code where it is made."""
    differs: str = ""
    """In what it is not the number that we would log; empty where it is."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches their names, with a group per placeholder."""
        parts = re.split(r"<(\w+)>", self.theirs)
        made = [
            f"(?P<{part}>\\d+)" if part == "n" else f"(?P<{part}>.+?)" if place % 2 else re.escape(part)
            for place, part in enumerate(parts)
        ]
        return re.compile("".join(made))

    def match(self, theirs: str) -> dict[str, str] | None:
        """What the placeholders stand for in a name of theirs; None for another name."""
        found = self.pattern.fullmatch(theirs)
        return None if found is None else found.groupdict()

    def our_name(self, parts: Mapping[str, str]) -> str:
        """Our name with the placeholders filled."""
        return re.sub(r"<(\w+)>", lambda found: parts.get(found[1], found[0]), self.ours)


@dataclass(frozen=True)
class Settled:
    """How a derived metric follows from the numbers of one log."""

    formula: str
    compute: Callable[[Mapping[str, float]], float]
    note: str = ""
    """What a reader of the report should know of it."""


@dataclass(frozen=True)
class Derived:
    """A metric of ours that follows from several of theirs."""

    ours: str
    of: Sequence[str]
    """Theirs, all of which a step must have."""
    formula: str
    compute: Callable[[Mapping[str, float]], float]
    """From what theirs are in a step; those of `perhaps` may be absent."""
    unit: str
    source: str
    perhaps: Sequence[str] = ()
    settle: Callable[[Sequence[Mapping[str, float]]], Settled] | None = None
    """What it is in one log, from all of its rows, where versions of the library differ; counts before
    `compute`."""
    running: bool = False
    """Whether it is the sum over the steps so far, which needs every step from 1 on."""
    differs: str = ""


@dataclass(frozen=True)
class Vocabulary:
    """The metrics of a library."""

    library: str
    title: str
    read: str
    """Which version of its code was read."""
    names: Sequence[Name]
    """Where several of theirs are the same of ours, the first that a run has counts."""
    derived: Sequence[Derived] = ()
    about: Sequence[str] = ()
    """What holds for all of its logs."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """What its trackers write at the start of a name, and what the table has there; the first that fits
    counts."""

    @cached_property
    def plain(self) -> Mapping[str, int]:
        """Place by name, of the names without a placeholder."""
        return {one.theirs: place for place, one in enumerate(self.names) if "<" not in one.theirs}

    @cached_property
    def patterns(self) -> Sequence[tuple[int, Name]]:
        """The names with one."""
        return [(place, one) for place, one in enumerate(self.names) if "<" in one.theirs]

    def find(self, theirs: str) -> tuple[int, dict[str, str]] | None:
        """Place in `names` and what its placeholders stand for; None for an unknown name. The prefixes of its
        trackers are seen through."""
        form = self.bare(theirs)
        if (found := self.plain.get(form)) is not None:
            return found, {}
        for place, one in self.patterns:
            if (parts := one.match(form)) is not None:
                return place, parts
        return None

    def bare(self, theirs: str) -> str:
        """A name as the library itself has it, without what its trackers put before it."""
        for prefix, instead in self.prefixes.items():
            if theirs.startswith(prefix) and theirs != prefix:
                return instead + theirs.removeprefix(prefix)
        return theirs
