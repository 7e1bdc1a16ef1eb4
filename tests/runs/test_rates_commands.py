"""`--rates` of `run`, `compare` and `finding run`, and `merge` of folders with and without rates, as a user
types them. The runs of `fine1` at its own rate end 10 points above all others."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import stand_ins
from helpers.shell import run_cli

from grpobench.analysis.findings.record import read_kept
from grpobench.analysis.runfolder.interim import read_plan
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.numbers import Numbers
from grpobench.runs.experiment.experiment import run_experiment

ARMS = """
[[arm]]
algorithm = "plain"
name = "fine1"
[[arm]]
algorithm = "plain"
name = "fine2"
"""
RECIPE = 'name = "m"\ntasks = ["sums"]\nseeds = [0, 1, 2, 3, 4, 5, 6]\ntrain = { steps = 1 }\n' + ARMS
FINDING = """
claim = "fine1 is better than fine2"
source = "a test"
[[test]]
name = "fine1 ends higher"
outcome = "accuracy"
contrast = { "fine1*" = 1, fine2 = -1 }
expect = "higher"
matters = 0.02
[nano]
seeds = [0, 1, 2, 3, 4, 5]
tasks = ["sums"]
train = { steps = 1 }
""" + ARMS.replace("[[arm]]", "[[nano.arm]]")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    stand_ins.run_graded(monkeypatch)
    monkeypatch.setattr("grpobench.runs.commands.run.FORMATS", ("json",))
    monkeypatch.setattr("grpobench.runs.inventory.folders.docs_folder", lambda remedy="": tmp_path / "docs")
    (tmp_path / "m.toml").write_text(RECIPE)
    (tmp_path / "mine.toml").write_text(FINDING)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/status.json")}


def test_rates_are_added_to_a_folder_that_ran_without_and_stay_when_it_runs_without(
    workspace: Path, capsys: Capture
) -> None:
    words = ("run", "m.toml", "--workers", "1")
    run_cli(capsys, *words)
    before = times(workspace / "results" / "m")
    assert len(before) == 14
    lines = run_cli(capsys, *words, "--rates", "0.5,1,2")
    assert "14 of 42 runs already have a result" in lines
    assert before.items() <= times(workspace / "results" / "m").items()
    # fine1 is 10.0 to 10.6 points above fine2 at its own rate; fine2 is the same at every rate
    assert (
        "sums: fine1 − fine2: best rate at an edge: +10.3 points at best rates; fine2 is best at 5e−6, and "
        "no rate of half of it or less was tried"
    ) in lines
    assert "42 of 42 runs already have a result" in run_cli(capsys, *words, "--rates", "2,1,0.5")
    run_cli(capsys, *words)
    experiment = load(workspace / "results" / "m")
    assert experiment.arms == ("fine1", "fine2") and len(experiment.at_all_rates.runs) == 42
    wrong = run_cli(capsys, *words, "--rates", "0.5,x", code=2)
    assert wrong[-1].endswith("--rates 0.5,x: write multiples of learning rates, such as 0.5,1,2")
    assert "rates: must have 1" in run_cli(capsys, *words, "--rates", "0.5,2", code=2)[-1]


def test_until_resolved_adds_seeds_at_every_rate_and_decides_at_own_rates(
    workspace: Path, capsys: Capture
) -> None:
    until = ("--until", "resolved", "--most-seeds", "8", "--step-seeds", "1")
    run_cli(capsys, "run", "m.toml", "--workers", "1", "--rates", "1,2", *until)
    folder = workspace / "results" / "m"
    plan = read_plan(folder)
    assert plan is not None and plan.pairs == 1  # fine1 − fine2, and no arm at another rate
    runs = load(folder).at_all_rates.runs
    assert {(run.arm, run.seed) for run in runs} == {
        (arm + suffix, seed) for arm in ("fine1", "fine2") for suffix in ("", "+rate-x2") for seed in range(7)
    }


def test_compare_passes_rates_on(workspace: Path, capsys: Capture) -> None:
    words = ("compare", "fine1", "--with", "fine2", "--task", "sums", "--recipe", "m.toml", "--seeds", "6")
    lines = run_cli(capsys, *words, "--workers", "1", "--rates", "0.5,1,2")
    assert "learning rates: 1e-05 (fine1, fine2)" in lines  # the own ones
    assert any(line.startswith("sums: fine1 − fine2: best rate at an edge: +10.2 points") for line in lines)
    folder = workspace / "results" / "compare-fine1-m"
    described = json.loads((folder / "experiment.json").read_text())
    assert "--rates 0.5,1,2" in described["command"] and len(described["rate_arms"]) == 4
    # without rates, and with another arm's settings, runs at other rates are in nobody's way
    assert "12 of 12 runs already have a result" in run_cli(capsys, *words, "--workers", "1")
    study = Numbers(load(folder)).rates
    assert study is not None and [(pair.first, pair.second) for pair in study.pairs] == [("fine1", "fine2")]


def test_a_finding_is_judged_by_its_registered_runs_whatever_ran_at_other_rates(
    workspace: Path, capsys: Capture
) -> None:
    words = ("finding", "run", "./mine.toml", "--workers", "1", "--rates", "1,2")
    run_cli(capsys, *words)
    folder = workspace / "results" / "findings" / "mine-nano"
    registered = (folder / "registration.json").read_bytes()
    assert set(json.loads(registered)["settings"]) == {
        f"{arm}-sums-s{seed}" for arm in ("fine1", "fine2") for seed in range(6)
    }
    lines = run_cli(capsys, *words)
    assert (folder / "registration.json").read_bytes() == registered
    assert "mine at nano scale: SUPPORTED" in lines and not any("exploratory" in line for line in lines)
    # 10.0 to 10.5 points: the pattern fine1* does not stand for fine1+rate-x2, which would halve them
    assert any(line.startswith("  fine1 ends higher: supported; +0.10") for line in lines)
    assert len(load(folder).at_all_rates.runs) == 24
    run_cli(capsys, "keep", str(folder))
    record = read_kept(workspace / "docs" / "results" / "findings" / "mine-nano.json")
    assert {run[0] for run in record.states} == {"fine1", "fine2"} and not record.waits
    assert record.result().verdict == "supported"


def test_a_rule_over_rates_registers_runs_at_all_rates_and_needs_a_recipe_with_rates(
    workspace: Path, capsys: Capture
) -> None:
    path = workspace / "mine.toml"
    text = FINDING.replace('outcome = "accuracy"', 'outcome = "rate:loss-at-twice"')
    text = text.replace("claim =", 'stands_for = "x"\nclaim =')
    path.write_text(text)
    words = ("finding", "run", "./mine.toml", "--workers", "1")
    fault = "\n".join(run_cli(capsys, *words, code=2))
    assert (
        "test 'fine1 ends higher': outcome rate:loss-at-twice compares learning rates, and the recipe has "
        "one for each arm; write rates = [0.5, 1, 2] in [nano]"
    ) in fault
    path.write_text(text.replace("[nano]\n", "[nano]\nrates = [0.5, 1, 2]\n"))
    lines = run_cli(capsys, *words)
    folder = workspace / "results" / "findings" / "mine-nano"
    assert len(json.loads((folder / "registration.json").read_text())["settings"]) == 36
    # fine1 loses 10 to 10.5 points beside its own rate, fine2 nothing
    assert "mine at nano scale: SUPPORTED" in lines
    fault = "\n".join(run_cli(capsys, "keep", str(folder), "--part", code=2))
    assert "no part of it can be kept: rate:loss-at-twice is measured over all runs at once" in fault
    run_cli(capsys, "keep", str(folder))
    record = read_kept(workspace / "docs" / "results" / "findings" / "mine-nano.json")
    assert record.values["fine1 ends higher"]["fine1", "sums", 3] == pytest.approx(0.103)
    assert len(record.states) == 36 and record.result().verdict == "supported"
    run_cli(capsys, *words, "--rates", "0.25,0.5,1,2")  # more rates than registered
    row = json.loads("\n".join(run_cli(capsys, "finding", "judge", "./mine.toml", "--json")))
    assert row["departures"] == ["not registered: fine1+rate-x0.25-sums-s0 and 11 more"]


def test_a_rule_compares_best_rates_and_names_arms_at_other_rates(workspace: Path, capsys: Capture) -> None:
    path = workspace / "mine.toml"
    beside = """
