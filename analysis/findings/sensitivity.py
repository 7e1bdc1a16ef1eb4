"""Whether a finding's runs could have shown its effect: manipulation checks, positive controls and doses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from grpobench.analysis.findings.contrasts import contrasts_of
from grpobench.analysis.findings.horizons import Values
from grpobench.analysis.findings.result import SILENT, Checked, Judged, Series, Verdict
from grpobench.analysis.findings.rule import Check, Control, Test
from grpobench.analysis.statistics.intervals import seed_mean
from grpobench.analysis.statistics.maxima import joint_ps
from grpobench.analysis.statistics.permutation import holm
from grpobench.analysis.statistics.verdicts import ALPHA


def checked(check: Check, values: Values, waits: bool) -> Checked:
    """The check by its mean over seeds."""
    mean = seed_mean([*contrasts_of(check, values[check.name], waits).values()])
    above = check.at_least is None or mean.value >= check.at_least  # NaN is neither
    below = check.at_most is None or mean.value <= check.at_most
    return Checked(check, mean, above and below)


def with_sensitivity(one: Judged, checks: Sequence[Checked], controls: Sequence[Judged]) -> Judged:
    """The judged test, `insensitive` where it says that there is no difference, or nothing, although a check
    failed or a control did not show its effect; and where it says that there is none without a control."""
    none = one.verdict == "equivalent" or (one.verdict == "supported" and one.test.expect == "same")
    if not none and one.verdict not in SILENT:
        return one
    why = [
        f"a check failed: {told.check.name}"
        for told in checks
        if _concerns(told.check, one) and not told.passed
    ]
    own = [told for told in controls if isinstance(told.test, Control) and _concerns(told.test, one)]
    why += [f"a control shows nothing: {told.test.name}" for told in own if not told.shows]
    if none and not own:
        why.append("no control says that these runs could have shown a difference")
    if not why:
        return one
    return replace(one, verdict="insensitive", needs=f"{'; '.join(why)} (else {one.verdict}: {one.needs})")


def _concerns(asked: Check | Control, one: Judged) -> bool:
    return not asked.tests or one.test.name in asked.tests


def series_of(tests: Sequence[Test], values: Values, waits: bool) -> tuple[Series, ...]:
    """The tests with a dose by series, and whether their effects differ: all pairs of doses by max-T over
    joint sign flips of the seeds' differences, the smallest of these p over the series by Holm."""
    by_series: dict[str, list[Test]] = {}
    for test in tests:
        if test.dose is not None and not test.also:
            by_series.setdefault(test.series, []).append(test)
    found = [_series(name, own, values, waits) for name, own in by_series.items()]
    corrected = holm([one.p for one in found])
    return tuple(replace(one, p=float(p)) for one, p in zip(found, corrected, strict=True))


def _series(name: str, tests: Sequence[Test], values: Values, waits: bool) -> Series:
    dosed = sorted(
        (test.dose, test.name, contrasts_of(test, values[test.name], waits))
        for test in tests
        if test.dose is not None
    )
    pairs = [
        ((low, high), {seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()})
        for (low, _, ours), (high, _, theirs) in itertools.combinations(dosed, 2)
    ]
    _, ps = joint_ps([differences for _, differences in pairs])
    p, pair = min(zip(ps, [doses for doses, _ in pairs], strict=True))
    return Series(name, tuple(test for _, test, _ in dosed), tuple(dose for dose, _, _ in dosed), p, pair)


def conclusion(tests: Sequence[Judged], series: Sequence[Series]) -> Verdict:
    """From the tests that decide. Doses at which the runs could not have shown the effect are left out where
    another dose of their series could."""
    verdict_of = {one.test.name: one.verdict for one in tests}
    left_out: set[str] = set()
    for one in series:
        silent = {name for name in one.tests if verdict_of[name] == "insensitive"}
        left_out |= silent if len(silent) < len(one.tests) else set()
        heard = {verdict_of[name] for name in one.tests} - {"insensitive"}
        if one.p <= ALPHA and len(heard) > 1:
            return "dose-dependent"
    verdicts = [verdict for name, verdict in verdict_of.items() if name not in left_out]
    if "contradicted" in verdicts:
        return "contradicted"
    if set(verdicts) == {"supported"}:
        return "supported"
    primary = tests[0].test.name
    same = next((one.tests for one in series if primary in one.tests), (primary,))
    if all(verdict_of[name] == "equivalent" for name in same if name not in left_out):
        return "equivalent"
    return "insensitive" if "insensitive" in verdicts else "unresolved"
