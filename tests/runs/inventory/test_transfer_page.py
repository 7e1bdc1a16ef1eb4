"""The page on two scales: what it says of findings and probes, and that it needs either."""

from __future__ import annotations

import dataclasses

import numpy as np
from helpers.findings import question, several
from helpers.profiles import RATE, probe, rows

from grpobench.analysis.profile.transfer import transfers
from grpobench.runs.inventory import templating, transfer_page

SPREAD = np.linspace(-0.01, 0.01, 8)


def test_without_anything_at_both_scales_there_is_no_page() -> None:
    assert transfer_page.transfer_pages(templating.templates(), [], [], []) == {}


def test_probes_alone_make_a_page_with_their_orders_and_scores() -> None:
    means = {"a": (0.1, 0.3), "b": (0.5, 0.2), "c": (0.9, 0.8)}
    kept = [
        {name: rows(name, "learn", list(of[side] + SPREAD)) for name, of in means.items()} for side in (0, 1)
    ]
    probes = {"learn": probe("learn")}
    rates = {name: {"policy": RATE} for name in means}
    found = transfers((kept[0], kept[1]), (probes, probes), (rates, rates))
    made = transfer_page.transfer_pages(templating.templates(), [], [], found)
    assert set(made) == {transfer_page.PAGE, transfer_page.PROBES_FIGURE}
    lines = made[transfer_page.PAGE].splitlines()
    assert "| the learn | 3 | 0.50 | 3 | 2 | 1 | 0 | 0 |" in lines
    assert "| b | 0.50 / 0.20 |" in lines
    assert not any("Findings" in line for line in lines if line.startswith("#"))


def test_findings_alone_make_a_page_with_their_figure() -> None:
    one = several({"x": [0.05, 0.06] * 4}, question("x"))
    made = transfer_page.transfer_pages(templating.templates(), [one], [one], [])
    assert set(made) == {transfer_page.PAGE, transfer_page.FIGURE}
    assert "## Probes" not in made[transfer_page.PAGE]
    assert "### Conclusions" in made[transfer_page.PAGE]


def test_the_page_counts_conclusions_of_findings_without_effects_and_wider_intervals() -> None:
    """An A/A finding has no effect to compare, but a conclusion."""
    nano = several({"x": [0.05, 0.06] * 4}, question("x"))
    small = several({"x": [0.02, 0.09] * 4}, question("x"))
    rule = dataclasses.replace(nano.finding, name="dealt")
    dealt = dataclasses.replace(nano, finding=rule, tests=())
    made = transfer_page.transfer_pages(templating.templates(), [nano, dealt], [small, dealt], [])
    page = made[transfer_page.PAGE]
    assert "| findings at both scales | 2 |" in page and "[dealt](findings.md#dealt)" in page
    assert "1 of the 1 intervals below are wider on SmolLM2" in " ".join(page.split())
