"""Environments that a recipe names: ``env:module:Class``, a class beside the recipe or in a package."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.settings import plugins, registries
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD, ConfigError, KeyPath
from grpobench.tasks import openenv, verifiers
from grpobench.tasks.kinds.environment import NEEDED, SCORES, EnvironmentTask

DEFAULTS = (
    *("name", "turns", "turn_tokens", "turn_end", "max_completion_tokens"),
    *("step_seconds", "live", "workers", "caveat"),
)
"""Attributes of an environment's class that are defaults of its task's settings."""


def read(name: str, settings: Mapping[str, Any], folder: Path | None, key_path: KeyPath) -> dict[str, Any]:
    """The fields of the task of an environment, as plain data: the attributes of its class under `settings`.
    Raises ConfigError for a class that does not exist or lacks a method, and for arguments that it does not
    take."""
    kind, _, reference = name.partition(":")
    if kind == "verifiers":
        return read_verifiers(reference, settings, folder, key_path)
    if kind == "openenv":
        return read_openenv(reference, settings, key_path)
    cls: Any = plugins.load(reference, folder, key_path)
    lacks = [method for method in NEEDED if not callable(getattr(cls, method, None))]
    if not isinstance(cls, type) or lacks:
        complaint = f"lacks {', '.join(lacks)}" if lacks else f"is {registries.described(cls)}, no class"
        raise plugins.fault(key_path, f"{reference} {complaint}; tasks/kinds/environment.py has the protocol")
    demand_arguments(cls, reference, settings, key_path)
    return {"name": cls.__name__.lower(), "environment": reference, **with_defaults(cls, settings)}


def demand_arguments(
    maker: Any, label: str, settings: Mapping[str, Any], key_path: KeyPath, *more: str
) -> None:
    """Raise ConfigError where the maker of an environment does not take the `arguments` of its settings and
    those called `more`."""
    arguments = settings.get("arguments", {})
    if isinstance(arguments, Mapping) and (wrong := registries.mismatch(maker, (), [*arguments, *more])):
        raise plugins.fault(f"{key_path}.settings.arguments", f"{label} {wrong[0]}")


def with_defaults(cls: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an environment's task; the attributes of its class are the defaults. Names of scores
    are added to those that every environment has."""
    attributes = {key: getattr(cls, key) for key in DEFAULTS if hasattr(cls, key)}
    names = settings.get("scores", getattr(cls, "scores", ()))
    if isinstance(names, list | tuple):
        names = [*SCORES, *(name for name in names if name not in SCORES)]
    return {"folder": ".", **attributes, **settings, "scores": names}


def read_verifiers(
    name: str, settings: Mapping[str, Any], folder: Path | None, key_path: KeyPath
) -> dict[str, Any]:
    """The fields of the task of an environment of the package `verifiers`."""
    if not verifiers_is_classic():
        raise plugins.fault(
            key_path,
            f"verifiers:{name}: the package verifiers is not installed, or is 0.4 or later, which has other "
            f"environments: pip install {verifiers.PACKAGE.requirement}",
        )
    module = name.replace("-", "_").rpartition("/")[2]  # as `verifiers.load_environment` finds it
    reference = f"{module}:{verifiers.LOAD}"
    demand_arguments(plugins.load(reference, folder, key_path), reference, settings, key_path)
    adapter = {"adapter": plugins.reference(verifiers.Verifiers)}
    defaults = with_defaults(verifiers.Verifiers, settings)
    return {"name": module, "environment": reference, **adapter, **defaults}


def read_openenv(url: str, settings: Mapping[str, Any], key_path: KeyPath) -> dict[str, Any]:
    """The fields of the task of an environment behind a server of OpenEnv."""
    if importlib.util.find_spec(openenv.PACKAGE.module) is None:
        raise plugins.fault(
            key_path,
            f"openenv:{url}: the package openenv-core is not installed: "
            f"pip install {openenv.PACKAGE.requirement}",
        )
    if not url.startswith(("http://", "https://")):
        raise plugins.fault(key_path, f"openenv:{url}: write the server's address, as http://localhost:8000")
    demand_arguments(openenv.OpenEnv, "openenv", settings, key_path, "url")
    arguments = {"url": url, **settings.get("arguments", {})}
    defaults = with_defaults(openenv.OpenEnv, settings)
    reference = plugins.reference(openenv.OpenEnv)
    return {"name": "openenv", "environment": reference, **defaults, "arguments": arguments}


def verifiers_is_classic() -> bool:
    """Whether the installed package, if there is one, has environments with `env_response`."""
    spec = importlib.util.find_spec(verifiers.PACKAGE.module)
    root = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    return spec is not None and any((root / part / "envs").is_dir() for part in (".", "legacy"))


def build(name: str, folder: Path) -> EnvironmentTask:
    """The task of an environment with its defaults. Raises ConfigError."""
    faults: list[str] = []
    task: Any = strict.build(EnvironmentTask, read(name, {}, folder, name), name, faults, folder=folder)
    if task is BAD or faults:
        raise ConfigError(faults)
    built: EnvironmentTask = task
    return built
