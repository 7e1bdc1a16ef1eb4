"""Arms over learning rates, from logs to every place that prints them.

The experiment of `helpers.rates`: good is above poor at every rate; fragile equals good but for twice its
rate; rising is best at the largest rate tried; of late a run at twice its rate crashed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.findings import finding, question
from helpers.rates import TASK, name_at, write_rates

import grpobench
from grpobench.analysis.figures.style import COLUMN, TEXT, Sheet
from grpobench.analysis.findings.figures import axis_words
from grpobench.analysis.findings.outcomes import values_of
from grpobench.analysis.kept import keep, partial, read
from grpobench.analysis.kept_tables import render, study_of
from grpobench.analysis.measure import OF_STEPS, OVER_RATES, Measure
from grpobench.analysis.record import as_text
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.facts import Facts, as_json, gather, json_ready
from grpobench.analysis.report.headline import describe_differences, describe_rates
from grpobench.analysis.report.terminal import rate_lines
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.comparisons import comparisons_table
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.parts import Shown
from grpobench.analysis.topics.rate_views import draw_learning_rates, rate_curves_table, rate_pairs_table
from grpobench.analysis.topics.rates import ROBUST, ArmAtRate, ArmCurve, RateStudy, compare_curves
from grpobench.runs.commands.reports import accuracy_lines

CONCLUSIONS = {
    ("good", "poor"): "rate-robust",
    ("good", "fragile"): "depends on the rate",
    ("good", "rising"): "best rate at an edge",
    ("good", "late"): "waits",
    ("poor", "fragile"): "depends on the rate",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rates(tmp_path_factory.mktemp("rates"))


@pytest.fixture(scope="module")
def facts(root: Path) -> Facts:
    return gather(load(root))


@pytest.fixture(scope="module")
def study(facts: Facts) -> RateStudy:
    assert facts.numbers.rates is not None
    return facts.numbers.rates


def test_own_rates_are_the_experiment_and_all_rates_are_beside_it(root: Path) -> None:
    experiment = load(root)
    assert experiment.arms == ("good", "poor", "fragile", "rising", "late")
    assert {run.arm for run in experiment.runs} == set(experiment.metrics["arm"]) == set(experiment.arms)
    assert not experiment.rate_arms and len(experiment.runs) == len(experiment.statuses) == 5 * 8
    everything = experiment.over_rates
    assert everything is not None and experiment.at_all_rates is everything
    assert everything.at_all_rates is everything and len(everything.runs) == 3 * 5 * 8
    assert everything.rate_arms[name_at("late", 2)].factor == 2
    assert everything.rate_arms[name_at("late", 2)].arm == "late"


def test_without_the_runs_of_the_recipes_arm_a_rate_is_an_arm_like_others(root: Path, tmp_path: Path) -> None:
    """Such as after a merge of a part: an arm at another rate than its own cannot be part of a curve."""
    described = json.loads((root / "experiment.json").read_text())
    described["arms"].remove("good")
    described["runs"] = [name for name in described["runs"] if not name.startswith("good-")]
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith("good-"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "experiment.json").write_text(json.dumps(described))
    experiment = load(tmp_path)
    assert name_at("good", 2) in experiment.arms and name_at("poor", 2) not in experiment.arms


def test_pairs_differ_at_every_rate_at_some_or_at_an_edge(study: RateStudy) -> None:
    by_arms = {(pair.first, pair.second): pair for pair in study.pairs}
    assert {names: by_arms[names].conclusion for names in CONCLUSIONS} == CONCLUSIONS
    robust = by_arms["good", "poor"]
    # 62 − 45 at best rates, 58 − 40 at half and at twice
    assert robust.at_best.effect == pytest.approx(0.17) and robust.verdict == "better"
    assert (robust.at_half, robust.at_twice) == (pytest.approx(0.18), pytest.approx(0.18))
    assert robust.best_rates == (1e-4, 1e-4) and list(robust.at_equal) == [5e-5, 1e-4, 2e-4]
    assert robust.direction == ("good", "poor", TASK)
    assert study.pair(TASK, "poor", "good") is robust and study.pair("other", "poor", "good") is None
    assert robust.why == "+17.0 points at best rates, +18.0 at half and +18.0 at twice the best rates"
    assert by_arms["good", "fragile"].why == (
        "differs at 2e−4 (+28.0), but +0.0 points at best rates is unresolved"
    )
    assert by_arms["poor", "fragile"].why == (
        "−17.0 points at best rates, but −18.0 at half and +10.0 at twice the best rates"
    )
    assert by_arms["good", "rising"].why == (
        "−16.0 points at best rates; rising is best at 2e−4, and no rate of twice it or more was tried"
    )
    assert by_arms["good", "late"].why == "late at 2e−4, seed 8 (crashed)"
    assert by_arms["good", "late"].verdict == "unresolved"


@pytest.mark.parametrize(
    ("levels", "conclusion", "says"),
    [
        ((0.58, 0.62, 0.58), "no difference", "points at best rates"),
        ((0.58, 0.62, 0.6205), "unresolved", "b is best at 2e−4, and no rate of twice it or more was tried"),
        ((0.50, 0.62, 0.6205), "depends on the rate", "points at best rates is unresolved"),
    ],
)
def test_no_difference_is_not_said_where_a_best_rate_is_at_an_edge(
    levels: Sequence[float], conclusion: str, says: str
) -> None:
    """A better rate beyond it might end it."""

    def curve(arm: str, by_rate: Sequence[float], shift: int) -> ArmCurve:
        scores = [
            {seed: level + 0.0005 * ((seed * 3 + shift + i) % 8 - 3.5) for seed in range(8)}
            for i, level in enumerate(by_rate)
        ]
        points = [
            ArmAtRate(factor, factor * 1e-4, at_rate, (), {})
            for factor, at_rate in zip((0.5, 1.0, 2.0), scores, strict=True)
        ]
        return ArmCurve("sums", arm, tuple(points), 0.02)

    (pair,) = compare_curves("sums", [curve("a", (0.58, 0.62, levels[2] - 0.001), 0), curve("b", levels, 5)])
    verdict = "equivalent" if conclusion == "no difference" else "unresolved"
    assert (pair.verdict, pair.conclusion) == (verdict, conclusion) and says in pair.why
    assert pair.at_best.p_equivalence_holm < 0.05  # it is the edge alone that forbids it


def test_curves_have_their_best_rate_and_what_others_cost(study: RateStudy) -> None:
    curves = {curve.arm: curve for curve in study.curves}
    assert {arm: curve.best.rate for arm, curve in curves.items() if curve.best} == {
        **dict.fromkeys(("good", "poor", "fragile", "late"), 1e-4),
        "rising": 2e-4,
    }
    fragile = curves["fragile"]
    assert fragile.loss(-1) == pytest.approx(0.04) and fragile.loss(1) == pytest.approx(0.32)
    # Within 2 points of 62: half an octave down to 58, and 2 of 32 of an octave up.
    assert fragile.octaves == (pytest.approx(0.5 + 2 / 32), False, False)
    assert curves["rising"].octaves[2] and str(curves["rising"].loss(1)) == "nan"
    assert [point.factor for point in fragile.points] == [0.5, 1, 2] and fragile.at_own_rate.rate == 1e-4
    late = curves["late"].points[-1]
    assert len(late.scores) == 7 and late.missing == {8: "8 (crashed)"}


def test_the_headline_speaks_of_rates_before_own_rates(facts: Facts) -> None:
    assert (
        "; 1 of 10 pairs differs at the best learning rates, at half and at twice these (rate-robust): good "
        "is better than poor on arithmetic, 2 depend on the rate: good − fragile on arithmetic and poor − "
        "fragile on arithmetic, 3 differ at best rates at an edge of those tried: good − rising on "
        "arithmetic, poor − rising on arithmetic and fragile − rising on arithmetic, 4 wait for runs; at "
        "their own learning rates 9 of 10 pairs differ: "
    ) in facts.headline


def test_the_terminal_has_curves_and_pairs_and_says_what_is_at_own_rates(facts: Facts) -> None:
    lines = accuracy_lines(facts)
    assert "Final accuracy at own learning rates, in percent:" in lines
    assert "Accuracy over learning rates, and what another rate costs:" in lines
    assert lines.index("Verdicts at own learning rates:") == 1 + max(
        lines.index(line) for line in rate_lines(facts.numbers.rates)
    )
    assert rate_lines(facts.numbers.rates)[-1] == (
        "arithmetic: waits for runs: good − late, poor − late, fragile − late, rising − late"
    )
    assert "The report warns: 2 of 10 pairs depend on the learning rate." in lines
    assert rate_lines(None) == []


def test_warnings_name_pairs_and_runs_at_other_rates(facts: Facts) -> None:
    warnings = {warning.title: warning for warning in facts.warnings}
    depends = warnings["2 of 10 pairs depend on the learning rate"]
    assert depends.lines[0].startswith("good − fragile on arithmetic: differs at 2e−4 (+28.0)")
    edges = warnings["3 of 10 pairs differ at best learning rates at an edge of those tried"]
    assert "`--rates`" in edges.text
    crashed = warnings["1 of 120 runs has no final accuracy"]
    assert list(crashed.lines) == ["late+rate-x2 on arithmetic, seed 8: crashed at update 2, stopped"]
    assert not any(
        "No search of learning rates" in line for warning in facts.warnings for line in warning.lines
    )
    assert dict(facts.accounting) == {"finished": 119, "crashed": 1}


def test_tables_print_what_the_pairs_and_curves_have(facts: Facts, study: RateStudy) -> None:
    pairs, curves = facts.tables["learning_rates"], facts.tables["rate_curves"]
    assert [row[:5] for row in pairs.rows[:2]] == [
        ["arithmetic", "good − poor", "rate-robust", "1e−4 and 1e−4", "+17.0"],
        ["arithmetic", "good − fragile", "depends on the rate", "1e−4 and 1e−4", "+0.0"],
    ]
    assert pairs.rows[0][-1] == "5e−5: +18.0 better; 1e−4: +17.0 better; 2e−4: +18.0 better"
    assert pairs.frame.loc[1, "effect_at_0.0002"] == pytest.approx(0.28)
    assert not any(isinstance(value, dict) for value in pairs.frame.loc[0])  # plain columns, also in csv
    assert list(curves.rows[3]) == [
        *("arithmetic", "rising", "1e−4", "55.0", "70.0", "78.0*", "2e−4"),
        *("+8.0", "–", "≥ 0.2"),
    ]
    comparisons = facts.tables["comparisons"]
    assert comparisons.header[3] == "over learning rates" and comparisons.rows[0][3] == "rate-robust"
    assert comparisons.rows[3][3] == "waits for runs" and comparisons.note.startswith("All arms at their own")
    assert comparisons.frame["over_rates"].tolist() == [pair.words for pair in study.pairs]
    for table in (pairs, curves, comparisons):
        latex = table.latex()
        assert latex.count(r"\\") == len(table.rows) + 1 and "−" not in latex.replace(r"$-$", "")


def test_json_has_curves_and_pairs(facts: Facts, study: RateStudy) -> None:
    row = json.loads(json.dumps(json_ready(as_json(facts))))["learning_rates"]
    assert len(row["curves"]) == 5 and len(row["pairs"]) == 10
    assert (
        row["pairs"][0]["conclusion"] == ROBUST
        and row["pairs"][0]["at_equal"]["0.0002"]["verdict"] == "better"
    )
    late = row["curves"][4]["points"][2]
    assert (late["factor"], late["rate"], late["missing"]) == (2.0, 2e-4, ["8 (crashed)"])
    assert row["curves"][3]["loss_at_twice"] is None and row["curves"][3]["octaves_open_above"] is True
    assert row["curves"][0]["points"][1]["scores"]["1"] == study.curves[0].points[1].scores[1]


def test_one_rate_an_arm_has_no_study(tmp_path: Path) -> None:
    root = write_rates(tmp_path, arms=("good", "poor"), missing=())
    numbers = Numbers(dataclasses.replace(load(root), over_rates=None))
    assert numbers.rates is None and describe_rates(numbers) == ""
    assert not {"learning_rates", "rate_curves"} & set(gather(numbers).tables)
    assert "learning rates" not in describe_differences(numbers)
    assert "at one learning rate of each arm " in describe_differences(numbers)
    for arm in ("good", "poor"):
        for path in root.glob(f"{arm}*/run.toml"):  # as logs of other libraries, which record no rate
            path.write_text(re.sub(r"learning_rate\b", "pace", path.read_text()))
    unrecorded = Numbers(dataclasses.replace(load(root), over_rates=None))
    assert "learning rate" not in describe_differences(unrecorded)
    assert comparisons_table(numbers.compared).header[3] == "difference"


@pytest.mark.parametrize(("sheet", "inches"), [(TEXT, 7.0), (COLUMN, 3.4)])
def test_the_figure_is_drawn_in_both_widths(facts: Facts, sheet: Sheet, inches: float) -> None:
    assert "learning_rates" in {name for name, kind in FIGURES.items() if kind.serves(facts.numbers)}
    drawing = FIGURES["learning_rates"](facts.numbers, sheet)
    assert drawing is not None
    assert "over 7 to 8 seeds" in drawing.caption and "failed" not in drawing.caption.lower()
    (axes,) = drawing.figure.axes  # no run failed, so that there is no second row
    assert [text.get_text() for text in axes.get_xticklabels()] == ["5·10⁻⁵", "10⁻⁴", "2·10⁻⁴"]
    curves = [list(line.get_ydata()) for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert len(curves) == 5 and curves[0] == pytest.approx([58, 62, 58])
    circles = [float(line.get_xdata()[0]) for line in axes.get_lines() if line.get_markersize() == 8]
    assert circles == [1e-4, 1e-4, 1e-4, 2e-4, 1e-4]
    assert drawing.figure.get_figwidth() == pytest.approx(inches, abs=0.01)


def test_figures_of_a_part_keep_the_curves_of_its_arms(facts: Facts, study: RateStudy) -> None:
    shown = facts.numbers.showing(Shown(arms=("good", "poor"), labels={"good": "ours"}))
    part, _ = shown.drawn
    assert part.rates is not None and [curve.arm for curve in part.rates.curves] == ["ours", "poor"]
    assert [(pair.first, pair.second) for pair in part.rates.pairs] == [("ours", "poor")]
    assert part.rates.pairs[0].at_best is study.pairs[0].at_best  # corrected over all pairs, as before


def test_failures_are_counted_and_drawn(tmp_path: Path) -> None:
    """Runs below their base fail: 3 of 8 of poor at twice its rate."""

    def accuracy(arm: str, factor: float, seed: int) -> float:
        return 0.01 if (arm, factor) == ("poor", 2.0) and seed <= 3 else 0.5 + 0.001 * seed

    root = write_rates(tmp_path, arms=("good", "poor"), missing=(), accuracy=accuracy)
    numbers = Numbers(load(root))
    assert numbers.rates is not None
    assert numbers.rates.curves[1].points[2].failed == (1, 2, 3)
    assert rate_curves_table(numbers.rates).rows[1][5].endswith(" F3")
    drawing = draw_learning_rates(numbers.experiment, numbers.rates, TEXT)
    assert drawing is not None and drawing.caption.endswith(
        "Failed runs collapsed, diverged, or ended below their base."
    )
    assert [axes.get_ylabel() for axes in drawing.figure.axes] == ["accuracy (%)", "failed runs (%)"]
    assert max(drawing.figure.axes[1].get_lines()[1].get_ydata()) == pytest.approx(37.5)


def test_where_all_pairs_wait_the_headline_says_so(tmp_path: Path) -> None:
    root = write_rates(tmp_path, arms=("good", "poor"), missing=[("good", 0.5, 3)])
    assert describe_rates(Numbers(load(root))) == (
        "comparisons at the best learning rates, at half and at twice these wait for runs"
    )


# Kept tables, Python, and outcomes of findings


@pytest.fixture(scope="module")
def kept_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kept table of the experiment without missing runs."""
    folder = tmp_path_factory.mktemp("kept")
    content = keep(load(write_rates(folder, arms=("good", "fragile", "rising"), missing=())))
    path = folder / "kept.json"
    path.write_text(as_text(content))
    return path


