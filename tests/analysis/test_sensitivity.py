"""Checks, controls and doses of a finding: what they change in its conclusion, and that they change nothing
where a difference is shown."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.findings import CONTROL, finding, judge_controlled, pairs, question, recorded, runs_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.findings import description, rule
from grpobench.analysis.findings.attachment import mismatches, without_peaks
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.result import Result, as_row
from grpobench.analysis.findings.survival import draw_survival
from grpobench.analysis.statistics.maxima import joint_ps
from grpobench.analysis.statistics.survival import paired_log_rank

STRONG, TINY = [0.05] * 8, [0.001, -0.001] * 4
NOTHING = [0.1, -0.08, 0.06, -0.04, 0.1, -0.02, 0.03, -0.07]
AGAINST = [-value for value in STRONG]


def check(**changes: Any) -> rule.Check:
    defaults: dict[str, Any] = {
        "name": "active",
        "outcome": "accuracy",
        "contrast": {"k": 1.0},
        "at_least": 0.01,
    }
    return rule.Check(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("differences", "expect", "control", "active", "verdict"),
    [
        (TINY, "higher", STRONG, 0.02, "equivalent"),
        (TINY, "higher", NOTHING, 0.02, "insensitive"),  # the control shows nothing
        (TINY, "higher", AGAINST, 0.02, "insensitive"),  # the control shows the opposite
        (TINY, "higher", [0.021] * 8, 0.02, "equivalent"),
        (TINY, "higher", [0.01] * 8, 0.02, "insensitive"),  # shown, and smaller than what matters
        (TINY, "higher", STRONG, 0.009, "insensitive"),  # the check fails
        (NOTHING, "higher", STRONG, 0.02, "unresolved"),
        (NOTHING, "higher", STRONG, 0.009, "insensitive"),
        (NOTHING, "higher", NOTHING, 0.02, "insensitive"),
        (TINY, "same", STRONG, 0.02, "supported"),
        (TINY, "same", TINY, 0.02, "insensitive"),  # nothing differs anywhere
        (STRONG, "same", TINY, 0.0, "contradicted"),  # a difference needs no control
        (STRONG, "higher", TINY, 0.0, "supported"),
        (AGAINST, "higher", TINY, 0.0, "contradicted"),
        (TINY, "not lower", STRONG, 0.02, "supported"),
        (TINY, "not lower", TINY, 0.02, "insensitive"),  # that nothing is lost needs a control
        (STRONG, "not lower", TINY, 0.0, "supported"),  # a gain needs none
    ],
)
def test_nothing_is_said_where_nothing_could_be_seen(
    differences: list[float], expect: str, control: list[float], active: float, verdict: str
) -> None:
    test = question(expect=expect)
    checked_finding = finding(test, check=(check(),))
    values = {test.name: pairs(differences), "active": runs_of({"k": [active] * 8})}
    result = judge_controlled(checked_finding, values, control=control)
    assert (result.verdict, result.primary.verdict) == (verdict, verdict)
    row = json.loads(json.dumps(as_row(result)))
    assert row["checks"][0]["passed"] is (active >= 0.01)
    assert row["control"][0]["shown"] == (control in (STRONG, [0.021] * 8))


def test_equivalence_is_never_said_without_a_control() -> None:
    test = question()
    alone = judge(finding(test), {test.name: pairs(TINY)})
    assert alone.verdict == "insensitive"
    assert "no control says that these runs could have shown a difference" in alone.primary.needs
    assert "else equivalent: p" in alone.primary.needs  # nothing is hidden
    assert judge(finding(test), {test.name: pairs(NOTHING)}).verdict == "unresolved"
    assert judge(finding(test), {test.name: pairs(STRONG)}).verdict == "supported"


def test_what_a_check_or_control_does_not_concern_it_does_not_change() -> None:
    tests = question("x"), question("y")
    other = replace(CONTROL, name="of y", tests=("y",))
    checked_finding = finding(*tests, check=(check(tests=("y",)),), control=(CONTROL, other))
    values = {"x": pairs(TINY), "y": pairs(TINY), "active": runs_of({"k": [0.0] * 8})}
    values |= {CONTROL.name: runs_of({"c": STRONG}), "of y": runs_of({"c": NOTHING})}
    result = judge(checked_finding, values)
    assert [test_result.verdict for test_result in result.tests] == ["equivalent", "insensitive"]
    assert result.verdict == "equivalent"  # of the primary test
    assert "a check failed: active; a control shows nothing: of y" in result.tests[1].needs
    assert description.result_words(result).startswith("The primary test's effect is smaller")


def test_a_control_of_another_outcome_says_nothing() -> None:
    """As where GRPO at a low rate loses sampled accuracy, and greedy accuracy is at its ceiling."""
    test = question(outcome="equal:seconds")
    values = {test.name: pairs(TINY), CONTROL.name: runs_of({"c": STRONG})}
    result = judge(finding(test, control=(CONTROL,)), values)
    assert result.verdict == "insensitive"
    assert "its control measures another outcome: accuracy, not equal:seconds" in result.primary.needs
    gain = question(outcome="gain")  # is accuracy, less the base's
    assert judge(finding(gain, control=(CONTROL,)), values).verdict == "equivalent"
    # A check for room is of its outcome only; one of a mechanism concerns every test.
    full = check(outcome="accuracy", at_least=None, at_most=0.9)
    fits = replace(CONTROL, outcome="equal:seconds")
    values["active"] = runs_of({"k": [0.95] * 8})
    assert judge(finding(test, control=(fits,), check=(full,)), values).verdict == "equivalent"
    inactive = replace(full, outcome="training:policy/entropy:first")
    assert judge(finding(test, control=(fits,), check=(inactive,)), values).verdict == "insensitive"


SECONDS, ENTROPY = question("s", outcome="equal:seconds"), question("e", outcome="last:policy/entropy")
ROOM = check(outcome="accuracy", at_least=None, at_most=0.9)


@pytest.mark.parametrize(
    ("tests", "changes", "faults"),
    [
        ([question()], {"control": (CONTROL,), "check": (ROOM,)}, []),
        ([question(outcome="gain")], {"control": (CONTROL,), "check": (ROOM,)}, []),
        ([question(), SECONDS], {"control": (CONTROL,)}, ["control 'the control shows' measures accuracy"]),
        ([question(), SECONDS], {"check": (ROOM,)}, ["check 'active' measures accuracy, and its test 's'"]),
        # It says that it stands for one of them, or the other has its own, or does not decide.
        ([question(), SECONDS], {"control": (replace(CONTROL, tests=("a is better",)),)}, []),
        (
            [question(), SECONDS],
            {"control": (CONTROL, replace(CONTROL, name="own", outcome="equal:seconds"))},
            [],
        ),
        ([question(), replace(SECONDS, also=True)], {"control": (CONTROL,), "check": (ROOM,)}, []),
        (
            [question(), replace(SECONDS, also=True)],
            {"control": (replace(CONTROL, tests=("s",)),)},
            ["control 'the control shows' measures accuracy, and its test 's' measures equal:seconds: add a"],
        ),
        ([question(), ENTROPY], {"check": (ROOM,)}, []),  # entropy has no ceiling
        ([question(), ENTROPY], {"check": (check(outcome="base"),)}, []),  # nothing is said of a ceiling
        ([question()], {"control": (replace(CONTROL, outcome="accuracy:greedy"),)}, ["accuracy:greedy"]),
    ],
)
def test_a_control_must_measure_what_its_test_measures(
    tests: list[rule.Test], changes: dict[str, Any], faults: list[str]
) -> None:
    mismatched = list(mismatches(finding(*tests, **changes)))
    assert len(mismatched) == len(faults)
    assert all(fault in message for fault, message in zip(faults, mismatched, strict=True))


def test_best_rates_are_compared_only_where_curves_have_a_peak() -> None:
    test = replace(question(), outcome="best_rate:accuracy", unit="octaves")
    peaks = [
        check(name=f"peak of {arm}", outcome="accuracy", contrast={arm: 1, f"{arm}+rate-x0.25": -1})
        for arm in test.contrast
    ]
    assert not [*without_peaks(finding(test, check=tuple(peaks)))]
    secondary = replace(test, name="other", also=True)
    assert not [*without_peaks(finding(question(), secondary))]
    (fault,) = without_peaks(finding(test, check=tuple(peaks[:1])))
    assert "add a [[check]] of accuracy between b and b+rate-xM" in fault
    elsewhere = (replace(peaks[0], outcome="equal:tokens"), replace(peaks[1], tests=("other",)))
    assert len([*without_peaks(finding(test, secondary, check=elsewhere))]) == 2


def test_a_check_has_two_sides_and_fails_without_a_number() -> None:
    test = question()
    for bounds, mean, passed in (
        ({"at_least": 0.2, "at_most": 0.4}, 0.3, True),
        ({"at_least": 0.2, "at_most": 0.4}, 0.5, False),
        ({"at_least": None, "at_most": 0.4}, 0.1, True),
        ({"at_least": 0.2}, math.nan, False),
    ):
        checked_finding = finding(test, check=(check(**bounds),))
        values = {test.name: pairs(TINY), "active": runs_of({"k": [mean] * 8})}
        result = judge_controlled(checked_finding, values)
        assert result.checks[0].passed is passed
        assert result.verdict == ("equivalent" if passed else "insensitive")


@given(
    st.lists(st.floats(-1, 1), min_size=6, max_size=8),
    st.floats(0, 0.02),
    st.sampled_from(["higher", "same"]),
)
def test_a_difference_that_is_shown_is_never_taken_back(
    values: list[float], active: float, expect: str
) -> None:
    test = question(expect=expect)
    measured = {test.name: pairs(values), "active": runs_of({"k": [active] * 8})}
    before = judge_controlled(finding(test), measured).primary
    after = judge_controlled(finding(test, check=(check(),)), measured).primary
    silent = before.verdict in ("equivalent", "unresolved") or (expect, before.verdict) == (
        "same",
        "supported",
    )
    assert after.verdict == ("insensitive" if silent and active < 0.01 else before.verdict)


def test_while_runs_are_missing_nothing_is_insensitive() -> None:
    test = question()
    checked_finding = finding(test, check=(check(),))
    result = judge_controlled(checked_finding, {test.name: pairs(TINY), "active": {}}, waits=["a-t-s9"])
    assert (result.verdict, result.primary.verdict) == ("unresolved", "unresolved")


# Doses


def dosed(effects: Mapping[float, Sequence[float]], series: str = "", **changes: Any) -> Result:
    tests = [question(f"at {dose:g}", dose=dose, series=series, **changes) for dose in effects]
    values = {f"at {dose:g}": pairs(effects_at_dose) for dose, effects_at_dose in effects.items()}
    return judge_controlled(finding(*tests, dose="rate"), values)


@pytest.mark.parametrize(
    ("effects", "verdict"),
    [
        ({1: STRONG, 2: STRONG, 4: STRONG}, "supported"),
        ({1: STRONG, 2: AGAINST}, "dose-dependent"),  # whose mean is nothing
        ({1: STRONG, 2: TINY}, "dose-dependent"),
        (
            {1: STRONG, 2: [0.5 + 0.01 * seed for seed in range(8)]},
            "supported",
        ),  # larger, and as claimed at both
        ({1: TINY, 2: TINY}, "equivalent"),
        ({1: TINY, 2: NOTHING}, "unresolved"),
        ({1: AGAINST, 2: NOTHING}, "contradicted"),
        ({1: STRONG, 2: NOTHING}, "unresolved"),  # an order that noise can have made
    ],
)
def test_the_conclusion_by_dose(effects: Mapping[float, Sequence[float]], verdict: str) -> None:
    result = dosed(effects)
    assert result.verdict == verdict
    (series,) = result.series
    assert series.doses == tuple(effects)
    _, expected = joint_ps(
        [
            {
                seed: first - second
                for seed, (first, second) in enumerate(zip(effects[low], effects[high], strict=True))
            }
            for low, high in itertools.combinations(effects, 2)
        ]
    )
    assert series.p == min(expected)


def test_doses_without_sensitivity_are_left_out() -> None:
    tests = [question(f"at {dose}", dose=float(dose)) for dose in (1, 2, 4)]
    inactive = check(tests=("at 1",))
    values = {
        "at 1": pairs(TINY),
        "at 2": pairs(STRONG),
        "at 4": pairs(STRONG),
        "active": runs_of({"k": [0.0] * 8}),
    }
    result = judge_controlled(finding(*tests, dose="rate", check=(inactive,)), values)
    assert [test_result.verdict for test_result in result.tests] == ["insensitive", "supported", "supported"]
    assert result.verdict == "supported"
    none = replace(inactive, tests=())
    silent = {**values, "at 2": pairs(TINY), "at 4": pairs(NOTHING)}
    assert judge_controlled(finding(*tests, dose="rate", check=(none,)), silent).verdict == "insensitive"


def test_each_part_of_a_claim_has_doses_of_its_own() -> None:
    effects = {("small", 1): STRONG, ("small", 2): STRONG, ("large", 1): STRONG, ("large", 2): AGAINST}
    tests = [
        question(f"{part} at {dose}", dose=float(dose), series=part, part=part) for part, dose in effects
    ]
    values = {test.name: pairs(sizes) for test, sizes in zip(tests, effects.values(), strict=True)}
    result = judge_controlled(finding(*tests, dose="rate"), values)
    assert result.parts == {"small": "supported", "large": "dose-dependent"}
    words = description.result_words(result)
    assert words.startswith("Small: Every test came out as the claim says. Small at 1: p ")
    assert "Large: The effect depends on the dose" in words
    values["small at 2"] = pairs(AGAINST)
    both = description.result_words(judge_controlled(finding(*tests, dose="rate"), values))
    assert both.count("effects at 1 and 2 differ") == 2  # each part has its own series alone


def test_doses_of_no_interaction_are_called_dose_dependent_in_5_percent_at_most() -> None:
    """Three doses of one true effect, which some tests find and others do not."""
    rng = np.random.default_rng(3)
    false = 0
    for _ in range(150):
        common = rng.normal(0.03, 0.02, 8)
        result = dosed({dose: list(common + rng.normal(0, 0.03, 8)) for dose in (1, 2, 3)}, matters=1e-6)
        false += result.verdict == "dose-dependent"
    assert false / 150 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: check(at_least=None), "at_least, at_most: one of them must be a number"),
        (lambda: check(at_least=0.5, at_most=0.1), "at_least the smaller one"),
        (lambda: check(contrast={}), "contrast: needs at least one arm"),
        (lambda: check(outcome="acuracy"), "outcome: unknown kind"),
        (
            lambda: rule.Control("c", "accuracy", "same", 0.1, {"a": 1.0}),
            "control: must expect higher or lower",
        ),
        (
            lambda: finding(check=(check(name="a is better"),)),
            "two of the tests, checks and controls are called",
        ),
        (lambda: finding(check=(check(tests=["b"]),)), "'active' names 'b', which is no test of the finding"),
        (
            lambda: finding(question(dose=1.0)),
            "dose: a finding names its axis if and only if tests have a dose",
        ),
        (lambda: finding(dose="rate"), "dose: a finding names its axis"),
        (lambda: finding(question(dose=1.0), dose="rate"), "must be two or more with different doses"),
        (
            lambda: finding(question(dose=1.0), question("y", dose=2.0, outcome="gain"), dose="rate"),
            "must measure and expect the same",
        ),
        (lambda: question(dose=math.inf), "dose: must be a finite number"),
        (lambda: question(series="x"), "series: is for tests with a dose"),
    ],
)
def test_a_wrong_rule_says_what_is_wrong(build: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        build()
    assert message in str(error.value)


def test_a_rule_with_all_of_it_is_data() -> None:
    tests = question("x", dose=1.0), question("y", dose=2.0)
    rule_finding = finding(
        *tests, dose="rate", check=(check(tests=("x",)),), control=(replace(CONTROL, tests=("y",)),)
    )
    assert rule.from_plain(json.loads(json.dumps(rule_finding.plain()))) == rule_finding
    assert (
        rule_finding.digest
        != replace(rule_finding, check=()).digest
        != replace(rule_finding, control=()).digest
    )


# Statistics


def test_paired_log_rank_counts_every_swap() -> None:
    """Each way to swap the runs of some seeds, with SciPy's statistic."""
    rng = np.random.default_rng(8)
    times = np.minimum(rng.integers(10, 140, (2, 6)), 120)
    ended = times < 120

    def statistic(first: np.ndarray, second: np.ndarray) -> float:
        samples = [
            stats.CensoredData(
                uncensored=group_times[group_times < 120].astype(float),
                right=group_times[group_times == 120].astype(float),
            )
            for group_times in (first, second)
        ]
        return abs(float(stats.logrank(*samples).statistic))

    observed = statistic(*times)
    swapped = [
        statistic(*np.where(np.array(way), times, times[::-1]))
        for way in itertools.product((True, False), repeat=6)
    ]
    expected = np.mean(np.array(swapped) >= observed - 1e-9)
    assert paired_log_rank((times[0], ended[0]), (times[1], ended[1])) == pytest.approx(expected, abs=1e-12)
    assert math.isnan(paired_log_rank(([9, 9], [False] * 2), ([9, 9], [False] * 2)))


