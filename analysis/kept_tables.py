"""Kept tables as Markdown: the kinds of table that a document can ask for."""

# A kind is a function of a kept table and the options of the request, and gives lines of Markdown. Shares are
# in %, means are over seeds.

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from grpobench.analysis.figures.table import plain
from grpobench.analysis.kept import KeptTable
from grpobench.analysis.runfolder.experiment import DIVERGED, SweepPoint
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.interim import plan_of
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.intervals import Estimate, seed_mean
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.tools.text import (
    NONE,
    count,
    interval,
    number,
    p_value,
    percent,
    points,
    signed,
    two,
)
from grpobench.analysis.topics.compute import (
    compute_table,
    coverage,
    fit_curves,
    kept_trajectories,
)
from grpobench.analysis.topics.rate_views import rate_curves_table, rate_pairs_table
from grpobench.analysis.topics.rates import ArmAtRate, ArmCurve, RateStudy, study_curves
from grpobench.analysis.topics.sweep import axes_of, frontier_table, group_cells, map_table
from grpobench.analysis.topics.training import LITTLE

Options: TypeAlias = Mapping[str, str]
Kind: TypeAlias = Callable[[KeptTable, Options], list[str]]


def render(kept_table: KeptTable, kind: str, options: Options) -> list[str]:
    """The lines of one table. Raises LogError for an unknown kind or an option that it needs."""
    if kind not in KINDS:
        raise LogError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    try:
        return KINDS[kind](kept_table, options)
    except KeyError as error:
        raise LogError(
            f"{kind} of {kept_table.name}: lacks {error}, as an option or in the kept table"
        ) from error


def provenance(kept_table: KeptTable, options: Options) -> list[str]:
    """Command, commit, versions and machine in a sentence."""
    seeds = len({run["seed"] for run in kept_table.runs})
    runs = len(kept_table.runs) + sum(len(row["scores"]) for row in kept_table.rates if row["factor"] != 1)
    return kept_table.provenance.lines(f"{runs} runs, {seeds} seed{'s' * (seeds > 1)}")


def accuracy(kept_table: KeptTable, options: Options) -> list[str]:
    """Before and after training on the split that the report takes, every seed, with the t interval. `mode`;
    `best=yes` adds the best validation."""
    best = options.get("best") == "yes"
    header = ["task", "arm", "before", "after", "each seed", "95 % interval", *["best on validation"] * best]
    rows = []
    for task, arm, runs in _cells(kept_table):
        values = [run["accuracy"][options["mode"]] for run in runs if options["mode"] in run["accuracy"]]
        if not values:
            continue
        after = seed_mean([value[2] for value in values if value[2] is not None])
        rows.append(
            [
                *(task, arm, percent(_mean(value[1] for value in values)), percent(after.value)),
                " ".join(_percent(value[2]) for value in values),
                _bounded(after),
                *[percent(_mean(value[3] for value in values))] * best,
            ]
        )
    splits = dict.fromkeys(
        run["accuracy"][options["mode"]][0] for run in kept_table.runs if options["mode"] in run["accuracy"]
    )
    lead = f"Accuracy in %, {options['mode']}, {' and '.join(splits)} split:"
    return table(lead, header, rows, text_columns=2)


def measured(kept_table: KeptTable, options: Options) -> list[str]:
    """Metrics of the evaluation, before → after training. `mode`, `metrics=a,b`; `correct` is accuracy. Tasks
    that have none of them are left out."""
    names = options["metrics"].split(",")
    rows = []
    for task, arm, runs in _cells(kept_table):
        cells: list[str] = []
        for name in names:
            pairs = [_both(run, options["mode"], name) for run in runs]
            before, after = (_mean(pair[i] for pair in pairs) for i in (0, 1))
            cells.append(f"{_measure(name, before)} → {_measure(name, after)}")
        if set(cells) != {f"{NONE} → {NONE}"}:
            rows.append([task, arm, *cells])
    lead = f"Before → after training, {options['mode']}, shares in %:"
    return table(lead, ["task", "arm", *(name.replace("_", " ") for name in names)], rows, text_columns=2)


