"""Weights & Biases, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpobench.runs.observe.callback import Callback
from grpobench.runs.observe.trackers.naming import LastLogged, numbers, parameters


@dataclass
class WandB(Callback):
    """One W&B run per run; its files are in the run folder. `wandb sync RUN/wandb/offline-run-*` uploads what
    was written offline."""

    project: str = ""
    """Empty: the experiment's name."""
    entity: str = ""
    """Empty: W&B's own default."""
    group: str = ""
    """Empty: the arm, or, in a project of another name, the experiment."""
    mode: Literal["", "online", "offline"] = ""
    """Empty: W&B's own choice, which WANDB_MODE sets."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        import wandb

        self._told = LastLogged(folder, "wandb")
        self._run = wandb.init(
            project=self.project or config["experiment"],
            entity=self.entity or None,
            group=self.group or config["experiment" if self.project else "arm"],
            name=folder.name,
            id=self._told.run,
            resume="allow",
            mode=self.mode or None,
            dir=str(folder),
            config=parameters(config) | {"run": folder.name},
            settings=wandb.Settings(console="off", x_disable_stats=True, silent=True),
        )

    def step(self, row: Mapping[str, Any]) -> None:
        if self._told.news(row):
            self._run.log(numbers(row), step=row["step"])
            self._told.keep(row)

    def end(self, state: str, why: str) -> None:
        self._run.summary.update({"state": state, "why": why})
        self._run.finish(exit_code=0 if state == "finished" else 1)
