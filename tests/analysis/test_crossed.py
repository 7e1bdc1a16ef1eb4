"""Intervals over seeds × problems, and verdicts at equal budgets.

Locked here: without differences between problems the interval is SciPy's paired t over seeds; with one more
source of chance it is wider; it covers what it says; copies of problems do not narrow it; axes stand apart.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.edits import edit_rows
from helpers.synthetic import Synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.report.facts import gather
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.crossed import components, crossed_interval
from grpobench.analysis.statistics.intervals import Estimate, Floats
from grpobench.analysis.topics.budgets import mean_at_equal_budgets, runs_at_equal_budgets


def two_arms(folder: Path, **changes: Any) -> Path:
    """Six seeds of two arms on one task, evaluated before, halfway and at the end."""
    small = {"steps": 8, "every": 4, "problems": 8, "test_problems": 8, "tasks": ("arithmetic",)}
    return Synthetic(**{**small, "arms": ("a", "b"), "seeds": range(1, 7), **changes}).write(folder)


def drawn(seeds: int, problems: int, deviations: tuple[float, float, float], seed: int) -> Floats:
    """(seeds, problems): seed, problem and rest, each normal with its deviation."""
    rng = np.random.default_rng(seed)
    by_seed, by_problem, residual = deviations
    return np.asarray(
        by_seed * rng.standard_normal((seeds, 1))
        + by_problem * rng.standard_normal((1, problems))
        + residual * rng.standard_normal((seeds, problems))
    )


def test_mean_squares_by_hand() -> None:
    # rows means 2, 3; column means 1, 4, 2.5; grand 2.5; rest ∓.5 … of [[1, 3, 2], [1, 5, 3]]
    mean_squares = components([[1, 3, 2], [1, 5, 3]])
    assert mean_squares.between_seeds == pytest.approx(3 * 2 * 0.25)
    assert mean_squares.between_problems == pytest.approx(2 * (1.5**2 + 1.5**2) / 2)
    assert mean_squares.residual == pytest.approx((0.25 + 0.25 + 0.25 + 0.25) / 2)
    with pytest.raises(ValueError, match="two seeds and two problems"):
        components([[1, 2]])


def test_identical_problems_reproduce_scipy_paired_t_interval() -> None:
    first, second = np.array([0.6, 0.7, 0.5, 0.65]), np.array([0.5, 0.62, 0.48, 0.5])
    table = np.repeat((first - second)[:, None], 20, axis=1)
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    interval = crossed_interval(table)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(2, 30), st.integers(0, 10_000))
def test_standard_error_is_at_least_that_over_seeds_and_sign_symmetric(
    seeds: int, problems: int, seed: int
) -> None:
    table = drawn(seeds, problems, (0.02, 0.1, 0.3), seed)
    interval, mirrored = crossed_interval(table), crossed_interval(-table)
    assert (mirrored.low, mirrored.high) == pytest.approx(
        (-interval.high, -interval.low), rel=1e-9, abs=1e-12
    )
    parts = components(table)
    over_seeds = math.sqrt(parts.between_seeds / table.size)
    rows = table.mean(axis=1)
    assert over_seeds == pytest.approx(rows.std(ddof=1) / math.sqrt(seeds), rel=1e-9)
    # the t quantile of infinitely many degrees is the smallest that there is
    assert interval.high - interval.low >= 2 * 1.9599 * over_seeds * (1 - 1e-9)


@pytest.mark.parametrize(
    ("seeds", "problems", "deviations"),
    [(3, 64, (0.02, 0.1, 0.4)), (8, 64, (0.02, 0.1, 0.4)), (5, 64, (0, 0, 0.4))],
)
def test_the_interval_covers_the_truth_as_often_as_it_says(
    seeds: int, problems: int, deviations: tuple[float, float, float]
) -> None:
    hits = 0
    for seed in range(800):
        interval = crossed_interval(drawn(seeds, problems, deviations, seed))
        hits += interval.low <= 0 <= interval.high
    # three errors of .95 over 800 are .023; above, by components that count as 0 where they are negative
    assert 0.927 <= hits / 800 <= 0.99


def test_copies_of_problems_do_not_narrow_the_interval() -> None:
    table = drawn(4, 12, (0.02, 0.1, 0.3), 1)
    once = crossed_interval(table)
    copied = crossed_interval(np.repeat(table, 10, axis=1), [f"t{i}" for i in range(12) for _ in range(10)])
    assert (copied.low, copied.high) == pytest.approx((once.low, once.high), rel=1e-9)
    naive = crossed_interval(np.repeat(table, 10, axis=1))
    assert naive.high - naive.low < 0.9 * (once.high - once.low)


def test_one_seed_has_no_interval() -> None:
    assert math.isnan(crossed_interval([[0.0, 1.0, 0.0]]).low)
    assert math.isnan(crossed_interval(np.zeros((0, 0))).value)


def test_where_the_two_disagree_the_comparison_says_so() -> None:
    better = {"A": {s: 0.6 + s / 100 for s in range(6)}, "B": dict.fromkeys(range(6), 0.5)}
    (pair,) = compare("t", better)
    assert "reaches 0" in pair.beside(64, Estimate(0.12, -0.01, 0.25)).disagrees
    assert not pair.beside(64, Estimate(0.12, 0.01, 0.25)).disagrees
    assert not pair.beside(0, Estimate(math.nan, math.nan, math.nan)).disagrees
    (pair,) = compare("t", {"A": better["B"], "B": better["B"]})
    assert "beyond the margin" in pair.beside(64, Estimate(0.0, -0.05, 0.05)).disagrees
    assert not pair.beside(64, Estimate(0.0, -0.01, 0.01)).disagrees
    (pair,) = compare("t", {arm: {s: by_seed[s] for s in range(3)} for arm, by_seed in better.items()})
    with_problems = pair.beside(64, Estimate(0.12, 0.01, 0.25))
    assert "excludes 0" in with_problems.disagrees and with_problems.turned().crossed_low == -0.25


def test_report_crosses_evaluation_answers_and_says_where_they_disagree(tmp_path: Path) -> None:
    root = two_arms(
        tmp_path,
        test_problems=24,
        states={("b", "arithmetic", 2): ("diverged", 4)},
        accuracy=lambda arm, task, seed: 0.6 + (0.08 + 0.001 * seed) * (arm == "a"),
    )
    facts = gather(load(root))
    (pair,) = facts.numbers.compared
    answers = {
        arm: np.array([[share(root, arm, seed).get(f"p{i}", 0.0) for i in range(24)] for seed in range(1, 7)])
        for arm in ("a", "b")
    }
    assert not answers["b"][1].any()  # the run that diverged is wrong everywhere
    expected = crossed_interval(answers["a"] - answers["b"])
    assert pair.problems == 24 and pair.verdict == "better"
    assert (pair.crossed, pair.crossed_low) == pytest.approx((expected.value, expected.low), abs=1e-12)
    says = "In 1 of 1 comparisons, resampling problems as well as seeds changes the conclusion (1 of them"
    lines = [warning.lines[0] for warning in facts.warnings if warning.title.startswith(says)]
    assert bool(lines) == bool(pair.disagrees) == (expected.low <= 0)
    assert all(line.startswith("a − b on arithmetic (better): the interval over seeds") for line in lines)


def share(root: Path, arm: str, seed: int) -> dict[str, float]:
    """The score of each test problem in the greedy evaluation after training."""
    lines = (root / f"{arm}-arithmetic-s{seed}" / "eval.jsonl").read_text().splitlines()
    rows = [
        row
        for row in map(json.loads, lines)
        if row["step"] and (row["split"], row["mode"]) == ("test", "greedy")
    ]
    return {row["problem"]: row["scores"]["correct"] for row in rows}


def test_verdicts_at_equal_budgets_depend_on_the_axis_where_they_do(tmp_path: Path) -> None:
    root = two_arms(tmp_path, accuracy=lambda arm, task, seed: 0.6 + 0.001 * seed * (arm == "a"))
    # Each step of a takes 1.5 times the tokens that it took: at equal tokens it is behind.
    name = "cost/generated_tokens"
    for seed in range(1, 7):
        path = root / f"a-arithmetic-s{seed}" / "metrics.jsonl"
        edit_rows(path, lambda row: row.update({name: 1.5 * row[name]} if name in row else {}))
    facts = gather(load(root))
    (on_axes,) = facts.numbers.on_axes
    assert [on_axes.comparisons[axis].verdict for axis in ("updates", "tokens")] == [
        "better",
        "worse",
    ] and on_axes.depends
    assert (
        "a compared with b on arithmetic is better at equal updates, worse at equal generated tokens"
        in on_axes.sentence
    )
    assert on_axes.sentence in facts.tables["axes"].note and facts.tables["axes"].rows[0][-1] == "yes"
    warned = [warning for warning in facts.warnings if list(warning.lines) == [on_axes.sentence]]
    assert "what is held equal (updates, generated tokens or seconds) for 1 of 1 pairs" in warned[0].title


def test_equal_seconds_interpolate_and_never_take_the_untrained_policy(tmp_path: Path) -> None:
    experiment = load(two_arms(tmp_path, arms=("fast", "slow")))

    def at(seconds: Mapping[str, float]) -> tuple[pd.DataFrame, Experiment]:
        """The verdicts' numbers if a step takes so long, and accuracy is 0, .4 and .6 at 0, 4 and 8 steps."""
        metrics = experiment.metrics.copy()
        steps = metrics["metric"] == "time/step"
        metrics.loc[steps, "value"] = metrics.loc[steps, "arm"].map(seconds)
        graded = metrics["metric"] == "eval/validation/greedy/correct"
        metrics.loc[graded, "value"] = metrics.loc[graded, "step"].map({0: 0.0, 4: 0.4, 8: 0.6})
        timed = dataclasses.replace(experiment, metrics=metrics)
        rows = runs_at_equal_budgets(timed, axes=["seconds"]).groupby("arm")["accuracy"].agg(["min", "max"])
        return rows, timed

    rows, _ = at({"fast": 1.0, "slow": 1.6})  # 8 s are 5 of slow's steps: a quarter of the way from .4 to .6
    assert rows.loc["slow"].tolist() == pytest.approx([0.45, 0.45])
    assert rows.loc["fast"].tolist() == pytest.approx([0.6, 0.6])
    rows, timed = at({"fast": 1.0, "slow": 2.5})  # slow is first evaluated after 10 s
    assert rows.loc["slow"].isna().all() and rows.loc["fast"].tolist() == pytest.approx([0.6, 0.6])
    facts = gather(timed)
    (on_axes,) = facts.numbers.on_axes
    assert "seconds" not in on_axes.comparisons and "updates" in on_axes.comparisons
    shown = next(row for row in facts.tables["equal_budgets"].rows if "seconds" in row[1])
    assert shown[2:] == ["60.0", "–"]


def test_a_run_that_diverged_before_the_budget_counts_as_nothing_there(tmp_path: Path) -> None:
    states = {("a", "arithmetic", 1): ("diverged", 5)}
    experiment = load(two_arms(tmp_path, seeds=(1, 2), states=states, accuracy=lambda *_: 0.6))
    accuracy_by_seed = (
        runs_at_equal_budgets(experiment)
        .query("axis == 'updates' and arm == 'a'")
        .set_index("seed")["accuracy"]
    )
    assert accuracy_by_seed[1] == 0 and accuracy_by_seed[2] == pytest.approx(
        0.6
    )  # seed 1 was last evaluated after 4 of 8 updates
    mean = mean_at_equal_budgets(experiment).query("axis == 'updates' and arm == 'a'")["accuracy"].iloc[0]
    assert mean == pytest.approx(0.3)
