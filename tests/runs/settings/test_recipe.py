"""Recipes: strict reading with every error at once, the order of layers, compatibility, and run.toml."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Gt, Interval
from helpers import stand_ins
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from grpobench.algorithms.ppo import PPO
from grpobench.runs.settings.config import RunConfig, TrainConfig
from grpobench.runs.settings.draft import Head
from grpobench.runs.settings.layers import FIELDS, RENAMED_KEYS, merge
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.settings.stored import dump, load
from grpobench.runs.tools import toml
from grpobench.runs.tools.strict import BAD, ConfigError, build, convert, hints, plain

RECIPE = """
name = "small"
tasks = ["sums", "proofs"]
seeds = [0, 1]
[train]
steps = 5
[[arm]]
algorithm = "plain"
[[arm]]
algorithm = "critic"
name = "second"
settings = {clip = 0.3}
"""


@pytest.fixture(autouse=True, scope="module")
def registries() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        stand_ins.register(patch)
        yield


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def reader(text: str, *sets: str) -> Recipe:
        path = tmp_path / "small.toml"
        path.write_text(text, encoding="utf-8")
        return read_recipe(str(path), sets)

    return reader


def faults(read: Any, text: str, *sets: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, *sets)
    return caught.value.faults


@pytest.fixture(scope="module")
def single_run(registries: None, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    path = tmp_path_factory.mktemp("recipe") / "one.toml"
    path.write_text(arm())
    return read_recipe(str(path)).runs()[0]


def arm(text: str = "", algorithm: str = "plain") -> str:
    return f'tasks = ["sums"]\n[[arm]]\nalgorithm = "{algorithm}"\n{text}\n'


# The experiment


DOTTED = RECIPE.replace('name = "second"', 'name = "second-1.4e-4"').replace(
    '"plain"', '"plain"\nname = "second-1"', 1
)


def test_an_arms_name_may_have_dots_and_an_assignment_takes_the_longest_name(read: Any) -> None:
    sets = ("arm.second-1.4e-4.train.learning_rate=2e-4", "arm.second-1.train.learning_rate=1e-4")
    runs = read(DOTTED, *sets, "arm.second-1.4e-4.settings.clip=0.4", "arms=second-1.4e-4,second-1").runs()
    rates = {run.arm: run.train.learning_rate["policy"] for run in runs}
    assert rates == {"second-1.4e-4": 2e-4, "second-1": 1e-4}
    assert runs[0].folder == "second-1.4e-4-sums-s0" and runs[0].algorithm.clip == 0.4
    assert load(dump(runs[0])).arm == "second-1.4e-4"
    (fault,) = faults(read, DOTTED, "arm.second-1.5.train.steps=1")
    assert fault.startswith("--set arm.second-1.")
    for name in (".hidden", "..", "-x"):
        assert "must be letters" in faults(read, arm(f"name = '{name}'"))[0]


def test_experiment_is_arms_times_tasks_times_seeds(read: Any) -> None:
    runs = read(RECIPE).runs()
    assert [run.folder for run in runs[:5]] == [
        "plain-sums-s0",
        "plain-sums-s1",
        "plain-proofs-s0",
        "plain-proofs-s1",
        "second-sums-s0",
    ]
    assert len(runs) == 8
    assert runs[4].algorithm == stand_ins.Critic(clip=0.3)
    assert {run.train.steps for run in runs} == {5}


def test_selection_by_set(read: Any) -> None:
    runs = read(RECIPE, "seeds=[7]", "tasks=proofs", "arms=second").runs()
    assert [run.folder for run in runs] == ["second-proofs-s7"]


@pytest.mark.parametrize("name", ["true", "inf", "1e-3", "2026-11-29", "7"])
def test_an_arm_is_selected_by_its_name_even_if_that_reads_as_another_value(read: Any, name: str) -> None:
    text = RECIPE.replace('name = "second"', f'name = "{name}"')
    assert {run.arm for run in read(text, f"arms={name}").runs()} == {name}
    assert {run.arm for run in read(text, f"arms={name},plain").runs()} == {name, "plain"}


def test_seeds_of_an_assignment_are_written_as_for_the_option(read: Any) -> None:
    for text, seeds in (("0,2", [0, 2]), ("4-6", [4, 5, 6]), ("1,3-4", [1, 3, 4]), ("[7, 8]", [7, 8])):
        runs = read(RECIPE, f"seeds={text}", "tasks=proofs", "arms=second").runs()
        assert [run.seed for run in runs] == seeds
    with pytest.raises(ConfigError, match="--set seeds=3-1: 3-1 holds no number"):
        read(RECIPE, "seeds=3-1")


def test_selection_takes_registered_names_that_the_recipe_lacks(read: Any) -> None:
    assert [run.folder for run in read(RECIPE, "seeds=3", 'arms=["pairs"]', "tasks=sums").runs()] == [
        "pairs-sums-s3"
    ]


def test_an_arm_of_every_algorithm_runs_where_it_is_served(read: Any) -> None:
    """`consistent` needs a score that only proofs give; `second` has an entry of its own."""
    runs = read(RECIPE.replace('"plain"', '"*"') + "train.steps = 6\n").runs()
    steps_by_cell = {(run.arm, run.task.name): run.train.steps for run in runs}
    every = [name for name in stand_ins.ALGORITHMS if name != "critic"]
    expected = {(arm, task): 5 for arm in every for task in ("sums", "proofs")}
    del expected["consistent", "sums"]
    assert steps_by_cell == expected | {("second", task): 6 for task in ("sums", "proofs")}
    assert faults(read, arm('name = "all"', "*")) == [
        "arm[0]: name cannot be that of every algorithm; give one its own [[arm]]"
    ]
    twice = arm("", "*") + '[[arm]]\nalgorithm = "*"\n'
    assert faults(read, twice) == ["arm[1]: another entry is of every algorithm already; remove one"]


def test_an_optional_arm_is_left_out_for_its_task_alone_and_says_so(read: Any) -> None:
    """A mistake in the settings is an error for it as for any arm."""
    text = 'tasks = ["sums", "proofs"]\n[[arm]]\nalgorithm = "consistent"\noptional = true\n'
    recipe = read(text)
    assert [run.task.name for run in recipe.runs()] == ["proofs"]
    assert len(recipe.left_out) == 1 and recipe.left_out[0].startswith("consistent on sums: needs the task")
    assert "(consistent on sums: needs" in faults(read, text, "tasks=sums")[0]
    pairs = arm("optional = true\ntrain = {group_size = 2}", "pairs")
    assert "needs groups of at least 4" in faults(read, pairs)[0]


def test_task_table_holds_settings(read: Any) -> None:
    text = 'tasks = [{name = "sums", settings = {digits = 5}}]\n[[arm]]\nalgorithm = "plain"\n'
    assert read(text).runs()[0].task == stand_ins.Sums(digits=5)
    assert read(text, "task.digits=6").runs()[0].task == stand_ins.Sums(digits=6)
    assert read(text, "task.sums.settings.digits=7").runs()[0].task == stand_ins.Sums(digits=7)


def test_arm_holds_settings_of_its_tasks(read: Any) -> None:
    text = RECIPE + "task = {digits = 5}\n"

    def digits(*sets: str) -> dict[str, int]:
        return {r.arm: r.task.digits for r in read(text, *sets).runs() if isinstance(r.task, stand_ins.Sums)}

    assert digits() == {"plain": stand_ins.Sums().digits, "second": 5}
    assert digits("task.digits=6") == {"plain": 6, "second": 6}
    assert digits("task.digits=6", "arm.second.task.digits=7") == {"plain": 6, "second": 7}
    assert digits("arm.plain.task.digits=8") == {"plain": 8, "second": 5}
    assert faults(read, RECIPE + "task = {digit = 5}\n") == [
        "arm.second.task.digit: unknown key; did you mean arm.second.task.digits?"
    ]


# Errors


def test_a_file_of_python_is_refused_with_the_command_that_takes_it() -> None:
    with pytest.raises(ConfigError, match="grpobench compare mine:CLASS --with grpo"):
        read_recipe("folder/mine.py")


def test_entries_of_a_list_are_checked_each(read: Any) -> None:
    messages = faults(read, arm("settings.decay = [nan]"))
    assert messages == ["arm.plain.settings.decay[0]: must be a number, not nan"]


def test_section_names_every_value_out_of_bounds_in_field_order() -> None:
    """Whatever checks it: the bound beside a field, or a rule over several fields."""
    with pytest.raises(ValueError) as caught:
        TrainConfig(
            prompts_per_step=0,
            learning_rate={},
            betas=(0.9, 1.0),
            weight_decay=math.inf,
            max_grad_norm=math.nan,
        )
    assert caught.value.args == (
        "prompts_per_step: must be at least 1, not 0",
        "learning_rate: must hold a value for policy",
        "betas[1]: must be at least 0 and below 1, not 1.0",
        "weight_decay: must be finite, not inf",
        "max_grad_norm: must be a number, not nan",
    )


@pytest.mark.parametrize(
    ("hint", "inside", "outside", "bound"),
    [
        (Annotated[int, Ge(1)], (1, 2**40), (0, -1), "at least 1"),
        (Annotated[float, Gt(0)], (1e-9, math.inf), (0, -1, -math.inf), "above 0"),
        (Annotated[float, Interval(gt=0, lt=math.inf)], (1e-9, 1e9), (0, -1), "above 0"),
        (Annotated[float, Interval(gt=0, lt=math.inf)], (), (math.inf,), "finite"),
        (Annotated[float, Interval(gt=0, le=10)], (1e-9, 10), (0, 10.001), "above 0 and at most 10"),
        (Annotated[float, Interval(ge=0, lt=1)], (0, 0.999), (-1e-9, 1), "at least 0 and below 1"),
        (Annotated[float, Interval(gt=-math.inf, lt=math.inf)], (-1, 1e9), (math.inf, -math.inf), "finite"),
        (Annotated[float, Interval(lt=2)], (-1, 1.9), (2,), "below 2"),
        (Annotated[float, Interval(le=2)], (-1, 2), (2.1,), "at most 2"),
    ],
)
def test_a_bound_holds_its_ends_as_it_says_and_never_nan(
    hint: Any, inside: Any, outside: Any, bound: str
) -> None:
    messages: list[str] = []
    assert [convert(value, hint, "x", messages) for value in inside] == list(inside) and not messages
    for value in outside:
        convert(value, hint, "x", messages)
    assert messages == [f"x: must be {bound}, not {value}" for value in outside]
    assert convert(math.nan, hint, "x", messages) is BAD


# Layers

LAYERS = {
    "recipe": ("[train]\nsteps = {}\n", ""),
    "on": ("[on.sums.train]\nsteps = {}\n", ""),
    "arm": ("", "[arm.train]\nsteps = {}\n"),
    "arm.on": ("", "[arm.on.sums.train]\nsteps = {}\n"),
}


def test_a_layer_wins_over_all_before_it(read: Any) -> None:
    order = [*LAYERS, "set", "set arm"]
    sums_expected, proofs_expected = TrainConfig().steps, TrainConfig().steps
    head = tail = ""
    sets: list[str] = []
    for steps, layer in enumerate(order, 50):
        if layer in LAYERS:
            head, tail = (text + LAYERS[layer][i].format(steps) for i, text in enumerate((head, tail)))
        else:
            sets.append(f"{'arm.plain.' if layer == 'set arm' else ''}train.steps={steps}")
        sums_expected = steps
        proofs_expected = proofs_expected if layer in ("on", "arm.on") else steps
        runs = read(f'tasks = ["sums", "proofs"]\n{head}[[arm]]\nalgorithm = "plain"\n{tail}', *sets).runs()
        assert [run.train.steps for run in runs] == [sums_expected, proofs_expected], layer


def test_tables_merge_key_by_key_and_lists_are_replaced() -> None:
    assert merge({"a": {"x": 1, "y": 2}, "l": [1]}, {"a": {"y": 3}, "l": [2]}) == {
        "a": {"x": 1, "y": 3},
        "l": [2],
    }


def test_plain_learning_rate_is_the_policys_and_fills_other_trained_roles(read: Any) -> None:
    text = RECIPE.replace("steps = 5", "learning_rate = 1e-4")
    runs = {run.arm: run for run in read(text).runs()}
    assert runs["plain"].train.learning_rate == {"policy": 1e-4}
    assert runs["second"].train.learning_rate == {"policy": 1e-4, "critic": 1e-4}
    table = text + "train.learning_rate = {critic = 1e-3}\n"
    runs = {run.arm: run for run in read(table, "train.learning_rate=2e-4").runs()}
    assert runs["second"].train.learning_rate == {"policy": 2e-4, "critic": 1e-3}


@pytest.mark.parametrize("warmup", [5, 9])
def test_run_whose_critic_is_warmed_up_to_the_end_is_refused(
    read: Any, monkeypatch: pytest.MonkeyPatch, warmup: int
) -> None:
    monkeypatch.setattr("grpobench.algorithms.ALGORITHMS", {**stand_ins.ALGORITHMS, "ppo": PPO})
    text = RECIPE.replace('"critic"', '"ppo"').replace("clip = 0.3", "critic_warmup = %d")
    assert faults(read, text % warmup) == [
        f"arm second on {task}: updates its policy in none of the 5 steps with settings.critic_warmup = "
        f"{warmup}; raise train.steps above it or lower it"
        for task in ("sums", "proofs")
    ]
    assert len(read(text % 4).runs()) == 8  # its fifth step moves the policy
    assert len(read(text % warmup, "train.steps=0").runs()) == 8  # nothing is asked to move


def test_algorithm_assignment_reaches_every_arm_that_has_the_field(read: Any) -> None:
    runs = {
        run.arm: run.algorithm
        for run in read(RECIPE, "algorithm.clip=0.4", "algorithm.value_clip=0.9").runs()
    }
    assert runs == {"plain": stand_ins.Plain(clip=0.4), "second": stand_ins.Critic(clip=0.4, value_clip=0.9)}


def test_arm_settings_assignment_reaches_one_arm(read: Any) -> None:
    runs = {run.arm: run.algorithm for run in read(RECIPE, "arm.plain.settings.label=text").runs()}
    assert runs == {"plain": stand_ins.Plain(label="text"), "second": stand_ins.Critic(clip=0.3)}


# TOML

VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), VALUES, max_size=5))
def test_written_toml_reads_back_equal(table: dict[str, Any]) -> None:
    loaded = tomllib.loads(toml.write(table))
    assert loaded == table
    assert toml.write(loaded) == toml.write(table)  # tells 1 from 1.0 and True, and 0.0 from -0.0


SETTINGS = st.builds(
    stand_ins.Plain,
    clip=st.floats(0.001, 0.999),
    mode=st.sampled_from(["soft", "hard"]),
    bound=st.none() | st.floats(allow_nan=False),
    decay=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    shares=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False), max_size=3
    ),
    on=st.booleans(),
    label=st.text(st.characters(exclude_categories=["Cs"])),
    count=st.integers(-(2**63), 2**63 - 1),
)


@given(algorithm=SETTINGS, digits=st.integers(0, 9), rate=st.floats(0, 0.9), seed=st.integers(0, 2**31))
def test_run_toml_reads_back_equal(
    algorithm: stand_ins.Plain,
    digits: int,
    rate: float,
    seed: int,
    single_run: RunConfig,
) -> None:
    config = dataclasses.replace(
        single_run,
        seed=seed,
        algorithm=algorithm,
        task=stand_ins.Sums(digits),
        train=dataclasses.replace(single_run.train, learning_rate={"policy": rate}),
    )
    assert load(dump(config)) == config


def test_run_toml_names_every_value(single_run: RunConfig) -> None:
    table = tomllib.loads(dump(single_run))
    assert table["algorithm"]["settings"]["mode"] == "soft"
    assert table["train"]["betas"] == [0.9, 0.95]
    # A dialect stands in the section of the algorithm, where there is one (see test_dialects.py).
    assert set(table) == {f.name for f in dataclasses.fields(RunConfig)} - {"dialect"}


# Typed reading


def test_whole_numbers_serve_as_floats_but_nothing_else_is_coerced() -> None:
    messages: list[str] = []
    assert convert(1, float, "x", messages) == 1.0 and isinstance(convert(1, float, "x", messages), float)
    assert convert(1, int | float, "x", messages) == 1 and isinstance(
        convert(1, float | int, "x", messages), int
    )
    assert not messages
    for value, hint in (
        (True, int),
        (True, float),
        (1.0, int),
        ("1", int),
        (1, str),
        (1, bool),
        (True, int | None),
    ):
        convert(value, hint, "x", messages)
    assert len(messages) == 7


class Unwritable:
    """A type that TOML does not have."""


@dataclasses.dataclass(frozen=True)
class OfOthers:
    size: int = 1
    model: Unwritable | None = None
    scale: Callable[[float], float] = abs


def test_a_class_with_a_field_that_no_recipe_can_write_is_read_without_it() -> None:
    messages: list[str] = []
    assert build(OfOthers, MappingProxyType({"size": 2}), "x", messages) == OfOthers(2) and not messages
    build(OfOthers, {"model": 3, "scale": "abs"}, "x", messages)
    refused = [text.partition(" a ")[0] for text in messages]
    assert refused == ["x.model: no recipe can write", "x.scale: no recipe can write"]


@dataclasses.dataclass(frozen=True)
class ByPydantic:
    size: int = 1

    def __post_init__(self) -> None:
        TypeAdapter(Annotated[int, Ge(5)]).validate_python(self.size)


def test_what_others_check_by_pydantic_is_told_with_the_line_of_their_code() -> None:
    messages: list[str] = []
    build(ByPydantic, {"size": 2}, "x", messages)
    assert (
        len(messages) == 1
        and messages[0].startswith("x: test_recipe.py:")
        and "greater than or equal to 5" in messages[0]
    )


def test_none_is_written_as_a_word() -> None:
    assert plain(stand_ins.Plain(bound=None))["bound"] == "none"
    messages: list[str] = []
    assert build(stand_ins.Plain, {"bound": "none"}, "", messages) == stand_ins.Plain(bound=None)
    build(stand_ins.Plain, {"bound": "nine"}, "here", messages)
    assert messages == ["here.bound: must be a number, not the string 'nine', or \"none\""]
    assert math.isinf(tomllib.loads(f"x = {toml.value(-math.inf)}")["x"])


# Keys of older versions


def test_renamed_keys_lead_from_removed_keys_to_existing_ones() -> None:
    assert not {*FIELDS, *hints(Head)} & set(RENAMED_KEYS)
    assert set(RENAMED_KEYS.values()) <= set(FIELDS.values())
