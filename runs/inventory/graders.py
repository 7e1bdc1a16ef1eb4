"""Ask our graders and others about the rows of a kept table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.runs.inventory import folders
from grpobench.runs.tools import files
from grpobench.tasks.grading import pairs, readings


@dataclass(frozen=True)
class GraderComparison:
    """What the graders say now."""

    rows: Sequence[Any]
    lines: Sequence[str]
    """The same as text, with graders that are not installed and with the faults."""
    faults: Sequence[str]
    """Answers of ours that are not the expected ones."""


TABLES: Mapping[str, Any] = {"pairs": pairs, "readings": readings}


def compare(name: str, keep: bool = False) -> GraderComparison:
    """Ask again about the rows of a table, and with `keep` replace it in the project's checkout. Raises
    ConfigError where there is none."""
    table = TABLES[name]
    if keep:
        folders.docs_folder("--keep writes into one")
    expected = table.load()
    now, lacking = table.ask(expected)
    faults = list(table.faults(expected, now))
    if keep:
        files.write_atomic(table.TABLE, table.as_text(now).encode())
    return GraderComparison(now, [*table.as_lines(now), *lacking, *faults], faults)
