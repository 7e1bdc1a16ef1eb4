"""A terminal that keeps what is written to it."""

from __future__ import annotations

import io

import pytest

ASKED = ("JPY_PARENT_PID", "MPLBACKEND", "FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR")
"""Environment variables by which programs find out what they write to, beside TERM."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment be that of a terminal, whatever the tests were started from."""
    for name in ASKED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
