"""Tests of which some runs fail: a mean over both kinds of run decides nothing, and two parts may.

AVERAGING are the accuracies of a kept finding: one run of eight collapses, and its zero makes +4.1 points of
seven seeds between −5.1 and +0.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.findings import finding, judge_controlled, kept_again, question, register, runs_of
from helpers.synthetic import Synthetic
from helpers.two_part_levels import CASES, p_values, shown

from grpobench.analysis.findings.description import parts_words
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.record import record_of
from grpobench.analysis.findings.result import Judged, as_row
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.two_parts import share_difference, widest_gap
from grpobench.runs.commands.finding import answer

AVERAGING = {
    "a": (0.469, 0.494, 0.456, 0.431, 0.478, 0.460, 0.471, 0.467),
    "b": (0.490, 0.493, 0.483, 0.481, 0.000, 0.480, 0.486, 0.484),
}


def judged(
    outcomes: Mapping[str, Sequence[float]], collapsed: Mapping[Key, int] | None = None, **changes: Any
) -> Judged:
    test = question(**changes)
    return judge(finding(test), {test.name: runs_of(outcomes)}, collapsed=collapsed or {}).primary


@pytest.mark.parametrize("collapsed", [{}, {("b", "t", 4): 12}], ids=["by the gap", "by the logs"])
def test_a_mean_over_runs_of_which_one_collapsed_says_so(collapsed: Mapping[Key, int]) -> None:
    """By hand: seven differences between −5.0 and +0.1 points, mean −2.1; b's share of collapses is 1/8."""
    test_result = judged(AVERAGING, collapsed)
    assert test_result.verdict == "unresolved" and "0 of 8 of a and 1 of 8 of b" in test_result.needs
    parts = test_result.two_parts
    assert parts is not None and (parts.failed, parts.runs, parts.seeds) == ((0, 1), (8, 8), 7)
    assert parts.share.value == -0.125 and parts.outcome.value == pytest.approx(-0.0213, abs=5e-5)
    assert parts.p_outcome == pytest.approx(4 / 128) and parts.p_share == 1.0
    words = parts_words(
        as_row(judge(finding(question(unit="points")), {"a is better": runs_of(AVERAGING)}))["tests"][0]
    )
    assert words.startswith("0 of 8 runs of a and 1 of 8 runs of b end below 0.24, apart from the others")
    assert words.endswith("In the 7 seeds in which no run does: −2.1 points (−3.5 to −0.7), p 0.0312")


def test_arms_of_a_sum_have_levels_of_their_own() -> None:
    """A slope over three models: the gap inside one of them divides no other."""
    levels = {"small": 0.2, "large": 0.9, "middle": 0.6}
    outcomes = {name: [level + seed / 1000 for seed in range(8)] for name, level in levels.items()}
    assert judged(outcomes, contrast={"small": -1, "middle": 0.1, "large": 1}).two_parts is None
    outcomes["middle"][3] = 0.1
    test_result = judged(outcomes, contrast={"small": -1, "middle": 0.1, "large": 1})
    parts = test_result.two_parts
    assert parts is not None and (parts.failed, parts.runs) == ((0, 1, 0), (8, 8, 8))
    assert "1 of 8 of middle and none of the rest end below" in test_result.needs


def test_runs_of_one_kind_have_one_part() -> None:
    rng = np.random.default_rng(0)
    plain = {arm: rng.normal(0.5, 0.02, 8) for arm in "ab"}
    test_result = judged({arm: list(map(float, values)) for arm, values in plain.items()})
    assert test_result.two_parts is None and "kinds" not in test_result.needs
    assert judged(AVERAGING, outcome="lasting", unit="updates").two_parts is None  # it measures the collapse
    assert judged(AVERAGING, {("b", "t", 4): 0}, outcome="base").two_parts is None


def test_a_share_of_runs_is_not_split_into_the_runs_that_count_and_the_others() -> None:
    """By hand: six of eight runs of a count and none of b's; the p of six equal signs is 2/64."""
    shares = {"a": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0), "b": (0.0,) * 8}
    test_result = judged(shares, outcome="above:0.05:gain", expect="higher", matters=0.1)
    assert (test_result.verdict, test_result.effect.value) == ("supported", 0.75)
    assert test_result.two_parts is None and test_result.p == 2 / 64


