"""Worker processes that begin in no time: forked from one that has imported torch and transformers already.

A launcher spawns its workers, and each takes seconds to import the two. What a test says of runs, of their
launcher and of their folders is the same of a forked worker. Spawning itself is tested where a rank is killed
(train/test_devices.py) and by whatever starts a program of its own, such as a launcher that is told to stop
(test_experiment.py).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from grpobench.runs.experiment import trial, worker
from grpobench.runs.tools.process import environment

FORKING: Any = multiprocessing.get_context("forkserver")
LOADED = [
    "helpers.disk",
    "torch",
    "transformers.modeling_utils",
    "grpobench.runs.train.execute",
    "torch.profiler",
    "pydantic.type_adapter",
    "helpers.loaded",
]


def begin(target: Callable[..., None], arguments: tuple[Any, ...], around: dict[str, str]) -> None:
    """In the forked process: what a spawned one would begin with."""
    gc.freeze()  # else the collection behind each run writes into every page shared with the server
    os.environ.clear()
    os.environ.update(around)
    from grpobench.runs.train import ahead, devices

    # Its parent is the server.
    for module in (worker, trial, devices, ahead):
        module.die_with = lambda parent: None  # type: ignore[attr-defined]
    target(*arguments)


def begin_server() -> None:
    """Start the server that processes are forked from, unless it is there. It finds this package by its
    environment: Python 3.11 does not tell it the path of its parent."""
    FORKING.set_forkserver_preload(LOADED)
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with environment(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, paths))):
        forkserver.ensure_running()


def tell_loaded(sender: Any) -> None:
    """Send which of `LOADED` this process has without having imported it."""
    sender.send([name for name in LOADED if name in sys.modules])


class Forked(FORKING.Process):  # type: ignore[misc]
    """A process with the environment of its launcher at its start."""

    def __init__(
        self, target: Callable[..., None], args: tuple[Any, ...], name: str | None = None, **more: Any
    ) -> None:
        self.around: dict[str, str] = {}
        super().__init__(target=begin, args=(target, args, self.around), name=name, **more)

    def start(self) -> None:
        self.around.update(os.environ)
        begin_server()
        super().start()


class Warm:
    """Stands where the launcher has `multiprocessing`."""

    Pipe = staticmethod(FORKING.Pipe)
    Process = Forked

    @classmethod
    def get_context(cls, method: str) -> type[Warm]:
        assert method == "spawn"
        return cls
