"""`--case keeping`: the cost of a run's checkpoints and logs, as a share of its steps.

This runs the recipe quickstart, with its evaluations, in a folder below the working directory, where results
go. Each step uses the loop's own functions, and writes are timed: checkpoints with fsync and checksums, the
row of metrics.jsonl, rows of eval.jsonl, rollouts, and events.jsonl with the detectors that find its events.
The heartbeat of the run's lease, which a thread renews, is timed separately and counted as if the step waited
for it. Files that are written once, when a run begins and ends, do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from grpobench.benchmarks.cases import Tell
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import CheckpointConfig, RunConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools import lock as leases
from grpobench.runs.tools.lock import Lock
from grpobench.runs.tools.progress import Clock
from grpobench.tasks.data import bounded

RECIPE: Final = "quickstart"
STEPS: Final = 20
REPEATS: Final = 3
INTERVALS: Final = (CheckpointConfig().every, 1)
"""Steps between checkpoints: the default, and the minimum."""
PARTS: Final = ("checkpoints", "metrics", "evaluations", "rollouts", "events", "leases")
BEATS: Final = 20
"""Number of heartbeats that are timed."""


class Timed(RunFolder):
    """A run folder that records how long writing took."""

    clock = Clock()

    def save(self, *what: Any) -> Path:
        with self.clock("checkpoints"):
            return super().save(*what)

    def log(self, row: Mapping[str, Any]) -> None:
        with self.clock("metrics"):
            super().log(row)

    def evaluations(self, rows: Iterable[Mapping[str, Any]]) -> None:
        with self.clock("evaluations"):
            super().evaluations(rows)

    def rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        with self.clock("rollouts"):
            return super().rollouts(step, rows)


@dataclass(frozen=True)
class Spent:
    """Seconds of the steps of one run."""

    steps: float
    """Seconds of all steps, without evaluations and without writing."""
    parts: Mapping[str, float]
    """Seconds of writing, by `PARTS`."""
    checkpoints: int
    """Number of writes."""
    checksums: float
    """Seconds of the checksums of one checkpoint."""
    bytes: int
    """Bytes of one checkpoint."""

    @property
    def share(self) -> float:
        return sum(self.parts.values()) / self.steps


def keeping(tell: Tell, steps: int = STEPS, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure every interval, in turn."""
    found: dict[int, list[Spent]] = {every: [] for every in INTERVALS}
    began, total = time.monotonic(), repeats * len(INTERVALS)
    with TemporaryDirectory(prefix=".grpobench-bench-", dir=Path.cwd()) as place:
        for number in range(total):
            every = INTERVALS[number % len(INTERVALS)]
            left = (time.monotonic() - began) / number * (total - number) if number else float("nan")
            tell(f"run {number + 1} of {total}, a checkpoint every {every} steps", left)
            found[every].append(measure(configured(every), Path(place) / str(number), steps))
    every_step = found[1]
    return {
        "recipe": RECIPE,
        "steps": steps,
        "repeats": repeats,
        "intervals": [interval(every, spent, steps) for every, spent in found.items()],
        "checkpoint_mb": every_step[0].bytes / 1e6,
        "checksum_ms": 1000 * statistics.median(one.checksums for one in every_step),
    }


def configured(every: int) -> RunConfig:
    """The recipe's first run with default checkpoints at an interval; it is longer than the measurement."""
    config = read_recipe(RECIPE).configs[0]
    train, evaluate = replace(config.train, steps=10**6), replace(config.evaluate, before=False)
    checkpoint = CheckpointConfig(every=every)
    return replace(config, train=train, evaluate=evaluate, checkpoint=checkpoint)


def measure(config: RunConfig, path: Path, steps: int) -> Spent:
    """The first steps of a run, after one warm-up step."""
    import torch

    from grpobench.runs.train import run_loop
    from grpobench.runs.train.parts import build
    from grpobench.runs.train.stopping import Before
    from grpobench.runs.train.trainer import Trainer

    torch.set_num_threads(1)
    parts = dict.fromkeys(PARTS, 0.0)
    trained = 0.0
    with Timed.open(path, config) as folder:
        trainer = Trainer(config, build(config))
        began = time.monotonic()
        run_loop.begin(trainer, folder, None, began)
        for step in range(1, steps + 2):
            folder.clock = Clock()
            with folder.clock("checkpoints"):
                Before(trainer, folder, step - 1)  # the part of the previous state that a step keeps
            before = folder.clock.seconds["checkpoints"]
            started = time.perf_counter()
            row = trainer.step(step)
            stepped = time.perf_counter()
            run_loop.record(trainer, folder, step, row, began)
            run_loop.save_when_due(trainer, folder, step, lambda: False)
            ended = time.perf_counter()
            if step == 1:
                continue
            told = dict(folder.clock.seconds)
            evaluated = row.get("time/evaluate", 0.0) - told.get("evaluations", 0.0)
            trained += stepped - started
            for name, seconds in told.items():
                parts[name] += seconds
            written = sum(told.values()) - before
            parts["events"] += max(0.0, ended - stepped - max(0.0, evaluated) - written)
        seconds, size = checksums(folder.checkpoint_path(folder.steps()[-1]))
        parts["leases"] = heartbeat(folder.lock) * trained / (leases.LEASE_SECONDS / leases.BEATS)
        saved = sum(step % config.checkpoint.every == 0 for step in range(2, steps + 2))
    return Spent(trained, parts, saved, seconds, size)


def checksums(checkpoint: Path) -> tuple[float, int]:
    """(seconds of its checksums, bytes) of a checkpoint."""
    held = sorted(checkpoint.iterdir())
    began = time.perf_counter()
    for path in held:
        bounded.sha256(path)
    return time.perf_counter() - began, sum(path.stat().st_size for path in held)


def heartbeat(lock: Lock) -> float:
    """Seconds for one renewal of a lease."""
    (kept,) = [one for one in leases.KEEPER.kept.values() if one.path == lock.path]
    began = time.perf_counter()
    for _ in range(BEATS):
        kept.beat()
    return (time.perf_counter() - began) / BEATS


def interval(every: int, runs: Sequence[Spent], steps: int) -> dict[str, Any]:
    """Costs per step of the runs with this many steps between checkpoints."""
    parts = {name: statistics.median(one.parts[name] for one in runs) / steps for name in PARTS}
    saves = [one.parts["checkpoints"] / one.checkpoints for one in runs if one.checkpoints]
    return {
        "every": every,
        "step_s": statistics.median(one.steps for one in runs) / steps,
        "parts_s": parts,
        "together_s": statistics.median(sum(one.parts.values()) for one in runs) / steps,
        "share": statistics.median(one.share for one in runs),
        "shares": [one.share for one in runs],
        "checkpoint_s": statistics.median(saves),
    }
