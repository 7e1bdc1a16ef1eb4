"""Evaluations made after the runs, as reports read them: curves, intervals, agreement, damage named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import drawing
from helpers.synthetic import Synthetic
from scipy import stats

from grpobench.analysis.figures.style import TEXT
from grpobench.analysis.report.report import write_report
from grpobench.analysis.runfolder.evaluations import read_later
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.intervals import item_interval, wilson
from grpobench.analysis.topics.accuracy import answers_at_ends, finals
from grpobench.analysis.topics.evaluations import later_scores, list_agreements
from grpobench.analysis.topics.sampling import draw_sampling, sample_curves

SMALL: dict[str, Any] = {"steps": 2, "every": 2, "problems": 2, "test_problems": 2}
Answers = Mapping[str, Sequence[str | None]]
"""Sampled answers of each problem; "5" is right."""


def record(
    folder: Path,
    policies: Mapping[str, Answers],
    *,
    through: str = "grpobench",
    greedy: Mapping[str, str] | None = None,
    subject: str = "",
    clusters: Mapping[str, str] | None = None,
) -> Path:
    """Write a record as `grpobench eval` does, and return its JSON file."""
    rows = []
    for policy, problems in policies.items():
        samples_of_policy = [
            ("sampled", p, i, a) for p, answers in problems.items() for i, a in enumerate(answers)
        ]
        samples_of_policy += [("greedy", p, 0, a) for p, a in (greedy or {}).items()]
        for mode, problem, sample, answer in samples_of_policy:
            rows.append(
                {
                    "step": 0 if policy == "base" else 2,
                    "policy": policy,
                    "split": "test",
                    "mode": mode,
                    "problem": problem,
                    "sample": sample,
                    "scores": {"correct": float(answer == "5")},
                    "answer": answer,
                    "outcome": "graded",
                    "completion": f"it is {answer}",
                    "traits": {"cluster": clusters[problem]} if clusters else {},
                }
            )
    samples = max(len(answers) for problems in policies.values() for answers in problems.values())
    content = {
        "settings": {"task": "arithmetic", "split": "test", "samples": samples, "temperature": 1.0},
        "policies": {name: {"step": 0 if name == "base" else 2, "numbers": {}} for name in policies},
        "through": through,
        "subject": subject or folder.name,
        "rows": len(rows),
    }
    path = folder / "evals" / f"arithmetic-test-1234abcd-{through}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


BASE: Answers = {"p": ["5", "7", "7", "5"], "q": ["7", "7", "7", None]}
FINAL: Answers = {"p": ["5", "5", "5", "7"], "q": ["7", "5", "5", None]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two seeds of one arm on two tasks; both runs of `arithmetic` were evaluated, and one of the other."""
    root = Synthetic(**SMALL, arms=("grpo",), tasks=("arithmetic", "other"), seeds=(1, 2)).write(tmp_path)
    for name in ("grpo-arithmetic-s1", "grpo-arithmetic-s2", "grpo-other-s1"):
        record(root / name, {"base": BASE, "final": FINAL}, greedy={"p": "5", "q": "7"})
    record(root / "nano", {"model": BASE}, subject="nano")
    return root


def curves(root: Path) -> tuple[Experiment, Any]:
    experiment = load(root)
    return experiment, sample_curves(answers_at_ends(experiment, "sampled"), read_later(experiment))


def test_curves_match_their_rows_and_stand_where_runs_were_trained(root: Path) -> None:
    _, frame = curves(root)
    here, elsewhere = (
        "arithmetic\ntest, 4 samples, T = 1",
        "arithmetic (trained on other)\ntest, 4 samples, T = 1",
    )
    assert list(dict.fromkeys(frame["place"])) == [here, elsewhere]
    final = frame[(frame["place"] == here) & (frame["policy"] == "final")]
    assert set(final["seed"]) == {1, 2} and set(final["arm"]) == {"grpo"}
    first_seed = final[final["seed"] == 1].set_index(["kind", "k"])["value"]
    # p has 3 of 4 right, q 2 of 4: pass@2 = mean(1, 1 − 1/6); votes of 4: p 5, q 5; of 2: (1, 1), (0, 1)
    assert first_seed["pass", 1] == pytest.approx((0.75 + 0.5) / 2)
    assert first_seed["pass", 2] == pytest.approx((1 + 5 / 6) / 2)
    assert ("pass", 4) not in first_seed.index
    assert first_seed["maj", 4] == 1.0 and first_seed["maj", 2] == pytest.approx((1 + 0.5) / 2)
    models = frame[frame["policy"] == "model"]
    assert set(models["place"]) == {here, elsewhere} and set(models["arm"]) == {"nano"}


