"""What judging a finding gives: the results of its tests, checks, controls and doses, and the conclusion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from grpobench.analysis.findings.contrasts import SEEDS_PER_BASE, repetitions
from grpobench.analysis.findings.rule import FREE, Check, Finding, Test
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.statistics.two_parts import TwoParts
from grpobench.analysis.statistics.verdicts import ALPHA, Shown, spread_of
from grpobench.analysis.tools.text import json_number

Verdict: TypeAlias = Literal[
    "supported", "contradicted", "dose-dependent", "equivalent", "unresolved", "insensitive"
]
VERDICTS: Mapping[Verdict, str] = {
    "supported": "every test came out as the claim says",
    "contradicted": "a test came out against the claim",
    "dose-dependent": "the effect depends on the dose, and so does what the tests say",
    "equivalent": "the primary test's effect is smaller than what matters",
    "unresolved": "neither is shown",
    "insensitive": "these runs could not have shown the effect",
}
"""Conclusions about findings. A single test is never dose-dependent."""
SILENT: tuple[Verdict, ...] = ("equivalent", "unresolved")
"""What is said of a test without a difference, and only where a difference could have been seen."""
SMALL = ", small difference"
"""What pages add to a verdict if a difference is shown that is smaller than what matters."""


@dataclass(frozen=True)
class Judged:
    """One test with its result."""

    test: Test
    seeds: tuple[int, ...]
    contrasts: tuple[float, ...]
    """By seed, on the scale on which differences are taken."""
    effect: Estimate
    """Mean contrast with the t interval, cut to possible values; factors for a `ratio`; for deals, the share
    that was called different."""
    p: float
    """Two-sided sign-flip test over seeds, corrected over the finding's tests by max-T."""
    p_equivalence: float
    """Two one-sided tests against an effect of `matters` or more, after Holm; of non-inferiority one of
    them."""
    verdict: Verdict
    needs: str
    """The reason for the verdict; if it is unresolved, what a verdict would need."""
    corrected: int = 0
    """How many tests the correction is over, this one included; 0 for deals and at best
    rates, where no power is computed from the spread."""
    share: int = 1
    """How many families of tests divide the level of 5 %."""
    runs: int = 0
    """Runs of the contrast with a value."""
    reached: int | None = None
    """How many of them are censored, if the outcome is (`measure.CENSORED`); else None."""
    p_log_rank: float = math.nan
    """Of the log-rank test by permutation inside seeds, if the outcome is censored and the contrast is
    one of two arms on one task; beside `p`, which is that of the restricted means."""
    bases: int = 1
    """Number of bases; from two on the interval of the effect is over bases."""
    two_parts: TwoParts | None = None
    """The share of runs that fail and the outcome of the others, if the mean is over runs of both kinds."""
    shown: Shown = "unresolved"
    """What the runs show of the effect, whatever the test expects."""
    inside: bool = False
    """Whether the effect is shown to lie inside the test's bounds."""
    at_edge: bool = False
    """Whether a verdict at best rates is withheld because a best rate is the smallest or largest tried."""

    @property
    def repetitions(self) -> tuple[float, ...]:
        """The contrasts that are independent of each other: by seed, the mean over bases."""
        return tuple(repetitions(dict(zip(self.seeds, self.contrasts, strict=True))).values())

    @property
    def small(self) -> bool:
        """Whether a difference is shown, and shown to be smaller than what matters."""
        differs = self.shown in ("higher", "lower")
        return differs and self.inside and self.shown != FREE.get(self.test.expect)

    @property
    def label(self) -> str:
        """The verdict as pages show it."""
        return self.verdict + SMALL * self.small

    @property
    def says_none(self) -> bool:
        """Whether the verdict says that there is no difference, or no loss, and none in favor is shown."""
        if self.verdict == "supported":
            return self.test.expect not in ("higher", "lower") and self.shown != FREE.get(self.test.expect)
        return self.verdict == "equivalent"

    @property
    def power(self) -> float:
        """Share of repetitions in which these seeds find an effect of `matters`, with their spread. NaN
        for deals and without a spread. It takes up to a second, and no verdict needs it."""
        if math.isnan(self._margin):
            return math.nan
        return power.power(len(self.repetitions), self.corrected * self.share, self._margin, ALPHA, "max-t")

    @property
    def power_equivalence(self) -> float:
        """Share of repetitions in which these seeds show an effect of 0 to be smaller than `matters`; of a
        test of non-inferiority, which has one bound, the share is at least this."""
        if math.isnan(self._margin):
            return math.nan
        return power.power_of_equivalence(
            len(self.repetitions), self.corrected * self.share, self._margin, ALPHA
        )

    @property
    def _margin(self) -> float:
        """The margin in standard deviations of the repetitions; NaN where no power is known."""
        return self.test.margin / spread_of(np.array(self.repetitions)) if self.corrected else math.nan

    @property
    def shows(self) -> bool:
        """Of a control: whether its effect is shown, as expected and as large as what matters."""
        effect = abs(float(np.mean(self.contrasts))) if self.contrasts else 0.0
        return self.verdict == "supported" and effect >= self.test.margin


def verdict_of(test: Test, effect: Shown, inside: bool) -> Verdict:
    """The verdict on a test from what is shown of its effect, and whether it lies inside the bounds."""
    if effect in ("equivalent", "unresolved") and test.expect in ("higher", "lower"):
        return effect
    if effect == test.expect or (inside and test.expect not in ("higher", "lower")):
        return "supported"
    return "unresolved" if effect in ("unresolved", FREE.get(test.expect)) else "contradicted"


