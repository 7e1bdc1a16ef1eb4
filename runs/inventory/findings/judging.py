"""The rule that judges the runs of a finding: the registered one, or its correction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpobench.analysis.findings.rule import Finding
from grpobench.runs.settings.findings import FindingFile

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record


def judging_rule(study: FindingFile, record: Record) -> Finding:
    """The registered rule. If the finding's file says in `correction` why the rule was wrong, and the runs
    measured all that today's rule asks for, it is today's rule."""
    registered = record.registration.finding
    corrected = study.correction and study.finding.outcomes <= registered.outcomes
    return study.finding if corrected else registered


def departed(study: FindingFile, record: Record) -> list[str]:
    """How runs and rule differ from what was registered; with a corrected rule, what the registered one
    concludes."""
    departures, registered = record.departed(study.finding), record.registration.finding
    if judging_rule(study, record).digest == registered.digest:
        return departures
    concluded = record.result().verdict
    return [*departures[:-1], f"the rule was corrected after the runs; as registered: {concluded}"]
