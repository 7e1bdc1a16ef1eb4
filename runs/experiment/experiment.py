"""Run an experiment: which runs are left, which engine executes them, and how the experiment ended."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from grpobench.analysis.runfolder import checksums, formats
from grpobench.runs.experiment import memory, preflight, sampler_choice, trial, watchdog
from grpobench.runs.experiment.engines import HERE, Where, engine, with_devices
from grpobench.runs.experiment.launcher import Launcher
from grpobench.runs.experiment.run import ExperimentRun, RunState
from grpobench.runs.experiment.worker import EXECUTE
from grpobench.runs.runfolder import fingerprints, provenance
from grpobench.runs.runfolder.folder import FolderError, changed, grows, refusal
from grpobench.runs.runfolder.logs import result_damage, settled, status
from grpobench.runs.settings import others
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import files
from grpobench.runs.tools.lock import Lock, living
from grpobench.runs.tools.machine import count_worker_slots
from grpobench.runs.tools.screen import print_line
from grpobench.tasks.data.bounded import object_or_empty, read_object_if_any

CODES: Mapping[RunState, int] = {"disk full": 70, "preempted": 75, "crashed": 70, "refused": 2}
"""Exit codes of runs without a result, the most serious first."""


@dataclass(frozen=True)
class ExperimentResult:
    """How an experiment ended: the exit code, and every run in order."""

    folder: Path
    code: int
    runs: tuple[ExperimentRun, ...]
    workers: int = 1
    seconds: float = math.nan
    """Seconds from the start of the workers to the end of the last one; NaN if nothing was left to do."""
    held_messages: tuple[str, ...] = ()
    """Which runs were not started because others crashed alike."""

    def runs_in_state(self, state: RunState) -> list[ExperimentRun]:
        return [run for run in self.runs if run.state == state]


def run_experiment(
    recipe: Recipe,
    out: Path,
    workers: int | None = None,
    *,
    allow_change: bool = False,
    where: Where = HERE,
    execute: str = EXECUTE,
    console: Console | None = None,
    try_code: bool = True,
    gpu_memory: float | None = None,
) -> ExperimentResult:
    """Execute every run of a recipe that has no result yet, in `out`/<experiment>.

    `workers` overrides the recipe. 0 means as many as there is room for: on this machine one per GPU, or one
    per core without GPUs. With `try_code`, a trial of others' code comes before the first run. `gpu_memory`
    is the size in GiB of the GPU that the runs have, by default that of this machine's. `execute` is the
    dotted name of the function that executes a run (tests replace it). Raises `FolderError` before anything
    starts if another launcher owns the folder or a run's configuration has changed; ConfigError if what
    `where` asks for is not available, an environment variable is not a number, or a run cannot fit into the
    memory of the GPU; TrialError, a ConfigError, for code that cannot work; RuntimeError if no worker starts.
    """
    console = console or Console()
    patience = watchdog.patience()
    folder = files.writable(out / recipe.name, "--out")
    if why := formats.refusal(folder):
        raise FolderError(why)
    lock = Lock(folder)
    lock.take(say=line_on(console))
    try:
        for directory in (folder, folder / "shared"):
            files.sweep(directory)
        recipe = sampler_choice.decide(recipe, folder, sampler_choice.has_gpu(gpu_memory, where))
        runs = [ExperimentRun(config, folder / config.folder) for config in recipe.runs()]
        for text in sampler_choice.lines(recipe.samplers):
            line_on(console)(text)
        survey(runs, allow_change, line_on(console))
        waiting = [run.config for run in runs if run.state == "waiting"]
        where = with_devices(where, waiting)
        slots = workers or recipe.head.workers or 0
        memory.demand_room(waiting, gpu_memory, where, slots, line_on(console))
        for text in preflight.notes_on_precision(waiting, where):
            line_on(console)(f"note: {text}")
        if try_code and execute == EXECUTE:
            trial.demand(waiting, folder, where, line_on(console))
        write_experiment(folder, recipe)
        left = any(
            run.state == "waiting" for run in runs
        )  # An engine with nothing to do would still start a cluster.
        count = workers or recipe.head.workers
        if left:
            preflight.demand(runs, folder, count or count_worker_slots(where.gpus_per_run), line_on(console))
        run_engine = engine(where if left else HERE, folder, count, execute, allow_change)
        launcher = Launcher(runs, run_engine, console, demand=lock.demand, patience=patience)
        seconds = launcher.launch()
    finally:
        lock.release()
    code = exit_code(runs, recipe.head.fail_on_divergence)
    held_messages = tuple(group.message for group in launcher.crashes.held_groups)
    return ExperimentResult(folder, code, tuple(runs), run_engine.workers, seconds, held_messages)


def line_on(console: Console) -> Callable[[str], None]:
    """Prints a line without wrapping it."""
    return lambda text: print_line(console, text)


def survey(
    runs: Sequence[ExperimentRun], allow_change: bool, say: Callable[[str], None] = lambda _: None
) -> None:
    """Find the runs that have a result. Raises `FolderError` for a run that another process owns, or whose
    settings, data or plugins have changed."""
    faults = []
    today = fingerprints.Today()
    code: Code = {}
    owned = living([run.path for run in runs], say)
    for run in runs:
        if damage := result_damage(run.path, run.config.checkpoint.weights):
            faults += damage
            continue
        lease = owned.get(run.path)
        changes = [] if lease else changed(run.path, run.config) or remade(run, today, code)
        if lease:
            faults.append(lease.describe_owner(run.path))
        elif changes and not allow_change:
            faults.append(refusal(run.path, changes))
        elif settled(run.path) and not changes and not grows(run.path, run.config):
            recorded_status = status(run.path)
            run.state, run.why = recorded_status["state"], recorded_status["why"]
    if faults:
        more = f"\nand {len(faults) - 3} more runs" if len(faults) > 3 else ""
        raise FolderError("\n".join(faults[:3]) + more)


Code: TypeAlias = dict[tuple[type, ...], dict[str, str]]
"""Hashes of plugins' files, by the classes and functions that they define."""