def training(kept_table: KeptTable, options: Options) -> list[str]:
    """Metrics of training: the first update → the mean over the last tenth of updates. `metrics=a,b`."""
    names = options["metrics"].split(",")
    rows = []
    for task, arm, runs in _cells(kept_table):
        pairs = [[run["training"].get(name, (None, None)) for run in runs] for name in names]
        cells = [
            f"{two(_mean(p[0] for p in metric_pairs))} → {two(_mean(p[1] for p in metric_pairs))}"
            for metric_pairs in pairs
        ]
        rows.append([task, arm, *cells])
    lead = "Training, first update → mean over the last tenth of the updates:"
    return table(lead, ["task", "arm", *(f"`{name}`" for name in names)], rows, text_columns=2)


def explained(kept_table: KeptTable, options: Options) -> list[str]:
    """What critics explained of the returns' variance over the last quarter of the updates, in %."""
    rows = []
    for task, arm, runs in _cells(kept_table):
        if not any(name.startswith("critic/") for run in runs for name in run["training"]):
            continue
        values = [math.nan if run["explained"] is None else run["explained"] for run in runs]
        little = sum(not value >= LITTLE for value in values)
        each = " ".join(map(percent, values))
        rows.append([task, arm, percent(_mean(values)), each, f"{little} of {len(values)}"])
    lead = "Variance of the returns that the critic explained, in %, over the last quarter of the updates:"
    header = ["task", "arm", "explained", "each seed", f"below {LITTLE:.0%}"]
    return table(lead, header, rows, text_columns=2)


def stability(kept_table: KeptTable, options: Options) -> list[str]:
    """Collapses, gradient spikes, drawdown, spread over seeds and events, as the report has them."""
    rows = [
        [
            *(cell["task"], cell["arm"], f"{cell['collapsed']} of {cell['runs']}", str(cell["recovered"])),
            *(number(cell["spikes"], 1), _percent(cell["drawdown"]), _percent(cell["spread"])),
            "; ".join(filter(None, (cell["events"], cell["infrastructure"]))) or NONE,
        ]
        for cell in _known(kept_table)
    ]
    lead = (
        "Runs that collapsed, or fell and recovered; gradient spikes per 100 updates; drawdown (best minus "
        "last validation accuracy) and standard deviation over seeds, in points:"
    )
    header = ["task", "arm", "collapsed", "recovered", "spikes", "drawdown", "spread", "events"]
    return table(lead, header, rows, text_columns=2)


def costs(kept_table: KeptTable, options: Options) -> list[str]:
    """What a run of each arm spent, means over seeds, without evaluation. Peak memory is the highest."""
    flops = [cell["flops"] or math.nan for cell in _known(kept_table)]
    first = {
        cell["task"]: cell_flops
        for cell, cell_flops in zip(reversed(kept_table.cells), reversed(flops), strict=True)
    }
    rows = [
        [
            *(cell["task"], cell["arm"], count(cell["generated_tokens"]), count(cell["flops"])),
            number(cell_flops / first[cell["task"]], 2),
            *(number(cell["train_seconds"], 0), number(cell["seconds"], 1)),
            *(number(cell[phase], 1) for phase in ("sample", "forward", "backward")),
            number(cell["peak_memory_gb"], 1),
        ]
        for cell, cell_flops in zip(kept_table.cells, flops, strict=True)
    ]
    lead = (
        f"Costs of a run without evaluation; × is FLOPs against {kept_table.arms[0]}; seconds of a step, and "
        "of its sampling, forward and backward passes; the highest peak memory of any seed:"
    )
    header = ["task", "arm", "tokens", "FLOPs", "×", "training s", "s/step"]
    header += ["sampling", "forward", "backward", "peak GB"]
    return table(lead, header, rows, text_columns=2)


