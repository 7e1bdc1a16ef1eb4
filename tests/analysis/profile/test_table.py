"""Tables of profiles: dashes where an algorithm does not learn, failing seeds, neighbors by rate."""

from __future__ import annotations

import pytest
from helpers.profiles import RATE, entries, probe, profile, rows

from grpobench.analysis.profile.scores import build
from grpobench.analysis.profile.table import lines, rate_text

PROBES = [probe("learn"), probe("flips", against="learn")]
MEANS = {
    "strong": {"learn": 0.8, "flips": 0.4},
    "even": {"learn": 0.8, "flips": 0.8},
    "weak": {"learn": 0.1, "flips": 0.1},
}


def test_an_algorithm_that_does_not_learn_has_a_dash_and_a_footnote() -> None:
    text = lines(profile(MEANS, PROBES))
    assert entries(text, "weak")[2] == "–"
    assert any(line.startswith("–: runs without a score") and "0.20" in line for line in text)
    assert not any(line.startswith("–:") for line in lines(profile({"strong": {"learn": 0.8}}, PROBES[:1])))


def test_failing_seeds_stand_beside_the_score_and_old_rows_say_what_they_lack() -> None:
    learn = {"learn": probe("learn")}
    rates = {name: {"policy": RATE} for name in ("a", "b")}
    fails = {"a": rows("a", "learn", [0.8] * 8, failed=(0, 5)), "b": rows("b", "learn", [0.5] * 8)}
    text = lines(build(fails, learn, rates))
    assert entries(text, "a")[1] == "0.80 ± 0.01, 2/8 fail" and "fail" not in entries(text, "b")[1]
    assert not any("do not record failures" in line for line in text)
    old = {"a": rows("a", "learn", [0.8] * 8, failed=None), "b": rows("b", "learn", [0.5] * 8, failed=None)}
    assert any("The kept runs do not record failures" in line for line in lines(build(old, learn, rates)))


def test_rows_are_in_the_order_of_the_gate() -> None:
    made = profile({"b": {"learn": 0.5}, "a": {"learn": 0.3}, "c": {"learn": 0.9}}, PROBES[:1])
    assert [line.split()[1] for line in lines(made)[2:5]] == ["c", "b", "a"]


def test_one_algorithm_lists_at_most_five_names() -> None:
    means = {f"low{i}": {"learn": 0.2 + 0.001 * i} for i in range(7)} | {"high": {"learn": 0.9}}
    cells = entries(lines(profile(means, PROBES[:1]), "high"), "the learn")
    assert cells[4] == "7: low6, low5, low4, low3, low2 and 2 more"
    assert cells[5] == "0"


def test_scores_at_the_neighboring_rates() -> None:
    rows_by_algorithm = {
        name: [
            row
            for rate, score in ((1e-4, 0.1), (RATE, 0.5), (1e-2, 0.3))
            for row in rows(name, "credit", [score + shift for shift in (-0.01, 0, 0, 0.01)], rate)
        ]
        for name in ("a", "b")
    }
    made = build(
        rows_by_algorithm, {"credit": probe("credit")}, {name: {"policy": RATE} for name in rows_by_algorithm}
    )
    cells = entries(lines(made, "a"), "the credit")
    assert cells[2] == "0/4" and cells[6] == "0.50"
    assert cells[7].startswith("+0.40 (") and cells[7].endswith(" at 1e−4")
    assert cells[8].startswith("+0.20 (") and cells[8].endswith(" at 1e−2")


def test_unknown_names_are_refused() -> None:
    made = profile(MEANS, PROBES)
    with pytest.raises(ValueError, match="'gone' has no kept runs; known: even, strong, weak"):
        lines(made, "gone")
    with pytest.raises(ValueError, match="no scores are kept"):
        lines(profile({}, PROBES))


def test_learning_rates_are_written_alike() -> None:
    assert [rate_text(rate) for rate in (1e-4, 3e-3, 1e-2, 0.5)] == ["1e−4", "3e−3", "1e−2", "0.5"]
