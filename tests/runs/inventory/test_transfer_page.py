"""The page on two scales: what it says of findings and probes, and that it needs either."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
from helpers.findings import question, several
from helpers.profiles import RATE, probe, rows

from grpobench.analysis.findings.result import CheckResult
from grpobench.analysis.findings.rule import Check
from grpobench.analysis.profile.transfer import transfers
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.runs.inventory import templating, transfer_page

SPREAD = np.linspace(-0.01, 0.01, 8)


def test_without_anything_at_both_scales_there_is_no_page() -> None:
    assert transfer_page.transfer_pages(templating.templates(), [], [], []) == {}


def test_probes_alone_make_a_page_with_their_orders_and_scores() -> None:
    means = {"a": (0.1, 0.3), "b": (0.5, 0.2), "c": (0.9, 0.8)}
    rows_by_scale = [
        {name: rows(name, "learn", list(of[side] + SPREAD)) for name, of in means.items()} for side in (0, 1)
    ]
    probes = {"learn": probe("learn")}
    rates = {name: {"policy": RATE} for name in means}
    probe_transfers = transfers((rows_by_scale[0], rows_by_scale[1]), (probes, probes), (rates, rates))
    made = transfer_page.transfer_pages(templating.templates(), [], [], probe_transfers)
    assert set(made) == {transfer_page.PAGE, transfer_page.PROBES_FIGURE}
    lines = made[transfer_page.PAGE].splitlines()
    assert "| the learn | 3 | – | 3 | 2 | 1 | 0 | 0 |" in lines
    assert "| b | 0.50 / 0.20 |" in lines
    assert not any("Findings" in line for line in lines if line.startswith("#"))


def test_findings_alone_make_a_page_with_their_figure() -> None:
    finding_result = several({"x": [0.05, 0.06] * 4}, question("x"))
    made = transfer_page.transfer_pages(templating.templates(), [finding_result], [finding_result], [])
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
    assert "| findings at both scales | 2 |" in page and "[dealt](findings/dealt.md)" in page
    assert "1 of the 1 intervals below are wider on SmolLM2" in " ".join(page.split())


def test_a_sign_that_differs_under_another_rule_is_shown_and_counted() -> None:
    """The same test by a rule that had no control yet: with its numbers, and apart from the others."""
    nano = several({"x": [0.05, 0.06] * 4}, question("x"))
    small = several({"x": [-0.05, -0.06] * 4}, question("x"))
    small = dataclasses.replace(small, finding=dataclasses.replace(small.finding, control=()))
    made = transfer_page.transfer_pages(templating.templates(), [nano], [small], [], {"the learn": "too few"})
    page = made[transfer_page.PAGE]
    assert "f: The rules differ: the rule at nano scale has 1 control that the other lacks." in page
    assert "| of these with the same sign | 0 of 1, in 1 finding |" in page
    assert (
        "+0.055 (+0.051 to +0.059) at nano scale, −0.055 (−0.059 to −0.051) on SmolLM2 (the rules differ)"
        in page
    )
    assert "**differ**" in page and "- the learn: too few." in page
    assert "| – (too few findings) |" in page


def test_each_kind_of_finding_is_counted_apart() -> None:
    """A cost that agrees says nothing on behavior that does not."""
    up, down, twice = [0.05, 0.06] * 4, [-0.05, -0.06] * 4, [0.10, 0.12] * 4
    nano, small = (
        [
            dataclasses.replace(judged, finding=dataclasses.replace(judged.finding, name=name))
            for name, judged in (
                ("b", several({"x": behavior}, question("x"))),
                ("c", several({"x": cost}, question("x"))),
            )
        ]
        for behavior, cost in ((up, up), (down, twice))
    )
    made = transfer_page.transfer_pages(templating.templates(), nano, small, [], {}, {"c": "cost"})
    page = made[transfer_page.PAGE]
    assert "| measure | all | behavior | cost |" in page
    assert "| decided at both scales, with the same conclusion | 1 | 0 | 1 |" in page
    assert "same sign | 1 of 2, in 2 findings | 0 of 1, in 1 finding | 1 of 1, in 1 finding |" in page
    assert "median (range) | 2.00 (2.00 to 2.00) | – | 2.00 (2.00 to 2.00) |" in page
    assert "1 of the 2 findings above are about behavior" in " ".join(page.split())


def test_two_undecided_conclusions_are_no_agreement() -> None:
    decided = {"nano": "supported", "small": "supported"}
    assert transfer_page.agrees(decided) and not transfer_page.agrees(decided | {"small": "contradicted"})
    assert not any(
        transfer_page.agrees({"nano": same, "small": same}) for same in ("unresolved", "insensitive")
    )


def test_a_clear_difference_of_sign_comes_first() -> None:
    """Also before tests that come first in their rule, and among those that are not compared."""
    up, down = [0.05, 0.06] * 4, [-0.05, -0.06] * 4
    names, changed = ("w", "x", "y", "z"), {"outcome": "gain"}
    nano = several(dict.fromkeys(names, up), *map(question, names))
    small = several(
        {"w": up, "x": up, "y": down, "z": down},
        *(question(name, **(changed if name in "wz" else {})) for name in names),
    )
    page = transfer_page.transfer_pages(templating.templates(), [nano], [small], [])[transfer_page.PAGE]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| f | ")]
    assert [row[1].split()[0] for row in rows] == ["y", "x", "z", "w"]
    assert "**differ**" in rows[0][-1] and "**the signs differ**" in rows[2][-1]
    assert "differ**" not in rows[1][-1] + rows[3][-1]


def test_the_kept_tables_are_all_on_the_page() -> None:
    """Each kept finding is compared, or listed with a reason."""
    docs = Path(transfer_page.__file__).resolve().parents[2] / "docs"
    page = (docs / transfer_page.PAGE).read_text(encoding="utf-8")
    words = set(re.findall(r"[\w-]+", page))
    for table in (docs / "results" / "findings").glob("*.json"):
        assert table.stem.rpartition("-")[0] in words
    assert "+0.211 bias score (+0.200 to +0.222) at nano scale, −0.038 bias score" in page


def test_effects_by_size_stand_beside_their_slope() -> None:
    """Sizes in the order of the rule, then the test that decides; findings at two scales have no row."""
    sizes = [question(f"at {size}", also=True) for size in ("0.1m", "1m", "10m", "135m")]
    samples = {test.name: [0.01 * step, 0.01 * step + 0.002] * 4 for step, test in enumerate(sizes, 1)}
    tests = (question("slope", expect="same"), *sizes)
    small = several({"slope": [-0.001, 0.001] * 4, **samples}, *tests)
    small = dataclasses.replace(small, finding=dataclasses.replace(small.finding, name="f-by-size"))
    nano = several({"x": [0.05, 0.06] * 4}, question("x"))
    made = transfer_page.transfer_pages(templating.templates(), [nano], [nano, small], [])
    page = made[transfer_page.PAGE]
    (row,) = [line for line in page.splitlines() if "f-by-size" in line]
    assert "| [f](" not in page.partition("### Effects by the size of the model")[2]
    cells = [cell.partition(" (")[0].strip() for cell in row.split("|")[2:-1]]
    assert cells == ["+0.011", "+0.021", "+0.031", "+0.041", "+0.000", "8", "supported"]
    failed = CheckResult(
        Check("it learns", "accuracy", {"a": 1.0}, at_least=0.3), Estimate(0.1, 0.0, 0.2), False
    )
    small = dataclasses.replace(small, checks=(failed,))
    made = transfer_page.transfer_pages(templating.templates(), [nano], [nano, small], [])
    assert "| 8 | supported; a check failed |" in made[transfer_page.PAGE]
