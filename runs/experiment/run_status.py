"""`grpobench status`: the state of the runs in a folder, read from their files by any other process."""

# This reads status.json, run.toml, the end of metrics.jsonl and the locks. It writes nothing and does not
# load torch. Times left are estimates from the last timed steps.

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grpobench.analysis.figures.table import plain
from grpobench.analysis.tools.text import visible, why_no_experiment
from grpobench.runs.experiment.display import INTERVAL
from grpobench.runs.runfolder.logs import RESULTS, result_damage, status
from grpobench.runs.runfolder.rows import last_rows, number_in, token_rate
from grpobench.runs.tools.files import finite
from grpobench.runs.tools.lock import Lock, Owner
from grpobench.runs.tools.progress import Timing, duration, number, time_left
from grpobench.runs.tools.screen import is_redrawable
from grpobench.tasks.data import bounded
from grpobench.tasks.data.bounded import FileError, read_object_if_any
from grpobench.tasks.data.tables import DataError

WATCH = 2.0
"""Seconds between two updates with `--watch` in a terminal; elsewhere the display's `INTERVAL` applies."""
HEADER = ("run", "state", "step", "reward", "tokens/s", "left", "last row", "process")


@dataclass(frozen=True)
class RunStatus:
    """The status of one run. NaN and None mean unknown."""

    run: str
    state: str
    """As in status.json, or `waiting`: not begun; `interrupted`: it says `running`, but no living process
    owns it; `damaged`: part of its result is gone."""
    why: str
    step: int
    steps: int | None
    reward: float
    """Mean reward of the last step."""
    tokens_per_second: float
    """Sampled tokens divided by the seconds of the last step."""
    seconds_left: float
    """Seconds left for this run, at the pace of its last steps."""
    seconds_per_step: float
    """Pace of its last steps, with the evaluations among them."""
    seconds_since_row: float
    """Seconds since metrics.jsonl was last written."""
    process: int | None
    """The living process that owns the folder."""
    host: str | None

    @property
    def timing(self) -> Timing:
        """Its length is that of its steps, at the pace of the last ones."""
        length = self.seconds_per_step * self.steps if self.steps else math.nan
        kin = self.run.rpartition("-s")[0]
        return Timing(kin, self.state not in RESULTS, left=self.seconds_left, length=length)

    @property
    def cells(self) -> tuple[str, ...]:
        steps = "?" if self.steps is None else str(self.steps)
        since = duration(self.seconds_since_row)
        return (
            self.run,
            self.state,
            f"{self.step}/{steps}",
            number(self.reward, ".3f"),
            number(self.tokens_per_second, ",.0f"),
            duration(self.seconds_left),
            f"{since} ago" if since and self.state == "running" else "",
            "" if self.process is None else f"{self.process} on {self.host}",
        )


@dataclass(frozen=True)
class StatusOverview:
    """The status of an experiment folder, or of one run's folder."""

    folder: Path
    launcher: Owner | None
    """The living process that hands out the runs."""
    runs: tuple[RunStatus, ...]

    @property
    def counts(self) -> Counter[str]:
        return Counter(run.state for run in self.runs)

    @property
    def seconds_left(self) -> float:
        """Seconds until the launcher is done, with as many runs at a time as are running; NaN if unknown."""
        running = self.counts["running"]
        if self.launcher is None or not running:
            return math.nan
        return time_left((run.timing for run in self.runs), running)

    @property
    def summary(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.counts.items()))
        left = duration(self.seconds_left)
        time = f"; about {left} left" if left else ""
        who = "no launcher is running"
        if self.launcher:
            who = f"launcher {self.launcher.pid} on {self.launcher.host}"
        return f"{self.folder}: {len(self.runs)} runs: {states}{time}; {who}"

    def lines(self, most: int | None = None) -> list[str]:
        """A table and a summary. With `most`, running runs come first, and the rest is counted."""
        shown = list(self.runs)
        if most is not None and len(shown) > most:
            shown = sorted(shown, key=lambda run: run.state != "running")[: max(1, most)]
        lines = plain(HEADER, [run.cells for run in shown]).text()
        lines += [f"and {len(self.runs) - len(shown)} more"] if len(shown) < len(self.runs) else []
        lines += [
            f"{run.run}: {run.why.splitlines()[0]}" for run in shown if run.why and run.state != "finished"
        ]
        return [*lines, self.summary]

    def row(self) -> dict[str, Any]:
        """For machines."""
        row = {
            "folder": str(self.folder),
            "launcher": self.launcher and {"process": self.launcher.pid, "host": self.launcher.host},
            "counts": dict(self.counts),
            "seconds_left": self.seconds_left,
            "runs": [asdict(run) for run in self.runs],
        }
        return {key: finite(entry) for key, entry in row.items()}


