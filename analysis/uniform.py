"""What is not uniform in a matrix, and what is not as planned: everything that a reader must know before the
numbers. Read from logs alone; a matrix that one launcher ran through on one machine has nothing to tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis import changes, load, summary
from grpobench.analysis.load import Matrix, Run

PROMPT = 10
"""Characters of a problem's digest that stand for its prompt."""
WITHOUT_EFFECT = ("checkpoint.",)
"""Settings that change no number."""
PINNED_BY: Mapping[str, Sequence[str]] = {
    "train problems": ("task",),
    "validation problems": ("task", "evaluate", "model.long_prompts"),
    "test problems": ("task", "evaluate", "model.long_prompts"),
    "model weights": ("model.name",),
    "model configuration": ("model.name",),
    "tokenizer": ("model.name",),
    "warm start": ("task", "model"),
    "reward model": ("task", "reward"),
    "preference file": ("sampler.path",),
    "trl": ("train.backend",),
}
"""The settings by which something is chosen: runs that share them must have the same."""
SHOWN = 12
"""Characters of a hash that are shown."""
NONFINITE = "grad/nonfinite"
"""Updates of a step that were skipped because their loss, a reward or a gradient was not finite."""


@dataclass(frozen=True)
class Alarm:
    """Something that a reader must know before the numbers."""

    title: str
    lines: Sequence[str]


def alarms(matrix: Matrix) -> list[Alarm]:
    """Everything that is not uniform, not as planned, or missing; empty where nothing is."""
    return [Alarm(title, lines) for title, find in CHECKS.items() if (lines := [*find(matrix)])]


def changed(matrix: Matrix) -> Iterable[str]:
    for run in matrix.runs:
        told = [f"{name} {changes.text(own)}" for name, own in changes.histories(run).items()]
        if told:
            yield f"{run.name}: {'; '.join(told)}"


def incomplete(matrix: Matrix) -> Iterable[str]:
    """Runs with a result whose folder lacks a part of what every run writes."""
    steps = matrix.metrics.groupby(["arm", "task", "seed"], sort=False)["step"].unique()
    frame = matrix.evaluations
    for run in matrix.runs:
        if run.state == "missing":
            continue
        faults = [] if run.origin else ["origin.json is missing"]
        key = (run.arm, run.task, run.seed)
        if run.finished or run.failed:
            logged = {int(step) for step in steps[key]} if key in steps.index else set()
            faults += _lost_steps(run, logged)
            own = summary.of(frame, run) if len(frame) else frame
            faults += _lost_evaluations(matrix, run, own)
        if faults:
            yield f"{run.name}: {'; '.join(faults)}"


def _lost_steps(run: Run, logged: set[int]) -> list[str]:
    if not logged:
        return ["metrics.jsonl is missing or empty: the run counts nowhere"]
    last = summary.resolved(run).get("train.steps", run.step) if run.finished else run.step
    lost = sorted({*range(int(last) + 1)} - logged)
    return (
        [f"metrics.jsonl lacks {len(lost)} of {last + 1} rows, the first of step {lost[0]}"] if lost else []
    )


def _lost_evaluations(matrix: Matrix, run: Run, rows: Any) -> list[str]:
    """Evaluations whose summary is in metrics.jsonl and whose answers are not in eval.jsonl."""
    own = summary.of(matrix.metrics, run)
    own = own[own["metric"].astype(str).str.startswith("eval/")]
    summed = {
        (int(step), *str(metric).split("/")[1:3])
        for step, metric in own[["step", "metric"]].drop_duplicates().itertuples(index=False)
    }
    kept = {*rows[["step", "split", "mode"]].itertuples(index=False, name=None)} if len(rows) else set()
    if summed and not kept:
        return ["eval.jsonl is missing or empty"]
    lost = sorted(summed - kept)
    return [f"eval.jsonl lacks {' '.join(map(str, one))}" for one in lost[:1]] + (
        [f"and {len(lost) - 1} more evaluations"] if len(lost) > 1 else []
    )


def left_out(matrix: Matrix) -> Iterable[str]:
    """Finished runs some of whose updates were not made; those that diverged are named for it elsewhere."""
    frame = matrix.select(NONFINITE)
    frame = frame[frame["value"] > 0]
    for run in matrix.runs:
        steps = summary.of(frame, run)["step"]
        if run.finished and len(steps):
            last = summary.resolved(run).get("train.steps", run.step)
            yield f"{run.name}: in {len(steps)} of {last} steps, the last of them {steps.max()}"


def apart(matrix: Matrix) -> Iterable[str]:
    """Seeds of an arm that differ in a setting."""
    for task in matrix.tasks:
        for arm in matrix.arms:
            runs = [run for run in matrix.runs if (run.arm, run.task) == (arm, task) and run.config]
            flat = {run.seed: summary.resolved(run) for run in runs}
            for key in dict.fromkeys(key for config in flat.values() for key in config):
                if key in summary.IDENTITY or key.startswith(WITHOUT_EFFECT):
                    continue
                values = _by({seed: _text(config.get(key)) for seed, config in flat.items()})
                if len(values) > 1:
                    told = ", ".join(f"{value} in seed {_list(seeds)}" for value, seeds in values.items())
                    yield f"{arm} on {task}: {key} is {told}"


