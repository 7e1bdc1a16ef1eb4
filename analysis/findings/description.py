"""What a test measured of each arm: its runs and their mean over seeds, and how these are printed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.findings.horizons import count_reached
from grpobench.analysis.findings.planned import (
    DIRECTED,
    PlannedTest,
    chance_words,
    planned_of,
    seeds_needed_words,
)
from grpobench.analysis.findings.record import Record
from grpobench.analysis.findings.result import VERDICTS, DoseSeries, Judged, Result, Verdict
from grpobench.analysis.findings.two_parts import failing_counts
from grpobench.analysis.measure import CENSORED, Measure
from grpobench.analysis.statistics.intervals import Estimate, seed_mean
from grpobench.analysis.statistics.survival import restricted_mean
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.tools.text import NONE, number, number_of, percent, sweep_value


@dataclass(frozen=True)
class ArmMean:
    """The runs of an arm on a task that have a number."""

    arm: str
    task: str
    values: tuple[float, ...]
    mean: Estimate
    """Mean with the t interval over seeds. If the outcome ends with the run, it is the restricted mean, whose
    interval lies between 0 and the horizon."""
    horizon: float = math.nan
    """Largest possible value of a run, if the outcome ends with the run; else NaN."""
    reached: int = 0
    """Runs with this value, which count as censored: they might have lasted longer."""
    kind: str = ""
    """Kind of the outcome, if it is censored."""


def arm_means(record: Record, test: str) -> list[ArmMean]:
    """By arm and task, in the order of the runs."""
    horizons = record.horizons.get(test, {})
    outcomes = {measured.name: measured.outcome for measured in record.registration.finding.measured}
    kind, means = Measure.read(outcomes[test]).kind, []
    for cell in dict.fromkeys(run[:2] for run in record.states):
        values = {
            run: value
            for run, value in record.values[test].items()
            if run[:2] == cell and math.isfinite(value)
        }
        mean, end = seed_mean([*values.values()]), math.nan
        if horizons:
            ends = {run: horizons[run] for run in values if run in horizons}
            end = max(ends.values(), default=math.nan)
            if ends:
                collapsed = [values[run] < ends[run] for run in ends]
                mean = restricted_mean([values[run] for run in ends], collapsed, end)
        reached = count_reached(values, horizons)
        means.append(ArmMean(*cell, tuple(values.values()), mean, end, reached, kind))
    return means


COARSE = ("updates", "tokens")
"""Units that are printed with one decimal."""
LARGE = 1e7
"""From here on, numbers are printed with a power of ten."""
SMALL = 5e-4
"""Numbers below it would be shown as 0.000."""


def reason_words(judged: Judged) -> str:
    """The reason for the verdict of a test; if its p decides nothing, with the power at what matters. It is
    computed here, because no verdict needs it."""
    if judged.verdict != "unresolved" or not judged.needs.startswith("p "):
        return judged.needs
    return f"{judged.needs}; {chance_words(planned_of(judged))}" if judged.corrected else judged.needs


def result_words(result: Result) -> str:
    """The verdict and its reasons, of a claim with parts those of each: the deciding tests that have the
    verdict, or all of them."""
    deciding = [test_result for test_result in result.tests if not test_result.test.also]
    if not result.parts:
        return _verdict_words(result, result.verdict, deciding)
    by_part = {part: [entry for entry in deciding if entry.test.part == part] for part in result.parts}
    return " ".join(
        f"{part.capitalize()}: {_verdict_words(result, verdict, by_part[part])}"
        for part, verdict in result.parts.items()
    )


def _verdict_words(result: Result, verdict: Verdict, deciding: Sequence[Judged]) -> str:
    decisive = [test_result for test_result in deciding if test_result.verdict == verdict] or deciding
    reasons = "; ".join(f"{test_result.test.name}: {reason_words(test_result)}" for test_result in decisive)
    if verdict == "dose-dependent":
        names = {test_result.test.name for test_result in deciding}
        differing = [series for series in result.series if series.p <= ALPHA and names & {*series.tests}]
        reasons = "; ".join(series_words(series, result) for series in differing)
    differ = verdict == "unresolved" and all(test_result.verdict != "unresolved" for test_result in deciding)
    meaning = "each of the tests that decide came out, but not alike" if differ else VERDICTS[verdict]
    return f"{meaning.capitalize()}. {reasons[:1].upper()}{reasons[1:]}."


def meaning_words(result: Result) -> str:
    """What the conclusion means, of a claim whose parts come out differently by part."""
    if len({*result.parts.values()}) < 2:
        return VERDICTS[result.verdict]
    return "; ".join(f"{part}: {VERDICTS[verdict]}" for part, verdict in result.parts.items())


def series_words(series: DoseSeries, result: Result) -> str:
    """Whether the effects of a series differ by dose, and what is said at each."""
    low, high = series.pair
    verdicts = {test.test.name: test.verdict for test in result.tests}
    verdicts_by_dose = ", ".join(
        f"{verdicts[name]} at {sweep_value(dose)}"
        for name, dose in zip(series.tests, series.doses, strict=True)
    )
    prefix = f"{series.name}: " if series.name else ""
    between = (
        f"effects at {sweep_value(low)} and {sweep_value(high)} differ"
        if series.p <= ALPHA
        else "effects are not told apart"
    )
    return f"{prefix}{verdicts_by_dose}; {between} (p {series.p:.3g} over {len(series.doses)} doses)"


def check_words(check: Mapping[str, Any]) -> str:
    """A manipulation check with its number and its bounds, from a row of `result.as_row`."""
    unit = check["unit"]
    value, low, high = (number_of(check[name]) for name in ("value", "low", "high"))
    shown, *ends = (amount(quantity, unit, False, sign=False) for quantity in (value, low, high))
    bounds = [
        f"{words} {amount(check[bound], unit, False, sign=False)}"
        for bound, words in (("at_least", "at least"), ("at_most", "at most"))
        if check[bound] is not None
    ]
    within = "" if math.isnan(low) else f"{ends[0]} to {ends[1]}; "
    return f"{shown} {unit} ({within}asked: {' and '.join(bounds)})".replace("  ", " ")


def effect_words(test: Mapping[str, Any]) -> str:
    """An effect with its interval in its unit, from a row of `result.as_row`."""
    value, low, high = (number_of(test[name]) for name in ("value", "low", "high"))
    if test["deals"]:
        return f"{percent(value)} % of deals called different ({percent(low)} to {percent(high)})"
    unit = test["unit"]
    text = f"{amount(value, unit, test['ratio'])} {_unit(unit, test['ratio'])}".strip()
    within = [f"{amount(low, unit, test['ratio'])} to {amount(high, unit, test['ratio'])}"]
    within = [] if math.isnan(low) else within
    if test.get("reached") is not None:
        words = CENSORED[Measure.read(test["outcome"]).kind]
        within.append(f"{test['reached']} of {test['runs']} runs {words}")
    if test.get("bases", 1) > 1:
        within.append(f"{test['bases']} bases")
    return f"{text} ({'; '.join(within)})" if within else text


def bases_words(test: Mapping[str, Any]) -> str:
    """What the interval of a test is about, from a row of `result.as_row`."""
    if test["bases"] > 1 and len({*test["seeds"]}) < len(test["seeds"]):
        return f"{test['bases']} bases, which share seeds: intervals are over bases and seeds"
    if test["bases"] > 1:
        return f"{test['bases']} bases with seeds of their own: intervals are over bases"
    return "one base: all seeds of an arm start from the same weights, and intervals are about these"


def parts_words(test: Mapping[str, Any]) -> str:
    """The two parts of a test, from a row of `result.as_row`; empty if its runs are of one kind."""
    parts = test["two_parts"]
    if parts is None:
        return ""
    counts = failing_counts(parts["failed"], parts["runs"], parts["names"], "runs")
    share, outcome = parts["share"], parts["outcome"]
    words = f"{counts} {parts['fails']}"
    if share["value"] is not None:
        shares = effect_words({**share, "deals": 0, "unit": "points", "ratio": False})
        words += f": {shares}, p {parts['p_share']:.3g}"
    if not parts["seeds"]:
        return f"{words}. In every seed a run does"
    effect = effect_words({**outcome, "deals": 0, "unit": test["unit"], "ratio": test["ratio"]})
    seeds = f"{parts['seeds']} seed{'s' * (parts['seeds'] > 1)}"
    seeds += " of single bases" * (test["bases"] > 1)
    return f"{words}. In the {seeds} in which no run does: {effect}, p {parts['p_outcome']:.3g}"


def arm_words(arm_mean: ArmMean, unit: str) -> str:
    """An arm's mean with its interval in a test's unit. Where the outcome is censored, it is the mean within
    the planned updates or the budget, and censored runs are counted."""

    def shown(value: float) -> str:
        return amount(value, unit, False, sign=False)

    mean = arm_mean.mean
    parts = [] if math.isnan(mean.low) else [f"{shown(mean.low)} to {shown(mean.high)}"]
    if math.isnan(arm_mean.horizon):
        return f"{shown(mean.value)} ({'; '.join(parts)})" if parts else shown(mean.value)
    if arm_mean.reached:
        parts.append(f"{arm_mean.reached} of {len(arm_mean.values)} {CENSORED[arm_mean.kind]}")
    within = f" ({'; '.join(parts)})" if parts else ""
    return f"{shown(mean.value)} of {arm_mean.horizon:g}{within}"


def matters_words(test: Mapping[str, Any]) -> str:
    """The smallest effect that matters, in its unit; of deals the largest share called different."""
    if test["deals"]:
        return f"{percent(test['most'])} %"
    unit = test["unit"]
    return f"{amount(test['matters'], unit, test['ratio'], sign=False)} {_unit(unit, test['ratio'])}".strip()


def power_lines(planned_tests: Sequence[PlannedTest], pilot: str) -> list[str]:
    """The power of each test in a line, and for those that no earlier runs tell the command of a `pilot`."""
    unknown = [planned for planned in planned_tests if not planned.source]
    lines = [
        f"power: {planned.test.name}: {power_words(planned)}" for planned in planned_tests if planned.source
    ]
    if unknown:
        which = f"{len(unknown)} of {len(planned_tests)} tests" if lines else "before the runs"
        lines.append(
            f"power: not known {'for ' * bool(lines)}{which}: no earlier runs tell how far the contrast "
            f"scatters over seeds; a pilot on other seeds does: {pilot}"
        )
    return lines


def power_words(planned: PlannedTest) -> str:
    """How often the seeds of a test with a known standard deviation find the smallest effect that matters."""
    test = planned.test
    if math.isnan(planned.sd):
        return f"not known: the contrast is the same {planned.source}"
    finds = "show that equal arms differ by less than" if test.expect not in DIRECTED else "find an effect of"
    if test.ratio:
        sd = f"SD of the logarithm {planned.sd:.2g}"
    else:
        sd = f"SD {amount(planned.sd, test.unit, False, sign=False)} {test.unit}".strip()
    text = (
        f"{planned.seeds} seeds {finds} {matters_words(vars(test))} in {planned.power:.0%} of repetitions "
        f"({planned.tests} test{'s' * (planned.tests > 1)}; {sd} {planned.source}{_bases(planned)})"
    )
    return f"{text}; {seeds_needed_words(planned)}" if planned.is_weak else text


def _bases(planned: PlannedTest) -> str:
    """What the power takes for granted about bases."""
    return f"; if the {planned.bases} bases do not differ" if planned.bases > 1 else ""


def amount(value: float, unit: str, ratio: bool, sign: bool = True) -> str:
    """A number of the unit, differences with their sign."""
    if not math.isfinite(value):
        return NONE
    if ratio:
        return number(value, 2)
    if unit in ("points", "%"):
        text = percent(value)
    elif abs(value) >= LARGE:
        text = f"{value:.2e}".replace("-", "−")
    elif 0 < abs(value) < SMALL:
        text = f"{value:.1e}".replace("e-0", "e-").replace("-", "−")
    else:
        text = number(value, 1 if abs(value) >= 10 or unit in COARSE else 3)
    plus = sign and not text.startswith("−") and unit != "%"
    return f"+{text}" if plus else text


def _unit(unit: str, ratio: bool) -> str:
    return "times" if ratio else unit
