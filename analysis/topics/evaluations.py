"""Later evaluations (`grpobench eval`): scores with intervals, and agreement between our sampler and
lm-eval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.evaluations import LaterEvaluation
from grpobench.analysis.statistics.intervals import Estimate, item_interval
from grpobench.analysis.tools.text import NONE, interval, percent, points
from grpobench.analysis.topics.sampling import by_place

MAIN = ("correct", "judge")
"""Scores that stand for all of a task's: the verifier's, and that of a judge."""


@dataclass(frozen=True)
class MeanScore:
    """One policy's mean score over items with its interval."""

    estimate: Estimate
    items: int
    interval: str


def later_scores(later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """One row per evaluation, mode, score and policy: place, split, mode, score, through, question, arm,
    seed, policy, step, value, low, high, interval, items, samples, caveat. The scores are those of `MAIN`
    that the answers have; without any, each score has a row."""
    rows = []
    for evaluation in later:
        for policy, record in evaluation.content["policies"].items():
            for mode in dict.fromkeys(row["mode"] for row in evaluation.rows):
                graded = evaluation.of(policy, mode)
                names = sorted({name for row in graded for name in row["scores"]})
                for name in [name for name in names if name in MAIN] or names:
                    score = mean_score(graded, name)
                    rows.append(
                        {
                            "place": evaluation.label,
                            "split": evaluation.split,
                            "mode": mode,
                            "score": name,
                            "through": evaluation.through,
                            "question": evaluation.question,
                            "arm": evaluation.arm,
                            "seed": evaluation.seed,
                            "policy": policy,
                            "step": record["step"],
                            "value": score.estimate.value,
                            "low": score.estimate.low,
                            "high": score.estimate.high,
                            "interval": score.interval,
                            "items": score.items,
                            "samples": len(graded) / score.items if score.items else math.nan,
                            "caveat": evaluation.content.get("caveat", ""),
                        }
                    )
    return pd.DataFrame(rows)


def mean_score(rows: Sequence[Mapping[str, Any]], name: str) -> MeanScore:
    """Mean of a score over items, after averaging the samples of each item. It has an interval only if all
    scores are from 0 to 1."""
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


# Agreement with lm-eval

TOLERANCE = 1e-3
"""Scores closer than this agree. Likelihoods are float32 sums whose order depends on the batch."""


@dataclass(frozen=True)
class EvaluationAgreement:
    """Results of two ways of evaluating the same items."""

    mode: str
    items: int
    first: float
    """Mean score of the first way over the shared items."""
    second: float
    differing: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]
    """Pairs of rows whose scores differ."""
    same_text: int | None
    """Items with identical completions; None where no completions were recorded."""


def compare_answers(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], score: str = "correct"
) -> list[EvaluationAgreement]:
    """Compare rows of one policy, mode by mode. Sampled answers are left out: both ways draw different random
    numbers, so their accuracies agree only within sampling error."""
    agreements = []
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
        same_text = sum(
            first_row["completion"] == second_row["completion"] for first_row, second_row in written
        )
        differing = tuple(pair for pair in pairs if not _alike(pair[0]["scores"], pair[1]["scores"]))
        agreements.append(
            EvaluationAgreement(
                mode, len(pairs), means[0], means[1], differing, same_text if written else None
            )
        )
    return agreements


def _alike(first_scores: Mapping[str, float], second_scores: Mapping[str, float]) -> bool:
    return first_scores.keys() == second_scores.keys() and all(
        abs(first_scores[name] - second_scores[name]) <= TOLERANCE for name in first_scores
    )


def list_agreements(later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """Every evaluation that was made both ways: place, split, mode, arm, seed, policy, items,
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
                    "place": evaluation.label,
                    "split": evaluation.split,
                    "mode": agreement.mode,
                    "arm": evaluation.arm,
                    "seed": evaluation.seed,
                    "policy": policy,
                    "items": agreement.items,
                    "grpobench": agreement.first,
                    "lm_eval": agreement.second,
                    "differing": len(agreement.differing),
                    "same_text": agreement.same_text,
                }
                for agreement in compare_answers(ours, others)
            ]
    return pd.DataFrame(rows)


# Tables


def later_table(later: Sequence[LaterEvaluation]) -> PrintedTable:
    """Accuracies of evaluations made by `grpobench eval`."""
    frame = later_scores(later)
    rows = []
    if len(frame):
        frame = by_place(frame)
        keys = ["place", "split", "mode", "through", "question", "score", "arm"]
        for (label, split, mode, through, _, score, arm), group in frame.groupby(keys, sort=False):
            last = group[group["policy"] != "base"].sort_values("seed")
            before = group.loc[group["policy"] == "base", "value"].mean()
            mean = last["value"].mean()
            cells = [
                label,
                arm,
                f"{split}, {mode}, {through}",
                score,
                f"{group['items'].iloc[0]} × {group['samples'].iloc[0]:g}",
                percent(before),
                percent(mean),
                points(mean - before),
                "  ".join(f"{percent(r.value)} ({interval(r.low, r.high)})" for r in last.itertuples()),
                ", ".join(dict.fromkeys(group["interval"])),
            ]
            rows.append(cells)
    header = ["task", "arm or model", "how", "score", "items × samples", "before", "after", "gain"]
    header += ["each seed (95% interval over items)", "interval"]
    note = (
        "In percent, from `grpobench eval`: runs before and after training, and models without training. The "
        "interval is about one policy and these items, not about the algorithm. It is clustered if items "
        "share a template, Wilson below 300 items, and normal otherwise. The evals folders of the runs have "
        "further numbers."
    )
    return PrintedTable("evaluations", "Later evaluations", header, rows, frame, text_columns=4, note=note)


def agreement_table(later: Sequence[LaterEvaluation]) -> PrintedTable:
    """Items that were evaluated both by our sampler and by lm-eval."""
    frame = list_agreements(later)
    rows = [
        [
            r["place"],
            f"{r['arm']}, seed {r['seed']}, {r['policy']}" if r["policy"] != "model" else r["arm"],
            f"{r['split']}, {r['mode']}",
            str(r["items"]),
            percent(r["grpobench"]),
            percent(r["lm_eval"]),
            str(r["differing"]),
            NONE if pd.isna(r["same_text"]) else f"{r['same_text']:g}",
        ]
        for r in frame.to_dict("records")
    ]
    header = [
        "task",
        "policy",
        "how",
        "items",
        "grpobench (%)",
        "lm-eval (%)",
        "differing",
        "same text",
    ]
    note = (
        "The same items and weights, evaluated with our sampler and with the lm-eval harness, which uses our "
        "verifier as its metric. Differing: items with different scores. Same text: identical completions."
    )
    return PrintedTable("agreement", "Agreement with lm-eval", header, rows, frame, text_columns=3, note=note)
