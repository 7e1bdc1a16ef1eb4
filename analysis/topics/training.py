"""What training logs at each update: rewards and their parts, critics, entropy, KL, lengths, gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.scales import plain
from grpobench.analysis.figures.style import Sheet
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.measure import QUARTER, reduced
from grpobench.analysis.runfolder.experiment import Experiment, by_run
from grpobench.analysis.tools.metrics import meaning
from grpobench.analysis.tools.text import NONE, each_seed, interval, percent, two
from grpobench.analysis.topics.budgets import with_axis
from grpobench.analysis.topics.captions import (
    BANDS,
    CUT,
    joined,
    means_in_words,
    rollouts_in_words,
    seeds_of,
)
from grpobench.analysis.topics.curves import PanelRow, constant, draw_curves
from grpobench.analysis.topics.figure_names import TRAINING, Panel

BESIDE_COMPONENTS = (
    *("mean", "std", "failed", "model_cut", "correct"),
    *("flipped_share", "false_positive_rate", "false_negative_rate", "outlier_share"),
)
"""Metrics below ``reward/`` that are not parts of the reward, or that repeat the verdict."""
VERDICT = "score/correct"


def reward_components(experiment: Experiment) -> list[str]:
    """Names of the logged parts of the reward; empty where every arm is rewarded for the verifier's verdict
    alone. `VERDICT` names the verdict itself."""
    # A name with a slash, such as model_auc/correct, is a measurement of a part.
    names = [name.removeprefix("reward/") for name in experiment.names("reward/")]
    return [name for name in names if name not in BESIDE_COMPONENTS and "/" not in name]


def reward_parts(experiment: Experiment) -> pd.DataFrame:
    """The reward, its components and the verdict at both ends of training: task, arm, seed, metric, start
    (the first update, whose rollouts the base policy wrote), end (mean over the last tenth of updates)."""
    names = [f"reward/{part}" for part in reward_components(experiment)]
    rows = []
    for name in (*names, "reward/mean", VERDICT) if names else ():
        for (task, arm, seed), logged in experiment.select(name).groupby(["task", "arm", "seed"], sort=False):
            values = logged.sort_values("step")["value"].to_numpy()
            rows.append((task, arm, seed, name, *(reduced(values, end) for end in ("first", "last"))))
    return pd.DataFrame(rows, columns=["task", "arm", "seed", "metric", "start", "end"])


# Critics

EXPLAINED = "critic/explained_variance"
"""1 − Var(R − V)/Var(R) over completion tokens, before the update. Every arm that trains a value logs it."""
GROUP = "critic/group_explained"
"""The share of the rewards to go that the mean reward of the group's other rollouts explains."""
TRAINED = ("grad_norm/critic", "grad_norm/value_head")
"""Logged where a value is trained, also where the explained variance is not logged."""
LITTLE = 0.1
"""Below this share the report warns that a critic explains too little. Predicting the mean return explains
0."""
COLUMNS = ["task", "arm", "seed", "updates", "explained", "group"]


def critic_explained(experiment: Experiment) -> pd.DataFrame:
    """One row per run that trains a value: task, arm, seed, updates (number of updates in the means),
    explained (mean share of the returns' variance) and group (mean share of that of the rewards to go); NaN
    where no update has a finite value."""
    rows = []
    trained = pd.concat(
        [experiment.metrics[experiment.metrics["metric"] == name] for name in (EXPLAINED, *TRAINED)]
    )
    trained_runs = set(zip(trained["task"], trained["arm"], trained["seed"], strict=True))
    explained, group_explained = (by_run(experiment.select(name)) for name in (EXPLAINED, GROUP))
    trained_rows = by_run(trained)
    for run in experiment.runs:
        if (run.task, run.arm, run.seed) not in trained_runs:
            continue
        steps = trained_rows(run)["step"]
        first = _first(int(steps.max()))
        last, group = (
            part.loc[part["step"] >= first, "value"] for part in (explained(run), group_explained(run))
        )
        rows.append((run.task, run.arm, run.seed, len(last), last.mean(), group.mean()))
    return pd.DataFrame(rows, columns=COLUMNS)


def _first(last: int) -> int:
    """First of the last quarter of updates 1 to `last`."""
    return last - max(1, round(QUARTER * last)) + 1


