"""A recipe as its parts, before anybody knows whether they fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.settings.arms import Arm, read_arms, select_arms
from grpobench.runs.settings.head import Head, read_head
from grpobench.runs.settings.layers import Layer, read_base
from grpobench.runs.settings.overrides import Overrides, read_sets
from grpobench.runs.settings.task_settings import TaskLayer, Tasks, read_tasks, select_tasks
from grpobench.runs.tools.strict import Bad


@dataclass(frozen=True)
class Draft:
    """What a recipe and its assignments say. The arms and tasks are those that run."""

    folder: Path | None
    """The recipe's."""
    head: Head | Bad
    arms: Sequence[Arm]
    tasks: Tasks
    base: Sequence[Layer]
    """The recipe's own sections."""
    overrides: Sequence[Layer]
    """Assignments to sections, in the order given."""
    task_overrides: Sequence[TaskLayer]
    """Assignments to settings of tasks, in the order given."""


def read_draft(
    table: Mapping[str, Any], stem: str, folder: Path | None, sets: Sequence[str], faults: list[str]
) -> Draft:
    """The parts of a recipe in a file called `stem`, with every fault that shows in one of them alone.
    `folder` is where others' code and data are looked for."""
    assignments = read_sets(sets, faults)
    tops = {keys[0]: value for keys, value in assignments if len(keys) == 1}
    head = read_head(table, stem, tops, faults)
    listed_tasks = read_tasks(table, folder, faults)
    listed_arms = read_arms(table, listed_tasks, folder, faults)
    base = read_base(table, listed_tasks, faults)
    arms = select_arms(tops.get("arms"), listed_arms, folder, faults)
    tasks = select_tasks(tops.get("tasks"), listed_tasks, folder, faults)
    overrides = Overrides(arms, listed_arms, tasks, faults)
    for keys, value in assignments:
        if len(keys) > 1:
            overrides.assign(keys, value)
    return Draft(folder, head, arms, tasks, base, overrides.layers, overrides.task_layers)
