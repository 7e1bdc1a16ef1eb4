"""Recipes in Python (from a name, a path or a dict), and running an experiment in a script or a notebook."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.console import Console

from grpobench.runs.experiment.engines import Where
from grpobench.runs.experiment.experiment import Outcome, run_experiment
from grpobench.runs.experiment.interim import STEP, demand_unplanned, plan_looks, run_until
from grpobench.runs.experiment.worker import On
from grpobench.runs.settings import plugins
from grpobench.runs.settings.recipe import Recipe, read_recipe, read_text
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.screen import print_line
from grpobench.runs.tools.strict import ConfigError

HERE = "__main__"
"""The module of definitions in a notebook or a script."""


def plain(value: Any, place: str, faults: list[str]) -> Any:
    """`value` with only what TOML can hold: numbers and arrays of NumPy as Python's own, iterables as lists,
    paths as text, None as "none". Anything else is left out, and a fault is added."""
    if hasattr(value, "tolist") and not inspect.isclass(value):
        value = value.tolist()
    if value is None:
        return strict.NONE
    if isinstance(value, str | os.PathLike):
        return check_picklable_name(str(value), place, faults)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry, strict.join(place, str(key)), faults) for key, entry in value.items()}
    if isinstance(value, Iterable) and not inspect.isclass(value):
        return [plain(entry, f"{place}[{index}]", faults) for index, entry in enumerate(value)]
    faults.append(f"{place}: {refused(value)}")
    return ""


def check_picklable_name(text: str, place: str, faults: list[str]) -> str:
    """A text, unless it names something in the program itself, which no worker process has."""
    module, colon, name = text.partition(":")
    if module == HERE and colon:
        faults.append(f"{place}: {text} {unreachable(name)}")
    return text


def refused(value: Any) -> str:
    """Why a recipe cannot hold a value, and what to write instead."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"must be plain data such as a TOML file holds, not {type(value).__name__}"
    if value.__module__ == HERE:
        return f"{value.__qualname__} {unreachable(value.__name__)}"
    return f'name it by its module: "{value.__module__}:{value.__qualname__}", not the object itself'


def unreachable(name: str) -> str:
    """Why a name in the program itself cannot be used, and the remedy."""
    return (
        "is defined in this notebook or script, which the processes that train do not run; "
        f'write it to a file, such as mine.py, and name it "mine:{name}"'
    )


Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Recipe
"""A recipe's name, its path, its structure as a dict, or a recipe that was already read."""
Sets: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Assignments on top of a recipe: ``{"train.steps": 100}``, or ``["train.steps=100"]`` as on the command
line."""
UNNAMED = "unnamed"


def recipe(
    source: Source,
    *,
    set: Sets = (),
    seeds: Iterable[int] | None = None,
    arms: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Recipe:
    """Read a recipe and check all of it, without running anything or loading a model.

    `source` is the name of a recipe that comes with grpobench, the path of a TOML file, a dict with the
    structure of such a file (``{"name": ..., "tasks": [...], "arm": [{"algorithm": ...}, ...], ...}``), or a
    recipe to be changed. `set` holds assignments as for ``--set`` of the command line; `seeds`, `arms` and
    `tasks` choose those that run. Files of a ``"module:Name"`` in a dict are looked up in `folder` first; the
    default is the current folder. Raises `ConfigError` with every error of the recipe and the assignments at
    once.
    """
    faults: list[str] = []
    sets = assignments(set, faults)
    for key, chosen in (("seeds", seeds), ("arms", arms), ("tasks", tasks)):
        if chosen is not None:
            sets.append(f"{key}={toml.value(plain(chosen, key, faults))}")
    if isinstance(source, Recipe):
        home = source.folder if folder is None else Path(folder)
        return checked(source.text, source.name, home, [*source.sets, *sets], f"recipe {source.name}", faults)
    if isinstance(source, Mapping):
        table = plain(source, "", faults)
        if "name" not in table:
            faults.append('name: missing; write "name": "mine", and the runs go to results/mine')
        home = Path.cwd() if folder is None else Path(folder)
        return checked(toml.write(table), UNNAMED, home, sets, "recipe of a dict", faults)
    if faults:
        raise ConfigError(faults, os.fspath(source))
    return read_recipe(os.fspath(source), sets)


def assignments(sets: Sets, faults: list[str]) -> list[str]:
    """``KEY=VALUE`` texts as `--set` takes them."""
    if isinstance(sets, str):
        return [sets]
    if isinstance(sets, Mapping):
        return [f"{key}={toml.value(plain(value, key, faults))}" for key, value in sets.items()]
    return list(sets)


def checked(
    text: str, stem: str, folder: Path, sets: Sequence[str], source: str, faults: Sequence[str]
) -> Recipe:
    """The recipe in a text. Raises `ConfigError` with the `faults` known so far and the recipe's own."""
    try:
        found = read_text(text, stem, folder, sets, source)
    except ConfigError as error:
        told = tuple(fault.partition(": ")[0] + ":" for fault in faults)
        rest = [fault for fault in error.faults if not fault.startswith(told)]
        raise ConfigError([*faults, *rest], source) from None
    if faults:
        raise ConfigError(faults, source)
    return found