def critic_warnings(frame: pd.DataFrame) -> Iterator[str]:
    """One sentence for each arm and task with seeds whose critic explains less than `LITTLE` at the end."""
    for (task, arm), seeds_of_arm in frame.groupby(["task", "arm"], sort=False):
        weak = seeds_of_arm[~(seeds_of_arm["explained"] >= LITTLE)]
        if weak.empty:
            continue
        seeds = ", ".join(str(seed) for seed in weak["seed"])
        where = f"{arm} on {task}, seed{'s' * (len(weak) > 1)} {seeds}"
        if weak["explained"].isna().all():
            yield f"{where}: the share of the returns' variance that the critic explained is unknown"
            continue
        group_text = (
            "" if weak["group"].isna().all() else f"; the group's other rollouts {_share(weak['group'])} %"
        )
        yield (
            f"{where}: the critic explained {_share(weak['explained'])} % of the variance of the returns "
            f"over the last quarter of the updates{group_text}"
        )


def _share(values: pd.Series) -> str:
    """The smallest and the largest share in percent; one number where both print the same."""
    ends = [f"{round(100 * value):d}".replace("-", "−") for value in (values.min(), values.max())]
    return " to ".join(dict.fromkeys(ends))


# Tables


def rewards_table(experiment: Experiment) -> PrintedTable:
    """The parts of each arm's reward and the verdict, at the first and the last updates."""
    frame = reward_parts(experiment)
    names = list(dict.fromkeys(frame["metric"]))
    means = frame.groupby(["task", "arm", "metric"])[["start", "end"]].mean()
    rows = []
    for task, arm in dict.fromkeys(zip(frame["task"], frame["arm"], strict=True)):
        cells = []
        for name in names:
            both = means.loc[(task, arm, name)] if (task, arm, name) in means.index else None
            cells.append(NONE if both is None else f"{two(both['start'])} → {two(both['end'])}")
        arm_rows = frame[(frame["task"] == task) & (frame["arm"] == arm)]
        change = (
            (arm_rows["end"] - arm_rows["start"])
            .groupby([arm_rows["seed"], arm_rows["metric"]])
            .mean()
            .unstack()
        )
        parted = (change.get("reward/mean", 0) > 0) & (change.get(VERDICT, 0) < 0)
        rows.append([task, arm, *cells, f"{int(parted.sum())} of {len(change)}"])
    labels = {"reward/mean": "reward", VERDICT: "verdict"}
    heads = [labels.get(name, name.removeprefix("reward/").replace("_", " ")) for name in names]
    note = (
        "Mean over seeds at the first update, whose rollouts come from the base policy, → mean over the last "
        "tenth of the updates. Reward: what the arm was trained on. Verdict: share of rollouts that the "
        "verifier accepts, whatever is rewarded. Parted: seeds in which the reward rose and the verdict "
        "fell. A rise by chance counts too, so read it together with the curves and the accuracy on held-out "
        "problems."
    )
    header = ["task", "arm", *heads, "parted"]
    return PrintedTable("rewards", "What was rewarded", header, rows, frame, note=note)


def critic_table(experiment: Experiment) -> PrintedTable:
    """The variance that each critic explained at the end of training."""
    frame = critic_explained(experiment)
    rows = []
    for (task, arm), seeds in frame.groupby(["task", "arm"], sort=False):
        shares = seeds["explained"]
        little = int((~(shares >= LITTLE)).sum())
        rows.append(
            [
                task,
                arm,
                percent(shares.mean()),
                interval(shares.min(), shares.max()),
                each_seed(list(shares)),
                percent(seeds["group"].mean()),
                f"{little} of {len(seeds)}",
            ]
        )
    level = f"{LITTLE:.0%}"
    header = ["task", "arm", "explained", "over seeds", "each seed", "the group explains", f"below {level}"]
    note = (
        "Share of the variance of the returns in percent that the critic's values explained before each "
        "update, mean over the last quarter of the updates. Predicting the mean return explains 0, and "
        f"below {level} a critic adds almost nothing. The group explains: the share that the mean reward of "
        "the group's other rollouts explains. Returns that contain the critic's own values (λ below 1) "
        "resemble these values, which makes the critic look better."
    )
    return PrintedTable("critic", "What the critic explained", header, rows, frame, note=note)


# Figures


SHARE = (0.0, 1.0)