def test_equality_of_means_over_collapsed_runs_is_taken_back() -> None:
    """Both arms collapse in one seed, the others are equal: eight seeds do not show equal shares."""
    outcomes = {"a": [0.5] * 7 + [0.0], "b": [0.501] * 4 + [0.499] * 3 + [0.001]}
    test = question(expect="same")
    values = {test.name: runs_of(outcomes)}
    assert judge_controlled(finding(test), values).primary.verdict == "unresolved"
    same = {arm: [*values[:7], 0.5] for arm, values in outcomes.items()}
    assert judge_controlled(finding(test), {test.name: runs_of(same)}).primary.verdict == "supported"


def test_opposite_parts_decide_nothing() -> None:
    """The mean says that a is better in all seeds; of those that do not collapse it is worse."""
    outcomes = {"a": [0.5] * 14, "b": [0.0] * 7 + [0.51] * 7}
    collapsed = {("b", "t", seed): 0 for seed in range(7)}
    test_result = judged(outcomes, collapsed)
    assert test_result.verdict == "unresolved" and "opposite directions" in test_result.needs


def test_a_mean_that_every_seed_agrees_with_stands() -> None:
    """Five seeds without a collapse can decide nothing, but a is better in all six, however low b falls."""
    outcomes = {"a": [0.6, 0.61, 0.62, 0.61, 0.6, 0.62], "b": [0.5, 0.5, 0.0, 0.51, 0.5, 0.51]}
    test_result = judged(outcomes, {("b", "t", 2): 0})
    assert test_result.verdict == "supported" and "1 of 6 of b collapse" in test_result.needs
    worse = judged({**outcomes, "a": [0.49, *outcomes["a"][1:]]}, {("b", "t", 2): 0})
    assert worse.verdict == "unresolved"


@pytest.mark.parametrize(
    ("expect", "verdict"), [("higher", "contradicted"), ("lower", "supported"), ("same", "contradicted")]
)
def test_a_rule_that_asks_for_two_parts_is_judged_by_them(expect: str, verdict: str) -> None:
    test_result = judged(AVERAGING, two_part="at_most:0.1", expect=expect)
    assert test_result.verdict == verdict and test_result.p == pytest.approx(4 / 128)
    assert test_result.effect.value == pytest.approx(-0.0213, abs=5e-5) and len(test_result.seeds) == 7
    assert judged(AVERAGING, {("b", "t", 4): 3}, two_part="collapse", expect=expect).verdict == verdict


def test_a_share_at_the_cap_is_an_outcome() -> None:
    """Seven runs of a at the cap and one at 4 against one of b: by hand p = 2/2⁶ for six seeds."""
    lengths = {"a": [60, 61, 62, 59, 4, 59, 58, 60], "b": [7, 15, 11, 6, 12, 7, 10, 60]}
    test_result = judged(lengths, two_part="at_least:55", matters=1.25, ratio=True, unit="tokens")
    parts = test_result.two_parts
    assert parts is not None and (parts.failed, parts.share.value) == ((7, 1), 0.75)
    assert test_result.verdict == "supported" and parts.p_share == pytest.approx(2 / 64)


def test_the_simulation_has_the_p_of_the_judge() -> None:
    rng = np.random.default_rng(1)
    outcomes, failures = CASES["equal arms, a quarter fails"](rng, 5, 8)
    ps = np.stack(p_values(outcomes, failures)[1:], axis=1)
    for p, ours, fails in zip(ps, outcomes, failures, strict=True):
        collapsed = {("ab"[arm], "t", int(seed)): 0 for seed, arm in zip(*fails.nonzero(), strict=True)}
        test_result = judged({"a": list(ours[:, 0]), "b": list(ours[:, 1])}, collapsed, two_part="collapse")
        parts = test_result.two_parts
        assert parts is not None and (parts.p_outcome, parts.p_share) == pytest.approx(tuple(p))


