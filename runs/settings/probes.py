"""Read probes: TOML files with a mechanism, a dose, a score and the settings that make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from grpobench.analysis.profile.probe import Probe
from grpobench.runs.settings.layers import merge
from grpobench.runs.settings.recipe import RECIPES
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

PROBES = RECIPES / "probes"
ORDER = (
    "learn",
    "ladder",
    "sparse",
    "credit",
    "prefix",
    "imbalance",
    "diversity",
    "length",
    "staleness",
    "flips",
    "outliers",
    "offset",
    "placebo",
    "hacking",
)
"""In which pages and figures show them: learning, what is kept while learning, robustness."""
GATE = "learn"
"""The probe on which learning rates are searched, and that gates the robustness probes."""
NANO = "nano"
SCALES = (NANO, "small")
"""Scales that have probes: built-in policies of a million parameters, and SmolLM2-135M."""


def folder_of(scale: str) -> Path:
    """Where the files of a scale lie."""
    return PROBES if scale == NANO else PROBES / scale


@cache
def probes(scale: str = NANO) -> Mapping[str, Probe]:
    """The probes that a scale of the suite has, in order."""
    folder = folder_of(scale)
    return {
        name: read_probe(PROBES / f"{name}.toml", *([folder / f"{name}.toml"] if scale != NANO else []))
        for name in ORDER
        if (folder / f"{name}.toml").exists()
    }


def read_probe(path: Path, *over: Path) -> Probe:
    """The probe of a file, with the tables of others laid over it. Raises ConfigError with every fault.

    At another scale than `nano` a probe is the same file with the tables of ``SCALE/NAME.toml`` laid over it:
    the mechanism, the outcome and the controls are those of its nano twin, and the file says what differs."""
    table: dict[str, Any] = {}
    for file in (path, *over):
        table = merged(table, strict.read_toml(strict.read_text(file, "probe"), str(file)))
    faults: list[str] = []
    probe = strict.build(Probe, {"name": path.stem, **table}, "", faults)
    if isinstance(probe, strict.Bad) or faults:
        raise ConfigError(faults, str((path, *over)[-1]))
    return probe


def common(scale: str = NANO) -> dict[str, Any]:
    """What all probes of a scale share: sections of a recipe, and the tables `search` and `profile`."""
    table: dict[str, Any] = {}
    for folder in dict.fromkeys((PROBES, folder_of(scale))):
        table = merged(table, toml.read(bounded.read_text(folder / "common.toml")))
    return table


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, key by key. Weights are one value: a probe that rewards other scores does
    not add to those of another."""
    return merge(below, above, single=("weights",))


def arm_of(
    probe: Probe, name: str, algorithm: str, rates: Mapping[str, float], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arm of a recipe that runs an algorithm on a probe at searched learning rates by role."""
    settings = merged(probe.settings, more or {})
    scaled_rates = {role: float(f"{probe.rate * rate:.6g}") for role, rate in rates.items()}
    arm = merged(settings, {"name": name, "algorithm": algorithm, "train": {"learning_rate": scaled_rates}})
    arm["optional"] = True
    return arm


def recipe_table(
    name: str, arms: Sequence[Mapping[str, Any]], seeds: Sequence[int], scale: str = NANO
) -> dict[str, Any]:
    """A recipe of these arms."""
    sections = {key: value for key, value in common(scale).items() if key not in ("search", "profile")}
    tasks = list(dict.fromkeys(task for arm in arms for task in arm["tasks"]))
    return {"name": name, "seeds": list(seeds), "tasks": tasks, **sections, "arm": list(arms)}
