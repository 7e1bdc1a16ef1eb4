"""Curves of a finding that sweeps a setting: which findings have them, and what is drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from helpers.findings import finding, question, recorded
from scipy import stats

from grpobench.analysis.findings.curves import draw_curves, swept
from grpobench.analysis.findings.record import Record

RATES = ("1e-4", "3e-4", "1_5e-3")


def record(
    arms: Mapping[str, Sequence[float]], compared: Mapping[str, float], best_rate: bool = False
) -> Record:
    return recorded(finding(question(contrast=dict(compared), unit="points", best_rate=best_rate)), arms)


@pytest.fixture
def lora() -> Record:
    arms = {f"full+learning_rate-{rate}": [0.5 + i / 10, 0.6, 0.7] for i, rate in enumerate(RATES)}
    arms |= {f"lora+learning_rate-{rate}": [0.4, 0.45, 0.5 + i / 5] for i, rate in enumerate(RATES)}
    return record(arms, {"lora+*-1_5e-3": 1, "full+*-1e-4": -1})


def test_arms_by_the_value_of_the_one_setting_that_they_sweep(lora: Record) -> None:
    key, curves = swept(lora, lora.result())
    assert key == "learning_rate"
    assert {arm: list(curve) for arm, curve in curves.items()} == {
        arm: [1e-4, 3e-4, 1.5e-3] for arm in ("full", "lora")
    }
    assert curves["lora"][1.5e-3].values == (0.4, 0.45, 0.9)


def test_a_test_at_best_rates_has_curves_over_multiples_of_the_own_rate() -> None:
    means = {"a": (0.5, 0.7, 0.6), "b": (0.3, 0.2, 0.1)}  # at half, once and twice
    arms = {
        arm + suffix: [mean, mean + 0.01, mean + 0.02]
        for arm, by_rate in means.items()
        for suffix, mean in zip(("+rate-x0.5", "", "+rate-x2"), by_rate, strict=True)
    }
    made = record(arms, {"a": 1, "b": -1}, best_rate=True)
    key, curves = swept(made, made.result())
    assert key == "multiple of the own learning rate"
    assert {arm: [*curve] for arm, curve in curves.items()} == {arm: [0.5, 1, 2] for arm in "ab"}
    (axes,) = draw_curves(made, made.result()).figure.axes
    rings = [line for line in axes.lines if line.get_markersize() == 9]
    marked = [(x, y) for line in rings for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    assert marked == [(1, pytest.approx(71)), (0.5, pytest.approx(31))]  # the best of each


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b"],
        ["a+rate-1", "a+rate-2", "b+rate-1", "b+rate-2"],  # two values are no curve
        ["a+rate-1+size-2", "a+rate-2+size-2", "a+rate-3+size-2"],
        ["a+rate-1", "a+rate-2", "a+rate-3", "a+size-1", "a+size-2", "a+size-3"],
        ["a+name-nano", "a+name-big", "a+name-other"],
    ],
)
def test_others_have_no_curve(names: list[str]) -> None:
    made = record({name: [0.5, 0.6, 0.7] for name in names}, {names[0]: 1, names[1]: -1})
    assert swept(made, made.result()) == ("", {})
    with pytest.raises(ValueError, match="finding f sweeps no setting"):
        draw_curves(made, made.result())


def test_an_arm_beside_the_sweep_is_left_out(lora: Record) -> None:
    states = {**lora.states, ("base", "t", 0): "finished"}
    values = {"a is better": {**lora.values["a is better"], ("base", "t", 0): 0.1}}
    more = dataclasses.replace(lora, states=states, values=values)
    assert set(swept(more, more.result())[1]) == {"full", "lora"}


def test_figure_has_means_intervals_seeds_and_what_is_compared(lora: Record) -> None:
    drawn = draw_curves(lora, lora.result())
    (axes,) = drawn.figure.axes
    full = next(line for line in axes.lines if list(line.get_xdata()) == [1e-4, 3e-4, 1.5e-3])
    assert list(full.get_ydata()) == pytest.approx([60, 190 / 3, 200 / 3])
    low, high = axes.collections[0].get_segments()[1][:, 1]
    seeds = np.array([60, 60, 70.0])
    half = stats.t.ppf(0.975, 2) * seeds.std(ddof=1) / np.sqrt(3)
    assert (low, high) == pytest.approx((seeds.mean() - half, seeds.mean() + half))
    rings = [line for line in axes.lines if line.get_markersize() == 9]
    marked = [(x, y) for line in rings for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    assert np.array(marked) == pytest.approx(np.array([(1e-4, 60), (1.5e-3, 175 / 3)]))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1e−4", "3e−4", "1.5e−3"]
    assert "3 seeds for each value" in drawn.caption
