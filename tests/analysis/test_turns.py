"""What a report says of tasks of several turns: accuracy by horizon, credit by turn, who wrote what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit_rows
from helpers.synthetic import Synthetic

from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.samples import completion_text
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.turns import by_horizon, credit_by_turn, horizons_table

SHARES = {"grpo": (0.5, 0.5), "gigpo": (0.2, 0.8)}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Two arms on a task of two turns: p0 and p1 have horizon 2, other problems 8, where a call fails."""
    sizes = {"steps": 4, "every": 2, "problems": 4, "test_problems": 4}
    synthetic = Synthetic(arms=("grpo", "gigpo"), tasks=("arithmetic",), seeds=(1, 2), **sizes)  # type: ignore[arg-type]
    root = synthetic.write(tmp_path_factory.mktemp("turns"))

    def answer(row: dict[str, Any]) -> None:
        short = row["problem"] in ("p0", "p1")
        trained = float(row["step"] > 0)
        correct = trained if short else 0.0
        row |= {
            "traits": {"difficulty": 2.0 if short else 8.0},
            "scores": {"correct": correct},
            "turns": 2.0 + trained,
            "replies": 3.0,
            "calls": 1.0,
            "malformed": 0.0,
            "errors": 1.0 - short,
        }

    for run in root.glob("*-s*"):
        first, second = SHARES[run.name.partition("-")[0]]
        credit = {"credit/turn_1": first, "credit/turn_2": second, "credit/true_1": 0.0, "credit/true_2": 1.0}
        edit_rows(run / "metrics.jsonl", lambda row, credit=credit: row.update(credit if row["step"] else {}))
        edit_rows(run / "eval.jsonl", answer)
    return load(root)


def test_accuracy_is_told_by_horizon(experiment: Experiment) -> None:
    table = horizons_table(experiment)
    assert [row[1:4] for row in table.rows] == [
        [horizon, arm, "2"] for horizon in ("2", "8") for arm in ("grpo", "gigpo")
    ]
    short, long = table.rows[0], table.rows[-1]
    assert short[4:8] == ["0.0", "100.0", "+100.0", "100.0  100.0"]
    assert short[8:] == ["2.0 → 3.0", "1.0 → 1.0", "0.0 → 0.0", "0.0 → 0.0"]
    assert long[4:7] == ["0.0", "0.0", "+0.0"] and long[-1] == "1.0 → 1.0"
    assert set(by_horizon(experiment)["step"]) == {0, 4}


def test_credit_is_drawn_for_each_turn_beside_the_true_one(experiment: Experiment) -> None:
    frame = credit_by_turn(experiment)
    of_grpo = frame[(frame["arm"] == "grpo") & (frame["kind"] == "turn") & (frame["seed"] == 1)]
    assert list(zip(of_grpo["turn"], of_grpo["value"], strict=True)) == [(1, 0.5), (2, 0.5)]
    drawing = FIGURES["credit"](experiment)
    assert drawing is not None and "the task knows" in drawing.caption
    curves = [tuple(line.get_ydata()) for line in drawing.figure.axes[0].lines]
    assert curves == [pytest.approx(ys) for ys in ((50, 50), (20, 80), (0, 100))]


def test_arms_with_different_numbers_of_turns_have_true_credits_of_their_own(tmp_path: Path) -> None:
    sizes = {"steps": 2, "every": 2, "problems": 2, "test_problems": 2}
    arms = ("short", "long", "also-long")
    root = Synthetic(arms=arms, tasks=("arithmetic",), seeds=(1, 2), **sizes).write(tmp_path)  # type: ignore[arg-type]
    for run in root.glob("*-s*"):
        true = (0.25, 0.75) if run.name.startswith("short") else (0.2, 0.3, 0.5)
        credit = {f"credit/{kind}_{k}": x for kind in ("turn", "true") for k, x in enumerate(true, 1)}
        edit_rows(run / "metrics.jsonl", lambda row, credit=credit: row.update(credit if row["step"] else {}))
    drawing = FIGURES["credit"](load(root))
    assert drawing is not None
    curves = [tuple(line.get_ydata()) for line in drawing.figure.axes[0].lines][len(arms) :]
    assert curves == [pytest.approx(ys) for ys in ((25, 75), (20, 30, 50))]


def test_tasks_of_one_turn_have_neither(tmp_path: Path) -> None:
    sizes = {"steps": 2, "every": 2, "problems": 2, "test_problems": 2}
    root = Synthetic(arms=("grpo",), tasks=("arithmetic",), seeds=(1,), **sizes).write(tmp_path)  # type: ignore[arg-type]
    assert not horizons_table(load(root)).rows
    assert FIGURES["credit"](load(root)) is None


def test_a_sample_of_several_turns_says_who_wrote_what() -> None:
    turns = [{"by": "policy", "text": "?412"}, {"by": "environment", "text": "+7\n"}]
    assert completion_text({"text": "?412+7", "turns": turns}) == "policy: ?412\nenvironment: +7"
    assert completion_text({"text": "42"}) == "42"
