"""The progress of an experiment on the screen."""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpobench.analysis.tools.text import visible
from grpobench.runs.runfolder.rows import last_rows, number_in, token_rate
from grpobench.runs.tools.progress import Timing, duration, number, time_left
from grpobench.runs.tools.screen import STYLE, is_redrawable, print_line

CELL_INTERVAL = 0.5
"""Minimum seconds between two versions of the output."""
HTML = f'<pre style="white-space:pre; overflow-x:auto; {STYLE}">{{code}}</pre>'


class NotebookOutput:
    """An output that is replaced in place, as `rich.live.Live` replaces lines of a terminal. (In a notebook
    that class needs ipywidgets; this class needs only IPython and no thread.)"""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.handle: Any = None
        self.latest: RenderableType = ""
        self.last_news = -math.inf

    def start(self) -> None:
        from IPython.display import display

        self.handle = display(self.bundle(), raw=True, display_id=True)

    def update(self, renderable: RenderableType) -> None:
        """Show this from now on. Updates that come sooner than `INTERVAL` after the last one are shown with
        the next one."""
        self.latest = renderable
        if time.monotonic() - self.last_news >= CELL_INTERVAL:
            self.last_news = time.monotonic()
            self.handle.update(self.bundle(), raw=True)

    def stop(self) -> None:
        """Show the latest version and leave it there."""
        self.handle.update(self.bundle(), raw=True)

    def bundle(self) -> dict[str, str]:
        """The latest version as text and as HTML, for whichever the notebook shows."""
        width, height = self.console.size
        recorder = Console(file=io.StringIO(), record=True, force_jupyter=False, width=width, height=height)
        recorder.print(self.latest)
        return {
            "text/plain": recorder.export_text(clear=False),
            "text/html": recorder.export_html(inline_styles=True, code_format=HTML),
        }


if TYPE_CHECKING:
    from grpobench.runs.experiment.run import ExperimentRun, RunState
    from grpobench.runs.train.progress import Progress

INTERVAL = 30.0
"""Seconds between two summaries where there is no terminal."""
REDRAWN = 0.25
"""Seconds between two versions of the live table. A thousand runs report more often than that."""
MOST_NAMED = 8
"""Maximum number of running runs in a summary."""

COLORS = {
    "running": "cyan",
    "finished": "green",
    "diverged": "yellow",
    "collapsed": "yellow",
    "waiting": "dim",
    "preempted": "yellow",
}
FAILED: tuple[RunState, ...] = ("crashed", "refused", "disk full")


def last_progress(run: ExperimentRun) -> Progress | None:
    """The progress that the log of a run that ended before tells; None without a row."""
    from grpobench.runs.train.progress import Progress  # which loads torch

    rows = last_rows(run.path / "metrics.jsonl")
    if not rows:
        return None
    reward, steps = number_in(rows[-1], "reward/mean"), run.config.train.steps
    return Progress(rows[-1]["step"], steps, reward, token_rate(rows), run.state)


def timing(run: ExperimentRun) -> Timing:
    """The time of a run, from this launcher's own clock."""
    kin, is_open = (run.config.arm, run.config.task.name), run.state in ("waiting", "running")
    if not is_open:
        return Timing(kin, False, length=run.seconds if run.began else math.nan)
    if run.state == "waiting":
        return Timing(kin, True)
    return Timing(kin, True, run.seconds, run.left(), run.seconds + run.left())


def figures(progress: Progress) -> list[str]:
    """What a run said last, as words."""
    words = [f"step {progress.step}/{progress.steps}"]
    if not math.isnan(progress.reward):
        words += [f"reward {progress.reward:.3f}"]
        words += [f"{number(progress.tokens_per_second, ',.0f')} tokens/s"]
    return words


def live(console: Console) -> Live | NotebookOutput | None:
    """The output that is replaced in place; None if the console cannot do so."""
    if is_redrawable(console):
        return Live(console=console, refresh_per_second=4)
    return NotebookOutput(console) if console.is_jupyter else None


