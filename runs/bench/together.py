"""Programs that run side by side, and the time that all of them took."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POLL: Final = 0.02
"""Seconds between two looks at the programs: nothing beside the seconds that they take."""
TAIL: Final = 1500
"""Characters of a failed program's output that its error shows."""


@dataclass(frozen=True)
class Program:
    """A command, and the file that gets what it prints."""

    words: Sequence[str]
    log: Path


def together(
    programs: Sequence[Program], at_once: int, variables: Mapping[str, str], told: Callable[[int], None]
) -> float:
    """Run all programs, `at_once` at a time, in order; the seconds from the first start to the last end.
    `told` gets the number of those that have ended. Raises ChildProcessError, with the end of what it
    printed, for one that fails; the others are then ended."""
    waiting, running, ended = list(programs), list[tuple[subprocess.Popen[bytes], Program]](), 0
    began = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                program = waiting.pop(0)
                running.append((begin(program, variables), program))
            told(ended)
            time.sleep(POLL)
            for pair in [pair for pair in running if pair[0].poll() is not None]:
                running.remove(pair)
                demand_success(*pair)
                ended += 1
    finally:
        for process, _ in running:
            process.kill()
            process.wait()
    return time.monotonic() - began


def begin(program: Program, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with program.log.open("wb") as log:
        return subprocess.Popen(
            program.words,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def demand_success(process: subprocess.Popen[bytes], program: Program) -> None:
    if process.returncode:
        tail = program.log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
        raise ChildProcessError(f"{' '.join(program.words)} ended with {process.returncode}:\n{tail}")
