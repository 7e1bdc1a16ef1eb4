"""The library's labels and seeds, `library.toml` in this folder, and its runs through the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from grpobench.analysis.calibration import table
from grpobench.analysis.calibration.scores import Case, Library
from grpobench.analysis.record import as_text
from grpobench.analysis.runfolder.load import load
from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.tools import files
from grpobench.tasks.data import bounded

FILE = Path(__file__).with_name("library.toml")


@dataclass(frozen=True)
class PlannedArms:
    """What is to be run: arms that have the same seeds together."""

    library: Library
    recipe: str
    """Its name."""
    seeds: Mapping[str, int]
    """Arm -> how many seeds, from `first` on."""
    first: int

    def recipes(self) -> list[Recipe]:
        """One for each number of seeds; all are parts of one experiment."""
        counts = sorted(set(self.seeds.values()))
        return [
            read_recipe(
                self.recipe,
                [
                    f"arms={','.join(arm for arm, seed_count in self.seeds.items() if seed_count == count)}",
                    f"seeds={list(range(self.first, self.first + count))}",
                ],
            )
            for count in counts
        ]


def planned() -> PlannedArms:
    """The library as `FILE` says."""
    table = bounded.read_toml(FILE)
    rows = table["case"]
    cases = [case({name: value for name, value in row.items() if name != "seeds"}) for row in rows]
    tried = {
        kind: {name: tuple(map(float, values)) for name, values in fields.items()}
        for kind, fields in table["tried"].items()
    }
    library = Library(tuple(cases), table["pool"], table["set_on"], tried)
    seeds = {row["arm"]: row.get("seeds", table["seeds"]) for row in rows}
    return PlannedArms(library, table["recipe"], seeds, table["first_seed"])


def case(row: Mapping[str, Any]) -> Case:
    """One entry of the file."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
    }
    return Case(**fields)


COMMAND = "grpobench calibrate"


def calibrate(
    out: Path, workers: int | None, kept_path: Path | None = None
) -> tuple[ExperimentResult, dict[str, Any] | None]:
    """Run the library in `out`, and measure how often detectors and verdicts are wrong; None in the place of
    the numbers where runs have no result. The numbers are written to the file `kept_path`, if given. Raises
    LogError for damaged logs."""
    plan = planned()
    outcome = run(plan, out, workers)
    if outcome.code:
        return outcome, None
    content = table.calibrate(load(outcome.folder), plan.library, COMMAND)
    if kept_path is not None:
        files.write_atomic(kept_path, as_text(content).encode())
    return outcome, content


def run(plan: PlannedArms, out: Path, workers: int | None) -> ExperimentResult:
    """Every run that has no result yet, in one folder, told of on the standard error; the outcome of the
    first part that is not whole, else of the last."""
    outcomes: list[ExperimentResult] = []
    for recipe in plan.recipes():
        outcomes.append(run_experiment(recipe, out, workers, console=Console(stderr=True), try_code=False))
        if outcomes[-1].code:
            break
    return outcomes[-1]
