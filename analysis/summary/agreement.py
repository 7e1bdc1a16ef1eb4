"""Where a question was asked in two ways, through our sampler and through lm-eval: do they agree?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.logs.later import LaterEvaluation

TOLERANCE = 1e-3
"""Between scores that two ways of asking should agree on: those made of likelihoods are float32 sums, whose
order depends on the batch."""


@dataclass(frozen=True)
class Agreement:
    """What two ways of asking the same question say about the same items."""

    mode: str
    items: int
    first: float
    """Mean score of the first way over the shared items."""
    second: float
    differing: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]
    """Pairs of rows whose scores differ."""
    same_text: int | None
    """Items with the very same completion; None where nothing was written."""


def agree(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], score: str = "correct"
) -> list[Agreement]:
    """Compare rows of one policy, mode by mode. Sampled answers are left out: the two ways draw different
    random numbers, so their accuracies agree within sampling error only."""
    found = []
    for mode in dict.fromkeys(row["mode"] for row in first if row["mode"] != "sampled"):
        ours, theirs = (
            {row["problem"]: row for row in rows if row["mode"] == mode and row["outcome"] != "infra_error"}
            for rows in (first, second)
        )
        pairs = [(row, theirs[problem]) for problem, row in ours.items() if problem in theirs]
        if not pairs:
            continue
        means = [
            float(np.mean([pair[side]["scores"].get(score, math.nan) for pair in pairs])) for side in (0, 1)
        ]
        written = [pair for pair in pairs if all("completion" in row for row in pair)]
        same = sum(one["completion"] == other["completion"] for one, other in written)
        differing = tuple(pair for pair in pairs if not _alike(pair[0]["scores"], pair[1]["scores"]))
        found.append(Agreement(mode, len(pairs), means[0], means[1], differing, same if written else None))
    return found


def _alike(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(abs(one[name] - other[name]) <= TOLERANCE for name in one)


def agreements(later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """Every evaluation that was also made the other way: place, split, mode, arm, seed, policy, items,
    grpobench, lm_eval, differing, same_text."""
    rows = []
    theirs = {(r.path.parent, r.question): r for r in later if r.through == "lm-eval"}
    for evaluation in later:
        other = theirs.get((evaluation.path.parent, evaluation.question))
        if evaluation.through != "grpobench" or other is None:
            continue
        for policy in evaluation.content["policies"]:
            ours, others = ([row for row in r.rows if row["policy"] == policy] for r in (evaluation, other))
            rows += [
                {
                    "place": evaluation.place,
                    "split": evaluation.split,
                    "mode": found.mode,
                    "arm": evaluation.arm,
                    "seed": evaluation.seed,
                    "policy": policy,
                    "items": found.items,
                    "grpobench": found.first,
                    "lm_eval": found.second,
                    "differing": len(found.differing),
                    "same_text": found.same_text,
                }
                for found in agree(ours, others)
            ]
    return pd.DataFrame(rows)
