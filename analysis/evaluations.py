"""Evaluations made after the runs (`grpobench eval`), and what many samples of a problem tell.

Read from ``<folder>/*/evals/*.json`` with the rows beside each; a subfolder is a run of the matrix or a model
that was evaluated into it. Nothing here changes what a run logged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis import scores
from grpobench.analysis.load import LogError, Matrix, _json, read_lines
from grpobench.analysis.scores import Estimate, item_interval

LEAST = 4
"""Samples per problem from which pass@k and votes are reported: k = 2 needs them."""
TOLERANCE = 1e-3
"""Between scores that two ways of asking should agree on: those made of likelihoods are float32 sums, whose
order depends on the batch."""


@dataclass(frozen=True)
class Record:
    """One question put to one subject in one way."""

    path: Path
    arm: str
    """The run's arm, or the model's name."""
    own: str
    """The task that the run was trained on; empty for a model."""
    seed: int
    through: str
    content: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def task(self) -> str:
        return str(self.content["settings"]["task"])

    @property
    def split(self) -> str:
        return str(self.content["settings"]["split"])

    @property
    def question(self) -> str:
        """The same for all records of the same settings."""
        return self.path.stem.removesuffix(f"-{self.through}")

    @property
    def place(self) -> str:
        """Where it stands in a table: the task, and what the run was trained on where that is another."""
        return self.task if self.own in ("", self.task) else f"{self.task} (trained on {self.own})"

    def of(self, policy: str, mode: str) -> list[Mapping[str, Any]]:
        """Graded rows of a policy (`base`, `final`, `model`) in a mode."""
        return [
            row
            for row in self.rows
            if row["policy"] == policy and row["mode"] == mode and row["outcome"] != "infra_error"
        ]


def read(matrix: Matrix) -> tuple[Record, ...]:
    """Every record below the matrix's folder, runs in their order and then models. Raises LogError."""
    runs = {run.name: run for run in matrix.runs}
    models = sorted(
        {path.parent.parent.name for path in matrix.folder.glob("*/evals/*.json")}
        - runs.keys()
        - matrix.strangers.keys()
    )
    found = []
    for name in [*runs, *models]:
        for path in sorted((matrix.folder / name / "evals").glob("*.json")):
            content = _json(path)
            try:
                rows = _rows(path, int(content["rows"]))
                subject, through = str(content["subject"]), str(content["through"])
            except KeyError as error:
                raise LogError(f"{path}: lacks {error}; evaluate again with `grpobench eval`") from None
            run = runs.get(name)
            known = (run.arm, run.task, run.seed) if run else (subject, "", 0)
            found.append(Record(path, *known, through, content, rows))
    return tuple(found)


def _rows(path: Path, count: int) -> tuple[Mapping[str, Any], ...]:
    lines, cut = read_lines(path.with_suffix(".jsonl"))
    if cut or len(lines) != count:
        raise LogError(
            f"{path.with_suffix('.jsonl')}: holds {len(lines)} rows and {path.name} counts on {count}; "
            "evaluate again with `grpobench eval --again`"
        )
    return tuple(row for _, row in lines)


# What many samples tell


def sampling(in_runs: pd.DataFrame, records: Sequence[Record]) -> pd.DataFrame:
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
    labels = _labels(records)
    for record in records:
        for policy in record.content["policies"]:
            sampled = record.of(policy, "sampled")
            if all("correct" in row["scores"] for row in sampled):
                answers, correct = _by_problem(sampled, lambda row: row["scores"]["correct"])
                for place in labels.get(record.path, ()):
                    head = (place, record.through, record.arm, record.seed, policy)
                    rows += _curves(head, answers, correct)
    return pd.DataFrame(rows, columns=["place", "source", "arm", "seed", "policy", "kind", "k", "value"])


def _labels(records: Sequence[Record]) -> dict[Path, list[str]]:
    """Where the curves of a record are drawn: by question and the task that the runs were trained on. A model
    stands beside all runs that were asked the same, or by itself."""
    sampled = [record for record in records if any(row["mode"] == "sampled" for row in record.rows)]
    beside: dict[str, list[str]] = {}
    for record in sampled:
        if record.own:
            beside.setdefault(record.question, []).append(_label(record))
    found = {}
    for record in sampled:
        runs = [] if record.own else beside.get(record.question, [])
        found[record.path] = list(dict.fromkeys(runs or [_label(record)]))
    return found


def _label(record: Record) -> str:
    told = record.content["settings"]
    how = f"{record.split}, {told['samples']} samples, T = {told['temperature']:g}"
    return f"{record.place}\n{how}{', lm-eval' if record.through == 'lm-eval' else ''}"


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
    passed = scores.pass_curve([len(own) for own in correct], [scores.solved(own) for own in correct])
    voted = scores.majority_curve(answers, correct)
    return [(*head, "pass", k, value) for k, value in passed.items()] + [
        (*head, "maj", k, value) for k, value in voted.items()
    ]


# One line per question and arm


@dataclass(frozen=True)
class Score:
    """One policy's mean score over items with its interval."""

    estimate: Estimate
    items: int
    interval: str


def summary(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record, mode, score and policy: place, split, mode, score, through, question, arm, seed,
    policy, step, value, low, high, interval, items, samples, caveat. The score is `correct` where the task
    has it, else there is a row for each."""
    rows = []
    for record in records:
        for policy, told in record.content["policies"].items():
            for mode in dict.fromkeys(row["mode"] for row in record.rows):
                own = record.of(policy, mode)
                names = sorted({name for row in own for name in row["scores"]})
                for name in ["correct"] if "correct" in names else names:
                    found = score(own, name)
                    rows.append(
                        {
                            "place": record.place,
                            "split": record.split,
                            "mode": mode,
                            "score": name,
                            "through": record.through,
                            "question": record.question,
                            "arm": record.arm,
                            "seed": record.seed,
                            "policy": policy,
                            "step": told["step"],
                            "value": found.estimate.value,
                            "low": found.estimate.low,
                            "high": found.estimate.high,
                            "interval": found.interval,
                            "items": found.items,
                            "samples": len(own) / found.items if found.items else math.nan,
                            "caveat": record.content.get("caveat", ""),
                        }
                    )
    return pd.DataFrame(rows)


def score(rows: Sequence[Mapping[str, Any]], name: str) -> Score:
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
        return Score(Estimate(float(np.mean(means)), math.nan, math.nan), len(means), "none")
    estimate, kind = item_interval(means, [clusters[problem] for problem in items])
    return Score(estimate, len(means), kind)


# Two ways, one answer?


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


def agreements(records: Sequence[Record]) -> pd.DataFrame:
    """Every record that was also made the other way: place, split, mode, arm, seed, policy, items, grpobench,
    lm_eval, differing, same_text."""
    rows = []
    theirs = {(r.path.parent, r.question): r for r in records if r.through == "lm-eval"}
    for record in records:
        other = theirs.get((record.path.parent, record.question))
        if record.through != "grpobench" or other is None:
            continue
        for policy in record.content["policies"]:
            ours, others = ([row for row in r.rows if row["policy"] == policy] for r in (record, other))
            rows += [
                {
                    "place": record.place,
                    "split": record.split,
                    "mode": found.mode,
                    "arm": record.arm,
                    "seed": record.seed,
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
