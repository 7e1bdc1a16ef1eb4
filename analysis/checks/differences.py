"""Differences between runs that are compared: in settings, versions, code, data and models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from grpobench.analysis.runfolder.experiment import (
    Experiment,
    attempts,
    describe,
    histories,
    plain_value,
)
from grpobench.analysis.tools.text import listed
from grpobench.analysis.topics.runs import IDENTITY, digests, resolved_settings

WITHOUT_EFFECT = ("checkpoint.", "checks.")
"""Prefixes of settings that do not change results."""


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
"""Fingerprint -> the settings that determine it. Runs with equal settings must have equal fingerprints."""


HASH_DIGITS = 12
"""Characters of a hash that are shown."""


def find_changes_within_runs(experiment: Experiment) -> Iterable[str]:
    """Runs in which something changed between attempts."""
    for run in experiment.runs:
        changes = [f"{name} {describe(stretches)}" for name, stretches in histories(run).items()]
        if changes:
            yield f"{run.name}: {'; '.join(changes)}"


def find_setting_differences(experiment: Experiment) -> Iterable[str]:
    """Seeds of an arm that differ in a setting."""
    for task, arm in product(experiment.tasks, experiment.arms):
        runs = [run for run in experiment.runs if (run.task, run.arm) == (task, arm) and run.config]
        flat = {run.seed: resolved_settings(run) for run in runs}
        for key in dict.fromkeys(key for config in flat.values() for key in config):
            if key in IDENTITY or key.startswith(WITHOUT_EFFECT):
                continue
            values = _by({seed: _text(config.get(key)) for seed, config in flat.items()})
            if len(values) > 1:
                values_text = ", ".join(f"{value} in seed {listed(seeds)}" for value, seeds in values.items())
                yield f"{arm} on {task}: {key} is {values_text}"


def find_version_differences(experiment: Experiment) -> Iterable[str]:
    """Versions and devices that differ between the last attempts of runs."""
    last_attempts = {run.name: tried[-1] for run in experiment.runs if (tried := attempts(run))}
    installed = {
        name: {**record.get("versions", {}), "device": record.get("device")}
        for name, record in last_attempts.items()
    }
    for key in dict.fromkeys(key for record in installed.values() for key in record):
        yield from _difference_lines(
            key, {name: _text(record.get(key)) for name, record in installed.items()}
        )
    # Attempts of earlier versions and on GPUs do not say.
    vectors = {name: record["vectors"] for name, record in last_attempts.items() if record.get("vectors")}
    yield from _difference_lines("vector instructions", vectors)


def find_code_differences(experiment: Experiment) -> Iterable[str]:
    """Source files that differ between runs that depend on them."""
    for file, runs_by_digest in sorted(digests(experiment).items()):
        yield from _difference_lines(
            file, {name: digest for digest, names in runs_by_digest.items() for name in names}
        )


def find_data_differences(experiment: Experiment) -> Iterable[str]:
    """Problems and models that differ between runs with the same settings."""
    for fingerprint, settings in PINNED_BY.items():
        groups: dict[str, dict[str, str]] = {}
        prefixes = tuple(f"{name}." for name in settings)
        for run in experiment.runs:
            fingerprints = run.provenance.get("fingerprints", {})
            if fingerprint in fingerprints:
                chosen = [(k, v) for k, v in resolved_settings(run).items() if f"{k}.".startswith(prefixes)]
                group = groups.setdefault(json.dumps(chosen, default=str), {})
                group[run.name] = str(fingerprints[fingerprint])[:HASH_DIGITS]
        for group in groups.values():
            yield from _difference_lines(fingerprint, group)


def _difference_lines(subject: str, values: Mapping[str, str]) -> Iterable[str]:
    """One line if runs differ: each value with its runs; for the most frequent value only their number."""
    runs_by_value = sorted(_by(values).items(), key=lambda pair: -len(pair[1]))
    if len(runs_by_value) > 1:
        parts = [
            f"{value} in {listed(names) if n else f'{len(names)} runs'}"
            for n, (value, names) in enumerate(runs_by_value)
        ]
        yield f"{subject}: {'; '.join(parts)}"


def _by(values: Mapping[Any, str]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for name, value in values.items():
        grouped.setdefault(value, []).append(name)
    return grouped


def _text(value: Any) -> str:
    return "absent" if value is None else plain_value(str(value))