def test_bands_are_the_t_interval_over_seeds(root: Path) -> None:
    experiment, frame = curves(root)
    second = (frame["seed"] == 2) & (frame["policy"] == "final")
    frame.loc[second, "value"] -= 0.1
    drawing = draw_sampling(experiment, frame, TEXT)
    assert drawing is not None
    votes = [axes for axes in drawing.figure.axes if axes.get_xlabel() == "samples k"]
    assert len(votes[0].collections) == 2  # before training and after; the model has no seeds
    assert len(votes[0].lines) == 3  # their means, and the model
    axes = drawing.figure.axes[0]
    after = frame[(frame["place"] == axes.get_title()) & (frame["policy"] == "final")]
    values = after[(after["kind"] == "pass") & (after["k"] == 1)]["value"].to_numpy()
    low, high = stats.t.interval(0.95, 1, values.mean(), stats.sem(values))
    (band,) = axes.collections[1].get_paths()
    heights = sorted({float(y) for x, y in band.vertices if x == 1})
    assert [heights[0], heights[-1]] == pytest.approx([max(low, 0), min(high, 1)])
    assert draw_sampling(experiment, frame.iloc[:0], TEXT) is None


def test_the_report_tells_of_later_evaluations(root: Path) -> None:
    with drawing("final_accuracy", "sampling"):
        page = write_report(root, ["html", "json", "csv"]).read_text()
    assert "Later evaluations" in page and 'id="figure-sampling"' in page
    tables = json.loads((root / "report" / "report.json").read_text())["tables"]
    votes = [row for row in tables["majority"] if row["policy"] == "final" and row["k"] == 4]
    assert [(row["seed"], row["value"]) for row in votes if row["place"].startswith("arithmetic\n")] == [
        (1, 1.0),
        (2, 1.0),
    ]
    assert {row["arm"] for row in tables["evaluations"]} == {"grpo", "nano"}
    assert "agreement" not in tables


def test_runs_stay_as_they_were_with_evaluations_beside_them(root: Path, tmp_path: Path) -> None:
    bare = Synthetic(**SMALL, arms=("grpo",), tasks=("arithmetic", "other"), seeds=(1, 2), name="bare").write(
        tmp_path
    )
    assert finals(load(root)).equals(finals(load(bare)))


def test_two_ways_are_compared_item_by_item(root: Path) -> None:
    run_folder = root / "grpo-arithmetic-s1"
    record(run_folder, {"base": BASE, "final": FINAL}, greedy={"p": "7", "q": "7"}, through="lm-eval")
    agreements = list_agreements(read_later(load(root)))
    final = agreements[agreements["policy"] == "final"].iloc[0]
    assert (final["mode"], final["items"], final["differing"]) == ("greedy", 2, 1)
    assert (final["grpobench"], final["lm_eval"], final["same_text"]) == (0.5, 0.0, 1)
    assert set(agreements["mode"]) == {"greedy"}  # sampled answers come from other random numbers


def test_items_of_a_template_are_no_independent_items(tmp_path: Path) -> None:
    root = Synthetic(**SMALL, arms=("grpo",), tasks=("arithmetic",), seeds=(1,)).write(tmp_path)
    problems = {f"p{i}": ["5" if i < 6 else "7"] for i in range(8)}
    clusters = {f"p{i}": f"c{i // 2}" for i in range(8)}
    record(root / "grpo-arithmetic-s1", {"final": problems}, clusters=clusters)
    row = later_scores(read_later(load(root))).iloc[0]
    values = [1.0] * 6 + [0.0] * 2
    expected, kind = item_interval(values, [clusters[problem] for problem in problems])
    assert row["interval"] == kind == "clustered"
    assert (row["value"], row["low"], row["high"]) == (0.75, expected.low, expected.high)
    assert row["low"] < wilson(6, 8).low


def test_damage_is_named_with_the_remedy(root: Path) -> None:
    path = root / "grpo-arithmetic-s1" / "evals" / "arithmetic-test-1234abcd-grpobench.jsonl"
    full_text = path.read_text()
    path.write_text(full_text[:-30])
    with pytest.raises(LogError, match=r"counts on 20; evaluate again"):
        read_later(load(root))
    path.write_text(full_text)
    content = json.loads(path.with_suffix(".json").read_text())
    del content["through"]
    path.with_suffix(".json").write_text(json.dumps(content))
    with pytest.raises(LogError, match="lacks 'through'"):
        read_later(load(root))
    path.with_suffix(".json").unlink()  # rows that were written without their record
    assert len(read_later(load(root))) == 3
