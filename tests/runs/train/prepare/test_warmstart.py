"""The supervised warm start: the command, its cache and record, and recipes that use the same result."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import killed

from grpobench.runs import cli
from grpobench.runs.models.loading import load
from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.settings.config import ModelConfig
from grpobench.runs.tools import machine
from grpobench.runs.train.prepare import demonstrations, measured_start, warmstart
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.letters import Letters

STEPS, BATCH = 12, 8
TASK = ["--set", "train=300", "--set", "validation=40"]
WORDS = ["nano", "--task", "arithmetic", "--steps", str(STEPS), "--batch", str(BATCH), *TASK]
MEASURE = ["--problems", "24", "--samples", "2"]
CONFIG = ModelConfig("nano", warm_start=STEPS, warm_start_batch=BATCH)
ARITHMETIC = Arithmetic(train=300, validation=40)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPOBENCH_CACHE", str(folder))
        yield folder


def command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["warmstart", *WORDS, *MEASURE, *words, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_command_trains_measures_records_and_finds_its_cache(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = command(capsys)
    assert not first["cached"] and first["updates"] == STEPS and first["batch"] == BATCH
    assert first["demonstrations_read"] == first["different_demonstrations"] == STEPS * BATCH
    assert first["task"] == {"name": "arithmetic", "settings": {**first["task"]["settings"], "train": 300}}
    assert first["model"]["name"] == "nano" and first["model"]["sha256"]
    assert len(first["loss"]) == STEPS and all(map(math.isfinite, first["loss"]))
    for mode, samples in (("sampled", 2), ("greedy", 1)):
        accuracy = first["accuracy"][mode]
        assert accuracy["problems"] == 24
        for when in ("before", "after"):
            share = accuracy[when]
            assert 0 <= share["low"] <= share["value"] <= share["high"] <= 1
            assert share["value"] * 24 * samples == pytest.approx(round(share["value"] * 24 * samples))
        gain = accuracy["gain"]
        assert gain["value"] == pytest.approx(accuracy["after"]["value"] - accuracy["before"]["value"])
        assert gain["low"] < gain["value"] < gain["high"]
    # nano answers about half of these problems without working them out, and the demonstrations never do
    assert first["accuracy"]["sampled"]["gain"]["value"] > 0.1

    def never(*_: Any) -> Any:
        raise AssertionError("what the cache has must not be made again")

    monkeypatch.setattr(warmstart, "train", never)
    monkeypatch.setattr(measured_start, "shares", never)
    out = tmp_path / "warmed"
    again = command(capsys, "--out", str(out))
    assert again == first | {"cached": True, "folder": str(out)}
    cached = Path(first["folder"])
    assert cached.parent == cache / "warm"
    assert (out / "model.safetensors").read_bytes() == (cached / "model.safetensors").read_bytes()
    assert json.loads((out / "warmstart.json").read_text())["loss"] == first["loss"]
    assert cli.main(["warmstart", *WORDS, *MEASURE]) == 0
    shown = capsys.readouterr().out
    assert "from the cache" in shown and f"--set model.name={cached}" in shown


@pytest.mark.parametrize(
    "words",
    [
        ("warmstart", "nano", "--task", "arithmetic", "--steps", "1", "--batch", "2"),
        ("eval", "nano", "--task", "arithmetic", "--out", "models"),
        ("tasks", "readable", "nano", "--task", "arithmetic", "--out", "models"),
    ],
)
def test_a_precision_that_is_slow_on_this_processor_is_noted(
    words: Sequence[str],
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    monkeypatch.setattr(machine, "measure_slowdown", lambda precision: 8.0)
    for options, noted in ((("--dtype", "bfloat16"), True), ((), False)):
        assert cli.main([*words, "--problems", "2", *options]) == 0
        assert ("in bfloat16 takes 8 times as long" in capsys.readouterr().err) == noted


def test_recipe_finds_command_weights_and_the_folder_is_the_same_policy(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with `model.warm_start` and one with `model.name` set to the folder do the same things."""
    folder = command(capsys)["folder"]
    monkeypatch.setattr(warmstart, "train", lambda *_: pytest.fail("the cache has it"))
    recipe = tmp_path / "warm.toml"
    recipe.write_text(f"""
tasks = [{{ name = "arithmetic", settings = {{ train = 300, validation = 40 }} }}]
[train]
steps = 1
prompts_per_step = 2
group_size = 2
[evaluate]
problems = 4
samples = 1
test_problems = 0
[[arm]]
algorithm = "grpo"
name = "warm"
model.warm_start = {STEPS}
model.warm_start_batch = {BATCH}
[[arm]]
algorithm = "grpo"
name = "folder"
model.name = "{folder}"
""")
    from grpobench.runs.runfolder.folder import RunFolder
    from grpobench.runs.settings.recipe import read_recipe
    from grpobench.runs.train.execute import execute

    rows_by_arm = {}
    for config in read_recipe(str(recipe)).runs():
        path = tmp_path / config.arm
        with RunFolder.open(path, config) as run:
            execute(config, run, lambda progress: None, lambda: False)
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        rows_by_arm[config.arm] = [
            {k: v for k, v in row.items() if not k.startswith(("time/", "cost/peak"))} for row in rows
        ]
    assert rows_by_arm["warm"] == rows_by_arm["folder"]
    provenance = json.loads((tmp_path / "warm" / "provenance.json").read_text())["attempts"][-1]
    assert provenance["warm_start"] == Path(folder).name