def draw_training(
    experiment: Experiment,
    name: str,
    title: str,
    rows: Sequence[Panel],
    sheet: Sheet,
) -> Drawing | None:
    """Metrics of training against updates, one row of panels each. Metrics that no run logged are left out,
    and so are constant ones, which the caption names. None where nothing is left."""
    frames = {
        panel.metric: with_axis(experiment, experiment.select(panel.metric), "updates") for panel in rows
    }
    logged = [panel for panel in rows if len(frames[panel.metric])]
    constants = {panel: constant(frames[panel.metric]["value"]) for panel in logged}
    drawn = [panel for panel in logged if constants[panel] is None]
    if not drawn:
        return None
    bounds = [_bounds(experiment, panel) for panel in drawn]
    panels = [
        PanelRow(panel.label, frames[panel.metric], panel.declared.scale == "log", panel.shared, bounds=ends)
        for panel, ends in zip(drawn, bounds, strict=True)
    ]
    finished = draw_curves(experiment, panels, "updates", sheet)
    labels: dict[str, str] = {}
    for panel in drawn:
        labels.setdefault(meaning(panel.metric), panel.label.replace("\n", " "))
    text = "; ".join(f"{label}: {text}" for text, label in labels.items())
    tasks = [task for task in experiment.tasks if any((f["task"] == task).any() for f in frames.values())]
    cut = CUT if any(math.isfinite(end) for ends in bounds for end in ends) else ""
    caption = joined(
        [
            f"{text[0].upper()}{text[1:]}."
            if len(tasks) > 1
            else f"On {tasks[0]}. {text[0].upper()}{text[1:]}.",
            means_in_words(seeds_of(pd.concat(frames[p.metric] for p in drawn)), BANDS + cut),
            rollouts_in_words(experiment),
            *finished.notes,
            constant_note({panel.label: v for panel, v in constants.items() if v is not None}),
        ]
    )
    return Drawing(name, title, caption, finished.figure)


def _bounds(experiment: Experiment, panel: Panel) -> tuple[float, float]:
    """The values that are possible. Those of a reward are known only where it is the verdict."""
    if panel.metric == "reward/mean":
        reward, verdict = (experiment.select(name)["value"].to_numpy() for name in (panel.metric, VERDICT))
        if reward.shape == verdict.shape and np.allclose(reward, verdict):
            return SHARE
    return SHARE if panel.metric == VERDICT else panel.declared.bounds


def constant_note(constants: Mapping[str, float]) -> str:
    """Which metrics are left out because they never change, by label."""
    if not constants:
        return ""
    names = ", ".join(f"{words(label)} ({plain(value)})" for label, value in constants.items())
    return f"Left out, because the same at every update of every run: {names}."


def list_constant(experiment: Experiment, names: Sequence[str] | None = None) -> list[str]:
    """A sentence for each figure of training (or of `names`) that is not drawn, because all of its metrics
    are constant."""
    notes = []
    for name, (title, panels) in TRAINING.items():
        if names is not None and name not in names:
            continue
        frames = {panel.label: experiment.select(panel.metric) for panel in panels}
        values = {label: constant(frame["value"]) for label, frame in frames.items() if len(frame)}
        constant_values = {label: value for label, value in values.items() if value is not None}
        if constant_values and len(constant_values) == len(values):
            notes.append(f"{title}: not drawn. {constant_note(constant_values)}")
    return notes


def words(label: str) -> str:
    """The label of a panel without its unit, for a caption."""
    return label.replace("\n", " ").partition(" (")[0].strip()


def draw_components(experiment: Experiment, sheet: Sheet) -> Drawing | None:
    """Every part of the reward, and the verifier's verdict on the same rollouts."""
    parts = reward_components(experiment)
    rows = [Panel(f"reward/{part}", "panel", f"{part.replace('_', ' ')}\n(mean)") for part in parts]
    rows.append(Panel(VERDICT, "panel", "verdict\n(share correct)"))
    title = "What was rewarded, and the verifier's verdict on the same rollouts"
    return draw_training(experiment, "components", title, rows, sheet) if parts else None


def draw_gradients(experiment: Experiment, sheet: Sheet) -> Drawing | None:
    """Gradient norm of every trained role."""
    rows = [
        Panel(name, axis_label=f"gradient norm\n({name.removeprefix('grad_norm/').replace('_', ' ')})")
        for name in experiment.names("grad_norm/")
    ]
    return draw_training(experiment, "gradient", "Gradient norm by role", rows, sheet)
