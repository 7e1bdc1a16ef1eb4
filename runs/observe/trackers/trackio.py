"""trackio: a local database, shown by ``trackio show``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.observe.callback import Callback
from grpobench.runs.observe.trackers.naming import LastLogged, numbers, parameters


@dataclass
class Trackio(Callback):
    """One trackio run per run."""

    project: str = ""
    """Empty: the experiment's name."""
    group: str = ""
    """Empty: the arm, or, in a project of another name, the experiment."""
    folder: str = ""
    """Folder of the databases; empty: trackio's own folder, which TRACKIO_DIR names."""
    space: str = ""
    """A Hugging Face Space to log to, OWNER/NAME; empty: only this machine."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        if self.folder:  # trackio reads it once, at its import.
            os.environ["TRACKIO_DIR"] = str(Path(self.folder).expanduser().resolve())
        import trackio

        self._told = LastLogged(folder, "trackio")
        self._run = trackio.init(
            project=self.project or config["experiment"],
            name=f"{folder.name}-{self._told.run}",  # trackio finds a run again by its name.
            group=self.group or config["experiment" if self.project else "arm"],
            space_id=self.space or None,
            config=parameters(config) | {"run": folder.name},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def step(self, row: Mapping[str, Any]) -> None:
        if self._told.news(row):
            self._run.log(numbers(row), step=row["step"])
            self._told.keep(row)

    def end(self, state: str, why: str) -> None:
        self._run.finish()
