"""Which controls and checks stand for which tests: a control must measure what its test measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from grpobench.analysis.findings.rule import Check, Control, Finding, Test
from grpobench.analysis.measure import Measure
from grpobench.analysis.tools.text import RATE_SUFFIX

LEVEL_OF: Mapping[str, str] = {
    "gain": "accuracy",
    "base": "accuracy",
    "shift": "evaluated",
    "also_shift": "also",
    "pass_gain": "pass",
    "pass_base": "pass",
}
"""Kinds of outcome that are another one before training, or minus that: one control shows both."""
BOUNDED = ("accuracy", "equal", "ceiling", "pass")
"""Kinds of outcome that can be at their ceiling."""


def is_alike(first: Test | Check, second: Test | Check) -> bool:
    """Whether both measure the same outcome on the same problems, at its level or as a gain."""
    return _level(first) == _level(second) and dict(first.where) == dict(second.where)


def is_room_check(check: Check) -> bool:
    """Whether a check is to show that a bounded outcome, such as an accuracy, can still rise."""
    return check.at_most is not None and _level(check).kind in BOUNDED


def stands_for(part: Check | Control, test: Test) -> bool:
    """Whether a check or control says what the runs could have shown in a test. Those of another outcome do
    not, except checks that the mechanism was active."""
    is_listed = not part.tests or test.name in part.tests
    return is_listed and (is_alike(part, test) or not _must_be_alike(part))


def mismatches(finding: Finding) -> Iterator[str]:
    """Messages on controls and checks for room with another outcome than a test that they stand for: one of
    their `tests` or, without `tests`, one that decides and has no other of its outcome."""
    for kind, parts in (("control", finding.control), ("check", finding.check)):
        strict = [part for part in parts if _must_be_alike(part)]
        for part in strict:
            for test in finding.test:
                if is_alike(part, test) or (part.tests and test.name not in part.tests):
                    continue
                served = any(stands_for(other, test) for other in strict)
                bounded = kind == "control" or _level(test).kind in BOUNDED
                if part.tests or not (test.also or served or not bounded):
                    yield (
                        f"{kind} {part.name!r} measures {part.outcome}, and its test {test.name!r} measures "
                        f"{test.outcome}: add a [[{kind}]] of {test.outcome} for this test, or give this one "
                        f"`tests` without it"
                    )


def without_peaks(finding: Finding) -> Iterator[str]:
    """Messages on tests of best rates without a check that the outcome of each arm depends on the rate. The
    best rate on a flat curve is chance, which is in the middle of every grid, so that arms look alike."""
    for test in finding.test:
        measure = Measure.read(test.outcome)
        if measure.kind != "best_rate" or test.also:
            continue
        checks = [check for check in finding.check if not check.tests or test.name in check.tests]
        for arm in test.contrast:
            if not any(check.outcome == measure.argument and _compares_rates(check, arm) for check in checks):
                yield (
                    f"test {test.name!r} compares best rates of {arm}, which a curve without a peak has "
                    f"anywhere: add a [[check]] of {measure.argument} between {arm} and {arm}{RATE_SUFFIX}M, "
                    "where M is one of the recipe's rates"
                )


def _compares_rates(check: Check, arm: str) -> bool:
    """Whether a check compares an arm with the same arm at another learning rate."""
    return arm in check.contrast and any(name.startswith(arm + RATE_SUFFIX) for name in check.contrast)


def _must_be_alike(part: Check | Control) -> bool:
    return isinstance(part, Control) or is_room_check(part)


def _level(part: Test | Check) -> Measure:
    measure = Measure.read(part.outcome)
    return replace(measure, kind=LEVEL_OF.get(measure.kind, measure.kind))
