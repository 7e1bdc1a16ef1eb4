"""Every table that the logs allow, by its name."""

from __future__ import annotations

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.doses import axes_of
from grpobench.analysis.summary.numbers import Numbers
from grpobench.analysis.tables.accuracy import accuracy_table, other_mode_tables
from grpobench.analysis.tables.bias import bias_table, probes_table
from grpobench.analysis.tables.comparisons import against_base_table, aggregate_tables, comparisons_table
from grpobench.analysis.tables.costs import (
    axes_table,
    budgets_table,
    costs_table,
    equal_budgets_table,
    gaps_table,
)
from grpobench.analysis.tables.doses import frontier_table, map_table
from grpobench.analysis.tables.later import agreement_table, later_table
from grpobench.analysis.tables.runs import runs_table
from grpobench.analysis.tables.sampling import samples_table
from grpobench.analysis.tables.stability import stability_table, survival_table
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tables.training import critic_table, rewards_table


def make_tables(matrix: Matrix | Numbers) -> dict[str, Table]:
    """Name -> table, without those that would have no row."""
    numbers = matrix if isinstance(matrix, Numbers) else Numbers(matrix)
    matrix = numbers.matrix
    if matrix.doses:  # arms are doses: what compares them by pairs would be hundreds of rows
        axes = axes_of(matrix.doses)
        maps = [table(axes, numbers.grid) for table in (map_table, frontier_table) if axes]
        return {table.name: table for table in [*maps, runs_table(matrix)] if table.rows}
    made = [
        accuracy_table(matrix, numbers.runs, "accuracy", "Final accuracy"),
        *other_mode_tables(matrix, numbers.runs, numbers.findings),
        stability_table(matrix, numbers.findings, numbers.runs),
        survival_table(matrix, numbers.findings),
        comparisons_table(numbers.compared, matrix.plan),
        against_base_table(numbers.against_base),
        *aggregate_tables(matrix, numbers.runs),
        samples_table(numbers.curves, "pass"),
        samples_table(numbers.curves, "maj"),
        budgets_table(matrix),
        equal_budgets_table(matrix),
        axes_table(numbers.on_axes),
        costs_table(numbers.costs),
        gaps_table(matrix),
        rewards_table(matrix),
        critic_table(matrix),
        bias_table(matrix, numbers.bias),
        probes_table(matrix, numbers.later),
        later_table(numbers.later),
        agreement_table(numbers.later),
        runs_table(matrix),
    ]
    return {table.name: table for table in made if table.rows}
