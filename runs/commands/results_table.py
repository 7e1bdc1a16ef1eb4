"""The accuracies of a report as a terminal shows them: the cells that the report itself prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpobench.analysis.report.facts import Facts

LEFT_OUT = ("val. best", "val. last")
"""Columns that the report has and a terminal has no room for."""


def lines(facts: Facts) -> list[str]:
    """One line per task and arm: accuracy before and after in percent, the interval over seeds, each seed;
    below them the titles of the report's alarms. No table where no run was evaluated."""
    told = [f"The report warns: {alarm.title}." for alarm in facts.alarms]
    table = facts.tables.get("accuracy")
    if table is None:
        return told
    kept = [place for place, name in enumerate(table.header) if name not in LEFT_OUT]
    rows = [[str(row[place]) for place in kept] for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [f"{table.title}, in percent; the report says what is certain of it:", *shown, *told]
