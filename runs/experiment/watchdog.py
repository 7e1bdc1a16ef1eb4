"""Runs that say nothing any more. A run reports from its safe points, every few seconds; one that has not
for `GRPOBENCH_PATIENCE` seconds hangs.

Its own process writes down where it is: a timer of the interpreter, which needs neither the main thread nor
the interpreter's lock and is put off by every report, writes the stacks of all threads to log.txt. The
launcher, which counts for itself, keeps them in unresponsive-ATTEMPT.txt, has the process killed, and the
run goes on
from its last checkpoint. A process that was stopped (SIGSTOP) writes nothing, and the file says so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import time
from collections.abc import Callable, Iterator

from grpobench.runs.experiment.run import Run
from grpobench.runs.runfolder.logs import status
from grpobench.runs.tools.files import write_atomic
from grpobench.runs.tools.progress import duration
from grpobench.runs.tools.strict import user_seconds
from grpobench.runs.train.progress import Progress

VARIABLE = "GRPOBENCH_PATIENCE"
SECONDS = 1800.0
"""Much longer than what a run does without a safe point: loading a model, grading a batch, one call of an
engine of its own, a checkpoint."""
EARLY = 0.9
"""The share of the patience after which stacks are written down, so that they are there when it is over."""
OFTEN = 0.02
"""The share of the patience after which the timer is worth setting anew."""
MARK = b"Timeout ("
"""With this the interpreter's timer begins what it writes."""
STDERR = 2
MOST_UNSEEN = 5.0
"""Seconds of silence that one look can add: while the launcher itself does not run (a laptop asleep, Ctrl-Z),
nobody is there to hear anything."""
NO_STACK = (
    "It wrote no stack, as a process that is stopped (SIGSTOP) or waits for a dead disk cannot; what it said "
    "before stands in log.txt."
)


def patience() -> float:
    """Seconds: the user's, infinite where these are not above 0. Raises ConfigError for what is no number."""
    seconds = user_seconds(VARIABLE, SECONDS)
    return seconds if seconds > 0 else math.inf


@contextlib.contextmanager
def written_down(report: Callable[[Progress], None]) -> Iterator[Callable[[Progress], None]]:
    """Around a run: where nothing is reported for long, the stacks of its threads go to standard error, its
    log.txt. Gives the `report` that puts this off."""
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


def size(run: Run) -> int:
    """Bytes of a run's log.txt."""
    try:
        return (run.path / "log.txt").stat().st_size
    except OSError:
        return 0


def stack(run: Run) -> str:
    """The last stacks that this attempt wrote down; empty where there are none."""
    try:
        with (run.path / "log.txt").open("rb") as file:
            file.seek(run.logged)
            text = file.read()
    except OSError:
        return ""
    return text[text.rindex(MARK) :].decode(errors="replace") if MARK in text else ""


def unresponsive(run: Run) -> str:
    """Why a run is given up."""
    phase = run.progress.phase if run.progress else "starting"
    return f"hung: no word for {duration(run.silent)} in `{phase}`"


def keep(run: Run, why: str) -> str:
    """Write unresponsive-ATTEMPT.txt; what is said of the run, with where to look."""
    found = stack(run)
    place = run.path / f"unresponsive-{status(run.path).get('attempt', 0)}.txt"
    if not run.path.is_dir():
        return why
    with contextlib.suppress(OSError):
        write_atomic(place, f"{why}\n\n{found or NO_STACK}\n".encode(errors="replace"))
    return f"{why}; its stack is in {place}" if found else f"{why}; it wrote no stack ({place})"
