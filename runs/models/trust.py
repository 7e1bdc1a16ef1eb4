"""Whether code that comes with a model may run: only where the user typed ``--trust-remote-code``."""

# A model's folder can name Python files of its own as the code of its architecture or tokenizer. By default
# transformers asks whether to run them, and takes a `y` from a pipe for an answer. Here it never asks.

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "GRPOBENCH_TRUST_REMOTE_CODE"
"""Holds the process id of a command line that was given ``--trust-remote-code``; it counts for that process
and its children only, so that a variable left in an environment opens nothing."""


FLAG: Final = "--trust-remote-code"


def allow() -> None:
    """What ``--trust-remote-code`` does."""
    os.environ[VARIABLE] = str(os.getpid())


def trusted() -> bool:
    return os.environ.get(VARIABLE, "") in (str(os.getpid()), str(os.getppid()))


def recorded() -> dict[str, str]:
    """What the origin of a model says of it: nothing where it is off."""
    return {"trust_remote_code": "yes"} if trusted() else {}


def remedy(error: Exception) -> str:
    """What to do about an error of transformers that asks for the flag; empty for any other."""
    if "trust_remote_code" not in str(error):
        return ""
    return f"it brings code of its own, which is not run; read that code, and pass {FLAG} if you trust it"