def test_first_loss_is_transformers_own_over_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path))
    loaded = load("nano")
    config = dataclasses.replace(CONFIG, warm_start=1, warm_start_batch=4)
    lessons = demonstrations.demonstrations(loaded, ARITHMETIC, config)
    total = count = 0.0
    for group in lessons:
        (rollout,) = group.rollouts
        assert loaded.decode(rollout.completion) == ARITHMETIC.demonstrate(group.problem)
        assert rollout.completion[-1] == loaded.end[0]
        ids = torch.tensor([[*rollout.prompt, *rollout.completion]])
        labels = torch.tensor([[-100] * len(rollout.prompt) + list(rollout.completion)])
        with torch.no_grad():
            total += len(rollout.completion) * loaded.model(input_ids=ids, labels=labels).loss.item()
        count += len(rollout.completion)
    updates: list[tuple[int, int, float]] = []
    folder = warmstart.warm_start(loaded, ARITHMETIC, config, lambda *update: updates.append(update))
    record = json.loads((folder / "warmstart.json").read_text())
    assert updates == [(1, 1, record["loss"][0])]
    assert record["loss"][0] == pytest.approx(total / count, rel=1e-4)  # float32, another order of sums
    assert record["tokens_read"] == count


def test_cached_weights_are_those_that_were_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path))
    config = dataclasses.replace(CONFIG, warm_start=2)
    both = []
    for _ in range(2):
        loaded = load("nano")
        before = {name: p.detach().clone() for name, p in loaded.model.named_parameters()}
        warmstart.warm_start(loaded, ARITHMETIC, config, lambda *_: None)
        both.append(dict(loaded.model.named_parameters()))
        assert not all(torch.equal(p, before[name]) for name, p in both[-1].items())
    assert all(torch.equal(p, both[1][name]) for name, p in both[0].items())


def test_warm_start_that_blows_up_is_refused_with_remedy_and_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path))

    def spoil(self: Optimizer, scale: float) -> None:
        next(iter(self.parameters.values())).data.fill_(math.nan)

    monkeypatch.setattr(Optimizer, "update", spoil)
    with pytest.raises(ModelError, match=r"blew up at update 1 of 12.*warm_start_learning_rate"):
        warmstart.warm_start(load("nano"), ARITHMETIC, CONFIG, lambda *_: None)
    assert not [path for path in (tmp_path / "warm").iterdir() if path.is_dir()]


