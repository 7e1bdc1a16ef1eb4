"""Tasks that are evaluated beside the one that a run trains on: their numbers, and what they leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.logs import is_metric
from helpers.toys import Letters, Scribbles
from helpers.whole_runs import configure, rows, run, timeless

from grpobench.algorithms.ppo import PPO
from grpobench.runs.experiment.dry_run import evaluation_tokens
from grpobench.runs.metrics.evaluator import Evaluator
from grpobench.runs.runfolder.fingerprints import Today
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import EvaluateConfig, RunConfig, TrainConfig
from grpobench.runs.settings.others import tasks_beside
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train.progress import Preempted
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError

SMALL = {"train": 4, "validation": 6, "test": 5}
OTHER = "helpers.toys:Scribbles"
ALSO = {"arithmetic": SMALL, OTHER: {"faulty": True}}
"""A task of the suite, and a plugin: here the run's own with other settings."""


def config(policy: str, also: Any = ALSO, **sections: Any) -> RunConfig:
    evaluate = EvaluateConfig(every=2, problems=3, samples=2, test_problems=2, also=also)
    return configure(policy, evaluate=evaluate, **sections)


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name.startswith("also/")}


@pytest.fixture(scope="module")
def undisturbed(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("also") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpobench.runs.train.base_evaluation.Base.shares", lambda self: False)
        run(config(policy), path)
    return path


def test_other_tasks_are_answered_before_on_schedule_and_at_the_end(undisturbed: Path) -> None:
    run_rows = rows(undisturbed)
    splits = [{name.split("/")[2] for name in numbers(row)} for row in run_rows]
    assert splits == [{"validation", "test"}, set(), {"validation"}, {"validation", "test"}]
    assert {name.split("/")[1] for name in numbers(run_rows[0])} == {"arithmetic", "scribbles"}
    assert {name.split("/")[3] for name in numbers(run_rows[0]) if "/arithmetic/" in name} == {
        "greedy",
        "sampled",
    }
    assert all(is_metric(name) for row in run_rows for name in row)
    evaluated = [name for name in run_rows[0] if name.startswith("eval/")]
    assert evaluated and not any("arithmetic" in name for name in evaluated)
    assert {row["problem"].partition("-")[0] for row in rows(undisturbed, "eval.jsonl")} == {
        "validation",
        "test",
    }


def test_numbers_are_those_of_a_run_on_that_task(policy: str, tmp_path: Path) -> None:
    """Before training, when both have the same policy: the same problems, seeds and sampler."""
    steps = TrainConfig(steps=0, prompts_per_step=4, group_size=4)
    also_rows = run(config(policy, {"arithmetic": SMALL}, train=steps), tmp_path / "also")
    other = run(config(policy, {}, task=Arithmetic(**SMALL), train=steps), tmp_path / "own")
    expected = {
        name.replace("eval/", "also/arithmetic/"): v for name, v in other[0].items() if "eval/" in name
    }
    assert numbers(also_rows[0]) == expected


def test_no_other_number_of_the_run_differs(undisturbed: Path, policy: str, tmp_path: Path) -> None:
    plain = run(config(policy, {}), tmp_path / "plain")
    for also_row, other in zip(rows(undisturbed), plain, strict=True):
        assert {
            name: v for name, v in timeless(also_row).items() if name not in numbers(also_row)
        } == timeless(other)
    for name in ("eval.jsonl", "final/policy.safetensors"):
        assert (undisturbed / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_run_stopped_between_two_tasks_keeps_the_first(
    undisturbed: Path, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, made, interruptions = Evaluator.evaluate, list[tuple[int, str]](), list[bool]()

    def stopped(self: Evaluator, step: int, split: Any) -> Any:
        if (step, self.task) == (2, Scribbles(faulty=True)) and not interruptions:
            interruptions.append(True)
            raise Preempted
        made.append((step, str(self.task)))
        return plain(self, step, split)

    monkeypatch.setattr(Evaluator, "evaluate", stopped)
    with pytest.raises(Preempted):
        run(config(policy), tmp_path / "parts")
    resumed = run(config(policy), tmp_path / "parts")
    tasks = (Letters(), *tasks_beside(config(policy)))
    assert interruptions and [made.count((2, str(task))) for task in tasks] == [1] * 3
    assert [timeless(row) for row in resumed] == [timeless(row) for row in rows(undisturbed)]
    ends = [
        (path / "final" / "policy.safetensors").read_bytes() for path in (undisturbed, tmp_path / "parts")
    ]
    assert ends[0] == ends[1]


def test_second_arm_takes_the_evaluation_before_training_from_the_first(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the fixture of this folder that keeps runs from sharing
    made: list[tuple[int, str, str]] = []
    plain = Evaluator.evaluate

    def counted(self: Evaluator, step: int, split: Any) -> Any:
        made.append((step, str(self.task), split))
        return plain(self, step, split)

    monkeypatch.setattr(Evaluator, "evaluate", counted)
    steps = TrainConfig(steps=0, prompts_per_step=4, group_size=4)
    first = run(config(policy, train=steps), tmp_path / "grpo")
    one_more = configure(policy, PPO(), evaluate=config(policy).evaluate, train=steps, arm="ppo")
    second = run(one_more, tmp_path / "ppo")
    at_start = [entry for entry in made if not entry[0]]
    assert len(at_start) == len(set(at_start)) == 6  # three tasks, two splits, once for two arms
    assert numbers(first[0]) == numbers(second[0])
    alone = config(policy, {}, train=steps, arm="alone")  # its own task's is the same without `also`
    run(alone, tmp_path / "alone")
    assert len([entry for entry in made if not entry[0]]) == 6


# Settings


def faults(also: str) -> list[str]:
    try:
        read_recipe("quickstart", [f"evaluate.also={also}"])
    except ConfigError as error:
        return error.faults
    return []


def test_prompt_without_room_is_refused_before_the_run_begins(policy: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="prompts leave no room for 10 new tokens"):
        run(config(policy, {"nanobias": {}}), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists() or not rows(tmp_path)


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ('{"nowhere:Task" = {}}', "evaluate.also.nowhere:Task: "),
        ('{"helpers.toys:Scribbles" = {}, scribbles = {}}', "evaluate.also.scribbles: unknown task"),
    ],
)
def test_mistakes_are_named_with_their_place(also: str, message: str) -> None:
    messages = faults(also)
    assert messages and all(message in fault for fault in messages), messages


def test_runs_own_task_is_not_evaluated_twice_in_a_recipe_that_lists_all() -> None:
    runs = read_recipe("headtohead-nano", ["evaluate.also={arithmetic = {}, nanocode = {}}"]).runs()
    assert {
        (run_config.task.name, *(task.name for task in tasks_beside(run_config))) for run_config in runs
    } >= {
        ("arithmetic", "nanocode"),
        ("nanocode", "arithmetic"),
    }


def test_settings_are_read_stored_and_read_back(policy: str) -> None:
    (run_config, *_) = read_recipe("quickstart", ["evaluate.also.nanobias.seed=3"]).runs()
    assert [(task.name, task.seed) for task in tasks_beside(run_config)] == [("nanobias", 3)]  # type: ignore[attr-defined]
    again = stored.load(stored.dump(run_config))
    assert again.evaluate == run_config.evaluate
    plain = read_recipe("quickstart").runs()[0]
    assert stored.differences(stored.dump(plain), stored.dump(run_config), stored.defaults(run_config)) == [
        "evaluate.also: {} -> (absent)",
        "evaluate.also.nanobias.seed: (absent) -> 3",
    ]


def test_problems_have_fingerprints_and_costs_are_estimated(policy: str) -> None:
    with_also, plain = config(policy, {"arithmetic": SMALL}), config(policy, {})
    more = Today().of(with_also).keys() - Today().of(plain).keys()
    assert more == {"also arithmetic validation problems", "also arithmetic test problems"}
    other = config(policy, {"arithmetic": SMALL | {"seed": 5}})
    assert all(Today().of(with_also)[name] != Today().of(other)[name] for name in more)
    # 3 answers of at most 40 tokens: to 3 validation problems at steps 0, 2, 3, to 2 test problems at 0 and 3
    extra = evaluation_tokens(with_also) - evaluation_tokens(plain)
    assert extra == 3 * 40 * (3 * 3 + 2 * 2)
