"""Findings over several bases: an interval is over bases, and over seeds that these share.

With one base, an interval over seeds is about its weights: three bases whose effects are 40, 30 and 2 points
have each a tight interval over seeds, and a wide one over bases. Two seeds that cost 9 and 32 points on every
base have a tight interval over bases, and say little.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.findings import finding, question
from scipy import stats

from grpobench.analysis.findings.bases import mean_over_bases, numbered, split_arm
from grpobench.analysis.findings.contrasts import SEEDS_PER_BASE, repetitions
from grpobench.analysis.findings.description import bases_words, effect_words
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.planned import planned_of
from grpobench.analysis.findings.result import Result, as_row
from grpobench.analysis.statistics.intervals import seed_mean
from grpobench.runs.commands.finding import answer
from grpobench.runs.settings.findings import read_finding
from grpobench.runs.tools.strict import ConfigError

JITTER = (-0.01, 0.0, 0.01, 0.0)


def judged(
    effects: Sequence[float], of_seeds: Sequence[float] = JITTER, shared: bool = False, expect: str = "higher"
) -> Result:
    """Runs of `a` and `b` on as many bases, `a` above `b` by each effect and by what each seed adds, whether
    bases share these seeds or have as many of their own."""
    values: dict[Key, float] = {}
    for base, effect in enumerate(effects):
        for index, of_seed in enumerate(of_seeds):
            seed = index if shared else base * len(of_seeds) + index
            values[f"a+name-{base}", "t", seed] = 0.5 + effect + of_seed
            values[f"b+name-{base}", "t", seed] = 0.5
    test = question(expect=expect, unit="points")
    return judge(finding(test, bases="name"), {test.name: values})


def test_the_interval_is_over_bases() -> None:
    test_result = judged((0.4, 0.3, 0.2)).primary
    interval = stats.ttest_1samp([0.4, 0.3, 0.2], 0).confidence_interval(0.95)
    assert test_result.effect.value == pytest.approx(0.3)
    assert (test_result.effect.low, test_result.effect.high) == pytest.approx((interval.low, interval.high))
    assert test_result.bases == 3 and len(test_result.seeds) == 12
    assert test_result.p == pytest.approx(2 / 2**12)  # on these bases: all twelve pairs have one sign
    assert test_result.verdict == "supported"
    assert "over 3 bases p 0.25 (smallest possible 0.25)" in test_result.needs
    row = as_row(judged((0.4, 0.3, 0.2)))["tests"][0]
    assert effect_words(row) == "+30.0 points (+5.2 to +54.8; 3 bases)"
    assert bases_words(row) == "3 bases with seeds of their own: intervals are over bases"


def test_a_seed_that_bases_share_is_one_repetition() -> None:
    """Eight seeds on each of three bases: 24 pairs of one sign, and eight signs to flip. On every base a seed
    costs 9 or 32 points: two of them say nothing."""
    test_result = judged((0.4, 0.3, 0.2), JITTER * 2, shared=True).primary
    assert len(test_result.seeds) == 24 and len(test_result.repetitions) == 8
    assert test_result.p == pytest.approx(2 / 2**8) and test_result.verdict == "supported"
    row = as_row(judged((0.4, 0.3, 0.2), JITTER * 2, shared=True))["tests"][0]
    assert bases_words(row) == "3 bases, which share seeds: intervals are over bases and seeds"
    assert row["seeds"] == [*range(8)] * 3 and row["base_of_each"] == [0] * 8 + [1] * 8 + [2] * 8
    two = judged((0.01, 0.0, -0.01), (0.09, 0.32), shared=True).primary
    assert two.p == 0.5 and two.verdict == "unresolved"
    assert two.effect.low < -0.5 and two.effect.high > 0.9  # t(1) is 12.7
    assert judged((0.01, 0.0, -0.01), (0.09, 0.32)).primary.effect.low > 0.15


def test_seeds_of_a_base_repeat_alone_and_shared_ones_together() -> None:
    contrasts = {3: 1.0, 4: 3.0, SEEDS_PER_BASE + 3: 2.0, SEEDS_PER_BASE + 5: 7.0}
    assert repetitions(contrasts) == {3: 1.5, 4: 3.0, 5: 7.0}
    assert mean_over_bases(contrasts).value == 3.25  # of 2 and 4.5
    one_seed = {3: 1.0, SEEDS_PER_BASE + 3: 2.0}
    assert mean_over_bases(one_seed).value == 1.5 and np.isnan(mean_over_bases(one_seed).low)
    assert mean_over_bases({3: 1.0, 4: 3.0}) == seed_mean([1.0, 3.0])


def test_runs_on_several_bases_tell_how_far_these_differ() -> None:
    """Three bases whose effects are 40, 30 and 20 points. Bases with four seeds of their own have twelve
    repetitions, with eight shared ones eight, of which each is a mean over bases."""
    apart = planned_of(judged((0.4, 0.3, 0.2)).primary)
    assert (apart.seeds, apart.bases, apart.seeds_per_base) == (12, 3, 4)
    assert apart.base_sd == pytest.approx(0.1) and apart.sd > 0.08
    shared = planned_of(judged((0.4, 0.3, 0.2), JITTER * 2, shared=True).primary)
    assert (shared.seeds, shared.seeds_per_base) == (8, 8)
    assert shared.base_sd == pytest.approx(0.1) and shared.sd == pytest.approx(np.std(JITTER * 2, ddof=1))


@pytest.mark.parametrize(("of_base", "of_seed"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize(("bases", "seeds"), [(3, 8), (5, 3)])
def test_intervals_over_bases_and_seeds_hold_the_mean(
    of_base: float, of_seed: float, bases: int, seeds: int
) -> None:
    """Simulated experiments in which a base, a seed and a run each add something. 95 % less four standard
    errors of 2,000 of them."""
    rng = np.random.default_rng(11)
    count, covering = 2_000, 0
    for _ in range(count):
        table = rng.normal(0, 1, (bases, seeds))
        table += of_base * rng.normal(0, 1, (bases, 1)) + of_seed * rng.normal(0, 1, (1, seeds))
        mean = mean_over_bases({base * SEEDS_PER_BASE + seed: x for (base, seed), x in np.ndenumerate(table)})
        covering += mean.low <= 0 <= mean.high
    assert 0.95 - 4 * np.sqrt(0.95 * 0.05 / count) <= covering / count < 1


def test_what_holds_on_these_bases_may_not_hold_on_others() -> None:
    test_result = judged((0.4, 0.3, 0.02)).primary
    assert test_result.verdict == "unresolved" and test_result.p <= 0.05
    assert test_result.needs.startswith("the interval over 3 bases says nothing; on these bases supported")
    assert judged((0.4, 0.3)).primary.verdict == "unresolved"  # t(1) is 12.7


def test_arms_are_compared_inside_a_base() -> None:
    """Bases whose levels differ by 50 points and effects do not."""
    values = {
        (f"{arm}+name-{base}", "t", seed): 0.5 * base + 0.1 * (arm == "a") + JITTER[seed % 4]
        for arm in "ab"
        for base in range(3)
        for seed in range(8)
    }
    test_result = judge(finding(question(), bases="name"), {"a is better": values}).primary
    assert test_result.verdict == "supported" and test_result.effect.low == pytest.approx(0.1)


def test_an_arm_names_its_base() -> None:
    assert split_arm("grpo+warm_start_seed-2+learning_rate-1e-4", "warm_start_seed") == (
        "grpo+learning_rate-1e-4",
        "2",
    )
    assert split_arm("grpo", "warm_start_seed") == ("grpo", "")
    assert split_arm("grpo+name-nano", "") == ("grpo+name-nano", "")
    values: dict[Key, float] = {("a+name-x", "t", 3): 1.0, ("a+name-y", "t", 3): 2.0}
    assert numbered(values, "name") == {("a", "t", 3): 1.0, ("a", "t", SEEDS_PER_BASE + 3): 2.0}


def test_one_base_is_said() -> None:
    test = question()
    values: dict[Key, float] = {("a", "t", 0): 0.6, ("b", "t", 0): 0.5}
    row = as_row(judge(finding(test), {test.name: values}))
    words = "one base: all seeds of an arm start from the same weights, and intervals are about these"
    assert bases_words(row["tests"][0]) == words
    row |= {"scale": "nano", "departures": [], "exploratory": None, "rerun": None}
    assert f"  {words}" in answer({**row, "registered": "", "commit": "", "rule": ""})


RULE = """
claim = "a beats b"
source = "a paper"
bases = "warm_start_seed"

