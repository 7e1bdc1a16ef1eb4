"""The matrix of algorithms that a reader names: pairs by score and by failures, turned around, in words."""

from __future__ import annotations

import pytest
from helpers.profiles import RATE, entries, probe, profile, rows
from scipy import stats

from grpobench.analysis.profile.curves import RatePoint
from grpobench.analysis.profile.matrix import compare_failures, matrix, matrix_lines
from grpobench.analysis.profile.page import page
from grpobench.analysis.profile.scores import Profile, build

PROBES = [probe("learn"), probe("credit")]
MEANS = {
    "high": {"learn": 0.9, "credit": 0.2},
    "middle": {"learn": 0.5, "credit": 0.2},
    "low": {"learn": 0.1, "credit": 0.8},
}


@pytest.fixture(scope="module")
def made() -> Profile:
    return profile(MEANS, PROBES)


def test_a_column_is_higher_where_the_row_is_lower(made: Profile) -> None:
    text = matrix_lines(matrix(made, ["high", "middle", "low"]))
    assert entries(text, "high")[1:] == ["", "1 lower of 2", "1 higher, 1 lower of 2"]
    assert entries(text, "middle")[1:] == ["1 higher of 2", "", "1 higher, 1 lower of 2"]
    shown = matrix(made, ["high", "low"])
    for forth, back in zip(shown.pairs["high", "low"], shown.pairs["low", "high"], strict=True):
        assert forth.score and back.score and forth.side == -back.side
        assert (forth.score.low, forth.score.high) == (-back.score.high, -back.score.low)


def test_a_sentence_says_from_how_many_an_algorithm_is_told(made: Profile) -> None:
    text = matrix_lines(matrix(made, ["high"], ["high", "middle", "low"]))
    assert (
        "- By score, at least one probe tells high from 2 of 2: the learn from 2, the credit from 1." in text
    )
    assert entries(text, "middle") == ["middle", "1 higher of 2"]
    assert not any(line.startswith("| high ") for line in text)


def test_failures_are_told_apart_by_an_exact_test_of_their_own() -> None:
    """Eight seeds of eight fail against none: p = 2/C(16, 8)."""
    fails = {"steady": (), "fragile": (1, 3, 5, 7), "broken": tuple(range(8))}
    of = {name: rows(name, "learn", [0.5, 0.52] * 4, failed=failed) for name, failed in fails.items()}
    made = build(of, {"learn": probe("learn")}, {name: {"policy": RATE} for name in of})
    (pair,) = matrix(made, ["steady"], ["broken"]).pairs["steady", "broken"]
    assert pair.score is None and pair.failures.text == "0/8 to 8/8"
    assert pair.failures.p == pytest.approx(2 / 12870) and pair.failures.told_apart
    text = matrix_lines(matrix(made, ["steady"], ["fragile", "broken"]))
    assert entries(text, "broken")[1] == "1 fails less of 0"
    assert entries(text, "fragile")[1] == "none of 1"
    assert "Failures tell it from 1." in " ".join(text)
    assert "| the learn | steady − broken | –" in "".join(text)
    assert "| the learn | –" in page(made, "steady", "broken") and "0/8 to 8/8, told apart" in page(
        made, "steady", "broken"
    )


def test_failures_are_corrected_over_the_pairs_and_left_out_where_they_are_not_recorded() -> None:
    few, many = RatePoint(RATE, {}, (0,), 8), RatePoint(RATE, {}, (0, 1, 2, 3, 4, 5), 8)
    unknown = RatePoint(RATE, {}, None, 8)
    pairs = compare_failures([(few, many), (few, unknown), (few, few)])
    p = stats.fisher_exact([[1, 7], [6, 2]]).pvalue
    assert pairs[0].p == pytest.approx(p) and pairs[0].q == pytest.approx(min(2 * p, 1))
    assert not pairs[1].told_apart and pairs[1].text == "1/8 to –"
    assert pairs[0].difference == pytest.approx(-5 / 8)


def test_what_cannot_be_compared_is_refused(made: Profile) -> None:
    with pytest.raises(ValueError, match="--against: 'gone' has no kept runs"):
        matrix(made, ["high"], ["gone"])
    with pytest.raises(ValueError, match="needs two algorithms"):
        matrix(made, ["high"])
