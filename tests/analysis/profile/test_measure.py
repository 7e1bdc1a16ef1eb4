"""Outcomes of probes, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.profile.measure import Measure

ROWS = [{"step": float(i), "a": float(i), "b": 2.0, "c": i / 20} for i in range(1, 21)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mean:a", 10.5),
        ("last:a", 19.5),
        ("end:a", 20.0),
        ("log_ratio:a:b", math.log(20.5 / 3)),
        ("when:a:c:0.5", 10.0),  # steps 9, 10, 11 average 10/20
        ("when:a:c:2", math.nan),
        ("mean:nothing", math.nan),
    ],
)
def test_outcomes_by_hand(text: str, value: float) -> None:
    assert Measure.read(text).of(ROWS) == pytest.approx(value, nan_ok=True)


def test_values_that_are_not_finite_are_left_out() -> None:
    assert Measure.read("mean:a").of([{"a": 1.0}, {"a": math.nan}, {}, {"a": 3.0}]) == 2.0


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=50))
def test_the_last_tenth_is_at_least_one_step(values: list[float]) -> None:
    rows = [{"a": value} for value in values]
    last = values[-max(1, round(len(values) / 10)) :]
    assert Measure.read("last:a").of(rows) == pytest.approx(sum(last) / len(last))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("most:a", "unknown kind 'most'"),
        ("mean", "write mean:METRIC"),
        ("log_ratio:a", "write log_ratio:A:B"),
        ("when:a:b:c", "c is no number"),
    ],
)
def test_what_is_no_outcome(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Measure.read(text)
