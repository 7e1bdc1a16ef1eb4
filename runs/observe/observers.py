"""The callbacks of a run as the run sees them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.runs.runfolder import provenance
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings import plugins, stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.observe import Observe
from grpobench.runs.tools import toml
from grpobench.runs.tools.files import line
from grpobench.runs.tools.process import death

MOST_LEFT = 1000
"""Messages that may wait for a callback. A callback that is further behind is dropped."""
CHILD = "grpobench.runs.observe.child"
LATE = "it did not end in time"
SECONDS_KILLED = 5.0
"""Seconds until a killed process must be gone."""
LONGEST_REPORT = 2**16
"""Bytes that a pipe holds."""


class Link:
    """Sends messages to one callback. Only `close` waits for it, up to a limit."""

    def __init__(self, observe: Observe, beside: str) -> None:
        self.observe = observe
        self.failure = ""
        """Why the callback was dropped; empty if it was not."""
        self.left: queue.Queue[bytes | None] = queue.Queue(MOST_LEFT)
        self.report, theirs = os.pipe()
        os.set_blocking(self.report, False)
        command = [sys.executable, "-P", "-u", "-m", CHILD, str(theirs)]
        try:
            # In a session of its own it outlives Ctrl-C and the run's process group long enough to finish.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=(theirs,),
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        finally:
            os.close(theirs)
        self.tell(
            reference=observe.reference,
            settings=observe.settings,
            beside=beside,
            seconds=observe.seconds,
            parent=os.getpid(),
        )
        self.feeder = threading.Thread(target=self.feed, name=f"callback {observe.name}", daemon=True)
        self.feeder.start()

    def feed(self) -> None:
        """Pass on messages until `close` or until the process is gone, which `gone` reports."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            while (data := self.left.get()) is not None:
                self.process.stdin.write(data)
                self.process.stdin.flush()
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def tell(self, **message: Any) -> None:
        """Queue a message, which is copied at once."""
        if self.gone():
            return
        try:
            self.left.put_nowait(line(message))
        except queue.Full:
            self.drop(f"it is {MOST_LEFT} messages behind")

    def gone(self) -> bool:
        """Whether the callback no longer receives messages, for either reason."""
        if not self.failure and self.process.poll() is not None:
            self.failure = self.heard().get("failed") or f"its process {death(self.process.returncode)}"
            self.kill()
        return bool(self.failure)

    def drop(self, why: str) -> None:
        self.failure = why
        self.kill()

    def kill(self) -> None:
        """End the process and everything that it started; the feeder then finds the pipe closed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_KILLED)
        with contextlib.suppress(queue.Full):
            self.left.put_nowait(None)

    def heard(self) -> Mapping[str, str]:
        """What the process said before it ended: how it failed, or that it ended normally."""
        try:
            report_bytes = os.read(self.report, LONGEST_REPORT)
        except BlockingIOError:
            return {}
        report_fields: Mapping[str, str] = json.loads(report_bytes) if report_bytes else {}
        return report_fields

    def close(self, deadline: float, state: str, why: str) -> None:
        """Send the end, and wait for the process until `deadline` on the monotonic clock."""
        self.tell(tell="end", state=state, why=why)
        if not self.failure:
            try:
                self.left.put(None, timeout=max(0.0, deadline - time.monotonic()))
                code = self.process.wait(max(0.0, deadline - time.monotonic()))
                report = self.heard()  # A process may exit with 0 long before its end.
                self.failure = (
                    "" if "ended" in report else report.get("failed") or f"its process {death(code)}"
                )
            except (queue.Full, subprocess.TimeoutExpired):
                self.drop(LATE)
        self.feeder.join(1.0)
        os.close(self.report)


SECONDS_PREEMPTED = 10.0
"""Maximum seconds for callbacks when the run is told to stop; the process must be gone after 30."""


class Observers:
    """Sends events to all callbacks of a run. A callback that fails is noted once in provenance.json and in
    log.txt, and gets no more. Without callbacks nothing is started.

    Sending messages never blocks the run. Each callback has a process and a bounded queue. A callback that
    fails or falls behind is dropped."""

    def __init__(self, folder: RunFolder | None = None, links: Sequence[Link] = ()) -> None:
        self.folder, self.links = folder, list(links)
        self.failed: list[dict[str, str]] = []

    @classmethod
    def start(cls, config: RunConfig, folder: RunFolder) -> Observers:
        """The callbacks of a run, each in a process that is starting."""
        if not config.observe:
            return cls(folder)
        observers = cls(folder)
        observers.note(callbacks=[described(callback, config.beside) for callback in config.observe])
        for callback in config.observe:
            try:
                observers.links.append(Link(callback, config.beside))
            except OSError as error:
                observers.lost(callback.name, f"its process cannot be started: {error}")
        return observers

    def begin(self, config: RunConfig, done: int) -> None:
        """The run is at its first step, or resumes after `done` steps."""
        if self.links and self.folder:
            settings = toml.read(stored.dump(config))
            self.tell(tell="begin", config=settings, folder=str(self.folder.path.resolve()), done=done)

    def step(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl has been written."""
        self.tell(tell="step", row=row)

    def evaluation(self, step: int, split: str, summary: Mapping[str, Any]) -> None:
        """The policy has been evaluated."""
        self.tell(tell="evaluation", step=step, split=split, summary=summary)

    def end(self, state: str, why: str) -> None:
        """The run has ended; all callbacks get time to end too, in parallel."""
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
        """Record callbacks that have failed, and send them nothing more."""
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
            with contextlib.suppress(OSError):  # A full disk ends the run soon enough, but not here.
                self.folder.note(**facts)


def described(callback: Observe, beside: str) -> dict[str, Any]:
    """The record of a callback in provenance.json: a hash per source file, without importing it. These files
    are not part of the run's code, because a separate process cannot change its numbers."""
    source_files = plugins.sources(callback.reference, Path(beside) if beside else None)
    code = {str(path): provenance.digest(str(path)) for path in source_files}
    return {"name": callback.name, "reference": callback.reference, "code": code}
