"""The labeled library: that its labels fit its recipe, that its faults are faults, and the command."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.batches import data
from helpers.sampling import END, requests, same, sampler
from helpers.toys import backward, distance, models_for, norm, off_policy

from grpobench.algorithms.grpo import GRPO
from grpobench.analysis.calibration import table
from grpobench.analysis.detectors.registry import DETECTORS, thresholds
from grpobench.runs import cli
from grpobench.runs.calibration import library
from grpobench.runs.calibration.faults import Faulty, Sums, stale_rollouts
from grpobench.runs.inventory import folders, marked
from grpobench.runs.sample.sampler import GREEDY
from grpobench.runs.settings.checks import ChecksConfig
from grpobench.runs.settings.recipe import read_recipe, recipes
from grpobench.tasks.arithmetic import Arithmetic

PLAN = library.planned()
PILOT = {900, 901}


def test_every_arm_has_labels_and_every_label_an_arm() -> None:
    arms = {config.arm for config in read_recipe(PLAN.recipe).runs()}
    assert {case.arm for case in PLAN.library.cases} == arms == set(PLAN.seeds)


def test_what_is_broken_on_purpose_runs_to_its_end() -> None:
    assert {config.checks for config in read_recipe(PLAN.recipe).runs()} == {ChecksConfig("off", "off")}


def test_labels_and_thresholds_are_those_of_detectors() -> None:
    for case in PLAN.library.cases:
        assert not {*case.must, *case.may} - set(DETECTORS)
        assert not set(case.must) & set(case.may)
        assert not (case.healthy and case.must)
        assert case.healthy or case.must, f"{case.arm}: broken in a way that nothing must show"
    for kind, fields in PLAN.library.tried.items():
        assert set(fields) <= set(thresholds(DETECTORS[kind]))
        for name, values in fields.items():
            assert len(set(values)) == len(values) >= 2, f"{kind}.{name}"


def test_the_page_names_what_nothing_must_show() -> None:
    scored = {kind for case in PLAN.library.cases for kind in case.must}
    text = (Path(__file__).parents[3] / "docs" / "calibration.md").read_text(encoding="utf-8")
    unscored_text = text.partition("Not scored, because")[2].partition("Of these, false alarms")[0]
    assert set(re.findall(r"`(\w+)`", unscored_text)) == set(DETECTORS) - scored


def test_the_registry_has_what_was_set() -> None:
    """All but the early warning's limit, which holds for runs of 32 updates: the longer a run, the larger the
    largest sum of a healthy one."""
    calibration = table.read(Path(__file__).parents[3] / "docs" / "results" / "calibration.json")
    rows = {row["kind"]: row["values"] for row in calibration["detectors"] if row["kind"] != "drift"}
    now = {kind: thresholds(DETECTORS[kind]) for kind in rows}
    assert {kind: {name: now[kind][name] for name in values} for kind, values in rows.items()} == rows


def test_both_halves_have_seeds_of_every_arm_and_the_pilots_are_none() -> None:
    for arm, count in PLAN.seeds.items():
        seeds = range(PLAN.first, PLAN.first + count)
        assert {PLAN.library.half(seed) for seed in seeds} == {"set", "scored"}, arm
        assert not PILOT & set(seeds)
    others = [tomllib.loads(path.read_text()) for name, path in recipes().items() if name != PLAN.recipe]
    assert not {seed for table in others for seed in table["seeds"]} & set(
        range(PLAN.first, PLAN.first + 100)
    )


def test_the_recipes_together_have_every_arm_with_its_seeds() -> None:
    runs = [config for recipe in PLAN.recipes() for config in recipe.runs()]
    seeds_by_arm = {arm: sorted(run.seed for run in runs if run.arm == arm) for arm in PLAN.seeds}
    assert seeds_by_arm == {arm: list(range(PLAN.first, PLAN.first + n)) for arm, n in PLAN.seeds.items()}
    assert {recipe.name for recipe in PLAN.recipes()} == {PLAN.recipe}


# The faults


def test_zero_fault_is_grpo_and_wrong_sign_reverses_its_gradient() -> None:
    """On-policy no ratio is clipped, so that the gradient is linear in the advantage."""
    models = models_for(GRPO(), "llama")
    batch = off_policy(data(), models, spread=0.0)
    sound, _ = backward(GRPO(), models, batch)
    assert norm(sound) > 0
    assert distance(backward(Faulty(), models, batch)[0], sound) == 0
    turned, _ = backward(Faulty(sign=-1.0), models, batch)
    assert distance({name: -gradient for name, gradient in turned.items()}, sound) < 1e-6  # float32


def test_the_bonus_adds_the_gradient_of_the_entropy() -> None:
    """Twice the bonus is twice the difference; and a step along it has a higher entropy."""
    models = models_for(Faulty(), "llama")
    batch = off_policy(data(), models, spread=0.0)
    plain, once, twice = (backward(Faulty(entropy_bonus=b), models, batch)[0] for b in (0.0, 1.0, 2.0))
    difference = {name: once[name] - plain[name] for name in plain}
    doubled = {name: twice[name] - plain[name] for name in plain}
    assert norm(difference) > 0
    assert distance(doubled, {name: 2 * g for name, g in difference.items()}) < 1e-4  # float32 differences
    before = entropy(models, batch)
    with torch.no_grad():
        for name, parameter in models.optimizers["policy"].parameters.items():
            parameter -= 1e-3 * difference[f"policy/{name}"]
    assert entropy(models, batch) > before


def entropy(models: Any, batch: Any) -> float:
    weights = Faulty().loss_weights(batch)
    with torch.no_grad():
        return float((models.forward("policy", batch).entropy * weights).sum())


def test_misread_answers_are_those_of_the_training_split_alone() -> None:
    sound, misread = Sums(train=20, validation=20), Sums(train=20, validation=20, misread=True)
    assert sound.problems("train") == Sums(train=20, validation=20).problems("train")
    assert list(misread.problems("validation")) == list(sound.problems("validation"))
    for problem, wrong in zip(sound.problems("train"), misread.problems("train"), strict=True):
        right = sound.demonstrate(problem)
        assert isinstance(sound, Arithmetic) and wrong.prompt == problem.prompt
        assert sound.verify(problem, [right])[0].scores["correct"] == 1.0
        assert misread.verify(wrong, [right])[0].scores["correct"] == 0.0


def test_stale_rollouts_use_earlier_weights_and_evaluations_later_ones() -> None:
    """Greedily by temperature 0, and by a seed beside sampled ones, as evaluations ask."""
    fresh = sampler()
    config: Any = SimpleNamespace(
        sampler=SimpleNamespace(temperature=1.0, max_batch_size=64), model=SimpleNamespace(dtype="float32")
    )
    old = stale_rollouts(config, fresh.models, SimpleNamespace(end=END, pad=0, context=128))
    assert not old.exact  # so that the trainer reads log π_old, and the gap is measured
    before = [old.sample(requests(), 12, temperature) for temperature in (1.0, 0.0)]
    assert all(map(same, before[0][0], fresh.sample(requests(), 12, 1.0)[0]))
    with torch.no_grad():
        for parameter in fresh.models.language.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 4)
    old.sync()
    rollouts, greedy = (old.sample(requests(), 12, temperature) for temperature in (1.0, 0.0))
    assert all(map(same, rollouts[0], before[0][0]))
    assert all(map(same, greedy[0], fresh.sample(requests(), 12, 0.0)[0]))
    assert not any(map(same, greedy[0], before[1][0]))
    mixed_requests = [dataclasses.replace(request, seeds=(*request.seeds, GREEDY)) for request in requests()]
    mixed, current = old.sample(mixed_requests, 12, 1.0), fresh.sample(mixed_requests, 12, 1.0)
    assert all(map(same, mixed[0], current[0]))


# The command

RECIPE = """
name = "tiny"
seeds = [2000, 2001]
tasks = ["grpobench.runs.calibration.faults:Sums"]
[train]
steps = 8
prompts_per_step = 2
group_size = 2
learning_rate = 1e-4
[sampler]
max_completion_tokens = 24
[evaluate]
every = 4
problems = 8
samples = 0
test_problems = 8
[checks]
grader = "off"
[[arm]]
name = "healthy"
algorithm = "grpo"
[[arm]]
name = "misread"
algorithm = "grpo"
task.misread = true
"""
LABELS = """
recipe = "{recipe}"
pool = "healthy"
first_seed = 2000
seeds = 2
set_on = "even"
[[case]]
arm = "healthy"
what = "sound"
healthy = true
may = ["signal_saturation", "signal_starvation"]
[[case]]
arm = "misread"
what = "a grader that gives 0 to everything"
must = ["signal_starvation"]
may = ["grader_silent"]
[tried.signal_starvation]
share = [0.8, 0.9]
"""


def test_the_command_runs_the_library_scores_it_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warm: None
) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    (tmp_path / "labels.toml").write_text(LABELS.format(recipe=tmp_path / "tiny.toml"))
    monkeypatch.setattr(library, "FILE", tmp_path / "labels.toml")
    words = ["calibrate", "--json", "--workers", "1", "--out", str(tmp_path / "results")]
    assert cli.main(words) == 0
    output = capsys.readouterr().out
    calibration = json.loads(output)
    starvation = next(row for row in calibration["detectors"] if row["kind"] == "signal_starvation")
    assert starvation["scored"]["must"] == starvation["scored"]["hits"] == 1
    assert starvation["values"] == starvation["default"] == {"share": 0.9}
    assert [case["runs"] for case in calibration["cases"]] == [{"set": 1, "scored": 1}] * 2
    # two runs make no comparison
    assert calibration["warning"]["runs"] == 1 and calibration["same_arm"] == []
    logs = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("metrics.jsonl")}
    assert len(logs) == 4
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    monkeypatch.setattr(folders, "docs_folder", lambda remedy: docs)
    assert cli.main([*words, "--keep"]) == 0
    assert capsys.readouterr().out == output
    assert {path: path.stat().st_mtime_ns for path in logs} == logs
    head = {name: calibration[name] for name in ("version", "kind")}
    assert head | table.read(docs / "results" / "calibration.json") == calibration
    (docs / "page.md").write_text("<!-- kept calibration cases -->\n<!-- end of kept -->\n")
    page = marked.documents(docs)["page.md"]
    assert (
        "| misread | a grader that gives 0 to everything | signal starvation | grader silent | 1 + 1 |"
        in page
    )


def test_without_a_run_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An experiment in which a run has no result is not judged, and named."""
    from grpobench.analysis.calibration.table import calibrate
    from grpobench.analysis.runfolder.files import LogError

    run = SimpleNamespace(arm="healthy", name="healthy-sums-s2000", state="crashed", settled=False)
    experiment: Any = SimpleNamespace(runs=[run], folder=tmp_path)
    with pytest.raises(LogError, match=r"1 runs without result: healthy-sums-s2000 \(crashed\)"):
        calibrate(experiment, PLAN.library, "grpobench calibrate")


def test_detectors_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "detectors", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(DETECTORS)
    assert rows[0]["thresholds"]["least"] == 0.1 and rows[0]["family"] == "collapse"
    assert cli.main(["list", "detectors"]) == 0
    assert "drift" in capsys.readouterr().out
