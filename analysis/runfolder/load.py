"""Load the folder of an experiment into tidy frames, without torch and without the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pandas as pd

from grpobench.analysis.runfolder import checksums, formats
from grpobench.analysis.runfolder.answers import Answers, answers_frame, read_answers
from grpobench.analysis.runfolder.experiment import (
    DAMAGED,
    MARGIN,
    RESULTS,
    Experiment,
    RateArm,
    Run,
    SweepPoint,
    run_name,
)
from grpobench.analysis.runfolder.files import LogError, read_json, read_toml
from grpobench.analysis.runfolder.interim import InterimPlan, read_plan
from grpobench.analysis.runfolder.metric_rows import NO_ROWS, MetricRows, metrics_frame, read_metrics
from grpobench.analysis.runfolder.search import SearchRecord, record_of
from grpobench.analysis.tools.processes import pause_garbage_collection
from grpobench.analysis.tools.text import experiments_in, why_no_experiment
from grpobench.tasks.data import bounded
from grpobench.tasks.data.bounded import object_or_empty

STATES = ("running", "finished", "diverged", "collapsed", "crashed", "preempted")
"""The states that status.json can give."""


def read_status(run: Path) -> dict[str, Any]:
    """status.json; empty where it does not exist. Raises LogError if it is damaged, if the run had a result
    (sums.json exists) but status.json does not say which, and if status.json claims a result that the run
    never wrote (sums.json, which is written first, does not exist)."""
    path = run / "status.json"
    had = (run / checksums.SUMS_FILE).exists()
    if not path.exists():
        if had:
            raise LogError(f"{path}: missing, although the run had a result; restore the file")
        return {}
    status = read_json(path, "restore the file" if not had else "the run had a result; restore the file")
    for name in ("step", "attempt"):
        if not isinstance(status.get(name, 0), int):
            raise LogError(
                f"{path}: `{name}` must be a whole number; found {status[name]!r}; restore the file"
            )
    if had and status.get("state") not in STATES:
        fault = f"`state` is {status['state']!r}" if "state" in status else "`state` is missing"
        raise LogError(f"{path}: {fault}, although the run had a result; restore the file")
    sums = run / checksums.SUMS_FILE
    if not had and status.get("state") in RESULTS and _has_sums(run) and not sums.exists():
        raise LogError(
            f"{path}: says `{status['state']}`, but {sums.name}, which every result has, is missing; restore "
            f"{sums.name}, or write `running` as the state to resume the run"
        )
    return status


def _has_sums(run: Path) -> bool:
    """Whether the version that wrote the run writes sums.json; older ones did not seal provenance.json."""
    return checksums.SEAL in object_or_empty(formats.find_file(run, formats.PROVENANCE))


def read_provenance(run: Path) -> dict[str, Any]:
    """provenance.json; empty where it does not exist. Raises LogError if it is damaged."""
    path = formats.find_file(run, formats.PROVENANCE)
    if not path.exists():
        return {}
    provenance = formats.current_keys(formats.PROVENANCE, read_json(path))
    attempts = provenance.get("attempts", [])
    is_list_of_tables = isinstance(attempts, list) and all(isinstance(attempt, dict) for attempt in attempts)
    if not is_list_of_tables or not all(
        isinstance(provenance.get(name, {}), dict) for name in ("fingerprints", "imported")
    ):
        raise LogError(f"{path}: not the provenance of a run; restore the file")
    return provenance


# The experiment

T = TypeVar("T")
ReadRun: TypeAlias = tuple[Run, MetricRows, Answers]
"""A run with its rows of metrics.jsonl and its answers of eval.jsonl."""
PLANNED_ANEW = "restore the file, or start the recipe again, which writes it anew"
"""The remedy for a damaged experiment.json."""


@pause_garbage_collection()
def load(folder: Path, margin: float | None = None, strict: bool = False) -> Experiment:
    """Read `results/<experiment>`; `over_rates` has runs at other rates than the arms'. A run with a damaged
    file is `DAMAGED` and not counted; `Experiment.damage` lists the faults. `margin`, in points, replaces the
    recipe's. Raises LogError if there is nothing to read and, if `strict`, for any damage."""
    folder = Path(folder)
    _demand_experiment(folder)
    damage: list[str] = []
    described = _attempt(lambda: _described(formats.find_file(folder, formats.EXPERIMENT)), {}, damage)
    search = _attempt(lambda: _search(described, folder), None, damage)
    borrowed_rates = _attempt(lambda: _borrowed(described, folder), {}, damage)
    folder_names = {path.parent.name for path in folder.glob("*/run.toml")}
    names = list(dict.fromkeys([*map(str, described.get("runs", ())), *sorted(folder_names)]))
    if not names:
        raise LogError(_why_no_run(folder, damage))
    planned = set(map(str, described.get("runs", names)))
    folders = {name: Folder(folder / name, described, name in planned) for name in names}
    strangers = {name: run_folder.stranger for name, run_folder in folders.items() if run_folder.stranger}
    readable = [run for run in folders.values() if run.planned or not run.stranger]
    read = _one_each(folder, readable, damage)
    if not read:
        causes = "; ".join(damage) or f"only folders of other experiments: {', '.join(strangers)}"
        raise LogError(f"{folder}: holds no run of this experiment: {causes}")
    damage += [fault for run_folder in folders.values() for fault in run_folder.faults]
    if strict and damage:
        raise LogError("\n".join(damage))
    arms = _ordered(described.get("arms", ()), [run.arm for run, _, _ in read])
    tasks = _ordered(described.get("tasks", ()), [run.task for run, _, _ in read])
    read.sort(key=lambda entry: (arms.index(entry[0].arm), tasks.index(entry[0].task), entry[0].seed))
    runs = tuple(run for run, _, _ in read)
    plan = read_plan(folder)
    experiment = Experiment(
        name=str(described.get("name", folder.resolve().name)),
        folder=folder,
        summary=str(described.get("summary", "")),
        recipe=str(described.get("recipe", "")),
        arms=arms,
        tasks=tasks,
        seeds=tuple(sorted({run.seed for run in runs})),
        runs=runs,
        metrics=metrics_frame([((run.arm, run.task, run.seed), rows) for run, rows, _ in read]),
        evaluations=answers_frame([((run.arm, run.task, run.seed), answers) for run, _, answers in read]),
        statuses=_statuses_frame(runs),
        configs={run.name: run.config for run in runs},
        margin=_margin(described.get("margin", 100 * MARGIN) if margin is None else margin, plan, folder),
        plan=plan,
        control=_control(described.get("control", ""), arms, folder),
        targets=tuple(map(float, described.get("targets", ()))),
        guard={str(name): float(bound) for name, bound in described.get("guard", {}).items()},
        search=search,
        borrowed_rates=borrowed_rates,
        described="runs" in described,
        strangers=strangers,
        sweep_values=_sweep_values(described),
        rate_arms=_rate_arms(described, arms),
        damage=tuple(damage),
        imported=described.get("imported") is True,
        unimported=tuple(map(str, described.get("faults", ()))),
    )
    return experiment.at_own_rates()


