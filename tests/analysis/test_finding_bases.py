"""Findings over several bases: seeds are nested in bases, and an interval is over bases.

With one base, an interval over seeds is about its weights: three bases whose effects are 40, 30 and 2 points
have each a tight interval over seeds, and a wide one over bases.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.findings import finding, question
from scipy import stats

from grpobench.analysis.findings.bases import nested, split_arm
from grpobench.analysis.findings.description import bases_words, effect_words
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.result import Result, as_row
from grpobench.runs.commands.finding import answer
from grpobench.runs.settings.findings import read_finding
from grpobench.runs.tools.strict import ConfigError

JITTER = (-0.01, 0.0, 0.01, 0.0)


def judged(effects: Sequence[float], seeds: int = 4, expect: str = "higher", bases: str = "name") -> Result:
    """Runs of `a` and `b` on as many bases, `a` above `b` by each effect, with the same numbers of seeds."""
    values: dict[Key, float] = {}
    for base, effect in enumerate(effects):
        for seed in range(seeds):
            values[f"a+name-{base}", "t", seed] = 0.5 + effect + JITTER[seed % 4]
            values[f"b+name-{base}", "t", seed] = 0.5
    test = question(expect=expect, unit="points")
    return judge(finding(test, bases=bases), {test.name: values})


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
    assert bases_words(row) == "3 bases: seeds are nested in them, and intervals are over bases"


def test_what_holds_on_these_bases_may_not_hold_on_others() -> None:
    test_result = judged((0.4, 0.3, 0.02)).primary
    assert test_result.verdict == "unresolved" and test_result.p <= 0.05
    assert test_result.needs.startswith("the interval over 3 bases says nothing; on these bases supported")
    assert judged((0.4, 0.3)).primary.verdict == "unresolved"  # t(1) is 12.7


def test_arms_are_compared_inside_a_base() -> None:
    """Bases whose levels differ by 50 points and effects do not."""
    values = {
        (f"{arm}+name-{base}", "t", seed): 0.5 * base + 0.1 * (arm == "a") + JITTER[seed]
        for arm in "ab"
        for base in range(3)
        for seed in range(4)
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
    assert nested(values, "name") == {("a", "t", 3): 1.0, ("a", "t", 1_000_003): 2.0}


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


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
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
