"""Krippendorff's alpha against published numbers and its definition."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.statistics.agreement import krippendorff_alpha

NONE = None
OBSERVERS = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, NONE, NONE, NONE),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NONE, 3),
    (NONE, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NONE),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NONE),
)
"""Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), section D: 4 observers, 12 units."""


def test_alpha_of_the_published_example() -> None:
    units = [[rating for rating in unit if rating is not None] for unit in zip(*OBSERVERS, strict=True)]
    assert round(krippendorff_alpha(units), 3) == 0.849  # interval alpha of that section


@given(st.lists(st.lists(st.integers(0, 10), max_size=4), max_size=8))
def test_alpha_is_its_definition(units: list[list[int]]) -> None:
    paired = [unit for unit in units if len(unit) > 1]
    every = [rating for unit in paired for rating in unit]
    if len(set(every)) < 2:
        assert math.isnan(krippendorff_alpha(units))
        return
    within = sum(sum((a - b) ** 2 for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in paired)
    between = sum((a - b) ** 2 for a, b in permutations(every, 2)) / (len(every) - 1)
    # abs: double precision of at most 32 small integers, relative to alpha's own scale of 1
    assert krippendorff_alpha(units) == pytest.approx(1 - within / between, abs=1e-12)


def test_alpha_does_not_depend_on_origin_and_unit_of_the_scale() -> None:
    units = [[1.0, 2.0], [5.0, 5.0], [9.0, 7.0]]
    moved = [[1e6 + 3 * rating for rating in unit] for unit in units]
    # abs: squares of differences of 1e6 keep about ten digits
    assert krippendorff_alpha(moved) == pytest.approx(krippendorff_alpha(units), abs=1e-8)


def test_random_verdicts_have_no_agreement_and_equal_ones_have_all() -> None:
    draws = np.random.default_rng(0)
    assert krippendorff_alpha([[1, 1], [0, 0, 0], [0.5, 0.5]]) == 1
    noise = krippendorff_alpha(draws.random((4000, 2)).tolist())
    assert abs(noise) < 0.06  # standard error 1/√4000 = 0.016
