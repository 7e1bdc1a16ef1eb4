"""Whether a finding's runs could have shown its effect: manipulation checks, positive controls and doses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from grpobench.analysis.findings.attachment import stands_for
from grpobench.analysis.findings.bases import mean_over_bases
from grpobench.analysis.findings.contrasts import contrasts_of, repetitions
from grpobench.analysis.findings.horizons import Values
from grpobench.analysis.findings.result import SILENT, CheckResult, DoseSeries, Judged, Verdict
from grpobench.analysis.findings.rule import Check, Control, Test
from grpobench.analysis.statistics.maxima import joint_ps
from grpobench.analysis.statistics.permutation import holm
from grpobench.analysis.statistics.verdicts import ALPHA


def checked(check: Check, values: Values, waits: bool) -> CheckResult:
    """The check by its mean over seeds, and over bases."""
    mean = mean_over_bases(contrasts_of(check, values[check.name], waits))
    above = check.at_least is None or mean.value >= check.at_least  # NaN is neither
    below = check.at_most is None or mean.value <= check.at_most
    return CheckResult(check, mean, above and below)


def with_sensitivity(
    test_result: Judged, checks: Sequence[CheckResult], controls: Sequence[Judged]
) -> Judged:
    """The judged test, `insensitive` where it says that there is no difference, or nothing, although a check
    failed or a control did not show its effect; and where it says that there is none without a control of
    its outcome."""
    if not test_result.says_none and test_result.verdict not in SILENT:
        return test_result
    why = [
        f"a check failed: {check_result.check.name}"
        for check_result in checks
        if stands_for(check_result.check, test_result.test) and not check_result.passed
    ]
    rules = [control.test for control in controls if isinstance(control.test, Control)]
    standing = [rule.name for rule in rules if stands_for(rule, test_result.test)]
    why += [
        f"a control shows nothing: {control.test.name}"
        for control in controls
        if control.test.name in standing and not control.shows
    ]
    if test_result.says_none and not standing:
        why.append(_without_control(test_result.test, rules))
    if not why:
        return test_result
    return replace(
        test_result,
        verdict="insensitive",
        needs=f"{'; '.join(why)} (else {test_result.verdict}: {test_result.needs})",
    )


def _without_control(test: Test, controls: Sequence[Control]) -> str:
    others = [control for control in controls if not control.tests or test.name in control.tests]
    if not others:
        return "no control says that these runs could have shown a difference"
    outcomes = " and ".join(dict.fromkeys(control.outcome for control in others))
    return f"its control measures another outcome: {outcomes}, not {test.outcome}"


def series_of(tests: Sequence[Test], values: Values, waits: bool) -> tuple[DoseSeries, ...]:
    """The tests with a dose by series, and whether their effects differ: all pairs of doses by max-T over
    joint sign flips of the seeds' differences, the smallest of these p over the series by Holm."""
    by_series: dict[str, list[Test]] = {}
    for test in tests:
        if test.dose is not None and not test.also:
            by_series.setdefault(test.series, []).append(test)
    all_series = [_series(name, dosed_tests, values, waits) for name, dosed_tests in by_series.items()]
    corrected = holm([series.p for series in all_series])
    return tuple(replace(series, p=float(p)) for series, p in zip(all_series, corrected, strict=True))


def _series(name: str, tests: Sequence[Test], values: Values, waits: bool) -> DoseSeries:
    dosed = sorted(
        (test.dose, test.name, contrasts_of(test, values[test.name], waits))
        for test in tests
        if test.dose is not None
    )
    pairs = [
        ((low, high), {seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()})
        for (low, _, ours), (high, _, theirs) in itertools.combinations(dosed, 2)
    ]
    _, ps = joint_ps([repetitions(differences) for _, differences in pairs])
    p, pair = min(zip(ps, [doses for doses, _ in pairs], strict=True))
    return DoseSeries(name, tuple(test for _, test, _ in dosed), tuple(dose for dose, _, _ in dosed), p, pair)


def conclusion(tests: Sequence[Judged], series: Sequence[DoseSeries]) -> Verdict:
    """From the tests that decide, and those of the `series` whose tests are all among them, since a part of a
    claim has series of its own. Doses at which the runs could not have shown the effect are left out where
    another dose of their series could."""
    verdict_of = {test_result.test.name: test_result.verdict for test_result in tests}
    series = [dose_series for dose_series in series if {*dose_series.tests} <= verdict_of.keys()]
    left_out: set[str] = set()
    for dose_series in series:
        silent = {name for name in dose_series.tests if verdict_of[name] == "insensitive"}
        left_out |= silent if len(silent) < len(dose_series.tests) else set()
        heard = {verdict_of[name] for name in dose_series.tests} - {"insensitive"}
        if dose_series.p <= ALPHA and len(heard) > 1:
            return "dose-dependent"
    verdicts = [verdict for name, verdict in verdict_of.items() if name not in left_out]
    if "contradicted" in verdicts:
        return "contradicted"
    if set(verdicts) == {"supported"}:
        return "supported"
    primary = tests[0].test.name
    same = next((dose_series.tests for dose_series in series if primary in dose_series.tests), (primary,))
    if all(verdict_of[name] == "equivalent" for name in same if name not in left_out):
        return "equivalent"
    return "insensitive" if "insensitive" in verdicts else "unresolved"