def test_a_kept_table_has_the_curves_and_pairs_of_the_report(kept_path: Path) -> None:
    experiment = load(kept_path.parent / "synthetic")
    study = Numbers(experiment).rates
    assert study is not None
    table = read(kept_path)
    assert json_ready(study_of(table).rows()) == json_ready(study.rows())
    made = rate_pairs_table(study)
    lines = render(table, "learning_rates", {})
    assert lines[0] == "Every pair over learning rates; differences in points, first − second:"
    assert lines[2:] == made.markdown() and "depends on the rate" in lines[4]
    assert render(table, "rate_curves", {})[2:] == rate_curves_table(study).markdown()
    # 3 arms, 3 rates, 8 seeds; all else is of the 24 runs at own rates
    assert "72 runs, 8 seeds" in " ".join(render(table, "provenance", {}))
    assert [*table.arms] == ["good", "fragile", "rising"]
    assert len(table.runs) == 24 and {run["arm"] for run in table.runs} == set(table.arms)


def test_fewer_rates_are_no_substitute_for_a_kept_table(kept_path: Path) -> None:
    table, content = read(kept_path), json.loads(kept_path.read_text())
    assert partial(table, content) == []
    fewer = {**content, "rates": [row for row in content["rates"] if row["factor"] < 2]}
    (fault,) = partial(table, fewer)
    assert fault.startswith("24 of 72 kept results at learning rates are missing, such as good at 2 times ")


