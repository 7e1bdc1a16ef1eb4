"""How a task declares its data: tables of rows, the places where they may be, and what was found there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Source:
    """What was read, for origin.json."""

    kind: Literal["folder", "package", "hub"]
    place: str
    sha256: str
    """Of the file's bytes, or of the rows as sorted JSON lines where they came from the hub."""
    rows: int = 0
    """Rows in the table, malformed ones included."""
    skipped: tuple[str, ...] = ()
    """The malformed rows that were left out, each with its line and the reason."""
    table: str = ""
    """Path of the table that this is (`Table.path`)."""


@dataclass(frozen=True)
class Package:
    """A distribution on PyPI that a task needs beyond its tables, such as a generator of problems."""

    distribution: str
    version: str
    """The version that was checked."""
    module: str
    """Top-level module, by which the package is found."""
    exact: bool = field(default=True, kw_only=True)
    """Whether only the checked version will do; else any that is installed is left alone."""

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class Packaged(Package):
    """A data file inside a package on PyPI.

    Another installed version than the checked one is read all the same, and shows in `Source`.
    """

    path: str
    """Below the module's folder."""
    inside: str = ""
    """Where the row is in each line's object, or the array in a JSON file: a key, or keys with dots between
    them; empty where the line is the row and the file the array."""
    sha256: str = ""
    """Of the file in the checked version."""


@dataclass(frozen=True)
class Hosted:
    """A split of a data set on the hub."""

    dataset: str
    config: str
    split: str


@dataclass(frozen=True)
class Table:
    """One table of rows and the places where it may be."""

    path: str
    """Below the data folder, e.g. ``gsm8k/train.jsonl``; its first part is the name of the data set."""
    hub: Hosted | None
    package: Packaged | None = None
    inside: str = ""
    """As `Packaged.inside`, for the file in the data folder."""
