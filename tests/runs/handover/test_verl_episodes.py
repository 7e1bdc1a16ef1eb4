"""Episodes of several turns in verl's hands: the agent loop, without verl's own code and with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.handed import hand_over

from grpobench.runs.handover.folder import overrides
from grpobench.runs.handover.grading import problem_of
from grpobench.runs.handover.verl_episodes import EpisodeLoop
from grpobench.runs.models.loading import load
from grpobench.runs.sample.episodes import demonstrated
from grpobench.tasks.signed import Signed

NAME = "grpo-signed-s3"
SETS = ("tasks=signed", "seeds=3", "evaluate.problems=2", "evaluate.test_problems=2")


class Server:
    """Writes scripted turns, longer than they may be, and keeps the requests."""

    def __init__(self, *turns: tuple[int, ...]) -> None:
        self.turns = list(turns)
        self.requests: list[dict[str, Any]] = []

    async def generate(self, **request: Any) -> Any:
        self.requests.append(request)
        return SimpleNamespace(token_ids=self.turns.pop(0), log_probs=None)


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, folder = hand_over(tmp_path_factory.mktemp("verl"), "verl", "grpo", sets=SETS)
    return folder


def config_of(folder: Path) -> Any:
    """What of verl's configuration the agent loop reads, of the run's files and arguments."""
    run = json.loads((folder / "provenance.json").read_text())["hand_over"]["runs"][NAME]
    arguments = dict(assignment.split("=", 1) for assignment in overrides(NAME, run, str(folder)))
    model = arguments["actor_rollout_ref.model.path"].strip("'")
    assert (
        arguments["actor_rollout_ref.rollout.agent.agent_loop_config_path"] == f"'{folder}/agent_loops.yaml'"
    )
    reward = SimpleNamespace(
        path=arguments["reward.custom_reward_function.path"].strip("'"),
        reward_kwargs=SimpleNamespace(part=run["part"]),
    )
    return SimpleNamespace(
        reward=SimpleNamespace(custom_reward_function=reward),
        actor_rollout_ref=SimpleNamespace(model=SimpleNamespace(path=model)),
    )


def test_an_episode_is_laid_out_as_ours_whatever_the_server_writes_behind_a_turn(handed: Path) -> None:
    """The first turn ends with a newline, although the server goes on; the second with an end token."""
    row = pd.read_parquet(handed / "data" / "signed-train-s3.parquet").iloc[0]
    problem = problem_of(row["extra_info"])
    loop = EpisodeLoop(SimpleNamespace(config=config_of(handed)), Server())
    loaded, task = loop.loaded, loop.config.task
    turns = task.demonstrate_episode(problem)
    letter, answer = (tuple(loaded.tokenizer.encode(text, add_special_tokens=False)) for text in turns)
    loop.server = server = Server((*letter, *letter), (*answer, loaded.end[0]))
    rollout = asyncio.run(loop.play(problem, {"temperature": 1.0}, 0))
    ours = demonstrated(loaded, task, problem, turns)
    assert rollout.prompt == ours.prompt
    assert rollout.completion == ours.completion
    assert rollout.completion_mask == ours.completion_mask
    first, second = server.requests
    assert first["request_id"] == second["request_id"]
    assert second["prompt_ids"][: len(ours.prompt)] == list(ours.prompt)
    assert first["sampling_params"] == {"temperature": 1.0, "max_tokens": task.turn_tokens}


@pytest.mark.verl
def test_verls_worker_plays_an_episode_of_its_own_configuration(handed: Path) -> None:
    """Two rows: a letter and a newline, an end token and a sign of the environment, a letter and an end."""
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_dir
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.workers.rollout.replica import TokenOutput

    run = json.loads((handed / "provenance.json").read_text())["hand_over"]["runs"][NAME]
    machines = ["trainer.nnodes=1", "trainer.n_gpus_per_node=1"]
    with initialize_config_dir(str(handed / "configs"), version_base=None):
        config = compose(run["part"], [*overrides(NAME, run, str(handed)), *machines])
    row = pd.read_parquet(handed / run["train"]).iloc[0]
    loaded = load("nano")
    turns = Signed().demonstrate_episode(problem_of(row["extra_info"]))

    class Policy:
        async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
            first = loaded.decode(prompt_ids).endswith(":")
            text, end = (turns[0], []) if first else (turns[1], [loaded.end[0]])
            tokens = [*loaded.tokenizer.encode(text, add_special_tokens=False), *end]
            return TokenOutput(token_ids=tokens, log_probs=[-0.5] * len(tokens))

    columns = {"raw_prompt": list(row["prompt"]), "extra_info": row["extra_info"], "index": 0}
    batch = DataProto.from_dict(
        tensors={"two": torch.zeros(2, 1)},
        non_tensors={name: np.array([value] * 2, dtype=object) for name, value in columns.items()},
    )
    output = asyncio.run(AgentLoopWorker(config, Policy()).generate_sequences(batch))
    assert output.batch["response_mask"][:, :6].tolist() == [[1, 1, 0, 0, 1, 1]] * 2
    assert output.batch["rm_scores"].sum(1).tolist() == output.non_tensor_batch["acc"].tolist() == [1, 1]
    assert output.batch["rollout_log_probs"][0, :6].tolist() == [-0.5, -0.5, 0, 0, -0.5, -0.5]