def test_tables_without_rates_are_read_and_say_so(kept_path: Path, tmp_path: Path) -> None:
    content = json.loads(kept_path.read_text())
    del content["rates"]
    older = tmp_path / "older.json"
    older.write_text(json.dumps(content))
    assert read(older).rates == ()
    for kind in ("learning_rates", "rate_curves"):
        with pytest.raises(LogError, match="each arm ran at one learning rate; run it with --rates"):
            render(read(older), kind, {})


def test_a_run_without_a_result_at_another_rate_keeps_the_experiment_from_being_kept(root: Path) -> None:
    with pytest.raises(LogError, match=r"1 without result: late\+rate-x2-arithmetic-s8 \(crashed\)"):
        keep(load(root))


def test_results_in_python_have_the_study_and_print_it(facts: Facts, root: Path) -> None:
    results = grpobench.Results(facts.experiment)
    results.__dict__["_numbers"] = facts.numbers  # computed already
    assert results.rates is facts.numbers.rates and results.arms == facts.experiment.arms
    lines = repr(results.rates).splitlines()
    assert len(lines) == 5 + 10
    assert lines[3] == "arithmetic: rising: 55.0 % at 5e−5, 70.0 % at 1e−4 (own rate), 78.0 % at 2e−4 (best)"
    assert lines[5].startswith("arithmetic: good − poor: rate-robust: +17.0 points")
    pair = grpobench.compare(results, "good", "poor")[TASK]
    assert pair.effect == pytest.approx(0.17) and pair.seeds == tuple(range(1, 9)) and pair.pairs == 10


