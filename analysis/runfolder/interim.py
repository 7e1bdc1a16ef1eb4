"""The plan by which seeds are added to an experiment: interim.json, written before the first analysis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder.files import LogError, read_json

FILE = "interim.json"
VERSION = 1
"""Of the file's layout."""


@dataclass(frozen=True)
class InterimPlan:
    """At how many seeds an experiment is looked at, and what each look may spend of the level."""

    seeds: tuple[int, ...]
    """All seeds that may be run, in the order in which they are added."""
    analyses: tuple[int, ...]
    """How many of them every look has, rising; the last has all."""
    weights: tuple[float, ...]
    """Share of the level that each look spends; they add up to 1."""
    alpha: float
    pairs: int
    """Pairs of arms of a task that the plan counted on."""
    margin: float
    """Of equivalence, in points."""
    step: int
    """Seeds from one look to the next, as they were asked for."""

    def text(self) -> str:
        """As the file has it, with the level of each look for those who read it."""
        spent = [self.alpha * weight for weight in self.weights]
        table = {"version": VERSION, "until": "resolved", **asdict(self), "alpha_per_analysis": spent}
        return json.dumps(table, indent=1) + "\n"

    def reached(self, seeds: int) -> int:
        """How many seeds the last look has for which the first `seeds` of the plan are there; 0: none."""
        return max((look for look in self.analyses if look <= seeds), default=0)

    @property
    def options(self) -> tuple[str, ...]:
        """What asks for it on the command line."""
        seeds, step = str(len(self.seeds)), str(self.step)
        return ("--until", "resolved", "--most-seeds", seeds, "--step-seeds", step)

    @property
    def words(self) -> str:
        """The plan in a sentence."""
        levels = [f"{n} seeds {self.alpha * w:.2g}" for n, w in zip(self.analyses, self.weights, strict=True)]
        return (
            "Seeds are added by a plan that was fixed before the first look. Each look may spend its share "
            f"of the level {self.alpha:g}: at {', '.join(levels)}."
        )


def read_plan(folder: Path) -> InterimPlan | None:
    """The plan of an experiment; None where it has none. Raises LogError where the file is damaged."""
    path = folder / FILE
    return plan_of(read_json(path), path) if path.exists() else None


def plan_of(table: Mapping[str, Any], path: Path) -> InterimPlan:
    """The plan that a table holds. Raises LogError where it holds none."""
    try:
        if table["version"] != VERSION:
            raise ValueError(f"version {table['version']}")
        plan = InterimPlan(
            tuple(map(int, table["seeds"])),
            tuple(map(int, table["analyses"])),
            tuple(map(float, table["weights"])),
            *(float(table["alpha"]), int(table["pairs"]), float(table["margin"]), int(table["step"])),
        )
        rising = list(plan.analyses) == sorted(set(plan.analyses)) and plan.analyses[-1] == len(plan.seeds)
        if not rising or len(plan.weights) != len(plan.analyses) or not sum(plan.weights) <= 1 + 1e-9:
            raise ValueError("analyses, seeds and weights do not fit each other")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise LogError(f"{path}: no plan of interim analyses ({error}); restore the file") from error
    return plan
