"""Environments of the package verifiers: problems from the data set, replies from `env_response`, scores from
the rubric, in the package's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.environment_tasks import recipe_task

import grpobench
from grpobench.runs.settings import environments
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.messages import Message, offered_tools
from grpobench.tasks.data.tools import ToolCall
from grpobench.tasks.kinds import environment
from grpobench.tasks.kinds.environment import EnvironmentTask
from grpobench.tasks.verifiers import PACKAGE

SOURCE = '''
import verifiers as vf
from datasets import Dataset

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

class Guess(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["guesses"] = 0

    async def env_response(self, messages, state, **keywords):
        state["guesses"] += 1
        if messages[-1].content.strip() == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
            return state["final_env_response"]
        return [{"role": "user", "content": f"wrong {state['guesses']}"}]

def right(completion, answer):
    said = [message.content or "" for message in completion if message.role == "assistant"]
    return float(any(answer in text for text in said))

def load_environment(kind, rows=20, tested=False):
    data = Dataset.from_list([{"question": f"{n} + {n} =", "answer": str(2 * n)} for n in range(rows)])
    common = {"dataset": data, "rubric": vf.Rubric(funcs=[right]), "eval_dataset": data if tested else None}
    if kind == "tools":
        return vf.ToolEnv(tools=[add], max_turns=3, **common)
    if kind == "turns":
        return Guess(max_turns=4, **common)
    return vf.SingleTurnEnv(system_prompt="Answer.", **common)
'''
pytestmark = pytest.mark.slow  # the package takes six seconds of CPU to import, in every process


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not environments.verifiers_is_classic():
        pytest.skip(f"{PACKAGE.requirement} is not installed: pip install {PACKAGE.requirement}")
    made = tmp_path_factory.mktemp("verifiers")
    (made / "my_adder.py").write_text(SOURCE)
    yield made
    for pool in environment.POOLS.values():
        pool.close()


def task(folder: Path, arguments: str) -> EnvironmentTask:
    return recipe_task(folder, "verifiers:my-adder", arguments)


@pytest.mark.parametrize(
    ("kind", "turns", "replies", "scores", "rewards"),
    [
        ("single", ["4"], [None], {"correct": 1.0, "right": 1.0, "num_turns": 1.0}, (1.0,)),
        ("single", ["5"], [None], {"correct": 0.0, "right": 0.0}, (0.0,)),
        ("turns", ["3", "4"], ["wrong 1", None], {"correct": 1.0, "num_turns": 2.0}, (0.0, 1.0)),
        (
            "turns",
            ["3"],
            ["wrong 1"],
            {"correct": 0.0, "num_turns": 1.0},
            (0.0,),
        ),  # cut by a limit of the task
        (
            "turns",
            ["1", "2", "3", "5"],
            ["wrong 1", "wrong 2", "wrong 3", None],
            {"correct": 0.0, "num_turns": 4.0},
            (0.0, 0.0, 0.0, 0.0),
        ),
        (
            "tools",
            [str(ToolCall("add", {"a": 2, "b": 2})), "it is 4"],
            ["4", None],
            {"correct": 1.0, "total_tool_calls": 1.0, "add_calls": 1.0},
            (0.0, 1.0),
        ),
    ],
)
def test_an_episode_is_that_of_the_package(
    folder: Path,
    kind: str,
    turns: list[str],
    replies: list[str | None],
    scores: dict[str, float],
    rewards: Any,
) -> None:
    adder = task(folder, f'kind = "{kind}"')
    problem = next(
        problem
        for split in adder.splits
        for problem in adder.problems(split)
        if problem.text.endswith("\n\n2 + 2 =") or problem.text == "2 + 2 ="
    )
    role = "tool" if kind == "tools" else "user"
    assert [tool.name for tool in offered_tools(problem.prompt)] == (["add"] if kind == "tools" else [])
    assert [adder.reply(problem, turns[: n + 1]) for n in range(len(turns))] == [
        None if reply is None else (Message(role, reply),)
        for reply in replies  # type: ignore[arg-type]
    ]
    (verdict,) = adder.verify_episodes(problem, [turns])
    assert verdict.outcome == "graded" and verdict.turn_rewards == rewards
    assert scores.items() <= verdict.scores.items() and verdict.scores["return"] == sum(rewards)
    assert adder.replay_faults([problem]) == []


def test_data_for_evaluation_is_the_test_and_splits_are_disjoint(folder: Path) -> None:
    adder = task(folder, 'kind = "single", tested = true')
    ids = {split: {problem.id for problem in adder.problems(split)} for split in adder.splits}
    assert ids["test"] == {f"eval-{n}" for n in range(20)}
    assert ids["train"] | ids["validation"] == {f"train-{n}" for n in range(20)}
    assert not ids["train"] & ids["validation"]


def test_what_a_recipe_gets_wrong_is_said_at_once(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings.arguments: .*called with \(king=\.\.\.\)"):
        task(folder, 'king = "single"')
    (folder / "recipe.toml").write_text('tasks = ["verifiers:my-ader"]\n[[arm]]\nalgorithm = "grpo"\n')
    with pytest.raises(ConfigError, match=r"no module 'my_ader'.*did you mean my_adder"):
        read_recipe(str(folder / "recipe.toml"))


def test_the_environment_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    """The files of docs/environments.md, through GRPO and PPO."""
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    for name, text in re.findall(r"^```\w+\n# (adder\.\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    results = grpobench.run("adder.toml", workers=1, progress=False)
    assert set(results.rollouts["arm"]) == {"grpo", "ppo"} and results.rollouts["outcome"].eq("graded").all()
    assert len(results.metrics) >= 4 and results.metrics["gap/max"].max() < 1e-3
