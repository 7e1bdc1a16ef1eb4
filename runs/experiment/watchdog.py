"""Detect unresponsive runs: those without a report for `GRPOBENCH_PATIENCE` seconds."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import time
from collections.abc import Callable, Iterator

from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.runfolder.logs import status
from grpobench.runs.tools.files import write_atomic
from grpobench.runs.tools.progress import duration
from grpobench.runs.tools.strict import user_seconds
from grpobench.runs.train.progress import Progress
from grpobench.tasks.data import bounded

VARIABLE = "GRPOBENCH_PATIENCE"
SECONDS = 1800.0
"""Default patience in seconds. Much longer than any work without a safe point: loading a model, grading a
batch, one call of an inference engine, a checkpoint."""
EARLY = 0.9
"""Stacks are written after this share of the patience, so that they exist when it is over."""
OFTEN = 0.02
"""The timer is reset after this share of the patience; sooner is not worth it."""
MARK = b"Timeout ("
"""The interpreter's timer begins its output with this."""
STDERR = 2
MOST_UNSEEN = 5.0
"""Maximum seconds of silence that one check can add. While the launcher itself does not run (a laptop asleep,
Ctrl-Z), it cannot hear reports."""
NO_STACK = (
    "It wrote no stack: it may be stopped (SIGSTOP) or be waiting for a dead disk. Its earlier output "
    "is in log.txt."
)


def patience() -> float:
    """The user's patience in seconds, infinite if not above 0. Raises ConfigError if it is not a number."""
    seconds = user_seconds(VARIABLE, SECONDS)
    return seconds if seconds > 0 else math.inf


@contextlib.contextmanager
def written_down(report: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    """Wraps a run: after a long time without a report, the stacks of its threads go to standard error, which
    is its log.txt. Yields the `report` that resets the timer.

    A timer of the interpreter, which needs neither the main thread nor the interpreter's lock and is reset by
    every report, writes the stacks. A process that was stopped (SIGSTOP) writes nothing."""
    seconds = patience()
    if math.isinf(seconds):
        yield report
        return
    last = -math.inf

    def report_and_rearm(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= OFTEN * seconds:
            last = time.monotonic()
            faulthandler.dump_traceback_later(EARLY * seconds, file=STDERR)
        report(progress)

    faulthandler.dump_traceback_later(EARLY * seconds, file=STDERR)
    try:
        yield report_and_rearm
    finally:
        faulthandler.cancel_dump_traceback_later()


def size(run: ExperimentRun) -> int:
    """Size of a run's log.txt in bytes."""
    try:
        return (run.path / "log.txt").stat().st_size
    except OSError:
        return 0


def stack(run: ExperimentRun) -> str:
    """The last stacks that this attempt wrote; empty if there are none."""
    try:
        with bounded.open_file(run.path / "log.txt") as file:
            file.seek(max(run.logged, file.seek(0, 2) - bounded.max_text()))
            text = file.read()
    except (OSError, bounded.FileError):
        return ""
    return text[text.rindex(MARK) :].decode(errors="replace") if MARK in text else ""


def unresponsive(run: ExperimentRun) -> str:
    """Why a run is given up."""
    phase = run.progress.phase if run.progress else "starting"
    return f"unresponsive: no report for {duration(run.silent)} in `{phase}`"


def keep(run: ExperimentRun, why: str) -> str:
    """Write unresponsive-ATTEMPT.txt. Returns the reason with the path of the file.

    The launcher measures the time by itself. It keeps the stacks and has the process killed, and the run
    resumes from its last checkpoint."""
    stack_text = stack(run)
    path = run.path / f"unresponsive-{status(run.path).get('attempt', 0)}.txt"
    if not run.path.is_dir():
        return why
    with contextlib.suppress(OSError):
        write_atomic(path, f"{why}\n\n{stack_text or NO_STACK}\n".encode(errors="replace"))
    return f"{why}; its stack is in {path}" if stack_text else f"{why}; it wrote no stack ({path})"