def list_runs(folder: Path) -> tuple[list[tuple[Path, str, str, int]], list[str]]:
    """(folder, arm, task, seed) of each run that exists, by arm, task and seed, and the faults of folders
    that cannot be identified. Reads no log. Raises LogError for a folder without runs."""
    _demand_experiment(folder)
    faults: list[str] = []
    described = _attempt(lambda: _described(formats.find_file(folder, formats.EXPERIMENT)), {}, faults)
    folders = [Folder(path.parent, described, True, faults) for path in sorted(folder.glob("*/run.toml"))]
    if not folders:
        raise LogError(_why_no_run(folder, faults))
    runs: list[tuple[Path, str, str, int]] = []
    for run in folders:
        if not run.stranger:
            try:
                runs.append((run.path, *run.who))
            except LogError as error:
                faults.append(str(error))
    arms = _ordered(described.get("arms", ()), [arm for _, arm, _, _ in runs])
    tasks = _ordered(described.get("tasks", ()), [task for _, _, task, _ in runs])
    return sorted(runs, key=lambda run: (arms.index(run[1]), tasks.index(run[2]), run[3])), faults


def _sweep_values(described: Mapping[str, Any]) -> dict[str, SweepPoint]:
    points = described.get("sweep_values", {})
    return {str(arm): SweepPoint(str(point["arm"]), point["values"]) for arm, point in points.items()}


def _rate_arms(described: Mapping[str, Any], arms: Sequence[str]) -> dict[str, RateArm]:
    """The arms at other learning rates than their own, of which the recipe's arm has runs too."""
    origins = described.get("rate_arms", {})
    return {
        arm: RateArm(str(origin["arm"]), float(origin["factor"]))
        for arm, origin in origins.items()
        if arm in arms and origin["arm"] in arms
    }


def _why_no_run(folder: Path, damage: Sequence[str]) -> str:
    """Why nothing in a folder can be read as a run; of a folder of experiments, the first few of them."""
    if experiments := experiments_in(folder):
        more = f" and {len(experiments) - 8} more" if len(experiments) > 8 else ""
        return f"{folder}: holds experiments; give one of them: {', '.join(map(str, experiments[:8]))}{more}"
    remedy = "a run is a folder with run.toml, which `grpobench run` writes"
    return "; ".join([f"{folder}: holds no run; {remedy}", *damage])


