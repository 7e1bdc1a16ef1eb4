"""Guards: a gain that costs more than the recipe allows is on the first screen, and in the JSON."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from helpers.edits import edit, edit_rows
from helpers.pages import words
from helpers.synthetic import Synthetic

from grpobench.analysis.report.facts import Facts, as_json, gather
from grpobench.analysis.report.headline import describe_headline
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.guards import measure_guards
from grpobench.analysis.topics.parts import Shown
from grpobench.analysis.topics.warnings import Gravity

GUARD = {"also:letters": -2.0, "loss:text": 0.05, "format": -2.0}
COST = {"a": (-0.1, 0.3, -0.05), "b": (0.01, 0.04, -0.01)}
"""By arm: the mean change of accuracy, loss and format."""
NOISE = (-0.01, -0.005, 0.0, 0.0, 0.005, 0.01)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Six seeds of two arms that gain 30 points; training costs `COST` with `NOISE` over seeds."""
    made = Synthetic(
        arms=("a", "b"), tasks=("sums",), seeds=range(6), steps=4, every=2, gain={"a": 0.3, "b": 0.3}
    )
    root = made.write(tmp_path_factory.mktemp("guards"))
    for log in root.glob("*/metrics.jsonl"):
        arm, _, seed = log.parent.name.split("-")

        def pay(row: dict[str, Any], arm: str = arm, noise: float = NOISE[int(seed[1:])]) -> None:
            if row["step"] in (0, 4):
                changes = [(change + noise) * (row["step"] > 0) for change in COST[arm]]
                row["also/letters/test/greedy/correct"] = 0.8 + changes[0]
                row["also/letters/validation/greedy/correct"] = 0.1  # test decides
                row["also/text/test/likelihood/loss"] = 3.0 + changes[1]
                row["eval/test/greedy/format"] = 0.9 + changes[2]

        edit_rows(log, pay)
    edit(root / "experiment.json", lambda described: described.update(guard=GUARD))
    return load(root)


@pytest.fixture(scope="module")
def facts(experiment: Experiment) -> Facts:
    return gather(experiment)


def test_changes_are_in_points_and_nats_with_their_interval(experiment: Experiment) -> None:
    """By hand: the noise has mean 0 and SD .0071; half the interval is t(5) 2.571 · .0071/√6 = .0074."""
    changes = {(change.arm, change.guard): change for change in measure_guards(experiment)}
    assert {key: change.change for key, change in changes.items()} == pytest.approx(
        {
            ("a", "also:letters"): -10.0,
            ("a", "loss:text"): 0.3,
            ("a", "format"): -5.0,
            ("b", "also:letters"): 1.0,
            ("b", "loss:text"): 0.04,
            ("b", "format"): -1.0,
        }
    )
    loss = changes["a", "loss:text"]
    assert (loss.low, loss.high) == pytest.approx((0.3 - 0.0074, 0.3 + 0.0074), abs=1e-4)
    assert {key for key, change in changes.items() if change.is_broken} == {("a", guard) for guard in GUARD}


def test_the_first_screen_says_what_a_gain_cost(facts: Facts) -> None:
    clause = "more is lost than guards allow (a on sums: accuracy on letters −10.0 points"
    assert "gain" in facts.headline and clause in facts.headline
    first = facts.warnings[0]
    assert first.title == (
        "3 of 6 guards are broken: also:letters by a on sums, loss:text by a on sums, format by a on sums"
    )
    assert first.gravity == Gravity.DOUBT and len(first.lines) == 3
    assert first.lines[1] == (
        "a on sums: loss on text +0.300 nats/token (+0.293 to +0.307, 6 seeds); allowed: 0.05"
    )
    page = words(facts)
    assert clause in page and page.index(first.title) < page.index("comparisons resolved")