if TYPE_CHECKING:
    from grpobench.runs.api.results import Results

Progress: TypeAlias = bool | Literal["auto", "notebook"]
FAILURES: tuple[Literal["disk full", "crashed", "refused"], ...] = ("disk full", "crashed", "refused")
"""Ends of a run that say nothing about its algorithm."""
PREEMPTED = 75


class RunError(RuntimeError):
    """Some runs of an experiment ended without a result. `outcome` has every run; `outcome.folder` has the
    results of the others."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(outcome)

    def __str__(self) -> str:
        failed = [run for end in FAILURES for run in self.outcome.runs_in_state(end)]
        lines = [f"{run.name}: {run.state}: {run.why}; see {log_of(run.path)}" for run in failed]
        fates = self.outcome.runs_in_state("diverged") + self.outcome.runs_in_state("collapsed")
        diverged = [f"{run.name}: {run.state}: {run.why}" for run in fates]
        rest = f"results of the other runs: grpobench.load({str(self.outcome.folder)!r})"
        return "\n  ".join(
            [f"{len(lines) or len(diverged)} of {len(self.outcome.runs)} runs failed"]
            + (lines or diverged)
            + [*self.outcome.held_messages, rest]
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
    gpu_memory: float | None = None,
    trial: bool = True,
) -> Results:
    """Execute every run of a recipe that has no result yet, in `out`/NAME, and load the results.

    The same call again resumes what was interrupted and only loads what is finished. `source`, `set`,
    `seeds`, `arms`, `tasks` and `folder` are those of `recipe`. `workers` processes execute runs side by
    side; the default is the recipe's number, else one per GPU, else one per core. They do not import the
    calling program, so it needs no ``if __name__ == "__main__"``. `progress` shows a live table in a terminal
    or in a notebook's cell ("notebook" requires a notebook), and lines elsewhere; False shows nothing.

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
    found = recipe(source, set=set, seeds=seeds, arms=arms, tasks=tasks, folder=folder)
    for why in found.left_out:
        print_line(console, f"left out: {why}")
    options: dict[str, Any] = {"allow_change": allow_change, "try_code": trial, "console": console}
    options |= {"where": Where(on, address, gpus_per_run, cpus_per_run, tuple(job)), "gpu_memory": gpu_memory}
    if most_seeds is None:
        demand_unplanned(Path(out) / found.name)
        outcome = run_experiment(found, Path(out), workers, **options)
    else:
        outcome = run_until(found, Path(out), plan_looks(found, most_seeds, step_seeds), workers, **options)
    if outcome.code == PREEMPTED:
        raise KeyboardInterrupt("stopped; the same call resumes")
    if check and outcome.code:
        raise RunError(outcome)
    # Imported last, because SciPy, which the statistics need, loads torch if it is only deferred.
    from grpobench.runs.api.results import load

    return load(outcome.folder)


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
            what = "a file that a recipe names as module:Name starts runs while it is imported"
            remedy = 'start them in another file, or below `if __name__ == "__main__":`'
            raise ConfigError([f"{what}; {remedy}"])
