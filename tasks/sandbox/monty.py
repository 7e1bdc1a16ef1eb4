"""The Monty tier: pydantic-monty, a Python interpreter in Rust without system access, on any platform."""

# It lacks parts of Python: `yield`, inheritance, most of the standard library.

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpobench.tasks.sandbox import transcript, wire
from grpobench.tasks.sandbox.protocol import PATIENCE, Execution, Job, Limits, Sandbox, Tier
from grpobench.tasks.workers.pool import cores

if TYPE_CHECKING:
    import pydantic_monty

ESCAPE = """
import os
def escape():
    return os.listdir('/')
"""
WIRE: Final = """
def _wire(value):
    kind = type(value)
    if value is None:
        return 'null'
    if kind is bool:
        return 'true' if value else 'false'
    if kind is int:
        return f'["i","{value:x}"]'
    if kind is float:
        return f'["r","{value!r}"]'
    if kind is str:
        return f'"{value.encode("utf-8").hex()}"'
    if kind is bytes:
        return f'["b","{value.hex()}"]'
    if isinstance(value, dict):
        return '["d",[' + ','.join([f'[{_wire(k)},{_wire(v)}]' for k, v in value.items()]) + ']]'
    for tag, many in (('l', list), ('t', tuple), ('s', set), ('z', frozenset)):
        if kind is many or (many is tuple and isinstance(value, tuple)):
            return f'["{tag}",[' + ','.join([_wire(item) for item in value]) + ']]'
    raise TypeError('the value is not of a built-in type')
"""
"""Returns the values as text, and only text leaves: copying a set or dictionary can cost this process the
square of its size, outside of every limit. The last expression is an f-string, so it is text whatever the
program has done to these names."""


def absent(tier: Tier) -> str:
    missing = importlib.util.find_spec("pydantic_monty") is None
    return "pydantic-monty is not installed: pip install pydantic-monty==1.4.0" if missing else ""


def guarded(folder: Path) -> str | None:
    """A command that starts Monty so that it dies with this process; otherwise a program may run on until its
    limit. None, and so plain Monty, if this is not Linux or nothing can be run from the folder."""
    from pydantic_monty._binary import find_monty_binary

    script = folder / "monty"
    words = [sys.executable, "-S", "-E", str(Path(__file__).with_name("guard.py")), find_monty_binary()]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    try:
        done = subprocess.run([script, "--version"], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return str(script) if sys.platform == "linux" and done.returncode == 0 else None


GRACE: Final = 0.05
"""The last share of a program's time, in which the interpreter may end it by itself and keep its worker."""


class MontySandbox(Sandbox):
    """pydantic-monty with limits on time, memory and recursion; every program has a fresh session, and a
    worker that crashed is replaced.

    Monty measures only clock time, so its limit is the one on waiting. The interpreter checks the clock only
    between operations, and one operation on long numbers can take any time, so the worker is killed from
    outside when the limit is reached.
    """

    tier: Tier = "monty"

    def __init__(self, limits: Limits, workers: int = 0) -> None:
        import pydantic_monty

        self.monty = pydantic_monty
        seconds = PATIENCE * limits.seconds
        self.resources: pydantic_monty.ResourceLimits = {
            "max_feed_duration_secs": (1 - GRACE) * seconds,
            "max_memory": limits.megabytes * 2**20,
            "max_total_sleep_secs": 0.0,
        }
        workers = workers or cores()
        self.place = tempfile.TemporaryDirectory(prefix="grpobench-monty-")
        self.pool = pydantic_monty.Monty(
            binary_path=guarded(Path(self.place.name)),
            max_processes=workers,
            request_timeout=4 * seconds + 1,
            feed_duration_limit_grace=GRACE * seconds,  # By default it adds a second.
        )
        self.pool.__enter__()
        super().__init__(limits, workers)  # Its exit closes the pool.

    def close(self) -> None:
        super().close()
        self.pool.__exit__(None, None, None)
        self.place.cleanup()

    def once(self, job: Job) -> tuple[Execution, bool]:
        before = f"{job.program}\n{WIRE}\n_values = [\n"
        calls = "".join(f"({call}),\n" for call in job.calls)
        source = f"{before}{calls}]\n_text = '\\n'.join([_wire(_value) for _value in _values])\nf'{{_text}}'"
        try:
            source.encode("utf-8")
            with self.pool.checkout(limits=self.resources) as session:
                text = session.feed_run(source, print_callback=_discard)
        except self.monty.MontyCrashedError as error:
            if getattr(error, "timed_out", False):
                return Execution("timeout", detail=str(error)[:200]), False
            # The interpreter's own limits act first; a program whose worker dies every time used too much.
            return Execution("oom", detail=str(error)[:200]), True
        except self.monty.MontyRuntimeError as error:
            return _runtime_failure(error, before.count("\n"), len(job.calls)), False
        except (self.monty.MontySyntaxError, UnicodeEncodeError) as error:
            return Execution("syntax", detail=str(error)[:200]), False
        except (self.monty.MontyConversionError, ValueError, RecursionError) as error:
            return Execution("error", detail=str(error)[:200]), False
        except (self.monty.MontyError, OSError, TimeoutError) as error:
            return Execution("infra_error", detail=repr(error)[:200]), True
        return _checked(text, len(job.calls)), False


def _checked(text: Any, calls: int) -> Execution:
    if type(text) is not str:
        return Execution("error", detail="not text")
    if len(text) > 2 * wire.LARGEST:
        return Execution("output_limit")
    lines = text.split("\n") if calls else []
    if len(lines) != calls:
        return Execution("error", detail="not one value per call")
    return transcript.checked(Execution("pass", tuple(lines)))


def _discard(stream: str, text: str) -> None:
    """Printed output is not part of an answer."""


def _runtime_failure(error: pydantic_monty.MontyRuntimeError, before: int, calls: int) -> Execution:
    """The failure of a source with `before` lines in front of its calls, each of which has a line."""
    raised, frames = error.exception(), error.traceback()
    # A program that is out of time has no frame, and one whose values cannot be written is behind its calls.
    call = frames[0].line - before - 1 if frames else calls
    returned = max(call, 0) if call < calls else None
    if isinstance(raised, TimeoutError):
        return Execution("timeout", detail=str(raised)[:200], returned=returned)
    if isinstance(raised, MemoryError):
        return Execution("oom", detail=str(raised)[:200], returned=returned)
    return Execution("error", detail=repr(raised)[:200], returned=returned)
