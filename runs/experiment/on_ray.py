"""The engine of a Ray cluster: actors that execute one run after another, wherever Ray has room."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.experiment.executor import Lost, News
from grpobench.runs.experiment.remote import Board, carry_out, extend_search, surroundings
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import Ended
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.workers.pool import cores

MISSING = "--on ray: Ray is not installed; pip install '.[ray]' in a checkout, here and on every node"
MOST_FAILED_STARTS = 3


class Hand:
    """The actor."""

    def __init__(self, search: tuple[str, ...]) -> None:
        extend_search(search)

    def ready(self) -> str:
        """Imports what a run needs. Returns the node's name."""
        import torch  # noqa: F401

        return platform.node()

    def carry_out(self, packed: bytes) -> Ended:
        return carry_out(packed)


@dataclass(eq=False)
class Member:
    """An actor and its current task."""

    actor: Any
    pending: Any
    """Reference to the last request: whether the actor is ready, or how its run ended."""
    ready: bool = False
    run: ExperimentRun | None = None


class RayEngine:
    """At most `workers` actors; 0 means as many as the cluster has room for.

    An actor corresponds to a worker process of the pool: it imports torch once and is replaced when its run
    crashes or its node dies. Ray itself restarts nothing, because only the launcher knows which faults are
    the recipe's."""

    queues = False

    def __init__(
        self,
        folder: Path,
        workers: int,
        execute: str,
        allow_change: bool,
        *,
        address: str = "",
        cpus: int = 1,
        gpus: float | None = None,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError([MISSING]) from None
        self.ray = ray
        self.ours = not ray.is_initialized()
        if self.ours:
            connect(ray, address or os.environ.get("RAY_ADDRESS", ""))
        try:
            self.gpus = gpus if gpus is not None else float(ray.cluster_resources().get("GPU", 0) >= 1)
            room = capacity(ray.nodes(), cpus, self.gpus)
            if not room and not workers:
                request = f"--cpus-per-run {cpus} and --gpus-per-run {self.gpus:g}"
                raise ConfigError([f"--on ray: no node has room for a run with {request}"])
        except BaseException:
            self.leave()
            raise
        self.workers = workers or room
        options = {"num_cpus": cpus, "num_gpus": self.gpus, "max_restarts": 0, "max_task_retries": 0}
        around = {"env_vars": surroundings(cpus)}
        self.kind = ray.remote(**options, runtime_env=around)(Hand)
        self.board = Board(folder, execute, cpus, allow_change)
        self.crew: list[Member] = []
        self.failed_starts = 0
        self.stopped = False
        self.given_up: list[News] = []

    def start(self, queue: Sequence[ExperimentRun]) -> list[ExperimentRun]:
        working = sum(member.run is not None for member in self.crew)
        while len(self.crew) < min(self.workers, working + len(queue)):
            actor = self.kind.remote(tuple(path for path in sys.path if path))
            self.crew.append(Member(actor, actor.ready.remote()))
        unstarted = list(queue)
        begun = []
        for member in self.crew:
            if member.ready and not member.run and unstarted:
                begun.append(unstarted.pop(0))
                member.run = begun[-1]
                member.pending = member.actor.carry_out.remote(self.board.parcel(begun[-1]))
        return begun

    def news(self, seconds: float) -> list[News]:
        member_by_reference = {member.pending: member for member in self.crew if member.pending is not None}
        done: list[Any] = []
        if member_by_reference:
            done, unfinished = self.ray.wait(list(member_by_reference), num_returns=1, timeout=seconds)
            if done and unfinished:
                done += self.ray.wait(unfinished, num_returns=len(unfinished), timeout=0)[0]
        elif not self.given_up:  # As in the pause before a run's next attempt.
            time.sleep(seconds)
        given_up, self.given_up = self.given_up, []
        messages: list[News] = [
            *given_up,
            *self.board.heard(member.run for member in self.crew if member.run),
        ]
        for reference in done:
            messages += self.answer(member_by_reference[reference], reference)
        return messages

    def answer(self, member: Member, reference: Any) -> list[News]:
        """The answer to an actor's request, or why there is none."""
        member.pending = None
        try:
            answer = self.ray.get(reference)
        except (
            self.ray.exceptions.RayTaskError
        ) as error:  # Ray raises this inside the actor if a run cannot start.
            why = str(error).strip().splitlines()[-1]
            return self.handle_death(member, Ended("crashed", why), why)
        except self.ray.exceptions.RayError as error:
            text = " ".join(str(error).split())
            reason = re.search(r"The actor is dead because (.*?)[.:] ", text)
            why = reason[1] if reason else text.partition(". ")[0]
            return self.handle_death(member, Lost(f"its Ray worker is gone: {why}"), why)
        if not isinstance(answer, Ended):
            member.ready, self.failed_starts = True, 0
            return []
        run, member.run = member.run, None
        assert run is not None
        last = self.board.last(run)
        if answer.fate == "crashed":  # What broke the run may also break later runs in the same process.
            self.dismiss(member)
        return [*last, (run, answer)]

    def handle_death(self, member: Member, message: Ended | Lost, why: str) -> list[News]:
        self.dismiss(member)
        if member.run:
            return [*self.board.last(member.run), (member.run, message)]
        self.failed_starts += 1
        at_work = any(other.run for other in self.crew)
        if self.failed_starts >= MOST_FAILED_STARTS and not self.stopped and not at_work:
            raise RuntimeError(f"Ray workers die while they start: {why}")
        return []

    def dismiss(self, member: Member) -> None:
        self.crew.remove(member)
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(member.actor)

    def abandon(self, run: ExperimentRun) -> None:
        for member in [member for member in self.crew if member.run is run]:
            self.dismiss(member)
            self.given_up += [*self.board.last(run), (run, Lost("its Ray worker was killed"))]

    def stop(self) -> None:
        self.stopped = True
        self.board.stop()
        for member in [member for member in self.crew if not member.run]:
            self.dismiss(member)

    def kill(self) -> None:
        for member in self.crew:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(member.actor)

    def close(self) -> None:
        self.kill()
        self.crew.clear()
        self.board.close()
        self.leave()

    def leave(self) -> None:
        if self.ours:
            self.ray.shutdown()


def connect(ray: Any, address: str) -> None:
    """Join the cluster at an address, or start one on this machine. Raises ConfigError if nothing answers,
    RuntimeError if none starts."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if not address:
        os.environ.setdefault(
            "RAY_USAGE_STATS_ENABLED", "0"
        )  # Without this Ray sends usage reports to its developers.
        try:
            ray.init(address="local", num_cpus=cores(), include_dashboard=False, **quiet)
        except Exception as error:  # Ray has no exception class for a node that does not start in time.
            raise RuntimeError(f"Ray did not start on this machine: {error}") from error
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError([f"--address {address}: no Ray cluster answers there ({why})"]) from error


def capacity(nodes: Sequence[Any], cpus: int, gpus: float) -> int:
    """Number of runs that the living nodes have room for at once."""
    total = 0
    for node in nodes:
        if node["Alive"]:
            has = node["Resources"]
            rooms = [has.get("CPU", 0) / cpus, *([has.get("GPU", 0) / gpus] if gpus else [])]
            total += int(min(rooms) + 1e-9)
    return total
