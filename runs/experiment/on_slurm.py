"""The engine of a Slurm cluster, through submitit: a job array with one job per run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from grpobench.runs.experiment.executor import Lost, News
from grpobench.runs.experiment.remote import LOOK, Board, Post, carry_out, extend_search, surroundings
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import Ended
from grpobench.runs.settings.layers import parse_set
from grpobench.runs.tools import machine
from grpobench.runs.tools.process import environment
from grpobench.runs.tools.strict import ConfigError

COMMAND = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T")
ASK = 15.0
"""Seconds between two queries."""
LONGEST = 10.0
"""Seconds that the controller gets to answer."""
OVER = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States of a job that will not come back, unless Slurm is about to queue it again."""
FORGOTTEN = "FORGOTTEN"
"""State of a job that Slurm no longer lists: it ended some minutes ago (`MinJobAge`)."""


class Queue:
    """The states of jobs by Slurm's last answer.

    `squeue` asks Slurm's controller; submitit's `sacct` knows nothing on clusters without accounting."""

    def __init__(self) -> None:
        self.last_query = -ASK
        self.answers = 0
        self.states: dict[str, str] = {}
        self.watchdog = ""
        """Why the last query had no answer; empty if it had one."""

    def ask(self) -> None:
        """Query Slurm without raising: a controller that restarts or is too busy is asked again later."""
        self.last_query = time.monotonic()
        try:
            output = subprocess.run(
                COMMAND, capture_output=True, text=True, timeout=LONGEST, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            self.watchdog = str(getattr(error, "stderr", None) or error).strip()
            return
        self.watchdog = ""
        self.answers += 1
        pairs = (line.strip().partition("|") for line in output.splitlines())
        self.states = {job: state for job, _, state in pairs}

    def look(self) -> None:
        """Query Slurm if the last query is old enough."""
        if time.monotonic() - self.last_query >= ASK:
            self.ask()

    def state(self, job: str) -> str:
        """The state of a job such as ``12_3``."""
        return self.states.get(job, FORGOTTEN)


MISSING = "--on slurm: submitit is not installed; pip install '.[slurm]' in a checkout"
LARGEST_ARRAY = 1000
"""Jobs of an array; Slurm's default MaxArraySize is 1001."""
MINUTES = 24 * 60
"""Time limit of a job, unless --job timeout_min=N sets one. A run that needs longer is queued again."""
MOST_TIMEOUTS = 1000
CANCELLED = "its job was cancelled (scancel); the next start resumes from the last checkpoint"
SETTLING = 10.0
"""Seconds until a result must appear on the storage after its job has ended."""


@dataclass(frozen=True)
class Slot:
    """The function that a job calls."""

    packed: bytes
    search: tuple[str, ...]

    def __call__(self) -> Ended:
        extend_search(self.search)
        warning = getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2"))
        queue_again = signal.getsignal(warning)
        warned = []

        def listen(post: Post) -> None:
            def note(number: int, frame: FrameType | None) -> None:
                post.stopping = True
                if number == warning:
                    warned.append(number)

            for number in (warning, signal.SIGTERM):
                signal.signal(number, note)

        ended = carry_out(self.packed, listen)
        if ended.fate == "preempted" and warned and callable(queue_again):
            queue_again(
                warning, None
            )  # Submitit's DelayedSubmission saves this object, queues the job and ends the process.
        return ended

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(eq=False)
class SubmittedJob:
    """A job and its run."""

    run: ExperimentRun
    job: Any
    over: float | None = None
    """When the job was first seen to be over, on the monotonic clock."""
    answers: int = 0
    """Number of Slurm's answers by then, or when the job was submitted."""
    cancelled: bool = False


class SlurmEngine:
    """Submits all runs; at most `workers` of them run at once.

    When a job is preempted or its time runs out, Slurm warns it; the job saves a checkpoint and submitit
    queues it again. The launcher submits jobs again that submitit does not bring back, such as those of a
    dead node."""

    queues = True

    def __init__(
        self,
        folder: Path,
        workers: int,
        execute: str,
        allow_change: bool,
        *,
        cluster: str,
        cpus: int = 1,
        gpus: float | None = None,
        parameters: Sequence[str] = (),
    ) -> None:
        try:
            import submitit
        except ImportError:
            raise ConfigError([MISSING]) from None
        self.local = cluster == "local"
        self.workers = workers or (machine.count_worker_slots(gpus) if self.local else LARGEST_ARRAY)
        self.board = Board(folder, execute, cpus, allow_change)
        self.folder = self.board.path.parent / "jobs"
        self.around = surroundings(cpus)
        try:
            timeouts = {f"{cluster}_max_num_timeout": MOST_TIMEOUTS}
            self.executor = submitit.AutoExecutor(self.folder, cluster=cluster, **timeouts)
            self.executor.update_parameters(**self.settings(folder.name, cpus, gpus, parameters))
        except (NameError, TypeError, ValueError, RuntimeError) as error:
            self.board.close()
            raise ConfigError([f"--on slurm: {error}"]) from error
        self.active: dict[str, SubmittedJob] = {}
        self.given_up: list[News] = []
        self.queue = Queue()
        self.looked = 0.0

    def settings(self, name: str, cpus: int, gpus: float | None, parameters: Sequence[str]) -> dict[str, Any]:
        """The parameters of submitit for the jobs."""
        job_settings: dict[str, Any] = {"name": name, "timeout_min": MINUTES, "cpus_per_task": cpus}
        if gpus:
            job_settings["gpus_per_node"] = int(gpus)
        if not self.local:
            threads = [
                name for name in self.around if not name.startswith("GRPOBENCH_")
            ]  # sbatch passes these on.
            lines = [f"export {name}={self.around[name]}" for name in threads]
            job_settings |= {"slurm_array_parallelism": self.workers, "slurm_setup": lines}
        for text in parameters:
            parsed = parse_set(text)
            if parsed is None or len(parsed[0]) != 1:
                raise ValueError(f"--job {text}: write --job NAME=VALUE, a parameter of submitit's executor")
            job_settings[parsed[0][0]] = parsed[1]
        return job_settings

    def start(self, queue: Sequence[ExperimentRun]) -> list[ExperimentRun]:
        room = self.workers - len(self.active) if self.local else LARGEST_ARRAY
        begun = list(queue[: max(0, room)])
        if not begun:
            return []
        search = tuple(path for path in sys.path if path)
        with environment(**self.around):
            try:
                with self.executor.batch():
                    jobs = [self.executor.submit(Slot(self.board.parcel(run), search)) for run in begun]
            except Exception as error:  # Submitit wraps sbatch's errors in many classes.
                raise RuntimeError(f"jobs could not be submitted: {error}") from error
        for run, job in zip(begun, jobs, strict=True):
            self.active[run.name] = SubmittedJob(run, job, answers=self.queue.answers)
        return begun

    def news(self, seconds: float) -> list[News]:
        time.sleep(seconds)
        if time.monotonic() - self.looked < LOOK:
            return []
        self.looked = time.monotonic()
        given_up, self.given_up = self.given_up, []
        messages: list[News] = [*given_up, *self.board.heard(entry.run for entry in self.active.values())]
        if not self.local:
            self.queue.look()
        there = set(os.listdir(self.folder))
        for entry in list(self.active.values()):
            message = self.ended(entry, there)
            if message is not None:
                del self.active[entry.run.name]
                messages += self.board.last(entry.run)
                if isinstance(message, Ended):
                    self.tidy(entry)
                else:
                    entry.job.cancel(check=False)  # Slurm may have queued it again by itself.
                messages.append((entry.run, message))
        return messages

    def ended(self, entry: SubmittedJob, there: set[str]) -> Ended | Lost | None:
        """How a job ended; None while it is running."""
        job = entry.job
        if entry.cancelled:
            return Ended("preempted", "its job was cancelled")
        if job.paths.result_pickle.name in there:
            try:
                outcome = job.result()
            except Exception as error:  # any error that submitit could not handle
                why = str(error).strip().splitlines()[-1]
                return Lost(f"its job {job.job_id} failed: {why} (see {job.paths.stderr})")
            if outcome.fate == "preempted" and not (self.board.path / "stop").exists():
                return self.outcome_of(entry)
            return outcome  # type: ignore[no-any-return]
        state = self.over(entry)
        if not state:
            entry.over = None
            return None
        if entry.over is None:  # The result may have appeared after `there` was read.
            entry.over, entry.answers = time.monotonic(), self.queue.answers
            return None
        if not self.local:
            again = self.queue.answers > entry.answers  # Slurm may have been about to queue it again.
            if not again or time.monotonic() - entry.over < SETTLING:
                return None
            if state == "CANCELLED":
                return Ended("preempted", CANCELLED)
        preempted = state.startswith(("PREEMPTED", "REQUEUED"))
        why = f"its job {job.job_id} ended as {state} without a result (see {job.paths.stderr})"
        return Lost(why, preempted)

    def over(self, entry: SubmittedJob) -> str:
        """The final state of a job; empty while it is running."""
        if self.local:
            return str(entry.job.state) if entry.job.done() else ""
        state = self.queue.state(entry.job.job_id)
        is_certain = state != FORGOTTEN or self.queue.answers > entry.answers + 1
        return state if is_certain and (state in OVER or state == FORGOTTEN) else ""

    def outcome_of(self, entry: SubmittedJob) -> Ended | Lost | None:
        """What happened to a job that something other than this launcher told to end; None while Slurm has
        not said yet."""
        job = entry.job
        if not self.local:
            self.queue.ask()
            state = self.queue.state(job.job_id)
            if state == "CANCELLED":
                return Ended("preempted", CANCELLED)
            entry.over = entry.over or time.monotonic()
            if state in ("RUNNING", "COMPLETING") and time.monotonic() - entry.over < SETTLING:
                return None
        return Lost(f"its job {job.job_id} was taken away", preempted=True)

    def tidy(self, entry: SubmittedJob) -> None:
        """Remove the files of a job that reported its end; files of other jobs hold their last messages."""
        for path in self.folder.glob(f"{entry.job.job_id}_*"):
            path.unlink(missing_ok=True)

    def abandon(self, run: ExperimentRun) -> None:
        entry = self.active.pop(run.name, None)
        if entry is None:  # It was given up already, or has ended.
            return
        entry.job.cancel(check=False)
        self.given_up += [*self.board.last(run), (run, Lost(f"its job {entry.job.job_id} was cancelled"))]

    def stop(self) -> None:
        """Ask every run to stop. Runs that have reported will see the request; the others are cancelled."""
        self.board.stop()
        for name, entry in self.active.items():
            if name not in self.board.last_modified:
                self.cancel(entry)

    def kill(self) -> None:
        for entry in self.active.values():
            self.cancel(entry)

    def cancel(self, entry: SubmittedJob) -> None:
        if not entry.cancelled:
            entry.cancelled = True
            entry.job.cancel(check=False)

    def close(self) -> None:
        self.kill()
        self.active.clear()
        self.board.close()
        with contextlib.suppress(OSError):
            for path in self.folder.glob("*.sh"):
                path.unlink()
            self.folder.rmdir()
            self.folder.parent.rmdir()
