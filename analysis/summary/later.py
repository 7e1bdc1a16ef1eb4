"""Later evaluations as scores with their intervals: a row per question, subject and policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.logs.later import LaterEvaluation
from grpobench.analysis.statistics.intervals import Estimate, item_interval


@dataclass(frozen=True)
class MeanScore:
    """One policy's mean score over items with its interval."""

    estimate: Estimate
    items: int
    interval: str


def later_scores(later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """One row per evaluation, mode, score and policy: place, split, mode, score, through, question, arm,
    seed, policy, step, value, low, high, interval, items, samples, caveat. The score is `correct` where the
    task has it, else there is a row for each."""
    rows = []
    for evaluation in later:
        for policy, told in evaluation.content["policies"].items():
            for mode in dict.fromkeys(row["mode"] for row in evaluation.rows):
                own = evaluation.of(policy, mode)
                names = sorted({name for row in own for name in row["scores"]})
                for name in ["correct"] if "correct" in names else names:
                    found = mean_score(own, name)
                    rows.append(
                        {
                            "place": evaluation.place,
                            "split": evaluation.split,
                            "mode": mode,
                            "score": name,
                            "through": evaluation.through,
                            "question": evaluation.question,
                            "arm": evaluation.arm,
                            "seed": evaluation.seed,
                            "policy": policy,
                            "step": told["step"],
                            "value": found.estimate.value,
                            "low": found.estimate.low,
                            "high": found.estimate.high,
                            "interval": found.interval,
                            "items": found.items,
                            "samples": len(own) / found.items if found.items else math.nan,
                            "caveat": evaluation.content.get("caveat", ""),
                        }
                    )
    return pd.DataFrame(rows)


def mean_score(rows: Sequence[Mapping[str, Any]], name: str) -> MeanScore:
    """Mean of a score over items (an item's samples averaged first), with the interval that suits them. An
    interval is only given for scores from 0 to 1."""
    items: dict[str, list[float]] = {}
    clusters: dict[str, str] = {}
    for row in rows:
        if name in row["scores"]:
            items.setdefault(row["problem"], []).append(float(row["scores"][name]))
            clusters[row["problem"]] = str(row["traits"].get("cluster", row["problem"]))
    means = [float(np.mean(values)) for values in items.values()]
    if any(not 0 <= mean <= 1 for mean in means):
        return MeanScore(Estimate(float(np.mean(means)), math.nan, math.nan), len(means), "none")
    estimate, kind = item_interval(means, [clusters[problem] for problem in items])
    return MeanScore(estimate, len(means), kind)
