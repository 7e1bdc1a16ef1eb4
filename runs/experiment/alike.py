"""Crashes with the same cause, and the runs that are not started because they share it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import Fault
from grpobench.runs.settings import others
from grpobench.runs.tools.strict import ConfigError

ALIKE = 2
"""Equal crashes after which runs of the same kind are not started."""
MOST_NAMED = 3


@dataclass
class HeldRuns:
    """Runs that were not started because others crashed."""

    crashed: list[ExperimentRun] = field(default_factory=list)
    runs: list[ExperimentRun] = field(default_factory=list)

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
    """The crashes of an experiment so far, by their fault.

    Two equal crashes are no accident. They share the arm of the two or, where the error went through others'
    code that other arms use too (a reward function, a curriculum), that code. Two arms that crash alike share
    a cause beyond their settings."""

    def __init__(self) -> None:
        self.by_fault: dict[str, HeldRuns] = {}

    def hold(self, run: ExperimentRun, fault: Fault, queue: list[ExperimentRun]) -> HeldRuns | None:
        """Note that a run crashed. If others crashed alike before, take the runs that share the cause out of
        the queue; returns these, or None if there are none."""
        group = self.by_fault.setdefault(fault.signature, HeldRuns())
        group.crashed.append(run)
        if len(group.crashed) < ALIKE:
            return None
        kin = [queued for queued in queue if shares(queued, group.crashed, fault)]
        for queued in kin:
            queue.remove(queued)
        group.runs += kin
        return group if kin else None

    @property
    def held_groups(self) -> list[HeldRuns]:
        return [group for group in self.by_fault.values() if group.runs]


def shares(run: ExperimentRun, crashed: Sequence[ExperimentRun], fault: Fault) -> bool:
    """Whether a run would meet the cause of these crashes too."""
    arms = {crashed_run.config.arm for crashed_run in crashed}
    if run.config.arm in arms:
        return True
    with contextlib.suppress(ConfigError):  # code that is gone by now tells nothing
        used = others.others(run.config)
        if all(fault.owner in others.others(crashed_run.config) for crashed_run in crashed):
            algorithm_class = type(crashed[0].config.algorithm)
            return fault.owner in used and (len(arms) > 1 or used[fault.owner].cls is not algorithm_class)
        # Without a file of others it is the suite, the model or the machine.
        return len(arms) > 1 and (not fault.file or Path(fault.file) in others.files(run.config))
    return len(arms) > 1
