"""The cases of `grpobench bench`: their names, the shapes of timed steps, how often steps repeat, and
progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from grpobench.analysis.tools.text import visible
from grpobench.runs.tools.progress import Lines, duration
from grpobench.runs.tools.screen import is_redrawable
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.workers.pool import cores

LONG_ANSWER: Final = "long-answer"
"""The case of a real model on a GPU: in bfloat16, with 256 tokens of an answer."""
STEPPED: Final = ("short", "long-prompt", LONG_ANSWER)
"""Cases in which both sides make one step after the other."""
GRID, MEMORY = "grid", "memory"
DECODINGS: Final = {"decoding": 32, "short-decoding": 8}
"""Cases of decoding, and the tokens of a completion in each: a short derivation, or an answer alone."""
NAMES: Final = (*STEPPED, GRID, MEMORY, *DECODINGS)
ALONE: Final = frozenset({MEMORY, *DECODINGS})
"""Cases without TRL."""
SMALL: Final = ("nano", "nano-moe")
"""Small built-in models. Other models get fewer prompts per step, and by default only the long cases."""
MOST_WARM_UP: Final = 2
"""First steps of each side, which are not counted."""


@dataclass(frozen=True)
class BenchmarkCase:
    """A shape that both sides work on. Each of `prompts` prompts gets `group` completions per step."""

    name: str
    model: str
    prompts: int
    group: int
    prompt_tokens: int
    completion_tokens: int
    steps: int
    """Maximum number of steps, including the warm-up."""
    threads: int = 1
    texts: tuple[str, ...] = ()
    """The prompts, which the first side generates and the other one receives."""
    train: tuple[tuple[str, Any], ...] = ()
    """Further settings of the section `train` of our side."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the products of both sides are computed in. The weights are float32."""
    micro_batch: int = 0
    """Completions of a micro-batch of TRL's; 0: all of a step. Ours has as many tokens."""

    @property
    def tokens(self) -> int:
        """Tokens of all sequences of a step; the prompt counts once per completion."""
        return self.rows * (self.prompt_tokens + self.completion_tokens)

    @property
    def rows(self) -> int:
        """Completions of a step."""
        return self.prompts * self.group


def chosen(model: str, case_names: Sequence[str]) -> tuple[str, ...]:
    """The names of the cases to measure, in the order of `NAMES`; empty `case_names` mean the model's usual
    ones. Raises ConfigError for a case that the model does not have."""
    if not case_names:
        return ("short", "long-prompt") if model in SMALL else ("long-prompt",)
    if GRID in case_names and model not in SMALL:
        raise ConfigError([f"--case {GRID} has tasks for {' and '.join(SMALL)}, not for --model {model}"])
    return tuple(name for name in NAMES if name in case_names)


def shape(name: str, model: str) -> BenchmarkCase:
    """The shape of a case's step."""
    if name == LONG_ANSWER:
        case = BenchmarkCase(name, model, 16, 8, 128, 256, MOST_WARM_UP + 4, cores())
        tokens = 32 * (case.prompt_tokens + case.completion_tokens)
        return replace(case, train=(("micro_batch_tokens", tokens),), dtype="bfloat16", micro_batch=32)
    prompts, group = (16, 8) if model in SMALL else (2, 16)
    prompt, completion, steps = (16, 24, 16) if name == "short" else (150, 8, 8)
    return BenchmarkCase(name, model, prompts, group, prompt, completion, MOST_WARM_UP + steps, cores())


BUDGET: Final = 120.0
"""Maximum seconds for the steps of a case, including the warm-up."""
LEAST: Final = 3
"""Minimum number of counted steps per side, however long they take: a median of fewer means little."""
LONG: Final = 5.0
"""If a side's step takes this many seconds, one step of warm-up is enough: one-time work (allocations,
planned shapes) takes no longer in a large step than in a small one."""


def warm_up(slowest: float) -> int:
    """Number of steps of each side that are not counted, from the seconds of the slower side's first step."""
    return 1 if slowest >= LONG else MOST_WARM_UP


def counted(seconds: float, spent: float, most: int, budget: float = BUDGET) -> int:
    """Number of steps to count of each side: at most `most`, but at least `LEAST` if that many are allowed.
    All sides together took `seconds` for the last step of the warm-up, and `spent` seconds are used up."""
    fit = int((budget - spent) / seconds) if seconds > 0 else most
    return min(most, max(LEAST, fit))


UNKNOWN: Final = math.nan
Tell = Callable[[str, float], None]
"""Receives what is going on, and how many seconds the case will still take; `UNKNOWN` if that is unknown."""


class BenchProgress:
    """Progress of the bench: in a terminal one line with a bar, elsewhere a line when a case begins and now
    and then."""

    def __init__(self, console: Console, cases: int) -> None:
        self.cases, self.number, self.case = cases, 0, ""
        self.began = time.monotonic()
        self.lines = Lines(console)
        self.bar: Progress | None = None
        if is_redrawable(console):
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=console, transient=True, refresh_per_second=2)
            self.line = self.bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, case: str) -> None:
        """The next case begins."""
        self.number += 1
        self.case, self.began = case, time.monotonic()
        self.lines.begin()

    def tell(self, activity: str, left: float) -> None:
        has_estimate = math.isfinite(left)
        label = f"{self.case} ({self.number} of {self.cases})" if self.cases > 1 else self.case
        text = f"{label}: {activity}" + (f", about {duration(left)} left" if has_estimate else "")
        if self.bar:
            done = time.monotonic() - self.began
            description = visible(text).replace("[", r"\[")
            self.bar.update(self.line, description=description, completed=done)
            self.bar.update(self.line, total=done + left if has_estimate else None)
        else:
            self.lines.tell(text)
