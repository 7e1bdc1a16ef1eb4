"""Commands as a user types them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from grpobench.runs import cli


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`grpobench WORDS`, run in `folder`."""
    program = "import sys; from grpobench.runs.cli import main; code = main(); "
    program += "print('LOADED' if 'torch._C' in sys.modules else '', end=''); sys.exit(code)"
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def run_cli(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    """What `grpobench WORDS` prints in this process; of an error what it complains."""
    capsys.readouterr()
    assert cli.main(words) == code
    captured = capsys.readouterr()
    return (captured.err if code else captured.out).splitlines()


def commands(
    group: click.Group = cli.app, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command by its words, each group before what it holds."""
    for name, below in group.commands.items():
        yield (*before, name), below
        if isinstance(below, click.Group):
            yield from commands(below, (*before, name))
