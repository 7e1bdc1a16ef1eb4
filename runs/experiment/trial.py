"""The trial before an experiment, which finds code that cannot work in seconds, before the first run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpobench.runs.experiment import preflight, watchdog
from grpobench.runs.experiment.engines import Where
from grpobench.runs.experiment.worker import mistakes
from grpobench.runs.runfolder import provenance
from grpobench.runs.settings import others, plugins, stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import files, machine, strict
from grpobench.runs.tools.files import read_json
from grpobench.runs.tools.process import die_with, environment, output_to, without_interrupts, without_main
from grpobench.runs.tools.progress import duration
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

LARGE = 300_000_000
"""Weights beyond which only one run for each piece of code is tried, because loading them takes long."""
STAND_IN = "nano"
"""The policy of a trial here, for runs on other machines whose model is large or only there."""
SECONDS = 60.0
"""Most seconds that others' code may take in one call of a trial."""
LOOK = 1.0
SECONDS_ENDED = 5.0
"""Seconds for the process to end by itself, so that nothing of it is left."""
MEMORY = "shared/trial.json"
"""In an experiment's folder: the keys of what has passed."""
PASSED: set[str] = set()
"""The same of this process, for several experiments with the same code."""


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial."""

    what: str
    """Arm and task."""
    fault: str = ""
    """What is wrong, beginning with file and line if others' code is to blame; empty if nothing is."""
    skipped: str = ""
    """Why it could not be tried."""
    traceback: str = ""


class TrialError(ConfigError):
    """Code of a recipe cannot work. `faults` holds a message for each fault."""

    def __init__(self, trials: Sequence[TrialResult], tracebacks: Path | None = None) -> None:
        self.faulty = [tried for tried in trials if tried.fault]
        self.tracebacks = tracebacks
        by_fault: dict[str, list[str]] = {}
        for tried in self.faulty:
            by_fault.setdefault(tried.fault, []).append(tried.what)
        super().__init__([f"{fault} ({', '.join(names)})" for fault, names in by_fault.items()])

    def __str__(self) -> str:
        count = f"{len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}"
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        see = f"tracebacks are in {self.tracebacks}; " if self.tracebacks else ""
        return (
            f"the trial before the first run found {count}, and nothing was started:{lines}\n"
            f"{see}mend the code and run the same command (--no-trial starts without a trial)"
        )


# What is tried


def distinct(configs: Iterable[RunConfig], everything: bool = False) -> list[RunConfig]:
    """The first runs that together have every piece of others' code, on every task where it is used; with
    `everything` also every algorithm, task, sampler and kind of reward of the suite."""
    chosen: list[RunConfig] = []
    covered: set[tuple[str, ...]] = set()
    for config in configs:
        pieces = pieces_of(config, everything)
        if pieces - covered:
            chosen.append(config)
            covered |= pieces
    return chosen


def pieces_of(config: RunConfig, everything: bool) -> set[tuple[str, ...]]:
    """What a trial of a run would try. With a large model neither tasks nor settings make a difference."""
    large = is_large(config.model.name)
    task, settings = ("", "") if large else (str(config.task), choices(config))
    foreign_classes = {
        name: part.cls for name, part in others.others(config).items() if strict.foreign(part.cls)
    }
    pieces: set[tuple[str, ...]] = {
        (name, task, settings if cls is type(config.algorithm) else "")
        for name, cls in foreign_classes.items()
    }
    # A tracker, which has no module in its name, is told nothing of a trial.
    pieces |= {("callback", str(call)) for call in config.observe if plugins.is_reference(call.name)}
    if everything and not large:
        pieces |= {
            ("algorithm", config.algorithm.name, settings),
            ("task", task),
            ("sampler", config.sampler.kind),
            ("reward", config.reward.kind, *config.reward.weights),
        }
    return pieces


def choices(config: RunConfig) -> str:
    """The settings of an algorithm as far as they choose between ways through its code: texts and switches,
    and of numbers whether they are 0. The values of a sweep are one."""
    every = {**vars(config.algorithm), **vars(config.modify)}
    return repr({k: bool(v) if isinstance(v, int | float) else v for k, v in every.items()})


