"""Measure the runs of an experiment: one number for each, by the name that a test gives it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pandas as pd

from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.measure import CENSORED, OF_STEPS, SHARES, Measure
from grpobench.analysis.runfolder.experiment import RUN_KEYS, Experiment, Run
from grpobench.analysis.statistics.rates import RateCurve, best_octave, width_in_octaves
from grpobench.analysis.statistics.samples import pass_at_k, solved
from grpobench.analysis.statistics.sigmoid import PARAMETERS, fit
from grpobench.analysis.topics.accuracy import finals, headline_of
from grpobench.analysis.topics.budgets import runs_at_equal_budgets, with_axis
from grpobench.analysis.topics.events import collapse_of, collapses, graded, run_findings
from grpobench.analysis.topics.guards import also_metric, ends_of
from grpobench.analysis.topics.rates import ArmCurve, rate_of_policy, read_curves

FEWEST_POINTS = PARAMETERS + 1
"""Evaluations after the first update from which on a run has a curve."""
LEAST_RISE = 0.02
"""Gain of a curve, as a share, below which it has no midpoint."""


def values_of(experiment: Experiment, outcome: str, where: Mapping[str, str]) -> dict[Key, float]:
    """The outcome of every run that has a result; NaN where its logs lack it."""
    measure = Measure.read(outcome)
    if measure.kind in SHARES:
        limit, _, of = measure.argument.partition(":")
        compared = values_of(experiment, of, where)
        return {run: _side_of(value, float(limit), measure.kind) for run, value in compared.items()}
    measured = {
        **dict.fromkeys(OF_STEPS, _of_steps),
        "accuracy": _accuracy,
        "gain": _accuracy,
        "base": _accuracy,
        "evaluated": _evaluated,
        "shift": _evaluated,
        "also": _evaluated,
        "also_shift": _evaluated,
        "lasting": _lasting,
        "reach": _reach,
        "pass": _passed,
        "pass_gain": _passed,
        "pass_base": _passed,
        "equal": _equal,
        "ceiling": _curve,
        "midpoint": _curve,
        "wrong_length": _wrong_length,
        "rate": _over_rates,
        "best_rate": _best_rate,
    }[measure.kind](experiment, measure, where)
    return {key(run): measured.get(key(run), math.nan) for run in experiment.runs if run.settled}


def _side_of(value: float, limit: float, kind: str) -> float:
    """1 above the limit; of `net_above` -1 below minus the limit; else 0. NaN stays NaN."""
    if math.isnan(value):
        return value
    return float(value > limit) - float(kind == "net_above" and value < -limit)


def horizons_of(experiment: Experiment, outcome: str) -> dict[Key, float]:
    """The largest possible outcome of every run that has a result, at which it is censored; empty for
    outcomes that have none."""
    measure = Measure.read(outcome)
    if measure.kind not in CENSORED:
        return {}
    if measure.kind == "reach":
        return _until_level(experiment, measure)[1]
    return {key(run): _planned(run) for run in experiment.runs if run.settled}


def collapses_of(experiment: Experiment) -> dict[Key, int]:
    """The step of the collapse or divergence of every run that did not recover from it."""
    ends = collapses(experiment, run_findings(experiment))
    return {key(run): ends[run.name].step for run in experiment.runs if run.name in ends}


def _planned(run: Run) -> float:
    return float(run.config.get("train", {}).get("steps", run.step))


def key(run: Run) -> Key:
    return run.arm, run.task, run.seed


def _accuracy(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    if where:
        return _accuracy_where(experiment, measure, where)
    rows = finals(experiment, measure.argument or None).to_dict("records")
    return {
        (row["arm"], row["task"], int(row["seed"])): _of_ends(measure.kind, row["base"], row["counted"])
        for row in rows
    }


def _of_ends(kind: str, base: float, last: float) -> float:
    """The outcome from the values before and after training: one of them, or the gain."""
    ending = kind.rpartition("_")[2]
    if ending == "gain":
        return last - base
    # Without the other, which is NaN where a recipe has `evaluate.before = false`.
    return base if ending == "base" else last


def _accuracy_where(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    """Over the problems with the traits alone; 0 for a run that diverged."""
    frame = graded(experiment.evaluations)
    for trait, value in where.items():
        column = f"trait/{trait}"
        if column not in frame:
            return {}
        frame = frame[frame[column].astype(str) == value]
    means = _ends(experiment, frame, measure.argument, lambda rows: float(rows["score/correct"].mean()))
    failed = {key(run) for run in experiment.runs if run.failed}
    return {
        run: _of_ends(measure.kind, base, 0.0 if run in failed else last)
        for run, (base, last) in means.items()
    }


def _ends(
    experiment: Experiment, frame: pd.DataFrame, mode: str, measure: Callable[[pd.DataFrame], float]
) -> dict[Key, tuple[float, float]]:
    """`measure` of the rows before training and after the last update, on the split and in the mode that the
    report takes, or in `mode`."""
    ends: dict[Key, tuple[float, float]] = {}
    for task in experiment.tasks:
        chosen = headline_of(experiment, task, mode or None)
        task_rows = frame[
            (frame["task"] == task) & (frame["split"] == chosen.split) & (frame["mode"] == chosen.mode)
        ]
        for (arm, seed), rows in task_rows.groupby(["arm", "seed"], sort=False):
            steps = rows["step"]
            base = measure(rows[steps == 0]) if (steps == 0).any() else math.nan
            last = measure(rows[steps == steps.max()]) if steps.max() else math.nan
            ends[str(arm), task, int(seed)] = base, last
    return ends


def _evaluated(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    changed = measure.kind in ("shift", "also_shift")
    return {
        (arm, task, seed): last - (base if changed else 0.0)
        for task in experiment.tasks
        for (arm, seed), (base, last) in ends_of(
            experiment, task, _metric_of(experiment, measure, task)
        ).items()
    }


def _metric_of(experiment: Experiment, measure: Measure, task: str) -> str:
    """The logged name of an evaluated outcome in the runs of a task."""
    if measure.kind in ("evaluated", "shift"):
        return f"eval/{headline_of(experiment, task).split}/{measure.argument}"
    other, _, metric = measure.argument.partition("/")
    return also_metric(experiment, task, other, metric)


def _of_steps(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    """A score of a run that diverged is 0 at the steps that it did not reach, as its accuracy is: an early
    end must not spare an arm what a broken policy scores."""
    logged = experiment.metrics[experiment.metrics["step"] > 0]
    values: dict[Key, float] = {}
    scores = all(metric.startswith("score/") for metric in measure.metrics)
    planned = {key(run): int(_planned(run)) for run in experiment.runs if run.failed and scores}
    for (arm, task, seed), run_rows in logged.groupby(RUN_KEYS, sort=False):
        steps: dict[int, dict[str, float]] = {step: {} for step in sorted(run_rows["step"].unique())}
        read = run_rows[run_rows["metric"].isin(measure.metrics)]
        for step, metric, value in zip(read["step"], read["metric"], read["value"], strict=True):
            steps[step][metric] = value
        run = str(arm), str(task), int(seed)
        missing = range(max(steps) + 1, planned.get(run, 0) + 1)
        steps |= {step: dict.fromkeys(measure.metrics, 0.0) for step in missing}
        values[run] = measure.of([*steps.values()])
    return values


def _lasting(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    # It brings matplotlib, half a second that lists of algorithms and recipes do without.
    from grpobench.analysis.topics.numbers import Numbers

    findings = Numbers(experiment).findings
    steps: dict[Key, float] = {}
    for run in experiment.runs:
        planned = _planned(run)
        findings_of_run = findings.get(run.name)
        if measure.argument and not run.failed:
            onsets = (
                [e.onset for e in findings_of_run.events if e.kind == measure.argument]
                if findings_of_run
                else []
            )
            steps[key(run)] = float(min(onsets, default=planned))
        else:
            end = collapse_of(run, findings_of_run)
            steps[key(run)] = float(end.step) if end else planned
    return steps


def _reach(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    return _until_level(experiment, measure)[0]


def _until_level(experiment: Experiment, measure: Measure) -> tuple[dict[Key, float], dict[Key, float]]:
    # It draws, too: half a second that lists of algorithms and recipes do without.
    from grpobench.analysis.topics.targets import within_budget

    level, _, axis = measure.argument.partition(":")
    values, horizons = dict[Key, float](), dict[Key, float]()
    for task in experiment.tasks:
        spent, largest = within_budget(experiment, task, float(level), axis)
        values |= spent
        horizons |= largest
    return values, horizons


def _passed(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    k = int(measure.argument)

    def passes(rows: pd.DataFrame) -> float:
        counts = [
            (len(scores), solved(list(scores))) for _, scores in rows.groupby("problem")["score/correct"]
        ]
        if not counts or min(n for n, _ in counts) < k:
            return math.nan
        samples, right = zip(*counts, strict=True)
        return float(pass_at_k(samples, right, k).mean())

    ends = _ends(experiment, graded(experiment.evaluations), "sampled", passes)
    return {run: _of_ends(measure.kind, base, last) for run, (base, last) in ends.items()}


def _equal(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    rows = runs_at_equal_budgets(experiment, axes=[measure.argument]).dropna(subset=["accuracy"])
    return {
        (row["arm"], row["task"], int(row["seed"])): float(row["accuracy"]) for row in rows.to_dict("records")
    }


def _curve(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    """Of each run's own curve, a failed run's too: what it never learned again is part of its ceiling."""
    value_by_run: dict[Key, float] = {}
    for task in experiment.tasks:
        rows = experiment.select(f"eval/validation/{headline_of(experiment, task).mode}/correct")
        rows = with_axis(experiment, rows[rows["task"] == task], measure.argument).sort_values("x")
        for (arm, seed), curve in rows.groupby(["arm", "seed"], sort=False):
            start, later = curve.loc[curve["x"] == 0, "value"], curve[curve["x"] > 0]
            if not len(start) or len(later) < FEWEST_POINTS:
                continue
            fitted = fit(later["x"].to_numpy(float), later["value"].to_numpy(float), float(start.iloc[0]))
            if measure.kind == "ceiling" or fitted.ceiling - fitted.start >= LEAST_RISE:
                value_by_run[str(arm), task, int(seed)] = getattr(fitted, measure.kind)
    return value_by_run


def _over_rates(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    """By seed, for the runs at the arms' own rates; `loss` is a share, positive where the other rate is
    worse."""
    all_rates = experiment.at_all_rates
    runs = finals(all_rates)
    values: dict[Key, float] = {}
    for task in experiment.tasks:
        for arm_curve in read_curves(all_rates, runs, task):
            by_seed = _of_curve(arm_curve, measure.argument)
            values |= {(arm_curve.arm, task, seed): value for seed, value in by_seed.items()}
    return values


def _best_rate(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    """By seed, for the runs at the arms' own rates; NaN for a seed that lacks the outcome at one of the
    rates, and for an arm with one rate."""
    all_rates = experiment.at_all_rates
    measured = values_of(all_rates, measure.argument, where)
    by_arm: dict[tuple[str, str], dict[float, dict[int, float]]] = {}
    for run in all_rates.runs:
        if (rate := rate_of_policy(run.config)) is not None:
            origin = all_rates.rate_arms.get(run.arm)
            by_rate = by_arm.setdefault((origin.arm if origin else run.arm, run.task), {})
            by_seed = by_rate.setdefault(rate, {})
            if math.isfinite(value := measured.get(key(run), math.nan)):
                by_seed[run.seed] = value
    return {
        (*arm_and_task, seed): best_octave(curve.rates, scores)
        for arm_and_task, by_rate in by_arm.items()
        if len(by_rate) > 1
        for curve in [RateCurve.of(by_rate)]
        for seed, scores in zip(curve.seeds, curve.scores.T, strict=True)
    }


def _of_curve(arm_curve: ArmCurve, argument: str) -> Mapping[int, float]:
    curve = arm_curve.curve
    if argument == "octaves":
        alone = {
            seed: replace(curve, seeds=(seed,), scores=curve.scores[:, [index]])
            for index, seed in enumerate(curve.seeds)
        }
        return {seed: width_in_octaves(of_seed, arm_curve.margin)[0] for seed, of_seed in alone.items()}
    # Not at the best rate: seeds that choose it together are not independent, and their tests err too often.
    index = arm_curve.points.index(arm_curve.at_own_rate)
    other = curve.neighbor(index, -1 if argument == "loss-at-half" else 1)
    if other is None:
        return {}
    return dict(zip(curve.seeds, map(float, curve.scores[index] - curve.scores[other]), strict=True))


def _wrong_length(experiment: Experiment, measure: Measure, where: Mapping[str, str]) -> dict[Key, float]:
    def wrong(rows: pd.DataFrame) -> float:
        return float(rows.loc[rows["score/correct"] < 1, "length"].mean())  # NaN where all are right

    ends = _ends(experiment, graded(experiment.evaluations), "sampled", wrong)
    return {run: last for run, (_, last) in ends.items()}
