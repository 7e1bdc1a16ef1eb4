"""From a loaded matrix to the numbers of a report: accuracies, comparisons, budgets, costs, settings."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis import changes
from grpobench.analysis.load import CRASHED, DIVERGED, FINISHED, Matrix, Run
from grpobench.analysis.scores import (
    Comparison,
    Estimate,
    bootstrap_interquartile_mean,
    compare,
    item_interval,
    probability_of_improvement,
    seed_mean,
)

PHASES = ("sample", "verify", "read", "backward", "optimise", "sync", "other")
"""Parts of time/step, in the order in which a step runs them."""
BIAS = (
    "accuracy_ambiguous",
    "accuracy_disambiguated",
    "unknown_rate",
    "bias_ambiguous",
    "bias_disambiguated",
    "lean_ambiguous",
    "lean_disambiguated",
)
OWN = " (own)"
"""Ends the name of the category that a run was trained on, where it is measured apart."""
ATTEMPT_ONLY = (
    "attempts",
    "attempt",
    "id",
    "started",
    "pid",
    "command",
    "diff",
    "changes",
    "resumed_at",
    "caveat",
)
"""Keys of origin.json that say nothing about how runs compare."""
WITHOUT_DATA = "finished without data"
"""How a finished run stands whose logs lack the final accuracy."""
IDENTITY = ("matrix", "arm", "seed", "task", "task.name")
"""Keys of run.toml that say which run it is rather than how it was set."""


@dataclass(frozen=True)
class Headline:
    """Which evaluation the report's accuracies of one task come from."""

    split: str
    mode: str

    @property
    def metric(self) -> str:
        return f"eval/{self.split}/{self.mode}/correct"


def headline(matrix: Matrix, task: str, mode: str | None = None) -> Headline:
    """Test before validation, greedy before sampled before likelihood: the first that any run of the task
    logged."""
    logged = set(matrix.metrics.loc[matrix.metrics["task"] == task, "metric"].astype(str).unique())
    modes = (mode,) if mode else ("greedy", "sampled", "likelihood")
    for split in ("test", "validation"):
        for candidate in modes:
            if Headline(split, candidate).metric in logged:
                return Headline(split, candidate)
    return Headline("test", modes[0])


def decoding(matrix: Matrix, mode: str) -> str:
    """A mode in words, with the temperature where the mode has one: the runs', or each arm's own. Runs whose
    settings tell none of evaluation were evaluated at the sampler's."""
    if mode != "sampled":
        return f"{mode} decoding" if mode == "greedy" else mode
    found: dict[str, list[str]] = {}
    for run in matrix.runs:
        told = {**run.config.get("sampler", {}), **run.config.get("evaluate", {})}
        if isinstance(value := told.get("temperature"), int | float):
            found.setdefault(f"{value:g}", []).append(run.arm)
    if len(found) < 2:
        return " ".join(["sampled decoding", *(f"at temperature {value}" for value in found)])
    each = "; ".join(f"{value}: {', '.join(dict.fromkeys(arms))}" for value, arms in found.items())
    return f"sampled decoding at different temperatures ({each})"


def finals(matrix: Matrix, mode: str | None = None) -> pd.DataFrame:
    """One row per run: arm, task, seed, state, standing, base, final, counted, validation_best,
    validation_last, items, item_low, item_high (interval of the final accuracy over problems, which may share
    clusters).

    `final` is what a finished run logged after its last update. `counted` is what means and comparisons use:
    the final accuracy; 0 for a run that diverged, which the algorithm answers for; NaN for one that crashed,
    which it does not, for one still to come, and for one whose logs lack the final accuracy. `standing` is
    the state, or `WITHOUT_DATA` for the last.
    """
    rows = []
    for task in matrix.tasks:
        chosen = headline(matrix, task, mode)
        accuracy = matrix.select(chosen.metric)
        validation = matrix.select(f"eval/validation/{chosen.mode}/correct")
        for run in (run for run in matrix.runs if run.task == task):
            own = of(accuracy, run)
            base, final = _at_start(own), _at_end(own, run) if run.finished else math.nan
            trained = of(validation, run)
            trained = trained[trained["step"] > 0]
            rows.append(
                {
                    "arm": run.arm,
                    "task": task,
                    "seed": run.seed,
                    "state": run.state,
                    "standing": WITHOUT_DATA if run.finished and lacks(run, accuracy, final) else run.state,
                    "split": chosen.split,
                    "mode": chosen.mode,
                    "base": base,
                    "final": final,
                    "counted": 0.0 if run.failed else final,
                    "validation_best": float(trained["value"].max()) if len(trained) else math.nan,
                    "validation_last": float(trained["value"].iloc[-1]) if len(trained) else math.nan,
                }
            )
    frame = pd.DataFrame(rows)
    return frame.merge(_item_intervals(matrix, mode), on=["arm", "task", "seed"], how="left")