def versions(matrix: Matrix) -> Iterable[str]:
    """Versions and devices, by the last attempt of each run."""
    last = {run.name: tried[-1] for run in matrix.runs if (tried := changes.attempts(run))}
    told = {name: {**one.get("versions", {}), "device": one.get("device")} for name, one in last.items()}
    for key in dict.fromkeys(key for one in told.values() for key in one):
        yield from _told(key, {name: _text(one.get(key)) for name, one in told.items()})


def code(matrix: Matrix) -> Iterable[str]:
    """Source files that differ between runs which both depend on them."""
    for file, found in sorted(summary.files(matrix).items()):
        yield from _told(file, {name: digest for digest, names in found.items() for name in names})


def data(matrix: Matrix) -> Iterable[str]:
    """Problems and models that differ between runs whose settings choose the same."""
    for pin, settings in PINNED_BY.items():
        groups: dict[str, dict[str, str]] = {}
        for run in matrix.runs:
            pins = run.origin.get("pins", {})
            if pin in pins:
                chosen = [
                    (k, v) for k, v in summary.resolved(run).items() if f"{k}.".startswith(_dots(settings))
                ]
                groups.setdefault(json.dumps(chosen, default=str), {})[run.name] = str(pins[pin])[:SHOWN]
        for group in groups.values():
            yield from _told(pin, group)


def _dots(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def misplaced(matrix: Matrix) -> Iterable[str]:
    """Folders that hold another run than they say, or a copy of one."""
    for name, who in matrix.strangers.items():
        yield f"{name} holds {who}, by its run.toml; nothing in it is counted"
    for run in matrix.runs:
        told = run.config.get("matrix", matrix.name)
        if told != matrix.name:
            yield f"{run.name} was made for the matrix {told}, by its run.toml; it is counted"
    owners: dict[tuple[Any, ...], list[str]] = {}
    for run in matrix.runs:
        for one in changes.attempts(run):
            mark = (one["id"],) if "id" in one else (one.get("pid"), one.get("host"), one.get("started"))
            if any(mark):
                owners.setdefault(mark, []).append(run.name)
    for names in dict.fromkeys(tuple(sorted(set(names))) for names in owners.values()):
        if len(names) > 1:
            yield f"{_list(names)} come from one and the same process: all but one are copies, and counted"


def unplanned(matrix: Matrix) -> Iterable[str]:
    """What is there and was not planned, and seeds that only some arms of a task have."""
    if not matrix.described:
        yield "matrix.json is missing: which runs were planned is not known"
    if extra := [run.name for run in matrix.runs if not run.planned]:
        yield f"not planned by matrix.json, and counted: {_list(extra)}"
    for task in matrix.tasks:
        arms: dict[str, set[int]] = {}
        for run in matrix.runs:
            if run.task == task:
                arms.setdefault(run.arm, set()).add(run.seed)
        everything = set().union(*arms.values()) if arms else set()
        for arm, seeds in arms.items():
            if lost := sorted(everything - seeds):
                yield f"{arm} on {task} has no run of seed {_list(lost)}, which other arms have"


def leaked(matrix: Matrix) -> Iterable[str]:
    """Evaluated problems that the same run could train on, by the digests that it kept."""
    told: dict[str, list[str]] = {}
    for run in matrix.runs:
        digests = load.problems(matrix.folder / run.name) if run.state != "missing" else {}
        trained = {*digests.get("train", {}).values()}
        for split, problems in digests.items():
            both = [name for name, one in problems.items() if one in trained or one[:PROMPT] in trained]
            if split != "train" and both:
                share = f"{len(both)} of {len(problems)} {split} problems"
                what = f"{share} are training problems, such as {both[0]}"
                told.setdefault(what, []).append(run.name)
    for what, names in told.items():
        yield f"{what}: {_list(names)}"


CHECKS: Mapping[str, Callable[[Matrix], Iterable[str]]] = {
    "Changed while the run ran": changed,
    "Evaluated on problems that were trained on": leaked,
    "Updates left out for a loss, reward or gradient that is not finite": left_out,
    "Logs that lack something": incomplete,
    "Folders that are not what they say": misplaced,
    "Not as planned": unplanned,
    "Seeds of one arm with different settings": apart,
    "Different data or models under the same settings": data,
    "Different versions or devices": versions,
    "Different code": code,
}
"""Title in the report -> what finds its lines."""


def _told(what: str, values: Mapping[str, str]) -> Iterable[str]:
    """One line where runs differ: each value with its runs, the most frequent without names."""
    found = sorted(_by(values).items(), key=lambda pair: -len(pair[1]))
    if len(found) > 1:
        told = [
            f"{value} in {_list(names) if n else f'{len(names)} runs'}"
            for n, (value, names) in enumerate(found)
        ]
        yield f"{what}: {'; '.join(told)}"


def _by(values: Mapping[Any, str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def _text(value: Any) -> str:
    return "absent" if value is None else changes.plain(str(value))


def _list(names: Sequence[Any], most: int = 8) -> str:
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
