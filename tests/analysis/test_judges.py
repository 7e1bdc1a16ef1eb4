"""A report shows the grades that a language model gave, beside the verifier's, and what they are worth."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit_rows
from helpers.pages import words
from helpers.synthetic import Synthetic

from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.judges import judged_runs, judges_table

NOISE = (-0.01, 0.0, 0.01)


def judge(row: dict[str, Any], arm: str, rise: float) -> None:
    if row["step"] in (0, 4):
        row["eval/test/greedy/judge"] = 0.5 + rise * (row["step"] > 0)
        row["eval/test/greedy/judge_unreadable"] = 0.25
        if arm == "a":
            row["eval/test/greedy/judge_agreement"] = 0.8 if row["step"] else 0.1
            row["eval/test/greedy/judge_cost"] = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of two arms whose verified accuracy rises by 30 points; the judge's grade of `a` rises by
    20, that of `b` falls by 10, each with `NOISE` over seeds. `b` was judged without repeats and prices."""
    made = Synthetic(
        arms=("a", "b"), tasks=("sums",), seeds=range(3), steps=4, every=2, gain={"a": 0.3, "b": 0.3}
    )
    root = made.write(tmp_path_factory.mktemp("judged"))
    for log in root.glob("*/metrics.jsonl"):
        arm, _, seed = log.parent.name.split("-")
        rise = {"a": 0.2, "b": -0.1}[arm] + NOISE[int(seed[1:])]
        edit_rows(log, partial(judge, arm=arm, rise=rise))
    return root


def test_grades_stand_beside_the_verifiers_accuracy(folder: Path) -> None:
    """By hand: the noise has SD .01, half the interval is t(2) 4.303 · .01/√3 = .0248."""
    table = judges_table(load(folder))
    rows = {row[1]: row for row in table.rows}
    assert rows["a"][:5] == ["sums", "a", "greedy", "50.0 → 70.0", "+20.0 (+17.5 to +22.5)"]
    assert rows["b"][3:5] == ["50.0 → 40.0", "−10.0 (−12.5 to −7.5)"]
    assert rows["a"][6:] == ["0.80", "25.0", "1.50"] and rows["b"][6:] == ["–", "25.0", "–"]
    frame = judged_runs(load(folder))
    gained = 100 * (frame["correct_after"] - frame["correct_before"]).groupby(frame["arm"]).mean()
    assert float(rows["a"][5]) == pytest.approx(gained["a"], abs=0.05)


def test_the_report_has_a_section_only_where_a_judge_graded(folder: Path, tmp_path: Path) -> None:
    assert "Grades of a language model" in words(folder)
    plain = Synthetic(arms=("a",), tasks=("sums",), seeds=range(2), steps=4, every=2, gain={"a": 0.3})
    root = plain.write(tmp_path)
    assert not judges_table(load(root)).rows
    assert "Grades of a language model" not in words(root)
