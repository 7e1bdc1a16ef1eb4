"""The page of an algorithm: sentences come from verdicts alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.profiles import RATE, probe, profile, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.analysis.profile.page import ProbePosition, changes, page
from grpobench.analysis.profile.scores import build

PROBES = [probe("learn"), probe("flips", against="learn"), probe("credit")]
OTHERS = {f"other{i}": {"learn": 0.6, "flips": 0.3, "credit": 0.5} for i in range(6)}


def test_a_sentence_says_what_is_told_apart_and_nothing_else() -> None:
    made = profile(OTHERS | {"mine:Half": {"learn": 0.6, "flips": 0.5, "credit": 0.2}}, PROBES)
    text = page(made, "mine:Half")
    good, bad = text.split("## Bad at")
    assert "It does well in flips: the flips 0.83 (" in good
    assert "above 6 of 6 algorithms, below 0." in good
    assert "It does badly in credit: the credit 0.20 (" in bad
    assert "above 0 of 6 algorithms, below 6." in bad
    assert "Nothing can be told: the learn 0.60" in bad
    assert "in learn:" not in text


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([0.3, 0.4, 0.5]), min_size=3, max_size=6), st.sampled_from([0.3, 0.4, 0.5]))
def test_good_and_bad_need_a_quarter_of_the_others_and_few_against(others: list[float], mine: float) -> None:
    means = {f"other{i}": {"learn": mean} for i, mean in enumerate(others)} | {"mine": {"learn": mine}}
    text = page(profile(means, PROBES[:1]), "mine")
    # means that differ by 0.1, with a spread of ± 0.02 over 8 seeds, are always told apart
    above, below = sum(mean < mine for mean in others), sum(mean > mine for mean in others)
    assert ("does well" in text) == (above >= len(others) / 4 and below <= len(others) / 10)
    assert ("does badly" in text) == (below >= len(others) / 4 and above <= len(others) / 10)


@pytest.mark.parametrize(
    ("others", "above", "below", "kind"),
    [
        (36, 9, 3, "good"),
        (36, 8, 0, "unresolved"),
        (36, 9, 4, "between"),
        (36, 3, 9, "bad"),
        (36, 15, 15, "between"),
        (0, 0, 0, "unresolved"),
    ],
)
def test_kinds(others: int, above: int, below: int, kind: str) -> None:
    assert ProbePosition(PROBES[0], others, above, below).kind == kind


def test_a_probe_without_a_score_is_named() -> None:
    text = page(profile(OTHERS | {"mine": {"learn": 0.1, "flips": 0.1}}, PROBES), "mine")
    assert "No score on the flips: runs without a score." in text


def test_a_change_names_the_mechanism_only_where_it_is_told_apart() -> None:
    made = profile(OTHERS | {"mine": {"learn": 0.6, "flips": 0.5, "credit": 0.2}}, PROBES)
    verdicts = {change.probe.name: change.verdict for change in changes(made, "mine", "other0")}
    assert verdicts == {"learn": "not told apart", "flips": "higher", "credit": "lower"}
    text = page(made, "mine", "other0")
    assert "What flips isolates." in text
    assert "What credit isolates." in text
    assert "What learn isolates." not in text
    assert "Told apart on 2 of 3 probes: the flips (higher), the credit (lower)." in text
    alike = profile(OTHERS | {"mine": dict(OTHERS["other0"])}, PROBES)
    flat = " ".join(page(alike, "mine", "other0").split())
    assert f"None of {len(PROBES)} probes tells it from other0 by its score:" in flat
    credit = next(change.pair for change in changes(made, "mine", "other0") if change.probe.name == "credit")
    assert credit.difference == pytest.approx(-0.3)
    assert f"| −0.30 ({credit.low:.2f}".replace("-", "−") in text


def test_a_baseline_is_another_algorithm_with_runs() -> None:
    made = profile(OTHERS, PROBES)
    with pytest.raises(ValueError, match="'other0' is the algorithm itself"):
        page(made, "other0", "other0")
    with pytest.raises(ValueError, match="baseline: 'gone' has no kept runs"):
        page(made, "other0", "gone")


def test_cost_counts_a_run_once_and_the_search_is_of_the_gate() -> None:
    probes = [*PROBES, replace(probe("diversity"), runs="learn")]
    made = profile(OTHERS, probes)
    run_rows = rows("other0", "learn", [0.5, 0.6]) + rows("other0", "diversity", [0.5, math.nan])
    search = rows("other0", "learn", [0.1, 0.3], 1e-4) + rows("other0", "diversity", [0.9, 0.9], RATE)
    text = page(made, "other0", rows=run_rows, search=search)
    assert "Cost: 2 runs, 1.0 minutes in sum" in text
    assert "Search of the policy's rate by `the learn`, 2 seeds used by nothing else: 1e−4: 0.20." in text


def test_a_page_says_which_seeds_fail_and_what_other_rates_lose() -> None:
    of = {
        name: rows("x", "learn", [0.8] * 8, failed=(2,))
        + rows("x", "learn", [0.5] * 8, 2 * RATE, failed=(0, 2))
        for name in ("a", "b")
    }
    made = build(of, {"learn": probe("learn")}, {name: {"policy": RATE} for name in of})
    text = " ".join(page(made, "a", "b").split())
    assert "the learn 0.80 (0.80 to 0.80), above 0 of 1, below 0, 1 of 8 seeds fail" in text
    assert "| the learn | 1e−3 (best) | 0.80 | 0.80 to 0.80 | 1/8 |" in text
    assert "| the learn | 2e−3 | 0.50 | 0.50 to 0.50 | 2/8 |" in text
    assert "the learn above +0.30 (+0.30 to +0.30) at 2e−3, 2/8 fail" in text
    assert "1/8 to 1/8" in text
    alone = page(profile(OTHERS, PROBES), "other0")
    assert (
        "All runs are at the best rate, 1e−3. `grpobench profile other0 --rates 0.5,1,2` adds others."
        in alone
    )