@functools.cache
def is_large(model: str) -> bool:
    """Whether a model is large, or only the hub could tell."""
    count = preflight.weights(model)
    return not 0 < count <= LARGE


def described(config: RunConfig) -> str:
    """A run of a trial in words."""
    stand_in = f" with {STAND_IN} for its model" if has_stand_in(config) else ""
    return f"arm {config.arm} on {config.task.name}{stand_in}"


def has_stand_in(config: RunConfig) -> bool:
    """Whether a run's model is in the place of another, as `moved` leaves it."""
    return config.model.name == STAND_IN and config.model.long_prompts == "drop"


# Before an experiment


def demand(configs: Sequence[RunConfig], folder: Path, where: Where, say: Callable[[str], None]) -> None:
    """Try others' code in the runs that are left. Raises TrialError for code that cannot work. What has
    passed with the same code, settings and versions is not tried again. `folder` is the experiment's.

    Every distinct piece of others' code in a recipe (algorithm, task, reward, curriculum, sampler, optimizer,
    callback) is called in a tiny copy of a run (`runs/train/trial.py`). A dry run and `grpobench doctor
    --deep` try the suite's own algorithms too. A process of its own makes the trial, so that the launcher
    loads no model and holds no memory of a GPU."""
    chosen = distinct(configs)
    if not chosen:
        return
    keys = {key(config): config for config in chosen}
    memory_file = folder / MEMORY
    passed_keys = {*PASSED, *(read_json(memory_file) or ())}
    left = {trial_key: config for trial_key, config in keys.items() if trial_key not in passed_keys}
    if not left:
        return
    began = time.monotonic()
    here = [config if where.on == "local" else moved(config) for config in left.values()]
    say(f"trial of the recipe's own code: {', '.join(map(described, here))}")
    trials = carry_out(here, where.gpus_per_run)
    for tried in trials:
        if tried.skipped:
            say(f"{tried.what} was not tried: {tried.skipped}")
    if any(tried.fault for tried in trials):
        raise TrialError(trials, written(trials))
    passed = [trial_key for trial_key, tried in zip(left, trials, strict=True) if not tried.skipped]
    PASSED.update(passed)
    memory_file.parent.mkdir(exist_ok=True)
    files.write_atomic(memory_file, json.dumps(sorted({*(read_json(memory_file) or ()), *passed})).encode())
    if passed:
        say(f"the trial passed in {time.monotonic() - began:.1f} s")


def moved(config: RunConfig) -> RunConfig:
    """The run as a dry run tries it, or as it is tried here although other machines execute it: a large model
    has a stand-in."""
    if not is_large(config.model.name):
        return config
    model = dataclasses.replace(
        config.model, name=STAND_IN, dtype="float32", weights="float32", long_prompts="drop"
    )
    # Without the large model's memory there is nothing to save, and float32 weights have no other rounding.
    train = dataclasses.replace(config.train, master_weights=True)
    return dataclasses.replace(config, model=model, train=train)


def key(config: RunConfig) -> str:
    """A hash of everything that a trial depends on."""
    parts = others.parts(config)
    code = provenance.code("runs/train/trial.py", *parts) | provenance.foreign_code(*parts)
    beside = Path(config.beside) if config.beside else None
    for observer in config.observe:
        for path in plugins.sources(observer.reference, beside):
            code[str(path)] = provenance.short_hash(path)
    text = stored.dump(dataclasses.replace(config, experiment="", arm="", seed=0))
    inputs = [text, code, dict(provenance.versions())]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:24]