def brute_force(outcomes: np.ndarray, failures: np.ndarray) -> list[float]:
    """p of the larger of both statistics over every swap of the arms of a seed; arrays are (seeds, 2)."""
    statistics = []
    for swaps in itertools.product((False, True), repeat=len(outcomes)):
        order = np.where(np.array(swaps)[:, None], [1, 0], [0, 1])
        ours, fails = (np.take_along_axis(array, order, 1) for array in (outcomes, failures))
        alive = ~fails.any(axis=1)
        contrasts = (ours[:, 0] - ours[:, 1])[alive], fails[:, 0].astype(float) - fails[:, 1]
        statistics.append(max(abs(c.sum()) / norm if (norm := math.sqrt(c @ c)) else 0.0 for c in contrasts))
    return [float(np.mean(np.array(statistics) >= value - 1e-9)) for value in statistics]


def test_p_is_that_of_all_joint_swaps_and_has_its_level() -> None:
    """If every swap is as likely, p is 5 % or less in at most 5 % of them."""
    rng = np.random.default_rng(3)
    failures = rng.random((8, 2)) < 0.25
    outcomes = rng.normal(size=(8, 2))
    p = brute_force(outcomes, failures)
    assert np.mean(np.array(p) <= 0.05) <= 0.05
    collapsed = {("ab"[arm], "t", int(seed)): 0 for seed, arm in zip(*failures.nonzero(), strict=True)}
    ours = judged({"a": list(outcomes[:, 0]), "b": list(outcomes[:, 1])}, collapsed, two_part="collapse").p
    assert ours == pytest.approx(p[0])


@pytest.mark.parametrize("case", [*CASES][:3])
def test_two_parts_err_no_more_often_than_a_mean(case: str) -> None:
    """The error of 1,000 repetitions is .7 points; the table of docs/judging.md has 4,000."""
    assert max(shown(case, 8, 1000)) <= 0.065


def test_a_share_that_differs_is_no_difference_of_the_others() -> None:
    _, both, others, _ = shown("5 and 60 % fail, the others are equal", 8, 1000)
    assert both > 0.2 and others <= 0.065


def test_an_interval_of_equal_shares_has_a_width() -> None:
    """By hand, eight seeds without a failure: ±1.96 · √(1/10)/√10 = ±.196."""
    share = share_difference([0.0] * 8)
    assert share.value == 0.0 and (share.low, share.high) == pytest.approx((-0.196, 0.196), abs=5e-4)
    assert share_difference([1.0] * 8).high == 1.0
    assert math.isnan(share_difference([]).value)


def test_a_gap_is_wider_than_either_kind() -> None:
    assert widest_gap([0.0, 0.48, 0.48, 0.49, 0.49, 0.5], 0.02) == (0.0, 0.48)
    assert widest_gap([0.0, 0.48, 0.49, 0.5], 0.02) is None  # too few runs
    assert widest_gap([0.0, 0.001, 0.001, 0.001, 0.001, 0.001], 0.02) is None  # smaller than what matters
    assert widest_gap([0.1, 0.2, 0.3, 0.4, 0.5, 0.9], 0.02) is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"two_part": "crash"}, "write collapse, at_most:NUMBER or at_least:NUMBER, not 'crash'"),
        ({"two_part": "at_most:nan"}, "write collapse, at_most:NUMBER or at_least:NUMBER, not 'at_most:nan'"),
        ({"two_part": "collapse", "contrast": {"a": 1.0}}, "weights of the contrast must add up to 0"),
        ({"two_part": "collapse", "outcome": "lasting"}, "no run fails in the outcome lasting"),
    ],
)
def test_a_rule_that_cannot_have_two_parts_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        question(**changes)


def test_collapses_are_kept_and_shown(tmp_path: Path) -> None:
    """A run that collapses and goes on to the end is `finished`; the kept table names its collapse."""
    made = Synthetic(
        arms=("a", "b"), tasks=("sums",), seeds=(1, 2), falls={("a", "sums", 1): 20}, name="f-nano"
    )
    root = made.write(tmp_path)
    register(root, finding(question()))
    record = record_of(load(root))
    assert record.states["a", "sums", 1] == "finished" and record.collapsed_at == {("a", "sums", 1): 20}
    again = kept_again(record, tmp_path)
    assert again.collapsed_at == record.collapsed_at
    row = as_row(again.result())
    row |= {"scale": "nano", "departures": [], "exploratory": None, "rerun": None}
    lines = answer({**row, "registered": "", "commit": "", "rule": ""})
    assert any("1 of 2 runs of a and 0 of 2 runs of b collapse" in line for line in lines)