[[test]]
name = "a is better"
outcome = "accuracy:sampled"
contrast = { a = 1, b = -1 }
expect = "higher"
matters = 0.02

[nano]
seeds = [1, 2]
tasks = ["arithmetic"]
over = { "model.warm_start_seed" = [0, 1, 2] }

[nano.model]
warm_start = 2

[[nano.arm]]
name = "a"
algorithm = "grpo"

[[nano.arm]]
name = "b"
algorithm = "rloo"
"""


BASES = 'bases = "warm_start_seed"'


def test_a_recipe_sweeps_bases(tmp_path: Path) -> None:
    """Contrasts name arms without their base, and every base has every seed."""
    (tmp_path / "mine.toml").write_text(RULE)
    study = read_finding(str(tmp_path / "mine.toml"))
    configs = study.recipe("nano").runs()
    assert {(config.arm, config.model.warm_start_seed) for config in configs} == {
        (f"{arm}+warm_start_seed-{seed}", seed) for arm in "ab" for seed in range(3)
    }
    assert len(configs) == 2 * 3 * 2
    assert study.finding.plain()["bases"] == "warm_start_seed"
    assert "bases" not in finding().plain()  # older rules have the digest that they had


def test_bases_may_have_seeds_of_their_own(tmp_path: Path) -> None:
    text = RULE.replace("seeds = [1, 2]", "seeds = [1, 2, 3, 4, 5, 6]")
    (tmp_path / "mine.toml").write_text(text.replace("[[test]]", "seeds_per_base.nano = 2\n\n[[test]]"))
    study = read_finding(str(tmp_path / "mine.toml"))
    configs = study.recipe("nano").runs()
    assert {(config.model.warm_start_seed, config.seed) for config in configs} == {
        (base, seed) for base, seeds in enumerate([(1, 2), (3, 4), (5, 6)]) for seed in seeds
    }
    assert len(configs) == 2 * 6 and study.recipe("nano", ["seeds=11-16"]).runs()
    with pytest.raises(ConfigError, match="3 bases with 2 seeds each take 6 seeds, not 4"):
        study.recipe("nano", ["seeds=1-4"])


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("[[test]]", "seeds_per_base = 2\n\n[[test]]", "must be a table with a number of seeds"),
        ("[[test]]", "seeds_per_base.nano = 0\n\n[[test]]", "must be a table with a number of seeds"),
        ("[[test]]", "seeds_per_base.small = 2\n\n[[test]]", ".small: no such scale here; it has nano"),
        (BASES, "seeds_per_base.nano = 2", "the finding has no bases; name their setting in `bases`"),
        ("over = {", "# over = {", "no arm of [nano] has two values of warm_start_seed; sweep it in"),
        ("warm_start = 2", "warm_start = 0", "warm_start_seed: there is no warm start"),
    ],
)
def test_bases_that_are_none_are_refused(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert tomllib.loads(RULE.replace(old, new)) and old in RULE
    (tmp_path / "mine.toml").write_text(RULE.replace(old, new))
    with pytest.raises(ConfigError) as error:
        read_finding(str(tmp_path / "mine.toml")).recipe("nano").runs()
    assert fault in str(error.value)
