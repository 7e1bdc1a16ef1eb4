"""Locks: a task's caveat stands under every table with its numbers; later evaluations of bias probes get a
table; bias that only likelihoods tell is read beside the mode of the headline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.synthetic import Synthetic

from grpobench.analysis.figures.style import TEXT
from grpobench.analysis.report.facts import gather
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.bias import bias_curves, bias_metrics, draw_bias_updates

CAVEAT = "Numbers of this task are made up."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two arms and two seeds on nanobias, whose runs carry a caveat."""
    root = Synthetic(arms=("grpo", "ppo"), tasks=("nanobias",), seeds=(1, 2), steps=6, every=2).write(
        tmp_path
    )
    for path in root.glob("*/provenance.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"caveat": CAVEAT}))
    return root


def rewrite(root: Path, old: str, new: str) -> None:
    for path in root.glob("*/metrics.jsonl"):
        path.write_text(path.read_text().replace(old, new))


def evaluate(folder: Path, subject: str, policies: dict[str, dict[str, float]], caveat: str) -> None:
    """A record as `grpobench eval` writes it, of a probe with one row."""
    (folder / "evals").mkdir(parents=True)
    content = {
        "subject": subject,
        "through": "grpobench",
        "settings": {"task": "pairs", "split": "test", "samples": 1, "temperature": 1.0},
        "policies": {name: {"numbers": numbers, "step": 0} for name, numbers in policies.items()},
        "rows": 1,
        "caveat": caveat,
    }
    row = {
        "step": 0,
        "split": "test",
        "mode": "likelihood",
        "policy": next(iter(policies)),
        "problem": "p",
        "sample": 0,
        "scores": {"correct": 1.0},
        "answer": "A",
        "outcome": "graded",
        "length": None,
        "stopped": None,
        "traits": {},
    }
    (folder / "evals" / "pairs-test-0a-grpobench.json").write_text(json.dumps(content))
    (folder / "evals" / "pairs-test-0a-grpobench.jsonl").write_text(json.dumps(row) + "\n")


def test_task_caveat_stands_under_bias_table_and_not_in_provenance(folder: Path) -> None:
    facts = gather(load(folder))
    assert facts.tables["bias"].note.endswith(f"Caveat (nanobias): {CAVEAT}")
    assert "caveat" not in facts.provenance
    assert "probes" not in facts.tables


def test_later_evaluations_of_a_probe_are_a_table_with_its_caveat(folder: Path) -> None:
    for seed, after in ((1, 61.0), (2, 63.0)):
        numbers = {
            "base": {"eval/test/likelihood/crows_score": 55.0, "eval/test/likelihood/correct": 0.45},
            "final": {
                "eval/test/likelihood/crows_score": after,
                "eval/test/likelihood/crows_score/age": 70.0,
            },
        }
        evaluate(folder / f"grpo-nanobias-s{seed}", f"grpo-nanobias-s{seed}", numbers, "Pairs are noisy.")
    evaluate(
        folder / "tiny", "tiny", {"model": {"eval/test/likelihood/crows_score": 50.0}}, "Pairs are noisy."
    )
    table = gather(load(folder)).tables["probes"]
    how = "test, likelihood, grpobench"
    assert table.rows == [
        ["pairs (trained on nanobias)", how, "grpo", "crows_score", "2", "55.00 → 62.00"],
        ["pairs", how, "tiny", "crows_score", "1", "50.00"],
    ]
    assert "Caveat (pairs): Pairs are noisy." in table.note and CAVEAT not in table.note
    ages = table.frame[table.frame["category"] == "age"]
    assert list(ages["value"]) == [70.0, 70.0]


def test_runs_that_only_compared_likelihoods_have_a_headline(folder: Path) -> None:
    for mode in ("sampled", "greedy"):
        rewrite(folder, f"/{mode}/", "/likelihood/")
    experiment = load(folder)
    assert headline_of(experiment, "nanobias").mode == "likelihood"
    assert len(bias_metrics(experiment)) > 0


def test_lean_is_read_beside_another_mode_and_drawn_over_updates(folder: Path) -> None:
    rewrite(folder, "/greedy/bias_ambiguous/", "/likelihood/lean_ambiguous/")
    experiment = load(folder)
    frame = bias_metrics(experiment)
    by_metric = {metric: set(metric_rows["category"]) for metric, metric_rows in frame.groupby("metric")}
    assert "all" not in by_metric["lean_ambiguous"] and by_metric["bias_ambiguous"] == {"all"}
    rewrite(folder, "/greedy/accuracy_ambiguous/", "/greedy/accuracy_ambiguous/own ")
    first = next(iter(sorted(by_metric["accuracy_ambiguous"] - {"all"})))
    rewrite(folder, f"accuracy_ambiguous/own {first}", f"accuracy_ambiguous/{first} (own)")
    curves = bias_curves(load(folder))
    assert {"accuracy, ambiguous\n(share)", "accuracy, ambiguous, own category\n(share)"} <= set(curves)
    assert draw_bias_updates(load(folder), TEXT) is not None
