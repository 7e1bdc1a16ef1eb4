"""How noisy each outcome of a run is, so that the next experiment can be judged by a quiet one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.measure import MODES, reduced
from grpobench.analysis.runfolder.experiment import FINISHED, Experiment
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA, SAME, correction_of
from grpobench.analysis.tools.text import number, percent
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.unresolved import seeds_text
from grpobench.analysis.topics.warnings import have_no_room

PART = 0.1
"""Of the gain by training: the difference between arms for which numbers of seeds are given."""
LEAST = 3
"""Fewest shared seeds of a pair that say something of the spread of its difference."""
VERDICT = "score/correct"
COLUMNS = ["task", "outcome", "pairs", "seeds", "gain", "deviation", "noise", "needed", "saturated"]
Runs = Mapping[str, Mapping[int, tuple[float, float]]]
"""By arm and seed: a metric before training, and the outcome."""


def outcomes(experiment: Experiment, task: str) -> dict[str, tuple[str, str]]:
    """The metric of each outcome of the runs of a task, and how its values become one number."""
    chosen = headline_of(experiment, task)
    final = {f"final accuracy, {mode}": (f"eval/{chosen.split}/{mode}/correct", "end") for mode in MODES}
    return {
        **final,
        "validation accuracy, mean over training": (f"eval/validation/{chosen.mode}/correct", "mean"),
        "log-probability of references": (_likelihood(experiment, task), "end"),
        "verdicts on rollouts, last tenth": (VERDICT, "last"),
        "verdicts on rollouts, mean over training": (VERDICT, "mean"),
    }


def outcome_noise(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per task and outcome: pairs of arms, the seeds that they share, gain (mean over arms),
    deviation (of a paired difference, √ of the mean variance over pairs), noise (deviation as a share of the
    gain, infinite without one), needed (seeds that find a difference of `PART` of the gain; infinite
    likewise), and whether the means of all arms leave no room: such an outcome is quiet for that reason.
    `runs` are the rows of `finals`: runs that collapsed or failed do not count. Empty for a map and with
    fewer than `LEAST` shared seeds."""
    rows = []
    ended = runs[runs["run_status"] == FINISHED]
    finished = {*ended[["task", "arm", "seed"]].itertuples(index=False, name=None)}
    pairs = [] if experiment.sweep_values else pairs_of(experiment.arms, experiment.control)
    correction = correction_of(experiment.plan is not None)
    for task in experiment.tasks:
        for name, (metric, reduction) in outcomes(experiment, task).items():
            arms = _outcome_of_runs(experiment, finished, task, metric, reduction)
            differences = [_differences(arms, *pair) for pair in pairs]
            variances = [np.var(values, ddof=1) for values in differences if len(values) >= LEAST]
            deviation, gain = math.sqrt(np.mean(variances)) if variances else 0.0, _gain(arms)
            if not deviation > SAME:
                continue
            effect, least = PART * max(gain, 0.0) / deviation, seeds_needed(ALPHA)
            needed = power.seeds_for(effect, len(pairs), ALPHA, least, correction)
            seeds = max(map(len, differences))
            noise = deviation / gain if gain > 0 else math.inf
            means = [float(np.mean([after for _, after in of_arm.values()])) for of_arm in arms.values()]
            saturated = metric != _likelihood(experiment, task) and have_no_room(means)
            rows.append((task, name, len(variances), seeds, gain, deviation, noise, needed, saturated))
    return pd.DataFrame(rows, columns=COLUMNS)


def _likelihood(experiment: Experiment, task: str) -> str:
    return f"reference/{headline_of(experiment, task).split}/logp"


def _outcome_of_runs(
    experiment: Experiment, finished: set[tuple[str, str, int]], task: str, metric: str, reduction: str
) -> Runs:
    arms: dict[str, dict[int, tuple[float, float]]] = {}
    rows = experiment.select(metric).sort_values("step")
    # The rollouts of the first step are the base policy's; an average over training has them too.
    first = 0 if metric == VERDICT else 1
    for (arm, seed), run in rows[rows["task"] == task].groupby(["arm", "seed"], sort=False, observed=True):
        values = run["value"].to_numpy(dtype=float)
        has_base = metric == VERDICT or run["step"].iloc[0] == 0
        if (task, arm, seed) in finished and len(values) > 1 and has_base:
            arms.setdefault(str(arm), {})[int(seed)] = values[0], reduced(values[first:], reduction)
    return arms


def _gain(arms: Runs) -> float:
    """Mean over arms and seeds."""
    changes = [after - before for of_arm in arms.values() for before, after in of_arm.values()]
    return float(np.mean(changes)) if changes else 0.0


def _differences(arms: Runs, first: str, second: str) -> list[float]:
    """Inside each seed that both arms have."""
    of_first, of_second = arms.get(first, {}), arms.get(second, {})
    return [of_first[seed][1] - of_second[seed][1] for seed in sorted(of_first.keys() & of_second.keys())]


def noise_table(experiment: Experiment, runs: pd.DataFrame) -> PrintedTable:
    """One row per task and outcome."""
    frame = outcome_noise(experiment, runs)
    rows = [
        [
            *(row["task"], row["outcome"], str(row["pairs"]), str(row["seeds"])),
            *(percent(row["gain"]), f"{100 * row['deviation']:.2f}", number(100 * row["noise"], 1)),
            "no room" if row["saturated"] else seeds_text(row["needed"]),
        ]
        for row in frame.to_dict("records")
    ]
    note = (
        "Standard deviation of a paired difference in points, over the pairs of arms that share seeds; runs "
        "that collapsed or failed are left out. Gain: mean change by training over arms and seeds, in "
        "points (of references, in hundredths of a nat per token). "
        "Noise: the deviation in percent of the gain. Seeds: so many find a difference of "
        f"{PART:.0%} of the gain in {power.POWER:.0%} of repetitions; no room: every arm is at the ceiling "
        "or on the floor, so that they can hardly differ. Averages over training ask how fast "
        "arms learn, final values where they end. Choose one before the next runs, not after these: the "
        "table shows no difference between arms."
    )
    header = ["task", "outcome", "pairs", "shared seeds", "gain", "SD", "noise", "seeds"]
    return PrintedTable("noise", "Which outcome is quiet", header, rows, frame, note=note)