def test_kills_in_the_middle_cost_a_warm_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SIGKILL, between two updates and then between two files: the next start leaves what a start leaves
    that nobody killed."""
    config = dataclasses.replace(CONFIG, warm_start=2)

    def made(cache: Path) -> dict[str, bytes]:
        monkeypatch.setenv("GRPOBENCH_CACHE", str(cache))
        folder = warmstart.warm_start(load("nano"), ARITHMETIC, config, lambda *_: None)
        left = {path.name for path in (cache / "warm").iterdir()}
        assert left == {folder.name, f".{folder.name}.lock"}
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "killed"))
    for fault in ("warm-start.1.kill", "warm-start-save.1.kill"):
        assert killed.at(fault, tmp_path / "faults", killed.warm_start, ARITHMETIC, config) == -9
        assert not [path for path in (tmp_path / "killed/warm").iterdir() if not path.name.startswith(".")]
    killed_files, undisturbed_files = made(tmp_path / "killed"), made(tmp_path / "whole")
    timed = {warmstart.RECORD, "sums.json"}  # they hold the seconds that it took
    assert (
        killed_files.keys() == undisturbed_files.keys()
        and killed_files["model.safetensors"] == undisturbed_files["model.safetensors"]
    )
    assert [
        name for name in killed_files if killed_files[name] != undisturbed_files[name] and name not in timed
    ] == []
    records = [
        json.loads(folder_files[warmstart.RECORD]) | {"seconds": 0}
        for folder_files in (killed_files, undisturbed_files)
    ]
    assert records[0] == records[1]


def test_key_changes_with_what_changes_the_result_and_with_nothing_else() -> None:
    loaded = load("nano")

    def key(config: ModelConfig, task: Arithmetic = ARITHMETIC) -> str:
        return warmstart.key(loaded, task, config, demonstrations.demonstrations(loaded, task, config))

    base = key(CONFIG)
    for change in ({"warm_start": 11}, {"warm_start_batch": 7}, {"warm_start_learning_rate": 1e-4}):
        assert key(dataclasses.replace(CONFIG, **change)) != base
    assert key(dataclasses.replace(CONFIG, warm_start_examples=5)) != base
    assert key(dataclasses.replace(CONFIG, warm_start_seed=1)) != base  # another base
    assert key(dataclasses.replace(CONFIG, dtype="bfloat16")) != base
    assert key(CONFIG, dataclasses.replace(ARITHMETIC, seed=1)) != base
    assert (
        key(CONFIG, dataclasses.replace(ARITHMETIC, test=17)) == base
    )  # no lesson comes from the test split


def test_a_process_draws_the_demonstrations_of_a_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is always that of the demonstrations: also after the file of answers has changed."""
    loaded, drawn = load("nano"), 0

    def counted(*arguments: Any) -> Any:
        nonlocal drawn
        drawn += 1
        return demonstrations.demonstrations(*arguments)

    monkeypatch.setattr(warmstart, "demonstrations", counted)
    monkeypatch.setattr(warmstart, "_names", {})
    answers = tmp_path / "answers.jsonl"
    prompts = [problem.prompt for problem in ARITHMETIC.lessons()]
    from_file = dataclasses.replace(CONFIG, warm_start_answers=str(answers))
    names = []
    for text in ("#1", "#1", "#22"):
        answers.write_text("".join(json.dumps({"prompt": p, "completion": text}) + "\n" for p in prompts))
        names.append(warmstart.warm_folder(loaded, ARITHMETIC, from_file).name)
        names.append(warmstart.warm_folder(loaded, ARITHMETIC, from_file).name)
        lessons = demonstrations.demonstrations(loaded, ARITHMETIC, from_file)
        assert names[-1] == warmstart.key(loaded, ARITHMETIC, from_file, lessons)
    assert len(set(names)) == 2 and drawn == 3
    others = [ARITHMETIC, dataclasses.replace(ARITHMETIC, seed=1), ARITHMETIC]
    assert len({warmstart.warm_folder(loaded, task, CONFIG) for task in others}) == 2 and drawn == 5
    assert warmstart.warm_folder(load("nano"), ARITHMETIC, CONFIG).name and drawn == 5, "another load"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["nowhere", "--task", "arithmetic"], "unknown model 'nowhere'; known: letters, nano"),
        (["nano", "--task", "arithmatic"], "did you mean arithmetic?"),
        (["nano", "--task", "arithmetic", "--set", "trian=3"], "did you mean task.arithmetic.train?"),
        (["nano", "--task", "arithmetic", "--learning-rate", "2"], "must be above 0 and below 1, not 2"),
        (["nano", "--task", "arithmetic", "--out", "."], "--out . already exists"),
    ],
)
def test_mistakes_end_with_2_and_the_remedy(
    words: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["warmstart", *words]) == 2
    assert remedy in capsys.readouterr().err


def test_a_distribution_is_drawn_anew_for_every_update() -> None:
    """Half of nano's answers are careless; episodes of `letters` differ and follow their form."""
    loaded = load("nano")
    config = dataclasses.replace(CONFIG, warm_start_examples=1, warm_start_answers="distribution")
    drawn = demonstrations.demonstrations(loaded, ARITHMETIC, config)
    texts = [loaded.decode(group.rollouts[0].completion) for group in drawn]
    problem = drawn[0].problem
    careless, reference = ARITHMETIC.lapse(problem), ARITHMETIC.demonstrate(problem)
    assert set(texts) == {careless, reference}
    count, total = texts.count(careless), len(texts)
    assert abs(count - total / 2) <= 5 * math.sqrt(total) / 2
    letters = demonstrations.demonstrations(load("letters"), Letters(), config)
    assert len({group.rollouts[0].completion for group in letters}) == len(letters)
    again = demonstrations.demonstrations(loaded, ARITHMETIC, config)
    assert [group.rollouts[0].completion for group in again] == [g.rollouts[0].completion for g in drawn]


def test_answers_of_a_file_are_drawn_by_weight(tmp_path: Path) -> None:
    loaded, file = load("nano"), tmp_path / "answers.jsonl"
    rows = [
        {"prompt": problem.prompt, "completion": text, "weight": weight}
        for problem in ARITHMETIC.problems("train")
        for text, weight in ((" 1", 3), (" 2", 1))
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    config = dataclasses.replace(CONFIG, warm_start_answers=str(file))
    drawn = demonstrations.demonstrations(loaded, ARITHMETIC, config)
    texts = [loaded.decode(group.rollouts[0].completion) for group in drawn]
    count, total = texts.count(" 1"), len(texts)
    assert set(texts) == {" 1", " 2"}
    assert abs(count - 0.75 * total) <= 5 * math.sqrt(total * 3) / 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "answers.jsonl:1: not JSON"),
        ('{"prompt": "a"}', "answers.jsonl:1: needs the texts prompt and completion"),
        ('{"prompt": "a", "completion": "b", "weight": 0}', "weight must be a number above 0, not 0"),
        ('{"prompt": "a", "completion": "b"}', "has no answer to problem"),
    ],
)
def test_a_file_of_answers_that_cannot_be_used(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(line)
    config = dataclasses.replace(CONFIG, warm_start_answers=str(file))
    with pytest.raises(DataError, match=words):
        demonstrations.demonstrations(load("nano"), ARITHMETIC, config)
