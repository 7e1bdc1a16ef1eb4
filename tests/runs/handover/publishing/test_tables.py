"""The tables of a file set."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from grpobench.runs.handover.publishing.tables import answer_rows


@pytest.mark.parametrize(
    ("columns", "traits"),
    [
        ({}, [{}, {}]),
        # Line separators that JSON leaves as they are.
        ({"trait/category": ["a\u2028b", "c\x85d"]}, [{"category": "a\u2028b"}, {"category": "c\x85d"}]),
    ],
)
def test_a_row_per_answer_whatever_its_traits(
    columns: dict[str, list[str]], traits: list[dict[str, str]]
) -> None:
    frame = pd.DataFrame({"problem": ["p", "q"], "score/correct": [1.0, 0.0], **columns})
    answers = answer_rows(cast(Any, SimpleNamespace(evaluations=frame)))
    assert [*map(json.loads, answers["traits"])] == traits
    assert [*map(json.loads, answers["scores"])] == [{"correct": 1.0}, {"correct": 0.0}]
