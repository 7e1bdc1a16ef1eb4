"""The plan by which seeds are added to an experiment: interim.json, written before the first analysis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder import formats
from grpobench.analysis.runfolder.files import LogError, read_json

FILE = "interim.json"
VERSION = 1
"""Version of the file's layout."""


@dataclass(frozen=True)
class InterimPlan:
    """At how many seeds the interim analyses of an experiment take place, and their shares of the level."""

    seeds: tuple[int, ...]
    """All seeds that may be run, in the order in which they are added."""
    analyses: tuple[int, ...]
    """Number of seeds of each analysis, in rising order; the last analysis has all seeds."""
    weights: tuple[float, ...]
    """Share of the level that each analysis spends; the shares add up to 1."""
    alpha: float
    pairs: int
    """Pairs of arms of a task when the plan was made."""
    margin: float
    """Margin of equivalence, in points."""
    step: int
    """Seeds from one analysis to the next, as requested."""
    control: str = ""
    """The arm that all others are compared with; empty: every pair is compared."""

    def text(self) -> str:
        """The content of the file, which also lists the level of each analysis for its readers."""
        spent = [self.alpha * weight for weight in self.weights]
        table = {"version": VERSION, "until": "resolved", **asdict(self), "alpha_per_analysis": spent}
        return json.dumps(table, indent=1) + "\n"

    def reached(self, seeds: int) -> int:
        """Seeds of the last analysis that the first `seeds` seeds of the plan allow; 0 where they allow
        none."""
        return max((size for size in self.analyses if size <= seeds), default=0)

    @property
    def options(self) -> tuple[str, ...]:
        """The command line options that request this plan."""
        seeds, step = str(len(self.seeds)), str(self.step)
        return ("--until", "resolved", "--most-seeds", seeds, "--step-seeds", step)

    @property
    def words(self) -> str:
        """The plan in a sentence."""
        levels = [f"{n} seeds {self.alpha * w:.2g}" for n, w in zip(self.analyses, self.weights, strict=True)]
        return (
            "Seeds are added by a plan that was fixed before the first interim analysis. Each analysis may "
            f"spend its share of the level {self.alpha:g}: at {', '.join(levels)}."
        )


def read_plan(folder: Path) -> InterimPlan | None:
    """The plan of an experiment; None where it has none. Raises LogError where the file is damaged."""
    path = formats.find_file(folder, FILE)
    return plan_of(formats.current_keys(FILE, read_json(path)), path) if path.exists() else None


def plan_of(table: Mapping[str, Any], path: Path) -> InterimPlan:
    """The plan that a table contains. Raises LogError if it does not contain one."""
    try:
        if table["version"] != VERSION:
            raise ValueError(f"version {table['version']}")
        plan = InterimPlan(
            tuple(map(int, table["seeds"])),
            tuple(map(int, table["analyses"])),
            tuple(map(float, table["weights"])),
            *(float(table["alpha"]), int(table["pairs"]), float(table["margin"]), int(table["step"])),
            str(table.get("control", "")),  # plans of earlier versions compare every pair
        )
        rising = list(plan.analyses) == sorted(set(plan.analyses)) and plan.analyses[-1] == len(plan.seeds)
        if not rising or len(plan.weights) != len(plan.analyses) or not sum(plan.weights) <= 1 + 1e-9:
            raise ValueError("analyses, seeds and weights do not fit each other")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise LogError(f"{path}: not a plan of interim analyses ({error}); restore the file") from error
    return plan
