"""Comparisons with one control arm: nothing else is judged, corrected or shown.

Locked here: p values of three seeds counted by hand; every set of contrasts is a family; the level holds over
all outcomes of a small symmetric distribution and in simulations; fewer seeds show equivalence; report,
report.json, kept table and `grpobench.compare` have the control's pairs alone; an unknown control is refused.
"""

from __future__ import annotations

import json
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers import levels
from helpers.edits import edit
from helpers.pages import drawing
from helpers.synthetic import Synthetic

import grpobench
from grpobench.analysis import kept, kept_tables, record
from grpobench.analysis.report.report import write_report
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.comparison import compare, pairs_of
from grpobench.analysis.statistics.maxima import _step_down, _table, families_of, max_t_ps

PAGE = (Path(__file__).parents[2] / "docs" / "comparisons.md").read_text(encoding="utf-8")


def against(scores: np.ndarray) -> dict[tuple[str, str], dict[int, float]]:
    """The pairs of the first arm; `scores` is (seeds, arms)."""
    return {
        ("A", "ABCDEFGH"[b]): dict(enumerate(map(float, scores[:, 0] - scores[:, b])))
        for b in range(1, scores.shape[1])
    }


def test_two_contrasts_of_three_seeds_by_hand() -> None:
    # z = |Σ d|/√(Σ d²); up to their negatives there are four patterns of signs.
    #   A − B = (2, 1, 2), √9:   5/3, 1/3, 1, 1/3     for +++, −++, +−+, ++−
    #   A − C = (1, −1, 2), √6:  .82, 0, 1.63, .82
    # Together: the largest are 1.67, .33, 1.63, .82, and one of four reaches 1.67. A − B alone: one of four.
    # A − C alone: three of four reach .82. So A − B has 1/4, and A − C the larger of 1/4 and 3/4.
    pairs = {("A", "B"): {0: 2.0, 1: 1.0, 2: 2.0}, ("A", "C"): {0: 1.0, 1: -1.0, 2: 2.0}}
    assert max_t_ps(pairs) == ([0.25, 0.75], [0.25, 0.75])
    # With A − C = (1, −1, 1), √3: .58, .58, 1.73, .58. Together 1.67, .58, 1.73, .58, and two of four reach
    # 1.67, so that A − B has 2/4 now. A − C alone: all four reach .58.
    pairs["A", "C"] = {0: 1.0, 1: -1.0, 2: 1.0}
    assert max_t_ps(pairs) == ([0.25, 1.0], [0.5, 1.0])
    # With A − C = (3, 3, 3), √27: 1.73, .58, .58, .58. Together 1.73, .58, 1, .58, and one of four reaches
    # 1.73. Alone each has one of four.
    pairs["A", "C"] = {0: 3.0, 1: 3.0, 2: 3.0}
    assert max_t_ps(pairs) == ([0.25, 0.25], [0.25, 0.25])


def test_the_pairs_of_a_control_are_it_with_each_other_arm() -> None:
    arms = ["grpo", "dapo", "mine", "rloo"]
    assert pairs_of(arms, "mine") == [("mine", "grpo"), ("mine", "dapo"), ("mine", "rloo")]
    assert pairs_of(arms, "ppo") == [] and len(pairs_of(arms)) == 6
    assert len(pairs_of([str(arm) for arm in range(60)], "7")) == 59


def test_every_set_of_contrasts_is_a_family_so_that_step_down_is_exact() -> None:
    assert len(families_of(pairs_of("ABCDE", "A"))) == 2**4 - 1
    rng = np.random.default_rng(2)
    for arms in (3, 4, 6):
        pairs = against(rng.integers(0, 6, (7, arms)) - 1.5 * np.arange(arms))
        down = _step_down(_table([*pairs.values()]), 0, 0)
        assert max_t_ps(pairs)[1] == pytest.approx(down, abs=1e-12)


@pytest.mark.parametrize("null", [(0, 0, 0), (0, 0, 1.7)])
def test_the_level_holds_over_every_outcome_of_a_symmetric_distribution(null: tuple[float, ...]) -> None:
    drawn = [np.array((1.0, 0.8, -0.3)), np.array((0.2, -0.5, 1.1))]
    signed = [*drawn, *(-errors for errors in drawn)]  # with equal chances: 4^5 outcomes of five seeds
    equal = [pair_index for pair_index, mean in enumerate(null[1:]) if mean == null[0]]
    smallest = []
    for chosen in product(range(4), repeat=5):
        adjusted = max_t_ps(against(np.array([signed[i] for i in chosen]) + np.array(null)))[1]
        smallest.append(min(adjusted[pair_index] for pair_index in equal))
    smallest_p = np.array(smallest)
    for k in range(1, 17):
        assert np.mean(smallest_p <= 2 * k / 32 + 1e-12) <= 2 * k / 32 + 1e-12
    assert np.mean(smallest_p <= 4 / 32) > 0  # and something is rejected


