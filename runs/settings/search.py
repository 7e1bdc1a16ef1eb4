"""The tables of a recipe on `grpobench search`: `search`, its rule, and `searched`, its choice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.search import SearchRecord, read_record, settings_of
from grpobench.analysis.statistics import rate_choice
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.expand import read_over_table
from grpobench.runs.settings.layers import parse_set
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import Settings
from grpobench.tasks.data import bounded

SEARCH, SEARCHED = "search", "searched"
"""The names of the tables."""
SEARCHES = "searches"
"""Folder beside the recipe of a search: NAME.json is its record, where it is shipped."""
SEEDS = tuple(range(1000, 1000 + rate_choice.SEEDS))
"""Of a search for which neither the recipe nor the command names seeds."""
SUFFIX = "-searched"
"""Behind the name of the recipe that a search writes."""


@dataclass(frozen=True)
class Search(Settings):
    """The table `search`. The options of `grpobench search` come before it."""

    over: Mapping[str, Any] = field(default_factory=dict)
    """Values by key, such as ``"train.learning_rate" = [1e-4, 1e-3]``. Learning rates are those that the
    search begins with; one that is left out begins with five values around the recipe's."""
    seeds: tuple[int, ...] = ()
    """Seeds of the search, none of them the recipe's; empty: 1000 to 1007. The first two prune."""
    extensions: Annotated[int, Interval(ge=0, le=9)] = rate_choice.EXTENSIONS
    """Rates by which the search may extend its grid on each side."""
    outcome: str = ""
    """What is compared, the larger the better: a measure of training steps (analysis/measure.py). Empty:
    the validation accuracy at the end, in the mode in which reports compare arms."""

    def clashes(self) -> Iterator[str]:
        seeds = self.seeds
        if len(set(seeds)) != len(seeds):
            yield "seeds: must differ from each other"
        if not all(0 <= seed < 2**63 for seed in seeds):
            yield "seeds: must be from 0 to 2^63 - 1"


@dataclass(frozen=True)
class Searched(Settings):
    """The table `searched`: a record, or the recipe of a search."""

    record: str = ""
    """Path of search.json, relative to the recipe's folder."""
    sha256: str = ""
    """Checksum of that file."""
    set: tuple[str, ...] = ()
    """The assignments that the search chose, as after `--set`. Those of the command line come after them."""
    recipe: str = ""
    """Instead of a record: the recipe whose search gave the rates that this recipe has in its arms. Reports
    then say which settings differ from those of the search. The record searches/NAME.json beside that recipe
    is read if it is there."""

    def clashes(self) -> Iterator[str]:
        wrong = [text for text in self.set if parse_set(text) is None]
        if bool(self.record) == bool(self.recipe):
            yield "record: give either the record of a search or, as recipe, the recipe that was searched"
        if self.recipe and (self.sha256 or self.set):
            yield "recipe: goes without sha256 and set, which belong to a record"
        if self.record and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            yield "sha256: must be 64 hexadecimal digits"
        if wrong:
            yield f"set: must be assignments KEY=VALUE, not {wrong[:1]}"


def read_search(table: Mapping[str, Any], faults: list[str]) -> tuple[Search, Searched | None]:
    """The tables of a recipe; the default and None where it has none or a wrong one."""
    if isinstance(values := table.get(SEARCH, {}), Mapping) and "over" in values:
        values = {**values, "over": read_over_table(values["over"], faults, f"{SEARCH}.over")}
    search = strict.build(Search, values, SEARCH, faults)
    searched = strict.build(Searched, table[SEARCHED], SEARCHED, faults) if SEARCHED in table else None
    return (
        search if isinstance(search, Search) else Search(),
        searched if isinstance(searched, Searched) else None,
    )


def load_record(searched: Searched, folder: Path, faults: list[str]) -> SearchRecord | None:
    """The record that a recipe in `folder` names; None, with a fault, where it is absent or another one."""
    path = folder / Path(searched.record).expanduser()
    remedy = (
        f"restore it, or remove [{SEARCHED}] and set the values yourself; no report then says of a search"
    )
    try:
        digest = bounded.sha256(path)
    except (OSError, bounded.FileError) as error:
        reason = error.reason if isinstance(error, bounded.FileError) else error.strerror
        faults.append(f"{SEARCHED}.record: {path}: {reason}; {remedy}")
        return None
    if digest != searched.sha256:
        mismatch = "is not the record that chose these values (another checksum)"
        faults.append(f"{SEARCHED}.sha256: {path} {mismatch}; {remedy}")
        return None
    try:
        return replace(read_record(path), sha256=digest)
    except LogError as error:
        faults.append(f"{SEARCHED}.record: {error}")
        return None


def seed_faults(record: SearchRecord, seeds: Sequence[int]) -> list[str]:
    """A fault for seeds that chose the values of a recipe and are to show how good they are."""
    shared = sorted({*record.seeds} & {*seeds})
    if not shared:
        return []
    names = ", ".join(map(str, shared[:8])) + (", …" if len(shared) > 8 else "")
    return [f"seeds: {names} chose the settings of this recipe ({SEARCHED}.record); run it with other seeds"]


def settings_by_arm(configs: Iterable[RunConfig]) -> dict[str, dict[str, dict[str, Any]]]:
    """By arm and task, the settings that say how runs train."""
    settings: dict[str, dict[str, dict[str, Any]]] = {}
    for config in configs:
        by_task = settings.setdefault(config.arm, {})
        if config.task.name not in by_task:
            by_task[config.task.name] = settings_of(toml.read(stored.dump(config)))
    return settings
