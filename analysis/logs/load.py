"""Read the folder of a matrix of runs into tidy frames; from logs alone, without torch or the harness.

A run that diverged, crashed, was preempted or never started is kept: it is listed with its state, never
dropped. A folder whose run.toml is another run's is none of the matrix's runs, and is told apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from grpobench.analysis.logs.files import LogError, read_json, read_lines, read_toml
from grpobench.analysis.logs.matrix import MARGIN, Dose, Matrix, Run

RUN_COLUMNS = ["arm", "task", "seed", "step"]
EVALUATION_KEYS = ("step", "split", "mode", "problem", "sample")


def load(folder: Path, margin: float | None = None) -> Matrix:
    """Read `results/<matrix>`. Raises LogError where a log is malformed or nothing is there to read.

    `margin`, in points of accuracy, takes the place of the recipe's.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise LogError(f"{folder}: no such folder; pass the folder of a matrix, results/<matrix>")
    if (folder / "run.toml").exists():
        raise LogError(f"{folder}: this is one run; pass the folder above it, {folder.parent}")
    described = read_json(folder / "matrix.json") if (folder / "matrix.json").exists() else {}
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
        margin=_margin(described.get("margin", 100 * MARGIN) if margin is None else margin),
        described=bool(described),
        strangers=strangers,
        doses={
            str(arm): Dose(str(own["arm"]), own["values"]) for arm, own in described.get("doses", {}).items()
        },
    )


def _margin(points: Any) -> float:
    """As a share. Raises LogError for what is no margin."""
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 < points < 100:
        raise LogError(f"margin: must be points of accuracy, above 0 and below 100, not {points}")
    return points / 100


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


def _stranger(run_folder: Path) -> str:
    """Which run a folder holds, where it is another than its name says; else empty."""
    config = read_toml(run_folder / "run.toml") if (run_folder / "run.toml").exists() else {}
    task = config["task"].get("name") if isinstance(config.get("task"), dict) else config.get("task")
    arm, seed = config.get("arm"), config.get("seed")
    if not isinstance(arm, str) or not isinstance(task, str) or not isinstance(seed, int):
        return ""
    own = f"{arm}-{task.replace(':', '-')}-s{seed}"
    return "" if own == run_folder.name else own


def _run(
    folder: Path, name: str, described: Mapping[str, Any], planned: bool, stranger: str
) -> tuple[Run, list[dict[str, float]], list[dict[str, Any]]]:
    """A run with its rows of metrics.jsonl and of eval.jsonl. Where a `stranger` lies in its place, it is
    missing."""
    run_folder = folder / name
    config = read_toml(run_folder / "run.toml") if (run_folder / "run.toml").exists() and not stranger else {}
    arm, task, seed = identify(run_folder, config, described)
    if stranger:
        why = f"its folder holds {stranger}"
        return Run(name, arm, task, seed, "missing", why, 0, 0, {}, {}, 0, 0, 0, planned), [], []
    if not run_folder.is_dir():
        status: Mapping[str, Any] = {"state": "missing", "why": "no run folder: not started"}
    elif (run_folder / "status.json").exists():
        status = read_json(run_folder / "status.json")
    else:
        status = {"state": "unknown", "why": "no status.json"}
    metrics, cut_metrics, rewritten_metrics = _metric_rows(run_folder / "metrics.jsonl")
    evaluations, cut_evaluations, rewritten_evaluations = _evaluation_rows(run_folder / "eval.jsonl")
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
        origin=read_json(run_folder / "origin.json") if (run_folder / "origin.json").exists() else {},
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


def identify(
    run_folder: Path, config: Mapping[str, Any], described: Mapping[str, Any]
) -> tuple[str, str, int]:
    """Arm, task and seed: from run.toml where it says so, else from the folder's name."""
    task = config.get("task")
    task = task.get("name") if isinstance(task, dict) else task
    if isinstance(config.get("arm"), str) and isinstance(task, str) and isinstance(config.get("seed"), int):
        return config["arm"], task, config["seed"]
    stem, _, seed = run_folder.name.rpartition("-s")
    if seed.isdigit():
        for arm in described.get("arms", ()):
            for known in described.get("tasks", ()):
                if stem == f"{arm}-{str(known).replace(':', '-')}":
                    return str(arm), str(known), int(seed)
        arm, _, known = stem.rpartition("-")
        if arm and known:
            return arm, known, int(seed)
    raise LogError(
        f"{run_folder}: cannot tell arm, task and seed; run.toml must hold `arm`, `task` and `seed`"
    )


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
