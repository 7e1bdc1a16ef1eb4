"""`grpobench show`: everything about one algorithm, dialect, task, recipe or metric."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.inventory.describing import Row, degenerate, dialects_of, needs, settings, show_dialect
from grpobench.runs.metrics import catalog
from grpobench.runs.settings import plugins, recipe, registries
from grpobench.runs.settings.registries import Kind, chosen, miss
from grpobench.runs.tools.strict import ConfigError


def show(kind: str, name: str) -> Row:
    """Everything about one algorithm, dialect, task, reward function, recipe or metric. Plugins may be named
    as `module:Name`, with the file in the current folder. Raises `ConfigError` for an unknown name."""
    if kind == "dialect":
        return show_dialect(chosen(registries.dialects(), name, kind))
    for known, described in EXTENSIBLE.items():
        if kind == known:
            found = registries.find(known, name, Path.cwd())
            provenance = {} if found.provenance == registries.BUILT_IN else {"provenance": found.provenance}
            return {**provenance, **described(found.cls)}
    if kind == "recipe":
        return show_recipe(name)
    metric = catalog.find(name)
    if metric is None:
        raise ConfigError([miss(kind, name, catalog.catalog())])
    return dataclasses.asdict(metric)


def show_algorithm(cls: Any) -> Row:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "paper": cls.paper,
        "formula": cls.formula,
        "departures": cls.departures,
        "evidence": cls.evidence,
        "degenerate": degenerate(cls),
        "cost": cls.cost,
        "needs": needs(cls) if not required(cls) else [],
        "settings": settings(cls),
        "modify": dict(cls.modifiers),
        "dialects": [dialect.name for dialect in dialects_of(cls.name)],
        "metrics": [dataclasses.asdict(metric) for metric in cls.metrics],
        "off_policy": cls.off_policy,
        **({} if required(cls) else {"minimum_group": cls().minimum_group}),
    }


def required(cls: type) -> list[str]:
    """The settings without a default; without values for them there is no instance to describe."""
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]


def show_task(cls: Any) -> Row:
    made = None if required(cls) else cls()
    return {
        "name": cls.name,
        "summary": cls.summary,
        "source": cls.source,
        "scores": list(cls.scores),
        "reward": dict(cls.reward),
        "max_completion_tokens": made.max_completion_tokens if made else cls.max_completion_tokens,
        **({"turns": made.turns} if made else {}),
        "splits": list(cls.splits),
        "modes": list(cls.modes),
        **({"caveat": cls.caveat} if cls.caveat else {}),
        "settings": settings(cls),
        **({"missing": made.missing()} if made else {}),
    }


def show_reward(function: Any) -> Row:
    return {
        "name": plugins.reference(function),
        "summary": inspect.getdoc(function) or "",
        "signature": f"{function.__name__}{inspect.signature(function)}",
    }


EXTENSIBLE: Mapping[Kind, Callable[[Any], Row]] = {
    "algorithm": show_algorithm,
    "task": show_task,
    "reward": show_reward,
}
"""Kinds that plugins may add to."""


def show_recipe(name: str) -> Row:
    path = recipe.locate(name)
    found = recipe.read_recipe(name)
    runs = found.runs()
    return {
        "name": found.name,
        "summary": found.summary,
        "path": str(path),
        "runs": [run.folder for run in runs],
        "arms": {run.arm: run.algorithm.name for run in runs},
        "tasks": list(dict.fromkeys(run.task.name for run in runs)),
        "seeds": list(found.head.seeds),
        "text": found.text,
    }


def as_text(row: Row) -> str:
    """One thing as text: a heading per part, lists as items."""
    blocks = []
    for key, value in row.items():
        if value in ("", [], {}, None):
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            body = "\n".join(setting_line(entry) for entry in value)
        elif key == "needs":
            body = "\n".join(value)
        elif isinstance(value, list):
            body = textwrap.fill(", ".join(map(str, value)), 100)
        elif isinstance(value, dict):
            body = "\n".join(f"{name} = {entry}" for name, entry in value.items())
        else:
            body = str(value) if key == "text" else textwrap.fill(str(value), 100)
        blocks.append(f"{key}\n{textwrap.indent(body, '  ')}")
    return "\n".join(blocks)


def setting_line(entry: Row) -> str:
    """A setting or a metric of a list."""
    if "default" in entry:
        head = f"{entry['name']} = {entry['default']!r}  ({entry['type']})"
    else:
        head = f"{entry['name']} [{entry['unit']}]"
    text = entry.get("summary") or entry.get("definition", "")
    return (
        f"{head}\n{textwrap.fill(text, 96, initial_indent='    ', subsequent_indent='    ')}"
        if text
        else head
    )
