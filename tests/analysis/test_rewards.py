"""The report's section on rewards: components beside the verdict, from logs with numbers made up by hand."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit_rows
from helpers.synthetic import Synthetic

from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.facts import gather
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.training import reward_components, reward_parts

ARMS = ("verifier", "proxy")
STEPS = 20


def written(folder: Path, parts: bool = True) -> Path:
    """Two arms, two seeds. The proxy arm's reward climbs from .1 by .02 an update while its verdict falls
    from .5 by .02; the verifier arm's verdict climbs."""
    few = {"problems": 4, "test_problems": 8}
    made = Synthetic(ARMS, ("arithmetic",), (1, 2), steps=STEPS, gain=dict.fromkeys(ARMS, 0.1), **few)
    root = made.write(folder)
    for run_folder in root.glob("*-s*"):
        hacked = run_folder.name.startswith("proxy")
        edit_rows(run_folder / "metrics.jsonl", partial(pay, hacked=hacked, parts=parts))
    return root


def pay(row: dict[str, Any], hacked: bool, parts: bool) -> None:
    if step := row["step"]:
        verdict, proxy = 0.5 + (-0.02 if hacked else 0.02) * step, 0.1 + 0.02 * step
        row |= {"score/correct": verdict, "reward/mean": proxy if hacked else verdict}
        row |= {"reward/correct": verdict, "reward/failed": 0.0}
        row |= {"reward/proxy": proxy} if parts else {}
        row |= {"reward/model_auc/correct": 0.5, "reward/flipped_share": 0.1}  # no parts


def test_parts_of_the_reward_at_both_ends_of_training(tmp_path: Path) -> None:
    experiment = load(written(tmp_path))
    assert reward_components(experiment) == ["proxy"]
    frame = reward_parts(experiment).set_index(["arm", "seed", "metric"])
    # update 1, and the mean over updates 19 and 20, a tenth of 20
    proxy = frame.loc[("proxy", 1, "reward/proxy")]
    assert (proxy["start"], proxy["end"]) == pytest.approx((0.12, 0.49))
    verdict = frame.loc[("proxy", 2, "score/correct")]
    assert (verdict["start"], verdict["end"]) == pytest.approx((0.48, 0.11))


def test_report_shows_where_reward_and_verdict_parted(tmp_path: Path) -> None:
    root = written(tmp_path)
    facts = gather(load(root))
    table = facts.tables["rewards"]
    cells = {row[1]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert cells["proxy"]["proxy"] == "0.12 → 0.49" and cells["proxy"]["verdict"] == "0.48 → 0.11"
    assert cells["proxy"]["parted"] == "2 of 2" and cells["verifier"]["parted"] == "0 of 2"
    drawing = FIGURES["components"](facts.numbers)
    assert drawing is not None and drawing.title.startswith("What was rewarded, and the verifier")
    assert not math.isnan(table.frame["end"].sum())


def test_arms_that_only_the_verifier_pays_have_no_such_section(tmp_path: Path) -> None:
    facts = gather(load(written(tmp_path, parts=False)))
    assert "rewards" not in facts.tables
    assert not FIGURES["components"].serves(facts.numbers)
