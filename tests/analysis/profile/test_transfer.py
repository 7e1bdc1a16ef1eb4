"""Profiles at two scales: which algorithms and pairs are compared, and what is counted."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from helpers.profiles import RATE, probe, rows
from scipy import stats

from grpobench.analysis.profile.figures import draw_probes
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.transfer import ProbeTransfer, transfers
from grpobench.analysis.statistics import ranks

PROBES = {name: probe(name) for name in ("learn", "length")}


def rows_of(means: Mapping[str, Mapping[str, float]]) -> dict[str, list[ProbeOutcome]]:
    """Eight seeds within ± 0.01 of each algorithm's mean on each probe."""
    spread = np.linspace(-0.01, 0.01, 8)
    return {
        algorithm: [row for name, mean in of.items() for row in rows(algorithm, name, list(mean + spread))]
        for algorithm, of in means.items()
    }


def moved(
    first: Mapping[str, Mapping[str, float]], second: Mapping[str, Mapping[str, float]]
) -> list[ProbeTransfer]:
    rates = tuple({name: {"policy": RATE} for name in of} for of in (first, second))
    return transfers((rows_of(first), rows_of(second)), (PROBES, PROBES), (rates[0], rates[1]))


def test_orders_are_counted_among_the_algorithms_of_both_scales() -> None:
    """By hand: a < b < c are all told apart at the first scale. At the second a and b change places, c stays
    above both; d is at one scale only."""
    first = {"a": {"learn": 0.1}, "b": {"learn": 0.5}, "c": {"learn": 0.9}, "d": {"learn": 0.0}}
    second = {"a": {"learn": 0.6}, "b": {"learn": 0.3}, "c": {"learn": 0.8}}
    (transfer,) = moved(first, second)
    assert list(transfer.first) == list(transfer.second) == ["a", "b", "c"]
    assert (transfer.told_apart, transfer.same, transfer.reversed, transfer.other) == (3, 2, 1, 0)
    assert transfer.rank.value == pytest.approx(stats.spearmanr([0.1, 0.5, 0.9], [0.6, 0.3, 0.8]).statistic)
    assert math.isnan(transfer.rank.low)  # three algorithms have no interval


def test_what_one_scale_alone_tells_apart_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "DRAWS", 200)
    monkeypatch.setattr(ranks, "FEWEST", 4)
    first = {name: {"learn": value} for name, value in zip("abcd", (0.1, 0.5, 0.5, 0.9), strict=True)}
    second = {name: {"learn": value} for name, value in zip("abcd", (0.2, 0.2, 0.6, 0.9), strict=True)}
    (transfer,) = moved(first, second)
    assert transfer.told_apart == 5  # all pairs but b and c
    assert (transfer.same, transfer.reversed) == (4, 0)  # all of them but a and b
    assert transfer.other == 1  # b and c
    assert -1 <= transfer.rank.low <= transfer.rank.value <= transfer.rank.high <= 1


def test_a_probe_needs_three_algorithms_at_both_scales() -> None:
    means = {name: {"learn": 0.1, "length": 0.2} for name in "abc"}
    fewer = {"a": {"learn": 0.1, "length": 0.1}, "b": {"learn": 0.5}, "c": {"learn": 0.9}}
    assert [transfer.probe.name for transfer in moved(means, fewer)] == ["learn"]
    assert moved(means, {}) == []


def test_a_panel_for_each_probe_and_a_name_for_each_algorithm() -> None:
    means = {
        name: {"learn": value, "length": 1 - value}
        for name, value in zip("abc", (0.1, 0.5, 0.9), strict=True)
    }
    drawing = draw_probes(moved(means, means))
    titles = [axes.get_title() for axes in drawing.figure.axes if axes.axison]
    assert titles == ["the learn", "the length"]
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert "3 algorithms on 2 probes" in drawing.caption
