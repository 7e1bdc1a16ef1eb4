"""Where progress replaces what it printed before, and where it prints lines."""

from __future__ import annotations

import io

import pytest
from helpers.terminal import Terminal, forget
from rich.console import Console

from grpobench.runs.tools.progress import Ticker
from grpobench.runs.tools.screen import is_redrawable


@pytest.fixture(autouse=True)
def outside_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


def test_a_terminal_is_redrawn_and_a_pipe_is_not() -> None:
    assert is_redrawable(Console(file=Terminal()))
    assert not is_redrawable(Console(file=io.StringIO()))


def test_a_pipe_that_is_to_have_colors_is_not_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Console(file=io.StringIO()).is_terminal  # to rich
    assert not is_redrawable(Console(file=io.StringIO()))
    assert is_redrawable(Console(file=Terminal()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JPY_PARENT_PID", "1234"),
        ("MPLBACKEND", "module://matplotlib_inline.backend_inline"),
        ("TERM", "dumb"),
    ],
)
def test_a_command_in_a_notebooks_cell_prints_lines(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert Console(file=Terminal()).is_terminal  # to rich
    assert not is_redrawable(Console(file=Terminal()))


def test_a_ticker_in_a_pipe_that_is_to_have_colors_writes_no_cursor_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Ticker() as ticker:
        ticker.tell("half way")
    assert capsys.readouterr().err == "half way\n"
