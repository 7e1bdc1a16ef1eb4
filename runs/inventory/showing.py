"""Everything about one algorithm, dialect, task, recipe or metric: for `grpobench show`."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import TYPE_CHECKING, Any

from grpobench.runs.inventory.describing import Row, degenerate, needs, settings
from grpobench.runs.inventory.dialects import dialects_of, show_dialect
from grpobench.runs.measure import catalogue
from grpobench.runs.settings import recipe, registries
from grpobench.runs.settings.registries import chosen, miss
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    pass


def show(kind: str, name: str) -> Row:
    """Everything about one algorithm, dialect, task, recipe or metric. Raises `ConfigError` for an unknown
    name."""
    if kind == "dialect":
        return show_dialect(chosen(registries.dialects(), name, kind))
    if kind == "algorithm":
        return show_algorithm(chosen(registries.algorithms(), name, kind))
    if kind == "task":
        return show_task(chosen(registries.tasks(), name, kind))
    if kind == "recipe":
        return show_recipe(name)
    metric = catalogue.find(name)
    if metric is None:
        raise ConfigError([miss(kind, name, catalogue.catalogue())])
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
        "needs": needs(cls),
        "settings": settings(cls),
        "modify": dict(cls.modifiers),
        "dialects": [dialect.name for dialect in dialects_of(cls.name)],
        "metrics": [dataclasses.asdict(metric) for metric in cls.metrics],
        "off_policy": cls.off_policy,
        "minimum_group": cls().minimum_group,
    }


def show_task(cls: Any) -> Row:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "source": cls.source,
        "scores": list(cls.scores),
        "reward": dict(cls.reward),
        "max_new_tokens": cls().max_new_tokens,
        "turns": cls().turns,
        "splits": list(cls.splits),
        "modes": list(cls.modes),
        **({"caveat": cls.caveat} if cls.caveat else {}),
        "settings": settings(cls),
        "missing": cls().missing(),
    }


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
