"""The result of a check of `grpobench doctor --deep`; a crash of a check becomes a result too."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.lock import FolderError
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.bounded import FileError
from grpobench.tasks.data.tables import DataError

Verdict = Literal["good", "wrong", "could not be checked"]
Whose = Literal["yours", "the machine's"]


@dataclass(frozen=True)
class DeepResult:
    """The verdict of one check."""

    check: str
    verdict: Verdict
    message: str
    """What was observed, in words."""
    remedy: str = ""
    whose: Whose = "yours"
    """Who must fix a failure: the user, or whoever maintains the machine or the code."""
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class CheckInput:
    """The input of the checks."""

    configs: Sequence[RunConfig]
    """Every run of the recipe."""
    out: Path
    """Where its results would go."""
    room: Path
    """A temporary folder on that file system."""

    @property
    def first(self) -> RunConfig:
        """The recipe's first run."""
        return self.configs[0]


Finding = tuple[Verdict, str, str, Whose]
Look = Callable[[CheckInput], Finding]


def good(message: str) -> Finding:
    return "good", message, "", "yours"


def wrong(message: str, remedy: str, whose: Whose = "the machine's") -> Finding:
    return "wrong", message, remedy, whose


def unknown(message: str, remedy: str, whose: Whose = "yours") -> Finding:
    return "could not be checked", message, remedy, whose


def carry_out(
    looks: Sequence[tuple[str, Look]], check_input: CheckInput, tell: Callable[[str], None]
) -> Iterator[DeepResult]:
    """Run each check in turn, whatever it raises. `tell` gets a message before each."""
    for number, (name, look) in enumerate(looks, 1):
        tell(f"{name}, check {number} of {len(looks)}")
        began = time.monotonic()
        try:
            finding = look(check_input)
        except Exception as error:  # Errors of a broken machine become results.
            finding = raised(error)
        gc.collect()  # free models that a check has left
        yield replace(DeepResult(name, *finding), seconds=round(time.monotonic() - began, 3))


def raised(error: Exception) -> Finding:
    """What an exception says about the recipe or the machine."""
    from grpobench.runs.models.token_budgets import ModelError

    if isinstance(error, ConfigError | DataError | FileError | FolderError | ModelError):
        return wrong(str(error), "fix what the message names", "yours")
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return wrong(message, "see to the disk or the system that refused it")
    if "out of memory" in message.lower():
        return wrong(
            message, ("set train.micro_batch_tokens or sampler.max_batch_size lower, or take a larger device")
        )
    return unknown(message, "run a step of the recipe alone to see where it comes from", "the machine's")


def code(results: Sequence[DeepResult]) -> int:
    """The exit code: 70 if something is the machine's fault, 2 if the user must fix something, else 0."""
    amiss = [result for result in results if result.verdict != "good"]
    if not amiss:
        return 0
    return 70 if any(result.whose == "the machine's" for result in amiss) else 2


def as_lines(result: DeepResult) -> list[str]:
    """For people."""
    head = f"{result.verdict:<5} {result.seconds:6.1f} s  {result.check}: {result.message}"
    return [head, *([f"                → {result.remedy}"] if result.remedy else [])]
