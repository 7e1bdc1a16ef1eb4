"""`observe` of a recipe: who is told of a run while it goes on, checked before anything starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from grpobench.runs.settings import plugins, registries
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import ConfigError

TRACKERS: Mapping[str, str] = {
    "mlflow": "grpobench.runs.observe.trackers:MLflow",
    "tensorboard": "grpobench.runs.observe.trackers:TensorBoard",
    "trackio": "grpobench.runs.observe.trackers:Trackio",
    "wandb": "grpobench.runs.observe.trackers:WandB",
}
"""The suite's own callbacks. Each needs the package of its name, and is an extra of that name."""
GROUP = "grpobench.observe"
"""The entry points by which an installed package gives a callback a name."""
SECONDS = 30.0
"""What a callback gets after the last step where the recipe does not say."""
ENTRY_KEYS = ("name", "seconds")
"""Keys of an entry that are no settings of the callback."""
Entry = str | dict[str, Any]


@dataclass(frozen=True)
class Observe(strict.Settings):
    """One callback of a recipe."""

    name: str
    """A tracker, a name that a package gives, or `module:Name`."""
    settings: Mapping[str, Any]
    """What its class or factory is called with."""
    seconds: Annotated[float, Interval(gt=0, lt=math.inf)] = SECONDS
    """Most seconds that it gets after the last step, before its process is ended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            toml.value(self.settings)
        except TypeError as error:
            raise ValueError(f"{error} as run.toml keeps it; write a string") from None

    def clashes(self) -> Iterator[str]:
        if not self.name:
            yield "name: must not be empty"

    @property
    def reference(self) -> str:
        """The `module:Name` behind the name."""
        return self.name if plugins.is_reference(self.name) else names()[self.name]

    def plain(self) -> dict[str, Any]:
        """As it stands in run.toml; `read` reads it back equal."""
        return {"name": self.name, **strict.plain(self.settings), "seconds": self.seconds}


def names() -> dict[str, str]:
    """`module:Name` by name: those of installed packages, and the suite's own."""
    references = {point.name: point.value for point in importlib.metadata.entry_points(group=GROUP)}
    return references | dict(TRACKERS)


def read(entries: Sequence[Entry], faults: list[str]) -> tuple[Observe, ...]:
    """The callbacks of `observe`, a list of names and tables."""
    callbacks: list[Observe] = []
    for index, entry in enumerate(entries):
        table = {"name": entry} if isinstance(entry, str) else entry
        settings = {key: value for key, value in table.items() if key not in ENTRY_KEYS}
        head = {key: table[key] for key in ENTRY_KEYS if key in table}
        callback = strict.build(Observe, {**head, "settings": settings}, f"observe[{index}]", faults)
        if callback in callbacks:
            twice = "is listed twice with equal settings; remove one"
            faults.append(f"observe[{index}]: {table['name']} {twice}")
        elif isinstance(callback, Observe):
            callbacks.append(callback)
    return tuple(callbacks)


def open_callbacks(
    entries: Sequence[Entry], folder: Path | None, faults: list[str]
) -> tuple[tuple[Observe, ...], bool]:
    """The callbacks of `observe`, and whether one of them stands in `folder`, which is the recipe's. Appends
    to `faults` why callbacks cannot be made: who is unknown or not installed, and settings that do not exist.
    Imports them, but no tracker's own package."""
    callbacks, beside = read(entries, faults), False
    for index, callback in enumerate(callbacks):
        here = f"observe[{index}]"
        if not plugins.is_reference(callback.name) and (lack := unknown(callback.name)):
            faults.append(f"{here}: {lack}")
            continue
        try:
            factory = plugins.load(callback.reference, folder, here)
        except ConfigError as error:
            faults += error.faults
            continue
        faults += misfit(factory, callback, here)
        beside |= plugins.beside(callback.reference, folder)
    return callbacks, beside


def unknown(name: str) -> str:
    """Why there is no callback of a name without a colon on this machine; empty when there is."""
    references = names()
    if name not in references:
        others = f"known: {', '.join(sorted(references))}; or module:Name"
        return f"unknown callback {name!r}; {strict.did_you_mean(name, references, others, '{!r}')}"
    if name in TRACKERS and importlib.util.find_spec(name) is None:
        return f'{name} is not installed: pip install ".[{name}]" in a checkout'
    return ""


def misfit(factory: object, callback: Observe, path: str) -> list[str]:
    """Why a class or factory cannot be called with the settings of the recipe."""
    name = callback.name
    if not callable(factory):
        return [f"{path}: {name} is {type(factory).__name__}, no class or function that makes a callback"]
    faults: list[str] = []
    if isinstance(factory, type) and is_dataclass(factory):
        strict.check(factory, callback.settings, path, faults)
    return faults or [f"{path}: {name} {why}" for why in registries.mismatch(factory, (), callback.settings)]
