"""The choice of a sandbox for code that a model wrote."""

# There are one protocol, `Sandbox`, and three tiers: full CPython in bubblewrap, pydantic-monty (a Python
# interpreter without system access in worker processes of its own), and a plain subprocess, which protects
# nothing and is used only if the user passed `--unsafe-exec`. A tier is chosen by trying it: a program must
# run in it and an escape must fail. See docs/sandbox.md.
#
# Expected values never enter a sandbox: a program's results come back as plain built-in values and are
# compared outside.

from __future__ import annotations

import functools
import os
from typing import Any, get_args

from grpobench.tasks.data.tables import DataError
from grpobench.tasks.sandbox import monty, process
from grpobench.tasks.sandbox.protocol import Choice, Limits, Sandbox, Tier

UNSAFE_VARIABLE = "GRPOBENCH_UNSAFE_EXEC"
"""Holds the process id of a command line with ``--unsafe-exec``. It counts only for that process and its
children, so a variable left in an environment has no effect."""


# The choice of a tier

FIX = "apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora)"


def allow_unsafe() -> None:
    """The effect of ``--unsafe-exec``."""
    os.environ[UNSAFE_VARIABLE] = str(os.getpid())


def unsafe_allowed() -> bool:
    return os.environ.get(UNSAFE_VARIABLE, "") in (str(os.getpid()), str(os.getppid()))


def choose(choice: Choice = "auto") -> tuple[Tier | None, str]:
    """The tier that runs programs on this machine, or None and the reason with the remedy. ``auto`` takes the
    first that works of bubblewrap, plain subprocess (if allowed), Monty."""
    reasons = []
    for tier in TIERS if choice == "auto" else (choice,):
        reason = trouble(tier) if tier != "unsafe" or unsafe_allowed() else UNTYPED
        if not reason:
            return tier, ""
        reasons.append(f"{tier}: {reason}")
    return None, f"no sandbox to run programs in ({'; '.join(reasons)}); install one: {FIX}"


def sandbox(choice: Choice = "auto", limits: Limits | None = None) -> Sandbox:
    """The process's own sandbox of a tier, started on first use. Raises DataError if there is none."""
    tier, reason = choose(choice)
    if tier is None:
        raise DataError(reason)
    return start(tier, limits or Limits())


@functools.cache
def start(tier: Tier, limits: Limits) -> Sandbox:
    """A sandbox of an available tier, kept for the life of the process."""
    if tier == "monty":
        return monty.MontySandbox(limits)
    return process.BubblewrapSandbox(limits) if tier == "bubblewrap" else process.UnsafeSandbox(limits)


def default_sandbox() -> Sandbox:
    """Monty with tight limits, for programs that are known to fit it, such as a single expression."""
    return start("monty", TIGHT)


def absent(tier: Tier) -> str:
    """What a tier lacks on this machine, without running anything; empty if nothing."""
    reason: str = _module(tier).absent(tier)
    return reason


def _module(tier: Tier) -> Any:
    return monty if tier == "monty" else process


@functools.cache
def trouble(tier: Tier) -> str:
    """Why a tier cannot be used on this machine; empty if it can. Tried once per process."""
    if reason := absent(tier):
        return reason
    try:
        probed = start(tier, PROBED)
    except Exception as error:  # A damaged installation may raise anything.
        return f"does not start ({type(error).__name__}: {error})"[:300]
    works = probed.run("def double(x):\n    return 2 * x", ["double(21)"])
    if works.outcome != "pass" or works.values != (42,):
        return f"does not run a plain program ({works.outcome} {works.detail})"
    if tier == "unsafe":
        return ""
    escape = probed.run(_module(tier).ESCAPE, ["escape()"])
    if escape.outcome == "pass" and escape.values != ([],):
        return f"lets programs escape ({escape.values})"
    if escape.outcome == "infra_error":
        return f"failed while a program tried to escape ({escape.detail})"
    return ""


TIERS: tuple[Tier, ...] = ("bubblewrap", "unsafe", "monty")
UNTYPED = "only with --unsafe-exec, which runs what a model wrote with all your rights"
TIGHT = Limits(seconds=0.35, megabytes=64)
PROBED = Limits(seconds=2.0, megabytes=256)


# Values

PLAIN = (int, float, bool, str, list, tuple, dict, set, frozenset, bytes, complex, type(None))


def same(value: Any, expected: Any, depth: int = 8) -> bool:
    """Equality of plain built-in values: numbers as Python compares them (2 == 2.0, but True is not 1),
    sequences by type and element."""
    if depth == 0 or type(value) not in PLAIN or isinstance(value, bool) != isinstance(expected, bool):
        return False
    if isinstance(expected, int | float):
        return isinstance(value, int | float) and value == expected
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list | tuple):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(same(v, e, depth - 1) for v, e in pairs)
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            same(value[k], expected[k], depth - 1) for k in expected
        )
    return bool(value == expected)


assert set(TIERS) == set(get_args(Tier))
