"""Outcomes that end with the run: no number lies beyond the run's updates, and censored runs are counted.

Eight seeds of 120 updates. Of `a` seven reach the end, one collapses at 36; of `b` all reach it; of `c` none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.findings import finding, kept_again, question, recorded, register
from helpers.synthetic import Synthetic

from grpobench.analysis.figures.drawing import svg_text
from grpobench.analysis.findings import description
from grpobench.analysis.findings.description import arm_means
from grpobench.analysis.findings.figures import draw_arms
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.outcomes import horizons_of
from grpobench.analysis.findings.record import Record, read_kept, record_of
from grpobench.analysis.findings.result import as_row
from grpobench.analysis.runfolder.load import load

END = 120.0
LASTING = {
    "a": [END] * 7 + [36.0],
    "b": [END] * 8,
    "c": [6.0, 12.0, 6.0, 18.0, 12.0, 6.0, 90.0, 6.0],
    "d": [END] * 7 + [6.0],
}
EARLIER = Path(__file__).parents[2] / "docs" / "results" / "earlier" / "findings"


def lasting(contrast: Mapping[str, float], end: float | None = END) -> Record:
    """The runs above under a rule of one test."""
    test = question("lasts", outcome="lasting", contrast=dict(contrast), matters=12.0, unit="updates")
    return recorded(finding(test), LASTING, end)


def test_an_arm_s_mean_is_restricted_to_the_planned_updates() -> None:
    """By hand for a: mean 109.5 of 120, error 29.70/√8 = 10.5, t(7) 2.365, on the scale log(m/(120 − m)):
    2.345 ± 2.365 · 10.5 · 120/(109.5 · 10.5) = 2.345 ± 2.592, back 52.6 and 119.1. For c: 19.5, error
    10.2."""
    mean_by_arm = {arm_mean.arm: arm_mean for arm_mean in arm_means(lasting({"a": 1, "b": -1}), "lasts")}
    assert mean_by_arm["a"].mean.value == 109.5
    assert (mean_by_arm["a"].mean.low, mean_by_arm["a"].mean.high) == pytest.approx((52.6, 119.1), abs=0.1)
    assert 0 < mean_by_arm["c"].mean.low < 19.5 < mean_by_arm["c"].mean.high < 120
    assert [mean_by_arm[arm].reached for arm in "abc"] == [7, 8, 0]
    shown = {arm: description.arm_words(arm_mean, "updates") for arm, arm_mean in mean_by_arm.items()}
    assert shown["a"] == "109.5 of 120 (52.6 to 119.1; 7 of 8 reached the end)"
    assert shown["b"] == "120.0 of 120 (8 of 8 reached the end)"
    assert shown["c"].startswith("19.5 of 120 (")


def test_difference_lies_within_run_updates_and_tells_censored_count() -> None:
    record = lasting({"c": 1, "b": -1})
    primary = record.result().primary
    assert (primary.reached, primary.runs) == (8, 16)
    assert primary.effect.low == -120.0  # −100.5 − 24.1
    assert primary.effect.high == pytest.approx(-76.4, abs=0.05)
    row = as_row(record.result())["tests"][0]
    assert (row["low"], row["reached"], row["runs"]) == (-120.0, 8, 16)
    assert description.effect_words(row) == "−100.5 updates (−120.0 to −76.4; 8 of 16 runs reached the end)"


def test_bounds_of_a_contrast_are_those_of_its_weights() -> None:
    """Half of a and half of b less c: from −120, were c to last and the others not, to 120."""
    record = lasting({"a": 0.5, "b": 0.5, "c": -1})
    values, horizons = record.values["lasts"], dict.fromkeys(record.values["lasts"], 60.0)
    test = replace(record.registration.finding.test[0], outcome="lasting")
    free = judge(finding(test), {"lasts": values}).primary.effect
    bound = judge(finding(test), {"lasts": values}, (), {"lasts": horizons}).primary.effect
    assert free.high > 60 and bound.high == 60.0
    only = judge(finding(replace(test, contrast={"c": 1.0})), {"lasts": values}, (), {"lasts": horizons})
    assert only.primary.effect.low == 0.0


def test_what_does_not_end_with_the_run_is_left_as_it_is() -> None:
    record = lasting({"a": 1, "b": -1}, end=None)
    row = as_row(record.result())["tests"][0]
    assert (row["reached"], row["runs"]) == (None, 16)
    assert "reached" not in description.effect_words(row)
    assert description.arm_words(arm_means(record, "lasts")[0], "updates") == "109.5 (84.7 to 134.3)"


def test_the_figure_draws_nothing_beyond_the_end() -> None:
    record = lasting({"a": 1, "b": -1})
    drawing = draw_arms(record, record.result())
    (axes,) = drawing.figure.axes
    for line in axes.lines:
        if line.get_transform() == axes.transData:
            assert max(line.get_xdata()) <= END and min(line.get_xdata()) >= 0  # type: ignore[call-overload]
    drawn = [text.get_text() for text in axes.texts]
    assert drawn == ["7 of 8", "0 of 8", "8 of 8", "7 of 8"]  # from below: d, c, b, a
    assert "reached the end" in svg_text(drawing)


def test_horizons_are_the_planned_updates_and_are_kept(tmp_path: Path) -> None:
    made = Synthetic(
        arms=("a", "b"), tasks=("sums",), seeds=(1, 2), falls={("a", "sums", 1): 20}, name="f-nano"
    )
    root = made.write(tmp_path)
    test = question("lasts", outcome="lasting", matters=2.0, unit="updates")
    register(root, finding(test))
    experiment = load(root)
    assert set(horizons_of(experiment, "lasting").values()) == {40.0}
    assert horizons_of(experiment, "accuracy") == {}
    record = record_of(experiment)
    assert record.horizons == {"lasts": dict.fromkeys(record.states, 40.0)}
    assert kept_again(record, tmp_path).horizons == record.horizons


def test_a_table_kept_without_its_horizon_has_that_of_its_finished_runs() -> None:
    """Such tables do not say how many updates were planned; the runs that finished made 60."""
    record = read_kept(EARLIER / "sampler-gap-collapse-nano.json")
    assert {end for ends in record.horizons.values() for end in ends.values()} == {60.0}
    (primary, *_) = record.result().tests
    assert primary.reached is not None and primary.effect.high <= 60
