"""pass@k and majority votes against k: from what the runs sampled themselves, and from later evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from grpobench.analysis.logs.later import LaterEvaluation
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.statistics.samples import majority_curve, pass_curve, solved
from grpobench.analysis.summary.accuracy import graded
from grpobench.analysis.summary.headline import headline_of


def run_samples(matrix: Matrix) -> pd.DataFrame:
    """Graded answers of the runs' own sampled evaluations on the split of the headline: of each run those
    before training and those of its last evaluation."""
    frame = graded(matrix)
    if frame.empty:
        return frame
    frame = frame[frame["mode"] == "sampled"]
    splits = {task: headline_of(matrix, task, "sampled").split for task in matrix.tasks}
    frame = frame[frame["split"] == frame["task"].map(splits)]
    last = frame.groupby(["task", "arm", "seed"])["step"].transform("max")
    return frame[(frame["step"] == 0) | (frame["step"] == last)]


LEAST = 4
"""Samples per problem from which pass@k and votes are reported: k = 2 needs them."""


def sample_curves(in_runs: pd.DataFrame, later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """pass@k and maj@k of every seed, for k = 1, 2, 4, …: columns place, source, arm, seed, policy, kind
    (`pass` or `maj`), k, value.

    From what the runs sampled themselves (`in_runs`: graded rows of `Matrix.evaluations`, of each run those
    before training and after it) and from later evaluations, wherever each problem has at least four samples.
    A model that was asked the same question stands beside the runs.
    """
    rows: list[tuple[Any, ...]] = []
    for (task, arm, seed, step), own in in_runs.groupby(["task", "arm", "seed", "step"], sort=False):
        if own.groupby("problem").size().min() >= LEAST:
            head = (
                f"{task}\n{own['split'].iloc[0]}, in the runs",
                "run",
                arm,
                seed,
                "final" if step else "base",
            )
            rows += _curves(head, *_by_problem(own.to_dict("records"), lambda row: row["score/correct"]))
    labels = _labels(later)
    for evaluation in later:
        for policy in evaluation.content["policies"]:
            sampled = evaluation.of(policy, "sampled")
            if all("correct" in row["scores"] for row in sampled):
                answers, correct = _by_problem(sampled, lambda row: row["scores"]["correct"])
                for place in labels.get(evaluation.path, ()):
                    head = (place, evaluation.through, evaluation.arm, evaluation.seed, policy)
                    rows += _curves(head, answers, correct)
    return pd.DataFrame(rows, columns=["place", "source", "arm", "seed", "policy", "kind", "k", "value"])


def _labels(later: Sequence[LaterEvaluation]) -> dict[Path, list[str]]:
    """Where the curves of a record are drawn: by question and the task that the runs were trained on. A model
    stands beside all runs that were asked the same, or by itself."""
    sampled = [evaluation for evaluation in later if any(row["mode"] == "sampled" for row in evaluation.rows)]
    beside: dict[str, list[str]] = {}
    for evaluation in sampled:
        if evaluation.own:
            beside.setdefault(evaluation.question, []).append(_label(evaluation))
    found = {}
    for evaluation in sampled:
        runs = [] if evaluation.own else beside.get(evaluation.question, [])
        found[evaluation.path] = list(dict.fromkeys(runs or [_label(evaluation)]))
    return found


def _label(evaluation: LaterEvaluation) -> str:
    told = evaluation.content["settings"]
    how = f"{evaluation.split}, {told['samples']} samples, T = {told['temperature']:g}"
    return f"{evaluation.place}\n{how}{', lm-eval' if evaluation.through == 'lm-eval' else ''}"


def _by_problem(
    rows: Iterable[Mapping[str, Any]], score: Callable[[Mapping[str, Any]], float]
) -> tuple[list[list[str | None]], list[list[float]]]:
    """Answers and scores of each problem, in the order of the samples."""
    problems: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        problems.setdefault(row["problem"], []).append(row)
    ordered = [sorted(own, key=lambda row: row["sample"]) for own in problems.values()]
    answers = [[row["answer"] if isinstance(row["answer"], str) else None for row in own] for own in ordered]
    return answers, [[float(score(row)) for row in own] for own in ordered]


def _curves(
    head: tuple[Any, ...], answers: list[list[str | None]], correct: list[list[float]]
) -> list[tuple[Any, ...]]:
    if min(map(len, correct), default=0) < LEAST:
        return []
    passed = pass_curve([len(own) for own in correct], [solved(own) for own in correct])
    voted = majority_curve(answers, correct)
    return [(*head, "pass", k, value) for k, value in passed.items()] + [
        (*head, "maj", k, value) for k, value in voted.items()
    ]
