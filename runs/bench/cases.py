"""What `grpobench bench` measures: the cases by name, and the shapes of those that are timed step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.workers.processors import cores

STEPPED: Final = ("short", "long-prompt")
"""Cases in which both sides make one step after the other."""
GRID, SCALING, LAUNCHER, KEEPING = "grid", "scaling", "launcher", "keeping"
NAMES: Final = (*STEPPED, GRID, SCALING, LAUNCHER, KEEPING)
SMALL: Final = ("nano", "nano-moe")
"""Built-in models: of the others a step has fewer prompts, and only the long ones unless asked for more."""
MOST_WARM_UP: Final = 2
"""First steps of each side, which are not counted."""


@dataclass(frozen=True)
class Case:
    """A shape that both sides work on. Each of `prompts` prompts gets `group` completions per step."""

    name: str
    model: str
    prompts: int
    group: int
    prompt_tokens: int
    completion_tokens: int
    steps: int
    """Most steps in all, with those that warm up."""
    threads: int = 1
    texts: tuple[str, ...] = ()
    """The prompts, which the first side to start makes and the other is given."""

    @property
    def tokens(self) -> int:
        """Tokens of all sequences of a step, the prompt counted once per completion."""
        return self.rows * (self.prompt_tokens + self.completion_tokens)

    @property
    def rows(self) -> int:
        """Completions of a step."""
        return self.prompts * self.group


def chosen(model: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """The names of the cases to measure, in the order of `NAMES`; `wanted` is empty for the model's usual
    ones. Raises ConfigError for a case that the model does not have."""
    if not wanted:
        return STEPPED if model in SMALL else ("long-prompt",)
    if SCALING in wanted and model != "nano":
        raise ConfigError([f"--case {SCALING} makes models of its own; leave --model {model} away"])
    if LAUNCHER in wanted and model != "nano":
        raise ConfigError([f"--case {LAUNCHER} trains nothing; leave --model {model} away"])
    if KEEPING in wanted and model != "nano":
        raise ConfigError([f"--case {KEEPING} runs the recipe quickstart; leave --model {model} away"])
    if GRID in wanted and model not in SMALL:
        raise ConfigError([f"--case {GRID} has tasks for {' and '.join(SMALL)}, not for --model {model}"])
    return tuple(name for name in NAMES if name in wanted)


def shape(name: str, model: str) -> Case:
    """What a step of a case is."""
    prompts, group = (16, 8) if model in SMALL else (2, 16)
    prompt, completion, steps = (16, 24, 16) if name == "short" else (150, 8, 8)
    return Case(name, model, prompts, group, prompt, completion, MOST_WARM_UP + steps, cores())
