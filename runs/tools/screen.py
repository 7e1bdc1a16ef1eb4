"""What a console can show: text that is replaced in place, and lines of any length."""

from __future__ import annotations

import html
import os

from rich.console import Console
from rich.text import Text

from grpobench.analysis.tools.text import visible

STYLE = "line-height:1.3; font-family:Menlo,'DejaVu Sans Mono',Consolas,'Courier New',monospace"
"""Of `pre` in a notebook. JupyterLab gives it the font of running text, in which no columns line up."""


def is_redrawable(console: Console) -> bool:
    """Whether lines that are on the console can be replaced.

    Not in a pipe, which rich takes for a terminal if FORCE_COLOR is set. Not in a command that a notebook's
    cell began either: the cell gives it a terminal, but prints each version of a table below the last one.
    """
    # jupyter_client sets the first, every IPython kernel the second: some editors start kernels themselves.
    in_cell = "JPY_PARENT_PID" in os.environ or "inline" in os.environ.get("MPLBACKEND", "")
    terminal = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
    return terminal and not in_cell


def print_line(console: Console, text: str) -> None:
    """Print a text of any length. Only a window breaks its lines, so that files keep them whole. A notebook
    breaks them too: lines of rich run out of the cell, and their end, which says why, would not be seen."""
    plain = visible(text)
    if not console.is_jupyter:
        console.print(Text(plain), soft_wrap=True)
    elif not console.quiet:
        from IPython.display import display

        style = f"white-space:pre-wrap; margin:0; {STYLE}"
        code = f'<pre style="{style}">{html.escape(plain)}</pre>'
        display({"text/plain": plain, "text/html": code}, raw=True)
