"""The callbacks of a run, told from inside its process without ever waiting for them."""

from __future__ import annotations

import contextlib
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.runs.observe.link import Link
from grpobench.runs.record import origin
from grpobench.runs.record.folder import RunFolder
from grpobench.runs.settings import doors, stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.observe import Observe

SECONDS_PREEMPTED = 10.0
"""Most that callbacks get when the run is told to stop: 30 seconds later the process must be gone."""


class Observers:
    """Tells every callback of a run what happens. One that fails is noted in origin.json and in log.txt,
    once, and hears no more. Without callbacks nothing is started."""

    def __init__(self, folder: RunFolder | None = None, links: Sequence[Link] = ()) -> None:
        self.folder, self.links = folder, list(links)
        self.failed: list[dict[str, str]] = []

    @classmethod
    def start(cls, config: RunConfig, folder: RunFolder) -> Observers:
        """The callbacks of a run, each in a process that has begun to start."""
        if not config.observe:
            return cls(folder)
        found = cls(folder)
        found.note(callbacks=[described(one, config.beside) for one in config.observe])
        for one in config.observe:
            try:
                found.links.append(Link(one, config.beside))
            except OSError as error:
                found.lost(one.name, f"its process cannot be started: {error}")
        return found

    def begin(self, config: RunConfig, done: int) -> None:
        """The run is at its first step, or goes on behind `done` of them."""
        if self.links and self.folder:
            told = tomllib.loads(stored.dump(config))
            self.tell(tell="begin", config=told, folder=str(self.folder.path.resolve()), done=done)

    def step(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl has been written."""
        self.tell(tell="step", row=row)

    def evaluation(self, step: int, split: str, summary: Mapping[str, Any]) -> None:
        """The policy has been evaluated."""
        self.tell(tell="evaluation", step=step, split=split, summary=summary)

    def end(self, state: str, why: str) -> None:
        """The run has ended; every callback gets its time to do so too, all at once."""
        began = time.monotonic()
        for link in self.links:
            seconds = link.observe.seconds
            if state == "preempted":
                seconds = min(seconds, SECONDS_PREEMPTED)
            link.close(began + seconds, state, why)
        self.drop()

    def tell(self, **message: Any) -> None:
        for link in self.links:
            link.tell(**message)
        self.drop()

    def drop(self) -> None:
        """Note those that have failed, and tell them nothing more."""
        lost = [link for link in self.links if link.failure]
        self.links = [link for link in self.links if not link.failure]
        for link in lost:
            self.lost(link.observe.name, link.failure)

    def lost(self, name: str, why: str) -> None:
        self.failed.append({"name": name, "why": why})
        print(f"the callback {name} is dropped: {why}", file=sys.stderr, flush=True)
        self.note(callbacks_failed=self.failed)

    def note(self, **facts: Any) -> None:
        if self.folder:
            with contextlib.suppress(OSError):  # a full disk ends the run soon enough, but not from here
                self.folder.note(**facts)


def described(one: Observe, beside: str) -> dict[str, Any]:
    """What origin.json says of a callback, which is not imported for it: a hash per source file. They are no
    part of the run's code: a process of its own can change no number."""
    found = doors.sources(one.reference, Path(beside) if beside else None)
    code = {str(path): origin.digest(str(path)) for path in found}
    return {"name": one.name, "reference": one.reference, "code": code}
