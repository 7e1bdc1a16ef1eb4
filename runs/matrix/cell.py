"""The live table of a matrix in the output of a notebook's cell."""

from __future__ import annotations

import io
import math
import time
from typing import Any

from rich.console import Console, RenderableType

INTERVAL = 0.5
"""Least seconds between two versions of the output."""
HTML = '<pre style="white-space:pre; overflow-x:auto; line-height:1.3">{code}</pre>'


class Cell:
    """An output that is replaced in place, as `rich.live.Live` replaces lines of a terminal. (In a notebook
    that class needs ipywidgets; this needs IPython alone, and no thread.)"""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.handle: Any = None
        self.latest: RenderableType = ""
        self.told = -math.inf

    def start(self) -> None:
        from IPython.display import display

        self.handle = display(self.bundle(), raw=True, display_id=True)

    def update(self, renderable: RenderableType) -> None:
        """Show this from now on; what comes sooner than `INTERVAL` after the last is shown with the next."""
        self.latest = renderable
        if time.monotonic() - self.told >= INTERVAL:
            self.told = time.monotonic()
            self.handle.update(self.bundle(), raw=True)

    def stop(self) -> None:
        """Show the latest, and leave it standing."""
        self.handle.update(self.bundle(), raw=True)

    def bundle(self) -> dict[str, str]:
        """The latest as text and as HTML, for whichever the notebook shows."""
        width, height = self.console.size
        recorder = Console(file=io.StringIO(), record=True, force_jupyter=False, width=width, height=height)
        recorder.print(self.latest)
        return {
            "text/plain": recorder.export_text(clear=False),
            "text/html": recorder.export_html(inline_styles=True, code_format=HTML),
        }