def comparisons(kept_table: KeptTable, options: Options) -> list[str]:
    """The pairs of arms that the report compares, as it does."""
    rows = []
    margin = kept_table.margin / 100
    plan = plan_of(kept_table.plan, Path(kept_table.name)) if kept_table.plan else None
    for task in kept_table.tasks:
        runs_by_arm = {arm: runs for arm in kept_table.arms if (runs := kept_table.of(arm, task))}
        for run in itertools.chain(*runs_by_arm.values()):
            if kept_table.headline[task] not in run["accuracy"]:
                raise KeyError(kept_table.headline[task])
        scores = {arm: seeds for arm, seeds in kept_table.scores(task).items() if arm in runs_by_arm}
        for pair in compare(task, scores, alpha=ALPHA, margin=margin, plan=plan, control=kept_table.control):
            few = len(pair.seeds) < seeds_needed(ALPHA)
            rows.append(
                [
                    *(task, f"{pair.first} − {pair.second}", points(pair.effect)),
                    *(interval(pair.low, pair.high, points), p_value(pair.p_adjusted)),
                    *(p_value(pair.p_equivalence_holm), "none" if few else number(100 * pair.detectable, 1)),
                    pair.words,
                ]
            )
    header = [
        "task",
        "pair",
        "difference",
        "95 % interval",
        "adjusted p",
        "equivalence",
        "detectable",
        "verdict",
    ]
    modes = " and ".join(dict.fromkeys(kept_table.headline.values()))
    lead = (
        f"Differences of accuracy ({modes}) in points, inside each seed; equivalence is Holm's p within "
        f"{kept_table.margin:g} points:"
    )
    return table(lead, header, rows, text_columns=2)


def study_of(kept_table: KeptTable) -> RateStudy:
    """The arms over learning rates. Raises LogError of a table without rates."""
    if not kept_table.rates:
        raise LogError(f"{kept_table.name}: each arm ran at one learning rate; run it with --rates 0.5,1,2")
    points: dict[tuple[str, str], list[ArmAtRate]] = {}
    for row in kept_table.rates:
        scores = {int(seed): float(score) for seed, score in row["scores"].items()}
        point = ArmAtRate(row["factor"], row["rate"], scores, tuple(row["failed"]), {})
        points.setdefault((row["task"], row["arm"]), []).append(point)
    margin = kept_table.margin / 100
    curves = [ArmCurve(task, arm, tuple(at_rates), margin) for (task, arm), at_rates in points.items()]
    return study_curves(curves, kept_table.control)


def learning_rates(kept_table: KeptTable, options: Options) -> list[str]:
    """The pairs of arms at best, own and equal learning rates, as the report has them."""
    made = rate_pairs_table(study_of(kept_table))
    return [f"{made.title}; differences in points, first − second:", "", *made.markdown()]


def rate_curves(kept_table: KeptTable, options: Options) -> list[str]:
    """Accuracy of each arm over learning rates, and what another rate costs, as the report has them."""
    made = rate_curves_table(study_of(kept_table))
    return [f"{made.title}; accuracy in %, losses in points, * at the best rate:", "", *made.markdown()]


def grid(kept_table: KeptTable, options: Options) -> list[str]:
    """One row per arm and one column per task, with their mean. `of=validation` (last, with `mode`) or
    `of=explained`."""
    leads = {
        "validation": f"Validation accuracy at the end in %, {options.get('mode')}:",
        "explained": "Variance of the returns that the critic explained, %, last quarter of the updates:",
    }
    if options["of"] not in leads:
        raise LogError(f"grid of={options['of']}: known: {', '.join(leads)}")
    rows = []
    for arm in kept_table.arms:
        values = []
        for task in kept_table.tasks:
            runs = kept_table.of(arm, task)
            if options["of"] == "explained":
                values.append(_mean(run["explained"] for run in runs))
            else:
                values.append(_mean(run["accuracy"][options["mode"]][4] for run in runs))
        if not all(map(math.isnan, values)):
            rows.append([arm, *map(percent, values), percent(_mean(values))])
    return table(leads[options["of"]], ["arm", *kept_table.tasks, "mean"], rows, text_columns=1)


def curve(kept_table: KeptTable, options: Options) -> list[str]:
    """Validation accuracy at every evaluation, a column per arm: mean and range of seeds. `mode`, `task`."""
    task = options.get("task", kept_table.tasks[0])
    points_of = {
        arm: [
            dict(map(tuple, run["validation"].get(options["mode"], ()))) for run in kept_table.of(arm, task)
        ]
        for arm in kept_table.arms
    }
    steps = sorted({step for runs in points_of.values() for run in runs for step in run})
    rows = []
    for step in steps:
        cells = []
        for runs in points_of.values():
            values = [run[step] for run in runs if run.get(step) is not None]
            spread = f" ({percent(min(values))} to {percent(max(values))})" if len(values) > 1 else ""
            cells.append(percent(_mean(values)) + spread)
        rows.append([str(step), *cells])
    lead = f"Validation accuracy in %, {options['mode']}, {task}, mean (and range) of the seeds:"
    return table(lead, ["updates", *kept_table.arms], rows, text_columns=0)


