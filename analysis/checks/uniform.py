"""What is not the same in runs that are compared: settings, versions, code, data and models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpobench.analysis.logs.changes import attempts, describe, histories, plain_value
from grpobench.analysis.logs.matrix import Matrix, Run
from grpobench.analysis.summary.origins import digests
from grpobench.analysis.summary.settings import IDENTITY, resolved_settings
from grpobench.analysis.tools.text import listed

WITHOUT_EFFECT = ("checkpoint.", "checks.")
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


def changed(matrix: Matrix) -> Iterable[str]:
    """Runs in which something changed between attempts."""
    for run in matrix.runs:
        told = [f"{name} {describe(own)}" for name, own in histories(run).items()]
        if told:
            yield f"{run.name}: {'; '.join(told)}"


def apart(matrix: Matrix) -> Iterable[str]:
    """Seeds of an arm that differ in a setting."""
    cells: dict[tuple[str, str], list[Run]] = {(t, arm): [] for t in matrix.tasks for arm in matrix.arms}
    for run in matrix.runs:
        cells[run.task, run.arm].append(run)
    for (task, arm), every in cells.items():
        runs = [run for run in every if run.config]
        flat = {run.seed: resolved_settings(run) for run in runs}
        for key in dict.fromkeys(key for config in flat.values() for key in config):
            if key in IDENTITY or key.startswith(WITHOUT_EFFECT):
                continue
            values = _by({seed: _text(config.get(key)) for seed, config in flat.items()})
            if len(values) > 1:
                told = ", ".join(f"{value} in seed {listed(seeds)}" for value, seeds in values.items())
                yield f"{arm} on {task}: {key} is {told}"


def versions(matrix: Matrix) -> Iterable[str]:
    """Versions and devices, by the last attempt of each run."""
    last = {run.name: tried[-1] for run in matrix.runs if (tried := attempts(run))}
    told = {name: {**one.get("versions", {}), "device": one.get("device")} for name, one in last.items()}
    for key in dict.fromkeys(key for one in told.values() for key in one):
        yield from _told(key, {name: _text(one.get(key)) for name, one in told.items()})


def code(matrix: Matrix) -> Iterable[str]:
    """Source files that differ between runs which both depend on them."""
    for file, found in sorted(digests(matrix).items()):
        yield from _told(file, {name: digest for digest, names in found.items() for name in names})


def data(matrix: Matrix) -> Iterable[str]:
    """Problems and models that differ between runs whose settings choose the same."""
    for pin, settings in PINNED_BY.items():
        groups: dict[str, dict[str, str]] = {}
        for run in matrix.runs:
            pins = run.origin.get("pins", {})
            if pin in pins:
                chosen = [
                    (k, v) for k, v in resolved_settings(run).items() if f"{k}.".startswith(_dots(settings))
                ]
                groups.setdefault(json.dumps(chosen, default=str), {})[run.name] = str(pins[pin])[:SHOWN]
        for group in groups.values():
            yield from _told(pin, group)


def _dots(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def _told(what: str, values: Mapping[str, str]) -> Iterable[str]:
    """One line where runs differ: each value with its runs, the most frequent without names."""
    found = sorted(_by(values).items(), key=lambda pair: -len(pair[1]))
    if len(found) > 1:
        told = [
            f"{value} in {listed(names) if n else f'{len(names)} runs'}"
            for n, (value, names) in enumerate(found)
        ]
        yield f"{what}: {'; '.join(told)}"


def _by(values: Mapping[Any, str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def _text(value: Any) -> str:
    return "absent" if value is None else plain_value(str(value))
