"""Tables of profiles: dashes where an algorithm does not learn, marks that are shared, neighbors by rate."""

from __future__ import annotations

import pytest
from helpers.profiles import RATE, probe, profile, rows

from grpobench.analysis.profile.scores import build
from grpobench.analysis.profile.table import lines, rate_text, short_marks

PROBES = [probe("learn"), probe("flips", against="learn")]
MEANS = {
    "strong": {"learn": 0.8, "flips": 0.4},
    "even": {"learn": 0.8, "flips": 0.8},
    "weak": {"learn": 0.1, "flips": 0.1},
}


def entries(text: list[str], name: str) -> list[str]:
    line = next(line for line in text if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_an_algorithm_that_does_not_learn_has_a_dash_and_a_footnote() -> None:
    text = lines(profile(MEANS, PROBES))
    assert entries(text, "weak")[2] == "–"
    assert any(line.startswith("–: runs without a score") and "0.20" in line for line in text)
    assert not any(line.startswith("–:") for line in lines(profile(MEANS, PROBES), probes=["learn"]))


def test_what_is_not_told_apart_shares_a_mark() -> None:
    text = lines(profile(MEANS, PROBES))
    marks = {name: entries(text, name)[1].split()[-1] for name in MEANS}
    assert marks["strong"] == marks["even"] == "a"
    assert marks["weak"] == "b"
    # 0.4/0.8 against 0.8/0.8 of the gain
    assert [entries(text, name)[2].split()[0] for name in ("strong", "even")] == ["0.50", "1.00"]


def test_rows_are_in_the_order_of_the_gate_or_of_names() -> None:
    made = profile({"b": {"learn": 0.5}, "a": {"learn": 0.3}, "c": {"learn": 0.9}}, PROBES[:1])
    assert [line.split()[1] for line in lines(made)[2:5]] == ["c", "b", "a"]
    assert [line.split()[1] for line in lines(made, order="name")[2:5]] == ["a", "b", "c"]


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
    assert entries(lines(made, "a"), "the credit")[6] == "0.10 / 0.50 / 0.30"


def test_unknown_names_are_refused() -> None:
    made = profile(MEANS, PROBES)
    with pytest.raises(ValueError, match="'gone' has no kept runs; known: even, strong, weak"):
        lines(made, "gone")
    with pytest.raises(ValueError, match="unknown 'gone'; known: learn, flips"):
        lines(made, probes=["gone"])
    with pytest.raises(ValueError, match="no scores are kept"):
        lines(profile({}, PROBES))


def test_three_neighboring_marks_are_a_range() -> None:
    assert short_marks("abcdxyA") == "a-dxyA"
    assert short_marks("yzAB") == "yzAB"  # z and A are no neighbors
    assert short_marks("a1b1c1") == "a1b1c1"


def test_learning_rates_are_written_alike() -> None:
    assert [rate_text(rate) for rate in (1e-4, 3e-3, 1e-2, 0.5)] == ["1e−4", "3e−3", "1e−2", "0.5"]