def outside_bounds(test: Test) -> str:
    """The null hypothesis of an effect inside the test's bounds, in words."""
    side = {"not lower": "below 0 by", "not higher": "above 0 by"}.get(test.expect)
    return f"it is {side} what matters" if side else "it is as large as what matters"


@dataclass(frozen=True)
class CheckResult:
    """A manipulation check with its result."""

    check: Check
    mean: Estimate
    """Mean over seeds with the t interval."""
    passed: bool
    """Whether the mean is within the bounds; not without a value."""


@dataclass(frozen=True)
class DoseSeries:
    """Tests that differ in their dose."""

    name: str
    tests: tuple[str, ...]
    """Names of the tests, by dose."""
    doses: tuple[float, ...]
    p: float
    """Smallest p of the pairs of doses, corrected over these pairs (max-T over joint sign flips) and over the
    series of the finding (Holm): whether effects differ by dose."""
    pair: tuple[float, float]
    """The two doses whose effects differ most clearly."""


@dataclass(frozen=True)
class Result:
    """The result of judging a finding."""

    finding: Finding
    tests: tuple[Judged, ...]
    verdict: Verdict
    waits: tuple[str, ...] = ()
    """Runs without a result."""
    checks: tuple[CheckResult, ...] = ()
    controls: tuple[Judged, ...] = ()
    series: tuple[DoseSeries, ...] = ()
    unchecked: Verdict = "unresolved"
    """The conclusion if checks, controls and doses were not asked, as findings were judged before they had
    any."""
    parts: Mapping[str, Verdict] = field(default_factory=dict)
    """By part of the claim, its own conclusion; empty for a claim without parts."""

    @property
    def primary(self) -> Judged:
        return self.tests[0]

    @property
    def deciding(self) -> Judged:
        """The first of the tests of the rule that says what the finding concludes; the primary test if none
        alone does."""
        return _deciding(self.tests, self.verdict)

    @property
    def deciding_by_part(self) -> Mapping[str, Judged]:
        """The same of each part of the claim; for a claim without parts the deciding test, under ""."""
        if not self.parts:
            return {"": self.deciding}
        return {
            part: _deciding([entry for entry in self.tests if entry.test.part == part], verdict)
            for part, verdict in self.parts.items()
        }

    @property
    def label(self) -> str:
        """The conclusion as pages show it, by part of the claim."""
        if self.parts:
            return ", ".join(f"{part}: {verdict}" for part, verdict in self.parts.items())
        return self.deciding.label if self.deciding.verdict == self.verdict else self.verdict


def _deciding(tests: Sequence[Judged], verdict: Verdict) -> Judged:
    ruling = [entry for entry in tests if not entry.test.also]
    return next((entry for entry in ruling if entry.verdict == verdict), ruling[0])


def as_row(result: Result, powers: bool = False) -> dict[str, Any]:
    """The result for JSON; null where there is no number. `powers` adds those of its tests and controls."""
    return {
        "name": result.finding.name,
        "claim": result.finding.claim,
        "source": result.finding.source,
        "verdict": result.verdict,
        "label": result.label,
        "parts": dict(result.parts),
        "waits": list(result.waits),
        "checks": [_check_row(check_result) for check_result in result.checks],
        "control": [test_row(control, powers) | {"shown": control.shows} for control in result.controls],
        "series": [_plain(series) for series in result.series],
        "tests": [
            test_row(test_result, powers) | {"dose": test_result.test.dose} for test_result in result.tests
        ],
    }


def test_row(test_result: Judged, powers: bool = False) -> dict[str, Any]:
    """A test for JSON, with its `powers` or without them, which takes less time."""
    rule_fields = ("name", "part", "also", "deals", "most", "outcome", "expect", "matters", "unit", "ratio")
    judged = ("verdict", "label", "needs", "runs", "reached", "bases", "contrasts")
    ps = ("p", "p_equivalence", "p_log_rank", *("power", "power_equivalence") * powers)
    rule = {name: getattr(test_result.test, name) for name in rule_fields}
    # A seed is counted with its base; JSON has both apart.
    counted = [divmod(seed, SEEDS_PER_BASE) for seed in test_result.seeds]
    apart = {"seeds": [seed for _, seed in counted], "base_of_each": [base for base, _ in counted]}
    row = rule | _plain(test_result, judged) | apart | _plain(test_result.effect) | _plain(test_result, ps)
    return row | {"two_parts": test_result.two_parts and _parts_row(test_result)}


def _parts_row(test_result: Judged) -> dict[str, Any]:
    """Both parts of a test for JSON, with the names of the contrast."""
    parts = test_result.two_parts
    assert parts is not None
    numbers = _plain(parts, ("fails", "failed", "runs", "p_share", "p_outcome", "seeds"))
    both = {name: _plain(getattr(parts, name)) for name in ("share", "outcome")}
    return {"names": list(test_result.test.contrast)} | numbers | both


def _check_row(check_result: CheckResult) -> dict[str, Any]:
    rule_fields = ("name", "outcome", "at_least", "at_most", "unit")
    rule = {name: getattr(check_result.check, name) for name in rule_fields}
    return (
        rule
        | {"tests": list(check_result.check.tests), "passed": check_result.passed}
        | _plain(check_result.mean)
    )


def _plain(source: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Attributes for JSON, or all fields of a dataclass; None where there is no number."""
    values = {name: getattr(source, name) for name in names} or asdict(source)
    return {
        name: [json_number(number, 9) for number in value]
        if isinstance(value, tuple)
        else json_number(value, 9)
        for name, value in values.items()
    }
