"""Whatever is in a file, nobody sees a traceback: recipes, data rows, completions and logs that are anything
at all.

A few cases of each in `make test`; `make fuzz` makes 3,000 of each, which are new ones every time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.folders import CONFIG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.runs.runfolder.folder import FolderError, RunFolder, changed
from grpobench.runs.runfolder.logs import result_damage
from grpobench.runs.settings.recipe import read_text
from grpobench.runs.tools import toml
from grpobench.runs.tools.files import line
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.grading.final_answer import decide, number
from grpobench.tasks.kinds.jsonl import FROM_DATA
from grpobench.tasks.nanobias import NanoBias
from grpobench.tasks.task import Task

CASES = int(os.environ.get("GRPOBENCH_FUZZ", "0"))
"""Cases of each kind; 0: as few as `make test` has time for."""
wild = settings(
    max_examples=CASES or 8,
    derandomize=not CASES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
dear = settings(wild, max_examples=CASES // 6 or 8)
"""For what takes half a second a case."""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -(10**400), 2**63, -1, 0]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "a\x00b", "\u202e", "", "x" * 3000, "nano", "grpo", "arithmetic"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def mutated(content: bytes) -> st.SearchStrategy[bytes]:
    """The content with some bytes changed, cut out, doubled or put in."""
    positions = st.integers(0, max(0, len(content) - 1))
    edits = st.tuples(
        positions, st.sampled_from(["change", "cut", "double", "insert"]), st.binary(max_size=12), positions
    )

    def edited(changes: list[tuple[int, str, bytes, int]]) -> bytes:
        edited_content = content
        for position, kind, extra, other in changes:
            end = min(len(edited_content), position + 1 + other % 40)
            middle = {
                "change": extra,
                "cut": b"",
                "double": edited_content[position:end] * 2,
                "insert": extra + edited_content[position:end],
            }
            edited_content = edited_content[:position] + middle[kind] + edited_content[end:]
        return edited_content

    return st.lists(edits, min_size=1, max_size=3).map(edited)


# Recipes


RECIPE = """name = "m"
seeds = [0, 1]
tasks = ["arithmetic"]
stop_on = ["reward_collapse"]
[model]
name = "nano"
[train]
steps = 3
learning_rate = { policy = 1e-3 }
betas = [0.9, 0.99]
schedule = "linear"
[reward]
weights = { correct = 1.0 }
[on.arithmetic.evaluate]
every = 2
[[arm]]
algorithm = "grpo"
settings.clip_high = 0.3
[[arm]]
algorithm = "ppo"
name = "second"
modify.dynamic_sampling = 2
"""
DEEP = [
    "x = " + "[" * 800 + "]" * 800,
    "x = " + "{a=" * 800 + "1" + "}" * 800,
    RECIPE.replace("steps = 3", "steps = " + "9" * 5000),
    RECIPE.replace("steps = 3", "steps = 0x" + "f" * 5000),
    RECIPE.replace("1e-3", "9" * 5000),
    RECIPE.replace("seeds = [0, 1]", "seeds = [" + "9" * 5000 + "]"),
]


def read(text: str, *sets: str) -> str:
    """What is said of a recipe; empty where it is one."""
    try:
        read_text(text, "m", Path("/nowhere"), sets)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", DEEP, ids=["lists", "tables", "digits", "hexadecimal", "rate", "seed"])
def test_a_recipe_beyond_measure_is_refused_in_words(text: str) -> None:
    assert "not TOML" in read(text) and len(read(text)) < 1000


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "[" * 900 + "]" * 900, "{a=" * 900])
def test_a_value_beyond_measure_is_refused_in_words(value: str) -> None:
    for key in ("train.steps", "train.learning_rate", "seeds", "arms", "x"):
        assert read(RECIPE, f"{key}={value}")


@wild
@given(content=mutated(RECIPE.encode()))
def test_recipes_of_any_bytes(content: bytes) -> None:
    read(content.decode("utf-8", errors="replace"))


@wild
@given(
    section=st.sampled_from(
        ["train", "model", "sampler", "reward", "evaluate", "checkpoint", "checks", "modify", "on", "arm"]
    ),
    key=st.sampled_from(
        ["steps", "learning_rate", "name", "weights", "every", "betas", "settings", "algorithm", "x"]
    ),
    value=values,
)
def test_recipes_of_any_values(section: str, key: str, value: Any) -> None:
    with contextlib.suppress(TypeError):  # TOML has no null
        text = toml.value(value)
        read(RECIPE, f"{section}.{key}={text}", f"{key}={text}")


# Data rows


@wild
@given(
    rows=st.lists(values | st.fixed_dictionaries({"question": values, "answer": values}), max_size=3),
    junk=st.binary(max_size=30),
)
def test_data_rows_of_any_kind(rows: list[Any], junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join([*lines, junk]))
    for verify in ("exact", "choice"):
        task = FROM_DATA[verify](name="mine", jsonl=path, prompt="{question}", validation=0, test=0)
        with contextlib.suppress(DataError):
            for problem in task.problems("train"):
                task.verify(problem, ["1", "\ud800"])


# Completions


TASKS: dict[str, Callable[[], Task]] = {
    "arithmetic": lambda: Arithmetic(train=4, validation=2, test=2),
    "nanobias": NanoBias,
}
texts = st.text(max_size=60) | st.sampled_from(
    [
        "9" * 5000,
        "-" * 3000,
        "\ud800",
        "1" + "0" * 400 + "." + "3" * 400,
        "1e999999999",
        "\x00",
        "(" * 2000,
        "½",
        "٣",
    ]
)


@wild
@given(
    text=texts,
    around=st.sampled_from(["{}", "the answer is {}", "{} = 12", "\\boxed{{{}}}", "<answer>{}</answer>"]),
)
def test_completions_of_any_text(text: str, around: str) -> None:
    completion = around.format(text)
    number(completion)
    decide("12", completion)  # what is left to math-verify has a process that can be killed
    for make in TASKS.values():
        task = make()
        problem = task.problems("train")[0]
        (verdict,) = task.verify(problem, [completion])
        assert verdict.outcome != "infra_error" and 0 <= verdict.scores["correct"] <= 1


# Logs


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a result, and one that was stopped behind a checkpoint."""
    root = tmp_path_factory.mktemp("whole") / "m"
    for seed, end in ((0, True), (1, False)):
        config = dataclasses.replace(CONFIG, seed=seed)
        with RunFolder.open(root / config.folder, config) as run:
            run.rewind(0)
            for step in range(4):
                scores = {
                    "scores": {"correct": 0.5},
                    "outcome": "wrong",
                    "split": "validation",
                    "mode": "greedy",
                }
                run.evaluations([{"step": step, "problem": "a", "sample": 0, **scores}])
                run.log({"step": step, "reward/mean": step / 3, "loss/policy": None})
                run.rollouts(step, [{"completions": []}])
            run.save(3, {"policy": {"weight": torch.ones(3)}}, {"step": 3})
            if end:
                run.keep_final("policy", {"weight": torch.ones(3)})
                run.finish("finished")
    return root


