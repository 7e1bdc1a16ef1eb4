"""Batches for every algorithm of the registry."""

from __future__ import annotations

from typing import Any

from grpobench.algorithms.algorithm import Batch
from helpers.toys import rollouts


def data(**settings: Any) -> Batch:
    """Groups of 4, 3, 1 and 2 rows, the last with equal rewards; an empty and two one-token completions; a
    gap of tool output in rows 0 and 5. Rows of a group differ in length, so that no order of rows is special.
    """
    return rollouts(
        [[7, 4, 0, 1], [9, 5, 1], [6], [3, 8]],
        [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 1.0], [1.0], [1.0, 1.0]],
        gaps={0: (2, 3), 5: (0,)},
        **settings,
    )
