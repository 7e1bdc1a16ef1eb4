"""Episodes of several turns inside TRL's GRPOTrainer, as its `rollout_func`."""

# Not as its `environment_factory`: this hands an environment single calls without the turn around them, knows
# no reply but that of a tool, no end of a turn but the model's, and only some chat templates with tools.

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from grpobench.runs.handover.grading import problem_of
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.episodes import episodes, policy_turns
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.task import Problem


class Episodes:
    """Plays episodes with the weights that a trainer has. TRL trains on the tokens that the policy wrote.

    `loaded` is the model that the trainer trains, before it wraps it. `rows` are those of the training
    problems in a parquet file of the hand-over; TRL asks for an episode by its prompt."""

    def __init__(
        self, config: RunConfig, loaded: Loaded, seed: int, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        self.config, self.loaded, self.seed = config, loaded, seed
        self.problems = {prompt_key(row["prompt"]): problem_of(row["extra_info"]) for row in rows}
        self.calls = 0
        self.limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens

    @cached_property
    def sampler(self) -> HFSampler:
        """Made when first asked for: by then the trainer has moved the model to its device."""
        loaded, sampler = self.loaded, self.config.sampler
        models = RoleModels(loaded.model, temperature=sampler.temperature, dtype=self.config.model.dtype)
        return HFSampler(models, loaded.end, loaded.pad, sampler.max_batch_size, loaded.context)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """TRL's `rollout_func`: an episode for each prompt. The reward functions get `turns`, what the policy
        wrote."""
        problems = [self.problems[prompt_key(prompt)] for prompt in prompts]
        self.calls += 1
        stream = f"{trainer.accelerator.process_index}/{self.calls}"
        seeds = [(derive(self.seed, "rollout_func", stream, number),) for number in range(len(problems))]
        rows = self.play(problems, seeds, self.config.sampler.temperature)
        rollouts = [rollout for (rollout,) in rows]
        return {
            "prompt_ids": [list(rollout.prompt) for rollout in rollouts],
            "completion_ids": [list(rollout.completion) for rollout in rollouts],
            "logprobs": [rollout.sampler_logp.tolist() for rollout in rollouts],
            "env_mask": [list(map(int, rollout.completion_mask)) for rollout in rollouts],
            "turns": [self.turns(*pair) for pair in zip(problems, rollouts, strict=True)],
        }

    def play(
        self, problems: Sequence[Problem], seeds: Sequence[tuple[int, ...]], temperature: float
    ) -> list[list[Rollout]]:
        """Episodes of each problem, one for each of its seeds, with the present weights."""
        model = self.loaded.model
        training = model.training
        model.eval()
        try:
            arguments = self.config.task, problems, seeds, self.limit, temperature
            return episodes(self.sampler, self.loaded, *arguments)
        finally:
            model.train(training)

    def evaluate(
        self, rows: Sequence[Mapping[str, Any]], count: int, temperature: float
    ) -> list[list[list[str]]]:
        """The turns of `count` episodes of each row; greedy ones at temperature 0."""
        problems = [problem_of(row["extra_info"]) for row in rows]
        seeds = [
            tuple(derive(self.seed, "evaluate", problem.id, number) for number in range(count))
            for problem in problems
        ]
        played = self.play(problems, seeds, temperature)
        return [
            [self.turns(problem, rollout) for rollout in rollouts]
            for problem, rollouts in zip(problems, played, strict=True)
        ]

    def turns(self, problem: Problem, rollout: Rollout) -> list[str]:
        return policy_turns(self.loaded, problem, rollout)


def prompt_key(prompt: Any) -> str:
    """A prompt of a row as TRL gives it, a text or messages; a text is its only message."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return json.dumps([[message["role"], message["content"]] for message in messages])
