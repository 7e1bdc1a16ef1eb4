"""Read the folder of a matrix of runs into tidy frames; from logs alone, without torch or the harness.

A run that diverged, crashed, was preempted or never started is kept: it is listed with its state, never
dropped. A folder whose run.toml is another run's is none of the matrix's runs, and is told apart. A last line
that was cut while it was written is tolerated and counted; every other malformed line is an error that names
file and line.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import zstandard

FINISHED = "finished"
DIVERGED = "diverged"
"""The algorithm failed: the run's accuracy counts as 0."""
CRASHED = "crashed"
"""The machine or the program failed, which says nothing about the algorithm: the run has no result. Every
other state but `finished` and `diverged` means: no result yet."""
PROBLEMS = "problems.json.zst"
RUN_COLUMNS = ["arm", "task", "seed", "step"]
EVALUATION_KEYS = ("step", "split", "mode", "problem", "sample")


class LogError(Exception):
    """A log that cannot be read; the message names the file, the line and the remedy."""


@dataclass(frozen=True)
class Run:
    """One run folder."""

    name: str
    arm: str
    task: str
    seed: int
    state: str
    """`finished`, `running`, `diverged`, `crashed`, `preempted`; `missing`: no folder, `unknown`: no file."""
    why: str
    step: int
    attempt: int
    config: Mapping[str, Any]
    """run.toml, every resolved value."""
    origin: Mapping[str, Any]
    """origin.json."""
    cut_lines: int
    """Half-written last lines that were left out, over the run's logs."""
    rewritten_rows: int
    """Rows that a later attempt wrote again after going back to a checkpoint; the last one counts."""
    rows: int = 0
    """Rows of metrics.jsonl."""
    planned: bool = True
    """Whether matrix.json lists it."""

    @property
    def finished(self) -> bool:
        return self.state == FINISHED

    @property
    def failed(self) -> bool:
        """Whether the algorithm failed."""
        return self.state == DIVERGED

    @property
    def stopped(self) -> bool:
        """Whether it ended before its last update, for whatever reason."""
        return self.state in (DIVERGED, CRASHED)


@dataclass(frozen=True)
class Matrix:
    """All runs of one matrix."""

    name: str
    folder: Path
    summary: str
    recipe: str
    """Text of the recipe; empty if the launcher did not keep it."""
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    metrics: pd.DataFrame
    """Long: arm, task, seed, step, metric, value (NaN where the log says null)."""
    evaluations: pd.DataFrame
    """One row per evaluated problem and sample: arm, task, seed, step, split, mode, problem, sample, answer,
    outcome, length, stopped, and a column score/<name> and trait/<name> for each score and trait."""
    statuses: pd.DataFrame
    """One row per run: name, arm, task, seed, state, why, step, attempt, cut_lines, rewritten_rows."""
    configs: Mapping[str, Mapping[str, Any]]
    """run.toml by run name."""
    described: bool = True
    """Whether there is a matrix.json, which says what was planned."""
    strangers: Mapping[str, str] = field(default_factory=dict)
    """Folders whose run.toml is that of another run, and which; nothing of them is in the frames."""

    def select(self, metric: str) -> pd.DataFrame:
        """arm, task, seed, step, value of one metric; rows without a finite value are left out."""
        chosen = self.metrics[self.metrics["metric"] == metric].drop(columns="metric")
        return chosen[np.isfinite(chosen["value"])].reset_index(drop=True)

    def has(self, metric: str) -> bool:
        """Whether any run logged a finite value of the metric."""
        return not self.select(metric).empty

    def names(self, prefix: str = "") -> list[str]:
        """Names of the logged metrics that start with `prefix`, sorted."""
        return sorted(str(name) for name in self.metrics["metric"].unique() if str(name).startswith(prefix))


def load(folder: Path) -> Matrix:
    """Read `results/<matrix>`. Raises LogError where a log is malformed or nothing is there to read."""
    folder = Path(folder)
    if not folder.is_dir():
        raise LogError(f"{folder}: no such folder; pass the folder of a matrix, results/<matrix>")
    if (folder / "run.toml").exists():
        raise LogError(f"{folder}: this is one run; pass the folder above it, {folder.parent}")
    described = _json(folder / "matrix.json") if (folder / "matrix.json").exists() else {}
    found = {path.parent.name for path in folder.glob("*/run.toml")}
    names = list(dict.fromkeys([*map(str, described.get("runs", ())), *sorted(found)]))
    if not names:
        raise LogError(f"{folder}: holds no run; a run is a folder with run.toml, written by `grpobench run`")
    strangers = {name: who for name in names if (who := _stranger(folder / name))}
    planned = set(map(str, described.get("runs", names)))
    read = [
        _run(folder, name, described, name in planned, strangers.get(name, ""))
        for name in names
        if name in planned or name not in strangers
    ]
    if not read:
        raise LogError(f"{folder}: holds no run of its own, only folders of others: {', '.join(strangers)}")
    _demand_one_folder_each(folder, [run for run, _, _ in read])
    arms = _ordered(described.get("arms", ()), [run.arm for run, _, _ in read])
    tasks = _ordered(described.get("tasks", ()), [run.task for run, _, _ in read])
    read.sort(key=lambda entry: (arms.index(entry[0].arm), tasks.index(entry[0].task), entry[0].seed))
    runs = tuple(run for run, _, _ in read)
    return Matrix(
        name=str(described.get("name", folder.resolve().name)),
        folder=folder,
        summary=str(described.get("summary", "")),
        recipe=str(described.get("recipe", "")),
        arms=arms,
        tasks=tasks,
        seeds=tuple(sorted({run.seed for run in runs})),
        runs=runs,
        metrics=_metrics_frame([(run, rows) for run, rows, _ in read]),
        evaluations=_evaluations_frame([(run, rows) for run, _, rows in read]),
        statuses=_statuses_frame(runs),
        configs={run.name: run.config for run in runs},
        described=bool(described),
        strangers=strangers,
    )


