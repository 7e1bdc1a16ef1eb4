"""From a draft to its runs: every chosen arm on every chosen task, layers laid over each other, checked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from grpobench.runs.settings import rules
from grpobench.runs.settings.arms import Arm
from grpobench.runs.settings.config import SECTIONS, RunConfig, rates
from grpobench.runs.settings.draft import Draft
from grpobench.runs.settings.layers import SETTINGS, Place, merge
from grpobench.runs.settings.task_settings import located, owned
from grpobench.runs.tools import strict
from grpobench.tasks.task import Task

LONGEST = 160
"""Bytes of the name of a folder. Systems take 255, and what is written aside has host and process in its."""


def expand(draft: Draft, faults: list[str]) -> tuple[list[RunConfig], list[str]]:
    """Every run that could be built, and the optional arms that were left out with the reason."""
    shared = {name: build_task(draft, name, None, faults) for name in draft.tasks}
    found: list[RunConfig] = []
    left_out: list[str] = []
    for arm in draft.arms:
        for name, task in shared.items():
            if (arm.tasks is None or name in arm.tasks) and not isinstance(task, strict.Bad):
                own = build_task(draft, name, arm, faults) if differs(draft, name, arm) else task
                found += [] if isinstance(own, strict.Bad) else pair(draft, arm, own, left_out, faults)
    head = draft.head
    if not isinstance(head, strict.Bad) and len(head.name) > LONGEST:
        faults.append(f"name: must have at most {LONGEST} letters, not {len(head.name)}")
    if not found and not faults:
        why = f" ({'; '.join(left_out)})" if left_out else ""
        faults.append(f"no runs: no chosen arm runs on a chosen task{why}")
    if not faults:  # Last, because a task may have to ask the hub.
        served = {str(config.task): config.task for config in found}
        faults += [fault for fault in map(rules.missing_data, served.values()) if fault]
        faults += dict.fromkeys(lack for config in found for lack in rules.missing(config))
    return found, left_out


def build_task(draft: Draft, name: str, arm: Arm | None, faults: list[str]) -> Task | strict.Bad:
    """A task with its settings in an arm; None: with those that all arms share."""
    cls, settings = draft.tasks[name].cls, draft.tasks[name].settings
    if arm is not None:
        settings = merge(settings, owned(arm.task, cls, f"arm.{arm.name}.task", faults))
    for layer in draft.task_overrides:
        if layer.task == name and (layer.arm is None or (arm is not None and layer.arm == arm.name)):
            settings = merge(settings, layer.values)
    place = functools.partial(inside, f"task.{name}.settings")
    return strict.construct(cls, located(settings, draft.folder), faults, place)


def differs(draft: Draft, name: str, arm: Arm) -> bool:
    """Whether the arm has settings of its own for the task."""
    known = strict.hints(draft.tasks[name].cls)
    return any(key in known for key in arm.task) or any(
        layer.arm == arm.name and layer.task == name and layer.values for layer in draft.task_overrides
    )


def pair(draft: Draft, arm: Arm, task: Task, left_out: list[str], faults: list[str]) -> list[RunConfig]:
    """The runs of one arm on one task, one per seed. An optional arm that the task does not serve, or
    that would never update its policy in so few steps, is appended to `left_out` instead."""
    values, places = laid(draft, arm, task)
    before = len(faults)
    built = build_sections(arm, values, places, faults)
    head = draft.head
    if len(faults) > before or isinstance(head, strict.Bad):
        return []
    algorithm, train = built.pop(SETTINGS), built["train"]
    built["train"] = dataclasses.replace(train, learning_rate=rates(train.learning_rate, algorithm.trains))
    dialect = f"{arm.dialect.name}, {arm.dialect.version}" if arm.dialect else ""
    beside = str(draft.folder.resolve()) if draft.folder else ""
    built |= {"dialect": dialect, "beside": beside, "stop_on": head.stop_on}
    runs = [RunConfig(head.name, arm.name, seed, algorithm, task, **built) for seed in head.seeds]
    if arm.optional and (why := [*rules.unserved(runs[0]), *filter(None, [rules.untrained(runs[0])])]):
        left_out.append(f"{arm.name} on {task.name}: {why[0]}")
        return []
    faults += [
        f"arm {arm.name} on {task.name}: {why}" for why in (*rules.incompatible(runs[0]), *unfit(runs))
    ]
    return runs


def unfit(runs: Sequence[RunConfig]) -> list[str]:
    """What is wrong with the names of the folders of an arm's runs."""
    longest = max(len(config.folder.encode()) for config in runs)
    if longest <= LONGEST:
        return []
    told = f"names of {longest} bytes, and arm, task and seed may have {LONGEST}"
    return [f"its runs' folders would have {told}; give the arm a shorter `name`"]


def laid(draft: Draft, arm: Arm, task: Task) -> tuple[dict[str, dict[str, Any]], dict[Place, str]]:
    """The values of every section, the last layer's on top, and the place that each comes from."""
    values: dict[str, dict[str, Any]] = {section: {} for section in (*SECTIONS, SETTINGS)}
    values["modify"] = dict(arm.algorithm.modifiers)
    places: dict[Place, str] = {}
    for layer in (*arm.presets, *draft.base, *arm.layers, *draft.overrides):
        if layer.holds(arm.name, task.name):
            places |= layer.places
            for (section, key), value in layer.values.items():
                values[section] = merge(values[section], {key: value})
    learning_rate = values["train"].get("learning_rate")
    if learning_rate is not None and "policy" not in learning_rate:
        values["train"]["learning_rate"] = {"policy": 1e-5} | learning_rate
    return values, places


def build_sections(
    arm: Arm, values: Mapping[str, Mapping[str, Any]], places: Mapping[Place, str], faults: list[str]
) -> dict[str, Any]:
    """Every section as its dataclass, that of the algorithm under `SETTINGS`; `BAD` for a faulty one."""
    built: dict[str, Any] = {}
    for section, cls in {**SECTIONS, SETTINGS: arm.algorithm}.items():
        at = f"arm.{arm.name}.settings" if section == SETTINGS else section

        def place(key: str, section: str = section, at: str = at) -> str:
            return places.get((section, key), inside(at, key))

        built[section] = strict.construct(cls, values[section], faults, place)
    return built


def inside(place: str, key: str) -> str:
    """The place of a field, or of the table itself for an empty key."""
    return strict.join(place, key) if key else place
