"""Power at what matters: of tests before their runs, in the reasons of verdicts, and over all findings."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.findings import finding, judged, question
from scipy import stats

from grpobench.analysis.findings.description import power_lines, power_words, reason_words
from grpobench.analysis.findings.errors import error_words
from grpobench.analysis.findings.planned import PlannedTest, deciding_tests, planned_of
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.verdicts import ALPHA


def test_power_is_the_share_of_simulated_experiments_that_find_what_matters() -> None:
    """Eight seeds, an effect of what matters, one SD: every sign pattern of a thousand experiments."""
    planned = PlannedTest(question(matters=0.02), 8, 1, 0.02)
    experiments = np.random.default_rng(5).normal(0.02, 0.02, (1000, 8))
    patterns = np.array(list(itertools.product((1, -1), repeat=8)))
    sums = np.abs(experiments @ patterns.T)
    p = (sums >= np.abs(experiments.sum(axis=1))[:, None] - 1e-12).mean(axis=1)
    assert planned.power == pytest.approx((p <= 0.05).mean(), abs=4 * math.sqrt(0.7 * 0.3 / 1000))
    assert planned.is_weak and not PlannedTest(planned.test, 12, 1, 0.02).is_weak


def test_a_test_that_expects_the_same_has_the_power_of_equivalence() -> None:
    same, differ = (
        PlannedTest(question(matters=0.02, expect=expect), 8, 2, 0.0191) for expect in ("same", "higher")
    )
    assert same.power != differ.power
    again = [np.random.default_rng(i).normal(0, 0.0191, 8) for i in range(2000)]
    t = np.array([(x.mean(), x.std(ddof=1) / math.sqrt(8)) for x in again])
    inside = np.abs(t[:, 0]) + stats.t.ppf(0.975, 7) * t[:, 1] < 0.02  # α/2 for each of two tests
    assert same.power == pytest.approx(inside.mean(), abs=0.04)


def test_the_seeds_that_are_needed_have_the_power() -> None:
    """By the normal formula (1.96 + .84)² (SD / effect)² = 7.85 · 9 = 71."""
    planned = PlannedTest(question(matters=0.02), 8, 1, 0.06)
    assert planned.is_weak and planned.seeds_needed == pytest.approx(72, abs=2)
    enough = PlannedTest(planned.test, int(planned.seeds_needed), 1, 0.06)
    assert not enough.is_weak and enough.power == pytest.approx(0.8, abs=0.01)


def test_without_a_known_spread_nothing_is_said_of_power() -> None:
    planned = PlannedTest(question(), 8, 1)
    assert math.isnan(planned.power) and math.isnan(planned.seeds_needed) and not planned.is_weak
    (line,) = power_lines([planned], "PILOT")
    assert line.startswith("power: not known before the runs: no earlier runs tell") and line.endswith(
        "PILOT"
    )
    first, line = power_lines([planned, PlannedTest(question("b"), 8, 1, 0.01, "in table x")], "PILOT")
    assert first.startswith("power: b: 8 seeds find an effect of 0.020 in ")
    assert line.startswith("power: not known for 1 of 2 tests: ")


def test_power_is_in_the_unit_of_the_outcome() -> None:
    planned = PlannedTest(question(matters=0.02, unit="points"), 8, 3, 0.05, "in table x")
    words = power_words(planned)
    assert words.startswith(
        "8 seeds find an effect of 2.0 points in 7% of repetitions (3 tests; SD 5.0 points"
    )
    assert words.endswith(f"in table x); 80% takes about {planned.seeds_needed:.0f} seeds")
    ratio = PlannedTest(question(matters=1.5, ratio=True, expect="same"), 8, 1, 0.1, "in table x")
    assert power_words(ratio) == (
        "8 seeds show that equal arms differ by less than 1.50 times in 100% of repetitions (1 test; SD of "
        "the logarithm 0.1 in table x)"
    )


def test_an_unresolved_test_says_how_likely_it_was_to_find_what_matters_not_what_it_saw() -> None:
    """The same spread around another mean has the same power, and so has a wrong sign."""
    x = np.array([0.06, -0.04, 0.05, 0.01, -0.02, 0.03, 0.02, -0.01])
    near, far = judged(list(x - x.mean() + 0.001)), judged(list(x - x.mean() - 0.02))
    chance = [needs.split("; ", 1)[1] for needs in map(reason_words, (near, far))]
    planned = planned_of(near)
    assert planned.sd == pytest.approx(x.std(ddof=1)) and (planned.seeds, planned.tests) == (8, 1)
    assert (
        chance[0]
        == chance[1]
        == (
            f"what matters would be found in {planned.power:.0%} of repetitions; "
            f"80% takes about {planned.seeds_needed:.0f} seeds"
        )
    )


def test_seeds_that_decide_find_what_matters_and_show_equal_arms_to_be_so() -> None:
    """With the seeds that the words name both powers are about 80 % or more, with one less one is below."""
    planned = PlannedTest(question(matters=0.05), 12, 6, 0.08)
    seeds = int(planned.seeds_to_decide)
    assert planned.to_decide_words == f"about {seeds} seeds" and seeds > 12

    def powers(seeds: int) -> tuple[float, float]:
        margin = planned.test.margin / planned.sd
        return power.power(seeds, 6, margin, ALPHA, "max-t"), power.power_of_equivalence(
            seeds, 6, margin, ALPHA
        )

    # Powers are simulated for few seeds and computed from t above: the last may differ by one in a hundred.
    assert min(powers(seeds)) >= power.POWER - 0.01 and min(powers(seeds - 1)) < power.POWER + 0.01
    assert replace(planned, seeds=2 * seeds).to_decide_words == f"more than {2 * seeds} seeds"
    assert replace(planned, sd=10.0).to_decide_words == "more than 1,000 seeds"
    assert not replace(planned, sd=math.nan).to_decide_words


def test_errors_are_expected_by_the_levels_of_the_rules() -> None:
    """Twenty rules with a level: 20 · .05 each way; forty secondary tests: 40 · .05."""
    rules = [finding(question()), finding(question(), question("b"))] * 10
    deals = question(deals=100, expect="same", contrast={"a": 1.0})
    assert not deciding_tests(finding(deals))
    words = error_words([*rules, finding(deals)], 40)
    assert words.startswith("20 of the 21 conclusions have a level of 5 %") and "A/A tests" in words
    assert "at most 1.0 of them are expected to state a difference where" in words
    assert "The 40 secondary tests have 5 % each" in words and "at most 2.0 more errors" in words
    assert "secondary" not in error_words([finding()], 0)


@pytest.mark.parametrize("expect", ["higher", "same"])
def test_power_over_bases_is_that_of_their_interval(expect: str) -> None:
    """Three bases that differ by what matters: simulated experiments of eight seeds on each."""
    base_sd = math.hypot(0.02, 0.02 / math.sqrt(8))
    test = question(matters=0.06, expect=expect)
    planned = PlannedTest(test, 24, 1, 0.02, bases=3, seeds_per_base=8, base_sd=base_sd)
    rng = np.random.default_rng(3)
    effect = 0.06 if expect == "higher" else 0.0
    means = rng.normal(effect, 0.02, (4000, 3)) + rng.normal(0, 0.02, (4000, 3, 8)).mean(axis=2)
    half = stats.t.ppf(0.975, 2) * means.std(axis=1, ddof=1) / math.sqrt(3)
    mean = means.mean(axis=1)
    says = np.abs(mean) > half if expect == "higher" else np.abs(mean) + half < 0.06
    # Four standard errors of both simulations.
    assert planned.power == pytest.approx(says.mean(), abs=4 * math.sqrt(0.25 / 4000))
    assert planned.needs_bases and planned.is_weak
    alike = PlannedTest(planned.test, 24, 1, 0.02, bases=3, seeds_per_base=8)
    assert alike.power > planned.power and "if the 3 bases do not differ" in power_words(alike)