def _demand_one_folder_each(folder: Path, runs: Sequence[Run]) -> None:
    """Raise LogError where two folders say that they are the same run."""
    known: dict[tuple[str, str, int], str] = {}
    for run in runs:
        other = known.setdefault((run.arm, run.task, run.seed), run.name)
        if other != run.name:
            raise LogError(
                f"{folder / other} and {folder / run.name} are both {run.arm} on {run.task} with seed "
                f"{run.seed}; move the copy out of {folder}"
            )


def read_lines(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """(line number, object) of a JSON-lines file, and how many half-written last lines were left out (0, 1).

    Only a last line without a line end may be malformed. A missing file has no lines.
    """
    if not path.exists():
        return [], 0
    content = path.read_bytes()
    lines = content.split(b"\n")
    read: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, found {type(row).__name__}")
        except ValueError as error:  # JSON and UTF-8 decoding errors are both ValueErrors
            if number == len(lines):  # no line end behind it: the writer was stopped in the middle
                return read, 1
            what = f"not a JSON object ({error}); mend or delete the line"
            raise LogError(f"{path}, line {number}: {what}") from error
        read.append((number, row))
    return read, 0


def problems(run: Path) -> dict[str, dict[str, str]]:
    """{split: {problem: digest}} of what a run could train on and of what it evaluated; empty where it was
    not kept. The first ten characters of a digest stand for the prompt, the others for prompt and truth."""
    path = run / PROBLEMS
    if not path.exists():
        return {}
    try:
        content: dict[str, dict[str, str]] = json.loads(
            zstandard.ZstdDecompressor().decompress(path.read_bytes())
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise LogError(f"{path}: damaged ({error}); restore or delete the file") from error
    return content


def _stranger(place: Path) -> str:
    """Which run a folder holds, where it is another than its name says; else empty."""
    config = _toml(place / "run.toml") if (place / "run.toml").exists() else {}
    task = config["task"].get("name") if isinstance(config.get("task"), dict) else config.get("task")
    arm, seed = config.get("arm"), config.get("seed")
    if not isinstance(arm, str) or not isinstance(task, str) or not isinstance(seed, int):
        return ""
    own = f"{arm}-{task.replace(':', '-')}-s{seed}"
    return "" if own == place.name else own


def _run(
    folder: Path, name: str, described: Mapping[str, Any], planned: bool, stranger: str
) -> tuple[Run, list[dict[str, float]], list[dict[str, Any]]]:
    """A run with its rows of metrics.jsonl and of eval.jsonl. Where a `stranger` lies in its place, it is
    missing."""
    place = folder / name
    config = _toml(place / "run.toml") if (place / "run.toml").exists() and not stranger else {}
    arm, task, seed = _identify(place, config, described)
    if stranger:
        why = f"its folder holds {stranger}"
        return Run(name, arm, task, seed, "missing", why, 0, 0, {}, {}, 0, 0, 0, planned), [], []
    if not place.is_dir():
        status: Mapping[str, Any] = {"state": "missing", "why": "no run folder: not started"}
    elif (place / "status.json").exists():
        status = _json(place / "status.json")
    else:
        status = {"state": "unknown", "why": "no status.json"}
    metrics, cut_metrics, rewritten_metrics = _metric_rows(place / "metrics.jsonl")
    evaluations, cut_evaluations, rewritten_evaluations = _evaluation_rows(place / "eval.jsonl")
    run = Run(
        name=name,
        arm=arm,
        task=task,
        seed=seed,
        state=str(status.get("state", "unknown")),
        why=str(status.get("why", "") or ""),
        step=int(status.get("step", metrics[-1]["step"] if metrics else 0)),
        attempt=int(status.get("attempt", 0)),
        config=config,
        origin=_json(place / "origin.json") if (place / "origin.json").exists() else {},
        cut_lines=cut_metrics + cut_evaluations,
        rewritten_rows=rewritten_metrics + rewritten_evaluations,
        rows=len(metrics),
        planned=planned,
    )
    return run, metrics, evaluations


def _metric_rows(path: Path) -> tuple[list[dict[str, float]], int, int]:
    """Rows in rising step order, cut lines, rewritten rows. A step that goes back replaces what followed."""
    lines, cut = read_lines(path)
    rows: list[dict[str, float]] = []
    rewritten = 0
    for number, row in lines:
        values = {name: _number(value, path, number, name) for name, value in row.items()}
        step = values.get("step", math.nan)
        if not step >= 0 or step != int(step):
            found = row.get("step")
            raise LogError(f"{path}, line {number}: `step` must be a whole number from 0; found {found!r}")
        while rows and rows[-1]["step"] >= step:
            rows.pop()
            rewritten += 1
        rows.append(values)
    return rows, cut, rewritten


def _evaluation_rows(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    lines, cut = read_lines(path)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, row in lines:
        absent = [key for key in (*EVALUATION_KEYS, "scores") if key not in row]
        if absent or not isinstance(row["scores"], dict):
            what = f"no `{absent[0]}`" if absent else "`scores` must be an object"
            raise LogError(f"{path}, line {number}: {what}; mend or delete the line")
        for name, score in row["scores"].items():
            _demand_score(_number(score, path, number, f"scores.{name}"), path, number, name)
        rows[tuple(row[key] for key in EVALUATION_KEYS)] = row
    return list(rows.values()), cut, len(lines) - len(rows)


def _number(value: Any, path: Path, line: int, name: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, (int, float)):
        return float(value)
    raise LogError(f"{path}, line {line}: `{name}` must be a number or null; found {value!r}")


def _demand_score(score: float, path: Path, line: int, name: str) -> None:
    """`correct` is a share; what other scores are is the task's affair. NaN, an ungraded answer, passes."""
    if name == "correct" and (score < 0 or score > 1):
        raise LogError(
            f"{path}, line {line}: the score `correct` must be from 0 to 1; found {score:g}; mend the task's "
            "verifier and evaluate again"
        )


def _identify(place: Path, config: Mapping[str, Any], described: Mapping[str, Any]) -> tuple[str, str, int]:
    """Arm, task and seed: from run.toml where it says so, else from the folder's name."""
    task = config.get("task")
    task = task.get("name") if isinstance(task, dict) else task
    if isinstance(config.get("arm"), str) and isinstance(task, str) and isinstance(config.get("seed"), int):
        return config["arm"], task, config["seed"]
    stem, _, seed = place.name.rpartition("-s")
    if seed.isdigit():
        for arm in described.get("arms", ()):
            for known in described.get("tasks", ()):
                if stem == f"{arm}-{str(known).replace(':', '-')}":
                    return str(arm), str(known), int(seed)
        arm, _, known = stem.rpartition("-")
        if arm and known:
            return arm, known, int(seed)
    raise LogError(f"{place}: cannot tell arm, task and seed; run.toml must hold `arm`, `task` and `seed`")


def _metrics_frame(read: Sequence[tuple[Run, list[dict[str, float]]]]) -> pd.DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in (*RUN_COLUMNS, "metric", "value")}
    for run, rows in read:
        for row in rows:
            names = [name for name in row if name != "step"]
            count = len(names)
            columns["arm"] += [run.arm] * count
            columns["task"] += [run.task] * count
            columns["seed"] += [run.seed] * count
            columns["step"] += [int(row["step"])] * count
            columns["metric"] += names
            columns["value"] += [row[name] for name in names]
    frame = pd.DataFrame(columns)
    frame["value"] = frame["value"].astype(float)
    return frame.astype({"metric": "category"})  # comparing codes makes `select` ten times faster


def _evaluations_frame(read: Sequence[tuple[Run, list[dict[str, Any]]]]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for run, lines in read:
        for line in lines:
            row: dict[str, Any] = {"arm": run.arm, "task": run.task, "seed": run.seed}
            row |= {name: value for name, value in line.items() if name not in ("scores", "traits")}
            row |= {f"score/{name}": value for name, value in line["scores"].items()}
            row |= {f"trait/{name}": value for name, value in (line.get("traits") or {}).items()}
            rows.append(row)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["arm", "task", "seed", *EVALUATION_KEYS])


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


def _ordered(declared: Sequence[Any], found: Sequence[str]) -> tuple[str, ...]:
    """The order of the recipe first, then what is only found in folders."""
    return tuple(name for name in dict.fromkeys([*map(str, declared), *found]) if name in set(found))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise LogError(f"{path}: not JSON ({error}); restore or delete the file") from error
    if not isinstance(content, dict):
        raise LogError(f"{path}: must hold a JSON object")
    return content


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LogError(f"{path}: not TOML ({error}); restore the file") from error