class Display:
    """Shows the runs of an experiment until it is closed.

    A terminal or a notebook's cell shows a live table. Elsewhere a line is printed when a run ends, and a
    summary every `INTERVAL` seconds."""

    def __init__(self, console: Console, runs: Sequence[ExperimentRun], workers: int) -> None:
        self.console = console
        self.runs = runs
        self.workers = workers
        self.began = self.last_news = time.monotonic()
        self.live = live(console)
        self.drawn = -math.inf
        self.ends = [run for run in runs if run.state != "waiting"]
        """Runs in the order in which they ended."""
        self.earlier = {run.name: last_progress(run) for run in self.ends}
        self.closed = False

    def __enter__(self) -> Self:
        if self.ends:
            print_line(self.console, f"{len(self.ends)} of {len(self.runs)} runs already have a result")
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True
        if self.live:
            self.live.update(self.table())
            self.live.stop()

    def refresh(self) -> None:
        """Redraw the live table, or print a summary if `INTERVAL` seconds have passed."""
        if self.live and time.monotonic() - self.drawn >= REDRAWN:
            self.live.update(self.table())
            self.drawn = time.monotonic()
        elif not self.live and time.monotonic() - self.last_news >= INTERVAL:
            self.last_news = time.monotonic()
            print_line(self.console, self.news())

    def news(self) -> str:
        """One line on the experiment: counts, times, and the progress of running runs."""
        running = [run for run in self.runs if run.state == "running"]
        shown = [self.run_status(run) for run in running[:MOST_NAMED]]
        more = [f"and {len(running) - MOST_NAMED} more"] if len(running) > MOST_NAMED else []
        return " | ".join([self.summary(), *shown, *more])

    def run_status(self, run: ExperimentRun) -> str:
        """The progress of a running run in a few words."""
        progress = run.progress
        if not progress:
            return f"{run.name} starting"
        left = duration(run.left())
        return " ".join([run.name, progress.phase, *figures(progress), *([f"{left} left"] if left else [])])

    def ended(self, run: ExperimentRun) -> None:
        """Record that a run has ended."""
        self.ends.append(run)
        if not self.live or run.why:
            console = self.errors if run.state in FAILED else self.console
            print_line(console, self.line(run))

    @property
    def errors(self) -> Console:
        """Where it is said that a run failed: standard error, unless the table or a file has the console."""
        plain = self.console.file is sys.stdout and not (self.live or self.console.quiet)
        return Console(stderr=True) if plain else self.console

    def note(self, text: str, failed: bool = False) -> None:
        """Print a message; `failed`: of something that the user must mend."""
        console = self.errors if failed else self.console
        print_line(console, text)

    def line(self, run: ExperimentRun) -> str:
        parts = [f"[{len(self.ends)}/{len(self.runs)}]", run.name, run.state]
        parts += figures(run.progress) if run.progress else []
        return "  ".join([*parts, duration(run.seconds), *([run.why] if run.why else [])])

    def table(self) -> RenderableType:
        """A table of all runs if the terminal is high enough; else of the active runs and the last ones that
        ended."""
        table = Table(box=None, pad_edge=False)
        for heading in ("run", "state", "step", "reward", "tokens/s", "left"):
            table.add_column(
                heading, justify="left" if heading in ("run", "state") else "right", no_wrap=True
            )
        room = max(4, self.console.height - 4)
        shown = list(self.runs)
        if len(shown) > room:
            active = [run for run in shown if run.state == "running"]
            shown = [*self.ends[-max(0, room - len(active)) :], *active][-room:]
        for run in shown:
            table.add_row(*self.cells(run))
        return Group(table, Text(self.summary(), style="bold"))

    def cells(self, run: ExperimentRun) -> list[RenderableType]:
        progress = run.progress or self.earlier.get(run.name)
        state = run.progress.phase if run.progress and run.state == "running" else run.state
        style = COLORS.get(run.state, "red")
        words: list[RenderableType] = [Text(visible(run.name)), Text(state, style=style)]
        if not progress:
            return [*words, f"-/{run.config.train.steps}", "", "", ""]
        return [
            *words,
            f"{progress.step}/{progress.steps}",
            number(progress.reward, ".3f"),
            number(progress.tokens_per_second, ",.0f"),
            duration(run.left()) if run.state == "running" else "",
        ]

    def summary(self) -> str:
        """Counts by state, and the time left for all runs."""
        counts: dict[str, int] = {}
        for run in self.runs:
            counts[run.state] = counts.get(run.state, 0) + 1
        states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        took, left = duration(time.monotonic() - self.began), duration(self.left())
        run_counts = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}: {states}"
        if self.closed:
            return f"{run_counts}; took {took}"
        return f"{run_counts}; {took} so far" + (f", {left} left" if left else "")

    def left(self) -> float:
        """Estimated seconds left; NaN while no run has been timed. A run that ended was timed with its start
        and evaluations."""
        return time_left(map(timing, self.runs), self.workers)