def test_the_json_has_the_headline_the_warning_and_every_guard(facts: Facts) -> None:
    content = as_json(facts)
    assert "more is lost than guards allow" in content["headline"]
    assert content["warnings"][0]["title"].startswith("3 of 6 guards are broken")
    assert [row["broken"] for row in content["guards"]] == [row["arm"] == "a" for row in content["guards"]]
    assert content["guards"][0]["metric"] == "also/letters/test/greedy/correct"
    assert [row[-1] for row in facts.tables["guards"].rows].count("holds") == 3


def test_a_guard_that_no_run_measured_is_a_fault(experiment: Experiment) -> None:
    facts = gather(replace(experiment, guard={"also:walk": -2.0, "also:letters": -20.0}))
    (warning,) = [entry for entry in facts.warnings if "guard" in entry.title]
    assert warning.title == "2 of 4 guards could not be measured"
    assert warning.lines == ["also:walk: a on sums", "also:walk: b on sums"]
    assert warning.gravity == Gravity.FAULT and "guards allow" not in facts.headline
    assert {row[-1] for row in facts.tables["guards"].rows} == {"not measured", "holds"}


def test_calibration_is_guarded_on_both_sides(experiment: Experiment) -> None:
    """a goes from 8 points underconfident to 3 overconfident, b from 2 underconfident to 9: −5 and +7."""
    name, ends = "eval/test/sampled/overconfidence", {"a": (-0.08, 0.03), "b": (-0.02, 0.09)}
    rows = [
        {"arm": run.arm, "task": run.task, "seed": run.seed, "step": step, "metric": name, "value": value}
        for run in experiment.runs
        for step, value in zip((0, 4), ends[run.arm], strict=True)
    ]
    metrics = pd.concat([experiment.metrics.astype({"metric": str}), pd.DataFrame(rows)]).astype(
        {"metric": "category"}
    )
    guarded = replace(experiment, metrics=metrics, guard={"calibration": 5.0})
    changes = measure_guards(guarded)
    assert [(change.change, change.is_broken) for change in changes] == [
        (pytest.approx(-5.0), False),
        (pytest.approx(7.0), True),
    ]
    assert changes[1].words == "over- or underconfidence +7.0 points"


def test_a_run_s_own_task_and_an_experiment_without_guards_have_none(experiment: Experiment) -> None:
    assert measure_guards(replace(experiment, guard={"also:sums": -2.0})) == []
    plain = gather(replace(experiment, guard={}))
    assert "guards" not in plain.tables and not any("guard" in entry.title for entry in plain.warnings)


def test_one_seed_has_no_interval(experiment: Experiment) -> None:
    metrics = experiment.metrics[experiment.metrics["seed"] == 0]
    runs = tuple(run for run in experiment.runs if run.seed == 0)
    first = measure_guards(replace(experiment, metrics=metrics, runs=runs, seeds=(0,)))[0]
    assert first.seeds == 1 and first.change == pytest.approx(-11.0) and math.isnan(first.low)


def test_the_bound_itself_holds(experiment: Experiment) -> None:
    (first, _) = measure_guards(replace(experiment, guard={"also:letters": -10.5}))
    assert not first.is_broken and not replace(first, change=-10.5).is_broken
    assert replace(first, change=-10.6).is_broken
    assert replace(first, guard="loss:text", bound=0.1, change=0.11).is_broken
    assert not replace(first, change=math.nan).is_broken


def test_runs_without_a_result_are_left_out(experiment: Experiment) -> None:
    """A run that is not finished has lost less than it will, and an arm without runs cannot break a guard."""
    runs = tuple(
        replace(run, state="running") if run.arm == "b" or run.seed == 0 else run for run in experiment.runs
    )
    changes = measure_guards(replace(experiment, runs=runs))
    assert {(change.arm, change.seeds) for change in changes} == {("a", 5)}


def test_figures_call_a_guarded_arm_by_its_label(facts: Facts) -> None:
    labeled = facts.numbers.showing(Shown(labels={"a": "first", "sums": "letters"})).labeled
    assert "(first on letters: accuracy on letters −10.0 points" in describe_headline(labeled)
