"""The plain keys at the top of a recipe, and the keys that may stand there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from grpobench.runs.settings import stops
from grpobench.runs.settings.bounds import Rule, above, at_least, demand
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.layers import ELSEWHERE
from grpobench.runs.settings.observe import Entry
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
ALONE: Mapping[str, tuple[type, ...]] = {"seeds": (int,), "observe": (str, dict), "stop_on": (str,)}
"""Lists that `--set` may give a single entry of."""
MOST_SEEDS = 10_000
"""More seeds than that are a slip of the keyboard, and would take minutes only to be listed."""


@dataclass(frozen=True)
class Head:
    """The plain top-level keys of a recipe."""

    name: str
    summary: str = ""
    seeds: tuple[int, ...] = (0,)
    workers: Annotated[int, at_least(0)] = 0
    """Runs side by side; 0 means one per GPU, and one per core without one."""
    fail_on_divergence: bool = False
    """Exit with 3 when a run diverges, or collapses by `stop_on`."""
    margin: Annotated[float, above(0, below=100)] = 2.0
    """Points of accuracy within which reports may call two arms equivalent."""
    stop_on: tuple[str, ...] = ()
    """Kinds of events (docs/stability.md) that end a run, as its result."""
    observe: tuple[Entry, ...] = ()
    """Callbacks that are told of every run: names, or tables with name and settings."""

    def __post_init__(self) -> None:
        demand(
            self,
            Rule(
                bool(NAME.fullmatch(self.name)), f"name: must be letters, digits, - and _, not {self.name!r}"
            ),
            *(Rule(False, fault) for fault in stops.faults(self.stop_on)),
            Rule(bool(self.seeds), "seeds: must not be empty"),
            Rule(len(set(self.seeds)) == len(self.seeds), "seeds: must differ from each other"),
            *(
                Rule(0 <= seed < 2**63, f"seeds: must be from 0 to 2^63 - 1, not {seed}")
                for seed in self.seeds[:MOST_SEEDS]
            ),
            Rule(
                len(self.seeds) <= MOST_SEEDS,
                f"seeds: {len(self.seeds):,} are more than a matrix can run; give at most {MOST_SEEDS:,}",
            ),
        )


def read_head(
    table: Mapping[str, Any], stem: str, assigned: Mapping[str, Any], faults: list[str]
) -> Head | strict.Bad:
    """The head of a recipe in a file called `stem`, with what `--set` assigns to keys without a dot."""
    plain = set(strict.hints(Head))
    known = plain | set(SECTIONS) | {"tasks", "arm", "on", "over"}
    faults += [strict.unknown("", key, known, ELSEWHERE) for key in table if key not in known]
    for key in assigned:
        if key not in plain | {"tasks", "arms"}:
            valid = plain | {"tasks", "arms", "algorithm.FIELD", "arm.NAME.settings.FIELD"}
            faults.append(strict.unknown("--set ", key, valid, ELSEWHERE).replace("--set .", "--set "))
    before = len(faults)
    own = {key: value for key, value in table.items() if key in plain}
    values = {"name": stem} | strict.check(Head, own, "", faults)
    chosen = {
        key: [value] if isinstance(value, ALONE.get(key, ())) else value
        for key, value in assigned.items()
        if key in plain
    }
    values |= strict.check(Head, chosen, "", faults)
    return BAD if len(faults) > before else strict.construct(Head, values, faults, str)
