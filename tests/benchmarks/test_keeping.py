"""`grpobench bench --case keeping`: what is written beside the steps is counted, each in its place."""

from __future__ import annotations

import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grpobench.benchmarks import bench, keeping
from grpobench.runs.runfolder.folder import RunFolder

SLOW = 0.2
"""Seconds: far more than anything that is written takes here."""


def test_what_is_slow_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain, logged = keeping.configured, RunFolder.log

    def small(every: int) -> Any:
        config = plain(every)
        train = dataclasses.replace(config.train, prompts_per_step=2, group_size=2, num_minibatches=1)
        return dataclasses.replace(
            config,
            train=train,
            evaluate=dataclasses.replace(config.evaluate, every=2, problems=2),
            sampler=dataclasses.replace(config.sampler, max_completion_tokens=4),
        )

    def slow(self: RunFolder, row: Any) -> None:
        time.sleep(SLOW)
        logged(self, row)

    monkeypatch.setattr(keeping, "configured", small)
    monkeypatch.setattr(RunFolder, "log", slow)
    monkeypatch.setattr(keeping, "INTERVALS", (3, 1))
    told: list[str] = []
    found = keeping.keeping(lambda what, left: told.append(what), steps=3, repeats=1)
    assert told == [f"run {n} of 2, a checkpoint every {every} steps" for n, every in ((1, 3), (2, 1))]
    seldom, always = found["intervals"]
    for entry in (seldom, always):
        parts = entry["parts_s"]
        assert SLOW <= parts["metrics"] < 2 * SLOW
        assert all(0 < parts[name] < SLOW for name in keeping.PARTS if name != "metrics")
        assert entry["together_s"] == pytest.approx(sum(parts.values()))
        assert entry["share"] == pytest.approx(entry["together_s"] / entry["step_s"])
    assert (seldom["every"], always["every"]) == (3, 1)
    assert found["checkpoint_mb"] > 1 and found["checksum_ms"] > 0
    assert not list(tmp_path.iterdir()), "nothing is left in the working directory"
    text = io.StringIO()
    bench.show_keeping(found, Console(file=text, width=200))
    assert (
        "every 3 steps" in text.getvalue()
        and "1 runs of 3 steps of the recipe quickstart each" in text.getvalue()
    )
