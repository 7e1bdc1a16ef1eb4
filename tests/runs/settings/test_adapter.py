"""`model.adapter` of a recipe: strict as any setting, laid over others key by key, and read back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpobench.runs.models.adapter import Adapter
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_table
from grpobench.runs.settings.stored import defaults, differences, dump, load
from grpobench.runs.tools.strict import ConfigError

ARM = {"algorithm": "grpo"}


def runs(model: Any, *arms: Any, sets: tuple[str, ...] = (), **more: Any) -> list[RunConfig]:
    table = {"name": "a", "tasks": ["arithmetic"], "arm": list(arms) or [ARM], "model": model, **more}
    return list(read_table(table, "", "a", Path(), sets).runs())


def faults(model: Any, *arms: Any, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        runs(model, *arms, **more)
    return caught.value.faults


def test_without_the_setting_all_weights_are_trained() -> None:
    (config,) = runs({"name": "nano"})
    assert config.model.adapter is None


def test_keys_have_the_defaults_of_an_adapter_and_integers_are_numbers() -> None:
    (config,) = runs({"adapter": {"rank": 8, "alpha": 16, "targets": ["q_proj"]}})
    assert config.model.adapter == Adapter(8, 16.0, ("q_proj",), 0.0)
    (config,) = runs({"adapter": {}})
    assert config.model.adapter == Adapter(16, 32.0, (), 0.0)


def test_layers_change_single_keys_and_none_takes_the_adapter_away() -> None:
    dense = {**ARM, "name": "dense", "model": {"adapter": "none"}}
    wide = {**ARM, "name": "wide", "model": {"adapter": {"rank": 64}}}
    configs = runs({"adapter": {"rank": 8, "alpha": 4}}, ARM, dense, wide, sets=("model.adapter.alpha=2",))
    assert {config.arm: config.model.adapter for config in configs} == {
        "grpo": Adapter(8, 2.0),
        "dense": Adapter(alpha=2.0),  # the command line comes last, and gives it one again
        "wide": Adapter(64, 2.0),
    }
    configs = runs({"adapter": {"rank": 8}}, ARM, dense)
    assert [config.model.adapter for config in configs] == [Adapter(8), None]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rnak": 8}, "model.adapter.rnak: unknown key; did you mean model.adapter.rank?"),
        ({"rank": 0}, "model.adapter.rank: must be at least 1, not 0"),
        ({"rank": "8"}, "model.adapter.rank: must be a whole number, not the string '8'"),
        ({"alpha": 0}, "model.adapter.alpha: must be above 0, not 0"),
        ({"targets": "q_proj"}, "model.adapter.targets: must be a list, not the string 'q_proj'"),
        ({"targets": ["q_proj", "q_proj"]}, "model.adapter.targets: lists a layer twice"),
        ({"dropout": 0.1}, "model.adapter.dropout: must be 0: "),
        (16, "model.adapter: must be a table"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(table: Any, message: str) -> None:
    (fault,) = faults({"adapter": table})
    assert fault.startswith(message)


def test_all_errors_inside_are_reported_at_once() -> None:
    messages = faults({"adapter": {"rank": "8", "alhpa": 3}})
    assert sorted(text.split(":")[0] for text in messages) == ["model.adapter.alhpa", "model.adapter.rank"]


def test_what_needs_other_weights_than_the_adapters_is_refused() -> None:
    (fault,) = faults({"adapter": {}}, {**ARM, "settings": {"beta": 0.1}, "modify": {"reference_every": 2}})
    assert "modify.reference_every = 0" in fault and 'model.adapter = "none"' in fault
    (fault,) = faults({"adapter": {}}, train={"backend": "trl"})
    assert 'train.backend = "grpobench"' in fault


def test_a_run_is_read_back_equal_and_a_change_of_its_adapter_is_one() -> None:
    with_one, without = runs({"adapter": {"rank": 8, "targets": ["q_proj"]}})[0], runs({})[0]
    for config in (with_one, without):
        assert load(dump(config)).model == config.model
    assert any(line.startswith("model.adapter") for line in differences(dump(without), dump(with_one)))
    older = "\n".join(line for line in dump(without).splitlines() if not line.startswith("adapter"))
    assert older != dump(without)
    assert differences(older, dump(without), defaults(without)) == []