@pytest.fixture
def copied(stored_runs: Path, tmp_path: Path) -> Iterator[Callable[[], Path]]:
    yield lambda: Path(shutil.copytree(stored_runs, tmp_path / "m", dirs_exist_ok=True))


FILES = (
    *(
        "metrics.jsonl",
        "eval.jsonl",
        "metrics.jsonl.sums",
        "sums.json",
        "status.json",
        "provenance.json",
        "run.toml",
    ),
    *(
        "lock",
        "checkpoints/step-3/manifest.json",
        "checkpoints/step-3/state.json",
        "final/step-3/manifest.json",
    ),
)


@dear
@given(data=st.data())
def test_logs_of_any_bytes(data: st.DataObject, copied: Callable[[], Path]) -> None:
    root = copied()
    name = data.draw(st.sampled_from(FILES))
    for path in root.glob(f"*/{name}"):
        path.write_bytes(data.draw(mutated(path.read_bytes()) | st.binary(max_size=40)))
    looked(root)


@dear
@given(rows=st.lists(st.dictionaries(st.sampled_from(["step", "a", "scores", "split"]), values), max_size=3))
def test_logs_of_any_rows(rows: list[dict[str, Any]], copied: Callable[[], Path]) -> None:
    """Without sums, as an older version or another program left them."""
    root = copied()
    for run in root.glob("*-s?"):
        for path in [*run.glob("*.sums"), run / "sums.json"]:
            path.unlink(missing_ok=True)
        for name in ("metrics.jsonl", "eval.jsonl"):
            (run / name).write_bytes(b"".join(map(line, rows)))
    looked(root)


def looked(root: Path) -> None:
    """All who read a run's folder say what is wrong in words of their own."""
    with contextlib.suppress(LogError):
        load(root)
    for seed in (0, 1):
        config = dataclasses.replace(CONFIG, seed=seed)
        path = root / config.folder
        result_damage(path)
        with warnings.catch_warnings(), contextlib.suppress(FolderError):
            warnings.simplefilter("ignore")
            changed(path, config)
            with RunFolder.open(path, config, allow_change=True) as run:
                checkpoint = run.latest()
                run.rewind(checkpoint.step if checkpoint else 0)
