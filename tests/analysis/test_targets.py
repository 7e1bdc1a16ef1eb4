"""Targets: what runs spend until validation accuracy reaches a level, with censored runs, by hand."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers.findings import finding, kept_again, question, register
from helpers.synthetic import Synthetic
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.figures.drawing import svg_text
from grpobench.analysis.findings import description
from grpobench.analysis.findings.figures import axis_words, draw_arms
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.outcomes import horizons_of, values_of
from grpobench.analysis.findings.record import part_of, record_of
from grpobench.analysis.findings.result import as_row
from grpobench.analysis.findings.two_parts import divisions
from grpobench.analysis.measure import Measure
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.facts import gather
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.targets import lifetimes_until, target_pairs_table, targets_table
from grpobench.runs import cli

A1, A2, B1, B2 = ("a", "sums", 1), ("a", "sums", 2), ("b", "sums", 1), ("b", "sums", 2)
UPDATES = "reach:0.6:updates"
TOKENS = {"a": 100, "b": 50}
"""That an arm generates in an update."""
CURVES: Mapping[Key, Sequence[float]] = {
    A1: (0.3, 0.6, 0.7),
    A2: (0.3, 0.5, 0.6),
    B1: (0.3, 0.5, 0.5),
    B2: (0.3, 0.5),
}
"""Validation accuracies at steps 0, 2 and 4. The last run diverges at step 2."""


def write(
    folder: Path, curves: Mapping[Key, Sequence[float]], states: Mapping[Key, tuple[str, int]] | None = None
) -> Path:
    """Runs of four updates with these accuracies; a second takes each."""
    tasks = tuple(dict.fromkeys(task for _, task, _ in curves))
    seeds = tuple(dict.fromkeys(seed for _, _, seed in curves))
    made = Synthetic(arms=("a", "b"), tasks=tasks, seeds=seeds, steps=4, states=states or {}, name="f-nano")
    root = made.write(folder)
    for (arm, task, seed), curve in curves.items():
        rows = [{"step": step, "reward/mean": 0.5} for step in range(2 * len(curve) - 1)]
        for index, accuracy in enumerate(curve):
            rows[2 * index] |= {f"eval/{split}/greedy/correct": accuracy for split in ("validation", "test")}
        for row in rows[1:]:
            row |= {"cost/generated_tokens": TOKENS[arm] * row["step"], "time/step": 1.0}
        run = root / f"{arm}-{task}-s{seed}"
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "eval.jsonl").write_text("")
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("targets"), CURVES, {B2: ("diverged", 2)})


@pytest.fixture(scope="module")
def experiment(root: Path) -> Experiment:
    return replace(load(root), targets=(0.6,))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Four finished runs, whose metrics a test replaces."""
    return load(write(tmp_path_factory.mktemp("finished"), dict.fromkeys(CURVES, (0.3, 0.5, 0.5))))


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Six seeds in which a reaches .6 at the second update and b never does, for half of the tokens."""
    levels = {"a": (0.3, 0.7, 0.7), "b": (0.3, 0.5, 0.5)}
    curves = {(arm, "sums", seed): levels[arm] for arm in levels for seed in range(6)}
    return replace(load(write(tmp_path_factory.mktemp("six"), curves)), targets=(0.6,))


def test_first_evaluation_at_the_level_counts_and_all_others_are_censored(experiment: Experiment) -> None:
    values, horizons = values_of(experiment, UPDATES, {}), horizons_of(experiment, UPDATES)
    assert values == pytest.approx({A1: 2, A2: 4, B1: 4, B2: 4}, rel=1e-6)
    # The run that is there with its last update has reached the level, and those that never are have not.
    assert {run: values[run] < horizons[run] for run in values} == {A1: True, A2: True, B1: False, B2: False}


def test_all_runs_have_the_budget_of_the_cheapest_finished_one(experiment: Experiment) -> None:
    """b spends 200 tokens in four updates; a reaches the level at 200 and 400."""
    values = values_of(experiment, "reach:0.6:tokens", {})
    assert values == pytest.approx({A1: 200, A2: 200, B1: 200, B2: 200}, rel=1e-6)
    horizons = horizons_of(experiment, "reach:0.6:tokens")
    assert [run for run in values if values[run] < horizons[run]] == [A1]
    assert values_of(experiment, "reach:0.3:seconds", {}) == dict.fromkeys(values, 0.0)  # before training
    assert all(map(math.isnan, values_of(experiment, "reach:0.6:flops", {}).values()))  # not logged


def test_a_target_may_be_chosen_after_the_runs(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe has none. Both seeds of a reach .6 and none of b does."""
    shutil.copytree(root, tmp_path / root.name)
    words = ("report", str(tmp_path / root.name), "--format", "csv,json")
    table = tmp_path / root.name / "report/tables/targets.csv"
    assert cli.main([*words]) == 0 and not table.exists()
    assert cli.main([*words, "--target", "0.6", "--target", "0.5"]) == 0
    reached = {(row.level, row.arm): (row.reached, row.runs) for row in pd.read_csv(table).itertuples()}
    assert reached == {(0.6, "a"): (2, 2), (0.6, "b"): (0, 2), (0.5, "a"): (2, 2), (0.5, "b"): (2, 2)}
    capsys.readouterr()
    assert cli.main([*words, "--target", "60"]) == 2
    assert "targets: must be shares above 0 and at most 1, such as 0.6, not 60" in capsys.readouterr().err