@pytest.mark.parametrize(("errors", "null"), zip(levels.SYMMETRIC, levels.NULLS, strict=True))
def test_errors_of_a_task_stay_within_five_percent(errors: str, null: str) -> None:
    many = 300
    error_rate, _ = levels.errors(levels.ERRORS[errors], levels.NULLS[null], 8, many, control=True)
    assert error_rate <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / many)  # three binomial errors


@pytest.mark.slow
def test_tables_of_the_page_are_those_of_the_simulation() -> None:
    for line in (*levels.level_of_control_lines(), *levels.power_of_control_lines()):
        assert line in PAGE


def test_the_table_of_power_agrees_with_fewer_repetitions() -> None:
    (row,) = [line for line in PAGE.splitlines() if re.match(r"\| 4 \| \d+ / \d+ / 0 ", line)]
    shown = [int(value) / 100 for value in re.findall(r"\d+", row)[1:7]]
    shares = [*levels.power_of_control(4, 6, 2.0, 300), *levels.power_of_control(4, 8, 1.5, 300)]
    assert shares == pytest.approx(shown, abs=3 * np.sqrt(0.25 / 300) + 0.005)


def test_fewer_pairs_show_equivalence_with_fewer_seeds() -> None:
    values = {arm: {s: 0.5 + 0.001 * ((s + i) % 3) for s in range(6)} for i, arm in enumerate("ABCD")}
    every, with_control = compare("t", values), compare("t", values, control="B")
    assert {pair.verdict for pair in every} == {"unresolved"}  # 6/2^6 = .094
    assert {pair.verdict for pair in with_control} == {"equivalent"} and {
        pair.pairs for pair in with_control
    } == {3}  # .047
    assert [(pair.first, pair.second) for pair in with_control] == [("B", "A"), ("B", "C"), ("B", "D")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four arms, eight seeds; `mine` is the control and better than all."""
    gains = {"grpo": 0.3, "dapo": 0.32, "mine": 0.45, "ppo": 0.2}
    shape = {"steps": 6, "every": 3, "problems": 8, "test_problems": 8, "spread": 0.01}
    made = Synthetic(arms=tuple(gains), gain=gains, tasks=("arithmetic",), seeds=range(1, 9), **shape)  # type: ignore[arg-type]
    folder = made.write(tmp_path_factory.mktemp("results"))
    edit(folder / "experiment.json", lambda described: described.update(control="mine"))
    return folder


def test_the_report_judges_pairs_with_the_control_alone(root: Path) -> None:
    with drawing("differences"):
        page = write_report(root, ["html", "json", "csv"]).read_text()
    report = json.loads((root / "report" / "report.json").read_text())
    assert report["control"] == "mine"
    assert [(p["first"], p["second"], p["pairs"]) for p in report["comparisons"]] == [
        ("mine", other, 3) for other in ("grpo", "dapo", "ppo")
    ]
    assert [p["text"] for p in report["comparisons"]] == ["mine > grpo", "mine > dapo", "mine > ppo"]
    assert "Each other arm is compared with the control, mine, and with nothing else." in page
    assert "Each arm is compared with mine in pairs of equal seeds" in page
    assert "grpo − dapo" not in page and "dapo − grpo" not in page  # neither a verdict nor anything else
    assert "Only pairs with the control mine are compared and corrected." in page


def test_a_kept_table_has_the_control_and_its_pairs(root: Path, tmp_path: Path) -> None:
    content = kept.keep(load(root))
    (tmp_path / "kept.json").write_text(record.as_text(content))
    table = kept.read(tmp_path / "kept.json")
    assert table.control == "mine"
    rows = [line for line in kept_tables.render(table, "comparisons", {}) if line.startswith("| arithmetic")]
    assert [row.split("|")[2].strip() for row in rows] == ["mine − grpo", "mine − dapo", "mine − ppo"]


def test_python_compares_with_the_control_in_both_directions_and_nothing_else(root: Path) -> None:
    results = grpobench.load(root)
    (pair,) = grpobench.compare(results, "grpo", "mine")
    assert (pair.text, pair.verdict, pair.pairs) == ("mine > grpo", "worse", 3)
    assert len(grpobench.compare(results, "grpo", "base")) == 1
    with pytest.raises(ValueError, match=r"grpo and dapo: .* has the control 'mine', and only pairs with it"):
        grpobench.compare(results, "grpo", "dapo")


def test_a_control_without_a_run_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    edit(tmp_path / "copy" / "experiment.json", lambda described: described.update(control="mnie"))
    with pytest.raises(LogError, match="the control 'mnie' is none of the arms grpo, dapo, mine, ppo"):
        load(tmp_path / "copy")
