"""Everything that a report says, computed before it is laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.checks.alarms import Alarm, find_alarms
from grpobench.analysis.checks.pairing import Pairing, check_pairing
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.accuracy import accounting
from grpobench.analysis.summary.numbers import Numbers
from grpobench.analysis.summary.origins import run_origins
from grpobench.analysis.summary.settings import Setting, all_settings
from grpobench.analysis.tables.catalogue import make_tables
from grpobench.analysis.tables.table import Table


@dataclass(frozen=True)
class Facts:
    """What is known of a matrix; figures are drawn from `numbers`."""

    numbers: Numbers
    tables: Mapping[str, Table]
    settings: Sequence[Setting]
    origins: Mapping[str, Sequence[tuple[str, int]]]
    pairing: Pairing
    accounting: Mapping[str, int]
    """How many of the planned runs stand how."""
    alarms: Sequence[Alarm]

    @property
    def matrix(self) -> Matrix:
        """The logs that all of it comes from."""
        return self.numbers.matrix


def gather(logs: Matrix | Numbers) -> Facts:
    """Compute every number of the report."""
    numbers = logs if isinstance(logs, Numbers) else Numbers(logs)
    matrix = numbers.matrix
    return Facts(
        numbers=numbers,
        tables=make_tables(numbers),
        settings=all_settings(matrix),
        origins=run_origins(matrix),
        pairing=check_pairing(matrix),
        accounting=accounting(matrix, numbers.runs),
        alarms=find_alarms(matrix, numbers.damage, numbers.spared),
    )