def of(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    return frame[(frame["arm"] == run.arm) & (frame["task"] == run.task) & (frame["seed"] == run.seed)]


def _at_start(own: pd.DataFrame) -> float:
    values = own.loc[own["step"] == 0, "value"]
    return float(values.iloc[0]) if len(values) else math.nan


def _at_end(own: pd.DataFrame, run: Run) -> float:
    """The value after the last of the run's updates; NaN where the log ends before."""
    last = run.config.get("train", {}).get("steps", run.step)
    trained = own[(own["step"] > 0) & (own["step"] >= last)]
    return float(trained["value"].iloc[-1]) if len(trained) else math.nan


def lacks(run: Run, accuracy: pd.DataFrame, final: float) -> bool:
    """Whether a finished run should have a final accuracy and has none: its log is empty, or other runs of
    the task have one. `accuracy` is the headline metric of the task."""
    logged = bool((accuracy["task"] == run.task).any())
    return math.isnan(final) and (logged or not run.rows)


def accounting(matrix: Matrix, runs: pd.DataFrame) -> dict[str, int]:
    """How many of the planned runs stand how, from the rows of `finals`: the numbers add up to the plan. Runs
    that nobody planned are not among them."""
    planned = {(run.arm, run.task, run.seed) for run in matrix.runs if run.planned}
    keys = runs[["arm", "task", "seed"]].itertuples(index=False, name=None)
    counted = Counter(s for key, s in zip(keys, runs["standing"], strict=True) if key in planned)
    order = [FINISHED, WITHOUT_DATA, DIVERGED, CRASHED]
    return {name: counted[name] for name in dict.fromkeys([*order, *counted]) if counted[name]}


def _item_intervals(matrix: Matrix, mode: str | None) -> pd.DataFrame:
    """Interval over problems of each run's last evaluation on the headline split."""
    columns = ["arm", "task", "seed", "items", "item_low", "item_high"]
    frame, rows = graded(matrix), []
    if frame.empty:
        return pd.DataFrame(columns=columns)
    for task, own in frame.groupby("task", sort=False):
        chosen = headline(matrix, str(task), mode)
        own = own[(own["split"] == chosen.split) & (own["mode"] == chosen.mode) & (own["step"] > 0)]
        for (arm, seed), run in own.groupby(["arm", "seed"], sort=False):
            last = run[run["step"] == run["step"].max()]
            shares = last.groupby("problem")["score/correct"].mean()
            interval, _ = item_interval(shares, _clusters(last, shares.index))
            rows.append((arm, task, seed, len(shares), interval.low, interval.high))
    return pd.DataFrame(rows, columns=columns)


def _clusters(rows: pd.DataFrame, problems: pd.Index) -> list[str]:
    """The cluster (template) of each problem; a problem without one is its own."""
    if "trait/cluster" not in rows:
        return [str(problem) for problem in problems]
    known = rows.drop_duplicates("problem").set_index("problem")["trait/cluster"]
    return [str(problem) if pd.isna(known[problem]) else str(known[problem]) for problem in problems]


def graded(matrix: Matrix) -> pd.DataFrame:
    """Evaluated answers that have a score `correct`; what an infrastructure error left ungraded is out."""
    frame = matrix.evaluations
    if "score/correct" not in frame:
        return frame.iloc[:0]
    return frame[frame["outcome"] != "infra_error"] if "outcome" in frame else frame


def accuracy_table(matrix: Matrix, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per task and arm from the rows of `finals`: means over seeds, the t interval, failures."""
    rows = []
    for task in matrix.tasks:
        for arm in matrix.arms:
            own = runs[(runs["task"] == task) & (runs["arm"] == arm)]
            if own.empty:
                continue
            counted = own.dropna(subset=["counted"])
            mean = seed_mean(counted["counted"])
            base = _mean((counted if len(counted) else own)["base"])  # of the same seeds
            rows.append(
                {
                    "task": task,
                    "arm": arm,
                    "split": own["split"].iloc[0],
                    "mode": own["mode"].iloc[0],
                    "base": base,
                    "final": mean.value,
                    "low": float(np.maximum(mean.low, 0.0)),  # an accuracy is from 0 to 1; NaN stays NaN
                    "high": float(np.minimum(mean.high, 1.0)),
                    "final_of_finished": _mean(own.loc[own["state"] == FINISHED, "counted"]),
                    "gain": mean.value - base,
                    "seeds": len(counted),
                    "failed": int((own["state"] == DIVERGED).sum()),
                    "waiting": int(own["counted"].isna().sum()),
                    "validation_best": _mean(own["validation_best"]),
                    "validation_last": _mean(own["validation_last"]),
                }
            )
    return pd.DataFrame(rows)


def _mean(values: pd.Series) -> float:
    finite = values.dropna()
    return float(finite.mean()) if len(finite) else math.nan


def comparisons(matrix: Matrix, runs: pd.DataFrame, alpha: float = 0.05) -> list[Comparison]:
    """Every pair of arms on every task; Holm's correction is over the pairs of one task."""
    found: list[Comparison] = []
    for task in matrix.tasks:
        own = runs[runs["task"] == task]
        arms = [arm for arm in matrix.arms if arm in set(own["arm"])]
        values: dict[str, dict[int, float]] = {}
        waiting: dict[str, list[str]] = {}
        for arm in arms:
            rows = own[own["arm"] == arm]
            done = rows.dropna(subset=["counted"])
            values[arm] = dict(zip(done["seed"].astype(int), done["counted"].astype(float), strict=True))
            late = rows[rows["counted"].isna()].sort_values("seed")
            waiting[arm] = [f"{row.seed} ({row.standing})" for row in late.itertuples()]
        found += compare(task, values, waiting, alpha)
    return found


@dataclass(frozen=True)
class Aggregate:
    """All tasks together, from counted accuracies."""

    interquartile: Mapping[str, Estimate]
    """Per arm: interquartile mean over runs × tasks with a bootstrap interval."""
    improvement: Sequence[tuple[str, str, Estimate]]
    """Per pair of arms: probability of improvement with a bootstrap interval."""


def aggregate(matrix: Matrix, runs: pd.DataFrame, seed: int = 0) -> Aggregate:
    """Over the tasks that every arm has counted runs on; intervals from a bootstrap with its own seed."""
    values = {
        arm: [
            runs.loc[(runs["arm"] == arm) & (runs["task"] == task), "counted"].dropna().to_numpy(dtype=float)
            for task in matrix.tasks
        ]
        for arm in matrix.arms
    }
    shared = [i for i in range(len(matrix.tasks)) if all(len(values[arm][i]) for arm in matrix.arms)]
    kept = {arm: [values[arm][i] for i in shared] for arm in matrix.arms}
    pairs = [(a, b) for n, a in enumerate(matrix.arms) for b in matrix.arms[n + 1 :]]
    return Aggregate(
        {arm: bootstrap_interquartile_mean(kept[arm], seed) for arm in matrix.arms},
        [(a, b, _improvement(kept[a], kept[b], seed)) for a, b in pairs],
    )


def _improvement(first: list[Any], second: list[Any], seed: int, resamples: int = 2000) -> Estimate:
    """Probability of improvement; both arms' seeds are resampled inside each task."""
    if not first:
        return Estimate(math.nan, math.nan, math.nan)
    value = probability_of_improvement(first, second)
    if max(len(values) for values in (*first, *second)) < 2:
        return Estimate(value, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    total = np.zeros(resamples)
    for one, other in zip(first, second, strict=True):
        x = one[rng.integers(len(one), size=(resamples, len(one)))][:, :, None]
        y = other[rng.integers(len(other), size=(resamples, len(other)))][:, None, :]
        total += ((x > y) + 0.5 * (x == y)).mean(axis=(1, 2))
    low, high = np.quantile(total / len(first), [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def with_axis(matrix: Matrix, frame: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Add column `x` to rows of (arm, task, seed, step): `updates`, `tokens` (generated so far) or `seconds`
    (training time so far, evaluation left out). Rows whose axis was not logged are left out."""
    if axis == "updates":
        return frame.assign(x=frame["step"].astype(float))
    if axis == "tokens":
        along = matrix.select("cost/generated_tokens").rename(columns={"value": "x"})
    else:
        along = matrix.select("time/step").rename(columns={"value": "x"})
        along["x"] = along.groupby(["arm", "task", "seed"], sort=False)["x"].cumsum()
    joined = frame.merge(along, on=["arm", "task", "seed", "step"], how="left")
    joined.loc[joined["step"] == 0, "x"] = 0.0  # the base model: nothing spent yet
    return joined.dropna(subset=["x"]).reset_index(drop=True)


def budgets(matrix: Matrix) -> pd.DataFrame:
    """What each arm spent per run, mean over seeds: updates, tokens, seconds of training and evaluation."""
    sources = {
        "updates": None,
        "generated_tokens": "cost/generated_tokens",
        "trained_tokens": "cost/trained_tokens",
        "train_seconds": "time/step",
        "evaluate_seconds": "time/evaluate",
    }
    keys = ["arm", "task", "seed"]
    steps = matrix.metrics.groupby(keys, sort=False)["step"].max().rename("updates").reset_index()
    for name, metric in sources.items():
        if metric:
            grouped = matrix.select(metric).groupby(keys, sort=False)["value"]
            spent = grouped.max() if metric.startswith("cost/") else grouped.sum()  # tokens are cumulative
            steps = steps.merge(spent.rename(name).reset_index(), on=keys, how="left")
    rows = []
    for task in matrix.tasks:
        for arm in matrix.arms:
            own = steps[(steps["task"] == task) & (steps["arm"] == arm)]
            if len(own):
                means = {name: _mean(own[name]) for name in sources}
                rows.append({"task": task, "arm": arm, "runs": len(own), **means})
    return pd.DataFrame(rows, columns=["task", "arm", "runs", *sources])


AXES = {"updates": "updates", "tokens": "generated tokens", "seconds": "seconds of training"}


def equal_budgets(matrix: Matrix, mode: str | None = None) -> pd.DataFrame:
    """Validation accuracy at the largest budget that every run of the task reached, on three axes: the last
    evaluation at or before it. One row per task, axis and arm: budget, accuracy (mean over seeds), seeds.

    Runs that diverged do not set the budget: they keep their last evaluation. Runs without a result are left
    out.
    """
    rows = []
    finished = {(run.arm, run.task, run.seed) for run in matrix.runs if run.finished}
    known = {(run.arm, run.task, run.seed) for run in matrix.runs if run.finished or run.failed}
    for task in matrix.tasks:
        metric = f"eval/validation/{headline(matrix, task, mode).mode}/correct"
        frame = matrix.select(metric)
        frame = frame[frame["task"] == task]
        for axis in AXES:
            placed = with_axis(matrix, frame, axis)
            curves = {key: own.sort_values("step") for key, own in placed.groupby(["arm", "task", "seed"])}
            ends = [float(own["x"].iloc[-1]) for key, own in curves.items() if key in finished]
            if not ends or not any(ends):
                continue
            budget = min(ends)
            for arm in matrix.arms:
                values = [
                    float(own.loc[own["x"] <= budget * (1 + 1e-9), "value"].iloc[-1])
                    for key, own in curves.items()
                    if key[0] == arm and key in known and (own["x"] <= budget * (1 + 1e-9)).any()
                ]
                if values:
                    accuracy = float(np.mean(values))
                    rows.append((task, axis, budget, arm, accuracy, len(values)))
    return pd.DataFrame(rows, columns=["task", "axis", "budget", "arm", "accuracy", "seeds"])


GAPS: Mapping[str, tuple[str, str]] = {
    "mean": ("gap/mean", "mean"),
    "largest": ("gap/max", "max"),
    "effective": ("gap/ess", "min"),
    "after_sync": ("gap/sync", "max"),
    "weight": ("correction/weight_mean", "mean"),
    "clipped": ("correction/clipped", "mean"),
}
"""Column of `gaps` -> metric, and how its values are taken together."""


def costs(matrix: Matrix) -> pd.DataFrame:
    """Per task and arm, means over all updates of all seeds: seconds of each phase per update, tokens per
    second of training, tokens per second of sampling; and the highest peak memory in GB."""
    rows = []
    phases = {phase: matrix.select(f"time/{phase}") for phase in PHASES}
    step, memory = matrix.select("time/step"), matrix.select("cost/peak_memory_gb")
    tokens = matrix.select("cost/generated_tokens")
    for task in matrix.tasks:
        for arm in matrix.arms:
            own = {name: _cell(frame, arm, task) for name, frame in phases.items()}
            total, spent = _cell(step, arm, task), _cell(tokens, arm, task)
            if total.empty and spent.empty and all(frame.empty for frame in own.values()):
                continue
            generated = float(spent.groupby("seed")["value"].max().sum()) if len(spent) else math.nan
            peak = _cell(memory, arm, task)["value"]
            rows.append(
                {"task": task, "arm": arm, "seconds": _mean(total["value"])}
                | {phase: _mean(frame["value"]) for phase, frame in own.items()}
                | {
                    "tokens_per_second": _ratio(generated, float(total["value"].sum())),
                    "sampling_tokens_per_second": _ratio(generated, float(own["sample"]["value"].sum())),
                    "peak_memory_gb": float(peak.max()) if len(peak) else math.nan,
                }
            )
    rates = ["tokens_per_second", "sampling_tokens_per_second", "peak_memory_gb"]
    return pd.DataFrame(rows, columns=["task", "arm", "seconds", *PHASES, *rates])


def gaps(matrix: Matrix) -> pd.DataFrame:
    """Per task and arm, over all updates of all seeds: how far the sampler's log-probabilities were from the
    trainer's in nats (mean and largest |Δ log p|, smallest effective sample size, largest after a weight
    synchronisation), and what the correction made of it. Only where some arm decodes with weights of its own
    or corrects."""
    if not (matrix.has("gap/sync") or matrix.has("correction/weight_mean")):
        return pd.DataFrame(columns=["task", "arm", *GAPS])
    logged = {name: (matrix.select(metric), how) for name, (metric, how) in GAPS.items()}
    rows = []
    for task in matrix.tasks:
        for arm in matrix.arms:
            own = {name: (_cell(frame, arm, task)["value"], how) for name, (frame, how) in logged.items()}
            if any(len(values) for values, _ in own.values()):
                rows.append({"task": task, "arm": arm} | {name: v.agg(how) for name, (v, how) in own.items()})
    return pd.DataFrame(rows, columns=["task", "arm", *GAPS])


def _cell(frame: pd.DataFrame, arm: str, task: str) -> pd.DataFrame:
    return frame[(frame["arm"] == arm) & (frame["task"] == task)]


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


BESIDE_COMPONENTS = ("mean", "std", "failed", "model_cut", "correct")
"""What is logged below ``reward/`` and is no part of the reward, or the verdict once more."""
VERDICT = "score/correct"
END = 0.1
"""Share of a run's updates that its end is, at least one update."""


def components(matrix: Matrix) -> list[str]:
    """Names of the parts of the reward that were logged, where any arm could be paid for something else than
    the verifier's verdict; else none. The verdict itself is left to `VERDICT`."""
    names = [name.removeprefix("reward/") for name in matrix.names("reward/")]
    return [name for name in names if name not in BESIDE_COMPONENTS]


def reward_parts(matrix: Matrix) -> pd.DataFrame:
    """The reward, its components and the verdict at both ends of training: task, arm, seed, metric, start
    (the first update, whose rollouts the base policy wrote), end (mean over the last tenth of updates)."""
    names = [f"reward/{part}" for part in components(matrix)]
    rows = []
    for name in (*names, "reward/mean", VERDICT) if names else ():
        for (task, arm, seed), own in matrix.select(name).groupby(["task", "arm", "seed"], sort=False):
            values = own.sort_values("step")["value"].to_numpy()
            last = max(1, round(END * len(values)))
            rows.append((task, arm, seed, name, values[0], values[-last:].mean()))
    return pd.DataFrame(rows, columns=["task", "arm", "seed", "metric", "start", "end"])


def bias(matrix: Matrix) -> pd.DataFrame:
    """Bias metrics on the headline split: task, arm, seed, when (`base` or `final`), metric, category (`all`
    for the whole), value. Empty where no task logs any. The base is step 0, the final the last evaluation.
    In the headline's mode, but for those that only likelihoods give."""
    frames = []
    for task in matrix.tasks:
        chosen = headline(matrix, task)
        for name in matrix.names(f"eval/{chosen.split}/"):
            mode, metric, *rest = name.split("/", 4)[2:]
            wanted = "likelihood" if metric.startswith("lean") else chosen.mode
            if metric not in BIAS or mode != wanted:
                continue
            category = rest[0] if rest else "all"
            frame = matrix.select(name)
            frame = frame[frame["task"] == task]
            last = frame[frame["step"] > 0].groupby(["arm", "seed"], sort=False).tail(1)
            for when, part in (("base", frame[frame["step"] == 0]), ("final", last)):
                frames.append(part.assign(metric=metric, category=category, when=when))
    columns = ["task", "arm", "seed", "when", "metric", "category", "value"]
    return pd.concat(frames)[columns].reset_index(drop=True) if frames else pd.DataFrame(columns=columns)


def bias_curves(matrix: Matrix) -> dict[str, pd.DataFrame]:
    """Bias metrics of every validation in the headline's mode, over all categories and, where it is apart,
    over the one that was trained on: label -> columns as `Matrix.select`. Only what was measured three times.
    """
    found: dict[str, pd.DataFrame] = {}
    for suffix, where in (("", ""), (OWN, ",\nown category")):
        for metric in ("accuracy_ambiguous", "bias_ambiguous", "lean_ambiguous", "accuracy_disambiguated"):
            frames = []
            for task in matrix.tasks:
                stem = f"eval/validation/{headline(matrix, task).mode}/{metric}"
                names = [n for n in matrix.names(f"{stem}/") if n.endswith(OWN)] if suffix else [stem]
                frames += [frame[frame["task"] == task] for frame in map(matrix.select, names)]
            frame = pd.concat(frames) if frames else pd.DataFrame(columns=["step"])
            if frame["step"].nunique() >= 3:
                found[metric.replace("_", ",\n") + where] = frame
    return found


def sampled(matrix: Matrix) -> pd.DataFrame:
    """Graded answers of the runs' own sampled evaluations on the split of the headline: of each run those
    before training and those of its last evaluation."""
    frame = graded(matrix)
    if frame.empty:
        return frame
    frame = frame[frame["mode"] == "sampled"]
    splits = {task: headline(matrix, task, "sampled").split for task in matrix.tasks}
    frame = frame[frame["split"] == frame["task"].map(splits)]
    last = frame.groupby(["task", "arm", "seed"])["step"].transform("max")
    return frame[(frame["step"] == 0) | (frame["step"] == last)]


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; an empty table is kept as {}."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


@dataclass(frozen=True)
class Setting:
    """One key of run.toml over the arms; `values[arm]` is text, `–` where the arm has no such key."""

    key: str
    values: Mapping[str, str]
    differs: bool
    changed: frozenset[str] = frozenset()
    """The arms in which a run changed it midway; their text says from which step."""


def settings(matrix: Matrix) -> list[Setting]:
    """Every resolved setting per arm: those that a run changed midway first, then those that differ between
    arms. A value that depends on the task is written `task: value; …`; one that depends on the seed, as all
    its values; one that changed, as ``0.0001 until step 17, then 0.001``."""
    by_run = [(run, resolved(run)) for run in matrix.runs]
    altered = {run.name: changes.histories(run) for run in matrix.runs}
    for run, config in by_run:
        config |= {key: changes.text(own) for key, own in altered[run.name].items() if key in config}
    keys = dict.fromkeys(key for _, config in by_run for key in config if key not in IDENTITY)
    found = []
    for key in keys:
        values = {}
        for arm in matrix.arms:
            values[arm] = _setting(key, [pair for pair in by_run if pair[0].arm == arm], matrix.tasks)
        arms = frozenset(run.arm for run in matrix.runs if key in altered[run.name])
        found.append(Setting(key, values, len(set(values.values())) > 1, arms))
    return sorted(found, key=lambda setting: (not setting.changed, not setting.differs))


def resolved(run: Run) -> dict[str, Any]:
    """run.toml as dotted keys, as they are on the command line: `algorithm.settings.clip_high` is
    `algorithm.clip_high` there."""
    return {key.replace(".settings.", ".", 1): value for key, value in flatten(run.config).items()}


def _setting(key: str, runs: Sequence[tuple[Run, Mapping[str, Any]]], tasks: Sequence[str]) -> str:
    by_task: dict[str, str] = {}
    for task in tasks:
        said = dict.fromkeys(_text(config[key]) for run, config in runs if run.task == task and key in config)
        if said:
            by_task[task] = " | ".join(said)
    if not by_task:
        return "–"
    if len(set(by_task.values())) == 1:
        return next(iter(by_task.values()))
    return "; ".join(f"{task}: {value}" for task, value in by_task.items())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def origins(matrix: Matrix) -> dict[str, list[tuple[str, int]]]:
    """Where the runs come from, by their last attempt: key -> (value, number of runs), most frequent first.

    `code`, the digests of the source files, is shortened to one digest, which differs between runs only where
    a file that both depend on does; what is the attempt's own (process, start, command, uncommitted diff) is
    left to origin.json.
    """
    counted: dict[str, Counter[str]] = {}
    everywhere = {file: next(iter(found)) for file, found in files(matrix).items() if len(found) == 1}
    for run in matrix.runs:
        tried = changes.attempts(run)
        told = {**run.origin, **(tried[-1] if tried else {})}
        if code := source_files(run):
            told["code"] = hashlib.sha256(
                json.dumps({**everywhere, **code}, sort_keys=True).encode()
            ).hexdigest()[:12]
        kept = {key: value for key, value in told.items() if key not in ATTEMPT_ONLY and value != {}}
        if tried:
            kept["attempts"] = len(tried)
        for key, value in flatten(kept).items():
            counted.setdefault(key, Counter())[_text(value)] += 1
    return {key: values.most_common() for key, values in counted.items()}


def source_files(run: Run) -> Mapping[str, str]:
    """Digest by source file of the run's last attempt."""
    tried = changes.attempts(run)
    found = tried[-1].get("code") if tried else run.origin.get("code")
    return found if isinstance(found, Mapping) else {}


def files(matrix: Matrix) -> dict[str, dict[str, list[str]]]:
    """Source file -> digest -> the runs that were made with it."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in matrix.runs:
        for file, digest in source_files(run).items():
            found.setdefault(file, {}).setdefault(digest, []).append(run.name)
    return found


@dataclass(frozen=True)
class Pairing:
    """What the logs say about the paired design."""

    base_agrees: int
    base_groups: int
    """(task, seed) groups of at least two arms; in how many the accuracy before training is the same."""
    first_agrees: int
    first_groups: int
    """The same for the mean score of the first update's rollouts."""
    odd: Sequence[str]
    """The groups that disagree, named."""


def pairing(matrix: Matrix) -> Pairing:
    """Check what can be checked: equal initial weights give equal step-0 accuracy, equal schedules and seeds
    give equal scores of the first rollouts. A different warm start, sampler or curriculum breaks it."""
    odd: list[str] = []
    counts = []
    for what in ("base", "first"):
        agrees = groups = 0
        for task in matrix.tasks:
            frame = matrix.select(headline(matrix, task).metric if what == "base" else "score/correct")
            frame = frame[(frame["task"] == task) & (frame["step"] == (0 if what == "base" else 1))]
            for seed, own in frame.groupby("seed"):
                if len(own) > 1:
                    same = float(own["value"].max() - own["value"].min()) < 1e-9
                    groups, agrees = groups + 1, agrees + same
                    if not same:
                        where = "accuracy before training" if what == "base" else "first rollouts"
                        odd.append(f"{task} seed {seed}: {where}")
        counts += [agrees, groups]
    return Pairing(counts[0], counts[1], counts[2], counts[3], odd)
