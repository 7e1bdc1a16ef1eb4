"""Crashes that are alike. Two equal ones are no accident: the runs that share their cause are not started.

What they share is the arm of the two or, where the error went through others' code that other arms use too
(a reward function, a curriculum), that code. Two arms that crash alike share a cause beyond their settings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpobench.runs.experiment.run import Run
from grpobench.runs.experiment.worker import Fault
from grpobench.runs.settings import others
from grpobench.runs.tools.strict import ConfigError

ALIKE = 2
"""Equal crashes after which runs of the same kind are not started."""
MOST_NAMED = 3


@dataclass
class Held:
    """Runs that were not started because others crashed."""

    fault: Fault
    crashed: list[Run]
    runs: list[Run] = field(default_factory=list)

    @property
    def message(self) -> str:
        """What happened, and what to do."""
        names = ", ".join(run.name for run in self.crashed[:MOST_NAMED])
        names += ", ..." if len(self.crashed) > MOST_NAMED else ""
        count = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        was = "was" if len(self.runs) == 1 else "were"
        return (
            f"{len(self.crashed)} runs crashed alike ({names}); {count} of the same kind {was} not started: "
            "mend the cause and run the same command"
        )


class Crashes:
    """The crashes of an experiment so far, by their fault."""

    def __init__(self) -> None:
        self.by_fault: dict[str, Held] = {}

    def hold(self, run: Run, fault: Fault, queue: list[Run]) -> Held | None:
        """Note that a run crashed. If others crashed alike before, take the runs that share the cause out of
        the queue; returns these, or None if there are none."""
        held = self.by_fault.setdefault(fault.what, Held(fault, []))
        held.crashed.append(run)
        if len(held.crashed) < ALIKE:
            return None
        kin = [one for one in queue if shares(one, held.crashed, fault)]
        for one in kin:
            queue.remove(one)
        held.runs += kin
        return held if kin else None

    @property
    def held(self) -> list[Held]:
        return [held for held in self.by_fault.values() if held.runs]


def shares(run: Run, crashed: Sequence[Run], fault: Fault) -> bool:
    """Whether a run would meet the cause of these crashes too."""
    arms = {one.config.arm for one in crashed}
    if run.config.arm in arms:
        return True
    with contextlib.suppress(ConfigError):  # code that is gone by now tells nothing
        used = others.others(run.config)
        if all(fault.owner in others.others(one.config) for one in crashed):
            own = type(crashed[0].config.algorithm)
            return fault.owner in used and (len(arms) > 1 or used[fault.owner].cls is not own)
        # Without a file of others it is the suite, the model or the machine.
        return len(arms) > 1 and (not fault.file or Path(fault.file) in others.files(run.config))
    return len(arms) > 1