def test_outcomes_of_findings_over_rates(root: Path) -> None:
    experiment = load(root)
    values = {name: values_of(experiment, f"rate:{name}", {}) for name in OVER_RATES}
    runs_at_own_rates = {(run.arm, run.task, run.seed) for run in experiment.runs}
    assert all(set(by_run) == runs_at_own_rates for by_run in values.values())

    def mean(name: str, arm: str) -> float:
        return float(np.mean([value for run, value in values[name].items() if run[0] == arm]))

    # good: 62 at its own rate, and 58 at half and at twice
    assert mean("loss-at-half", "good") == mean("loss-at-twice", "good") == pytest.approx(0.04)
    assert mean("loss-at-twice", "fragile") == pytest.approx(0.32)
    assert mean("loss-at-twice", "rising") == pytest.approx(-0.08)
    late = values["loss-at-twice"]
    assert np.isnan(late["late", TASK, 8]) and not np.isnan(late["late", TASK, 7])
    # seed 1 of good: (3 · 1 + shift) mod 8 = 3, 4, 5 at shifts 0, 1, 2 → −.5, .5, 1.5 of 3.5, times .4 points
    half, once, twice = (0.58 - 0.002 / 3.5, 0.62 + 0.002 / 3.5, 0.58 + 0.006 / 3.5)
    width = 0.02 / (once - half) + 0.02 / (once - twice)
    assert values["octaves"]["good", TASK, 1] == pytest.approx(width)


