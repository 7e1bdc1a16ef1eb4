"""The page of highlights: what rests on a test that decides no finding is marked, and holds corrected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpobench.analysis.findings.contrasts import contrasts_of
from grpobench.analysis.findings.description import arm_means
from grpobench.analysis.findings.record import Record, read_kept
from grpobench.analysis.statistics.maxima import joint_ps
from grpobench.analysis.statistics.verdicts import ALPHA

DOCS = Path(__file__).parents[3] / "docs"
ROWS = [
    line.split(" | ")
    for line in (DOCS / "highlights.md").read_text(encoding="utf-8").splitlines()
    if re.search(r"\]\(findings/[\w-]+\.md\)", line) and line.startswith("| ")
]
MARK = "*Secondary:*"


def records(row: list[str]) -> list[Record]:
    """The kept tables of the findings that a row names."""
    paths = [
        path
        for name in re.findall(r"findings/([\w-]+)\.md", row[-1])
        for path in sorted((DOCS / "results/findings").glob(f"{name}-*.json"))
        if path.stem in (f"{name}-nano", f"{name}-small")
    ]
    return [read_kept(path) for path in paths]


def shown(value: float, unit: str) -> set[str]:
    """A number as a row may print it: whole, or with one or two decimals."""
    value = abs(value) * (100 if unit in ("points", "%") else 1)
    return {f"{value:.{digits}f}".removesuffix(".0") for digits in (0, 1, 2)}


def numbers_decided(record: Record) -> set[str]:
    """The numbers of the tests that decide a finding, of its controls, and of the arms of its first test."""
    result, unit = record.result(), record.result().primary.test.unit
    decided = [shown(mean.mean.value, unit) for mean in arm_means(record, result.primary.test.name)]
    for judged in (*result.tests, *result.controls):
        if not judged.test.also:
            effect = judged.effect
            decided += [shown(number, judged.test.unit) for number in (effect.value, effect.low, effect.high)]
    return set.union(*decided)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.search(r"`([\w-]+)`", row[-1])[1])
def test_effects_of_secondary_tests_stand_behind_their_mark_and_hold_corrected(row: list[str]) -> None:
    before, _, after = row[0].partition(MARK)
    numbers, marked = (set(re.findall(r"\d+(?:\.\d+)?", text)) for text in (before, after))
    decided = set.union(*map(numbers_decided, records(row)))
    for record in records(row):
        result, values = record.result(), record.values
        tests = [test for test in result.finding.test if not test.deals and test.name in values]
        tests = [test for test in tests if contrasts_of(test, values[test.name], waits=True)]
        _, ps = joint_ps([contrasts_of(test, values[test.name]) for test in tests])
        p_of = dict(zip([test.name for test in tests], ps, strict=True))
        for judged in result.tests:
            if judged.test.also and abs(judged.effect.value) > 1e-9:
                alone = shown(judged.effect.value, judged.test.unit) - decided
                alone -= {number for number in alone if "." not in number and float(number) < 10}
                assert not alone & numbers, f"{judged.test.name} decides nothing"
                assert not alone & marked or p_of[judged.test.name] <= ALPHA


def test_the_mark_is_explained_and_used() -> None:
    assert len(ROWS) >= 7 and sum(MARK in row[0] for row in ROWS) >= 3
    text = " ".join((DOCS / "highlights.md").read_text(encoding="utf-8").split())
    assert "rests on tests that decide no finding and have 5 % to themselves" in text
