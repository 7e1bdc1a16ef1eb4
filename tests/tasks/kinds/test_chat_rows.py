"""Tasks from data whose prompts are messages, with a system message and examples before every question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.rows import write_rows

from grpobench.runs.runfolder import fingerprints
from grpobench.runs.settings import stored
from grpobench.runs.settings.recipe import read_text
from grpobench.tasks.data import sources
from grpobench.tasks.data.messages import as_messages
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.kinds.hub import HubMath
from grpobench.tasks.kinds.jsonl import FROM_DATA, JSONLTask
from grpobench.tasks.task import Problem, Split, Task

SPLITS: Sequence[Split] = ("train", "validation", "test")


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


CHATS = [{"prompt": [system("Add."), user(f"{a}+{b}?")], "answer": a + b} for a in range(8) for b in range(8)]
PLAIN = [{"prompt": row["prompt"][1]["content"], "answer": row["answer"]} for row in CHATS]  # type: ignore[index]


def task(
    folder: Path, rows: Sequence[Mapping[str, Any]], verify: str = "exact", **settings: Any
) -> JSONLTask:
    path = write_rows(folder / "chat.jsonl", rows)
    return FROM_DATA[verify](**{"name": "mine", "jsonl": path, "prompt": "prompt", **settings})


def messages(problem: Problem) -> list[dict[str, str]]:
    return as_messages(problem.prompt)


def split_by_id(task: Task) -> dict[str, Split]:
    """The split of each problem."""
    return {problem.id: split for split in SPLITS for problem in task.problems(split)}


def test_a_column_of_messages_is_the_prompt_as_it_is(tmp_path: Path) -> None:
    chat_task = task(tmp_path, CHATS)
    prompts = [messages(problem) for split in SPLITS for problem in chat_task.problems(split)]
    assert sorted(map(str, prompts)) == sorted(str(row["prompt"]) for row in CHATS)
    as_text = [{**row, "prompt": json.dumps(row["prompt"])} for row in CHATS]
    assert split_by_id(task(tmp_path, as_text)) == split_by_id(chat_task)


def test_a_system_message_and_examples_stand_before_every_question(tmp_path: Path) -> None:
    written = ({"prompt": "9+9?", "answer": 18},)
    chat_task = task(tmp_path, PLAIN, "math", system="Add.", few_shot=2, examples=written, answer_marker="= ")
    context = [
        *(system("Add."), user("0+0?"), assistant("= 0"), user("0+1?"), assistant("= 1")),
        *(user("9+9?"), assistant("= 18")),
    ]
    bare = task(tmp_path, PLAIN, "math")
    assert [messages(problem) for problem in bare.problems("train")[:2]] == [[user("0+0?")], [user("0+1?")]]
    for split, left_out in {"train": 2, "validation": 0, "test": 0}.items():
        before, after = bare.problems(split), chat_task.problems(split)  # type: ignore[arg-type]
        assert [messages(problem) for problem in after] == [
            [*context, user(problem.text)] for problem in before[left_out:]
        ]
        assert [problem.id for problem in after] == [problem.id for problem in before[left_out:]]


def test_examples_of_messages_leave_their_system_message_out(tmp_path: Path) -> None:
    first, second = task(tmp_path, CHATS, few_shot=1, validation=0, test=0).problems("train")[:2]
    assert messages(first) == [system("Add."), user("0+0?"), assistant("0"), user("0+1?")]
    assert messages(second) == [system("Add."), user("0+0?"), assistant("0"), user("0+2?")]


def test_an_example_answers_with_the_whole_solution_if_the_task_has_one(tmp_path: Path) -> None:
    rows = [{**row, "worked": f"It is {row['answer']}.\n#### {row['answer']}\n"} for row in PLAIN]
    chat_task = task(tmp_path, rows, "math", few_shot=1, solution="worked")
    assert messages(chat_task.problems("train")[0])[1] == assistant("It is 0.\n#### 0")


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        (
            {"prompt": [user("1"), assistant("2")], "answer": "1"},
            {},
            "'prompt': the last message has the role",
        ),
        ({"prompt": [system("a"), user("b")], "answer": "1"}, {"system": "c"}, "the task has `system` too"),
        ({"prompt": [user("b")], "answer": "1"}, {"prompt": "Q: {prompt}"}, 'write prompt = "prompt"'),
        ({"prompt": json.dumps([user("b")]), "answer": "1"}, {"prompt": "Q: {prompt}"}, "holds messages"),
    ],
)
def test_what_is_no_prompt_stops_with_file_and_line(
    row: Mapping[str, Any], settings: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    chat_task = task(tmp_path, [PLAIN[0], row], **settings)
    with pytest.raises(DataError) as caught:
        chat_task.problems("train")
    assert str(caught.value).startswith(f"{tmp_path / 'chat.jsonl'}, line 2: ") and message in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"few_shot": 64}, "few_shot takes 64 of "),
        (
            {"examples": ({"prompt": "9+9?"},)},
            "number 1 of its `examples`: 'answer' is missing; correct it in",
        ),
        (
            {"examples": ({"prompt": "1+1?", "answer": 2},)},
            "number 1 of its `examples` is in the split train too",
        ),
    ],
)
def test_examples_that_cannot_be_are_refused(
    settings: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    chat_task = task(tmp_path, PLAIN, **settings)
    assert message in chat_task.missing()


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="few_shot: must be at least 0") as caught:
        FROM_DATA["exact"](name="a", jsonl=Path("a.jsonl"), prompt="p", system=" ", few_shot=-1)
    assert "system: must not be blank" in caught.value.args


def test_the_examples_of_a_recipe_come_back_from_a_stored_run(tmp_path: Path) -> None:
    task(tmp_path, PLAIN)
    text = """
