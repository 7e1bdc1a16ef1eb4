"""How many conclusions of all findings are expected to be wrong, from the levels of their rules."""

from __future__ import annotations

from collections.abc import Sequence

from grpobench.analysis.findings.bases import split_arm
from grpobench.analysis.findings.planned import deciding_tests
from grpobench.analysis.findings.record import Record
from grpobench.analysis.findings.rule import Finding, covers
from grpobench.analysis.statistics.verdicts import ALPHA


def count_secondary(record: Record) -> int:
    """How many secondary tests of the registered rule have runs of every arm."""
    rule = record.registration.finding
    cells = {(split_arm(arm, rule.bases)[0], task) for arm, task, _ in record.states}
    return sum(
        all(any(covers(name, *cell) for cell in cells) for name in test.contrast)
        for test in rule.test
        if test.also
    )


def error_words(rules: Sequence[Finding], secondary: int) -> str:
    """The expected numbers of wrong conclusions, if each rule decides once, with so many secondary tests.

    A rule states a difference without one, in any of its deciding tests, with a chance of at most `ALPHA`,
    and an effect below `matters` that is as large with a chance of at most `ALPHA`, so that the numbers add
    up over rules whatever depends on each other. A secondary test has both levels to itself.
    """
    levels = sum(bool(deciding_tests(rule)) for rule in rules)
    level = f"{100 * ALPHA:g} %"
    without = " (A/A tests, which count deals, have none)" if levels < len(rules) else ""
    text = (
        f"{levels} of the {len(rules)} conclusions have a level of {level} over the deciding tests of "
        f"their finding, for differences and again for equivalence{without}. So at most {ALPHA * levels:.1f} "
        f"of them are expected to state a difference where there is none, and at most {ALPHA * levels:.1f} "
        "to call an effect too small that is as large as what matters. It would be as many only if no claim "
        "had an effect, or if every effect were just as large as what matters."
    )
    if not secondary:
        return text
    return (
        f"{text} The {secondary} secondary tests have {level} each, which nothing corrects: at most "
        f"{ALPHA * secondary:.1f} more errors of either kind."
    )
