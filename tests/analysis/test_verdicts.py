"""Better, worse, equivalent, unresolved: what each word takes, and how often it is wrong.

Locked here: the one-sided tests are SciPy's permutation test; a wider margin never takes an equivalence back;
the verdict turns with the arms; no seeds below the tests' minimum give a word; errors stay within 5 %.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.edits import edit
from helpers.pages import drawing
from helpers.synthetic import Synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpobench.analysis.report.facts import gather
from grpobench.analysis.report.report import write_report
from grpobench.analysis.report.terminal import describe_task
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import compare, compare_with_base
from grpobench.analysis.statistics.permutation import equivalence_p, seeds_needed
from grpobench.analysis.statistics.verdicts import TURNED

SHARES = st.floats(-0.1, 0.1, allow_nan=False).map(lambda value: round(value, 4))
SMALL = {"steps": 8, "every": 4, "problems": 8, "test_problems": 8}


def arms(differences: list[float] | np.ndarray) -> dict[str, dict[int, float]]:
    return {
        "A": {i: 0.5 + d for i, d in enumerate(differences)},
        "B": dict.fromkeys(range(len(differences)), 0.5),
    }


def test_equivalence_p_counts_patterns_by_hand() -> None:
    # margin 2: d + 2 = (5, 3, 1) has the largest sum of 8 patterns, and 2 − d = (−1, 1, 3) has 3
    # sums of (±3 ±1 ±1): 5, 3, 3, 1, −1, −3, −3, −5, so three of eight reach it
    assert equivalence_p([3, 1, -1], 2) == 3 / 8
    with pytest.raises(ValueError, match="margin > 0"):
        equivalence_p([0.1], 0)


def test_a_difference_of_the_margin_is_not_excluded_where_the_interval_leaves_the_margin() -> None:
    values = [0.019, -0.019, 0.019, -0.019, 0.0]  # s = .019, t(4) s/√5 = .0236; all five are inside ±.02
    (pair,) = compare("t", arms(values))
    assert pair.p_equivalence_holm == 1 / 32 and pair.high == pytest.approx(0.0236, abs=1e-4)
    assert pair.verdict == "unresolved"
    assert (
        "equivalence within 2 points: Holm p 0.0312, but the interval reaches beyond 2 points" in pair.needs
    )
    (wide,) = compare("t", arms(values), margin=0.024)
    assert wide.verdict == "equivalent" and wide.words == "no difference of 2.4 points or more"


@pytest.mark.parametrize("seed", range(4))
def test_equivalence_p_is_the_larger_of_scipys_two_one_sided_permutation_tests(seed: int) -> None:
    x = np.random.default_rng(seed).normal(0.3, 1, size=9)
    p = [
        stats.permutation_test(
            (shifted, np.zeros(9)),
            lambda a, b, axis: np.mean(a - b, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=np.inf,
            alternative="greater",
        ).pvalue
        for shifted in (x + 1, 1 - x)
    ]
    assert equivalence_p(x, 1) == pytest.approx(max(p), abs=1e-12)  # both count all 2^9 patterns


def test_many_seeds_agree_with_the_t_version_of_the_two_tests() -> None:
    x = np.random.default_rng(3).normal(0.002, 0.02, size=60)
    by_t = max(
        stats.ttest_1samp(x + 0.008, 0, alternative="greater").pvalue,
        stats.ttest_1samp(x - 0.008, 0, alternative="less").pvalue,
    )
    # 100,000 random patterns: error of a share of .05 is .0007; the two tests differ by O(1/n)
    assert equivalence_p(x, 0.008) == pytest.approx(by_t, abs=0.004)


@settings(max_examples=60, deadline=None)
@given(st.lists(SHARES, min_size=1, max_size=9), st.floats(0.001, 0.05), st.floats(1, 3))
def test_a_wider_margin_never_takes_an_equivalence_back(
    values: list[float], margin: float, by: float
) -> None:
    assert equivalence_p(values, by * margin) <= equivalence_p(values, margin)
    (narrow,) = compare("t", arms(values), margin=margin)
    (wide,) = compare("t", arms(values), margin=by * margin)
    if narrow.verdict != "unresolved":
        assert wide.verdict == narrow.verdict
    assert not narrow.power > wide.power and not narrow.power_equivalence > wide.power_equivalence


@settings(max_examples=60, deadline=None)
@given(st.lists(SHARES, min_size=1, max_size=9))
def test_the_verdict_turns_with_the_arms(values: list[float]) -> None:
    given_arms = arms(values)
    (pair,) = compare("t", given_arms)
    (other,) = compare("t", dict(reversed(given_arms.items())))
    assert other.verdict == TURNED.get(pair.verdict, pair.verdict) == pair.turned().verdict
    assert (other.p, other.p_equivalence) == (pair.p, pair.p_equivalence)
    assert other.effect == -pair.effect


@pytest.mark.parametrize(("pairs", "needed"), [(1, 5), (3, 6), (6, 7), (18, 9)])
def test_equivalence_takes_one_seed_less_than_a_difference(pairs: int, needed: int) -> None:
    # pairs / 2^n ≤ .05 against 2 · pairs / 2^n ≤ .05
    assert seeds_needed(0.05, pairs, sides=1) == needed == seeds_needed(0.05, pairs) - 1
    assert power.power_of_equivalence(needed - 1, pairs, 1e9) == 0
    assert power.power_of_equivalence(needed, pairs, 1e9) == 1
    assert math.isnan(power.detectable_margin(needed - 1, pairs)) and power.power(needed, pairs, 1e9) == 0


def test_a_difference_within_the_margin_is_better_and_says_how_little() -> None:
    (pair,) = compare("t", arms([0.004, 0.005, 0.006, 0.005, 0.004, 0.006]))
    assert pair.verdict == "better" and pair.text == "A > B"
    assert pair.needs == (
        "adjusted p 0.0312 over 6 paired seeds and 1 pair; the difference is within 2 points: Holm p 0.0156"
    )


def test_noise_wider_than_margin_is_unresolved_and_tells_showable_margin() -> None:
    values = [0.05, -0.04, 0.03, -0.05, 0.04, -0.03, 0.02, -0.02]  # s = .0395
    (pair,) = compare("t", arms(values))
    assert pair.verdict == "unresolved"
    shown = 100 * power.detectable_margin(8, 1) * float(np.std(values, ddof=1))
    assert f"8 seeds can show that equal arms are within {shown:.1f} points at best" in pair.needs
    assert "equivalence within 2 points: Holm p" in pair.needs


@pytest.mark.parametrize(("seeds", "pairs"), [(6, 1), (8, 1), (10, 3)])
def test_the_margin_that_can_be_shown_is_shown_in_four_of_five_repetitions(seeds: int, pairs: int) -> None:
    rng = np.random.default_rng([seeds, pairs])
    margin = power.detectable_margin(seeds, pairs)
    share = np.mean([pairs * equivalence_p(rng.standard_normal(seeds), margin) <= 0.05 for _ in range(1000)])
    assert share == pytest.approx(
        0.8, abs=0.045
    )  # three errors of .8 over 1,000, √(.16/1000) = .0126, and .004
    assert power.power_of_equivalence(seeds, pairs, margin) == pytest.approx(0.8, abs=1e-3)


def test_the_t_version_that_stands_in_for_many_patterns_is_nearly_right() -> None:
    exact = np.maximum(power._thresholds(10, 51), power._thresholds(10, 51, side=-1))
    by_t = stats.t.isf(51 / 1024, 9)
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((20_000, 10))
    shown = np.abs(drawn.mean(axis=1)) + by_t * drawn.std(axis=1, ddof=1) / math.sqrt(10)
    # the permutation test lets in a little more of the same normal samples than t: 2 % of the margin
    assert np.quantile(exact, 0.8) == pytest.approx(np.quantile(shown, 0.8), rel=0.02)


def test_power_to_find_the_margin_is_that_of_the_test_itself() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(250):
        (pair,) = compare("t", arms(0.02 * (1 + rng.standard_normal(8))))
        hits += pair.verdict == "better"
    assert hits / 250 == pytest.approx(power.power(8, 1, 1.0), abs=0.092)  # three errors of a share near .6


def test_arms_a_margin_apart_are_equivalent_in_at_most_alpha_of_tries() -> None:
    rng = np.random.default_rng(0)
    wrong = sum(equivalence_p(rng.normal(0.02, 0.01, size=9), 0.02) <= 0.05 for _ in range(2000))
    assert 50 <= wrong <= 130  # 5 % is 100; three errors of √(2000 · .05 · .95) = 9.7


def test_an_arm_is_held_against_its_own_base() -> None:
    base = {"A": {s: 0.4 + s / 100 for s in range(6)}, "B": dict.fromkeys(range(6), 0.4)}
    after = {"A": {s: 0.6 + s / 100 for s in range(6)}, "B": {s: 0.4 + 0.001 * (s - 2) for s in range(6)}}
    first, second = compare_with_base("t", after, base, margin=0.02)
    assert (first.first, first.second, first.pairs) == ("A", "base", 2)
    assert first.effect == pytest.approx(0.2) and second.effect == pytest.approx(0.0005)
    # two arms: 2/64 for a difference by max-T, 2 · 1/64 for equivalence by Holm
    assert (first.verdict, second.verdict) == ("better", "equivalent")
    assert first.p_adjusted == 2 / 64 == second.p_equivalence_holm
    assert compare_with_base("t", after, {"A": base["A"]})[0].verdict == "better"  # alone: 2/64


@pytest.fixture(scope="module")
def close(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms that differ by half a point or less, over eight seeds."""
    return Synthetic(  # type: ignore[arg-type]
        **SMALL,
        arms=("a", "b"),
        tasks=("arithmetic",),
        seeds=range(1, 9),
        accuracy=lambda arm, task, seed: 0.5 + 0.01 * seed + (0.005 * (-1) ** seed if arm == "a" else 0),
    ).write(tmp_path_factory.mktemp("close"))


