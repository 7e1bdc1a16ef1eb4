"""One callback as its run sees it: a process, a bounded queue, and why it is heard of no more."""

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
from collections.abc import Mapping
from typing import Any

from grpobench.runs.settings.observe import Observe
from grpobench.runs.tools.json_lines import line
from grpobench.runs.tools.process import death

MOST_LEFT = 1000
"""Messages that may wait for a callback. One that is further behind is dropped."""
CHILD = "grpobench.runs.observe.child"
SECONDS_KILLED = 5.0
"""What a killed process gets to be gone."""
LONGEST_REPORT = 2**16
"""Bytes: what a pipe holds."""


class Link:
    """Tells one callback. Nothing here waits for it but `close`, which has a limit."""

    def __init__(self, observe: Observe, beside: str) -> None:
        self.observe = observe
        self.failure = ""
        """Why the callback was dropped; empty: it was not."""
        self.left: queue.Queue[bytes | None] = queue.Queue(MOST_LEFT)
        self.report, theirs = os.pipe()
        os.set_blocking(self.report, False)
        command = [sys.executable, "-P", "-u", "-m", CHILD, str(theirs)]
        try:
            # A session of its own: Ctrl-C and the end of the run's process group leave it time to finish.
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
        """Hand on what is told, until `close` or until the process is gone, of which `gone` hears."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            while (data := self.left.get()) is not None:
                self.process.stdin.write(data)
                self.process.stdin.flush()
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def tell(self, **message: Any) -> None:
        """Queue a message, which is copied here and now."""
        if self.gone():
            return
        try:
            self.left.put_nowait(line(message))
        except queue.Full:
            self.drop(f"it is {MOST_LEFT} messages behind")

    def gone(self) -> bool:
        """Whether the callback hears no more, either way."""
        if not self.failure and self.process.poll() is not None:
            self.failure = self.heard().get("failed") or f"its process {death(self.process.returncode)}"
            self.kill()
        return bool(self.failure)

    def drop(self, why: str) -> None:
        self.failure = why
        self.kill()

    def kill(self) -> None:
        """End the process and whatever it has started; the feeder then finds the pipe closed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_KILLED)
        with contextlib.suppress(queue.Full):
            self.left.put_nowait(None)

    def heard(self) -> Mapping[str, str]:
        """What the process said before it ended: how it failed, or that it came to its end."""
        try:
            said = os.read(self.report, LONGEST_REPORT)
        except BlockingIOError:
            return {}
        found: Mapping[str, str] = json.loads(said) if said else {}
        return found

    def close(self, deadline: float, state: str, why: str) -> None:
        """Tell the end, and wait for the process until `deadline` on the monotonic clock."""
        self.tell(tell="end", state=state, why=why)
        if not self.failure:
            try:
                self.left.put(None, timeout=max(0.0, deadline - time.monotonic()))
                code = self.process.wait(max(0.0, deadline - time.monotonic()))
                said = self.heard()  # a process may leave with 0 long before its end
                self.failure = "" if "ended" in said else said.get("failed") or f"its process {death(code)}"
            except (queue.Full, subprocess.TimeoutExpired):
                self.drop("it did not end in time")
        self.feeder.join(1.0)
        os.close(self.report)
