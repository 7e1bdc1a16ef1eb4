"""The table of all claims: what is decided, what waits for its runs, and with which power."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpobench.runs.inventory import claims_table
from grpobench.runs.settings.findings import findings, read_finding

DOCS = Path(__file__).parents[3] / "docs"
TABLES = DOCS / "results" / "findings"


@pytest.mark.parametrize(
    ("name", "rates", "bases"),
    [
        ("staleness", "best of 5", 1),
        ("kl-anchor", "2", 3),
        ("placebo", "2", 1),
        ("baseline", "1", 1),
        ("one-shot-bases", "2", 3),
    ],
)
def test_rates_and_bases_are_those_of_the_recipe(name: str, rates: str, bases: int) -> None:
    study = read_finding(name)
    assert (claims_table.rates_words(study), study.bases("nano")) == (rates, bases)


def test_every_finding_has_a_row_and_a_rule_without_runs_waits_for_them() -> None:
    rows = claims_table.claims_table(TABLES)[2:]
    by_name = {re.findall(r"[\w-]+", row)[0]: [cell.strip() for cell in row.split("|")] for row in rows}
    studies = {name: read_finding(name) for name in findings()}
    once = [name for name, study in studies.items() if not study.asked_again_by]
    assert [*by_name] == [name for name in once if "nano" in studies[name].scales]
    for name, row in by_name.items():
        before, now, state = row[3], row[4], row[8]
        assert (state == "registered") == (now == "–"), name
        undecided = any(word in now for word in ("unresolved", "insensitive"))
        assert state.startswith("undecided: ") == undecided, name  # and says what would decide it
        assert (before, now) != ("–", "–") or not (TABLES / f"{name}-nano.json").exists(), name


def test_a_file_with_the_expected_deviation_has_power_before_its_runs() -> None:
    """Of 12 seeds, a margin of 2 points, a deviation of 1.5 and two tests: above 95 %."""
    study = read_finding("critic-free-compute")
    assert 0.95 < claims_table.smallest_power(claims_table.plans(study, TABLES, None)) < 1
