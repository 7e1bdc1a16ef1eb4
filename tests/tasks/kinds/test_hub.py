"""Data sets of the hub by name: `tasks = ["hf:OWNER/NAME"]`.

Locked here: a copy of a repository below the data folder, JSONL files there, and the hub itself give the same
problems; splits that the hub lacks are dealt by a hash; no training row is in another split; columns are
taken by name or refused with what there is; without a hub the message has every remedy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from helpers.rows import write_rows

from grpobench.runs.settings import stored
from grpobench.runs.settings.recipe import Recipe, read_text
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.kinds.hub import HubExact, HubMath, name_of

pytestmark = pytest.mark.usefixtures("unread_hub")
TRAIN = [
    {"question": f"What is {a}+{b}?", "answer": f"{a} and {b} make {a + b}.\n#### {a + b}"}
    for a in range(1, 13)
    for b in range(1, 13)
]
TEST = [{"question": f"What is {a}*7?", "answer": rf"It is \boxed{{{7 * a}}}."} for a in range(2, 8)]
CARD = """---
configs:
- config_name: main
  default: true
  data_files:
"""


def copied(folder: Path, splits: Mapping[str, Sequence[Any]]) -> Path:
    """A data folder with a copy of the repository `someone/Sums.v2` as the hub lays it out."""
    repository = folder / "data" / "someone" / "Sums.v2"
    (repository / "data").mkdir(parents=True)
    names = "".join(f"  - split: {name}\n    path: data/{name}-*\n" for name in splits)
    (repository / "README.md").write_text(CARD + names + "---\n")
    for name, rows in splits.items():
        pd.DataFrame(rows).to_parquet(repository / "data" / f"{name}-00000-of-00001.parquet")
    return folder / "data"


def recipe(*tasks: Any, sets: Sequence[str] = ()) -> Recipe:
    text = f"tasks = {json.dumps(tasks)}\n".replace('": ', '" = ')
    return read_text(f'{text}[[arm]]\nalgorithm = "grpo"\n', "held", Path(), sets)


def test_a_copy_of_the_repository_is_read_as_the_hub_lays_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(copied(tmp_path, {"train": TRAIN, "test": TEST})))
    (config,) = recipe("hf:someone/Sums.v2").runs()
    task = config.task
    assert (task.name, type(task)) == ("Sums-v2", HubMath) and task.missing() == ""
    sizes = [len(task.problems(split)) for split in ("train", "validation", "test")]
    assert (
        sizes[0] + sizes[1] == 144 and sizes[2] == 6
    )  # a share of the training rows, and the hub's test split
    assert 4 <= sizes[1] <= 28  # a tenth, by a hash
    problem = next(candidate for candidate in task.problems("train") if candidate.prompt == "What is 3+4?")
    assert task.verify(problem, [r"\boxed{7}", "7", "#### 7.0", "8"])[0].scores["correct"] == 1.0
    assert [verdict.scores["correct"] for verdict in task.verify(problem, ["7", "8"])] == [1.0, 0.0]
    assert task.verify(task.problems("test")[0], [task.demonstrate(task.problems("test")[0])])[0].scores == {
        "correct": 1.0,
        "format": 1.0,
    }
    (source,) = task.sources("train")
    assert (source.kind, source.rows, source.table) == ("folder", 150, "someone/Sums.v2")
    assert stored.load(stored.dump(config)).task == task


def test_files_below_the_data_folder_and_the_hub_give_the_same_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "someone" / "sums"
    for name, rows in (("train", TRAIN), ("test", TEST)):
        write_rows(folder / f"{name}.jsonl", rows)
    task = HubMath(name="sums", hub="someone/sums")
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path / "data"))
    local = {split: list(task.problems(split)) for split in task.splits}
    monkeypatch.delenv(sources.FOLDER_VARIABLE)
    requests: list[Any] = []

    def loaded(name: str, config: str | None, split: str) -> list[dict[str, str]]:
        requests.append((name, config, split))
        return TRAIN if split == "train" else TEST

    monkeypatch.setattr(datasets, "load_dataset", loaded)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name, config: ["train", "test", "extra"])
    monkeypatch.setattr(sources, "_hub_trouble", lambda dataset: "")
    assert {split: list(task.problems(split)) for split in task.splits} == local
    assert requests == [("someone/sums", None, "train"), ("someone/sums", None, "test")]
    assert task.sources("train")[0].kind == "hub"


def test_rows_of_another_split_are_left_out_of_training_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"train": [*TRAIN, *TEST[:2]], "validation": TRAIN[:3], "test": TEST}
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(copied(tmp_path, rows)))
    task = HubMath(name="sums", hub="someone/Sums.v2")
    assert [len(task.problems(split)) for split in task.splits] == [141, 3, 6]
    assert task.sources("train")[0].skipped == ("5 training rows whose prompt is in another split",)


def test_a_data_set_without_a_training_split_is_dealt_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(copied(tmp_path, {"test": TRAIN})))
    task = HubExact(name="sums", hub="someone/Sums.v2", validation=0.2, test=0.3)
    ids = [{problem.id for problem in task.problems(split)} for split in task.splits]
    assert sum(map(len, ids)) == 144 == len(set.union(*ids)) and all(len(split_ids) > 10 for split_ids in ids)


def test_columns_are_named_or_refused_with_those_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"{n}+1", "value": str(n + 1)} for n in range(40)]
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(copied(tmp_path, {"train": rows})))
    with pytest.raises(
        DataError, match=r"no column is known as prompt \(it has text, value\); write tasks = "
    ):
        HubMath(name="sums", hub="someone/Sums.v2").problems("train")
    entry = {"name": "sums", "hub": "someone/Sums.v2", "prompt": "Q: {text}", "answer": "value"}
    task = recipe({**entry, "verify": "exact"}).runs()[0].task
    assert task.problems("train")[0].prompt.startswith("Q: ") and type(task) is HubExact
    with pytest.raises(ConfigError, match=r"tasks\[0\].verify: must be one of 'math', 'exact'"):
        recipe(entry)
    with pytest.raises(ConfigError, match="hub: must be OWNER/NAME, such as openai/gsm8k, not 'sums'"):
        recipe({**entry, "hub": "sums", "verify": "exact"})


def test_a_data_set_of_the_suite_is_its_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_rows(tmp_path / "gsm8k" / f"{split}.jsonl", [{}])  # its rows are read by runs alone
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path))
    assert recipe("hf:openai/gsm8k").runs()[0].task.name == "gsm8k"
    assert recipe("arithmetic", sets=["tasks=hf:openai/gsm8k"]).runs()[0].task.name == "gsm8k"
    assert name_of("someone/Sums.v2") == "Sums-v2"


def test_without_a_hub_the_message_has_every_remedy() -> None:
    for tasks in (("hf:someone/sums",), ("hf:someone/gsm8k",)):
        with pytest.raises(ConfigError) as error:
            recipe(*tasks)
        (fault,) = error.value.faults
        name = tasks[0].removeprefix("hf:")
        assert fault.startswith(
            f"task {'sums' if 'sums' in name else 'someone-gsm8k'}: {name}/train.jsonl: not"
        )
        assert f"put it at DIR/{name}/train.jsonl and pass --data-dir DIR" in fault
        assert f"give access to {name} on the hub (" in fault
    with pytest.raises(ConfigError, match="a data set of the hub is a task of a recipe"):
        read_text(
            'tasks = ["arithmetic"]\n[evaluate.also."hf:a/b"]\n[[arm]]\nalgorithm = "grpo"\n', "x", Path()
        )
