"""Reports of many runs: without torch, the same bytes again, and readable with hundreds of arms or seeds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.pages import drawing
from helpers.synthetic import Synthetic

import grpobench
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.text import describe_decidable, describe_head
from grpobench.analysis.statistics.permutation import sign_flip_p, sign_flip_ps
from grpobench.analysis.statistics.survival import log_rank
from grpobench.analysis.topics.numbers import MOST_DRAWN
from grpobench.runs import cli

REPORT = """
import sys
sys.path.insert(0, sys.argv[1])
from grpobench.runs import cli
from grpobench.analysis.report import figures as drawn
from grpobench.analysis.tools import processes
processes.usable_cores = lambda: 1  # another process takes longer to start than to draw
drawn.names_of = lambda _: ["final_accuracy"]
sys.exit(cli.main(["report", *sys.argv[2:]]))
"""


def test_copied_experiment_is_reported_without_torch_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"steps": 4, "every": 2, "problems": 4, "test_problems": 4}
    root = Synthetic(("grpo", "ppo"), ("arithmetic",), **small).write(tmp_path / "here")  # type: ignore[arg-type]
    copy = shutil.copytree(root, tmp_path / "there" / root.name)
    trap = tmp_path / "trap"
    (trap / "torch").mkdir(parents=True)
    (trap / "torch" / "__init__.py").write_text('raise AssertionError("torch was imported")\n')

    def pages() -> list[bytes]:
        return [(copy / "report" / name).read_bytes() for name in ("report.json", "index.html")]

    command = [sys.executable, "-c", REPORT, str(trap), str(copy), "--format", "json,html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    without = pages()
    monkeypatch.setattr("grpobench.runs.api.reporting.usable_cores", lambda: 1)
    with drawing("final_accuracy"):
        assert cli.main(["report", str(copy), "--format", "json,html"]) == 0
    assert pages() == without


def results_of(tmp_path: Path, arms: int, seeds: int) -> grpobench.Results:
    names = [f"arm{number:03}" for number in range(arms)]
    rng = np.random.default_rng(0)
    finals = {(arm, seed): 0.5 + 0.2 * rng.random() for arm in names for seed in range(seeds)}
    small = {"steps": 4, "every": 2, "problems": 2, "test_problems": 2, "samples": 1}
    made = Synthetic(
        names,
        ("sums",),
        range(seeds),
        accuracy=lambda arm, _, seed: finals[arm, seed],
        **small,  # type: ignore[arg-type]
    )
    return grpobench.load(made.write(tmp_path))


def test_many_arms_are_compared_with_the_first_and_figures_show_some(tmp_path: Path) -> None:
    results = results_of(tmp_path, arms=42, seeds=2)
    pairs = results.table("comparisons")
    assert len(pairs) == 41 and set(pairs["first"]) == {"arm000"} and set(pairs["pairs"]) == {41}
    drawing = FIGURES["final_accuracy"](results.facts.numbers)
    assert drawing is not None
    shown = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
    final = results.runs.groupby("arm")["counted"].mean().drop("arm000").sort_values(ascending=False)
    assert set(shown) == {"arm000", *final.index[:10], *final.index[-9:]} and len(shown) == MOST_DRAWN
    assert "The figure shows 20 of 42 arms: arm000, the 10 with the highest and the 9" in drawing.caption
    assert list(results.summary("equal_budgets").columns)[2:] == ["arm", "accuracy"]
    assert "Each of the 42 arms is compared with the first, arm000." in describe_decidable(results.facts)
    assert "arm039 and 2 more" in describe_head(results.facts)["arms"]


def test_of_many_seeds_the_range_is_told(tmp_path: Path) -> None:
    results = results_of(tmp_path, arms=2, seeds=12)
    cell = results.summary().loc[0, "each seed"]
    finals = 100 * results.runs.query("arm == 'arm000'")["counted"]
    assert cell == f"{finals.min():.1f} to {finals.max():.1f} (12 finished)"


def test_tests_of_many_pairs_share_patterns_and_match_single_tests() -> None:
    rng = np.random.default_rng(0)
    differences = [rng.normal(0.1, 0.2, size) for size in (3, 8, 17, 0, 8, 17, 16)]
    assert sign_flip_ps(differences) == [sign_flip_p(pair_differences) for pair_differences in differences]
    above = sign_flip_p(differences[2])  # 17 seeds, drawn: within four errors of all 131,072 patterns
    patterns = 1 - 2 * ((np.arange(2**17)[:, None] >> np.arange(17)) & 1)
    exact = float(np.mean(np.abs(patterns @ differences[2]) >= abs(differences[2].sum()) - 1e-9))
    assert abs(above - exact) < 4 * np.sqrt(exact * (1 - exact) / 100_000)
    runs = ([3.0, 5.0, 9.0], [True, True, False])
    assert log_rank(runs, ([9.0] * 3, [False] * 3)) == log_rank(runs, ([9.0] * 3, [False] * 3))