def compute(kept_table: KeptTable, options: Options) -> list[str]:
    """Accuracy against compute: fitted on the first half, held against the rest. `of=why` gives the reasons
    and misses alone."""
    trajectories = [
        kept_trajectories(task, arm, runs, kept_table.headline[task])
        for task, arm, runs in _cells(kept_table)
    ]
    curves = fit_curves(trajectories, kept_table.margin / 100)
    made = compute_table(curves)
    if options.get("of") == "why":
        return [f"- {name}: {sentence}" for name, sentence in made.sentences] or ["Every curve was fitted."]
    rows = [row[: made.columns] for row in made.rows]
    return [*table(f"{made.title}:", made.header[: made.columns], rows, text_columns=2), "", coverage(curves)]


def mapped(kept_table: KeptTable, options: Options) -> list[str]:
    """The grid of a map, or with `of=frontier` how far each arm goes without a collapse. `mode`."""
    sweep_values = {
        arm: SweepPoint(point["arm"], point["values"]) for arm, point in kept_table.sweep_values.items()
    }
    axes = axes_of(sweep_values)
    if axes is None:
        raise LogError(f"map of {kept_table.name}: the kept table is of no map")
    grid = group_cells(
        sweep_values, kept_table.tasks, [_counted(run, options["mode"]) for run in kept_table.runs]
    )
    sweep_table = (frontier_table if options.get("of") == "frontier" else map_table)(axes, grid)
    if sweep_table is None:
        raise LogError(f"map of {kept_table.name}: {axes.key} is no dose, and has no frontier")
    lines = table(f"{sweep_table.title}:", sweep_table.header, sweep_table.rows, text_columns=3)
    return [*lines, "", *textwrap.wrap(sweep_table.note, 118)]


def _counted(run: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """A run of a map with the accuracy that counts: 0 of one that diverged."""
    value = run["accuracy"][mode][2] if mode in run["accuracy"] else None
    counted = 0.0 if run["state"] == DIVERGED else math.nan if value is None else float(value)
    return {**run, "counted": counted}


KINDS: Mapping[str, Kind] = {
    "provenance": provenance,
    "accuracy": accuracy,
    "measured": measured,
    "training": training,
    "explained": explained,
    "stability": stability,
    "costs": costs,
    "comparisons": comparisons,
    "learning_rates": learning_rates,
    "rate_curves": rate_curves,
    "grid": grid,
    "curve": curve,
    "compute": compute,
    "map": mapped,
}


def _cells(kept_table: KeptTable) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Task, arm and runs, in the order of the recipe."""
    for task in kept_table.tasks:
        for arm in kept_table.arms:
            if runs := kept_table.of(arm, task):
                yield task, arm, runs


def _known(kept_table: KeptTable) -> Sequence[Mapping[str, Any]]:
    """Stability and costs by task and arm. Raises LogError of a table that was kept without them."""
    if not kept_table.cells:
        raise LogError(f"{kept_table.name}: kept without stability and costs; keep its runs again")
    return kept_table.cells


def _both(run: Mapping[str, Any], mode: str, metric: str) -> Sequence[float | None]:
    if metric == "correct":
        return run["accuracy"][mode][1:3] if mode in run["accuracy"] else (None, None)
    before_and_after: Sequence[float | None] = run["measured"].get(f"{mode}/{metric}", (None, None))
    return before_and_after


def _measure(metric: str, value: float) -> str:
    """A share in %, a bias from −1 to 1, or a length in tokens."""
    if metric.startswith(("bias_", "lean")):
        return signed(value)
    return number(value, 1) if metric == "length" else percent(value)


def _mean(values: Any) -> float:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


def _percent(value: float | None) -> str:
    return NONE if value is None else percent(value)


def _bounded(mean: Estimate) -> str:
    """An interval of an accuracy, which is from 0 to 1."""
    return interval(max(mean.low, 0.0), min(mean.high, 1.0)) if math.isfinite(mean.low) else NONE


def table(lead: str, header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> list[str]:
    """A Markdown table below a line that says what it holds; the first `text_columns` columns are flush
    left."""
    return [lead, "", *plain(header, rows, text_columns).markdown()]
