"""Episodes of several turns inside verl 0.9, as an agent loop of its rollout."""

from __future__ import annotations

import asyncio
import functools
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

from grpobench.runs.handover.grading import Graders, problem_of
from grpobench.runs.models.loading import Loaded, load_outline
from grpobench.runs.sample.episodes import Episode, ask_environments, policy_turns
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.settings.config import RunConfig
from grpobench.tasks.task import Problem, Task


@functools.cache
def graders_of(folder: Path) -> Graders:
    """The graders of a hand-over, once for each process of verl's."""
    return Graders(folder)


@functools.cache
def tokenizer_of(path: str, chat_template: bool) -> Loaded:
    """The tokenizer and the end tokens of a model; no weights."""
    from transformers import GenerationConfig

    outline = load_outline(path, check_weights=False, chat_template=chat_template)
    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # a model without this file
        ends = None
    ends = {*(ends if isinstance(ends, list) else [ends]), outline.tokenizer.eos_token_id} - {None}
    return Loaded(outline.model, outline.tokenizer, outline.provenance, tuple(sorted(ends)))


LOCK = threading.Lock()
"""Of the environments, which need not be safe to use from several threads."""


def ask(task: Task, episode: Episode) -> None:
    """Get the environment's reply."""
    with LOCK:
        ask_environments(task, [episode])


class EpisodeLoop:
    """Plays one episode for each call of `run`, with the tokens that verl's server writes. verl makes it with
    the arguments of its `AgentLoopBase`. The reward is that of the hand-over's graders."""

    def __init__(self, trainer_config: Any, server_manager: Any, **_: Any) -> None:
        config = trainer_config.config
        reward = config.reward.custom_reward_function
        self.server = server_manager
        self.part = str(reward.reward_kwargs.part)
        self.graders = graders_of(Path(reward.path).parent)
        self.config: RunConfig = self.graders.config(self.part)
        self.loaded = tokenizer_of(config.actor_rollout_ref.model.path, self.config.model.chat_template)

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **columns: Any) -> Any:
        """An episode as verl's `AgentLoopOutput`."""
        from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

        problem = problem_of(columns["extra_info"])
        rollout = await self.play(problem, sampling_params, int(priority))
        turns = policy_turns(self.loaded, problem, rollout)
        text = self.loaded.decode(rollout.completion)
        scores = await asyncio.to_thread(self.graders.score, self.part, columns["extra_info"], text, turns)
        return AgentLoopOutput(
            prompt_ids=list(rollout.prompt),
            response_ids=list(rollout.completion),
            response_mask=list(map(int, rollout.completion_mask)),
            response_logprobs=rollout.sampler_logp.tolist() if sampling_params.get("logprobs") else None,
            reward_score=scores["score"],
            num_turns=2 * len(turns),
            metrics=AgentLoopMetrics(),
            extra_fields={"reward_extra_info": scores, "turn_scores": [], "tool_rewards": []},
        )

    async def play(self, problem: Problem, sampling_params: dict[str, Any], priority: int) -> Rollout:
        """One episode, turn by turn, with the limits of our own loop."""
        task, loaded = self.config.task, self.loaded
        limit = self.config.sampler.max_completion_tokens or task.max_completion_tokens
        room = min(task.turn_tokens, limit)
        episode = Episode(loaded, task, problem, loaded.encode(problem.prompt))
        request = uuid4().hex  # one for the episode: the server that has its cache answers all of it
        for turn in range(task.turns):
            output = await self.server.generate(
                request_id=request,
                prompt_ids=[*episode.prompt, *episode.tokens],
                sampling_params={**sampling_params, "max_tokens": room},
                priority=priority,
            )
            tokens = list(output.token_ids)[:room]
            episode.take(tokens, output.log_probs or [0.0] * len(tokens))
            await asyncio.to_thread(ask, task, episode)
            if episode.ended or turn + 1 == task.turns or not episode.answer(limit - room):
                break
        return episode.rollout()
