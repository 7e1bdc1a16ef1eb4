"""Seeds that are added until a comparison is resolved: the errors hold whatever the looks show.

Locked here: with one look the p is the plain test's; a level's rejections are among those of a higher one;
arms that are one are called different in at most 5 % of 2,000 experiments that stop as soon as they can, and
arms a margin apart are called equivalent in no more; looking at the full level each time would not hold.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.pages import drawing
from helpers.synthetic import Synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.analysis.report.report import write_report
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.interim import FILE, InterimPlan, read_plan
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.permutation import sign_flip_p
from grpobench.analysis.statistics.sequential import (
    rejects,
    sequential_equivalence_p,
    sequential_p,
    spending,
    stages,
)

SHARES = st.floats(-0.1, 0.1, allow_nan=False).map(lambda value: round(value, 4))


def plan(counts: tuple[int, ...], pairs: int = 1, margin: float = 2.0) -> InterimPlan:
    looks, weights = spending(counts, pairs, 0.05)
    return InterimPlan(tuple(range(counts[-1])), looks, weights, 0.05, pairs, margin, counts[-1] - counts[-2])


def test_the_level_is_spent_with_the_square_of_the_seeds_and_in_full() -> None:
    # 6 of 12 seeds may spend (6/12)² · .05 = .0125, but their smallest p is .031: left out, and 8 seeds get
    # theirs
    looks, weights = spending((6, 8, 10, 12), 1, 0.05)
    assert looks == (8, 10, 12)
    assert weights == pytest.approx((64 / 144, 36 / 144, 44 / 144)) and sum(weights) == pytest.approx(1)
    assert spending((3, 5), 1, 0.05) == ((), ())  # 2/32 is above .05 whatever is left
    assert spending((8,), 6, 0.05) == ((8,), (1.0,))
    assert spending((8,), 7, 0.05) == ((), ())  # 2/256 is above .05/7


def test_a_single_look_is_the_plain_test() -> None:
    values = np.random.default_rng(0).normal(0.02, 0.03, size=9)
    single_look = InterimPlan(tuple(range(9)), (9,), (1.0,), 0.05, 1, 2.0, 1)
    assert sequential_p(values, single_look) == pytest.approx(sign_flip_p(values), abs=2**-25)
    assert sequential_p(values[:8], single_look) == 1  # before the first analysis


def test_two_looks_by_hand() -> None:
    # eight seeds of one sign at the first of two looks with half the level each: p = 2/256, rejected from a
    # level of 4/256 on
    halves = InterimPlan(tuple(range(9)), (8, 9), (0.5, 0.5), 0.05, 1, 2.0, 1)
    assert sequential_p(np.ones(8), halves) == pytest.approx(4 / 256, abs=2**-25)
    # a ninth like them: two of 512 patterns, within half the level from 4/512 on
    assert sequential_p(np.ones(9), halves) == pytest.approx(4 / 512, abs=2**-25)
    # a ninth of the other sign: the mean keeps its own, and the first analysis's rejection stands
    turned = np.array([*np.ones(8), -1.0])
    assert sequential_p(turned, halves) == pytest.approx(4 / 256, abs=2**-25)


@settings(max_examples=40, deadline=None)
@given(st.lists(SHARES, min_size=6, max_size=11), st.floats(0.001, 0.5), st.floats(1, 2))
def test_what_a_level_rejects_a_higher_one_does(values: list[float], level: float, by: float) -> None:
    design = plan((6, 7, 8, 9, 10, 11))
    reached = stages(values, design.analyses, design.weights)
    if rejects(reached, level):
        assert rejects(reached, by * level)
    p = sequential_p(values, design)
    assert sequential_p([-value for value in values], design) == p
    assert rejects(reached, p) or p == 1
    assert not rejects(reached, p - 2**-25)  # the search ends within 2⁻²⁶ of the smallest level


experiments = pytest.mark.parametrize("many", [500, pytest.param(4000, marks=pytest.mark.slow)])


def most(many: int) -> float:
    """Five percent and three errors of it over so many experiments: .079 over 500, .060 over 4,000."""
    return float(0.05 + 3 * (0.05 * 0.95 / many) ** 0.5)


@experiments
def test_identical_arms_are_called_different_in_at_most_five_percent(many: int) -> None:
    design, rng = plan((6, 8, 10, 12)), np.random.default_rng(0)
    rejected = plain = 0
    for _ in range(many):
        values = rng.standard_t(3, size=12)  # heavy tails: nothing is assumed of the shape but its symmetry
        rejected += rejects(stages(values, design.analyses, design.weights), 0.05)
        plain += any(sign_flip_p(values[:look]) <= 0.05 for look in (6, 8, 10, 12))
    assert rejected / many <= most(many)
    assert rejected / many >= 0.025  # and the level is used
    assert plain / many > 0.07  # four looks at the full level each would not hold


@experiments
def test_arms_a_margin_apart_are_equivalent_in_at_most_five_percent(many: int) -> None:
    design, rng = plan((6, 8, 10)), np.random.default_rng(2)
    wrong = sum(
        sequential_equivalence_p(rng.normal(0.02, 0.01, 10), 0.02, design) <= 0.05 for _ in range(many)
    )
    assert wrong / many <= most(many)


def test_only_seeds_of_complete_interim_analyses_count() -> None:
    design = plan((6, 8, 10))  # analyses at 8 and 10 seeds
    first = {seed: 0.6 + 0.001 * seed for seed in range(10)}
    second = dict.fromkeys(range(10), 0.5)
    (pair,) = compare("t", {"A": first, "B": second}, plan=design)
    assert pair.seeds == tuple(range(10)) and pair.verdict == "better"
    (pair,) = compare("t", {"A": first, "B": {s: v for s, v in second.items() if s != 8}}, plan=design)
    assert pair.seeds == tuple(range(8)) and pair.verdict == "better"  # 2/256 over .64 of .05
    (pair,) = compare("t", {"A": {s: first[s] for s in range(6)}, "B": second}, plan=design)
    assert pair.verdict == "unresolved" and pair.p == 1
    assert "at interim analysis 0 of 2, 6 of 10 seeds" in pair.needs


def test_a_report_shows_the_plan_and_its_p_values_allow_for_it(tmp_path: Path) -> None:
    root = Synthetic(  # type: ignore[arg-type]
        steps=8,
        every=4,
        problems=8,
        test_problems=8,
        arms=("a", "b"),
        tasks=("arithmetic",),
        seeds=range(8),
        accuracy=lambda arm, task, seed: 0.5 + (0.1 + 0.001 * seed) * (arm == "a"),
    ).write(tmp_path)
    design = plan((6, 8, 10))
    (root / FILE).write_text(design.text())
    assert read_plan(root) == design
    with drawing("final_accuracy"):
        page = write_report(root, ["html", "json"]).read_text()
    assert "at 8 seeds 0.032, 10 seeds 0.018." in page and "1 of 2 interim analyses were made" in page
    content = json.loads((root / "report" / "report.json").read_text())
    (pair,) = content["comparisons"]
    assert pair["verdict"] == "better" and pair["p"] == pytest.approx(2 / 256 / 0.64, abs=2**-25)
    assert content["plan"]["analyses"] == [8, 10]
    with pytest.raises(
        LogError, match="a margin of 2 points was fixed before the first interim analysis, not 3"
    ):
        load(root, 3.0)
    (root / FILE).write_text(replace(design, analyses=(10, 8)).text())
    with pytest.raises(LogError, match=r"interim\.json: not a plan of interim analyses"):
        load(root)
