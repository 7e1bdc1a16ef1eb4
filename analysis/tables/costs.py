"""Tables of what the runs cost, of accuracy at equal cost, and of samplers with weights of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.axes import OnAxes
from grpobench.analysis.summary.budgets import AXES, at_equal_budgets, spent
from grpobench.analysis.summary.costs import PHASES
from grpobench.analysis.summary.gaps import sampler_gaps
from grpobench.analysis.summary.settings import MOST_COLUMNS
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE, count, listed, number, percent, points, small


def budgets_table(matrix: Matrix) -> Table:
    """Updates, tokens and seconds of a run, a row per task and arm."""
    frame = spent(matrix)
    rows = [
        [
            r["task"],
            r["arm"],
            number(r["updates"], 0),
            count(r["generated_tokens"]),
            count(r["trained_tokens"]),
            number(r["train_seconds"], 0),
            number(r["evaluate_seconds"], 0),
        ]
        for r in frame.to_dict("records")
    ]
    note = "Mean over seeds, failed runs included; evaluation of the base, which the arms share, left out."
    header = ["task", "arm", "updates", "generated tokens", "trained tokens", "training s", "evaluation s"]
    return Table("budgets", "What each run spent", header, rows, frame, note=note)


def equal_budgets_table(matrix: Matrix) -> Table:
    """Validation accuracy where all runs had spent the same, a row per task and axis."""
    frame = at_equal_budgets(matrix)
    rows, many = [], len(matrix.arms) > MOST_COLUMNS
    for (task, axis, budget), own in frame.groupby(["task", "axis", "budget"], sort=False):
        accuracy = dict(zip(own["arm"], own["accuracy"], strict=True))
        what = [task, f"{count(budget)} {AXES[axis]}"]
        if many:  # an arm below the other
            rows += [[*what, arm, percent(share)] for arm, share in accuracy.items()]
        else:
            rows.append([*what, *(percent(accuracy.get(arm, math.nan)) for arm in matrix.arms)])
    note = (
        "Validation accuracy in percent at the largest budget that every finished run of the task "
        "reached: the last evaluation at or before it, mean over seeds; a run that diverged before it "
        "counts as 0. Equal updates, equal generated "
        "tokens and equal seconds are three different comparisons."
    )
    header = ["task", "at equal budget", *(("arm", "accuracy") if many else matrix.arms)]
    return Table(
        "equal_budgets", "Accuracy at equal budgets", header, rows, frame, 3 if many else 2, note=note
    )


def costs_table(frame: pd.DataFrame) -> Table:
    """Seconds of each phase of an update, rates and memory, as `update_costs` finds them, a row per task and
    arm."""
    rows = [
        [r["task"], r["arm"], number(r["seconds"], 2)]
        + [number(r[phase], 2) for phase in PHASES]
        + [
            count(r["tokens_per_second"]),
            count(r["sampling_tokens_per_second"]),
            number(r["peak_memory_gb"], 2),
        ]
        for r in frame.to_dict("records")
    ]
    header = ["task", "arm", "s/update", *PHASES, "tokens/s", "tokens/s sampling", "peak GB"]
    note = "Means over all updates of all seeds, evaluation left out; peak memory is the highest of any seed."
    return Table("costs", "Costs", header, rows, frame, note=note)


def gaps_table(matrix: Matrix) -> Table:
    """How well samplers with weights of their own agreed with the trainer."""
    frame = sampler_gaps(matrix)
    rows = [
        [
            *(r["task"], r["arm"]),
            *(small(r[name]) for name in ("mean", "largest", "after_sync")),
            *(number(r["effective"], 4), number(r["weight"], 4), percent(r["clipped"])),
        ]
        for r in frame.to_dict("records")
    ]
    header = ["task", "arm", "mean gap", "largest gap", "largest after sync"]
    header += ["effective sample", "correction weight", "corrected, % of tokens"]
    note = (
        "Nats between the sampler's log-probabilities and the trainer's on the same weights, over all "
        "updates of all seeds; after sync: on the probe that proves that the engine took over the weights. "
        "Effective sample: the smallest share left by the ratios of probabilities, 1 without a gap."
    )
    return Table("gaps", "Sampler and trainer", header, rows, frame, note=note)


def axes_table(pairs: Sequence[OnAxes]) -> Table:
    """Verdicts at equal updates, tokens and seconds, a row per task and pair."""
    rows = []
    for one in pairs:
        cells = []
        for axis in AXES:
            pair = one.found.get(axis)
            cells += [points(pair.effect), pair.verdict] if pair else [NONE, NONE]
        rows.append([one.task, f"{one.first} − {one.second}", *cells, "yes" if one.depends else "no"])
    header = ["task", "pair", *(h for axis in AXES for h in (f"at equal {axis}", "verdict")), "depends"]
    note = (
        "Differences of the validation accuracies at equal budgets of the table before, in points, inside "
        "each seed, and verdicts on the first arm by the tests of final accuracies; Holm over the pairs of a "
        "task on one axis. Depends: whether the word is another on another axis. Seconds are those of the "
        "machines that the runs had, and of what ran beside."
    )
    told = [one.sentence for one in pairs if one.depends]
    if told:
        note += f" The answer depends on the axis: {listed(told)}."
    frame = pd.DataFrame(
        [{"axis": axis, **asdict(pair)} for one in pairs for axis, pair in one.found.items()]
    )
    return Table("axes", "Verdicts at equal budgets", header, rows, frame, note=note)
