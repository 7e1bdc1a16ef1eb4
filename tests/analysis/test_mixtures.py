"""Accuracy by task in mixtures, and the order of arms with each task left out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit_rows
from helpers.synthetic import Synthetic

from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.accuracy import finals
from grpobench.analysis.topics.mixtures import arm_means, order_table, parts_table

ARMS = ("grpo", "dapo", "gspo")
ACCURACY = {
    # arm: arithmetic, nanobias, function
    "grpo": (0.8, 0.5, 0.5),
    "dapo": (0.6, 0.6, 0.55),
    "gspo": (0.2, 0.4, 0.9),
}
TASKS = ("arithmetic", "nanobias", "function")
FEW = {"steps": 2, "every": 2, "problems": 4, "test_problems": 8, "seeds": (1, 2)}


def written(folder: Path) -> Path:
    def accuracy(arm: str, task: str, seed: int) -> float:
        return ACCURACY[arm][TASKS.index(task)]

    return Synthetic(arms=ARMS, tasks=TASKS, accuracy=accuracy, **FEW).write(folder)


def test_order_of_arms_changes_with_a_task_left_out_as_by_hand(tmp_path: Path) -> None:
    """Means over all: grpo .6, dapo .583, gspo .5. Without arithmetic gspo .65 is first, dapo .575 second and
    grpo .5 last, so that all three pairs turn around: τ = −1. Without function grpo .65, dapo .6, gspo .3,
    and without nanobias grpo .65, dapo .575, gspo .55: the order stays, τ = 1."""
    experiment = load(written(tmp_path))
    table = order_table(experiment, finals(experiment))
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows["nothing"][:3]) == ["grpo", "dapo", "+1.7"]
    assert rows["arithmetic"] == ["gspo", "dapo", "+7.5", "3 of 3", "-1.00".replace("-", "−")]
    assert rows["nanobias"] == ["grpo", "dapo", "+7.5", "0 of 3", "1.00"]
    assert rows["function"] == ["grpo", "dapo", "+5.0", "0 of 3", "1.00"]
    ranks = table.frame.set_index("arm")
    assert ranks["arithmetic"].to_dict() == {"grpo": 3, "dapo": 2, "gspo": 1}


def test_task_without_a_result_of_every_arm_is_no_column(tmp_path: Path) -> None:
    experiment = load(written(tmp_path))
    runs = finals(experiment)
    runs.loc[(runs["arm"] == "gspo") & (runs["task"] == "function"), "counted"] = float("nan")
    assert list(arm_means(experiment, runs).columns) == ["arithmetic", "nanobias"]


def test_one_task_has_no_order(tmp_path: Path) -> None:
    experiment = load(Synthetic(arms=ARMS, tasks=("arithmetic",), **FEW).write(tmp_path))
    assert order_table(experiment, finals(experiment)) is None
    assert parts_table(experiment, finals(experiment)) is None


# Mixtures


def mixed(folder: Path, state: str = "finished") -> Experiment:
    """A mixture of sums, whose accuracy rises from .25 to .5 or .75, and words, which stay at .75."""
    root = Synthetic(
        arms=("grpo", "dapo"),
        tasks=("both",),
        states={("dapo", "both", 2): (state, 2)} if state != "finished" else {},
        **FEW,
    ).write(folder)
    for run in root.glob("*-s*"):
        text = (run / "run.toml").read_text()
        assert "[task.settings]\n" in text
        settings = "[task.settings]\nmixture = { sums = 2, words = 1 }\n"
        (run / "run.toml").write_text(text.replace("[task.settings]\n", settings))
        final = {"grpo": 0.5, "dapo": 0.75}[run.name.split("-")[0]]
        edit_rows(run / "metrics.jsonl", partial(mix, final=final))
    return load(root)


def mix(row: dict[str, Any], final: float) -> None:
    if row["step"]:
        row |= {"groups/sampled/sums": 6.0, "groups/sampled/words": 2.0}
    if any(key.startswith("eval/test/") for key in row):
        accuracy = {"sums": final if row["step"] else 0.25, "words": 0.75}
        for mode in ("greedy", "sampled"):
            row |= {f"eval/test/{mode}/accuracy/{part}": value for part, value in accuracy.items()}


def test_accuracy_by_task_of_a_mixture_with_the_share_of_its_groups(tmp_path: Path) -> None:
    experiment = mixed(tmp_path)
    table = parts_table(experiment, finals(experiment))
    assert table is not None and [list(row) for row in table.rows] == [
        ["both", "sums", "grpo", "75.0", "25.0", "50.0", "+25.0", "2"],
        ["both", "sums", "dapo", "75.0", "25.0", "75.0", "+50.0", "2"],
        ["both", "words", "grpo", "25.0", "75.0", "75.0", "+0.0", "2"],
        ["both", "words", "dapo", "25.0", "75.0", "75.0", "+0.0", "2"],
    ]


def test_diverged_run_counts_as_0_on_every_task_and_a_crashed_one_not(tmp_path: Path) -> None:
    for state, counted in (("diverged", 0.375), ("crashed", 0.75)):
        experiment = mixed(tmp_path / state, state)
        means = arm_means(experiment, finals(experiment))
        assert means.loc["dapo", "both/sums"] == pytest.approx(counted)
        assert list(means.columns) == ["both/sums", "both/words"]  # the mixture itself is no third task
