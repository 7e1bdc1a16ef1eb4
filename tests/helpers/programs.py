"""Programs of a page: in this process, or each in one of its own as a user starts it."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys

from helpers.pages import drawing


def here(name: str) -> str:
    """What a file of the current folder prints, executed in this process; its report has one figure."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), drawing("final_accuracy"):
        runpy.run_path(name, run_name="__main__")
    return printed.getvalue()


def program(*words: str) -> str:
    """What a fresh Python prints in the current folder."""
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
