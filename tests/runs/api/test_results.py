"""Results in Python: every number is the report's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.pages import drawing
from helpers.synthetic import Synthetic

import grpobench
from grpobench.analysis.report.catalog import FIGURES as ALL
from grpobench.analysis.report.catalog import names_of
from grpobench.analysis.statistics.comparison import compare
from grpobench.runs import cli
from grpobench.runs.api.results import image

SMALL = {"steps": 6, "every": 3, "problems": 4, "test_problems": 8}
FIGURES = ("final_accuracy", "reward", "bias")
STATES = {("gspo", "nanobias", 2): ("diverged", 4), ("ppo", "arithmetic", 1): ("crashed", 2)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 arms × 2 tasks × 3 seeds, one diverged and one crashed, with the report that the command writes, but
    for most of its figures: each takes a second."""
    shape = {
        "arms": ("grpo", "gspo", "ppo"),
        "tasks": ("arithmetic", "nanobias"),
        "drop": ("policy/", "trained/", "time/", "grad_norm/"),
    }
    made = Synthetic(**SMALL, **shape, states=STATES)  # type: ignore[arg-type]
    folder = made.write(tmp_path_factory.mktemp("results"))
    with drawing(*FIGURES):
        assert cli.main(["report", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def results(root: Path) -> grpobench.Results:
    return grpobench.load(root)


def same(frame: pd.DataFrame, path: Path) -> None:
    """A frame as it stands in a csv file of the report."""
    written = pd.read_csv(path, float_precision="round_trip")
    assert list(frame.columns) == list(written.columns)
    for name in frame.columns:
        if pd.api.types.is_numeric_dtype(frame[name]):
            np.testing.assert_array_equal(frame[name], written[name])


def test_tables_are_those_of_the_report(results: grpobench.Results, root: Path) -> None:
    files = {path.stem: path for path in (root / "report" / "tables").glob("*.csv")}
    assert set(results.tables) == set(files) and len(files) > 8
    for name, path in files.items():
        same(results.table(name), path)
    with pytest.raises(ValueError, match="no table 'acuracy' in these results; did you mean 'accuracy'"):
        results.table("acuracy")


def test_summary_is_what_the_page_prints(results: grpobench.Results) -> None:
    printed = results.facts.tables["accuracy"]
    assert results.summary().to_numpy().tolist() == [list(row) for row in printed.rows]
    assert results.summary("comparisons")["verdict"].tolist() == [
        pair.text for pair in results.facts.numbers.compared
    ]
    assert repr(results).startswith("Results synthetic: 18 runs, 16 finished, 1 ")


def test_runs_hold_accuracies_states_and_settings(results: grpobench.Results, root: Path) -> None:
    report = json.loads((root / "report" / "report.json").read_text())
    runs = results.runs
    assert len(runs) == 18 and runs["name"].is_unique
    assert runs["name"].tolist() == [row["name"] for row in report["runs"]]
    for name in ("base", "final", "counted", "validation_best"):
        expected = [np.nan if row[name] is None else row[name] for row in report["runs"]]
        np.testing.assert_array_equal(runs[name], expected)
    lost = runs[runs["state"] != "finished"].set_index("arm")
    assert lost["state"].to_dict() == {"gspo": "diverged", "ppo": "crashed"}
    assert lost.loc["gspo", "counted"] == 0 and np.isnan(lost.loc["ppo", "counted"])
    assert (runs["train.steps"] == 6).all()
    assert set(results.settings.index) >= {"train.steps"} and list(results.settings.columns)[:3] == list(
        results.arms
    )


def test_metrics_have_a_row_per_run_and_step(results: grpobench.Results, root: Path) -> None:
    metrics = results.metrics
    assert not metrics.duplicated(["arm", "task", "seed", "step"]).any()
    run = metrics.query("arm == 'ppo' and task == 'nanobias' and seed == 3")
    lines = (root / "ppo-nanobias-s3" / "metrics.jsonl").read_text().splitlines()
    for logged, (_, row) in zip(map(json.loads, lines), run.iterrows(), strict=True):
        assert all(row[name] == value for name, value in logged.items() if value is not None)
    assert len(results.evaluations) == sum(
        len(path.read_text().splitlines()) for path in root.glob("*/eval.jsonl")
    )


def test_comparisons_are_those_of_the_report(results: grpobench.Results, root: Path) -> None:
    row_by_pair = {
        (row["task"], row["first"], row["second"]): row
        for row in json.loads((root / "report" / "report.json").read_text())["comparisons"]
    }
    comparisons = grpobench.compare(results, "grpo", "ppo")
    assert [pair.task for pair in comparisons] == list(results.tasks) and len(comparisons) == 2
    for pair in comparisons:
        row = row_by_pair[pair.task, "grpo", "ppo"]
        for name in ("effect", "low", "high", "p", "p_adjusted", "verdict", "needs", "text", "improvement"):
            assert getattr(pair, name) == row[name]
        assert list(pair.seeds) == row["seeds"]
    subset = grpobench.compare(results, "grpo", "ppo", task="arithmetic")
    assert list(subset) == [comparisons["arithmetic"]] and len(subset.frame) == 1
    assert subset["arithmetic"].text in subset._repr_html_() and subset["arithmetic"].text in repr(subset)


def test_a_comparison_the_other_way_round_has_the_other_sign(results: grpobench.Results) -> None:
    comparisons = grpobench.compare(results, "grpo", "ppo")
    for pair in grpobench.compare(results, "ppo", "grpo"):
        other = comparisons[pair.task]
        assert (pair.effect, pair.low, pair.high) == (-other.effect, -other.high, -other.low)
        assert pair.p == other.p and pair.p_adjusted == other.p_adjusted and pair.text == other.text
        assert pair.improvement + other.improvement == 1
        assert pair.turned() == other


def test_a_verdict_stays_with_its_arm_when_the_comparison_is_turned() -> None:
    values = {arm: {seed: level + seed / 100 for seed in range(6)} for arm, level in (("a", 0.5), ("b", 0.3))}
    (pair,) = compare("sums", values)
    turned = pair.turned()
    assert (pair.verdict, turned.verdict, turned.first) == ("better", "worse", "b")
    assert pair.text == turned.text == "a > b"
    assert turned == compare("sums", dict(reversed(values.items())))[0]


def test_comparisons_of_another_decoding_are_of_its_accuracies(results: grpobench.Results) -> None:
    table = results.table("accuracy_sampled").set_index(["task", "arm"])
    (pair,) = grpobench.compare(results, "grpo", "ppo", task="nanobias", mode="sampled")
    means = [table.loc[("nanobias", arm), "final"] for arm in ("grpo", "ppo")]
    assert pair.effect == pytest.approx(means[0] - means[1], abs=1e-12)  # the order of sums differs
    with pytest.raises(ValueError, match="no mode 'greedyy' in these results; did you mean 'greedy'"):
        grpobench.compare(results, "grpo", "ppo", mode="greedyy")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("grpo", "pop"), "no arm 'pop' in these results; did you mean 'ppo'"),
        (("grpo", "grpo"), "cannot be compared with itself"),
    ],
)
def test_what_cannot_be_compared_is_told(
    results: grpobench.Results, words: tuple[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        grpobench.compare(results, *words)


def test_the_report_has_the_bytes_of_the_command(
    results: grpobench.Results, root: Path, tmp_path: Path
) -> None:
    with drawing(*FIGURES):
        index = results.report(tmp_path / "mine")
    made = {path.relative_to(index.parent): path.read_bytes() for path in index.parent.rglob("*.*")}
    command_bytes = {
        path.relative_to(root / "report"): path.read_bytes() for path in (root / "report").rglob("*.*")
    }
    assert made.keys() == command_bytes.keys() and len(made) > 30
    # the page links to the runs' files, which lie elsewhere as seen from there
    there = Path(os.path.relpath(root, index.parent)).as_posix().encode()
    made[Path("index.html")] = made[Path("index.html")].replace(b'href="' + there + b"/", b'href="../')
    assert [name for name in made if made[name] != command_bytes[name]] == []
    assert (
        results.report(tmp_path / "mine", ["json"]) == tmp_path / "mine"
    )  # an earlier report may be replaced
    (tmp_path / "own" / "figures").mkdir(parents=True)
    with pytest.raises(ValueError, match="contains files that are not a report"):
        results.report(tmp_path / "own")


def test_a_single_figure_has_the_bytes_of_the_report(
    results: grpobench.Results, root: Path, tmp_path: Path
) -> None:
    numbers = results.facts.numbers
    assert list(results.figures) == [name for name in names_of(numbers) if ALL[name](numbers)]
    drawn = {path.stem for path in (root / "report" / "figures").glob("*.pdf")}
    assert {*FIGURES} <= drawn <= {*results.figures}
    for suffix in ("pdf", "svg"):
        results.figure("final_accuracy", tmp_path / f"one.{suffix}")
        report_figure = root / "report" / "figures" / f"final_accuracy.{suffix}"
        assert (tmp_path / f"one.{suffix}").read_bytes() == report_figure.read_bytes()
    figure = results.figure("final_accuracy", tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert figure.get_axes()[0].get_title().startswith("arithmetic\nbefore training")
    with pytest.raises(ValueError, match="a figure is saved as"):
        results.figure("final_accuracy", tmp_path / "one.txt")
    with pytest.raises(ValueError, match="no figure 'acuracy' in these results"):
        results.figure("acuracy")


def test_a_notebook_shows_a_figure_without_pyplot(results: grpobench.Results) -> None:
    assert image(results.figure("final_accuracy")).startswith(b"\x89PNG")
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    bundle, _ = shell.display_formatter.format(results.figure("final_accuracy"))
    assert "image/png" in bundle