def overviews(folder: Path) -> list[StatusOverview]:
    """The status of an experiment folder, a run folder, or a folder of experiment folders. Raises DataError
    for others."""
    if not folder.is_dir():
        raise DataError(why_no_experiment(folder))
    if (folder / "run.toml").exists():
        return [StatusOverview(folder, Lock(folder.parent).owner(), (run_status(folder),))]
    if (folder / "experiment.json").exists():
        return [experiment(folder)]
    experiments = [experiment(path.parent) for path in sorted(folder.glob("*/experiment.json"))]
    if not experiments:
        raise DataError(
            f"{folder} contains no run; give a folder that `grpobench run` has written, or its parent"
        )
    return experiments


def experiment(folder: Path) -> StatusOverview:
    """Every planned run, and every other run whose folder exists."""
    path = folder / "experiment.json"
    planned = read_object_if_any(path).get("runs", [])
    if not isinstance(planned, list):
        raise FileError(path, "`runs` must be a list; restore the file")
    begun = [path.parent.name for path in sorted(folder.glob("*/run.toml"))]
    names = dict.fromkeys([*map(str, planned), *begun])
    return StatusOverview(folder, Lock(folder).owner(), tuple(run_status(folder / name) for name in names))


def run_status(folder: Path) -> RunStatus:
    """The status of one run."""
    recorded_status, owner, rows = status(folder), Lock(folder).owner(), last_rows(folder / "metrics.jsonl")
    state, why = str(recorded_status.get("state", "waiting")), str(recorded_status.get("why", "") or "")
    if damage := result_damage(folder):
        state, why = "damaged", damage[0]
    if state == "running" and owner is None:
        state, why = "interrupted", "its process is gone; the same `grpobench run` resumes it"
    if state in ("running", "interrupted"):
        why = "; ".join(filter(None, (why, _unresponsive(folder))))
    last = rows[-1] if rows else {}
    step = int(last.get("step", recorded_status.get("step", 0)))
    steps, pace = _steps(folder), _pace(rows)
    left = pace * (steps - step) if state == "running" and steps is not None else math.nan
    return RunStatus(
        run=folder.name,
        state=state,
        why=why,
        step=step,
        steps=steps,
        reward=number_in(last, "reward/mean"),
        tokens_per_second=token_rate(rows),
        seconds_left=left,
        seconds_per_step=pace,
        seconds_since_row=_age(folder / "metrics.jsonl"),
        process=owner.pid if owner else None,
        host=owner.host if owner else None,
    )


def _unresponsive(folder: Path) -> str:
    """The launcher's note on the last attempt that it gave up; empty if it gave up none."""
    note_by_attempt = {}
    for path in folder.glob("unresponsive-*.txt"):
        with contextlib.suppress(OSError, ValueError):
            number = int(path.stem.removeprefix("unresponsive-"))
            note_by_attempt[number] = bounded.read_text(path, errors="replace").partition("\n")[0]
    if not note_by_attempt:
        return ""
    last = max(note_by_attempt)
    return f"attempt {last} {note_by_attempt[last]} (unresponsive-{last}.txt)"


def _steps(folder: Path) -> int | None:
    """Steps that the run will make; None before it has begun."""
    try:
        table = bounded.read_toml(folder / "run.toml")
        return int(table["train"]["steps"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _pace(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds per step over the last rows of one attempt; NaN if unknown. The clock starts anew with each
    attempt."""
    attempt_rows: list[Mapping[str, Any]] = []
    for row in reversed(rows):
        wall = number_in(row, "time/wall")
        if math.isnan(wall) or (attempt_rows and wall > attempt_rows[-1]["time/wall"]):
            break
        attempt_rows.append(row)
    if len(attempt_rows) < 2:
        return math.nan
    last, first = attempt_rows[0], attempt_rows[-1]
    return float((last["time/wall"] - first["time/wall"]) / max(1, last["step"] - first["step"]))


def _age(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return math.nan


def watch(folder: Path, console: Console, wait: Callable[[float], None] = time.sleep) -> None:
    """Show a folder repeatedly until no launcher is running in it, or Ctrl-C."""
    screen = Live(console=console, auto_refresh=False) if is_redrawable(console) else None
    try:
        if screen:
            screen.start()
        while True:
            experiments = overviews(folder)
            most = max(1, console.height // len(experiments) - 4) if screen else None
            text = Text(
                visible("\n".join(line for overview in experiments for line in overview.lines(most))),
                no_wrap=True,
            )
            if screen:
                screen.update(text, refresh=True)
            else:
                console.print(text, soft_wrap=True)
            if not any(overview.launcher for overview in experiments):
                return
            wait(WATCH if screen else INTERVAL)
    except KeyboardInterrupt:
        return
    finally:
        if screen:
            screen.stop()
