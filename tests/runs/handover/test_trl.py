"""A hand-over to TRL, executed for a step on this machine; its arguments are those of `train.backend`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.handed import hand_over, refused

from grpobench.algorithms.libraries import trl_arguments
from grpobench.runs import cli
from grpobench.runs.handover.data import Problems
from grpobench.runs.handover.grading import as_columns, problem_of
from grpobench.runs.models.loading import load
from grpobench.runs.settings import trl
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.messages import Message, offered_tools
from grpobench.tasks.data.tools import Tool
from grpobench.tasks.task import Problem


@pytest.mark.parametrize("arm", ["grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo"])
def test_the_arguments_are_those_of_our_backend(arm: str, tmp_path: Path) -> None:
    sets = ("modify.dynamic_sampling=0",)
    plan, folder = hand_over(tmp_path, "trl", arm, sets=sets)
    config = plan.parts[0].config
    expected, faults = trl_arguments.translate(config.algorithm, config.modify, trl.splitting(config))
    assert not faults
    settings = json.loads((folder / "configs" / f"{arm}-arithmetic.json").read_text())
    assert settings["arguments"].items() >= expected.items()
    assert settings["rows"] == 4 * 4 // 2
    assert settings["arguments"]["max_steps"] == 2 * 2
    assert settings["arguments"]["adam_beta2"] == 0.95


@pytest.mark.parametrize(
    ("arm", "sets", "words"),
    [
        ("ppo", [], "arm ppo on arithmetic: TRL's trainers have no ppo"),
        ("dpo", [], "takes recorded pairs, which are not handed over"),
        ("gdpo", [], "takes each part of the reward by itself"),
        ("dapo", [], "modify.dynamic_sampling draws further problems, which TRL cannot do; set it to 0"),
        ("grpo", ["train.schedule=cosine"], 'train.schedule is "cosine"'),
    ],
)
def test_what_trl_cannot_express_is_refused_without_naming_our_loop(
    arm: str, sets: list[str], words: str, tmp_path: Path
) -> None:
    why = refused(tmp_path, "trl", arm, *sets)
    assert words in why
    assert "train.backend" not in why


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a hand-over after its one run of one step of two updates, and what it logged."""
    pytest.importorskip("trl")
    sets = ("train.steps=1", "seeds=3", "evaluate.problems=3", "evaluate.test_problems=4")
    _, folder = hand_over(tmp_path_factory.mktemp("trained"), "trl", "grpo", sets=sets)
    # What `accelerate launch --num_processes 1` executes.
    runpy.run_path(str(folder / "train.py"))["main"](["grpo-arithmetic", "3", "--parts", "2"])
    state = json.loads((folder / "outputs" / "grpo-arithmetic-s3" / "trainer_state.json").read_text())
    return folder, state


