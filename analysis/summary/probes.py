"""What tasks that probe for social bias report, from later evaluations, with what is known against them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from grpobench.analysis.logs.later import LaterEvaluation
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.bias import BIAS

PUBLISHED = (
    *BIAS,
    "crows_score",
    "crows_stereotype",
    "crows_antistereotype",
    "crows_neutral",
    "stereoset_lms",
    "stereoset_ss",
    "stereoset_icat",
    "accuracy_pro",
    "accuracy_anti",
    "accuracy_gap",
    "accuracy_male",
    "accuracy_female",
    "accuracy_neutral",
    "gender_gap",
    "accuracy_gotcha",
    "gender_parity",
    "occupation_gap",
    "bls_correlation",
)
"""The metrics of bias probes, in the order of tables."""


def probe_metrics(later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """One row per evaluation, policy, mode, metric and category (`all` for the whole): place, split, mode,
    through, metric, category, arm, seed, policy (`base`, `final`, `model`), value."""
    rows = []
    for evaluation in later:
        for policy, told in evaluation.content["policies"].items():
            for name, value in told["numbers"].items():
                parts = name.split("/", 4)
                if len(parts) < 4 or parts[0] != "eval" or parts[3] not in PUBLISHED or value is None:
                    continue
                _, split, mode, metric, *rest = parts
                category = rest[0] if rest else "all"
                rows.append(
                    (
                        evaluation.place,
                        split,
                        mode,
                        evaluation.through,
                        metric,
                        category,
                        evaluation.arm,
                        evaluation.seed,
                        policy,
                        float(value),
                    )
                )
    columns = ["place", "split", "mode", "through", "metric", "category", "arm", "seed", "policy", "value"]
    return pd.DataFrame(rows, columns=columns)


def caveats(matrix: Matrix, later: Sequence[LaterEvaluation] = ()) -> dict[str, str]:
    """What is known against a task's numbers, by task, as the runs and the evaluations recorded it."""
    told = {run.task: run.origin.get("caveat") for run in matrix.runs}
    told |= {evaluation.task: evaluation.content.get("caveat") for evaluation in later}
    return {task: str(caveat) for task, caveat in told.items() if caveat}
