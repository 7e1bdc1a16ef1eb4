"""A run that looks at itself: events beside its logs, and an end as its recipe says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.whole_runs import QUIET, configure, rows, run, run_until_stopped, timeless, training

from grpobench.algorithms.grpo import GRPO
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.events import run_findings
from grpobench.runs.runfolder.folder import FolderError, RunFolder
from grpobench.runs.runfolder.logs import settled, status
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import CheckpointConfig, RunConfig, TrainConfig
from grpobench.runs.settings.recipe import read_text
from grpobench.runs.tools.files import line
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train import trainer
from grpobench.runs.train.watch import Watch

POLICY = "nano"


def lost_reward(monkeypatch: pytest.MonkeyPatch, since: int = 2) -> None:
    """The training reward is .5 until a step and 0 from there on."""
    plain = trainer.Trainer.step

    def step(self: Any, number: int) -> dict[str, float]:
        return plain(self, number) | {"reward/mean": 0.5 * (number < since), "reward/std": 0.1}

    monkeypatch.setattr(trainer.Trainer, "step", step)


def twelve(**sections: Any) -> RunConfig:
    config = configure(POLICY, GRPO(), **sections)
    return training(config, steps=12)


def kinds(path: Path) -> dict[str, dict[str, Any]]:
    return {row["kind"]: row for row in rows(path, "events.jsonl")}


def test_a_run_that_is_to_stop_on_an_event_ends_with_it_as_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 steps ask for 3 in a row: from step 2 on, found at 4; validation is due there, test is not."""
    lost_reward(monkeypatch)
    config = dataclasses.replace(twelve(), stop_on=("reward_collapse",))
    run_rows = run(config, tmp_path)
    assert [row["step"] for row in run_rows] == [0, 1, 2, 3, 4]
    assert status(tmp_path)["state"] == "collapsed" and settled(tmp_path)
    assert status(tmp_path)["why"] == ("reward_collapse from step 2: reward/mean 0 at step 4, below 0.05")
    assert {name.split("/")[1] for name in run_rows[-1] if name.startswith("eval/")} == {"validation", "test"}
    evaluated = [(row["step"], row["split"], row["problem"]) for row in rows(tmp_path, "eval.jsonl")]
    assert {(step, split) for step, split, _ in evaluated} >= {(4, "validation"), (4, "test")}
    once = [evaluation for evaluation in evaluated if evaluation[0] == 4 and evaluation[1] == "validation"]
    assert len(once) == 3 * 3  # problems × (2 samples and 1 greedy): not evaluated twice
    assert (tmp_path / "final" / "policy.safetensors").exists()
    assert not (tmp_path / "checkpoints").exists()
    event = kinds(tmp_path)["reward_collapse"]
    assert (event["onset"], event["found"], event["recovered"], event["severity"]) == (2, 4, None, "severe")
    # It is made again only where a change is allowed.
    with pytest.raises(FolderError, match=r'stop_on: \["reward_collapse"\] -> \(absent\)'):
        RunFolder.open(tmp_path, dataclasses.replace(config, stop_on=()))


def test_a_resumed_run_has_the_events_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_reward(monkeypatch)
    config = dataclasses.replace(
        twelve(checkpoint=CheckpointConfig(every=2)), stop_on=("reward_collapse", "accuracy_collapse")
    )
    undisturbed, parted = tmp_path / "whole", tmp_path / "parted"
    run(config, undisturbed)
    run_until_stopped(config, parted, 3)
    (parted / "events.jsonl").write_text('{"kind": "of a step that is made again"}\n')
    run(config, parted)
    assert (parted / "events.jsonl").read_bytes() == (undisturbed / "events.jsonl").read_bytes()
    assert [timeless(row) for row in rows(parted)] == [timeless(row) for row in rows(undisturbed)]
    assert {**status(parted), "attempt": 1} == status(undisturbed)


def test_events_of_rows_that_were_thrown_away_are_too(tmp_path: Path) -> None:
    steps = TrainConfig(steps=1, prompts_per_step=2, group_size=2)
    quiet = QUIET
    config = configure(POLICY, evaluate=quiet, checkpoint=CheckpointConfig(every=0), train=steps)
    (tmp_path / "events.jsonl").write_text('{"kind": "old"}\n')
    run(config, tmp_path)
    assert "old" not in kinds(tmp_path)


def test_the_detectors_are_code_of_a_run_that_they_may_end(tmp_path: Path) -> None:
    for name, stop_on in (("stops", ("kl_blowup",)), ("goes-on", ())):
        with RunFolder.open(tmp_path / name, dataclasses.replace(twelve(), stop_on=stop_on)) as folder:
            code = folder.provenance["attempts"][-1]["code"]
        assert ("analysis/detectors/policy.py" in code) == bool(stop_on)


def test_looks_are_bounded_by_a_hundred_for_each_row() -> None:
    watch = Watch(dataclasses.replace(twelve(), stop_on=("kl_blowup",)))
    due = []
    for step in range(1, 2001):
        watch.note({"step": step, "reward/mean": 0.5})
        due.append(watch.due(step))
    assert all(due[:100]) and sum(due) < 500
    assert sum(step * looked for step, looked in enumerate(due, start=1)) <= 2000 * 101 * 2
    watch.note({"step": 2001, "eval/validation/greedy/correct": 0.5})
    assert watch.due(2001)


RECIPE = """
name = "stops"
tasks = ["arithmetic"]
{line}
[[arm]]
algorithm = "grpo"
"""


def recipe(stops: str) -> Any:
    return read_text(RECIPE.format(line=stops), "stops", Path())


def test_a_recipe_names_the_events_that_end_its_runs() -> None:
    run_config = recipe('stop_on = ["accuracy_collapse", "reward_collapse"]').runs()[0]
    assert run_config.stop_on == ("accuracy_collapse", "reward_collapse")
    assert stored.load(stored.dump(run_config)) == run_config


def test_a_folder_of_before_there_were_events_to_stop_on_is_no_other_run() -> None:
    text = stored.dump(recipe("").runs()[0])
    older = text.replace("stop_on = []\n", "")
    assert older != text and not stored.differences(older, text)
    assert stored.differences(text, stored.dump(recipe('stop_on = ["kl_blowup"]').runs()[0]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('["zzz"]', "unknown event 'zzz'; known: accuracy_collapse, reward_collapse, "),
        ('["grader_failure"]', "grader_failure says nothing against the policy"),
        ('["signal_saturation"]', "signal_saturation says nothing against the policy"),
    ],
)
def test_a_wrong_event_is_an_error_of_the_recipe(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(f"stop_on = {value}")


def test_without_stop_on_the_run_goes_on_and_a_report_finds_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_reward(monkeypatch)
    config = twelve()
    assert run(config, tmp_path / config.folder)[-1]["step"] == 12
    assert status(tmp_path / config.folder)["state"] == "finished"
    assert kinds(tmp_path / config.folder)["reward_collapse"]["onset"] == 2
    findings_of_run = run_findings(load(tmp_path))[config.folder]
    logged_events = rows(tmp_path / config.folder, "events.jsonl")
    assert (
        logged_events and [json.loads(line(event.row())) for event in findings_of_run.events] == logged_events
    )