[[test]]
name = "twice the rate costs"
also = true
outcome = "accuracy"
contrast = { "fine1+rate-x2" = 1, "fine1" = -1 }
expect = "lower"
matters = 0.02
"""
    text = (
        FINDING.replace("fine1*", "fine1")
        .replace("fine2*", "fine2")
        .replace("claim =", 'stands_for = "x"\nclaim =')
    )
    at_best = text.replace('outcome = "accuracy"', 'best_rate = true\noutcome = "accuracy"')
    path.write_text(at_best)
    words = ("finding", "run", "./mine.toml", "--workers", "1")
    fault = "\n".join(run_cli(capsys, *words, code=2))
    assert (
        "test 'fine1 ends higher': best_rate compares learning rates, and the recipe has one for each"
        in fault
    )
    path.write_text(at_best.replace("[nano]\n", beside + "\n[nano]\nrates = [0.5, 1, 2]\n"))
    lines = run_cli(capsys, *words)
    folder = workspace / "results" / "findings" / "mine-nano"
    assert len(json.loads((folder / "registration.json").read_text())["settings"]) == 36
    assert any(line.startswith("  twice the rate costs") and "supported; −0.10" in line for line in lines)
    # fine2 is as good at all of its rates, so that a smaller one may be better yet
    assert "mine at nano scale: UNRESOLVED" in lines
    edge = "the best rate of fine2 (0.5 times its own) is the smallest tried"
    assert any(edge in line for line in lines)
    run_cli(capsys, "keep", str(folder))
    record = read_kept(workspace / "docs" / "results" / "findings" / "mine-nano.json")
    assert len(record.values["fine1 ends higher"]) == 36 and record.result().verdict == "unresolved"


def test_merge_keeps_which_arms_are_at_other_rates(workspace: Path, capsys: Capture) -> None:
    words = ("run", "m.toml", "--workers", "1")
    run_cli(capsys, *words, "--out", "a")
    run_cli(capsys, *words, "--out", "b", "--rates", "1,2", "--seeds", "0-2")
    run_cli(capsys, *words, "--out", "c", "--rates", "0.5,1", "--seeds", "7")
    run_cli(capsys, "merge", "a/m", "b/m", "c/m", "all")
    experiment = load(workspace / "all")
    assert experiment.arms == ("fine1", "fine2") and len(experiment.runs) == 16
    assert {name: origin.factor for name, origin in experiment.at_all_rates.rate_arms.items()} == {
        "fine1+rate-x2": 2.0,
        "fine2+rate-x2": 2.0,
        "fine1+rate-x0.5": 0.5,
        "fine2+rate-x0.5": 0.5,
    }
    study = Numbers(experiment).rates
    assert study is not None and study.pairs[0].conclusion == "waits"  # no seed ran at every rate
    assert study.pairs[0].why == "no seed has a result at every rate"


def test_published_are_the_runs_at_all_rates(
    workspace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whole logs alone are published.
    answered = functools.partial(run_experiment, execute="helpers.stand_ins.answered")
    monkeypatch.setattr("grpobench.runs.api.experiments.run_experiment", answered)
    run_cli(capsys, "run", "m.toml", "--workers", "1", "--rates", "1,2", "--seeds", "0,1")
    about = ("--name", "ours", "--contributor", "Another", "--license", "CC0-1.0")
    run_cli(capsys, "publish", "results/m", "--out", "set", *about)
    manifest = json.loads((workspace / "set" / "manifest.json").read_text())
    arm_names = ("fine1", "fine1+rate-x2", "fine2", "fine2+rate-x2")
    assert {*manifest["runs"]} == {f"m/{arm}-sums-s{seed}" for arm in arm_names for seed in (0, 1)}