@given(
    st.lists(st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7]), min_size=2, max_size=6), min_size=4, max_size=4),
    st.sampled_from([0.3, 0.5]),
)
def test_a_higher_level_is_never_reached_sooner(
    finished: Experiment, curves: list[list[float]], level: float
) -> None:
    frame = pd.DataFrame(
        [
            {"arm": arm, "task": task, "seed": seed, "step": step, "metric": name, "value": value}
            for (arm, task, seed), curve in zip(CURVES, curves, strict=True)
            for step, accuracy in enumerate(curve)
            for name, value in (
                ("eval/validation/greedy/correct", accuracy),
                ("cost/generated_tokens", TOKENS[arm] * step),
            )
        ]
    )
    made = replace(finished, metrics=frame)
    for axis in ("updates", "tokens"):
        lower, higher = (values_of(made, f"reach:{at}:{axis}", {}) for at in (level, 0.7))
        horizons = horizons_of(made, f"reach:{level}:{axis}")
        assert all(lower[run] <= higher[run] <= horizons[run] for run in CURVES)


def test_targets_that_are_one() -> None:
    for text in ("reach:0.6:updates", "reach:.05:tokens", "reach:1:seconds", "reach:1.0:flops"):
        assert Measure.read(text).text == text
    assert axis_words("reach:0.6:tokens", "tokens") == "generated tokens until accuracy is 0.6"


# Findings


def registered(root: Path, outcome: str, more: str = "lasting") -> None:
    tests = (
        question("sooner", outcome=outcome, expect="lower", matters=1.0, unit=outcome.rpartition(":")[2]),
        question("lasts", outcome=more, matters=2.0, unit="updates", also=True),
    )
    register(root, finding(*tests))


def test_a_kept_table_has_the_budget_of_each_target(root: Path, tmp_path: Path) -> None:
    registered(root, "reach:0.6:tokens")
    record = record_of(load(root))
    assert record.horizons["lasts"] == dict.fromkeys(CURVES, 4.0)
    assert record.horizons["sooner"] == pytest.approx(dict.fromkeys(CURVES, 200.0), rel=1e-6)
    table = kept_again(record, tmp_path)
    assert (table.horizons, table.values) == (record.horizons, record.values)
    assert as_row(table.result()) == as_row(record.result())
    with pytest.raises(LogError, match="is measured over all runs at once"):
        part_of(load(root))


def test_a_finding_says_which_arm_needs_less(six: Experiment) -> None:
    """Six differences of 2 updates: p = 2/2⁶ by sign flips of restricted means, and by the log-rank test."""
    registered(six.folder, "reach:0.6:updates")
    record = record_of(six)
    primary = record.result().primary
    assert (primary.p, primary.p_log_rank, primary.reached) == (2 / 64, 2 / 64, 6)
    assert primary.verdict == "supported" and primary.effect.value == pytest.approx(-2)
    words = description.effect_words(as_row(record.result())["tests"][0])
    assert words == "−2.0 updates (−2.0 to −2.0; 6 of 12 runs did not reach the level)"
    (_, b) = description.arm_means(record, "sooner")
    assert description.arm_words(b, "updates") == "4.0 of 4 (6 of 6 did not reach the level)"
    assert "did not reach the level (count: right)" in svg_text(draw_arms(record, record.result()))
    # Half of the runs are censored and so at one value, which is no failure of theirs.
    assert divisions(record.registration.finding, record.values, []) == {}


# Reports


def test_the_table_has_the_share_that_reaches_and_the_median(experiment: Experiment) -> None:
    assert targets_table(experiment).rows == [
        ["sums", "a", "60.0", "2 of 2", "2", "200", "2", "–"],
        ["sums", "b", "60.0", "0 of 2", "> 4", "> 200", "> 4", "–"],
    ]


def test_a_run_that_diverged_never_reaches_the_level(experiment: Experiment) -> None:
    """It is censored at the largest end, not where it diverged, as though it might have gone on."""
    lifetimes = lifetimes_until(experiment, "sums", 0.6, "updates")["b"]
    assert (list(lifetimes.steps), list(lifetimes.ended)) == ([4.0, 4.0], [False, False])


def test_pairs_are_tested_at_one_budget(six: Experiment) -> None:
    (row,) = target_pairs_table(six).rows
    assert row == ["sums", "a, b", "60.0", "0.031", "0.031", "0.031", "–"]
    never = replace(six, targets=(0.9,))
    assert target_pairs_table(never).rows == []  # no run is there, though b spends half
    assert FIGURES["targets"].serves(six) and not FIGURES["targets"].serves(never)
    assert target_pairs_table(replace(six, apart="They are not paired.")).rows == []


def test_an_experiment_without_a_target_has_no_such_section(six: Experiment) -> None:
    plain = gather(replace(six, targets=()))
    assert not {"targets", "target_pairs"} & {*plain.tables} and not FIGURES["targets"].serves(plain.numbers)
    assert {"targets", "target_pairs"} <= {*gather(six).tables}
