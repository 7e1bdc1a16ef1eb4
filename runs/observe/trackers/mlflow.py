"""MLflow: a database beside the runs, or a tracking server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.observe.callback import Callback
from grpobench.runs.observe.trackers.naming import identity, numbers, parameters

REFUSED = re.compile(r"[^\w\-. /]")
"""Characters that MLflow does not allow in the name of a metric or parameter."""
TAG = "grpobench.run"
ENDINGS = {"finished": "FINISHED", "preempted": "KILLED"}
"""MLflow's word for how a run ended; any other end is FAILED."""
MOST_AT_ONCE = 100
"""MLflow's limit of parameters per request."""
LONGEST = 500
"""Characters of a parameter that every version of MLflow accepts."""


@dataclass
class MLflow(Callback):
    """One MLflow run per run, in one MLflow experiment per experiment."""

    uri: str = ""
    """The tracking server or database. Empty: MLFLOW_TRACKING_URI, else `mlflow.db` in the experiment
    folder."""
    experiment: str = ""
    """Empty: the experiment's name."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        own = f"sqlite:///{folder.parent / 'mlflow.db'}"
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or own
        name = identity(folder)
        with alone(folder.parent):  # Several runs may begin at once, and the first creates the tables.
            self._client = MlflowClient(tracking_uri=uri)
            experiment = self._experiment(self.experiment or config["experiment"])
        found = self._client.search_runs([experiment], f"tags.`{TAG}` = '{name}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {
                TAG: name,
                "arm": config["arm"],
                "task": config["task"]["name"],
                "seed": str(config["seed"]),
            }
            self._run = self._client.create_run(experiment, tags=tags, run_name=folder.name).info.run_id
            self._parameters(parameters(config))
        self._last = self._last_step()

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _parameters(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        told = [Param(REFUSED.sub("_", key), str(value)[:LONGEST]) for key, value in settings.items()]
        for start in range(0, len(told), MOST_AT_ONCE):
            self._client.log_batch(self._run, params=told[start : start + MOST_AT_ONCE])

    def _last_step(self) -> int:
        """The last step that MLflow has of the run; an attempt that repeats it does not log it again."""
        latest = self._client.get_run(self._run).data.metrics
        if not latest:
            return -1
        return max(int(one.step) for one in self._client.get_metric_history(self._run, "time/wall"))

    def step(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        if row["step"] <= self._last:
            return
        now = int(time.time() * 1000)
        told = [
            Metric(REFUSED.sub("_", name), value, now, row["step"]) for name, value in numbers(row).items()
        ]
        self._client.log_batch(self._run, metrics=told)
        self._last = row["step"]

    def end(self, state: str, why: str) -> None:
        self._client.set_tag(self._run, "state", f"{state} {why}".strip())
        self._client.set_terminated(self._run, ENDINGS.get(state, "FAILED"))


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a lock, so that one process at a time uses a folder."""
    with (folder / ".mlflow.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
