"""`grpobench hand-over`: the folder for verl without verl, refusals, and its logs beside our own runs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from helpers.handed import ARMS, hand_over, recipe_file, refused, stored_completions
from helpers.pages import drawing

import grpobench
from grpobench.runs import cli
from grpobench.runs.handover import data, verl
from grpobench.runs.handover.grading import Graders, GradingError, as_columns, grade
from grpobench.runs.handover.importing.handed import by_step
from grpobench.runs.handover.plan import Plan
from grpobench.runs.models.loading import load
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.task import Problem, Verdict

Handed = tuple[Plan, Path]


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Handed:
    return hand_over(tmp_path_factory.mktemp("handed"), "verl", *ARMS, "dpo", leave_out=True)


def record(folder: Path) -> dict[str, Any]:
    hand_over_record: dict[str, Any] = json.loads((folder / "provenance.json").read_text())["hand_over"]
    return hand_over_record


def leaves(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaf_by_key: dict[str, Any] = {}
    for key, value in table.items():
        leaf_by_key |= (
            leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return leaf_by_key


# The folder


@pytest.mark.parametrize("arm", ARMS)
def test_every_key_is_one_that_verl_has(arm: str, handed: Handed) -> None:
    table = yaml.safe_load((handed[1] / "configs" / f"{arm}-arithmetic.yaml").read_text())
    assert table.pop("defaults") == ["ppo_trainer", "_self_"]
    assert table.pop("hydra") == {"searchpath": ["pkg://verl.trainer.config"]}
    settings = leaves(table)
    below = {key for key in settings if ".override_config." in key}
    assert not verl.unknown({key: value for key, value in settings.items() if key not in below})
    assert settings["data.train_batch_size"] == 4
    assert settings["actor_rollout_ref.rollout.n"] == 4
    assert settings["actor_rollout_ref.actor.ppo_mini_batch_size"] == 2


def test_an_invented_key_would_be_noticed() -> None:
    assert verl.unknown({"actor_rollout_ref.actor.clip_ratio_hihg": 0.2, "data.seed": 1}) == [
        "actor_rollout_ref.actor.clip_ratio_hihg"
    ]


def test_a_critic_has_its_own_rate_and_its_first_step_alone(handed: Handed) -> None:
    table = yaml.safe_load((handed[1] / "configs" / "ppo-arithmetic.yaml").read_text())
    assert table["critic"]["optim"]["lr"] == 1e-3
    assert table["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-4
    assert table["trainer"]["critic_warmup"] == 2


def test_training_rows_are_the_problems_of_our_own_run_in_its_order(handed: Handed) -> None:
    plan, folder = handed
    config = plan.parts[0].config
    problems = data.Problems(config, load("nano"), 40)
    for seed in (3, 4):
        rows = pd.read_parquet(folder / record(folder)["runs"][f"grpo-arithmetic-s{seed}"]["train"])
        assert list(rows.columns) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
        drawn = [problems.train[index].id for index in problems.schedule(seed)]
        assert [extra["id"] for extra in rows["extra_info"]] == drawn
        assert [message["role"] for messages in rows["prompt"] for message in messages] == ["user"] * len(
            drawn
        )
    assert problems.schedule(3) != problems.schedule(4)


def test_a_run_that_replaces_groups_gets_more_problems_and_others_share_a_file(handed: Handed) -> None:
    runs = record(handed[1])["runs"]
    assert runs["grpo-arithmetic-s3"]["train"] == runs["cispo-arithmetic-s3"]["train"]
    count = {
        arm: len(pd.read_parquet(handed[1] / runs[f"{arm}-arithmetic-s3"]["train"]))
        for arm in ("grpo", "dapo")
    }
    assert count == {"grpo": 2 * 4, "dapo": 10 * 2 * 4}  # DAPO draws nine more times at most


def test_evaluated_rows_are_the_problems_of_our_evaluations(handed: Handed) -> None:
    plan, folder = handed
    evaluated = record(folder)["runs"]["gspo-arithmetic-s4"]["evaluated"]
    task = plan.parts[0].config.task
    for split, count in (("validation", 6), ("test", 8)):
        rows = pd.read_parquet(folder / evaluated[split])
        ids = [problem.id for problem in task.problems(split)[:count]]  # type: ignore[arg-type]
        assert [extra["id"] for extra in rows["extra_info"]] == ids
        assert set(rows["data_source"]) == {f"arithmetic-{split}"}


def test_the_script_names_every_run_and_refuses_others(handed: Handed) -> None:
    script = handed[1] / "run.sh"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    process = subprocess.run(["bash", script, "nobody"], capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr.startswith("no run nobody; those of this folder are: grpo-arithmetic-s3")
    text = script.read_text()
    for name in record(handed[1])["runs"]:
        assert f"logs/{name}.jsonl" in text
        assert f"trainer.experiment_name='{name}'" in text


def test_the_script_calls_verl_with_files_of_the_folder_and_the_seed(handed: Handed, tmp_path: Path) -> None:
    """A python3 that prints its arguments stands in for verl."""
    stand_in = tmp_path / "python3"
    stand_in.write_text('#!/bin/sh\necho "$VERL_FILE_LOGGER_PATH"\nfor one in "$@"; do echo "$one"; done\n')
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["bash", handed[1] / "run.sh", "grpo-arithmetic-s4", "trainer.save_freq=-1"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "GPUS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    here = handed[1].resolve()
    assert lines[0] == f"{here}/logs/grpo-arithmetic-s4.jsonl"
    assert lines[1:3] == ["-m", "verl.trainer.main_ppo"]
    assert f"data.train_files='{here}/data/arithmetic-train-s4.parquet'" in lines
    assert "actor_rollout_ref.actor.data_loader_seed=4" in lines
    assert lines[-3:] == ["trainer.nnodes=1", "trainer.n_gpus_per_node=2", "trainer.save_freq=-1"]


def test_the_readme_lists_differences_and_what_was_left_out(handed: Handed) -> None:
    text = (handed[1] / "README.md").read_text()
    assert "the critic's value head starts at random weights there, at zeros here" in text
    assert "- arm dpo on arithmetic: verl 0.9 has no dpo" in text
    assert "modify.dynamic_sampling: verl draws further problems until the batch is full" in text


def test_the_policy_is_in_the_folder_and_has_our_weights(handed: Handed) -> None:
    where = record(handed[1])["runs"]["grpo-arithmetic-s3"]["model"]
    assert where == "models/nano"
    ours, theirs = (load(str(path)).model.state_dict() for path in ("nano", handed[1] / where))
    assert all((ours[name] == theirs[name]).all() for name in ours)


# The reward function


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Problem, str, dict[str, Any]]]:
    return stored_completions(tmp_path_factory.mktemp("stored"))


def reward_function(folder: Path) -> Any:
    """`compute_score` of the folder's reward.py, loaded by its path as verl loads it."""
    spec = importlib.util.spec_from_file_location("reward_of_hand_over", folder / "reward.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


def test_the_reward_function_gives_our_verdicts_on_a_hundred_completions_of_a_run(
    handed: Handed, stored: list[tuple[Problem, str, dict[str, Any]]]
) -> None:
    compute_score = reward_function(handed[1])
    assert len(stored) >= 100

    def ask(row: tuple[Problem, str, dict[str, Any]]) -> dict[str, float]:
        problem, text, _ = row
        columns = as_columns(problem) | {"index": 0, "split": "train"}
        scores: dict[str, float] = compute_score(
            "arithmetic-train", text, "", columns, part="grpo-arithmetic"
        )
        return scores

    with ThreadPoolExecutor(8) as threads:  # as verl's reward loop calls it
        graded = list(threads.map(ask, stored))
    for scores, (_, _, ours) in zip(graded, stored, strict=True):
        assert scores["score"] == ours["reward"]
        assert scores["acc"] == ours["scores"]["correct"]
        assert {name: scores[name] for name in ("format", "consistent", "supported")} == {
            name: ours["scores"][name] for name in ("format", "consistent", "supported")
        }
    assert {scores["acc"] for scores in graded} == {0.0, 1.0}


def test_weights_scale_and_offset_are_in_the_reward(tmp_path: Path) -> None:
    """0.5·1 + 0.25·1 for a right answer in the right form, times 2, less 1: 0.5."""
    sets = (
        "reward.kind=sum",
        "reward.weights.correct=0.5",
        "reward.weights.format=0.25",
        "reward.scale=2",
        "reward.offset=-1",
    )
    plan, folder = hand_over(tmp_path, "verl", "grpo", sets=sets)
    task = plan.parts[0].config.task
    problem = task.problems("train")[0]
    scores = Graders(folder).score("grpo-arithmetic", as_columns(problem), task.demonstrate(problem))
    assert (scores["score"], scores["acc"]) == (0.5, 1.0)
    nothing = Graders(folder).score("grpo-arithmetic", as_columns(problem), "?")
    assert nothing["score"] == -1.0


def test_a_completion_that_the_machine_cannot_grade_is_no_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_recipe(recipe_file(tmp_path, "grpo")).runs()[0]
    problem = config.task.problems("train")[0]
    calls: list[int] = []

    def fail(self: Any, problems: Any, episodes: Any) -> list[list[Verdict]]:
        calls.append(1)
        return [[Verdict({}, None, "infra_error")]]

    monkeypatch.setattr(type(config.task), "verify_all", fail)
    with pytest.raises(GradingError, match="could not be graded in 3 tries"):
        grade(config, problem, "1")
    assert len(calls) == 3


# Refusals


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["sampler.lag=1"], "arm grpo on arithmetic: sampler.lag is 1; set it to 0"),
        (["model.adapter.rank=4"], "model.adapter is"),
        (["train.schedule=linear"], 'train.schedule is "linear", and verl has "constant" and "cosine"'),
        (["train.optimizer=torch:SGD"], 'train.optimizer is "torch:SGD"'),
        (["train.num_minibatches=3"], "does not divide train.prompts_per_step = 4"),
        (["reward.kind=majority"], "reward majority needs more than one completion's text"),
        (["reward.flip=0.1"], "reward.flip draws by step and place in the group"),
        (["modify.mask_truncated=true"], "modify.mask_truncated leaves cut completions out"),
        (
            ["modify.entropy_target=0.2", "modify.entropy_bonus=0.01"],
            "modify.entropy_target moves the weight of the entropy",
        ),
        (["sampler.top_p=0.9"], "sampler.top_p is 0.9; set it to 1.0"),
        (['sampler.stop=["x"]'], "sampler.stop is ['x']; set it to []"),
        (["sampler.correction=tis"], 'sampler.correction is "tis"; set it to "none"'),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_what_verl_cannot_express_is_refused_with_arm_and_setting(
    sets: list[str], words: str, tmp_path: Path
) -> None:
    assert words in refused(tmp_path, "verl", "grpo", *sets)


