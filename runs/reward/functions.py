"""Reward functions of plugins, called as TRL calls them."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from grpobench.algorithms.returned import ReturnError, line_of
from grpobench.runs.settings import plugins
from grpobench.runs.tools.frames import describe_error, innermost
from grpobench.tasks.data.messages import Prompt, as_messages, as_text

RESERVED_COLUMNS = ("prompt", "prompts", "completion", "completions", "completion_ids")
"""Columns that are not passed on, because TRL has its own arguments of these names."""
Input = Literal["text", "messages"]


class FunctionError(ReturnError):
    """A reward function raised, or returned something that is not a reward: the run cannot continue."""


@dataclass(frozen=True)
class RewardInput:
    """One completion, as reward functions see it."""

    prompt: Prompt
    completion: str
    tokens: Sequence[int]
    """The completion's tokens, including the end token."""
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class RewardFunction:
    """A function, by its name in the recipe.

    It is called as::

        def brevity(prompts, completions, **columns) -> list[float | None]

    One call per step has every graded completion, those of a group in sequence. `prompts` and `completions`
    are texts, or lists of messages with ``reward.function_input = "messages"``. Further keyword arguments are
    `completion_ids`, `trainer_state` (a `transformers.TrainerState` with `global_step`, the updates before
    this step, and `max_steps`) and a list per column of the problems (`Task.columns`); `log_extra` and
    `log_metric` exist and do nothing. This follows TRL 1.16's `GRPOTrainer._calculate_rewards`. If a function
    returns None for a completion, it gives no reward to it. NaN, which TRL treats as None, is an error here,
    like any other result than one number per completion."""

    name: str
    call: Callable[..., Any]
    input: Input = "text"

    def __call__(
        self, reward_inputs: Sequence[RewardInput], done: int = 0, steps: int = 0
    ) -> list[float | None]:
        """A reward per completion, None if the function gives none. `done` of `steps` steps are complete.
        Raises FunctionError for whatever the function raises, and for an invalid result."""
        if not reward_inputs:
            return []
        try:
            answer = self.call(**arguments(reward_inputs, self.input, done, steps))
            if inspect.isawaitable(answer):
                answer = asyncio.run(awaited(answer))
            rewards = None if unordered(answer) else list(answer)
        except Exception as error:
            location = innermost(error, plugins.files(self.call)) or line_of(self.call)
            message = f"{location} the reward {self.name} raised {describe_error(error)}; fix it"
            raise FunctionError(message.lstrip()) from error
        if rewards is None:
            raise self.fault(
                f"returned {answer!r:.80} of type {type(answer).__name__}; return a list of "
                f"{len(reward_inputs)} numbers, one for each completion"
            )
        if len(rewards) != len(reward_inputs):
            raise self.fault(
                f"returned {len(rewards)} rewards for {len(reward_inputs)} completions; return one each"
            )
        return [
            self.number(value, reward_input)
            for value, reward_input in zip(rewards, reward_inputs, strict=True)
        ]

    def number(self, value: Any, reward_input: RewardInput) -> float | None:
        if value is None:
            return None
        try:
            reward = math.nan if isinstance(value, str | bytes) else float(value)  # float("1") is 1
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            raise self.fault(
                f"returned {value!r:.80} for the completion {reward_input.completion!r:.80}; "
                "return a finite number, or None if the reward does not apply"
            )
        return reward

    def fault(self, problem: str) -> FunctionError:
        """The error for an invalid result, with the function's file and line."""
        return FunctionError(f"{line_of(self.call)} the reward {self.name} {problem}".lstrip())


def unordered(answer: Any) -> bool:
    """Whether a result is not a row of rewards: a text, a table, a set, None, or a single number."""
    if isinstance(answer, str | bytes | Mapping | Set):
        return True
    try:
        iter(answer)
    except TypeError:
        return True
    return False


def arguments(reward_inputs: Sequence[RewardInput], input: Input, done: int, steps: int) -> dict[str, Any]:
    """The arguments of a function call."""
    from transformers import TrainerState

    names = dict.fromkeys(
        name
        for reward_input in reward_inputs
        for name in reward_input.columns
        if name not in RESERVED_COLUMNS
    )
    prompts: list[Any] = [as_text(reward_input.prompt) for reward_input in reward_inputs]
    completions: list[Any] = [reward_input.completion for reward_input in reward_inputs]
    if input == "messages":
        prompts = [as_messages(reward_input.prompt) for reward_input in reward_inputs]
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    return {
        **{name: [reward_input.columns.get(name) for reward_input in reward_inputs] for name in names},
        "prompts": prompts,
        "completions": completions,
        "completion_ids": [list(reward_input.tokens) for reward_input in reward_inputs],
        "trainer_state": TrainerState(global_step=done, max_steps=steps),
        "log_extra": ignore,
        "log_metric": ignore,
    }


def ignore(*_: Any, **__: Any) -> None:
    """What TRL would log beside the rewards."""


async def awaited(answer: Any) -> Any:
    return await answer
