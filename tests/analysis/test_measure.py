"""Measures of training steps, by hand. Those of experiments are in test_finding_outcomes.py."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.measure import KINDS, OF_STEPS, REDUCTIONS, Measure

NO_TARGETS = ("", ":60:updates", ":0:updates", ":0.6", ":0.6:steps", ":-0.1:tokens")
ROWS = [{"step": float(i), "a": float(i), "b": 2.0, "c": i / 20} for i in range(1, 21)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mean:a", 10.5),
        ("last:a", 19.5),
        ("tenth:a", 19.5),
        ("quarter:a", 18.0),
        ("first:a", 1.0),
        ("end:a", 20.0),
        ("max:a+b", 22.0),
        ("min:a+b", 3.0),
        ("sum:b+c", 50.5),
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


def test_the_last_tenth_is_of_the_values_or_of_the_steps() -> None:
    """A tenth of 20 steps is two; of ten values in the first ten steps it is the last one."""
    rows = [{"a": float(i)} if i <= 10 else {"b": 0.0} for i in range(1, 21)]
    assert Measure.read("last:a").of(rows) == 10.0
    assert math.isnan(Measure.read("tenth:a").of(rows))
    rows[19] = {"a": 30.0}
    assert (Measure.read("last:a").of(rows), Measure.read("tenth:a").of(rows)) == (30.0, 30.0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_both_spellings_of_a_reduction_are_one_measure(reduction: str) -> None:
    short = Measure.read(f"{reduction}:a+b")
    assert short == Measure.read(f"training:a+b:{reduction}")
    assert (short.text, short.metrics) == (f"{reduction}:a+b", ["a", "b"])


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
        ("accuracy:greeedy", "write accuracy, or accuracy: and one of greedy, sampled"),
        ("training:reward/mean", "end it with one of first, last, mean"),
        ("training::mean", "write training:METRIC:REDUCTION"),
        ("log_ratio:a", "write log_ratio:A:B"),
        ("when:a:b", "write when:METRIC:OTHER:LEVEL"),
        ("when:a::0.5", "write when:METRIC:OTHER:LEVEL"),
        ("when:a:b:c", "write when:METRIC:OTHER:LEVEL with a number as LEVEL"),
        ("shift:correct", "write shift:MODE/METRIC with one of greedy"),
        ("evaluated:greedy/", "write evaluated:MODE/METRIC"),
        ("also:nanobias", "write also:TASK/MODE/METRIC with one of greedy, sampled"),
        ("also:nanobias/greedy", "write also:TASK/MODE/METRIC"),
        ("also_shift:nanobias/geedy/correct", "write also_shift:TASK/MODE/METRIC"),
        ("equal:hours", "write equal: and one of updates, tokens, seconds, flops"),
        ("pass:0", "write pass:K with a positive number"),
        ("pass_gain:many", "write pass_gain:K with a positive number"),
        ("lasting:reward_colapse", "write lasting, or lasting: and one of accuracy_collapse"),
        ("wrong_length:sampled", "write wrong_length alone"),
        ("rate:worst", "write rate: and one of loss-at-half, loss-at-twice, octaves"),
        ("best_rate:best_rate:accuracy", "unknown kind 'best_rate'"),
        *((f"reach{target}", "a share above 0 and at most 1, such as 0.6") for target in NO_TARGETS),
    ],
)
def test_what_is_no_outcome(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Measure.read(text)


def test_only_training_steps_are_read_where_nothing_else_is_there() -> None:
    for kind in KINDS.keys() - {*OF_STEPS}:
        with pytest.raises(
            ValueError, match=f"unknown kind '{kind}'; known: training, log_ratio, when, first"
        ):
            Measure.read(kind, OF_STEPS)
