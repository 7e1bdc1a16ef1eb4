"""The columns of logged metrics.

Locked here: a frame has every logged number in the order of the log, and rows need a small part of the memory
that dictionaries need.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.metric_rows import metrics_frame, read_metrics

NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False))
LOGS = st.lists(st.dictionaries(st.sampled_from(["loss", "kl", "reward"]), NUMBERS), max_size=6)


def log(path: Path, rows: Sequence[dict[str, float]]) -> Path:
    path.write_text("".join(json.dumps({**row, "step": step}) + "\n" for step, row in enumerate(rows)))
    return path


@given(st.lists(LOGS, min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_frame_has_every_number_in_its_order(tmp_path: Path, logs: list[list[dict[str, float]]]) -> None:
    read, expected = [], []
    for seed, rows in enumerate(logs):
        read.append((("a", "t", seed), read_metrics(log(tmp_path / "metrics.jsonl", rows), "")[0]))
        expected += [
            ("a", "t", seed, step, name, float(value))
            for step, row in enumerate(rows)
            for name, value in row.items()
        ]
    frame = metrics_frame(read)
    assert [*frame.itertuples(index=False, name=None)] == expected
    assert [*frame["metric"].cat.categories] == sorted(
        {name for rows in logs for row in rows for name in row}
    )


def test_a_number_that_no_float_holds_is_named(tmp_path: Path) -> None:
    path = log(tmp_path / "metrics.jsonl", [{"loss": 1}, {"loss": 10**400}])
    with pytest.raises(LogError, match=r"line 2.* too large for a number"):
        read_metrics(path, "")


def test_a_number_needs_twelve_bytes(tmp_path: Path) -> None:
    """As dictionaries of 80 metrics rows need nine kilobytes each, and a thousand runs four gigabytes."""
    names = [f"metric/{i}" for i in range(80)]
    path = log(tmp_path / "metrics.jsonl", [dict.fromkeys(names, step / 7) for step in range(300)])
    read_metrics(path, "")  # imports and caches
    tracemalloc.start()
    try:
        rows, _, _ = read_metrics(path, "")
        needed, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows.values) == 300 * 80 and needed < 300 * 80 * 16
