"""Run a matrix from Python, in a script or a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.console import Console
from rich.text import Text

from grpobench.analysis.tools.visible import visible
from grpobench.runs.interface.recipes import Sets, Source, recipe
from grpobench.runs.matrix.engine import On
from grpobench.runs.matrix.engines import Where
from grpobench.runs.matrix.looks import STEP, demand_unplanned, plan_looks, run_until
from grpobench.runs.matrix.matrix import Outcome, run_matrix
from grpobench.runs.settings import doors
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.runs.interface.results import Results

Progress: TypeAlias = bool | Literal["auto", "notebook"]
FAILURES: tuple[Literal["disk full", "crashed", "refused"], ...] = ("disk full", "crashed", "refused")
"""Ends of a run that say nothing about its algorithm."""
PREEMPTED = 75


class RunError(RuntimeError):
    """Some runs of a matrix ended without a result. `outcome` tells of every run; what the others gave is in
    `outcome.folder`."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(outcome)

    def __str__(self) -> str:
        failed = [run for end in FAILURES for run in self.outcome.named(end)]
        lines = [f"{run.name}: {run.place}: {run.why}; see {log_of(run.path)}" for run in failed]
        fates = self.outcome.named("diverged") + self.outcome.named("collapsed")
        diverged = [f"{run.name}: {run.place}: {run.why}" for run in fates]
        rest = f"what the others gave: grpobench.load({str(self.outcome.folder)!r})"
        return "\n  ".join(
            [f"{len(lines) or len(diverged)} of {len(self.outcome.runs)} runs failed"]
            + (lines or diverged)
            + [rest]
        )


def run(
    source: Source,
    out: str | os.PathLike[str] = "results",
    *,
    workers: int | None = None,
    progress: Progress = "auto",
    set: Sets = (),
    seeds: Iterable[int] | None = None,
    arms: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    allow_change: bool = False,
    check: bool = True,
    most_seeds: int | None = None,
    step_seeds: int = STEP,
    on: On = "local",
    address: str = "",
    gpus_per_run: float | None = None,
    cpus_per_run: int | None = None,
    job: Iterable[str] = (),
) -> Results:
    """Execute every run of a recipe that has no result yet, in `out`/NAME, and load the results.

    The same call again goes on where an interrupted one stood, and only loads what is finished. `source`,
    `set`, `seeds`, `arms`, `tasks` and `folder` are those of `recipe`. Runs are executed by `workers`
    processes side by side: as many as the recipe says, else one per GPU, else one per core. They do not
    import the program that calls this, which needs no ``if __name__ == "__main__"``. `progress` shows a live
    table in a terminal, the same in the cell of a notebook ("notebook" demands that), and lines elsewhere;
    False shows nothing. With `most_seeds` seeds are added, `step_seeds` at a time, until every pair of arms
    has a verdict, as with ``--until resolved``. `allow_change` resumes runs whose settings or data are others
    by now. `on`, `address`, `gpus_per_run`, `cpus_per_run` and `job` say where runs are executed, as the
    options of ``grpobench run`` do.

    Raises `ConfigError` for what is wrong with the recipe; `FolderError` where another process owns the
    folder, or a run in it was made with other settings; `RunError` at the end where runs crashed, or
    diverged or collapsed in a recipe with `fail_on_divergence`, unless `check` is False; KeyboardInterrupt
    when stopped, after the runs have saved a checkpoint.
    """
    demand_no_import()
    console = console_for(progress)
    found = recipe(source, set=set, seeds=seeds, arms=arms, tasks=tasks, folder=folder)
    for why in found.left_out:
        console.print(Text(visible(f"left out: {why}")), soft_wrap=True)
    where = Where(on, address, gpus_per_run, cpus_per_run, tuple(job))
    options: dict[str, Any] = {"allow_change": allow_change, "console": console, "where": where}
    if most_seeds is None:
        demand_unplanned(Path(out) / found.name)
        outcome = run_matrix(found, Path(out), workers, **options)
    else:
        outcome = run_until(found, Path(out), plan_looks(found, most_seeds, step_seeds), workers, **options)
    if outcome.code == PREEMPTED:
        raise KeyboardInterrupt("stopped; the same call resumes")
    if check and outcome.code:
        raise RunError(outcome)
    # Last, because SciPy, which the statistics need, loads torch where it is only deferred.
    from grpobench.runs.interface.results import load

    return load(outcome.folder)


def log_of(path: Path) -> Path:
    """Where a run that failed says why."""
    crash = path / "crash.txt"
    return crash if crash.exists() else path / "log.txt"


def console_for(progress: Progress) -> Console:
    """Where progress is shown. Raises ValueError for a notebook where there is none."""
    if progress is False:
        return Console(quiet=True, force_terminal=False, force_jupyter=False)
    if progress != "notebook":
        return Console()
    if "IPython" not in sys.modules:
        raise ValueError('progress="notebook" needs a notebook; leave it out to have lines or a table here')
    return Console(force_jupyter=True)


def demand_no_import() -> None:
    """Raises `ConfigError` while a file that a recipe names as `module:Name` is being imported: to begin runs
    there would begin them again in every process that imports the file."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is doors.imported.__code__:
            what = "a file that a recipe names as module:Name begins runs while it is imported"
            remedy = 'begin them in another file, or below `if __name__ == "__main__":`'
            raise ConfigError([f"{what}; {remedy}"])
