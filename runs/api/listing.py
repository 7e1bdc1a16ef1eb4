"""What grpobench has: lists as frames, single things as dicts."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pandas as pd

from grpobench.runs.inventory import listing, showing
from grpobench.runs.tools.strict import ConfigError, did_you_mean

Listed = Literal[
    "algorithms", "dialects", "tasks", "rewards", "recipes", "metrics", "detectors", "figures", "models"
]
ShowKind = Literal["algorithm", "dialect", "task", "reward", "recipe", "metric"]


def list(kind: Listed) -> pd.DataFrame:
    """All things of a kind, a row each, with the columns of ``grpobench list KIND --json``. Raises
    `ConfigError` for an unknown kind."""
    if kind not in listing.LISTS:
        raise ConfigError([unknown_kind(kind, tuple(listing.LISTS))])
    return pd.DataFrame(listing.LISTS[kind]())


def show(kind: ShowKind, name: str, library: str | None = None) -> dict[str, Any]:
    """Everything about one thing, as ``grpobench show KIND NAME --json`` has it: an algorithm's formula,
    paper, departures and settings, a task's scores and splits, a recipe's runs and text, a metric's unit and
    definition. With a `library` such as ``"trl"``: how its algorithm of that name differs from ours. Raises
    `ConfigError` for an unknown kind, name or library."""
    kinds = get_args(ShowKind)
    if kind not in kinds:
        raise ConfigError([unknown_kind(kind, kinds)])
    if library is None:
        return showing.show(kind, name)
    if kind != "algorithm":
        raise ConfigError([f'library: write show("algorithm", {name!r}, library={library!r})'])
    return showing.show_as(name, library)


def unknown_kind(kind: str, kinds: tuple[str, ...]) -> str:
    """The message for an unknown kind."""
    did = did_you_mean(kind, kinds, f"known: {', '.join(kinds)}", "{!r}")
    return f"unknown kind {kind!r}; {did}"