def test_an_arm_without_a_loss_of_verls_stops_the_hand_over_unless_it_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["hand-over", recipe_file(tmp_path, "grpo", "dpo"), str(tmp_path / "out"), "--to", "verl"]
    assert cli.main(command) == 2
    stderr = capsys.readouterr().err
    assert "arm dpo on arithmetic: verl 0.9 has no dpo" in stderr
    assert "1 of 2 parts cannot be handed over to verl; --leave-out hands over the rest" in stderr
    assert cli.main([*command, "--leave-out"]) == 0
    assert "1 parts, 2 runs for verl\nleft out: arm dpo" in capsys.readouterr().out
    assert cli.main([*command, "--leave-out"]) == 2
    assert "already exists; name a new folder" in capsys.readouterr().err


def test_nothing_is_written_where_all_arms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1 of 1 parts cannot be handed over to verl$"):
        hand_over(tmp_path, "verl", "dpo", leave_out=True)


def test_a_warm_start_is_made_here_and_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "cache"))
    sets = ("model.warm_start=2", "model.warm_start_batch=2", "model.warm_start_examples=2")
    plan, folder = hand_over(tmp_path, "verl", "grpo", sets=sets)
    where = record(folder)["runs"]["grpo-arithmetic-s3"]["model"]
    assert where == "models/nano-arithmetic"
    before, after = (load(str(path)).model.state_dict() for path in ("nano", folder / where))
    assert any((before[name] != after[name]).any() for name in before)
    assert any(
        "models/ holds the policy after it" in difference for difference in plan.parts[0].translated.differs
    )


