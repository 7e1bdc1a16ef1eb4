"""Seeds are added by a plan that stands before the first look: resumed as it is, never replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import HEAD, recipe, recorder

from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.interim import read_plan
from grpobench.runs.cli import main
from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.experiment.interim import demand_unplanned, plan_looks, run_until, with_seeds
from grpobench.runs.runfolder.folder import FolderError
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.tools.strict import ConfigError

SEEDS = "seeds = [0, 1, 2, 3, 4, 5, 6]\n"
STAND_IN: dict[str, Any] = {"execute": "helpers.stand_ins.graded", "console": recorder()}


pytestmark = pytest.mark.usefixtures("stands", "warm")


def launch(parsed_recipe: Recipe, out: Path, most: int, step: int) -> ExperimentResult:
    return run_until(parsed_recipe, out, plan_looks(parsed_recipe, most, step), **STAND_IN)


def seeds_of(outcome: ExperimentResult) -> set[int]:
    return {run.config.seed for run in outcome.runs}


def test_seeds_are_added_until_every_pair_has_a_verdict_and_no_longer(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "fine1", "fine2", steps=1, head=SEEDS)
    plan = plan_looks(parsed_recipe, 11, 2)
    assert plan.analyses == (7, 9, 11)  # 2/128 is within (7/11)² · .05
    outcome = launch(parsed_recipe, tmp_path, 11, 2)
    assert outcome.code == 0 and seeds_of(outcome) == set(range(7))  # 10 points at once: one look is enough
    folder = tmp_path / "m"
    assert read_plan(folder) == plan
    plan_table = json.loads((folder / "interim.json").read_text())
    assert plan_table["alpha_per_analysis"] == pytest.approx([0.05 * w for w in plan.weights])
    # the same again starts nothing; another plan is refused, and so is a command without one
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}
    assert seeds_of(launch(parsed_recipe, tmp_path, 11, 2)) == set(range(7))
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")} == before
    with pytest.raises(
        FolderError, match=r"--most-seeds 11 --step-seeds 2.*it was fixed before the first analysis"
    ):
        launch(parsed_recipe, tmp_path, 12, 2)
    with pytest.raises(FolderError, match="this folder adds seeds by a plan; continue with --until resolved"):
        demand_unplanned(folder)
    other = recipe(tmp_path, "fine1", "fine2", steps=1, head=SEEDS + "margin = 1.0\n")
    with pytest.raises(FolderError, match="margin of 2 points"):
        launch(other, tmp_path, 11, 2)


def test_equal_arms_end_as_equivalent_and_a_damaged_plan_is_named(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "fine2", "fine4", steps=1, head=SEEDS)
    assert seeds_of(launch(parsed_recipe, tmp_path, 9, 1)) == set(range(7))  # 1/2^7 over (7/9)² of .05
    (tmp_path / "m" / "interim.json").write_text("{}")
    with pytest.raises(LogError, match=r"interim\.json: not a plan of interim analyses"):
        launch(parsed_recipe, tmp_path, 9, 1)


def test_looks_continue_while_pair_is_unresolved_and_after_interruption(tmp_path: Path) -> None:
    parsed_recipe = recipe(
        tmp_path, "fine2", "fine3", steps=1, head=SEEDS
    )  # 5 points apart, in turn above and below
    assert plan_looks(parsed_recipe, 9, 1).analyses == (7, 8, 9)
    assert seeds_of(launch(parsed_recipe, tmp_path, 9, 1)) == set(range(9))
    gone = tmp_path / "m" / "fine3-sums-s8"
    shutil.rmtree(gone)  # what an interruption took away is run again
    outcome = launch(parsed_recipe, tmp_path, 9, 1)
    assert outcome.code == 0 and seeds_of(outcome) == set(range(9)) and (gone / "status.json").exists()


def test_a_plan_is_refused_where_results_were_there_before_it(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "fine1", "fine2", steps=1, head="seeds = [0, 1]\n")
    assert run_experiment(parsed_recipe, tmp_path, **STAND_IN).code == 0
    with pytest.raises(FolderError, match=r"4 runs already have results.*fixed before the first run"):
        launch(parsed_recipe, tmp_path, 10, 2)
    assert not (tmp_path / "m" / "interim.json").exists()


def test_a_run_that_crashes_stops_the_looks(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "fine1", "raise", steps=1, head=SEEDS)
    outcome = launch(parsed_recipe, tmp_path, 9, 2)
    assert outcome.code == 70 and seeds_of(outcome) == set(range(7))


@pytest.mark.parametrize(
    ("most", "step", "message"), [(5, 2, "cannot reach a verdict on 1 pair"), (1, 2, "at least the")]
)
def test_a_plan_that_cannot_decide_is_refused(tmp_path: Path, most: int, step: int, message: str) -> None:
    parsed_recipe = recipe(tmp_path, "fine1", "fine2", head="seeds = [0, 1]\n")
    with pytest.raises(ConfigError, match=message):
        plan_looks(parsed_recipe, most, step)
    with pytest.raises(ConfigError, match="needs arms to compare"):
        plan_looks(recipe(tmp_path, "fine1"), 9, 2)


def test_more_seeds_are_the_next_numbers_and_nothing_else_changes(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "fine1", "fine2", head="seeds = [3, 1]\n")
    plan = plan_looks(parsed_recipe, 8, 2)
    assert plan.seeds == (3, 1, 4, 5, 6, 7, 8, 9)
    grown = with_seeds(parsed_recipe, plan.seeds)
    path = tmp_path / "m.toml"
    path.write_text(path.read_text().replace("[3, 1]", str(list(plan.seeds))))
    assert grown.configs == read_recipe(str(path)).configs


def test_the_options_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.toml").write_text(HEAD + '[[arm]]\nalgorithm = "plain"\nname = "a"\n')
    assert main(["run", str(tmp_path / "m.toml"), "--until", "resolved", "--dry-run"]) == 2
    assert "--most-seeds N" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "m.toml"), "--step-seeds", "3", "--dry-run"]) == 2
