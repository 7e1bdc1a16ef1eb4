"""Controls of probes: Welch's test of a difference above the resolution, and the clean gain below a dose."""

from __future__ import annotations

import math

import pytest
from helpers.profiles import probe, profile, rows
from scipy import stats

from grpobench.analysis.profile.controls import judge
from grpobench.analysis.profile.scores import Profile

PROBES = [probe("learn"), probe("flips", against="learn")]


@pytest.fixture
def made() -> Profile:
    means = {"grpo": {"learn": 0.5}, "other": {"learn": 0.5}}
    return profile(means, PROBES)


def test_the_test_is_welchs_beyond_the_resolution(made: Profile) -> None:
    high, low = [0.5, 0.6, 0.7, 0.65], [0.4, 0.45, 0.5]
    judgment = judge(rows("positive", "learn", high) + rows("negative", "learn", low), made)["learn"]
    welch = stats.ttest_ind([x - 0.02 for x in high], low, equal_var=False, alternative="greater")
    assert judgment.p == pytest.approx(welch.pvalue)
    assert judgment.difference == pytest.approx(0.6125 - 0.45)
    assert judgment.positive is not None
    interval = stats.ttest_1samp(high, 0).confidence_interval(0.95)
    assert (judgment.positive.low, judgment.positive.high) == pytest.approx(tuple(interval))


def test_equal_and_reversed_controls_are_not_separated(made: Profile) -> None:
    scores = [0.5, 0.52, 0.48]
    for high in (scores, [score - 0.3 for score in scores]):
        judgment = judge(rows("positive", "learn", high) + rows("negative", "learn", scores), made)["learn"]
        assert judgment.separated is False


def test_agreeing_seeds_do_not_make_a_certain_result(made: Profile) -> None:
    judgment = judge(rows("positive", "learn", [1.0] * 4) + rows("negative", "learn", [0.0] * 4), made)[
        "learn"
    ]
    assert judgment.separated
    assert judgment.p > 0


def test_under_a_dose_scores_are_shares_of_the_clean_gain_of_the_controls_algorithm(made: Profile) -> None:
    control_rows = rows("positive", "flips", [0.5, 0.4]) + rows("negative", "flips", [0.1, 0.0])
    judgment = judge(control_rows, made)["flips"]
    assert judgment.positive is not None
    assert judgment.positive.scores == pytest.approx((1.0, 0.8))


def test_without_a_clean_gain_there_is_no_score() -> None:
    made = profile({"grpo": {"learn": 0.1}, "other": {"learn": 0.5}}, PROBES)
    judgment = judge(rows("positive", "flips", [0.5, 0.4]), made)["flips"]
    assert judgment.positive is None
    assert judgment.separated is None


def test_one_seed_cannot_be_tested(made: Profile) -> None:
    judgment = judge(rows("positive", "learn", [0.9]) + rows("negative", "learn", [0.1, math.nan]), made)[
        "learn"
    ]
    assert judgment.separated is None
    assert judgment.difference == pytest.approx(0.8)


def test_unknown_rows_are_refused(made: Profile) -> None:
    with pytest.raises(ValueError, match="no 'positive' of probe 'gone'; remove the row"):
        judge(rows("positive", "gone", [0.5]), made)