def remade(run: ExperimentRun, today: fingerprints.Today, hashes: Code) -> list[str]:
    """Inputs, or files of plugins, of a run with a result or a checkpoint that have changed since. `hashes`
    keeps those of other runs of the same code."""
    made = object_or_empty(run.path / "provenance.json")
    if not settled(run.path) and not any(run.path.glob("checkpoints/step-*")):
        return []
    recorded = made.get("fingerprints")
    if recorded and (changes := fingerprints.differences(recorded, today.of(run.config))):
        return [*changes, *fingerprints.explain(run.path, made, run.config, today)]
    if not (attempts := made.get("attempts")):
        return []
    algorithm, task, *plugins = others.parts(run.config)
    key = (type(algorithm), type(task), *plugins)
    if key not in hashes:
        hashes[key] = provenance.foreign_code(*key)
    return provenance.foreign_differences(attempts[-1], hashes[key])


def write_experiment(folder: Path, recipe: Recipe) -> None:
    """experiment.json: the runs of this recipe, and the runs with other seeds of the same arms that are in
    the folder or that earlier starts planned. A run whose folder was deleted stays planned and shows as
    missing."""
    configs = recipe.runs()
    table: dict[str, Any] = {
        formats.KEY: formats.FORMAT,
        "name": recipe.name,
        "summary": recipe.summary,
        "runs": [config.folder for config in configs],
        "seeds": sorted({config.seed for config in configs}),
        "arms": list(dict.fromkeys(config.arm for config in configs)),
        "tasks": list(dict.fromkeys(config.task.name for config in configs)),
        "recipe": recipe.text,
        "sets": list(recipe.sets),
        "over": list(recipe.over),
        "sweep_values": {
            arm: dataclasses.asdict(sweep_value) for arm, sweep_value in recipe.sweep_values.items()
        },
        "rate_arms": {arm: dataclasses.asdict(origin) for arm, origin in recipe.rate_arms.items()},
        "margin": recipe.head.margin,
        "control": recipe.head.control,
        "targets": list(recipe.head.targets),
        "guard": dict(recipe.head.guard),
        **({"command": recipe.command} if recipe.command else {}),
        **({"borrowed_rates": dict(recipe.borrowed_rates)} if recipe.borrowed_rates else {}),
        **({"samplers": dict(recipe.samplers)} if recipe.samplers else {}),
    }
    if recipe.record:
        table["search"] = recipe.record.table() | {"sha256": recipe.record.sha256}
    before = read_object_if_any(folder / "experiment.json")
    stems = {config.folder.rpartition("-s")[0] for config in configs}
    earlier = [
        name
        for name in before.get("runs", [])
        if (folder / name / "run.toml").exists() or name.rpartition("-s")[0] in stems
    ]
    table["runs"] = list(dict.fromkeys([*table["runs"], *earlier]))
    if set(earlier) - {config.folder for config in configs}:
        for key in ("seeds", "arms", "tasks"):
            table[key] = list(dict.fromkeys([*table[key], *before.get(key, [])]))
        table["sweep_values"] = before.get("sweep_values", {}) | table["sweep_values"]
        table["rate_arms"] = before.get("rate_arms", {}) | table["rate_arms"]
        ours = {config.arm for config in configs}
        others = {arm: near for arm, near in before.get("borrowed_rates", {}).items() if arm not in ours}
        if others:
            table["borrowed_rates"] = others | table.get("borrowed_rates", {})
    files.write_atomic(folder / "experiment.json", json.dumps(checksums.seal(table), indent=1).encode())


def exit_code(runs: Sequence[ExperimentRun], fail_on_divergence: bool) -> int:
    """The exit code of an experiment."""
    states = {run.state for run in runs}
    for state, code in CODES.items():
        if state in states:
            return code
    if states & {"waiting", "running"}:
        return 75
    return 3 if fail_on_divergence and states & {"diverged", "collapsed"} else 0
