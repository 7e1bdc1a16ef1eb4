"""The names that a recipe may use: algorithms, dialects and tasks, imported at the first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings import (
    doors,  # noqa: F401  workers can then import what stands beside recipes
)
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.task import Task

if TYPE_CHECKING:
    from grpobench.algorithms.algorithm import Algorithm
    from grpobench.algorithms.dialects import Dialect

if TYPE_CHECKING:
    from grpobench.algorithms.dialects import Dialect


def algorithms() -> Mapping[str, type[Algorithm[Any]]]:
    """The registry of algorithms, imported at the first use."""
    from grpobench.algorithms import ALGORITHMS

    return ALGORITHMS


def dialects() -> Mapping[str, Dialect]:
    """The presets of other libraries' defaults by name, such as ``ALGORITHM@LIBRARY``, imported at the first
    use."""
    from grpobench.algorithms.dialects import DIALECTS

    known = algorithms()
    return {name: one for name, one in DIALECTS.items() if one.algorithm in known and one.base in known}


def dialects_note() -> str:
    """What the page on dialects says of an example."""
    from grpobench.algorithms.dialects import NOTE

    return NOTE


def tasks() -> Mapping[str, type[Task]]:
    """The registry of tasks, imported at the first use."""
    from grpobench.tasks import TASKS

    return TASKS


def miss(kind: str, name: str, valid: Mapping[str, Any]) -> str:
    guess = strict.nearest(name, valid)
    did = f"did you mean {guess}?" if guess else f"`grpobench list {kind}s` shows the known ones"
    return f"unknown {kind} {name!r}; {did}"


def chosen(registry: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in registry:
        raise ConfigError([miss(kind, name, registry)])
    return registry[name]
