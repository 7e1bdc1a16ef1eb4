"""Read probes: TOML files with a mechanism, a dose, a score and the settings that make it."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from grpobench.analysis.profile.probe import Probe
from grpobench.runs.settings.recipe import RECIPES
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import ConfigError

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


@cache
def probes() -> Mapping[str, Probe]:
    """The probes that come with the suite, in order."""
    return {name: read_probe(PROBES / f"{name}.toml") for name in ORDER if (PROBES / f"{name}.toml").exists()}


def read_probe(path: Path) -> Probe:
    """The probe of a file. Raises ConfigError with every fault of it."""
    try:
        table = toml.read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"cannot read the probe: {error.strerror}"], str(path)) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([f"not TOML: {error}"], str(path)) from None
    faults: list[str] = []
    probe = strict.build(Probe, {"name": path.stem, **table}, "", faults)
    if isinstance(probe, strict.Bad) or faults:
        raise ConfigError(faults, str(path))
    return probe


def common() -> dict[str, Any]:
    """What all probes share: sections of a recipe, and the tables `search` and `profile`."""
    return dict(toml.read((PROBES / "common.toml").read_text(encoding="utf-8")))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, key by key."""
    whole = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = whole.get(key)
        # Weights are one value: a probe that rewards other scores does not add to those of another.
        if isinstance(value, Mapping) and isinstance(old, Mapping) and key != "weights":
            whole[key] = merged(old, value)
        else:
            whole[key] = copy.deepcopy(value)
    return whole


def arm_of(
    probe: Probe, name: str, algorithm: str, rates: Mapping[str, float], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arm of a recipe that runs an algorithm on a probe at searched learning rates by role."""
    settings = merged(probe.settings, more or {})
    own = {role: float(f"{probe.rate * rate:.6g}") for role, rate in rates.items()}
    arm = merged(settings, {"name": name, "algorithm": algorithm, "train": {"learning_rate": own}})
    arm["optional"] = True
    return arm


def recipe_table(name: str, arms: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """A recipe of these arms."""
    sections = {key: value for key, value in common().items() if key not in ("search", "profile")}
    tasks = list(dict.fromkeys(task for arm in arms for task in arm["tasks"]))
    return {"name": name, "seeds": list(seeds), "tasks": tasks, **sections, "arm": list(arms)}
