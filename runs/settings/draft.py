"""A recipe as its parts, before anybody knows whether they fit together: the plain keys at its top, arms,
tasks, sections, and what the command line assigns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Interval

from grpobench.runs.settings.entries import (
    Arm,
    Tasks,
    classes_of,
    read_arms,
    read_tasks,
    select_arms,
    select_tasks,
)
from grpobench.runs.settings.layers import ELSEWHERE, Layer, Scope, renamed_keys
from grpobench.runs.settings.observe import Entry
from grpobench.runs.settings.overrides import read_assignment, read_sets
from grpobench.runs.settings.registries import no_such
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD, Bad, ConfigError, KeyPath, Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
ALONE: Mapping[str, tuple[type, ...]] = {"seeds": (int,), "observe": (str, dict), "stop_on": (str,)}
"""Lists that `--set` may give a single entry of."""
TABLES = ("tasks", "arm", "over", "search", "searched")
"""Keys at the top of a recipe that are neither plain nor sections."""
FORMS = ("algorithm.FIELD", "arm.NAME.settings.FIELD")
"""What the other assignments look like, for a message."""
MOST_SEEDS = 10_000
"""More seeds than that are a slip of the keyboard, and would take minutes only to be listed."""


@dataclass(frozen=True)
class Head(Settings):
    """The plain top-level keys of a recipe."""

    name: str
    """Letters, digits, - and _; the file's name without .toml unless given. Results go to OUT/name."""
    summary: str = ""
    """One line for `grpobench list recipes` and reports."""
    seeds: tuple[int, ...] = (0,)
    """Each arm runs on each task once per seed; arms share the random numbers of a seed."""
    workers: Annotated[int, Ge(0)] = 0
    """Runs side by side; 0 means one per GPU, and one per core without one."""
    fail_on_divergence: bool = False
    """Exit with 3 when a run diverges, or collapses by `stop_on`."""
    margin: Annotated[float, Interval(gt=0, lt=100)] = 2.0
    """Points of accuracy within which reports may call two arms equivalent."""
    control: str = ""
    """The arm that reports compare all others with, and nothing else; empty compares every pair."""
    stop_on: tuple[str, ...] = ()
    """Kinds of events (docs/stability.md) that end a run, as its result."""
    observe: tuple[Entry, ...] = ()
    """Callbacks that are told of every run: names, or tables with name and settings."""

    def clashes(self) -> Iterator[str]:
        if not NAME.fullmatch(self.name):
            yield f"name: must be letters, digits, - and _, not {self.name!r}"
        yield from stop_faults(self.stop_on)
        if not self.seeds:
            yield "seeds: must not be empty"
        if len(set(self.seeds)) != len(self.seeds):
            yield "seeds: must differ from each other"
        for seed in self.seeds[:MOST_SEEDS]:
            if not 0 <= seed < 2**63:
                yield f"seeds: must be from 0 to 2^63 - 1, not {seed}"
        if len(self.seeds) > MOST_SEEDS:
            yield (
                f"seeds: {len(self.seeds):,} are more than an experiment can run; give at most {MOST_SEEDS:,}"
            )


def stop_faults(kinds: Sequence[str]) -> Iterator[str]:
    """What is wrong with the events of `stop_on`."""
    if not kinds:
        return
    from grpobench.analysis.detectors.registry import DETECTORS  # NumPy, which few recipes need

    known = [kind for kind, detector in DETECTORS.items() if detector.stops]
    for kind in kinds:
        if kind in known:
            continue
        if kind in DETECTORS:
            yield f"stop_on: {kind} says nothing against the policy; stop on {', '.join(known)}"
            continue
        did = strict.did_you_mean(kind, known, f"known: {', '.join(known)}", "{!r}")
        yield f"stop_on: unknown event {kind!r}; {did}"
    if len(set(kinds)) < len(kinds):
        yield "stop_on: lists an event twice"


def read_head(
    table: Mapping[str, Any], stem: str, assigned: Mapping[str, Any], faults: list[str]
) -> Head | Bad:
    """The head of a recipe in a file called `stem`, with what `--set` assigns to keys without a dot."""
    plain = strict.hints(Head)
    valid = {*plain, "tasks", "arms"}
    elsewhere = {key: f"--set {where}" for key, where in ELSEWHERE.items()}
    faults += [
        strict.unknown("--set ", key, {*valid, *FORMS}, elsewhere, renamed_keys("", "--set "))
        for key in assigned
        if key not in valid
    ]
    before = len(faults)
    listed = {
        key: [value] if isinstance(value, ALONE.get(key, ())) else value for key, value in assigned.items()
    }
    values = {"name": stem}
    for given in (table, listed):
        values |= strict.check(Head, {key: given[key] for key in given if key in plain}, "", faults)
    return BAD if len(faults) > before else strict.construct(Head, values, faults, str)


def read_seeds(text: str, key_path: KeyPath) -> list[int]:
    """The seeds of ``0,1,2`` or ``0-4`` or both. Raises `ConfigError`."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ConfigError([f"{key_path}: write numbers such as 0,1,2 or 0-4"])
        first, last = int(low), int(high if dash else low)
        if last - first >= MOST_SEEDS - len(seeds):
            raise ConfigError([f"{key_path}: an experiment has at most {MOST_SEEDS:,} seeds"])
        if last < first:
            raise ConfigError([f"{key_path}: {part.strip()} holds no number; write the smaller one first"])
        seeds += range(first, last + 1)
    return seeds


@dataclass(frozen=True)
class Draft:
    """What a recipe and its assignments say. The arms and tasks are those that run."""

    folder: Path | None
    """The recipe's."""
    head: Head | Bad
    arms: Sequence[Arm]
    tasks: Tasks
    layers: Sequence[Layer]
    """The recipe's own sections, those of arms, and assignments, in their order; later ones win."""


def read_draft(
    table: Mapping[str, Any], stem: str, folder: Path | None, sets: Sequence[str], faults: list[str]
) -> Draft:
    """The parts of a recipe in a file called `stem`, with every fault that shows in one of them alone.
    `folder` is where others' code and data are looked for."""
    assignments = read_sets(sets, faults)
    tops = {keys[0]: value for keys, value in assignments if len(keys) == 1}
    if isinstance(text := tops.get("seeds"), str):
        try:
            tops["seeds"] = read_seeds(text, f"--set seeds={text}")
        except ConfigError as error:
            faults += error.faults
            del tops["seeds"]
    head = read_head(table, stem, tops, faults)
    listed_tasks = read_tasks(table, folder, faults)
    layers = Scope(tasks=classes_of(listed_tasks)).read(table, faults, [*strict.hints(Head), *TABLES])
    listed_arms = read_arms(table, listed_tasks, folder, faults)
    layers += [layer for arm in listed_arms.values() for layer in arm.layers]
    arms = select_arms(tops.get("arms"), listed_arms, folder, faults)
    if isinstance(head, Head) and arms and head.control not in ("", *(arm.name for arm in arms)):
        faults.append(no_such("arm", head.control, "control", [arm.name for arm in arms]))
    tasks = select_tasks(tops.get("tasks"), listed_tasks, folder, faults)
    for assignment in assignments:
        if len(assignment[0]) > 1:
            layers += read_assignment(assignment, arms, listed_arms, classes_of(tasks), faults)
    return Draft(folder, head, arms, tasks, layers)