def test_a_step_is_trained_and_evaluated(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, state = trained
    updates = [row for row in state["log_history"] if "loss" in row]
    assert [row["step"] for row in updates] == [1, 2]
    assert all(row["grad_norm"] > 0 for row in updates)
    evaluated = [row for row in state["log_history"] if "eval/test/greedy/correct" in row]
    assert [row["step"] for row in evaluated] == [0, 2]
    assert evaluated[0]["eval/test/greedy/correct"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert (folder / "outputs" / "grpo-arithmetic-s3" / "final" / "model.safetensors").is_file()


def test_its_evaluation_before_training_is_ours(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Greedy decoding of the same weights on the same problems has one result."""
    _, state = trained
    first = next(row for row in state["log_history"] if "eval/test/greedy/correct" in row)
    task = ["--task", "arithmetic", "--set", "operations=[2, 3]", "--set", "largest=9"]
    command = ["eval", "nano", *task, "--problems", "4", "--samples", "0", "--json", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    (evaluated,) = json.loads(capsys.readouterr().out)["records"]
    correct = "eval/test/greedy/correct"
    assert first[correct] == evaluated["numbers"]["model"][correct]


def test_its_log_is_imported_by_steps(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, state = trained
    assert cli.main(["import", str(folder / "outputs"), str(tmp_path / "out")]) == 0
    run = tmp_path / "out" / "grpo-trl-arithmetic-s3"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    updates = [row for row in state["log_history"] if "loss" in row]
    (reward,) = (row["reward"] for row in updates if "reward" in row)  # told once for a batch of rollouts
    assert rows[1]["reward/mean"] == reward
    assert rows[1]["grad_norm/policy"] == pytest.approx(sum(row["grad_norm"] for row in updates) / 2)
    assert "eval/test/greedy/correct" in rows[1]
    assert json.loads((run / "status.json").read_text())["state"] == "finished"


# Tasks of several turns

SIGNED = (
    "tasks=signed",
    "reward.weights={ sign = 1.0 }",
    "train.steps=1",
    "seeds=3",
    "evaluate.before=false",
    "evaluate.problems=0",
    "evaluate.test_problems=2",
)
WARM = ("model.warm_start=60", "model.warm_start_batch=16", "model.warm_start_learning_rate=4e-3")


@pytest.mark.slow
def test_trl_trains_on_episodes_and_counts_only_what_the_policy_wrote(tmp_path: Path) -> None:
    """After its warm start the policy writes a letter, a newline, a letter and an end token; the environment
    writes a sign between them, which is the reward."""
    pytest.importorskip("trl")
    _, folder = hand_over(tmp_path, "trl", "grpo", sets=(*SIGNED, *WARM))
    runpy.run_path(str(folder / "train.py"))["main"](["grpo-signed", "3"])
    state = json.loads((folder / "outputs" / "grpo-signed-s3" / "trainer_state.json").read_text())
    first, *_ = [row for row in state["log_history"] if "reward" in row]
    assert first["completions/mean_length"] == pytest.approx(4, abs=0.5)
    assert 0 < first["reward"] < 1 and first["rewards/correct/mean"] > 0.5
    assert first["grad_norm"] > 0
    assert any("eval/test/greedy/correct" in row for row in state["log_history"])


def test_episodes_are_those_of_our_own_sampler_with_their_replies_masked(tmp_path: Path) -> None:
    _, folder = hand_over(tmp_path, "trl", "grpo", sets=SIGNED)
    program = runpy.run_path(str(folder / "train.py"))
    run = json.loads((folder / "provenance.json").read_text())["hand_over"]["runs"]["grpo-signed-s3"]
    settings = json.loads((folder / "configs" / "grpo-signed.json").read_text())
    rows = program["read"](folder / run["train"])
    _, _, played = program["begin"](run, settings, rows)
    trainer = SimpleNamespace(accelerator=SimpleNamespace(process_index=0))
    prompts = [row["prompt"][0]["content"] for row in rows[:2] for _ in range(2)]
    output = played(prompts, trainer)
    assert {name: len(column) for name, column in output.items()} == dict.fromkeys(output, 4)
    assert output["prompt_ids"][0] == output["prompt_ids"][1] != output["prompt_ids"][2]
    assert output["completion_ids"][0] != output["completion_ids"][1], "each has its own random numbers"
    for tokens, mask, logp in zip(
        output["completion_ids"], output["env_mask"], output["logprobs"], strict=True
    ):
        assert len(tokens) == len(mask) == len(logp)
        assert all((value == 0) >= (not by_policy) for value, by_policy in zip(logp, mask, strict=True))
    again, _ = played(prompts, trainer)["completion_ids"][:2]
    assert again != output["completion_ids"][0], "and each call of TRL's"


@pytest.mark.parametrize(
    ("library", "arm", "sets", "words"),
    [
        ("verl", "grpo", ("modify.overlong_buffer=8",), "the agent loop that plays signed gives rewards"),
        ("trl", "rloo", (), "RLOOTrainer takes no `rollout_func`"),
        ("trl", "grpo", ("modify.mask_truncated=true",), "may end without one; set it to false"),
    ],
)
def test_what_a_library_cannot_do_with_turns_is_refused_with_what_to_do(
    library: str, arm: str, sets: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    assert words in refused(tmp_path, library, arm, *SIGNED, *sets)


def test_problems_that_share_a_prompt_are_refused_where_a_prompt_is_all_that_is_known() -> None:
    config = read_recipe("horizon-nano").configs[0]
    loaded = load("nano")
    problems = Problems(config, loaded, 100)
    problems.demand_different_prompts()
    problems.train = [problems.train[0]] * 2
    with pytest.raises(ConfigError, match="share a prompt"):
        problems.demand_different_prompts()


@pytest.mark.parametrize("system", ["", "Use tools."])
def test_a_problem_keeps_its_tools_in_a_file(system: str) -> None:
    tools = (Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}}),)
    prompt = (Message("system", system, tools), Message("user", "1 + 2"))
    problem = Problem("p", prompt, {"answer": 3}, {"difficulty": 2.0})
    read = problem_of(as_columns(problem))
    assert read == problem and offered_tools(read.prompt)[0].parameters == tools[0].parameters
    assert "tools" not in as_columns(Problem("p", "q", 3)), "files of other tasks stay as they were"