def written(trials: Sequence[TrialResult]) -> Path:
    """A file with the tracebacks, outside of the experiment's folder, which no run has begun in."""
    descriptor, name = tempfile.mkstemp(prefix="grpobench-trial-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        for tried in trials:
            if tried.fault:
                file.write(f"{tried.what}: {tried.fault}\n\n{tried.traceback}\n")
    return Path(name)


# The process that tries


def carry_out(chosen: Sequence[RunConfig], gpus_per_run: float | None = None) -> list[TrialResult]:
    """The result of each trial, in order, made in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="grpobench-trial-", ignore_cleanup_errors=True) as room:
        arguments = (theirs, list(chosen), room, machine.count_threads_per_worker(1), os.getpid(), SECONDS)
        process = context.Process(target=serve, args=arguments)
        variables = machine.make_worker_environment(1, 0, gpus_per_run)
        try:
            with environment(**variables), without_main(), without_interrupts():
                process.start()
            theirs.close()  # a copy left open here would hide the end of the connection
            trials = list(heard(ours, chosen))
            process.join(SECONDS_ENDED)
            return trials
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
            ours.close()


def heard(connection: Connection, chosen: Sequence[RunConfig]) -> Iterator[TrialResult]:
    """The results that the process sends. If it dies, or gives up code that does not return, the rest is
    skipped."""
    gone = ""
    for config in chosen:
        if not gone:
            try:
                patience = watchdog.patience()
                if connection.poll(None if math.isinf(patience) else patience):
                    yield connection.recv()
                    continue
                gone = f"no sign of the process that tries it in {duration(patience)}"
            except (EOFError, OSError):
                gone = "the process that tries it has ended"
        yield TrialResult(described(config), skipped=gone)


def serve(
    connection: Connection,
    chosen: Sequence[RunConfig],
    room: str,
    threads: int,
    parent: int,
    seconds: float,
) -> None:
    """The main function of the process."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher kills it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    import torch

    torch.set_num_threads(threads)
    with output_to(Path(room) / "output.txt"):
        for config in chosen:
            with watched(connection, config, seconds):
                result = tried(config, Path(room))
            connection.send(result)


def tried(config: RunConfig, room: Path) -> TrialResult:
    """Try a run, whatever its code does."""
    from grpobench.runs.train.trial import attempt

    name = described(config)
    try:
        attempt(config, room)
    except DataError as error:
        # The stand-in's short context may have no room for any prompt.
        if has_stand_in(config):
            return TrialResult(name, skipped=str(error))
        return failed(config, error)
    except BaseException as error:
        return failed(config, error)
    return TrialResult(name)


def failed(config: RunConfig, error: BaseException) -> TrialResult:
    """What an error says of the code. A fault of the machine says nothing."""
    name = described(config)
    if isinstance(error, OSError) and others.blamed(config, error) is None:
        return TrialResult(name, skipped=f"{type(error).__name__}: {error}")
    why = str(error) if isinstance(error, mistakes()) else others.why(config, error)
    return TrialResult(name, why, traceback="".join(traceback.format_exception(error)))


@contextlib.contextmanager
def watched(connection: Connection, config: RunConfig, seconds: float) -> Iterator[None]:
    """Within, others' code must return in so many seconds."""
    over = threading.Event()
    arguments = (connection, config, threading.get_ident(), over, seconds)
    threading.Thread(target=watch, args=arguments, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def watch(
    connection: Connection, config: RunConfig, thread: int, over: threading.Event, seconds: float
) -> None:
    """End the process if others' code does not return. Loading a model may take longer."""
    owned = others.files(config)
    since, last = time.monotonic(), ""
    while not over.wait(LOOK):
        location = location_in_own_code(sys._current_frames().get(thread), owned)
        if location != last:
            since, last = time.monotonic(), location
        if last and time.monotonic() - since >= seconds:
            stack = "".join(traceback.format_stack(sys._current_frames()[thread]))
            message = f"{last} did not return in {seconds:.0f} s"
            with contextlib.suppress(OSError):
                connection.send(TrialResult(described(config), message, traceback=stack))
            os._exit(1)


def location_in_own_code(frame: Any, owned: Iterable[Path]) -> str:
    """``FILE:LINE FUNCTION`` of the outermost call into others' code; empty outside of it."""
    location = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename).resolve()
        if path in owned:
            location = f"{path.name}:{frame.f_code.co_firstlineno} {frame.f_code.co_qualname}"
        frame = frame.f_back
    return location
