"""What Slurm says of the jobs of this user, by `squeue`. That asks Slurm's controller itself; submitit asks
`sacct`, which knows nothing where a cluster keeps no accounts."""

from __future__ import annotations

import subprocess
import time

COMMAND = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T")
ASK = 15.0
"""Seconds between two questions."""
LONGEST = 10.0
"""Seconds that the controller gets to answer."""
OVER = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States of which a job does not come back, unless Slurm is about to queue it again."""
FORGOTTEN = "FORGOTTEN"
"""Of a job that Slurm does not list any more: it ended some minutes ago (`MinJobAge`)."""


class Queue:
    """The states of jobs, as Slurm told them last."""

    def __init__(self) -> None:
        self.asked = -ASK
        self.answers = 0
        self.states: dict[str, str] = {}
        self.silence = ""
        """Why there was no answer, if the last question had none."""

    def ask(self) -> None:
        """Raises nothing: a controller that restarts or is too busy is asked again."""
        self.asked = time.monotonic()
        try:
            told = subprocess.run(COMMAND, capture_output=True, text=True, timeout=LONGEST, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            self.silence = str(getattr(error, "stderr", None) or error).strip()
            return
        self.silence = ""
        self.answers += 1
        pairs = (line.strip().partition("|") for line in told.splitlines())
        self.states = {job: state for job, _, state in pairs}

    def look(self) -> None:
        """Ask, if the last time is long enough ago."""
        if time.monotonic() - self.asked >= ASK:
            self.ask()

    def state(self, job: str) -> str:
        """Of a job such as ``12_3``."""
        return self.states.get(job, FORGOTTEN)