def test_only_the_keys_of_files_have_the_word_equivalent(close: Path) -> None:
    with drawing("differences"):
        page = write_report(close, ["html", "csv", "tex", "json"]).read_text()
    wording = "no difference of 2 points or more"
    assert f"<b>{wording} between a and b</b> on arithmetic: −0.0 points" in page.replace("+0.0", "−0.0")
    assert not re.search(r"\bequivalent\b", re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL))
    assert "within 2 points: Holm p 0.00391 over 8 paired seeds" in page  # one pattern of 2^8
    content = json.loads((close / "report" / "report.json").read_text())
    assert content["margin"] == 0.02 and [pair["verdict"] for pair in content["comparisons"]] == [
        "equivalent"
    ]
    assert [pair["second"] for pair in content["against_base"]] == ["base", "base"]
    assert {pair["verdict"] for pair in content["against_base"]} == {"better"}  # .2 before, .5 after
    frame = pd.read_csv(close / "report" / "tables" / "comparisons.csv")
    assert frame["verdict"].tolist() == ["equivalent"] and frame["text"].tolist() == ["a ≈ b"]
    assert wording in content["headline"] and wording in describe_task(
        "arithmetic", gather(load(close)).numbers.compared
    )
    table = (close / "report" / "tables" / "comparisons.tex").read_text()
    assert wording in table and "equivalent" not in table


def test_a_readers_margin_takes_the_place_of_the_recipes(close: Path, tmp_path: Path) -> None:
    root = shutil.copytree(close, tmp_path / "copy")
    edit(root / "experiment.json", lambda described: described.update(margin=0.1))
    experiment = load(root)
    assert experiment.margin == 0.001
    (pair,) = gather(experiment).numbers.compared
    assert pair.verdict == "unresolved" and "equivalence within 0.1 points" in pair.needs
    (pair,) = gather(replace(experiment, margin=0.02)).numbers.compared
    assert pair.verdict == "equivalent" == gather(load(root, 2.0)).numbers.compared[0].verdict
    for bad in (0.0, 100.0, math.nan):
        with pytest.raises(LogError, match="margin: must be points of accuracy"):
            load(root, bad)
