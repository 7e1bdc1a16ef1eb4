"""The power of a finding's tests at the smallest effect that matters, from a known standard deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from grpobench.analysis.findings.bases import means_of_bases
from grpobench.analysis.findings.result import Judged
from grpobench.analysis.findings.rule import Finding, Test
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.verdicts import ALPHA, spread_of
from grpobench.analysis.tools.text import json_number

LEAST = 3
"""Fewest seeds whose contrasts give a standard deviation."""
DIRECTED = ("higher", "lower")
"""What a test expects that is supported by a difference, and not by an effect smaller than `matters`."""


@dataclass(frozen=True)
class PlannedTest:
    """A test with its number of seeds, before or after its runs."""

    test: Test
    seeds: int
    """Number of independent repetitions: a seed that ran on several bases is one."""
    tests: int
    """How many tests the correction is over, this one included."""
    sd: float = math.nan
    """Standard deviation of the contrast over seeds, on the scale on which differences are taken (shares;
    natural logarithms for a `ratio`); NaN if it is not known."""
    source: str = ""
    """Where it was measured, in words."""
    bases: int = 1
    """Number of bases."""
    seeds_per_base: int = 1
    """Number of seeds of each base: all where bases share seeds."""
    base_sd: float = math.nan
    """Standard deviation over bases of the mean contrast of their seeds; NaN if it is not known."""

    @property
    def power(self) -> float:
        """Share of repetitions in which the seeds find an effect of `matters` or, if the test does not expect
        a difference, show that equal arms differ by less. NaN without a standard deviation. Over bases it is
        at most this, since the interval over bases must say the same, and as if bases did not differ where
        `base_sd` is not known."""
        if math.isnan(self.sd):
            return math.nan
        return min(self._power_over_seeds, self._power_over_bases)

    @property
    def _power_over_seeds(self) -> float:
        margin = self.test.margin / self.sd
        if self.test.expect not in DIRECTED:
            return power.power_of_equivalence(self.seeds, self.tests, margin, ALPHA)
        return power.power(self.seeds, self.tests, margin, ALPHA, "max-t")

    @property
    def _power_over_bases(self) -> float:
        if self.bases < 2:
            return 1.0
        alike = self.sd / math.sqrt(self.seeds_per_base)
        margin = self.test.margin / (alike if math.isnan(self.base_sd) else self.base_sd)
        return power.power_of_interval(self.bases, margin, self.test.expect not in DIRECTED, ALPHA)

    @property
    def needs_bases(self) -> bool:
        """Whether the bases are too few, however many seeds each has."""
        return not math.isnan(self.sd) and self._power_over_bases < power.POWER

    @property
    def is_weak(self) -> bool:
        """Whether the power is known and below `power.POWER`."""
        return self.power < power.POWER

    @property
    def seeds_needed(self) -> float:
        """Fewest seeds, from these on, with a power of `power.POWER`; inf for more than `power.MOST_SEEDS`,
        NaN without a standard deviation."""
        if math.isnan(self.sd):
            return math.nan
        margin = self.test.margin / self.sd
        if self.test.expect not in DIRECTED:
            return power.seeds_for_equivalence(margin, self.tests, ALPHA, max(self.seeds, 2))
        return power.seeds_for(margin, self.tests, ALPHA, max(self.seeds, 2), "max-t")

    @property
    def seeds_to_decide(self) -> float:
        """Fewest seeds, from these on, that in four of five repetitions both find an effect of `matters` and
        show equal arms to differ by less: fewer may decide for one of them only. inf and NaN as above."""
        if math.isnan(self.sd):
            return math.nan
        margin, least = self.test.margin / self.sd, max(self.seeds, 2)
        return max(
            power.seeds_for(margin, self.tests, ALPHA, least, "max-t"),
            power.seeds_for_equivalence(margin, self.tests, ALPHA, least),
        )

    @property
    def to_decide_words(self) -> str:
        """`seeds_to_decide` in words; empty without a standard deviation."""
        seeds = self.seeds_to_decide
        if math.isnan(seeds):
            return ""
        if not math.isfinite(seeds):
            return f"more than {power.MOST_SEEDS:,} seeds"
        return f"about {seeds:.0f} seeds" if seeds > self.seeds else f"more than {self.seeds} seeds"


def planned_of(judged: Judged) -> PlannedTest:
    """The test with the standard deviation that its runs show; NaN for deals and at best rates."""
    seeds, tests = len(judged.repetitions), judged.corrected * judged.share
    if not tests:
        return PlannedTest(judged.test, seeds, 0)
    planned = PlannedTest(judged.test, seeds, tests, spread_of(judged.repetitions))
    if judged.bases < 2:
        return planned
    base_sd = spread_of(means_of_bases(dict(zip(judged.seeds, judged.contrasts, strict=True))))
    return replace(
        planned, bases=judged.bases, seeds_per_base=len(judged.seeds) // judged.bases, base_sd=base_sd
    )


def power_row(planned: PlannedTest) -> dict[str, Any]:
    """The test for JSON; null where there is no number."""
    numbers = {name: getattr(planned, name) for name in ("sd", "base_sd", "power", "seeds_needed")}
    row = {
        "test": planned.test.name,
        "seeds": planned.seeds,
        "tests": planned.tests,
        "bases": planned.bases,
        "source": planned.source,
    }
    return row | {name: json_number(value, 9) for name, value in numbers.items()}


def deciding_tests(finding: Finding) -> list[Test]:
    """The tests that are corrected together; those with deals have no level."""
    return [test for test in finding.test if not (test.also or test.deals)]


def chance_words(planned: PlannedTest) -> str:
    """The power, and how many seeds would have enough of it."""
    if math.isnan(planned.sd):
        return "all seeds measure the same difference, which tells no power"
    shown = (
        "equal arms would be shown to be so"
        if planned.test.expect not in DIRECTED
        else "what matters would be found"
    )
    text = f"{shown} in {planned.power:.0%} of repetitions"
    return f"{text}; {seeds_needed_words(planned)}" if planned.is_weak else text


def seeds_needed_words(planned: PlannedTest) -> str:
    """How many seeds would have enough power."""
    if planned.needs_bases:
        return f"{power.POWER:.0%} takes more bases than {planned.bases}"
    seeds = planned.seeds_needed
    if not math.isfinite(seeds):
        return f"{power.POWER:.0%} takes more than {power.MOST_SEEDS:,} seeds"
    return f"{power.POWER:.0%} takes about {seeds:.0f} seeds"
