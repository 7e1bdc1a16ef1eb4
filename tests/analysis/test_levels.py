"""Levels and power that docs/comparisons.md ("Profiles") speaks of. `pytest -s` prints the tables."""

from __future__ import annotations

import pytest

from grpobench.analysis.statistics.levels import (
    OUTCOMES,
    level_table,
    power_table,
    simulate_level,
    simulate_power,
)

HELD = sorted(OUTCOMES.keys() - {"half_collapsing"})
REPETITIONS = 150


@pytest.mark.parametrize("seeds", [3, 4, 8])
@pytest.mark.parametrize("name", HELD)
def test_equal_means_are_rarely_called_different(name: str, seeds: int) -> None:
    level = simulate_level(OUTCOMES[name], seeds, REPETITIONS)
    assert level.single <= 0.05 and level.false_discoveries <= 0.05


@pytest.mark.parametrize("seeds", [4, 8])
@pytest.mark.parametrize("name", HELD)
def test_no_probe_of_equal_algorithms_has_a_call_too_often(name: str, seeds: int) -> None:
    """Benjamini and Hochberg for dependent pairs where no pair differs; three errors of the simulation."""
    level = simulate_level(OUTCOMES[name], seeds, REPETITIONS)
    assert level.any_call <= 0.05 + 3 * (0.05 * 0.95 / REPETITIONS) ** 0.5


def test_what_does_not_hold() -> None:
    """Three seeds without a collapse hide it: .8³ = .51 of the algorithms that collapse seem steady."""
    assert simulate_level(OUTCOMES["half_collapsing"], 3, 50).single > 0.1
    assert simulate_level(OUTCOMES["collapsing"], 3, REPETITIONS).any_call > 0.05


def test_power_where_the_sign_flip_test_has_none_and_where_it_has() -> None:
    moderated, exact = simulate_power(4, 2, 50)
    assert moderated > 0.5 and exact == 0  # 2/2⁴ = .125
    moderated, exact = simulate_power(8, 1, 50)
    assert abs(moderated - exact) < 0.1


def test_tables_have_a_row_for_each_setting() -> None:
    levels, powers = level_table(repetitions=100), power_table(repetitions=50)
    print(f"\n{levels}\n\n{powers}")
    assert len(levels.splitlines()) == 2 + 3 * len(OUTCOMES) and len(powers.splitlines()) == 2 + 2 * 4
    assert powers.splitlines()[4].startswith("| 4 | 2 | 0.6")
