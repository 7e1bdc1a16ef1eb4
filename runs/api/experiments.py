"""Run an experiment in a script or a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.console import Console

from grpobench.runs.api.recipes import Sets, Source, recipe
from grpobench.runs.experiment.dry_run import Rehearsal, rehearse
from grpobench.runs.experiment.engines import Where
from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.experiment.interim import STEP, demand_unplanned, plan_looks, run_until, with_seeds
from grpobench.runs.experiment.worker import On
from grpobench.runs.settings import plugins
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools.screen import print_line
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.runfolder.interim import InterimPlan
    from grpobench.runs.api.results import Results

Progress: TypeAlias = bool | Literal["auto", "notebook"]
FAILURES: tuple[Literal["disk full", "crashed", "refused"], ...] = ("disk full", "crashed", "refused")
"""Ends of a run that say nothing about its algorithm."""
PREEMPTED = 75


class RunError(RuntimeError):
    """Some runs of an experiment ended without a result. `outcome` has every run; `outcome.folder` has the
    results of the others."""

    def __init__(self, outcome: ExperimentResult) -> None:
        self.outcome = outcome
        super().__init__(outcome)

    def __str__(self) -> str:
        failed = [run for end in FAILURES for run in self.outcome.runs_in_state(end)]
        lines = [f"{run.name}: {run.state}: {run.why}; see {log_of(run.path)}" for run in failed]
        fates = self.outcome.runs_in_state("diverged") + self.outcome.runs_in_state("collapsed")
        diverged = [f"{run.name}: {run.state}: {run.why}" for run in fates]
        load_hint = f"results of the other runs: grpobench.load({str(self.outcome.folder)!r})"
        return "\n  ".join(
            [f"{len(lines) or len(diverged)} of {len(self.outcome.runs)} runs failed"]
            + (lines or diverged)
            + [*self.outcome.held_messages, load_hint]
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
    rates: Iterable[float] | None = None,
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
    gpu_memory: float | None = None,
    trial: bool = True,
) -> Results:
    """Execute every run of a recipe that has no result yet, in `out`/NAME, and load the results.

    The same call again resumes what was interrupted and only loads what is finished. `source`, `set`,
    `seeds`, `arms`, `tasks`, `rates` and `folder` are those of `recipe`. `workers` processes execute runs
    side by side; the default is the recipe's number, else one per GPU, else one per core. They do not import
    the calling program, so it needs no ``if __name__ == "__main__"``. `progress` shows a live table in a
    terminal or in a notebook's cell ("notebook" requires a notebook), and lines elsewhere; False shows
    nothing.

    With `most_seeds`, seeds are added, `step_seeds` at a time, until every pair of arms has a verdict.
    `allow_change` resumes runs whose settings, data or code have changed. Before the first run a `trial`
    calls code of yours. The arguments from `on` to `gpu_memory` are those options of ``grpobench run``.

    Raises `ConfigError` for errors in the recipe and in the code that it names; `FolderError` if another
    process owns the folder, or a run in it was made with other settings; `RunError` at the end if runs
    crashed, or diverged or collapsed in a recipe with `fail_on_divergence`, unless `check` is False;
    KeyboardInterrupt when stopped, after the runs have saved a checkpoint.
    """
    demand_no_import()
    console = console_for(progress)
    parsed_recipe = recipe(source, set=set, seeds=seeds, arms=arms, tasks=tasks, rates=rates, folder=folder)
    for why in parsed_recipe.left_out:
        print_line(console, f"left out: {why}")
    options: dict[str, Any] = {"workers": workers, "allow_change": allow_change, "try_code": trial}
    options |= {"where": Where(on, address, gpus_per_run, cpus_per_run, tuple(job)), "gpu_memory": gpu_memory}
    plan = interim_plan(parsed_recipe, most_seeds, step_seeds)
    outcome = execute(parsed_recipe, Path(out), plan, console=console, **options)
    if outcome.code == PREEMPTED:
        raise KeyboardInterrupt("stopped; the same call resumes")
    if check and outcome.code:
        raise RunError(outcome)
    # Imported last, because SciPy, which the statistics need, loads torch if it is only deferred.
    from grpobench.runs.api.results import load

    return load(outcome.folder)


def interim_plan(recipe: Recipe, most_seeds: int | None, step_seeds: int = STEP) -> InterimPlan | None:
    """The plan that adds seeds up to `most_seeds`; None without these. Raises `ConfigError` for a plan under
    which no pair of arms could get a verdict."""
    return None if most_seeds is None else plan_looks(recipe, most_seeds, step_seeds)


def execute(recipe: Recipe, out: Path, plan: InterimPlan | None = None, **options: Any) -> ExperimentResult:
    """Run what has no result yet, with the seeds of a `plan` until every pair has a verdict, for `run` and
    the command line; `options` are those of `run_experiment`."""
    if plan:
        return run_until(recipe, out, plan, **options)
    demand_unplanned(out / recipe.name)
    return run_experiment(recipe, out, **options)


def preview(
    recipe: Recipe, out: Path, plan: InterimPlan | None, show: Callable[[str], None], **options: Any
) -> Rehearsal:
    """What `execute` would do with the same arguments, and the memory that the runs take. Starts no run and
    writes nothing. `show` is told the plan of the memory before an error."""
    return rehearse([with_seeds(recipe, plan.seeds) if plan else recipe], out, show, **options)


def log_of(path: Path) -> Path:
    """The log file that explains why a run failed."""
    crash = path / "crash.txt"
    return crash if crash.exists() else path / "log.txt"


def console_for(progress: Progress) -> Console:
    """Where progress is shown. Raises ValueError if a notebook is required and there is none."""
    if progress is False:
        return Console(quiet=True, force_terminal=False, force_jupyter=False)
    if progress != "notebook":
        return Console()
    if "IPython" not in sys.modules:
        raise ValueError('progress="notebook" needs a notebook; omit it to get lines or a table here')
    return Console(force_jupyter=True)


def demand_no_import() -> None:
    """Raise `ConfigError` while a file that a recipe names as `module:Name` is being imported: if it began
    runs, every process that imports the file would begin them again."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is plugins.imported.__code__:
            fault = "a file that a recipe names as module:Name starts runs while it is imported"
            remedy = 'start them in another file, or below `if __name__ == "__main__":`'
            raise ConfigError([f"{fault}; {remedy}"])
