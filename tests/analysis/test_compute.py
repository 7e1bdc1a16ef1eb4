"""Compute curves of an experiment: what is fitted, what is refused and why, what report and figure show."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.edits import edit_rows
from helpers.pages import drawing
from helpers.synthetic import Synthetic

from grpobench.analysis.kept import read
from grpobench.analysis.kept_tables import render
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.sigmoid import Sigmoid
from grpobench.analysis.topics.compute import (
    ComputeCurve,
    Trajectories,
    compute_table,
    fit_curve,
    fit_curves,
    trajectories,
)
from grpobench.analysis.topics.numbers import Numbers
from grpobench.runs import cli

DOCS = Path(__file__).parents[2] / "docs"
ALONG = np.arange(1.0, 13.0)
"""Twelve evaluations, of which six are in the first half of the compute."""


SHAPE = 0.02


def of(curve: Callable[[np.ndarray], np.ndarray], seeds: int = 4, noise: float = 0.01) -> Trajectories:
    """Seeds with a start of .2 that follow a curve with little noise."""
    rng = np.random.default_rng(7)
    accuracy = np.clip(curve(ALONG) + noise * rng.standard_normal((seeds, ALONG.size)), 0, 1)
    return Trajectories("t", "a", np.full(seeds, 0.2), accuracy, {"flops": np.tile(ALONG, (seeds, 1))})


def fitted(trajectories_of_arm: Trajectories) -> ComputeCurve:
    return fit_curve(trajectories_of_arm, "flops", SHAPE, np.random.default_rng(0))


EARLY = Sigmoid(0.2, 0.8, 2.0, 2.0)


def test_a_curve_past_its_bend_is_fitted_and_held_against_the_rest() -> None:
    curve = fitted(of(EARLY))
    assert curve.fit is not None and not curve.remark
    assert (curve.fitted, curve.held_out, curve.seeds, curve.start) == (6, 6, 4, pytest.approx(0.2))
    assert curve.fit.ceiling.low < 0.8 < curve.fit.ceiling.high
    assert curve.inside == 1 and curve.predicted.low < float(curve.accuracy[-1]) < curve.predicted.high
    assert curve.predicted.value == pytest.approx(EARLY([12.0])[0], abs=0.02)


@pytest.mark.parametrize(
    ("trajectories_of_arm", "reason"),
    [
        (of(EARLY, seeds=3), "too few seeds to say: 3 of 4"),
        (of(lambda x: np.full(x.size, 0.2)), "no gain in the fitted part: "),
        (
            of(lambda x: np.interp(x, [1, 3, 6], [0.3, 0.8, 0.5])),
            "points below its highest, and the curve cannot fall",
        ),
        (of(Sigmoid(0.2, 0.9, 2.0, 15.0)), "too short to say: ceiling from "),
        (
            of(lambda x: np.where(x < 6, 0.2, 0.2 + 0.8 * (x - 5) / 7), noise=0.001),
            "too short to say: the midpoint",
        ),
        (
            of(lambda x: 1 - 0.8 * np.exp(-((x / 4.5) ** 1.8))),
            "accuracy nears 100 % faster than the curve can",
        ),
        (
            dataclasses.replace(of(EARLY), obstacle="1 of 4 runs collapsed or diverged"),
            "1 of 4 runs collapsed or diverged",
        ),
    ],
    ids=["seeds", "gain", "fall", "ceiling", "midpoint", "bound", "collapse"],
)
def test_what_is_not_fitted_says_why(trajectories_of_arm: Trajectories, reason: str) -> None:
    curve = fitted(trajectories_of_arm)
    assert curve.fit is None and reason in curve.remark, curve.remark
    assert np.isnan(curve.inside)


def test_points_outside_the_band_are_counted_on_their_side() -> None:
    """A second rise after the fitted part: half of the points lie above, none below."""
    late = of(lambda x: EARLY(x) + np.where(x > 9, 0.15, 0.0))
    curve = fitted(late)
    assert curve.fit is not None and (curve.above, curve.below) == (3, 0)
    assert curve.inside == 0.5 and curve.remark == "3 of 6 points are outside the band: 3 above it, 0 below"


@pytest.mark.parametrize("first", [0.7, 0.2], ids=["before the first", "between the first and the second"])
def test_a_bend_between_two_evaluations_has_no_midpoint(first: float) -> None:
    curve = fitted(of(lambda x: np.where(x == 1, first, 0.7)))
    assert curve.fit is not None and curve.jumps
    assert curve.remark.endswith(
        "the bend lies between two evaluations, so that exponent and midpoint say nothing"
    )
    row = compute_table([curve]).rows[0]
    assert abs(float(row[2].split()[0]) - 70) < 1 and row[3:5] == ["–", "–"] and row[-2] == "6 of 6"


def test_what_comes_after_the_fitted_part_does_not_change_the_fit() -> None:
    trajectories_of_arm = of(EARLY)
    changed = trajectories_of_arm.accuracy.copy()
    changed[:, 6:] = 0.0
    other = fitted(dataclasses.replace(trajectories_of_arm, accuracy=changed))
    assert other.fit is not None and other.fit.curve == fitted(trajectories_of_arm).fit.curve  # type: ignore[union-attr]
    assert other.below == 6


# From run folders


def experiment(folder: Path, flops: bool = True, **changes: object) -> Path:
    """Two arms of four seeds, evaluated ten times, whose accuracy follows a curve over the steps. A token
    costs ppo twice the FLOPs."""
    defaults: dict[str, object] = {"arms": ("grpo", "ppo"), "tasks": ("arithmetic",), "seeds": (1, 2, 3, 4)}
    defaults |= {"steps": 40, "every": 4, "problems": 4, "test_problems": 8}
    root = Synthetic(**{**defaults, **changes}).write(folder)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)

    def follow(row: dict[str, Any], factor: float) -> None:
        name = "eval/validation/greedy/correct"
        if name in row:
            mean = Sigmoid(0.2, 0.8, 2.0, 7.0)([row["step"]])[0]
            row[name] = float(mean + 0.01 * rng.standard_normal())
        if flops and "cost/generated_tokens" in row:
            row["cost/flops"] = factor * row["cost/generated_tokens"]

    for path in sorted(root.glob("*/metrics.jsonl")):
        edit_rows(path, partial(follow, factor=2e6 if path.parent.name.startswith("ppo") else 1e6))
    return root


def test_report_and_figure_of_an_experiment(tmp_path: Path) -> None:
    root = experiment(tmp_path)
    with drawing("compute_curve"):
        assert cli.main(["report", str(root), "--format", "html,csv,json"]) == 0
    page = (root / "report" / "index.html").read_text()
    assert 'id="figure-compute_curve"' in page and 'id="table-compute_curves"' in page
    with (root / "report" / "tables" / "compute_curves.csv").open() as file:
        rows = {(row["arm"], row["axis"]): row for row in csv.DictReader(file)}
    assert {axis for _, axis in rows} == {"tokens", "flops", "seconds"} and len(rows) == 6
    tokens, flops = (float(rows["ppo", axis]["midpoint"]) for axis in ("tokens", "flops"))
    assert flops == pytest.approx(2e6 * tokens, rel=1e-4)
    content = json.loads((root / "report" / "report.json").read_text())
    assert [row["axis"] for row in content["tables"]["compute_curves"]][:3] == ["tokens", "flops", "seconds"]
    out = tmp_path / "figures"
    assert cli.main(["figure", "compute_curve", str(root), "--format", "svg", "--out", str(out)]) == 0
    svg = (out / "compute_curve.svg").read_text()
    assert "GRPO on arithmetic: ceiling " in svg and "at the end predicted" in svg


def test_older_logs_lack_flops_and_say_so(tmp_path: Path) -> None:
    numbers = Numbers(load(experiment(tmp_path, flops=False)))
    assert {curve.axis for curve in numbers.compute} == {"tokens", "seconds"}
    table = compute_table(numbers.compute)
    assert "These logs lack FLOPs" in table.note and "midpoint, FLOPs" not in table.header
    assert numbers.compute[0].fit is not None


def test_an_arm_whose_runs_all_diverged_has_a_row(tmp_path: Path) -> None:
    states = {("ppo", "arithmetic", seed): ("diverged", 20) for seed in (1, 2, 3, 4)}
    numbers = Numbers(load(experiment(tmp_path, states=states)))
    (row,) = [row for row in compute_table(numbers.compute).rows if row[1] == "ppo"]
    assert row[-1].startswith("4 of 4 runs collapsed or diverged") and set(row[2:-1]) == {"–"}
    assert FIGURES["compute_curve"](numbers) is not None


def test_one_reason_for_all_arms_is_one_row(tmp_path: Path) -> None:
    numbers = Numbers(load(experiment(tmp_path, steps=10, every=5)))
    table = compute_table(numbers.compute)
    assert [row[:2] for row in table.rows] == [["all", "all"]] and len(table.frame) == 6
    assert table.rows[0][-1] == "too few evaluations to say: not 4 to fit and 2 to hold out"
    assert FIGURES["compute_curve"](numbers) is None


def test_rollouts_that_were_recorded_cost_no_tokens(tmp_path: Path) -> None:
    """Tokens that do not grow are no axis; FLOPs and seconds are."""
    root = experiment(tmp_path)
    name = "cost/generated_tokens"
    for path in root.glob("grpo-*/metrics.jsonl"):
        edit_rows(path, lambda row: row.update({name: 500.0} if name in row else {}))
    numbers = Numbers(load(root))
    all_trajectories = trajectories(numbers.experiment, numbers.runs)
    assert [set(trajectories_of_arm.compute) for trajectories_of_arm in all_trajectories] == [
        {"flops", "seconds"},
        {"tokens", "flops", "seconds"},
    ]
    assert len(fit_curves(all_trajectories, SHAPE)) == 5
    (row,) = [row for row in compute_table(numbers.compute).rows if row[1] == "grpo"]
    assert row[compute_table(numbers.compute).header.index("midpoint, generated tokens")] == "–"


def test_a_kept_table_gives_the_same_curves(tmp_path: Path) -> None:
    """Compute is kept with six decimals, which the cells do not show."""
    root = experiment(tmp_path, states={("ppo", "arithmetic", 2): ("diverged", 20)})
    assert cli.main(["keep", str(root), "--to", str(tmp_path / "kept")]) == 0
    stored_table = read(tmp_path / "kept" / "synthetic.json")
    made = compute_table(Numbers(load(root)).compute)
    lines = render(stored_table, "compute", {})
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:-2]]
    assert cells == [list(row[: made.columns]) for row in made.rows] and cells[0][2] != "–"
    assert lines[-1] == "1 of 2 arms have a curve; 5 of their 5 held-out points lie in the band (100%)."
    assert render(stored_table, "compute", {"of": "why"}) == [
        "- arithmetic, ppo: 1 of 4 runs collapsed or diverged, and the curve cannot fall"
    ]


def test_a_table_that_was_kept_without_compute_says_so() -> None:
    with pytest.raises(LogError, match="compute of headtohead-nano: lacks 'collapsed_at'"):
        render(read(DOCS / "results" / "earlier" / "headtohead-nano.json"), "compute", {})