def _demand_experiment(folder: Path) -> None:
    """Raise LogError for a path that is not a folder, and for the folder of a single run."""
    if not folder.is_dir():
        raise LogError(why_no_experiment(folder))
    if (folder / "run.toml").exists():
        raise LogError(f"{folder}: this is one run; pass the folder above it, {folder.parent}")


def _margin(points: Any, plan: InterimPlan | None, folder: Path) -> float:
    """The margin as a share. Raises LogError for an invalid margin, and for one that differs from the
    plan."""
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 < points < 100:
        raise LogError(f"margin: must be points of accuracy, above 0 and below 100, not {points}")
    if plan and points != plan.margin:
        raise LogError(
            f"{folder}: a margin of {plan.margin:g} points was fixed before the first interim analysis, not "
            f"{points:g}"
        )
    return points / 100


def _control(name: Any, arms: Sequence[str], folder: Path) -> str:
    """The control arm; empty where the recipe has none. Raises LogError for one that has no run."""
    if name and name not in arms:
        raise LogError(
            f"{folder / formats.EXPERIMENT}: the control {name!r} is none of the arms {', '.join(arms)}; "
            f"{PLANNED_ANEW}"
        )
    return str(name or "")


def _attempt(read: Callable[[], T], otherwise: Any, faults: list[str]) -> T:
    """The result of `read`; if it fails, `otherwise`, and the fault is appended to `faults`."""
    try:
        return read()
    except LogError as error:
        faults.append(str(error))
        stand_in: T = otherwise
        return stand_in


def _described(path: Path) -> dict[str, Any]:
    """experiment.json; empty where it does not exist."""
    if not path.exists():
        return {}
    content = formats.current_keys(formats.EXPERIMENT, read_json(path, PLANNED_ANEW))
    for name in ("runs", "arms", "tasks", "faults"):
        if not isinstance(content.get(name, []), list):
            raise LogError(f"{path}: `{name}` must be a list; {PLANNED_ANEW}")
    return content


