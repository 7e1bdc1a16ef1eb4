"""The launcher of an experiment, which hands runs to an engine until none is left or a signal stops it."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Literal

from rich.console import Console

from grpobench.runs.experiment import watchdog
from grpobench.runs.experiment.alike import Crashes
from grpobench.runs.experiment.display import Display
from grpobench.runs.experiment.executor import Lost, RunExecutor
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import Ended
from grpobench.runs.runfolder.logs import mark, settled, status
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.lock import LeaseLost, Lock
from grpobench.runs.tools.progress import duration
from grpobench.runs.tools.screen import print_line
from grpobench.runs.train.progress import Progress

POLL = 0.25
"""Seconds between two checks of signals and updates of the display."""
GRACE = 25.0
"""Seconds that runs get to reach a point where they can save. Runs that are already writing a checkpoint get
longer."""
GRACE_FULL = 2.0
"""The same on a full disk: nothing can be saved, and the documentation promises 5 seconds."""
MOST_AGAIN = 3
"""Attempts after the first for a run whose machine fails and that saves no new checkpoint."""
PAUSES = (1.0, 4.0, 15.0)
"""Seconds before each of these attempts. A run that did save a checkpoint waits only the first."""


def seed_by_seed(runs: Sequence[ExperimentRun]) -> list[ExperimentRun]:
    """The order in which runs begin. Arms are compared within a seed: begun together, they share what other
    load the machine has, and whoever interrupts the experiment has whole seeds. Of a seed, the longest run
    begins first, so that it does not end alone."""
    turn = {seed: number for number, seed in enumerate(dict.fromkeys(run.config.seed for run in runs))}
    return sorted(runs, key=lambda run: (turn[run.config.seed], -run.cost))


@dataclass
class Launcher:
    """Hands runs to an engine.

    If the machine of a run fails, the launcher tries the run again after a pause, from its last checkpoint. A
    run that fails because of its recipe is not tried again."""

    runs: list[ExperimentRun]
    engine: RunExecutor
    console: Console
    active: dict[str, ExperimentRun] = field(default_factory=dict)
    signals: int = 0
    """Number of signals received so far."""
    stopping_since: float | None = None
    grace: float = GRACE
    demand: Callable[[], None] = lambda: None
    """Raises LeaseLost if another launcher owns the experiment by now."""
    patience: float = field(default_factory=watchdog.patience)
    """Seconds without a report after which a run counts as unresponsive."""
    waited_for: set[str] = field(default_factory=set)
    """Runs that stop late because they write a checkpoint, as last reported."""
    abandoned: set[str] = field(default_factory=set)
    """Runs whose current attempt was killed because it was late or unresponsive."""
    killed: str = ""
    """Why runs that do not stop are killed."""
    crashes: Crashes = field(default_factory=Crashes)
    listened: float = field(default_factory=time.monotonic)
    """When a report last came in."""

    def launch(self) -> float:
        """Returns the seconds that it took; NaN if there was nothing to do."""
        began = time.monotonic()
        queue = [run for run in self.runs if run.state == "waiting"]
        nothing = not queue
        queue = seed_by_seed(queue)
        with self.listen(), Display(self.console, self.runs, self.engine.workers) as display:
            try:
                while self.busy(queue):
                    self.step(queue, display)
                    display.refresh()
            finally:
                self.engine.close()
        return math.nan if nothing else time.monotonic() - began

    def busy(self, queue: Sequence[ExperimentRun]) -> bool:
        return bool(self.active) or (bool(queue) and self.stopping_since is None)

    def step(self, queue: list[ExperimentRun], display: Display) -> None:
        """Start what there is room for, wait a moment for reports, act on them."""
        self.mind_signals()
        self.mind_lease()
        point("launcher")
        if self.stopping_since is None:
            now = time.monotonic()
            for run in self.engine.start([run for run in queue if run.due <= now]):
                queue.remove(run)
                self.begin(run)
        for run, message in self.engine.news(POLL):
            if isinstance(message, Progress):
                run.heard(message)
                continue
            del self.active[run.name]
            if isinstance(message, Lost) and run.unresponsive:
                message = Lost(watchdog.keep(run, run.unresponsive))
            elif isinstance(message, Lost) and self.killed:
                message = Lost(self.killed)
            if isinstance(message, Lost):
                self.lose(run, message, queue, display)
            elif message.fate == "crashed" and message.machine:
                self.lose(run, Lost(message.why), queue, display)
            else:
                self.end(run, message, display)
                self.hold(run, message, queue, display)
        self.mind_watchdog()

    def begin(self, run: ExperimentRun) -> None:
        run.state, run.began, run.progress = "running", time.monotonic(), None
        run.silent, run.unresponsive, run.logged = 0.0, "", watchdog.size(run)
        run.before = attempts(run)
        self.abandoned.discard(run.name)
        if not run.attempts:
            run.saved = run.checkpoint()
        self.active[run.name] = run

    def end(self, run: ExperimentRun, message: Ended, display: Display) -> None:
        run.state, run.why = message.fate, message.why
        run.seconds = time.monotonic() - run.began
        if run.state == "disk full" and self.stopping_since is None:
            self.stop(GRACE_FULL)
        display.ended(run)

    def hold(self, run: ExperimentRun, message: Ended, queue: list[ExperimentRun], display: Display) -> None:
        """Do not start what would crash like this run and another."""
        if message.fault and (group := self.crashes.hold(run, message.fault, queue)):
            display.note(group.message, failed=True)

    def lose(self, run: ExperimentRun, lost: Lost, queue: list[ExperimentRun], display: Display) -> None:
        """The machine of a run failed: try again, unless the run was to stop or makes no progress, or this
        attempt had its result already and only could not report it."""
        why = lost.why
        if settled(run.path) and attempts(run) > run.before:
            recorded_status = status(run.path)
            self.end(run, Ended(recorded_status["state"], recorded_status["why"]), display)
            return
        saved = run.checkpoint()
        if saved > run.saved:
            run.attempts = 0
        run.saved = saved
        over = not lost.machine or (run.attempts >= MOST_AGAIN and not lost.preempted)
        if self.stopping_since is not None or over:
            state: Literal["preempted", "crashed"] = "preempted" if self.stopping_since else "crashed"
            if run.attempts and state == "crashed":
                why = f"{why}; {run.attempts + 1} attempts made no progress beyond step {saved}"
            record(run, state, why)
            self.end(run, Ended(state, why), display)
            return
        pause = PAUSES[min(run.attempts, len(PAUSES) - 1)]
        run.attempts += 1
        run.state, run.due = "waiting", time.monotonic() + pause
        queue.insert(0, run)
        display.note(f"{run.name}: {why}; resuming from step {saved} in {duration(pause)}")

    # Stopping

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Count SIGTERM and SIGINT instead of dying of them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def count(number: int, frame: FrameType | None) -> None:
            self.signals += 1 if number == signal.SIGINT or self.signals == 0 else 0

        before = {number: signal.signal(number, count) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def mind_signals(self) -> None:
        """First signal: ask the runs to stop. Second Ctrl-C, or no time left: kill them."""
        if self.signals and self.stopping_since is None:
            again = "a second interrupt" if self.console.is_jupyter else "Ctrl-C again"
            print_line(self.console, f"stopping: runs are saving checkpoints ({again} kills them)")
            self.stop(GRACE)
        if self.signals > 1:
            self.killed = "killed by a second Ctrl-C"
            self.engine.kill()
        elif self.stopping_since is not None and time.monotonic() - self.stopping_since > self.grace:
            self.end_late()

    def end_late(self) -> None:
        """Kill the runs that have not stopped in time, except those that are writing a checkpoint, which may
        be large. On a full disk no checkpoint can be written."""
        full = any(run.state == "disk full" for run in self.runs)
        self.killed = f"killed: it had not begun to save {self.grace:g} s after the request to stop"
        saving = {name for name, run in self.active.items() if run.saving and not full}
        if not saving:
            self.engine.kill()
            return
        if saving != self.waited_for:
            again = "another interrupt" if self.console.is_jupyter else "Ctrl-C again"
            print_line(self.console, f"still saving: {', '.join(sorted(saving))} ({again} kills)")
            self.waited_for = saving
        for name in self.active.keys() - saving - self.abandoned:
            self.give_up(self.active[name])

    def give_up(self, run: ExperimentRun) -> None:
        """Kill whatever executes a run, once."""
        self.abandoned.add(run.name)
        self.engine.abandon(run)

    def mind_lease(self) -> None:
        """If another launcher has taken over the experiment, ask the runs to stop and start none."""
        if self.stopping_since is None:
            try:
                self.demand()
            except LeaseLost as lost:
                print_line(self.console, f"stopping: {lost}")
                self.stop(GRACE)

    def mind_watchdog(self) -> None:
        """Give up unresponsive runs."""
        now = time.monotonic()
        passed, self.listened = min(now - self.listened, watchdog.MOST_UNSEEN), now
        for run in list(self.active.values()):
            if run.progress is None and self.engine.queues:
                continue
            run.silent += passed
            if run.silent >= self.patience and run.name not in self.abandoned:
                run.unresponsive = watchdog.unresponsive(run)
                self.give_up(run)

    def stop(self, grace: float) -> None:
        self.stopping_since, self.grace = time.monotonic(), grace
        self.engine.stop()


def attempts(run: ExperimentRun) -> int:
    """Attempts that the run's folder records."""
    return int(status(run.path).get("attempt", 0))


def record(run: ExperimentRun, state: Literal["crashed", "preempted"], why: str) -> None:
    """Record the end of a run whose worker could not."""
    if run.path.exists() and not Lock(run.path).owner():
        with contextlib.suppress(OSError):
            mark(run.path, state, why)
