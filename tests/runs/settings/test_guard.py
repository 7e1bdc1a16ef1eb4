"""`guard` and `targets` of a recipe: mistakes with their place, and the way into a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.pages import drawing

from grpobench.runs import cli
from grpobench.runs.settings.recipe import read_text
from grpobench.runs.tools.strict import ConfigError

RECIPE = """
name = "held"
tasks = ["arithmetic"]
seeds = [0, 1]
workers = 1
{head}
[train]
steps = 2
prompts_per_step = 2
group_size = 2
learning_rate = 1e-3
[evaluate]
every = 1
problems = 4
test_problems = 4
samples = 0
{also}
[[arm]]
algorithm = "grpo"
"""
BESIDE = "[evaluate.also.nanobias]\n[evaluate.also.text]"
HEAD = 'targets = [0.01, 1.0]\nguard = { "also:nanobias" = -2, "loss:text" = 1e-9, "format" = -99 }'


def faults(head: str, *sets: str) -> list[str]:
    try:
        read_text(RECIPE.format(head=head, also=BESIDE), "held", Path(), sets)
    except ConfigError as error:
        return error.faults
    return []


@pytest.mark.parametrize(
    ("guard", "fault"),
    [
        ('"also:nanobias" = 2', "guard: also:nanobias is how many points may be lost; must be from -100 "),
        ('"also:nanobias" = 0', "guard: also:nanobias is how many points may be lost; must be from -100 "),
        ('"loss:text" = -0.1', "guard: loss:text is how many nats per token a loss may rise; must be above"),
        ('"also:files" = -2', "guard: also:files: no run evaluates files beside its own task; add "),
        ('"also:arithmetic" = -2', "guard: also:arithmetic: no run evaluates arithmetic beside its own "),
        ('"loss" = 0.1', "guard: 'loss' must be one of also:TASK, loss:TASK, format, calibration"),
        ('"also:" = -2', "guard: 'also:' must be one of also:TASK, loss:TASK, format, calibration"),
        ('"calibration" = -2', "guard: calibration is by how many points over- or underconfidence may grow"),
        ('"calibration" = 5', "guard: calibration needs evaluate.samples of at least 4"),
        ('"format" = "x"', "guard.format: must be a number, not "),
    ],
)
def test_mistakes_are_named_with_their_place(guard: str, fault: str) -> None:
    (message,) = faults(f"guard = {{ {guard} }}")
    assert message.startswith(fault)


def test_a_guard_needs_an_evaluation_before_training_and_a_score() -> None:
    (fault,) = faults('guard = { "format" = -2 }', "evaluate.before=false")
    assert fault.startswith("guard: is a change since before training")
    (fault,) = faults('guard = { "format" = -2 }', "tasks=files")
    assert fault == "guard: files has no score of the format; remove format"


def test_levels_are_shares() -> None:
    for level in ("60", "0", "-0.1"):
        (fault,) = faults(f"targets = [{level}]")
        assert fault.startswith("targets[0]: must be ")
    assert faults(HEAD) == [] and faults("", "targets=0.5") == []


def test_a_run_of_nano_reports_targets_and_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base is right more often than 1 % before training, and two updates move the loss a little."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held.toml").write_text(RECIPE.format(head=HEAD, also=BESIDE))
    with drawing("targets"):
        assert cli.main(["run", "held.toml"]) == 0
    capsys.readouterr()
    described = json.loads((tmp_path / "results" / "held" / "experiment.json").read_text())
    assert described["targets"] == [0.01, 1.0] and described["guard"]["also:nanobias"] == -2.0
    report = json.loads((tmp_path / "results" / "held" / "report" / "report.json").read_text())
    low, high = report["tables"]["targets"]
    assert (low["reached"], low["updates"], low["runs"]) == (2, 0.0, 2)
    assert (high["level"], high["runs"]) == (1.0, 2)
    guards = {row["guard"]: row for row in report["guards"]}
    assert guards.keys() == {"also:nanobias", "loss:text", "format"}
    assert guards["loss:text"]["seeds"] == 2 and guards["loss:text"]["change"] != 0
    assert guards["loss:text"]["broken"] == (guards["loss:text"]["change"] > 1e-9)
    log = tmp_path / "results" / "held" / "grpo-arithmetic-s0" / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert all("also/text/validation/likelihood/loss" in row for row in rows)
