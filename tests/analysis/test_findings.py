"""What a finding's rule says, and how it is judged.

Locked here: p values are SciPy's and a count of all sign patterns, the interval is SciPy's, Holm and the two
one-sided tests are redone in a few lines; which numbers give which verdict; what a digest is of.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.findings import finding, flipped, judge_controlled, judged, pairs, question, reached, several
from scipy import stats

from grpobench.analysis.findings import description, rule
from grpobench.analysis.findings.contrasts import contrasts_of
from grpobench.analysis.findings.figures import draw_all
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.planned import planned_of
from grpobench.analysis.findings.result import as_row
from grpobench.analysis.runfolder.files import LogError

# Numbers


@pytest.mark.parametrize("seed", range(4))
def test_p_of_one_test_is_scipys_and_every_patterns(seed: int) -> None:
    x = np.random.default_rng(seed).normal(0.01, 0.03, size=9)
    ours = judged(list(x))
    theirs = stats.permutation_test(
        (x, np.zeros(9)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
        alternative="two-sided",
    )
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-12)  # both count the same 512 patterns
    assert ours.p == pytest.approx(reached(np.abs(flipped(x)), abs(x.sum())), abs=1e-12)
    low, high = (reached(flipped(x + 0.02), (x + 0.02).sum()), reached(flipped(0.02 - x), (0.02 - x).sum()))
    assert ours.p_equivalence == pytest.approx(max(low, high), abs=1e-12)
    interval = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert ours.effect.value == pytest.approx(x.mean(), rel=1e-12)
    assert (ours.effect.low, ours.effect.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert ours.contrasts == pytest.approx(tuple(x))
    assert ours.seeds == tuple(range(9))


def test_tests_of_a_verdict_are_corrected_and_those_beside_are_not() -> None:
    rng = np.random.default_rng(5)
    samples = {name: rng.normal(mean, 0.03, 8) for name, mean in (("x", 0.03), ("y", 0.02), ("z", 0.01))}
    samples["beside"] = samples["x"]
    tests = [question(name, also=name == "beside") for name in samples]
    result_by_name = {test_result.test.name: test_result for test_result in several(samples, *tests).tests}  # type: ignore[arg-type]
    alone = {
        name: reached(np.abs(flipped(differences)), abs(differences.sum()))
        for name, differences in samples.items()
    }
    # Step-down max-T: each against the largest |z| of itself and of those below it, over all joint patterns.
    z = {
        name: np.abs(flipped(differences)) / np.sqrt((differences**2).sum())
        for name, differences in samples.items()
    }
    ordered = sorted(("x", "y", "z"), key=lambda name: -z[name][0])
    expected: dict[str, float] = {}
    for rank, name in enumerate(ordered):
        largest = np.max([z[other] for other in ordered[rank:]], axis=0)
        expected[name] = max([*expected.values(), reached(largest, z[name][0])])
    assert {name: result_by_name[name].p for name in expected} == pytest.approx(expected)
    assert result_by_name["beside"].p == pytest.approx(alone["x"])
    close = {
        name: max(
            reached(flipped(differences + 0.02), (differences + 0.02).sum()),
            reached(flipped(0.02 - differences), (0.02 - differences).sum()),
        )
        for name, differences in samples.items()
    }
    least = min(("x", "y", "z"), key=close.__getitem__)
    assert result_by_name[least].p_equivalence == pytest.approx(min(1.0, 3 * close[least]))
    assert result_by_name["beside"].p_equivalence == pytest.approx(close["beside"])


def test_a_ratio_is_judged_on_logarithms_and_shown_as_a_factor() -> None:
    factors = [1.8, 2.0, 2.1, 1.9, 2.2, 2.05]
    values = {("a", "t", seed): 3.0 * factor for seed, factor in enumerate(factors)}
    values |= {("b", "t", seed): 3.0 for seed in range(6)}
    test = question(ratio=True, matters=1.1)
    primary = judge(finding(test), {test.name: values}).primary
    logs = np.log(factors)
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert primary.effect.value == pytest.approx(stats.gmean(factors))
    assert (primary.effect.low, primary.effect.high) == pytest.approx(
        (math.exp(interval.low), math.exp(interval.high))
    )
    assert (primary.verdict, primary.p) == ("supported", 2 / 64)
    close = question(ratio=True, matters=2.5, expect="same")
    same = judge_controlled(finding(close), {close.name: values})
    assert same.verdict == "supported"  # log 2 is below log 2.5
    values["a", "t", 5] = 0.0  # has no logarithm
    assert judge(finding(test), {test.name: values}).primary.seeds == (0, 1, 2, 3, 4)


def test_powers_of_a_judged_test_are_those_that_its_plan_would_have() -> None:
    x = list(np.random.default_rng(2).normal(0, 0.02, 6))
    judgment, same = judged(x, matters=0.05), judged(x, matters=0.05, expect="same")
    assert judgment.power == planned_of(judgment).power
    assert judgment.power_equivalence == planned_of(same).power


# Verdicts of one test


BEHIND = [-0.014, -0.0231, -0.016, -0.0091, -0.0195, -0.0189, -0.0192, -0.0169]
"""The kept effects of `distillation` in two thirds, which was called supported."""


@pytest.mark.parametrize(
    ("differences", "expect", "verdict", "needs"),
    [
        ([0.05] * 5 + [0.06], "higher", "supported", "p 0.0312 that there is no difference, over 6 seeds"),
        ([0.05] * 5 + [0.06], "lower", "contradicted", "p 0.0312"),
        ([0.05] * 5 + [0.06], "same", "contradicted", "p 0.0312"),
        ([-0.05] * 5 + [-0.06], "lower", "supported", "p 0.0312"),
        ([0.001, -0.001] * 3, "higher", "equivalent", "p 0.0156 that it is as large as what matters"),
        ([0.001, -0.001] * 3, "same", "supported", "p 0.0156"),
        # A difference comes first, even if it is shown to be smaller than what matters.
        ([0.01] * 6, "higher", "supported", "the difference is smaller than what matters, p 0.0156"),
        ([-0.01] * 6, "higher", "contradicted", "the difference is smaller than what matters, p 0.0156"),
        ([0.01] * 6, "same", "supported", "p 0.0312 that there is no difference"),
        # Behind in eight of eight seeds, with an interval that reaches beyond the margin.
        (BEHIND, "same", "contradicted", "p 0.0391 that it is as large as what matters, but the interval"),
        # The one-sided tests reject, and the interval is wider than the margin, 2.4 points.
        ([0.019, -0.019, 0.019, -0.019, 0.0], "same", "unresolved", "5 seeds can never decide; 6 can"),
        ([0.05] * 6, "not lower", "supported", "p 0.0156 that it is below 0 by what matters"),
        ([0.001, -0.001] * 3, "not lower", "supported", "p 0.0156 that it is below 0 by what matters"),
        ([-0.01] * 6, "not lower", "supported", "the difference is smaller than what matters"),
        ([-0.05] * 6, "not lower", "contradicted", "p 0.0312 that there is no difference"),
        ([-0.05] * 6, "not higher", "supported", "p 0.0156 that it is above 0 by what matters"),
        ([0.05] * 6, "not higher", "contradicted", "p 0.0312 that there is no difference"),
        ([0.1, -0.08, 0.06, -0.04, 0.1, -0.02], "not lower", "unresolved", "smallest possible 0.031"),
        ([0.05] * 4, "higher", "unresolved", "4 seeds can never decide; 6 can"),  # 2/2⁴ = .125, 2/2⁶ = .031
        ([0.0], "higher", "unresolved", "1 seed can never decide; 6 can"),
        ([0.1, -0.08, 0.06, -0.04, 0.1, -0.02], "higher", "unresolved", "smallest possible 0.031"),
    ],
)
def test_verdict_of_one_test(differences: list[float], expect: str, verdict: str, needs: str) -> None:
    judgment = judged(differences, expect=expect)
    assert judgment.verdict == verdict
    assert needs in judgment.needs


def test_a_small_difference_is_part_of_every_label() -> None:
    small = judge_controlled(finding(), {"a is better": pairs([0.01] * 8)})
    assert (small.label, small.primary.label) == ("supported, small difference",) * 2
    assert as_row(small)["label"] == as_row(small)["tests"][0]["label"] == small.label
    assert judged([0.05] * 8).label == judged([0.05] * 8, expect="not lower").label == "supported"
    assert judged([-0.01] * 8, expect="not lower").label == "supported, small difference"


def test_runs_that_all_measure_the_same_are_said_to() -> None:
    """As where no run of either arm collapses: equivalent by the rule, and little is learned."""
    test = question(expect="lower", matters=6, unit="updates")
    alike = dict.fromkeys(pairs([0.0] * 8), 60.0)
    primary = judge_controlled(finding(test), {test.name: alike}).primary
    assert primary.verdict == "equivalent"
    assert primary.needs.endswith(
        "every run of every arm measures the same, 60, so that longer or harder runs may differ"
    )
    alike[next(iter(alike))] = 54.0
    assert "measures the same" not in judge(finding(test), {test.name: alike}).primary.needs


def test_two_tests_take_no_more_seeds_than_one() -> None:
    samples = {"x": [0.05] * 6, "y": [0.05] * 6}
    result = several(samples, question("x"), question("y"))
    assert result.verdict == "supported"  # 2/2⁶ = .031 for any number of tests; Holm would ask for 7 seeds
    five = several({"x": [0.05] * 5, "y": [0.05] * 5}, question("x"), question("y"))
    assert five.primary.needs == "5 seeds can never decide; 6 can"


def test_a_run_without_result_leaves_everything_unresolved() -> None:
    test = question()
    result = judge(finding(test), {test.name: pairs([0.05] * 8)}, waits=["a-t-s9"])
    assert (result.verdict, result.waits) == ("unresolved", ("a-t-s9",))
    assert result.primary.needs == "waits for runs without a result"
    # also where no run of an arm has ended yet
    first = {run: value for run, value in pairs([0.05] * 8).items() if run[0] == "a"}
    result = judge(finding(test), {test.name: first}, waits=["b-t-s0"])
    assert (result.verdict, result.primary.contrasts) == ("unresolved", ())
    nothing = judge(finding(test), {test.name: {}}, waits=["a-t-s0"])
    assert (nothing.verdict, as_row(nothing)["tests"][0]["value"]) == ("unresolved", None)


def test_a_seed_that_lacks_a_value_is_left_out() -> None:
    test = question()
    values = pairs([0.05, 0.06, 0.07, -9.0, 0.05, 0.06, 0.07])
    del values["b", "t", 3]
    primary = judge(finding(test), {test.name: values}).primary
    assert (primary.seeds, primary.verdict) == ((0, 1, 2, 4, 5, 6), "supported")
    values["a", "t", 4] = math.nan
    primary = judge(finding(test), {test.name: values}).primary
    assert (primary.seeds, primary.verdict) == ((0, 1, 2, 5, 6), "unresolved")
    missing = dict.fromkeys(values, math.nan)
    assert judge(finding(test), {test.name: missing}).primary.needs.startswith("no seed has every value")


# Contrasts


def test_names_of_a_contrast_stand_for_means() -> None:
    cells = {("gspo+1", "t"): 1.0, ("gspo+2", "t"): 2.0, ("gspo", "t"): 50.0, ("grpo", "t"): 8.0}
    cells |= {("gspo+1", "u"): 3.0, ("gspo+2", "u"): 6.0, ("gspo", "u"): 70.0, ("grpo", "u"): 16.0}
    values = {(*cell, seed): value + 100 * seed for cell, value in cells.items() for seed in (0, 1)}
    for contrast, expected in (
        ({"gspo+*": 1.0}, 3.0),  # (1 + 2 + 3 + 6)/4; a plus is a plus, so that gspo itself is none of them
        ({"gspo+*@t": 1.0}, 1.5),
        ({"grpo": 1.0}, 12.0),
        ({"grpo@u": 1.0}, 16.0),
        ({"gs*": 1.0}, 22.0),  # (1 + 2 + 50 + 3 + 6 + 70)/6
        ({"gspo@u": 1.0, "grpo@u": -2.0, "gspo+1": 0.5}, 70.0 - 32.0 + 1.0),
    ):
        test = question(contrast=contrast)
        total = 100 * sum(contrast.values())
        assert contrasts_of(test, values) == pytest.approx({0: expected, 1: expected + total})
    del values["gspo+2", "u", 1]  # a mean of less than all would be of something else
    assert contrasts_of(question(contrast={"gspo+*": 1.0}), values) == {0: 3.0}
    with pytest.raises(LogError, match=r"no run of dapo; there are grpo, gspo, gspo\+1, gspo\+2"):
        contrasts_of(question(contrast={"dapo": 1.0}), values)
    with pytest.raises(LogError, match="no run of grpo@v"):
        contrasts_of(question(contrast={"grpo@v": 1.0}), values)


# Verdicts of findings

STRONG, NOTHING, TINY = [0.05] * 8, [0.1, -0.08, 0.06, -0.04, 0.1, -0.02, 0.03, -0.07], [0.001, -0.001] * 4
AGAINST = [-value for value in STRONG]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (STRONG, STRONG, "supported"),
        (STRONG, NOTHING, "unresolved"),
        (STRONG, TINY, "unresolved"),
        (STRONG, AGAINST, "contradicted"),
        (NOTHING, AGAINST, "contradicted"),
        (TINY, NOTHING, "equivalent"),
        (TINY, STRONG, "equivalent"),
        (TINY, AGAINST, "contradicted"),
        (NOTHING, TINY, "unresolved"),
    ],
)
def test_verdict_of_two_tests(first: list[float], second: list[float], verdict: str) -> None:
    assert several({"x": first, "y": second}, question("x"), question("y")).verdict == verdict


def test_tests_that_decide_differently_are_not_called_undecided() -> None:
    mixed = several({"x": STRONG, "y": TINY}, question("x"), question("y"))
    assert description.result_words(mixed).startswith(
        "Each of the tests that decide came out, but not alike. X: p "
    )
    open_ = several({"x": STRONG, "y": NOTHING}, question("x"), question("y"))
    assert description.result_words(open_).startswith("Neither is shown. Y: p ")


# Parts of a claim


def test_each_part_of_a_claim_has_its_conclusion() -> None:
    tests = [question(name, part=name[0]) for name in ("x1", "x2", "y1")]
    beside = question("y2", part="y", also=True)
    samples = {"x1": STRONG, "x2": STRONG, "y1": AGAINST, "y2": STRONG}
    result = several(samples, *tests, beside)
    assert dict(result.parts) == {"x": "supported", "y": "contradicted"}
    assert (result.verdict, result.label) == ("contradicted", "x: supported, y: contradicted")
    assert {part: entry.test.name for part, entry in result.deciding_by_part.items()} == {
        "x": "x1",
        "y": "y1",
    }
    words = description.result_words(result)
    assert words.startswith("X: Every test came out as the claim says. X1: p ")
    assert " Y: A test came out against the claim. Y1: p " in words
    assert description.meaning_words(result) == (
        "x: every test came out as the claim says; y: a test came out against the claim"
    )
    row = json.loads(json.dumps(as_row(result)))
    assert row["parts"] == {"x": "supported", "y": "contradicted"}
    assert [test["part"] for test in row["tests"]] == ["x", "x", "y", "y"]
    assert several({"x": STRONG}, question("x")).parts == {}


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ((question("x", part="x"), question("y")), "every test that decides must name its part if one does"),
        ((question("x"), question("y", part="y", also=True)), "no test of 'y' decides; remove `also`"),
    ],
)
def test_parts_are_of_all_tests_that_decide(tests: tuple[rule.Test, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        finding(*tests)


# The rule as data


def test_a_digest_is_of_what_is_said_and_nothing_else() -> None:
    rule_finding = finding(question(where={"category": "hard"}))
    expected_table = {
        "name": "f",
        "claim": "a beats b",
        "source": "a paper",
        "test": [
            {
                "name": "a is better",
                "outcome": "accuracy",
                "expect": "higher",
                "matters": 0.02,
                "contrast": {"a": 1.0, "b": -1.0},
                "where": {"category": "hard"},
            }
        ],
    }
    assert (
        rule_finding.plain() == expected_table
    )  # what is as by default is not said, so that later fields change no digest
    text = json.dumps(expected_table, sort_keys=True)
    assert rule_finding.digest == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert rule.from_plain(json.loads(json.dumps(dict(reversed(expected_table.items()))))) == rule_finding
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"outcome": "gain"},
        {"expect": "lower"},
        {"matters": 0.03},
        {"contrast": {"a": 1.0, "b": -1.5}},
        {"unit": "points"},
        {"where": {}},
    ]
    others = [finding(replace(rule_finding.test[0], **change)).digest for change in changes]
    others += [
        replace(rule_finding, **{part: "other"}).digest for part in ("name", "claim", "source", "published")
    ]
    others.append(finding(*rule_finding.test, question("y", also=True)).digest)
    assert len({rule_finding.digest, *others}) == len(others) + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contrast": {}}, "contrast: needs at least one arm"),
        ({"contrast": {"a": 0.0}}, "contrast: weights must be finite numbers other than 0"),
        ({"contrast": {"a": math.inf}}, "contrast: weights must be finite"),
        ({"matters": 0.0}, "matters: must be above 0, not 0"),
        ({"matters": math.nan}, "matters: must be above 0, not nan"),
        ({"matters": 0.9, "ratio": True}, "matters: must be above 1, not 0.9"),
        ({"deals": 10, "expect": "same"}, "deals: needs one arm and expect = 'same'"),
        ({"deals": 10, "contrast": {"a": 1.0}}, "deals: needs one arm"),
        ({"seeds": 1}, "seeds at least 2"),
        ({"outcome": "acuracy"}, "outcome: unknown kind 'acuracy'; known: accuracy, gain"),
        (
            {"outcome": "lasting", "where": {"category": "x"}},
            "where: is for the outcomes accuracy, gain and base",
        ),
    ],
)
def test_a_wrong_rule_names_place_and_remedy(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        question(**changes)
    assert message in str(error.value)


def test_a_finding_needs_a_deciding_test_a_claim_and_its_source() -> None:
    with pytest.raises(ValueError, match="the first decides"):
        finding(question(also=True))
    with pytest.raises(ValueError, match="test: needs at least one"):
        rule.Finding("f", "claim", "source", ())
    with pytest.raises(ValueError, match="needs a claim and its source"):
        rule.Finding("f", "", "source", (question(),))


# Words


def test_effects_in_words() -> None:
    def row(value: float | None, low: float | None, high: float | None, unit: str, **more: Any) -> str:
        plain = {"value": value, "low": low, "high": high, "unit": unit, "ratio": False, "deals": 0}
        return description.effect_words(plain | more)

    assert row(0.052, 0.01, 0.094, "points") == "+5.2 points (+1.0 to +9.4)"
    assert row(-0.052, -0.12, 0.016, "points") == "−5.2 points (−12.0 to +1.6)"
    assert row(2.04, 1.9, 2.2, "", ratio=True) == "2.04 times (1.90 to 2.20)"
    assert row(0.04, 0.02, 0.08, "%") == "4.0 % (2.0 to 8.0)"
    assert row(0.04, 0.02, 0.08, "points", deals=200) == "4.0 % of deals called different (2.0 to 8.0)"
    assert row(12.25, None, None, "updates") == "+12.2 updates"
    assert row(None, None, None, "") == "–"
    plain = {"matters": 0.02, "unit": "points", "ratio": False, "deals": 0, "most": 0.07}
    assert description.matters_words(plain) == "2.0 points"
    assert description.matters_words(plain | {"deals": 200}) == "7.0 %"


def test_the_deciding_test_is_the_one_that_the_conclusion_comes_from() -> None:
    """The first test is as claimed and the second against the claim: the finding is contradicted by the
    second, and figures show that one."""
    better, equal, beside = question("x"), question("y", expect="same"), question("z", also=True)
    strong = [0.1, 0.11, 0.12, 0.1, 0.09, 0.1, 0.12, 0.11]
    values = {name: pairs(strong) for name in "xyz"}
    result = judge_controlled(finding(better, equal, beside), values)
    assert [test_result.verdict for test_result in result.tests] == ["supported", "contradicted", "supported"]
    assert (result.verdict, result.primary.test.name, result.deciding.test.name) == ("contradicted", "x", "y")
    drawn = draw_all([result])
    (axes,) = drawn.figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()][1].endswith("(claims none)")
    assert judge_controlled(finding(better, beside), values).deciding.test.name == "x"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (6.3e-5, "6.3e−5"),
        (-2e-12, "−2.0e−12"),
        (5e-4, "0.001"),
        (0.0114, "0.011"),
        (205.94, "205.9"),
        (-68176234649.6, "−6.82e+10"),
    ],
)
def test_small_and_large_numbers_have_a_power_of_ten(value: float, text: str) -> None:
    """A check that asks for at least 1e-6 said that it asks for at least 0.000."""
    assert description.amount(value, "nats/token", ratio=False, sign=False) == text