def test_the_best_rate_by_an_outcome_is_in_octaves_of_the_rate_itself(root: Path) -> None:
    experiment = load(root)
    values = values_of(experiment, "best_rate:accuracy", {})
    assert set(values) == {(run.arm, run.task, run.seed) for run in experiment.runs}
    # seed 1 of good at 5e-5, 1e-4, 2e-4, as above: the top of the parabola lies between its neighbors
    half, once, twice = (0.58 - 0.002 / 3.5, 0.62 + 0.002 / 3.5, 0.58 + 0.006 / 3.5)
    top = (twice - half) / (2 * (2 * once - half - twice))
    assert values["good", TASK, 1] == pytest.approx(np.log2(1e-4) + top)
    assert values["rising", TASK, 1] == pytest.approx(np.log2(2e-4))  # the largest tried
    assert np.isnan(values["late", TASK, 8]) and not np.isnan(values["late", TASK, 7])
    with pytest.raises(ValueError, match="unknown kind 'best_rate'"):
        Measure.read("best_rate:best_rate:accuracy")
    assert axis_words("best_rate:accuracy", "") == "log2 of the learning rate with the best final accuracy"
    assert finding(question(outcome="best_rate:accuracy")).over_rates


def test_the_language_of_measures_knows_outcomes_over_rates() -> None:
    for name in OVER_RATES:
        assert Measure.read(f"rate:{name}").text == f"rate:{name}"
        assert axis_words(f"rate:{name}", "") and axis_words(
            f"rate:{name}", "points" * name.startswith("loss")
        )
    assert axis_words("rate:loss-at-half", "points") == "accuracy lost at half the learning rate (points)"
    with pytest.raises(ValueError, match="rate: and one of loss-at-half, loss-at-twice, octaves"):
        Measure.read("rate:worst")
    with pytest.raises(ValueError, match="unknown kind"):  # searches read training steps alone
        Measure.read("rate:octaves", OF_STEPS)
    assert finding(question(outcome="rate:octaves")).over_rates and not finding(question()).over_rates
