"""The format of result folders: its version, and how reports read a folder of an older version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 2
"""Written into experiment.json and provenance.json. Files without a version have format 1."""
KEY = "format"
EXPERIMENT = "experiment.json"
PROVENANCE = "provenance.json"
INTERIM = "interim.json"
OLD_FILES: Mapping[str, str] = {EXPERIMENT: "matrix.json", PROVENANCE: "origin.json", INTERIM: "looks.json"}
"""The names that files had in format 1."""
OLD_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "": {"matrix": "experiment"},
    "train": {
        "prompts": "prompts_per_step",
        "group": "group_size",
        "minibatches": "num_minibatches",
        "tokens_per_micro_batch": "micro_batch_tokens",
        "optimiser": "optimizer",
        "optimiser_settings": "optimizer_settings",
    },
    "sampler": {
        "rows": "max_batch_size",
        "max_new_tokens": "max_completion_tokens",
        "largest_gap": "max_logprob_gap",
    },
}
"""Keys of run.toml in format 1, by table; "" is the top of the file."""
OLD_METRICS: Mapping[str, str] = {"time/read": "time/forward", "time/optimise": "time/optimize"}
OLD_KEYS: Mapping[str, Mapping[str, str]] = {
    EXPERIMENT: {"doses": "sweep_values"},
    PROVENANCE: {"pins": "fingerprints"},
    INTERIM: {"looks": "analyses", "alpha_per_look": "alpha_per_analysis"},
}
"""Keys of the JSON files in format 1."""


def find_file(folder: Path, name: str) -> Path:
    """The file of that name, or the one that format 1 has in its place. The new name where there is
    neither."""
    path, old = folder / name, folder / OLD_FILES[name]
    return old if old.exists() and not path.exists() else path


def is_old(folder: Path) -> bool:
    """Whether an experiment or a run folder was written in format 1."""
    return any((folder / old).exists() and not (folder / new).exists() for new, old in OLD_FILES.items())


def refusal(folder: Path) -> str:
    """Why runs do not resume in a folder, in a sentence; empty where they may."""
    if not is_old(folder):
        return ""
    return (
        f"{folder}: was written in format 1 of an older version, which report and figure read and "
        f"runs do not "
        "resume; choose another --out"
    )


def renamed(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A table under its new keys; keys that are not in `names` stay."""
    return {names.get(key, key): value for key, value in table.items()}


def current_keys(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file of that (new) name under today's keys."""
    return renamed(content, OLD_KEYS.get(name, {}))


def current_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """run.toml under today's keys."""
    tables = {
        key: renamed(value, OLD_SETTINGS[key])
        if key in OLD_SETTINGS and isinstance(value, Mapping)
        else value
        for key, value in config.items()
    }
    return renamed(tables, OLD_SETTINGS[""])
