"""Locks: the base is evaluated once for all runs that begin from it, and no number tells."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import flip
from helpers.whole_runs import configure, run, timeless

from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.ppo import PPO
from grpobench.runs.metrics.evaluator import Evaluator
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig, RunConfig, TrainConfig
from grpobench.runs.train import base_evaluation


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """(step, split) of every evaluation that is made."""
    made: list[tuple[int, str]] = []
    plain = Evaluator.evaluate

    def counted(self: Evaluator, step: int, split: Any) -> Any:
        made.append((step, split))
        return plain(self, step, split)

    monkeypatch.setattr(Evaluator, "evaluate", counted)
    return made


def arm(policy: str, algorithm: Any, **sections: Any) -> RunConfig:
    return dataclasses.replace(configure(policy, algorithm, **sections), arm=algorithm.name)


def read_evaluated_by(run_folder: Path) -> Any:
    return json.loads((run_folder / "provenance.json").read_text())["attempts"][-1].get("base_evaluated_by")


GREEDY = EvaluateConfig(every=2, problems=3, samples=0, test_problems=2)


@pytest.mark.parametrize("shared_by", ["arms of a seed", "seeds with greedy answers"])
def test_second_run_takes_base_from_first_and_has_its_own_numbers(
    shared_by: str, policy: str, tmp_path: Path, evaluated: list[tuple[int, str]]
) -> None:
    if shared_by == "arms of a seed":
        first, second = arm(policy, GRPO()), arm(policy, PPO(critic_warmup=1))
    else:
        first, second = (arm(policy, GRPO(), seed=seed, evaluate=GREEDY) for seed in (3, 4))
    alone = run(second, tmp_path / "alone" / "second")
    base_evaluations = [entry for entry in evaluated if entry[0] == 0]
    assert base_evaluations == [(0, "validation"), (0, "test")]
    evaluated.clear()
    run(first, tmp_path / "both" / "first")
    after = run(second, tmp_path / "both" / "second")
    assert [entry for entry in evaluated if entry[0] == 0] == base_evaluations  # once for two
    assert [timeless(row) for row in after] == [timeless(row) for row in alone]
    logs = [(tmp_path / folder / "second" / "eval.jsonl").read_bytes() for folder in ("alone", "both")]
    assert logs[0] == logs[1]
    assert read_evaluated_by(tmp_path / "both" / "second") == {"validation": "first", "test": "first"}
    assert read_evaluated_by(tmp_path / "both" / "first") is None


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"model": {"dtype": "bfloat16"}},
        {"model": {"warm_start": 1, "warm_start_batch": 2}},
        {"evaluate": {"temperature": 0.7}},
    ],
    ids=str,
)
def test_anything_that_could_alter_it_has_a_base_of_its_own(
    policy: str, tmp_path: Path, evaluated: list[tuple[int, str]], change: dict[str, Any]
) -> None:
    steps = TrainConfig(steps=0, prompts_per_step=4, group_size=4)
    first = configure(policy, train=steps, model=ModelConfig(policy))
    other = first
    for name, value in change.items():
        new = dataclasses.replace(getattr(first, name), **value) if isinstance(value, dict) else value
        other = dataclasses.replace(other, **{name: new})
    run(first, tmp_path / "first")
    run(other, tmp_path / "other")
    assert evaluated.count((0, "validation")) == 2 and read_evaluated_by(tmp_path / "other") is None


def test_damaged_evaluation_is_made_anew(
    policy: str, tmp_path: Path, evaluated: list[tuple[int, str]]
) -> None:
    config = configure(policy, train=TrainConfig(steps=0, prompts_per_step=4, group_size=4))
    first = run(config, tmp_path / "first")
    for path in (tmp_path / base_evaluation.FOLDER).iterdir():
        flip(path, path.stat().st_size // 2)
    again = run(config, tmp_path / "again")
    assert evaluated.count((0, "validation")) == 2 and read_evaluated_by(tmp_path / "again") is None
    assert [timeless(row) for row in again] == [timeless(row) for row in first]
    assert run(config, tmp_path / "third") and read_evaluated_by(tmp_path / "third")["test"] == "again"