def _borrowed(described: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The arms that train at another arm's learning rate."""
    borrowed_rates = described.get("borrowed_rates", {})
    if not isinstance(borrowed_rates, Mapping):
        raise LogError(f"{folder / formats.EXPERIMENT}: `borrowed_rates` must be a table; {PLANNED_ANEW}")
    return {str(arm): str(origin) for arm, origin in borrowed_rates.items()}


def _search(described: Mapping[str, Any], folder: Path) -> SearchRecord | None:
    """The record of a search that experiment.json holds."""
    record = described.get("search")
    return record_of(record, f"{folder / formats.EXPERIMENT}: search") if record else None


def _one_each(folder: Path, folders: Sequence[Folder], damage: list[str]) -> list[ReadRun]:
    """Every run with its rows. Folders that do not identify their run, and second folders of a run, are added
    to `damage` and left out."""
    runs: dict[tuple[str, str, int], ReadRun] = {}
    for run_folder in folders:
        try:
            who = run_folder.who
        except LogError as error:
            damage.append(str(error))
            continue
        if who in runs:
            arm, task, seed = who
            damage.append(
                f"{folder / runs[who][0].name} and {run_folder.path} are both {arm} on {task} with seed "
                f"{seed}; "
                f"move the copy out of {folder}. Only the first counts"
            )
        else:
            runs[who] = run_folder.read()
    return list(runs.values())


@dataclass(frozen=True)
class Folder:
    """The folder of a run, which may be planned and not exist yet."""

    path: Path
    described: Mapping[str, Any]
    planned: bool
    faults: list[str] = field(default_factory=list)
    """What could not be read in it."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """run.toml; empty where it does not exist."""
        path = self.path / "run.toml"
        return _attempt(lambda: _config(path), {}, self.faults) if path.exists() else {}

    @cached_property
    def stranger(self) -> str:
        """The run that the folder contains, if it is not the run of the folder's name; else empty."""
        task, arm, seed = _task(self.config), self.config.get("arm"), self.config.get("seed")
        if not isinstance(arm, str) or not isinstance(task, str) or not isinstance(seed, int):
            return ""
        name = run_name(arm, task, seed)
        return "" if name == self.path.name else name

    @property
    def who(self) -> tuple[str, str, int]:
        """Arm, task and seed. Raises LogError if they are unknown."""
        return identify_run(self.path, {} if self.stranger else self.config, self.described)

    def read(self) -> ReadRun:
        """The run with its rows of metrics.jsonl and its answers. A run whose folder contains another run is
        missing; one with a damaged file has no rows and no answers."""
        name = self.path.name
        if self.stranger:
            why = f"its folder contains {self.stranger}"
            missing = Run(name, *self.who, "missing", why, 0, 0, {}, {}, 0, 0, 0, self.planned)
            return missing, NO_ROWS, {}
        config, faults = self.config, self.faults
        status: Mapping[str, Any] = {"state": "missing", "why": "no run folder: not started"}
        if self.path.is_dir():
            unknown = {"state": "unknown", "why": "no status.json"}
            status = _attempt(lambda: read_status(self.path), {}, faults) or unknown
        provenance = _attempt(lambda: read_provenance(self.path), {}, faults)
        sums: Mapping[str, Mapping[str, Any]] = {}
        if status.get("state") in RESULTS:
            sums = _attempt(lambda: _result_sums(self.path), {}, faults)
        metrics, cut_metrics, rewritten_metrics = _attempt(
            lambda: read_metrics(self.path / "metrics.jsonl", _sum(sums, "metrics.jsonl")),
            (NO_ROWS, 0, 0),
            faults,
        )
        evaluations, cut_evaluations, rewritten_evaluations = _attempt(
            lambda: read_answers(self.path / "eval.jsonl", _sum(sums, "eval.jsonl")), ({}, 0, 0), faults
        )
        if faults:
            status = {**status, "state": DAMAGED, "why": "; ".join(faults)}
            metrics, evaluations = NO_ROWS, {}
        run = Run(
            name,
            *self.who,
            state=str(status.get("state", "unknown")),
            why=str(status.get("why", "") or ""),
            step=int(status.get("step", metrics.steps[-1] if len(metrics.steps) else 0)),
            attempt=int(status.get("attempt", 0)),
            config=config,
            provenance=provenance,
            cut_lines=cut_metrics + cut_evaluations,
            rewritten_rows=rewritten_metrics + rewritten_evaluations,
            rows=len(metrics.steps),
            planned=self.planned,
            proved=bool(sums) or (self.path / f"metrics.jsonl{checksums.SIDE}").exists(),
            lost=tuple(
                checksums.absent(
                    self.path, {n: file_sums for n, file_sums in sums.items() if not n.endswith(".jsonl")}
                )
            ),
        )
        return run, metrics, evaluations


def _result_sums(run: Path) -> dict[str, dict[str, Any]]:
    """Checksums of the files of a run with a result. The settings are checked here, logs when they are read,
    and weights when they are used."""
    try:
        sums = checksums.read_sums(run)
    except ValueError as error:
        raise LogError(str(error)) from error
    settings = run / "run.toml"
    if (
        "run.toml" in sums
        and settings.exists()
        and bounded.sha256(settings) != sums["run.toml"][checksums.SEAL]
    ):
        raise LogError(f"{settings}: is not what was written, by {checksums.SUMS_FILE}; restore the file")
    return sums


def _sum(sums: Mapping[str, Mapping[str, Any]], name: str) -> str:
    return str(sums[name][checksums.SEAL]) if name in sums else ""


TABLES = ("algorithm", "evaluate", "model", "sampler", "train")
"""Tables of run.toml."""


def _config(path: Path) -> dict[str, Any]:
    config = formats.current_settings(read_toml(path))
    for name in TABLES:
        if not isinstance(config.get(name, {}), dict):
            raise LogError(f"{path}: `{name}` must be a table; restore the file")
    return config


def _task(config: Mapping[str, Any]) -> Any:
    task = config.get("task")
    return task.get("name") if isinstance(task, dict) else task


def identify_run(
    run_folder: Path, config: Mapping[str, Any], described: Mapping[str, Any]
) -> tuple[str, str, int]:
    """Arm, task and seed from run.toml if it names them, else from the name of the folder."""
    task = _task(config)
    if isinstance(config.get("arm"), str) and isinstance(task, str) and isinstance(config.get("seed"), int):
        return config["arm"], task, config["seed"]
    stem, _, seed = run_folder.name.rpartition("-s")
    if seed.isdigit():
        for arm in described.get("arms", ()):
            for task_name in described.get("tasks", ()):
                if stem == f"{arm}-{str(task_name).replace(':', '-')}":
                    return str(arm), str(task_name), int(seed)
        arm, _, task_name = stem.rpartition("-")
        if arm and task_name:
            return arm, task_name, int(seed)
    raise LogError(
        f"{run_folder}: cannot tell arm, task and seed; run.toml must hold `arm`, `task` and `seed`"
    )


def _statuses_frame(runs: Sequence[Run]) -> pd.DataFrame:
    columns = (
        "name",
        "arm",
        "task",
        "seed",
        "state",
        "why",
        "step",
        "attempt",
        "cut_lines",
        "rewritten_rows",
    )
    return pd.DataFrame([{column: getattr(run, column) for column in columns} for run in runs])


def _ordered(declared: Sequence[Any], present: Sequence[str]) -> tuple[str, ...]:
    """Names in the order of the recipe, then names that only folders have."""
    return tuple(name for name in dict.fromkeys([*map(str, declared), *present]) if name in set(present))
