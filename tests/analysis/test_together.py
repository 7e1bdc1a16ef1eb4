"""Figures across result folders: whose arm is whose, what is told of problems, and no pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.synthetic import Synthetic

from grpobench.analysis.figures.style import BASE_COLOR, TEXT
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.runfolder.several import combine_experiments
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.results import draw_final_accuracy
from grpobench.runs import cli

SMALL = {"seeds": (1, 2), "steps": 8, "every": 4, "problems": 4, "test_problems": 8}


def folders(tmp_path: Path) -> list[Path]:
    """Two experiments that share an arm and a task, and have the same problems of it."""
    ours = Synthetic(arms=("grpo", "ppo"), tasks=("arithmetic",), name="ours", **SMALL)
    theirs = Synthetic(arms=("grpo", "dapo"), tasks=("arithmetic", "function"), name="theirs", **SMALL)
    return [ours.write(tmp_path), theirs.write(tmp_path / "elsewhere")]


def values(experiment: Experiment, arm: str) -> list[float]:
    frame = experiment.select("reward/mean")
    return [float(value) for value in frame[(frame["arm"] == arm) & (frame["task"] == "arithmetic")]["value"]]


def test_arms_of_several_folders_keep_their_logs_and_are_told_apart(tmp_path: Path) -> None:
    ours, theirs = map(load, folders(tmp_path))
    combined = combine_experiments([ours, theirs])
    assert combined.arms == ("grpo (ours)", "ppo", "grpo (theirs)", "dapo")
    assert combined.tasks == ("arithmetic", "function") and len(combined.runs) == len(ours.runs) + len(
        theirs.runs
    )
    assert values(combined, "grpo (ours)") == values(ours, "grpo")
    assert values(combined, "grpo (theirs)") == values(theirs, "grpo") and values(combined, "dapo") == values(
        theirs, "dapo"
    )
    assert all((combined.folder / run.name / "run.toml").exists() for run in combined.runs)
    final, final_of_theirs = Numbers(combined).runs, Numbers(theirs).runs
    assert (
        final[final["arm"] == "dapo"]["final"].tolist()
        == final_of_theirs[final_of_theirs["arm"] == "dapo"]["final"].tolist()
    )
    assert not Numbers(combined).compared and not Numbers(combined).on_axes
    assert combine_experiments([ours]) is ours


def test_experiments_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    roots = [
        Synthetic(arms=("grpo",), tasks=("arithmetic",), **SMALL).write(tmp_path / part) for part in "ab"
    ]
    assert combine_experiments([load(root) for root in roots]).arms == (
        "grpo (a/synthetic)",
        "grpo (b/synthetic)",
    )


def test_captions_say_that_nothing_is_paired_and_where_problems_differ(tmp_path: Path) -> None:
    same = [load(root) for root in folders(tmp_path / "same")]
    alike = "The runs of these 2 experiments are not paired."
    drawing = FIGURES["accuracy_updates"](combine_experiments(same))
    assert drawing is not None and drawing.caption.endswith(alike)
    more = SMALL | {"test_problems": 9}
    other = load(Synthetic(arms=("gspo",), tasks=("arithmetic",), **more).write(tmp_path / "more"))
    drawing = FIGURES["final_accuracy"](combine_experiments([same[0], other]))
    sentence = (
        "On arithmetic they were evaluated on different problems, so their accuracies cannot be compared."
    )
    assert drawing is not None and drawing.caption.endswith(f"{alike} {sentence}")
    silent = load(Synthetic(arms=("gspo",), tasks=("arithmetic",), name="silent", **SMALL).write(tmp_path))
    silent = Experiment(**{**vars(silent), "evaluations": silent.evaluations.iloc[:0]})
    assert combine_experiments([same[0], silent]).apart.endswith(
        "some logs do not say on which problems runs were evaluated."
    )


def test_the_command_draws_one_figure_of_several_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = [str(root) for root in folders(tmp_path)]
    assert cli.main(["figure", "reward", *roots, "--format", "svg", "--out", str(tmp_path / "paper")]) == 0
    assert "The runs of these 2 experiments" in (tmp_path / "paper" / "reward.tex").read_text()
    drawn = (tmp_path / "paper" / "reward.svg").read_text()
    assert "GRPO (ours) on arithmetic" in drawn and "GRPO (theirs) on arithmetic" in drawn
    for arguments, message in (
        (
            ["differences", *roots],
            "the logs have no data for differences of experiments that nothing pairs",
        ),
        (["reward", roots[0], roots[0]], "given twice; name each folder once"),
        (["reward", *roots, str(tmp_path / "none")], "none: no such folder"),
    ):
        assert cli.main(["figure", *arguments, "--out", str(tmp_path / "paper")]) == 2
        assert message in capsys.readouterr().err


def test_each_arm_stands_beside_its_own_accuracy_before_training(tmp_path: Path) -> None:
    """Where experiments, or models of one, begin apart: a mean over them would be nobody's."""
    ours, theirs = map(load, folders(tmp_path))
    numbers = Numbers(combine_experiments([ours, theirs]))
    for moved, lines in ((0.0, 1), (0.01, 4)):
        runs = numbers.runs.copy()
        runs["base"] = runs.groupby("task")["final"].transform("mean")  # near what is drawn
        runs.loc[runs["arm"] == "dapo", "base"] += moved
        drawing = draw_final_accuracy(numbers.experiment, runs, TEXT)
        assert drawing is not None and ("before training of each arm as a range" in drawing.caption) == bool(
            moved
        )
        axes = next(axes for axes in drawing.figure.axes if axes.get_title().startswith("arithmetic"))
        begun = [
            line
            for line in axes.lines
            if line.get_color() == BASE_COLOR and not line.get_marker().strip("None")
        ]
        assert len(begun) == lines
        if moved:
            levels = runs[runs["task"] == "arithmetic"].groupby("arm")["base"].mean()
            assert sorted(float(line.get_xdata()[0]) for line in begun) == pytest.approx(sorted(100 * levels))
