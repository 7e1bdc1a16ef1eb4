"""The settings of a language model that grades completions by a rubric."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval

from grpobench.runs.tools.strict import Settings, plain
from grpobench.tasks.data import bounded

RESERVED = ("model", "messages", "temperature", "stream", "n")
"""Keys of a request that `request` cannot change."""
WITHOUT_EFFECT = (
    *("url", "key_variable", "timeout", "retries", "concurrency"),
    *("max_calls", "max_tokens", "prices", "recorded"),
)
"""Settings that say how verdicts are fetched, and change none: a run goes on when they change."""
NonNegative = Annotated[int, Ge(0)]
Price = Annotated[float, Interval(ge=0, lt=math.inf)]


@dataclass(frozen=True)
class JudgeConfig(Settings):
    """A language model behind an address that speaks OpenAI's chat completions, and the rubric by which it
    grades: `[reward.judge]` for rewards, `[evaluate.judge]` for evaluations (docs/rewards.md)."""

    model: str = ""
    """The judge's name in requests."""
    rubric: str = ""
    """What to judge, with `{response}` and, if wanted, `{prompt}` and `{reference}` in it; or the path of a
    .txt or .md file with such a text."""
    url: str = ""
    """Address of the API, such as `http://localhost:8000/v1`; `/chat/completions` is added."""
    key_variable: str = ""
    """Environment variable with the API key; empty: none is sent. The key itself is written nowhere."""
    scale: tuple[float, float] = (0.0, 10.0)
    """Lowest and highest verdict. Rewards and scores are verdicts mapped from here to 0 to 1."""
    repeats: Annotated[int, Interval(ge=1, le=100)] = 1
    """Verdicts on each completion, of which the mean counts."""
    temperature: Annotated[float, Interval(ge=0, le=2)] = 0.0
    """Temperature of the judge."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as `{ max_tokens = 512 }`."""
    timeout: Annotated[float, Gt(0), Interval(lt=math.inf)] = 120.0
    """Seconds for one request."""
    retries: Annotated[int, Interval(ge=0, le=20)] = 5
    """Further attempts after a time-out, a broken answer, or status 408, 409, 425, 429 or 5xx. They wait as
    long as the server asks for, else 1, 2, 4, … seconds, at most 60."""
    concurrency: Annotated[int, Interval(ge=1, le=1024)] = 8
    """Requests at the same time."""
    max_calls: NonNegative = 0
    """Requests that this judge may get in an experiment, retries included; then runs stop. 0: no limit."""
    max_tokens: NonNegative = 0
    """Tokens, of prompts and replies, after which runs stop; requests under way still end. 0: no limit."""
    prices: tuple[Price, Price] = (0.0, 0.0)
    """Price of a million prompt tokens and of a million completion tokens, for `judge/cost`."""
    recorded: str = ""
    """A file of verdicts, such as an experiment's shared/judge.jsonl, to read in place of calling the judge;
    a verdict that it lacks is an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_file(self.rubric):
            object.__setattr__(self, "rubric", bounded.read_text(Path(self.rubric).expanduser()))
            if fault := rubric_fault(self.rubric):
                raise ValueError(f"rubric: the file {fault}")

    def clashes(self) -> Iterator[str]:
        """Of values that are there: tables of several layers are put together later (`gaps`)."""
        if is_file(self.rubric):
            if not Path(self.rubric).expanduser().is_file():
                yield f"rubric: there is no file {self.rubric}; give a text or the path of one"
        elif self.rubric and (fault := rubric_fault(self.rubric)):
            yield f"rubric: {fault}"
        if self.url and not self.url.startswith(("http://", "https://")):
            yield "url: must begin with http:// or https://"
        if self.key_variable and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", self.key_variable):
            # Not repeated: it may be a key.
            yield "key_variable: must be the name of an environment variable that holds the key"
        if not -math.inf < self.scale[0] < self.scale[1] < math.inf:
            yield "scale: must be two finite numbers, the lower first"
        try:
            json.dumps(self.request, allow_nan=False)
        except (TypeError, ValueError):
            yield "request: must hold what JSON can: texts, numbers, true and false, lists and tables"
        for name in sorted({*self.request} & {*RESERVED}):
            yield f"request: {name} is set elsewhere; remove it"
        if self.recorded and not Path(self.recorded).expanduser().is_file():
            yield f"recorded: there is no file {self.recorded}"

    def gaps(self) -> Iterator[str]:
        """What is missing, or wrong with several values together."""
        if not self.model:
            yield "model: must name the judge"
        if not self.rubric:
            yield "rubric: must say what to judge, with {response} in it"
        if not self.url and not self.recorded:
            yield "url: must be the judge's address, or set recorded to a file of verdicts"
        if self.repeats > 1 and not self.temperature:
            yield "repeats: at temperature 0 they would agree; set temperature above 0, or repeats = 1"

    @property
    def effective(self) -> dict[str, Any]:
        """The settings that verdicts depend on, as plain data."""
        return {name: value for name, value in plain(self).items() if name not in WITHOUT_EFFECT}


def gaps_of(judge: JudgeConfig | None) -> Iterator[str]:
    """The gaps in the setting `judge` of a section."""
    yield from (f"judge.{gap}" for gap in (judge.gaps() if judge else ()))


def is_file(rubric: str) -> bool:
    """Whether a rubric is the path of a file."""
    return rubric.endswith((".txt", ".md")) and "\n" not in rubric


def rubric_fault(text: str) -> str:
    """What is wrong with the text of a rubric; empty if nothing is."""
    return "" if "{response}" in text else "must be a text with {response} in it, which stands for the answer"
