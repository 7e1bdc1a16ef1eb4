"""Tables of training: what was rewarded, and what the critic explained."""

from __future__ import annotations

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.critic import LITTLE, critic_explained
from grpobench.analysis.summary.rewards import VERDICT, reward_parts
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE, each_seed, interval, percent, two


def rewards_table(matrix: Matrix) -> Table:
    """What each arm was paid for, and what became of it and of the verdict."""
    frame = reward_parts(matrix)
    names = list(dict.fromkeys(frame["metric"]))
    means = frame.groupby(["task", "arm", "metric"])[["start", "end"]].mean()
    rows = []
    for task, arm in dict.fromkeys(zip(frame["task"], frame["arm"], strict=True)):
        cells = []
        for name in names:
            both = means.loc[(task, arm, name)] if (task, arm, name) in means.index else None
            cells.append(NONE if both is None else f"{two(both['start'])} → {two(both['end'])}")
        own = frame[(frame["task"] == task) & (frame["arm"] == arm)]
        change = (own["end"] - own["start"]).groupby([own["seed"], own["metric"]]).mean().unstack()
        parted = (change.get("reward/mean", 0) > 0) & (change.get(VERDICT, 0) < 0)
        rows.append([task, arm, *cells, f"{int(parted.sum())} of {len(change)}"])
    labels = {"reward/mean": "reward", VERDICT: "verdict"}
    heads = [labels.get(name, name.removeprefix("reward/").replace("_", " ")) for name in names]
    note = (
        "Mean over seeds at the first update, whose rollouts are the base policy's, → over the last tenth of "
        "the updates. Reward: what was paid; verdict: share that the verifier accepts, measured whatever is "
        "paid. Parted: seeds in which the reward rose and the verdict fell; a rise by chance "
        "counts too, so read it with the curves and the accuracy on held-out problems."
    )
    header = ["task", "arm", *heads, "parted"]
    return Table("rewards", "What was rewarded", header, rows, frame, note=note)


def critic_table(matrix: Matrix) -> Table:
    """What each critic explained at the end of training."""
    frame = critic_explained(matrix)
    rows = []
    for (task, arm), own in frame.groupby(["task", "arm"], sort=False):
        shares = own["explained"]
        little = int((~(shares >= LITTLE)).sum())
        rows.append(
            [
                task,
                arm,
                percent(shares.mean()),
                interval(shares.min(), shares.max()),
                each_seed(list(shares)),
                percent(own["group"].mean()),
                f"{little} of {len(own)}",
            ]
        )
    level = f"{LITTLE:.0%}"
    header = ["task", "arm", "explained", "over seeds", "each seed", "the group explains", f"below {level}"]
    note = (
        "Variance of the returns in percent that the critic's values explained before each update, mean "
        f"over the last quarter of the updates: 0 is what predicting the mean return explains, and below "
        f"{level} the critic is in effect none. Beside it what the mean reward of the group's other rollouts "
        "explains of the same returns. Returns that are made from the critic's own values "
        "(a trace below 1) resemble them, which flatters it."
    )
    return Table("critic", "What the critic explained", header, rows, frame, note=note)
