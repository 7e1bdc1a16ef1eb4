"""Outcomes that end with the run: no number lies beyond the run's updates, and censored runs are counted.

Eight seeds of 120 updates. Of `a` seven reach the end, one collapses at 36; of `b` all reach it; of `c` none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.findings import finding, question
from helpers.good_recipes import everything_installed
from helpers.synthetic import Synthetic

from grpobench.analysis.figures.drawing import svg_text
from grpobench.analysis.findings import description
from grpobench.analysis.findings.description import arm_means
from grpobench.analysis.findings.figures import draw_arms
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.outcomes import horizons_of
from grpobench.analysis.findings.record import (
    FILE,
    Record,
    Registration,
    read_kept,
    record_of,
    record_text,
    text_digest,
)
from grpobench.analysis.findings.result import as_row
from grpobench.analysis.record import Provenance
from grpobench.analysis.runfolder.load import load
from grpobench.runs.settings.findings import read_finding

END = 120.0
LASTING = {
    "a": [END] * 7 + [36.0],
    "b": [END] * 8,
    "c": [6.0, 12.0, 6.0, 18.0, 12.0, 6.0, 90.0, 6.0],
    "d": [END] * 7 + [6.0],
}
KEPT = Path(__file__).parents[2] / "docs" / "results" / "findings"


def recorded(contrast: Mapping[str, float], end: float = END) -> Record:
    """The runs above under a rule of one test."""
    test = question("lasts", outcome="lasting", contrast=dict(contrast), matters=12.0, unit="updates")
    values: dict[Key, float] = {
        (arm, "sums", seed): value for arm, lengths in LASTING.items() for seed, value in enumerate(lengths)
    }
    states = {run: "finished" if value == END else "collapsed" for run, value in values.items()}
    rule = Registration(finding(test), "nano", tuple(range(8)), {}, "", "2026-01-01T00:00:00+0000")
    provenance = Provenance("grpobench finding run f", {}, {}, [])
    horizons = {"lasts": dict.fromkeys(values, end)}
    return Record(rule, {"lasts": values}, (), (), states, provenance, horizons)


def test_an_arm_s_mean_is_restricted_to_the_planned_updates() -> None:
    """By hand for a: mean 109.5 of 120, error 29.70/√8 = 10.5, t(7) 2.365, on the scale log(m/(120 − m)):
    2.345 ± 2.365 · 10.5 · 120/(109.5 · 10.5) = 2.345 ± 2.592, back 52.6 and 119.1. For c: 19.5, error
    10.2."""
    mean_by_arm = {arm_mean.arm: arm_mean for arm_mean in arm_means(recorded({"a": 1, "b": -1}), "lasts")}
    assert mean_by_arm["a"].mean.value == 109.5
    assert (mean_by_arm["a"].mean.low, mean_by_arm["a"].mean.high) == pytest.approx((52.6, 119.1), abs=0.1)
    assert 0 < mean_by_arm["c"].mean.low < 19.5 < mean_by_arm["c"].mean.high < 120
    assert [mean_by_arm[arm].reached for arm in "abc"] == [7, 8, 0]
    shown = {arm: description.arm_words(arm_mean, "updates") for arm, arm_mean in mean_by_arm.items()}
    assert shown["a"] == "109.5 of 120 (52.6 to 119.1; 7 of 8 reached the end)"
    assert shown["b"] == "120.0 of 120 (8 of 8 reached the end)"
    assert shown["c"].startswith("19.5 of 120 (")


def test_difference_lies_within_run_updates_and_tells_censored_count() -> None:
    record = recorded({"c": 1, "b": -1})
    primary = record.result().primary
    assert (primary.reached, primary.runs) == (8, 16)
    assert primary.effect.low == -120.0  # −100.5 − 24.1
    assert primary.effect.high == pytest.approx(-76.4, abs=0.05)
    row = as_row(record.result())["tests"][0]
    assert (row["low"], row["reached"], row["runs"]) == (-120.0, 8, 16)
    assert description.effect_words(row) == "−100.5 updates (−120.0 to −76.4; 8 of 16 runs reached the end)"


def test_bounds_of_a_contrast_are_those_of_its_weights() -> None:
    """Half of a and half of b less c: from −120, were c to last and the others not, to 120."""
    record = recorded({"a": 0.5, "b": 0.5, "c": -1})
    values, horizons = record.values["lasts"], dict.fromkeys(record.values["lasts"], 60.0)
    test = replace(record.registration.finding.test[0], outcome="lasting")
    free = judge(finding(test), {"lasts": values}).primary.effect
    bound = judge(finding(test), {"lasts": values}, (), {"lasts": horizons}).primary.effect
    assert free.high > 60 and bound.high == 60.0
    only = judge(finding(replace(test, contrast={"c": 1.0})), {"lasts": values}, (), {"lasts": horizons})
    assert only.primary.effect.low == 0.0


def test_what_does_not_end_with_the_run_is_left_as_it_is() -> None:
    record = replace(recorded({"a": 1, "b": -1}), horizons={})
    row = as_row(record.result())["tests"][0]
    assert (row["reached"], row["runs"]) == (None, 16)
    assert "reached" not in description.effect_words(row)
    assert description.arm_words(arm_means(record, "lasts")[0], "updates") == "109.5 (84.7 to 134.3)"


def test_the_figure_draws_nothing_beyond_the_end() -> None:
    drawing = draw_arms(recorded({"a": 1, "b": -1}), recorded({"a": 1, "b": -1}).result())
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
    texts = {path.parent.name: path.read_text() for path in sorted(root.glob("*/run.toml"))}
    settings = {name: text_digest(text) for name, text in texts.items()}
    registration = Registration(finding(test), "nano", (1, 2), settings, "", "2025-12-31T23:59:59+0000")
    (root / FILE).write_text(json.dumps(registration.plain()))
    experiment = load(root)
    assert set(horizons_of(experiment, "lasting").values()) == {40.0}
    assert horizons_of(experiment, "accuracy") == {}
    record = record_of(experiment)
    assert record.horizons == {"lasts": dict.fromkeys(record.states, 40.0)}
    (tmp_path / "kept.json").write_text(record_text(record))
    assert read_kept(tmp_path / "kept.json").horizons == record.horizons


def kept_with_an_end() -> list[Path]:
    return [path for path in sorted(KEPT.glob("*.json")) if '"outcome": "lasting' in path.read_text()]


@pytest.mark.parametrize("path", kept_with_an_end(), ids=lambda path: path.stem)
def test_a_table_kept_without_its_horizon_has_that_of_its_recipe(path: Path) -> None:
    """Older tables do not say how many updates were planned: their finished runs do."""
    record = read_kept(path)
    name, scale = record.registration.finding.name, record.registration.scale
    study = read_finding(name)
    if study.finding.digest != record.registration.finding.digest:
        pytest.skip("the finding's file is of a later rule than its kept table")
    with everything_installed():
        planned = {config.train.steps for config in study.recipe(scale).runs()}
    assert {end for horizon_by_run in record.horizons.values() for end in horizon_by_run.values()} == planned


def test_the_page_prints_no_update_beyond_the_end() -> None:
    """Of every finding whose first test is how long runs last: no number of updates above its runs'."""
    records = [read_kept(path) for path in kept_with_an_end()]
    records = [table for table in records if table.registration.finding.test[0].outcome.startswith("lasting")]
    assert len(records) >= 2
    for record in records:
        (end,) = {end for horizon_by_run in record.horizons.values() for end in horizon_by_run.values()}
        page = KEPT.parents[1] / "findings" / f"{record.registration.finding.name}.md"
        part = (
            page.read_text(encoding="utf-8")
            .partition(f"\n## {record.registration.scale.capitalize()} scale\n")[2]
            .partition("\n## ")[0]
        )
        arms = next(line for line in part.splitlines() if line.startswith("- Each arm"))
        bounds = re.findall(r"\(([\d.]+) to ([\d.]+)", arms)
        assert bounds and all(0 <= float(low) <= float(high) <= end for low, high in bounds), arms
        assert "reached the end" in part.partition("- Each arm")[0]
        means = arm_means(record, record.registration.finding.test[0].name)
        reached = [f"{row.reached} of {len(row.values)}" for row in means if row.reached]
        assert re.findall(r"(\d+ of \d+) reached the end", arms) == reached
