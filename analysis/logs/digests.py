"""The digests of the problems that the runs of a matrix could train on and evaluated."""

from __future__ import annotations

from grpobench.analysis.logs.files import LogError, problem_digests
from grpobench.analysis.logs.matrix import Matrix


def read_digests(matrix: Matrix) -> tuple[dict[str, dict[str, dict[str, str]]], list[str]]:
    """By run, as `problem_digests` has them; and which files are damaged, whose runs have none."""
    found, faults = {}, []
    for run in matrix.runs:
        if run.state != "missing":
            try:
                found[run.name] = problem_digests(matrix.folder / run.name)
            except LogError as error:
                faults.append(str(error))
    return found, faults
