"""The probes that come with the suite, and what is wrong with a file that is none."""

import json
from pathlib import Path

import pytest

from grpobench.runs.settings.probes import (
    GATE,
    ORDER,
    PROBES,
    SCALES,
    arm_of,
    common,
    merged,
    probes,
    recipe_table,
)
from grpobench.runs.settings.recipe import read_table
from grpobench.runs.settings.registries import algorithms


def test_every_file_is_a_probe_in_the_order_and_says_what_it_is() -> None:
    files = {path.stem for path in PROBES.glob("*.toml")} - {"common"}
    assert files == set(ORDER) == set(probes())
    assert next(iter(probes())) == GATE
    for probe in probes().values():
        for words in (
            probe.mechanism,
            probe.source,
            probe.dose,
            probe.score,
            probe.expect,
            probe.good,
            probe.bad,
        ):
            assert words, probe.name
        assert {*probe.high, *probe.low} <= set(algorithms()), probe.name
        assert not {*probe.high} & {*probe.low}, probe.name
        assert (probe.positive is None) == (probe.negative is None)
        assert probe.runs == "ladder" or probe.positive, f"{probe.name} has no controls"


def test_a_probe_of_another_scale_is_its_nano_twin_with_the_tables_of_one_file_over_it() -> None:
    """What a reader compares between scales is the same: source, outcome, controls and expectation."""
    small = probes("small")
    assert {path.stem for path in (PROBES / "small").glob("*.toml")} - {"common"} == set(small)
    assert {GATE, "length", "imbalance", "staleness", "outliers", "placebo"} == set(small)
    for name, probe in small.items():
        twin = probes()[name]
        for field in ("title", "source", "outcome", "one", "rewards", "expect", "high", "low", "against"):
            assert getattr(probe, field) == getattr(twin, field), (name, field)
        assert probe.settings["tasks"] == twin.settings["tasks"]
        assert probe.settings != twin.settings
        assert probe.positive == twin.positive
    assert common("small")["train"]["optimizer_settings"] == common()["train"]["optimizer_settings"]
    assert (common("small")["model"]["name"], common()["model"]["name"]) == ("smollm2-135m", "letters")


def test_seeds_of_scales_searches_controls_and_profiles_are_apart() -> None:
    tables = [common(scale)[key] for scale in SCALES for key in ("search", "profile")]
    seeds = [seed for table in tables for key in ("seeds", "control_seeds") for seed in table.get(key, ())]
    assert len(set(seeds)) == len(seeds)
    assert not {9200, 9201, 9202, 9203} & {*seeds}  # the probes were designed on them


@pytest.mark.parametrize(("scale", "name"), [(scale, name) for scale in SCALES for name in probes(scale)])
def test_every_probe_and_its_controls_are_recipes(scale: str, name: str, tmp_path: Path) -> None:
    probe = probes(scale)[name]
    if probe.runs == "ladder":
        return
    arms = [arm_of(probe, "plain", "grpo", {"policy": 1e-3})]
    for control in (probe.positive, probe.negative):
        assert control
        settings = {key: value for key, value in control.settings.items() if key != "rate"}
        arms.append(arm_of(probe, f"control{len(arms)}", control.algorithm, {"policy": 1e-3}, settings))
    table = recipe_table("x", arms, [0], scale)
    # The package with SmolLM2 need not be here: what is checked is every other setting.
    table = json.loads(json.dumps(table).replace("smollm2-135m", "letters"))
    recipe = read_table(table, "", "x", tmp_path)
    assert len(recipe.runs()) == 3


def test_tables_are_merged_key_by_key_but_weights_are_one_value() -> None:
    below = {"reward": {"kind": "task", "weights": {"sign": 1.0}}, "train": {"steps": 40}}
    above = {"reward": {"weights": {"letter": 2.0}}, "train": {"epochs": 2}}
    assert merged(below, above) == {
        "reward": {"kind": "task", "weights": {"letter": 2.0}},
        "train": {"steps": 40, "epochs": 2},
    }
    assert below["train"] == {"steps": 40}
