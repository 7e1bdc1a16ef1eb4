"""The page docs/profiles.md: a small one word for word, and expected orders by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.profiles import probe, profile, rows

from grpobench.analysis.profile.document import ExpectedOrder, document, expected_orders, judge_orders
from grpobench.analysis.profile.page import page
from grpobench.runs.settings.probes import probes as shipped

PROBES = [probe("learn"), probe("flips", against="learn", high=["best"], low=["worst"])]
MEANS = {
    "best": {"learn": 0.8, "flips": 0.7},
    "middle": {"learn": 0.8, "flips": 0.7},
    "worst": {"learn": 0.8, "flips": 0.4},
    "still": {"learn": 0.05, "flips": 0.0},
}


def test_a_small_document() -> None:
    controls = rows("positive", "learn", [0.9, 0.92]) + rows("negative", "learn", [0.0, 0.02])
    text = document(profile(MEANS, PROBES), controls, {"best": rows("best", "learn", [0.8] * 8)}, deals=20)
    assert text == (Path(__file__).parent / "document.txt").read_text(encoding="utf-8")


def test_algorithms_without_a_profile_are_named() -> None:
    made = profile(MEANS, PROBES)
    assert "No profile: cora, rredcot. `grpobench profile NAME` says why." in document(
        made, [], deals=1, without=["cora", "rredcot"]
    )
    assert "No profile" not in document(made, [], deals=1)


def test_orders_of_high_and_low() -> None:
    orders = {(pair.higher, pair.lower) for pair in expected_orders(PROBES[1], ["best", "middle", "worst"])}
    assert orders == {("best", "middle"), ("best", "worst"), ("middle", "worst")}


def test_two_algorithms_of_high_have_no_order() -> None:
    two_best = probe("x", high=["a", "b"])
    assert {(pair.higher, pair.lower) for pair in expected_orders(two_best, "abc")} == {
        ("a", "c"),
        ("b", "c"),
    }


def test_orders_hold_are_reversed_or_unresolved() -> None:
    compared = profile(MEANS, PROBES).compared["flips"]
    result = judge_orders(
        [ExpectedOrder("best", "worst"), ExpectedOrder("worst", "middle"), ExpectedOrder("best", "middle")],
        compared,
    )
    assert result.hold == [ExpectedOrder("best", "worst")]
    assert result.reversed == [ExpectedOrder("worst", "middle")]
    assert result.unresolved == [ExpectedOrder("best", "middle")]


def test_a_document_without_scores_is_refused() -> None:
    with pytest.raises(ValueError, match="no scores are kept"):
        document(profile({}, PROBES), [])


def test_every_probe_of_the_suite_fits_its_sentences() -> None:
    probes = [a_probe for a_probe in shipped().values() if a_probe.runs != "ladder"]
    others = {
        f"other{i}": {a_probe.name: 0.5 * (a_probe.zero + a_probe.one) for a_probe in probes}
        for i in range(4)
    }
    means = others | {
        "mine": {a_probe.name: a_probe.zero + 0.9 * (a_probe.one - a_probe.zero) for a_probe in probes}
    }
    text = page(profile(means, probes), "mine")
    # robustness is relative to the gain on `learn`, where it is higher as well
    for a_probe in (a_probe for a_probe in probes if not a_probe.against):
        assert f"- It {a_probe.good}: {a_probe.title} 0.9" in " ".join(text.split())