[[tasks]]
name = "sums"
jsonl = "chat.jsonl"
prompt = "prompt"
verify = "math"
system = "Add."
few_shot = 1
examples = [{ prompt = "9+9?", answer = 18 }, { prompt = [{ role = "user", content = "8+9?" }], answer = 17 }]

[[arm]]
algorithm = "grpo"
"""
    (config,) = read_text(text, "mine", tmp_path, ()).runs()
    again = stored.load(stored.dump(config)).task
    assert again == config.task and hash(again) == hash(config.task)
    assert len(messages(again.problems("test")[0])) == 1 + 3 * 2 + 1


def test_runs_from_before_these_settings_have_their_defaults(tmp_path: Path) -> None:
    task(tmp_path, PLAIN)
    text = """
tasks = [{ name = "sums", jsonl = "chat.jsonl", prompt = "prompt", verify = "math" }]
arm = [{ algorithm = "grpo" }]
"""
    (config,) = read_text(text, "mine", tmp_path, ()).runs()
    now = stored.dump(config)
    before = now.replace('system = "", few_shot = 0, examples = [], ', "")
    assert before != now and stored.load(before) == config
    assert stored.differences(before, now, stored.defaults(config)) == []
    other = now.replace("few_shot = 0", "few_shot = 1")
    assert stored.differences(before, other, stored.defaults(config)) == [
        "task.settings.few_shot: (absent) -> 1"
    ]


def test_fingerprints_of_texts_are_those_of_earlier_versions_and_messages_change_them(tmp_path: Path) -> None:
    """Computed at commit d9ca8b5f, before prompts could be messages."""
    rows = [{"question": f"{a}+1", "answer": a + 1, "category": "sum"} for a in range(3)]
    path = write_rows(tmp_path / "three.jsonl", rows)
    settings: dict[str, Any] = {"name": "mine", "jsonl": path, "validation": 0, "test": 0}
    plain_task = FROM_DATA["exact"](prompt="{question} =", **settings)
    problems = plain_task.problems("train")
    assert [problem.id[:6] for problem in problems] == ["175a44", "2dbb0e", "463828"]
    assert fingerprints.problems_hash(problems)[:16] == "7a51e922cf584c9f"
    assert fingerprints.digest(problems[0]) == "8adb2381d50dea5838ce"
    with_system = FROM_DATA["exact"](prompt="{question} =", system="Add.", **settings).problems("train")
    assert fingerprints.problems_hash(with_system) != fingerprints.problems_hash(problems)
    assert fingerprints.digest(with_system[0]) != fingerprints.digest(problems[0])
    assert fingerprints.overlap(
        {
            "train": {"a": fingerprints.digest(with_system[0])},
            "test": {"b": fingerprints.digest(with_system[0])},
        }
    )


@pytest.mark.usefixtures("unread_hub")
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_data_set_of_the_hub_may_have_messages(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parquet as tables, in CSV as JSON; the split of a row is that of the same row in a JSONL file."""
    folder = tmp_path / "data" / "someone" / "chats"
    folder.mkdir(parents=True)
    if kind == "parquet":
        pd.DataFrame(CHATS).to_parquet(folder / "train.parquet")
    else:
        pd.DataFrame([{**row, "prompt": json.dumps(row["prompt"])} for row in CHATS]).to_csv(
            folder / "train.csv", index=False
        )
    monkeypatch.setenv(sources.FOLDER_VARIABLE, str(tmp_path / "data"))
    written = ({"prompt": [system("?"), user("9+9?")], "answer": 18},)
    hub_task = HubMath(name="chats", hub="someone/chats", few_shot=1, examples=written)
    bare = task(tmp_path, CHATS)
    example, first = (problem.prompt[-1].content for problem in bare.problems("train")[:2])  # type: ignore[union-attr]
    assert messages(hub_task.problems("train")[0]) == [
        *(system("Add."), user(example), assistant(f"\\boxed{{{eval(example[:-1])}}}")),
        *(user("9+9?"), assistant("\\boxed{18}"), user(first)),
    ]
    assert split_by_id(hub_task).items() <= split_by_id(bare).items() and len(split_by_id(hub_task)) == 63
    answer = str(eval(first[:-1]))
    verdicts = hub_task.verify(hub_task.problems("train")[0], [answer, f"{answer}0"])
    assert [verdict.scores["correct"] for verdict in verdicts] == [1.0, 0.0]
