"""A flawed proxy of quality: surface features of a completion, for studies of reward hacking.

    proxy(text) = Σ_f strength_f · n_f / (n_f + h)

n_f counts feature f in what the policy wrote, h is the count at which a feature is worth one half
(`reward.proxy_half`), and the strengths are `reward.proxy`. A term rises with every further occurrence and
stays below its strength, so that there is always something to gain and never an infinite reward; a negative
strength punishes a feature. Nothing in it looks at the problem or at the truth. Which features go along with
correct answers depends on the policy: `docs/rewards.md` gives measured values for the built-in one.

Reward functions from elsewhere, called as TRL calls them:

    def brevity(prompts, completions, **columns) -> list[float | None]

One call per step has every graded completion, those of a group behind each other. `prompts` and
`completions` are texts, or lists of messages with ``reward.function_input = "messages"``. Among the other
arguments, all by name, are `completion_ids`, `trainer_state` (a `transformers.TrainerState` with
`global_step`, the updates before this step, and `max_steps`) and a list per column of the problems
(`Task.columns`); `log_extra` and `log_metric` are there and do nothing. The contract is that of TRL 1.16's
`GRPOTrainer._calculate_rewards`. A completion for which a function answers None has no such reward. NaN,
which TRL takes for None, is a fault here, and so is any other answer than one number per completion.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from grpobench.algorithms.returned import line_of
from grpobench.runs.settings.config import Feature

HEDGE = re.compile(
    r"about|apparently|approximately|around|could|guess|likely|may|maybe|might|"
    r"perhaps|possibly|probably|roughly|seem|seems|should|suppose|unsure"
)
"""Words of doubt."""
ASSURANCE = re.compile(
    r"absolutely|always|certain|certainly|clearly|definitely|evidently|exactly|indeed|"
    r"must|never|obviously|precisely|sure|surely|therefore|thus|undoubtedly"
)
"""Words that claim certainty."""
WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
DIGIT = re.compile(r"[0-9]")


def words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


FEATURES: Mapping[Feature, Callable[[str], int]] = {
    "length": len,
    "words": lambda text: len(words(text)),
    "lines": lambda text: sum(bool(line.strip()) for line in text.splitlines()),
    "digits": lambda text: len(DIGIT.findall(text)),
    "equations": lambda text: text.count("="),
    "hedges": lambda text: sum(bool(HEDGE.fullmatch(word)) for word in words(text)),
    "assurances": lambda text: sum(bool(ASSURANCE.fullmatch(word)) for word in words(text)),
}
"""Counts: characters, words of letters, lines that are not blank, digits,
equals signs, words of doubt, words of certainty."""


def proxy(text: str, strengths: Mapping[Feature, float], half: float) -> float:
    """The sum of the module's formula; 0 for an empty completion."""
    counts = {name: FEATURES[name](text) for name in strengths}
    return sum(strength * counts[name] / (counts[name] + half) for name, strength in strengths.items())


RESERVED_COLUMNS = ("prompt", "prompts", "completion", "completions", "completion_ids")
"""Columns that are not passed on: TRL has arguments of its own for these."""
Input = Literal["text", "messages"]


class FunctionError(RuntimeError):
    """A reward function raised, or answered something that is no reward: the run cannot go on with it."""


@dataclass(frozen=True)
class RewardInput:
    """One completion, as reward functions see it."""

    prompt: str
    completion: str
    tokens: Sequence[int]
    """The completion's tokens, the end token with them."""
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class RewardFunction:
    """A function, by the name that the recipe gives it."""

    name: str
    call: Callable[..., Any]
    input: Input = "text"

    def __call__(self, asked: Sequence[RewardInput], done: int = 0, steps: int = 0) -> list[float | None]:
        """A reward per completion, None where it does not apply. `done` of `steps` steps are behind us.
        Raises FunctionError for whatever the function raises, and for an answer that is none."""
        if not asked:
            return []
        try:
            answer = self.call(**arguments(asked, self.input, done, steps))
            if inspect.isawaitable(answer):
                answer = asyncio.run(awaited(answer))
            found = None if unordered(answer) else list(answer)
        except Exception as error:
            raise FunctionError(
                f"the reward {self.name} raised {type(error).__name__}: {error}; mend it"
            ) from error
        if found is None:
            raise self.fault(
                f"returned {answer!r:.80} of type {type(answer).__name__}; return a list of {len(asked)} "
                "numbers, one for each completion"
            )
        if len(found) != len(asked):
            raise self.fault(f"gave {len(found)} rewards for {len(asked)} completions; give one each")
        return [self.number(value, one) for value, one in zip(found, asked, strict=True)]

    def number(self, value: Any, asked: RewardInput) -> float | None:
        if value is None:
            return None
        try:
            found = math.nan if isinstance(value, str | bytes) else float(value)  # float("1") is 1
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found):
            raise self.fault(
                f"gave {value!r:.80} for the completion {asked.completion!r:.80}; "
                "give a finite number, or None where it does not apply"
            )
        return found

    def fault(self, what: str) -> FunctionError:
        """The error for an answer that is none, with the function's file and line."""
        return FunctionError(f"{line_of(self.call)} the reward {self.name} {what}".lstrip())


def unordered(answer: Any) -> bool:
    """Whether an answer is no row of rewards: a text, a table, a set, None, or one number alone."""
    if isinstance(answer, str | bytes | Mapping | Set):
        return True
    try:
        iter(answer)
    except TypeError:
        return True
    return False


def arguments(asked: Sequence[RewardInput], input: Input, done: int, steps: int) -> dict[str, Any]:
    """What a function is called with."""
    from transformers import TrainerState

    names = dict.fromkeys(name for one in asked for name in one.columns if name not in RESERVED_COLUMNS)
    prompts: list[Any] = [one.prompt for one in asked]
    completions: list[Any] = [one.completion for one in asked]
    if input == "messages":
        prompts = [[{"role": "user", "content": text}] for text in prompts]
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    return {
        **{name: [one.columns.get(name) for one in asked] for name in names},
        "prompts": prompts,
        "completions": completions,
        "completion_ids": [list(one.tokens) for one in asked],
        "trainer_state": TrainerState(global_step=done, max_steps=steps),
        "log_extra": ignore,
        "log_metric": ignore,
    }


def ignore(*_: Any, **__: Any) -> None:
    """What TRL would log beside the rewards."""


async def awaited(answer: Any) -> Any:
    return await answer
