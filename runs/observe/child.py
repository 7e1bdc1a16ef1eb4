"""The process of one callback: reads what it is told from its standard input, a JSON object per line.

The first line says what to make; those after it name the method to call. What the callback raises is reported
as JSON on the descriptor that the only argument names, and ends the process; so is that it came to its end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.settings import plugins
from grpobench.runs.tools.strict import ConfigError

LONGEST = 2000
"""Characters of an error that are reported; the traceback stands in log.txt."""
LOOK = 0.5
"""Seconds between two looks at whether the run's process is still there."""


def main(report: int) -> int:
    """Carry out the messages; the exit code."""
    os.set_inheritable(report, False)
    lines = messages()
    doing = "as it was made"
    try:
        order = next(lines)
        watch(order["parent"], order["seconds"])
        callback = make(order)
        ended = False
        for message in lines:
            doing = f"in {message['tell']}"
            call(callback, message)
            ended = message["tell"] == "end"
        if not ended:
            doing = "in end"
            call(callback, {"tell": "end", "state": "crashed", "why": "the run's process is gone"})
    except BaseException as error:
        traceback.print_exc()
        said = (
            "; ".join(error.faults) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        )
        os.write(report, json.dumps({"failed": f"{doing}: {said[:LONGEST]}"}).encode())
        return 1
    os.write(report, json.dumps({"ended": "in order"}).encode())
    return 0


def messages() -> Iterator[Any]:
    """What is told, until the run's end of the pipe is closed. A callback that reads its own standard input
    finds it empty."""
    orders = os.dup(0)  # which what the callback starts does not inherit
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with os.fdopen(orders, "rb") as file:
        for text in file:
            yield json.loads(text)


def make(order: Mapping[str, Any]) -> object:
    """The callback that the first message asks for."""
    folder = Path(order["beside"]) if order["beside"] else None
    factory: Any = plugins.load(order["reference"], folder)
    return factory(**order["settings"])


def call(callback: object, message: Mapping[str, Any]) -> None:
    """One method with its arguments; one that the callback lacks is not called."""
    arguments = dict(message)
    name = arguments.pop("tell")
    if "folder" in arguments:
        arguments["folder"] = Path(arguments["folder"])
    method: Callable[..., None] | None = getattr(callback, name, None)
    if method is not None:
        method(*arguments.values())


def watch(parent: int, seconds: float) -> None:
    """Have this process end some seconds after the run's: nobody else would end one that hangs."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
