"""Which arm, task and seed a log is: as it was told, as its name says, or as it says itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from grpobench.runs.importing.log import Log

SEED = re.compile(r"(?:^|[-_.=])(?:seed[-_=]?|s)(\d+)$", re.IGNORECASE)
TASK = "imported"
"""The task of a run where nothing tells it."""


@dataclass(frozen=True)
class Place:
    """Where a run stands in the matrix."""

    arm: str
    task: str
    seed: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.arm}-{self.task}-s{self.seed}"


@dataclass(frozen=True)
class Told:
    """What the command line says of all runs; empty and None where it does not."""

    arm: str = ""
    task: str = ""
    seed: int | None = None


def place(label: str, log: Log, evaluated: str, told: Told, taken: Mapping[Place, object]) -> Place:
    """The place of a run. The arm is that of the command line, else a tracker's group, else the name of the
    log or of its folder without the seed. A seed that nothing tells is the next that is free."""
    name = log.name or label
    arm, seed = parted(name)
    if log.group:
        arm = log.group
    if seed is None:
        seed = parted(label)[1]
    arm = plain(told.arm or arm or label) or "run"
    task = plain(told.task or log.task or evaluated.rpartition("/")[2]) or TASK
    if told.seed is not None:
        seed = told.seed
    elif seed is None:
        seed = log.seed
    if seed is None:
        used = {other.seed for other in taken if (other.arm, other.task) == (arm, task)}
        seed = next(free for free in range(len(used) + 1) if free not in used)
        log.notes.append(f"no log or name tells the seed; it is called {seed}")
    return Place(arm, task, seed)


def parted(label: str) -> tuple[str, int | None]:
    """A path or name without the seed at its end, and the seed: ``grpo/seed1`` and ``grpo-s1`` are `grpo`
    and 1."""
    found = SEED.search(label.replace("/", "-"))
    if found is None:
        return label, None
    return label[: found.start()], int(found[1])


def plain(name: str) -> str:
    """A name with the characters that an arm's may have."""
    return re.sub(r"[^A-Za-z0-9_+@]+", "-", name).strip("-")