# The figure


def test_survival_curves_by_dose_are_those_of_the_runs() -> None:
    arms = {
        "gspo+1": [20.0, 60, 100, 100],
        "grpo+1": [10.0, 30, 30, 100],
        "gspo+2": [10.0] * 4,
        "grpo+2": [5.0] * 4,
    }
    tests = [
        question(
            f"at {dose}",
            outcome="lasting",
            matters=5,
            dose=dose / 1e4,
            contrast={f"gspo+{dose}": 1.0, f"grpo+{dose}": -1.0},
        )
        for dose in (1, 2)
    ]
    record = recorded(finding(*tests, dose="rate"), arms, end=100.0)
    figure = draw_survival(record, record.result()).figure
    first, second, *_ = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["1e−4", "2e−4"]
    gspo, censored, grpo = first.lines[:3]
    assert list(gspo.get_xdata()) == [0, 20, 60, 100] and list(gspo.get_ydata()) == [100, 75, 50, 50]
    assert list(censored.get_xdata()) == [100]
    assert list(grpo.get_xdata()) == [0, 10, 30, 100] and list(grpo.get_ydata()) == [100, 75, 25, 25]
    assert first.texts[0].get_text().startswith("+28, p ")  # (10 + 30 + 70 + 0)/4 = 27.5
    assert second.lines[0].get_ydata()[-1] == 0
