"""The files of findings: the suite's own, and what is said of a wrong one."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest
from helpers import good_recipes

from grpobench.analysis.findings.bases import split_arm
from grpobench.analysis.findings.rule import covers, from_plain
from grpobench.runs.calibration import library
from grpobench.runs.inventory.transfer_page import BY_SIZE
from grpobench.runs.settings.findings import SCALES, FindingFile, findings, read_finding
from grpobench.runs.settings.recipe import recipes
from grpobench.runs.tools.strict import ConfigError

GOOD = """
claim = "a beats b"
source = "a paper"

[[test]]
name = "a is better"
outcome = "accuracy:sampled"
contrast = { a = 1, b = -1 }
expect = "higher"
matters = 0.02

[nano]
seeds = [1, 2]
tasks = ["arithmetic"]

[[nano.arm]]
name = "a"
algorithm = "grpo"

[[nano.arm]]
name = "b"
algorithm = "rloo"
"""


def written(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


# The suite's own


def test_every_finding_has_a_rule_and_a_scale_of_the_size_of_its_models() -> None:
    """Built-in policies, but for findings that compare them with a language model in one table of runs."""
    assert len(findings()) >= 19
    for name in findings():
        study = read_finding(name)
        assert study.finding.name == name
        assert next(iter(study.scales)) == ("small" if name.endswith(BY_SIZE) else "nano")
        assert from_plain(study.finding.plain()) == study.finding  # a registration gives the same rule again
        assert from_plain(study.finding.plain()).digest == study.finding.digest


NOT_RUN = {"it rises when the format alone is rewarded", "it rises when wrong answers are rewarded"}
"""Secondary tests of `placebo` whose arms no scale has any more. They stay: its runs were registered by a
rule that has them."""


def test_every_scale_of_a_finding_expands_to_the_arms_that_its_rule_names() -> None:
    covered: dict[str, set[str]] = {name: set() for name in findings()}
    for (name, scale), recipe in good_recipes.of_findings().items():
        assert recipe.name == f"{name}-{scale}"
        finding = read_finding(name).finding
        runs, tests = recipe.runs(), finding.test
        cells = {(split_arm(run.arm, finding.bases)[0], run.task.name) for run in runs}
        for test in tests:
            has_run = [any(covers(arm_pattern, *cell) for cell in cells) for arm_pattern in test.contrast]
            assert all(has_run) or test.also, (name, scale, test.name)
            covered[name] |= {test.name} if all(has_run) else set()
        if scale == "nano":
            most = max((2 * test.seeds for test in tests if test.deals), default=8)
            assert len({run.seed for run in runs}) >= most, name
    tests_by_finding = {name: {test.name for test in read_finding(name).finding.test} for name in findings()}
    tests_by_finding["placebo"] -= NOT_RUN
    assert covered == tests_by_finding


def test_every_kind_of_outcome_that_trains_is_logged_by_somebody() -> None:
    """A misspelled metric would leave a finding unresolved only after all of its runs."""
    from grpobench.runs.metrics import catalog

    for name in findings():
        for test in read_finding(name).finding.test:
            kind, _, quantity = test.outcome.partition(":")
            if kind == "training":
                metrics = quantity.rpartition(":")[0].split("+")
            elif kind in ("evaluated", "shift"):
                metrics = [f"eval/test/{quantity}"]
            else:
                continue
            assert all(catalog.find(metric) for metric in metrics), (name, test.name)


def test_the_seeds_of_a_finding_are_used_by_nothing_else() -> None:
    used = {
        f"{name} [{scale}]": {run.seed for run in recipe.runs()}
        for (name, scale), recipe in good_recipes.of_findings().items()
    }
    of_findings = dict(used)
    for name, path in recipes().items():
        used[name] = set(tomllib.loads(path.read_text(encoding="utf-8")).get("seeds", [0]))
    planned = library.planned()
    used["calibration"] = {planned.first + i for i in range(max(planned.seeds.values()))}
    used["pilot of the calibration"] = {900, 901}
    for finding, other in itertools.product(of_findings, used):
        assert finding == other or not used[finding] & used[other], f"{finding} and {other} share seeds"


# Reading


def test_a_file_of_ones_own_is_a_finding(tmp_path: Path) -> None:
    study = read_finding(written(tmp_path, GOOD))
    assert study.finding.name == "mine"
    assert list(study.scales) == ["nano"]
    recipe = study.recipe("nano", ["seeds=[5]"])
    assert (recipe.name, recipe.summary) == ("mine-nano", "a beats b")
    assert [(run.arm, run.seed) for run in recipe.runs()] == [("a", 5), ("b", 5)]


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        ('claim = "a beats b"', "", ["claim"]),
        (
            'expect = "higher"',
            'expect = "highr"',
            [
                "expect: must be 'higher', 'lower', 'same', 'not lower' or 'not higher'",
                "did you mean 'higher'?",
            ],
        ),
        ("a = 1, b = -1", "a = 1, b = 0", ["contrast: weights must be finite numbers other than 0"]),
        ("accuracy:sampled", "acuracy", ["outcome: unknown kind 'acuracy'; known: accuracy"]),
        ("[[test]]", "[[tset]]", ["tset: unknown key; did you mean test?"]),
        (
            "[nano]",
            '[nano]\nname = "other"',
            ["nano.name: a finding's experiment is called mine-nano; remove it"],
        ),
        (
            "[[test]]",
            'asked_again_by = "baselin"\n[[test]]',
            ["asked_again_by: no other finding 'baselin'; did"],
        ),
        ("[[test]]", 'asked_again_by = "mine"\n[[test]]', ["asked_again_by: no other finding 'mine'"]),
    ],
    ids=itertools.count(),
)
def test_a_wrong_file_names_itself_the_place_and_the_remedy(
    tmp_path: Path, old: str, new: str, faults: list[str]
) -> None:
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as error:
        read_finding(path)
    assert error.value.source == path
    for fault in faults:
        assert fault in str(error.value)


def test_an_expected_deviation_is_of_all_tests_or_of_those_that_it_names(tmp_path: Path) -> None:
    def read(entry: str) -> FindingFile:
        return read_finding(written(tmp_path, GOOD.replace("[[test]]", f"expected_sd = {entry}\n[[test]]")))

    of_all = {"nano": {"a is better": 0.03}}
    for entry in (
        "0.03",
        '{ "a is better" = 0.03 }',
        "{ nano = 0.03 }",
        '{ nano = { "a is better" = 0.03 } }',
    ):
        assert read(entry).expected_sd == of_all
    assert read('{ "a is better" = 1, nano = 0.03 }').expected_sd == of_all
    for entry, fault in (
        ("0", "expected_sd: must be above 0, not 0"),
        ("{ nano = 0 }", "expected_sd: must be above 0, not 0"),
        ("{ b = 1 }", "expected_sd: no test 'b'; it has a is better"),
        ("{ nano = { b = 1 } }", "expected_sd: no test 'b'; it has a is better"),
        ("{ small = 1 }", "expected_sd.small: no such scale here; it has nano"),
        ("{ b = { c = 1 } }", "expected_sd.b: no such scale here; it has nano"),
        ('"much"', "expected_sd: must be a number above 0, or a table"),
    ):
        with pytest.raises(ConfigError, match=re.escape(fault)):
            read(entry)


def test_faults_of_rule_and_scales_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("[nano]")].replace("matters = 0.02", "matters = -1")
    with pytest.raises(ConfigError) as error:
        read_finding(written(tmp_path, text + "\n"))
    message = str(error.value)
    assert f"nothing to run: give a recipe in one of the tables {', '.join(SCALES)}" in message
    assert "matters: must be above 0" in message and len(error.value.faults) == 2
    scalar = (
        GOOD[: GOOD.index("[[test]]")] + "nano = 3\n" + GOOD[GOOD.index("[[test]]") : GOOD.index("[nano]")]
    )
    with pytest.raises(ConfigError, match="nano: must be a recipe, a table, not 3"):
        read_finding(written(tmp_path, scalar))


def test_a_control_of_another_outcome_is_refused_with_the_remedy(tmp_path: Path) -> None:
    test = GOOD[GOOD.index("[[test]]") : GOOD.index("[nano]")]
    greedy = test.replace("a is better", "a is better at equal seconds").replace(
        "accuracy:sampled", "equal:seconds"
    )
    control = test.replace("[[test]]", "[[control]]").replace("a is better", "b is better than chance")
    with pytest.raises(ConfigError) as error:
        read_finding(written(tmp_path, GOOD.replace("[nano]", f"{greedy}{control}[nano]")))
    expected = (
        "control 'b is better than chance' measures accuracy:sampled, and its test 'a is better at equal "
        "seconds' measures equal:seconds: add a [[control]] of equal:seconds for this test, or give this one "
        "`tests` without it"
    )
    assert list(error.value.faults) == [expected]
    limited = control.replace("matters", 'tests = ["a is better"]\nmatters')
    assert read_finding(written(tmp_path, GOOD.replace("[nano]", f"{greedy}{limited}[nano]"))).finding.control


def test_two_tests_need_two_names(tmp_path: Path) -> None:
    block = GOOD[GOOD.index("[[test]]") : GOOD.index("[nano]")]
    with pytest.raises(ConfigError, match="two of the tests, checks and controls are called"):
        read_finding(written(tmp_path, GOOD.replace(block, block + block)))


def test_unknown_names_scales_and_places_are_told_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown finding 'placbo'; did you mean placebo\?"):
        read_finding("placbo")
    with pytest.raises(ConfigError, match=r"known: a-a, .*; or give the path of a TOML file"):
        read_finding("0000")
    with pytest.raises(ConfigError, match="cannot read the finding: No such file"):
        read_finding(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="--scale full: mine has none; it has nano"):
        read_finding(written(tmp_path, GOOD)).recipe("full")


def test_a_verdict_must_be_about_arms_of_the_recipe(tmp_path: Path) -> None:
    study = read_finding(written(tmp_path, GOOD.replace("b = -1", '"b@nanocode" = -1, "c+*" = 1')))
    with pytest.raises(ConfigError) as error:
        study.recipe("nano")
    assert str(error.value).startswith("mine [nano]: 2 errors")
    assert "test 'a is better': contrast: no run of b@nanocode; the recipe has a, b" in str(error.value)
    assert "no run of c+*; the recipe has a, b" in str(error.value)
    beside = GOOD.replace("[nano]", GOOD[GOOD.index("[[test]]") : GOOD.index("[nano]")] + "[nano]", 1)
    head, _, tail = beside.rpartition("a = 1, b = -1")
    beside = f"{head}a = 1, d = -1{tail}".replace('name = "a is better"', 'name = "first"', 1)
    beside = beside.replace('name = "a is better"', 'name = "beside"\nalso = true', 1)
    assert len(read_finding(written(tmp_path, beside)).recipe("nano").runs()) == 4  # it is left out there
    with pytest.raises(ConfigError, match="no run of b; the recipe has a"):
        read_finding(written(tmp_path, GOOD)).recipe("nano", ["arms=a"])
