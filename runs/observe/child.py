"""The process of one callback: reads messages from its standard input, a JSON object per line."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.runs.settings import plugins
from grpobench.runs.tools.deferred import defer
from grpobench.runs.tools.frames import describe_error, innermost
from grpobench.runs.tools.strict import ConfigError

LONGEST = 2000
"""Characters of an error that are reported; the traceback is in log.txt."""
LOOK = 0.5
"""Seconds between two checks that the run's process still exists."""


def main(report: int) -> int:
    """Carry out the messages; returns the exit code.

    The first line says what to create; each later line names the method to call. If the callback raises, the
    error is reported as JSON on the descriptor given as the only argument, and the process ends. The same
    descriptor reports that the callback ended normally."""
    os.set_inheritable(report, False)
    lines, code = messages(), list[Path]()
    doing = "as it was made"
    try:
        order = next(lines)
        watch(order["parent"], order["seconds"])
        defer("torch")  # for a callback beside an algorithm: seconds and 200 MB that it has no use for
        factory: Any = plugins.load(order["reference"], Path(order["beside"]) if order["beside"] else None)
        code += plugins.files(factory)
        callback = factory(**order["settings"])
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
        os.write(
            report, json.dumps({"failed": f"{doing}: {describe_failure(error, code)[:LONGEST]}"}).encode()
        )
        return 1
    os.write(report, json.dumps({"ended": "in order"}).encode())
    return 0


def messages() -> Iterator[Any]:
    """The messages, until the run's end of the pipe is closed. A callback that reads its own standard input
    finds it empty."""
    orders = os.dup(0)  # Processes that the callback starts do not inherit this descriptor.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with os.fdopen(orders, "rb") as file:
        for text in file:
            yield json.loads(text)


def describe_failure(error: BaseException, code: Sequence[Path]) -> str:
    """An error in words, with the line in the files of the callback's `code`."""
    if isinstance(error, ConfigError):
        return "; ".join(error.faults)
    frame = innermost(error, code)
    return frame.message if frame else describe_error(error)


def call(callback: object, message: Mapping[str, Any]) -> None:
    """Call one method with its arguments, unless the callback lacks it."""
    arguments = dict(message)
    name = arguments.pop("tell")
    if "folder" in arguments:
        arguments["folder"] = Path(arguments["folder"])
    method: Callable[..., None] | None = getattr(callback, name, None)
    if method is not None:
        method(*arguments.values())


def watch(parent: int, seconds: float) -> None:
    """End this process some seconds after the run's: nothing else would end one that hangs."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
