"""The pages of findings: one for each kept finding, in step with its table, and found from the index."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from grpobench.analysis.findings.errors import error_words
from grpobench.analysis.findings.planned import planned_of
from grpobench.runs.inventory import folders, gallery, templating
from grpobench.runs.inventory.findings import judging
from grpobench.runs.settings.findings import findings, read_finding

DOCS = Path(__file__).parents[3] / "docs"
KEPT = sorted({path.stem.rpartition("-")[0] for path in (DOCS / "results" / "findings").glob("*.json")})


@cache
def entries() -> list[gallery.FindingEntry]:
    return gallery.finding_entries(DOCS / "results" / "findings")


@cache
def written() -> dict[str, str]:
    return gallery.finding_pages(templating.templates(), entries())


def test_committed_pages_are_those_that_the_command_writes() -> None:
    here = {path.relative_to(DOCS).as_posix() for path in (DOCS / gallery.PAGES).glob("*.md")}
    assert {gallery.PAGE, *here} == set(written()), "run `grpobench docs`"
    stale = [name for name, text in written().items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert not stale, "run `grpobench docs`"


def test_every_kept_finding_has_a_page_that_the_index_links_with_its_claim_and_conclusion() -> None:
    index = written()[gallery.PAGE].splitlines()
    for entry in entries():
        name, scale = entry.study.finding.name, entry.record.registration.scale
        anchor = "" if scale == "nano" else f"#{scale}-scale"
        (line,) = [line for line in index if line.startswith(f"| [{name}](findings/{name}.md{anchor}) |")]
        assert templating.cell(templating.reworded(entry.result.finding.claim)) in line
        assert f"| {scale} | {entry.result.label} |" in line
    assert {path.stem for path in map(Path, written())} == {*KEPT, "findings"}


@pytest.mark.parametrize("name", KEPT)
def test_a_page_has_claim_conclusion_tests_figure_provenance_and_commands(name: str) -> None:
    page = written()[f"{gallery.PAGES}/{name}.md"]
    assert page.startswith("<!-- Written by `grpobench docs`") and f"\n# {name}\n" in page
    words = " ".join(page.split())
    least = next(iter(read_finding(name).scales))
    command = f"grpobench finding judge {name}" + f" --scale {least}" * (least != "nano")
    assert f"`{command}`" in page and findings()[name].exists()
    for entry in (entry for entry in entries() if entry.study.finding.name == name):
        scale, finding = entry.record.registration.scale, entry.record.registration.finding
        assert f"\n## {scale.capitalize()} scale\n" in page
        assert (
            f"`grpobench finding run {name} --scale {scale}`" in page and scale in read_finding(name).scales
        )
        assert " ".join(templating.reworded(entry.result.finding.claim).split()) in words
        assert f"**{entry.result.label.capitalize()}**" in words
        judged = {test_result.test.name for test_result in entry.result.tests}
        # A secondary test is left out where the scale lacks its arms.
        tests = [test for test in entry.result.finding.test if test.name in judged or not test.also]
        assert all(f"{templating.cell(templating.reworded(test.name))}" in words for test in tests)
        assert f"rule `{finding.digest}`" in page
        assert all(commit in page for commit in entry.record.provenance.commits)


def test_a_corrected_rule_judges_and_the_registered_conclusion_stands_beside() -> None:
    """CORA gained accuracy where the rule asked for equal accuracy, and was called contradicted for it."""
    (entry,) = (entry for entry in entries() if entry.name == "consistency-nano")
    assert entry.record.result().verdict == "contradicted" and entry.result.verdict == "supported"
    (departure,) = judging.departed(entry.study, entry.record)
    assert departure == "the rule was corrected after the runs; as registered: contradicted"
    page = " ".join(written()["findings/consistency.md"].split())
    assert f"**Supported** (exploratory: {departure})" in page
    assert f"**Corrected rule.** {entry.study.correction}" in page
    # Without a reason in the file, or where the runs lack an outcome, the registered rule decides.
    silent = replace(entry.study, correction="")
    assert judging.judging_rule(silent, entry.record) == entry.record.registration.finding
    assert judging.departed(silent, entry.record) == ["the rule was changed after the registration"]
    other = replace(entry.study.finding.test[0], outcome="evaluated:greedy/supported")
    unmeasured = replace(
        entry.study, finding=replace(entry.study.finding, test=(other,), check=(), control=())
    )
    assert judging.judging_rule(unmeasured, entry.record) == entry.record.registration.finding


def test_two_halves_of_a_claim_have_two_conclusions_on_the_page() -> None:
    page = written()["findings/critic-cost.md"]
    assert "**Compute: supported, memory: supported**" in page
    assert "| compute: 2.06 times (1.97 to 2.16); memory: 2.00 times (2.00 to 2.00) |" in page


def test_no_figure_of_a_finding_is_left_without_a_page() -> None:
    shown = {
        Path(address).name for text in written().values() for address in re.findall(r"\]\(([^)]+\.svg)", text)
    }
    assert {path.name for path in (DOCS / gallery.PAGES).glob("*.svg")} == shown - {Path(gallery.FIGURE).name}


def test_a_kept_finding_has_one_address_by_kind() -> None:
    results = Path("results")
    assert folders.kept_finding(results, "a-a", "nano") == results / "findings/a-a-nano.json"
    again = folders.kept_finding(results, "a-a", "small", folders.AGAIN)
    assert again == results / "again/findings/a-a-small.json"


BEFORE_POWER = """
averaging baseline clip-higher consistency critic-free-compute diversity-loss elicitation group-size kl-anchor
long-horizon long-run-collapse median-baseline neighbor-mixing no-clip one-shot-bias placebo reward-noise
routing-replay sampler-gap-collapse segment-credit staleness std-bias zero-gap zero-signal
"""
"""Findings that were registered before their power at what matters was computed. None may be added."""


def test_a_finding_with_little_power_says_why_it_ran() -> None:
    weak = {re.findall(r"findings/([\w-]+)\.md", link)[0] for link in gallery.weak_conclusions(entries())}
    assert {"std-bias", "long-run-collapse"} <= weak and "critic-cost" not in weak
    assert {name for name in weak if not read_finding(name).underpowered} <= {*BEFORE_POWER.split()}


def test_a_page_shows_power_and_why_little_was_enough() -> None:
    (entry,) = [entry for entry in entries() if entry.name == "std-bias-nano"]
    reason = "A reason that nobody has given yet."
    changed = dataclasses.replace(
        entry, study=dataclasses.replace(entry.study, underpowered={"nano": reason})
    )
    page = gallery.finding_pages(templating.templates(), [changed])["findings/std-bias.md"]
    assert f"**Power below 80 %.** {reason}" in page
    # SD of the logarithm .77 over twelve seeds, ln 1.25 = .22
    assert "| 2.83 times (1.73 to 4.62) | 1.25 times | 15 % |" in page
    assert "(1.73 to 4.62)" in written()["findings/std-bias.md"]
    assert reason not in written()["findings/std-bias.md"]


def test_the_index_and_the_highlights_say_how_many_conclusions_may_be_wrong() -> None:
    """By the kept rules, and as `grpobench docs` writes it."""
    index = " ".join(written()[gallery.PAGE].split())
    rules = [entry.result.finding for entry in entries()]
    leveled = sum(any(not (test.also or test.deals) for test in rule.test) for rule in rules)
    assert f"{leveled} of the {len(rules)} conclusions have a level of 5 %" in index
    assert (
        f"at most {0.05 * leveled:.1f} of them are expected to state a difference where there is none"
        in index
    )
    pages = [text for page, text in written().items() if page.startswith(f"{gallery.PAGES}/")]
    secondary = sum(
        line.startswith("|") and "*(secondary)*" in line for text in pages for line in text.splitlines()
    )
    highlights = " ".join((DOCS / "highlights.md").read_text(encoding="utf-8").split())
    assert error_words(rules, secondary) in highlights and error_words(rules, secondary) in index


def test_a_page_tells_what_an_earlier_rule_concluded_at_its_first_scale() -> None:
    first = [
        entry for entry in entries() if entry.record.registration.scale == next(iter(entry.study.scales))
    ]
    assert {entry.record.registration.scale for entry in first if entry.earlier} == {"nano", "small"}
    for entry in first:
        page = written()[f"{gallery.PAGES}/{entry.study.finding.name}.md"]
        assert ("An earlier rule concluded " in page) == (entry.earlier is not None)


def test_a_question_that_another_finding_asks_again_counts_once() -> None:
    """Its page and its row in the index stay; the number of claims and the page on two scales skip it."""
    again = {entry.study.finding.name: entry.study.asked_again_by for entry in entries()}
    superseded = [name for name, other in again.items() if other]
    assert superseded and all(again[again[name]] == "" for name in superseded)
    nano = gallery.at_scale(entries(), "nano")
    index = written()[gallery.PAGE]
    assert f"{len(nano) - len(superseded)} claims have a conclusion" in index
    transfer = (DOCS / "transfer.md").read_text(encoding="utf-8")
    for name in superseded:
        assert f"[{name}](findings/{name}.md)" in index and f"{name}.md" not in transfer


def test_seeds_that_would_decide_stand_beside_tests_that_lack_seeds_alone() -> None:
    for entry in entries():
        page = written()[f"{gallery.PAGES}/{entry.study.finding.name}.md"]
        for judged in entry.result.tests:
            planned = planned_of(judged)
            words = f"unresolved: {planned.to_decide_words} would decide |"
            if gallery.lacks_seeds(judged, planned) and planned.to_decide_words:
                assert judged.two_parts is None and not judged.test.best_rate
                assert words in page
    (mixed,) = [entry for entry in entries() if entry.name == "tool-price-nano"]
    kinds = [judged for judged in mixed.result.tests if judged.two_parts is not None]
    assert kinds and not any(gallery.lacks_seeds(judged, planned_of(judged)) for judged in kinds)
