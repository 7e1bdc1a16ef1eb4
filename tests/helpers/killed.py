"""Processes that die by SIGKILL at a fail point, forked from one that has imported what takes long."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpobench.runs.tools import faults
from helpers.warm import FORKING, begin_server


def at(fault: str, folder: Path, work: Callable[..., Any], *arguments: Any) -> int:
    """The exit code of a process that does `work(*arguments)` under one fault: −9 where it was killed. The
    fault is in `folder`, and must come about."""
    folder.mkdir(exist_ok=True)
    (folder / fault).touch()
    begin_server()
    around = {name: value for name, value in os.environ.items() if name.startswith("GRPOBENCH_")}
    around[faults.VARIABLE] = str(folder)
    child = FORKING.Process(target=begin, args=(around, work, arguments))
    child.start()
    child.join()
    assert fault in (folder / faults.STRUCK).read_text().split()
    return int(child.exitcode)


def begin(around: dict[str, str], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(around)
    work(*arguments)


def warm_start(task: Any, config: Any) -> None:
    """What a run does that needs one."""
    from grpobench.runs.models.loading import load
    from grpobench.runs.train.prepare import warmstart

    warmstart.warm_start(load(config.name), task, config, lambda *_: None)


def export(run: Path, folder: Path) -> None:
    """`grpobench export RUN DIR`."""
    from grpobench.runs.evaluation import export as exporting

    exporting.export(run, folder)