# Back again


def verl_log(folder: Path, name: str, gain: float) -> None:
    """A log as verl's file logger writes it, with the names that its trainer makes of our data sources."""
    rows = []
    for step in range(3):
        row: dict[str, float] = {}
        if step:
            row |= {
                "critic/score/mean": 0.2 + gain * step,
                "actor/grad_norm": 0.5,
                "training/global_step": step,
            }
            row |= {"response_length/mean": 8.0, "actor/lr": 1e-4, "timing_s/step": 2.0}
        for split, start in (("validation", 0.25), ("test", 0.375)):
            row |= {
                f"val-core/arithmetic-{split}/acc/mean@1": start + gain * step,
                f"val-aux/arithmetic-{split}/score/mean@1": start + gain * step,
                f"val-aux/arithmetic-{split}/format/mean@1": 1.0,
            }
        rows.append(json.dumps({"step": step, "data": row}))
    log_file = folder / "logs" / f"{name}.jsonl"
    log_file.parent.mkdir(exist_ok=True)
    log_file.write_text("\n".join(rows) + "\n")


def test_logs_of_a_hand_over_stand_beside_our_own_runs(tmp_path: Path, warm: None) -> None:
    _, folder = hand_over(tmp_path, "verl", "grpo")
    for seed, gain in ((3, 0.125), (4, 0.25)):
        verl_log(folder, f"grpo-arithmetic-s{seed}", gain)
    ours = tmp_path / "results"
    recipe = recipe_file(tmp_path, "grpo")
    with drawing("final_accuracy"):
        assert cli.main(["run", recipe, "--out", str(ours), "--workers", "1", "--no-trial"]) == 0
    out = tmp_path / "both"
    assert cli.main(["import", str(folder / "logs"), str(out), "--beside", str(ours / "handed")]) == 0
    described = json.loads((out / "experiment.json").read_text())
    assert described["runs"] == [
        f"{arm}-arithmetic-s{seed}" for arm in ("grpo", "grpo-verl") for seed in (3, 4)
    ]
    run_folder = out / "grpo-verl-arithmetic-s4"
    run = json.loads((run_folder / "provenance.json").read_text())["imported"]
    assert run["metrics"]["eval/test/greedy/correct"] == "val-core/arithmetic-test/acc/mean@1"
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["eval/test/greedy/correct"] == 0.375 + 0.25 * 2
    assert rows[-1]["eval/validation/greedy/correct"] == 0.75
    assert rows[-1]["eval/test/greedy/format"] == 1.0
    status = json.loads((run_folder / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 2)
    # 0.375 + 2·0.125 and 0.375 + 2·0.25 of the test problems are right after the last step.
    runs = grpobench.load(out).runs
    theirs = runs[runs.arm == "grpo-verl"].sort_values("seed")
    assert list(theirs.final) == [0.625, 0.875]
    assert list(theirs.base) == [0.375, 0.375]
    assert list(runs[runs.arm == "grpo"].state) == ["finished", "finished"]
    assert set(runs.split) == {"test"}


def test_a_log_that_ends_early_is_no_result(tmp_path: Path) -> None:
    _, folder = hand_over(tmp_path, "verl", "grpo", sets=("train.steps=3",))
    verl_log(folder, "grpo-arithmetic-s3", 0.1)
    assert cli.main(["import", str(folder / "logs"), str(tmp_path / "out")]) == 0
    status = json.loads((tmp_path / "out" / "grpo-verl-arithmetic-s3" / "status.json").read_text())
    assert status["state"] == "preempted"
    assert status["why"] == "the log ends at step 2 of 3"


def test_what_is_no_experiment_is_refused_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = hand_over(tmp_path, "verl", "grpo")
    verl_log(folder, "grpo-arithmetic-s3", 0.1)
    command = ["import", str(folder / "logs"), str(tmp_path / "out"), "--beside", str(tmp_path)]
    assert cli.main(command) == 2
    assert "no experiment folder; give one such as results/quickstart" in capsys.readouterr().err


def test_updates_become_steps_of_their_means_and_last_evaluations() -> None:
    rows = {
        1: {"reward": 1.0, "learning_rate": 1e-4},
        2: {"reward": 3.0, "learning_rate": 2e-4, "eval/test/greedy/correct": 0.5},
        3: {"reward": 5.0},
    }
    assert by_step({0: {"eval/test/greedy/correct": 0.25}, **rows}, 2) == {
        0: {"eval/test/greedy/correct": 0.25},
        1: {"reward": 2.0, "learning_rate": 2e-4, "eval/test/greedy/correct": 0.5},
        2: {"reward": 5.0},
    }
