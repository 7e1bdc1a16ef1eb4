"""The columns of evaluated answers.

Locked here: a frame has the values and types that pandas makes of the same rows, whatever types they mix and
whichever of them a run lacks; and it needs a small part of the memory of the rows.
"""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpobench.analysis.runfolder.answers import answers_frame, read_answers

TEXTS = st.sampled_from(["a", "b", "7 apples", ""])
NUMBERS = st.one_of(st.integers(-3, 2**62), st.floats(0, 1), st.none())
VALUES = st.one_of(TEXTS, NUMBERS, st.booleans())
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "scores": st.dictionaries(st.sampled_from(["format", "length"]), NUMBERS),
            "answer": VALUES,
        },
        optional={
            "outcome": VALUES,
            "traits": st.one_of(st.none(), st.dictionaries(st.sampled_from(["category", "level"]), VALUES)),
        },
    ),
    max_size=5,
)


def written(path: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in a file, each of an answer of its own."""
    logged = [
        {"step": 0, "split": "test", "mode": "greedy", "problem": f"p{i % 2}", "sample": i, **row}
        for i, row in enumerate(rows)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in logged))
    return logged


def flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: value for name, value in row.items() if name not in ("scores", "traits")},
        **{f"score/{name}": value for name, value in row["scores"].items()},
        **{f"trait/{name}": value for name, value in (row.get("traits") or {}).items()},
    }


@given(st.lists(ROWS, min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_frame_has_what_pandas_makes_of_the_rows(tmp_path: Path, runs: list[list[dict[str, Any]]]) -> None:
    read, rows = [], []
    for seed, run in enumerate(runs):
        path = tmp_path / f"{seed}.jsonl"
        logged = written(path, run)
        answers, cut, rewritten = read_answers(path, "")
        assert (cut, rewritten) == (0, 0)
        read.append((("grpo", "sums", seed), answers))
        rows += [{"arm": "grpo", "task": "sums", "seed": seed, **flat(row)} for row in logged]
    frame = answers_frame(read)
    if not rows:
        assert frame.empty
        return
    names = dict.fromkeys(name for row in rows for name in row)
    expected = pd.DataFrame({name: [row.get(name, math.nan) for row in rows] for name in names})
    pd.testing.assert_frame_equal(frame[list(names)], expected)
    kinds = [name.split("/")[0] if "/" in name else "" for name in frame.columns]
    assert kinds == sorted(kinds) and set(frame.columns) == set(names)


def test_an_answer_needs_a_few_bytes_a_column(tmp_path: Path) -> None:
    """As dictionaries they need more than a kilobyte each, which no laptop has for millions."""
    count = 5000
    rows = [
        {"answer": str(i % 7), "outcome": "graded", "length": 12, "stopped": True,
         "scores": {"correct": i % 2 / 1, "format": 1.0}, "traits": {"category": "two steps"}}
        for i in range(count)
    ]  # fmt: skip
    written(tmp_path / "eval.jsonl", rows)
    read_answers(tmp_path / "eval.jsonl", "")  # imports and caches
    tracemalloc.start()
    try:
        frame = answers_frame([(("grpo", "sums", 0), read_answers(tmp_path / "eval.jsonl", "")[0])])
        needed, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    columns = len(frame.columns)
    assert len(frame) == count and columns == 15
    assert needed / count < 16 * columns  # 8 bytes a value, twice at most
