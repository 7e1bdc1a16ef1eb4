"""`grpobench browse`: the table of stored texts, its filters, what a terminal shows, and the local server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from helpers.hostile import HOSTILE
from helpers.many_texts import completion, pack, write_many, write_run
from helpers.served import served

from grpobench.analysis.browse.browsing import print_texts, read_store
from grpobench.analysis.browse.store import Filters, Store, open_store
from grpobench.analysis.browse.texts import list_text_files, read_texts
from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.cli import main

FAILED = "test 2 of 3: f(1) == 2, got '\x1b[2J<b>'"


def evaluate(run: Path, step: int, answers: dict[str, tuple[str, float]]) -> None:
    """Store greedy answers to test problems: problem -> (text, correct)."""
    rows = [
        {"problem": problem, "mode": "greedy", "sample": 0, "completion": text, "prompt": f"Q {problem}"}
        | ({} if correct else {"failed_test": FAILED})
        for problem, (text, correct) in answers.items()
    ]
    pack(run / "completions" / f"test-step-{step}.jsonl.zst", rows)
    with (run / "eval.jsonl").open("a") as log:
        for problem, (text, correct) in answers.items():
            graded = {"scores": {"correct": correct}, "answer": text[-1:], "outcome": "graded", "length": 3}
            key = {"step": step, "split": "test", "mode": "greedy", "problem": problem, "sample": 0}
            log.write(json.dumps({**key, **graded, "stopped": step == 0}) + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two arms; `a` loses p1 and gains p2 between steps 0 and 4, `b` changes nothing."""
    folder = tmp_path / "results"
    for arm, last in (("a", {"p1": ("it is 3", 0.0), "p2": ("it is 4", 1.0)}), ("b", None)):
        run = write_run(folder, arm, 1)
        before = {"p1": ("it is 2", 1.0), "p2": ("it is 9", 0.0)}
        evaluate(run, 0, before)
        evaluate(run, 4, last or before)
        turns = [{"by": "policy", "text": "look"}, {"by": "environment", "text": "a wall"}]
        texts = [
            completion("left 1", 1.0, turns=turns),
            completion("cut", 0.0, outcome="unparsable", answer=None, failed_test=FAILED),
        ]
        pack(run / "rollouts" / "step-4.jsonl.zst", [{"problem": "t1", "prompt": "go", "completions": texts}])
    return folder


def filled(root: Path, **filters: Any) -> tuple[Store, list[dict[str, Any]]]:
    store, chosen = read_store(root, Filters.of(filters))
    return store, list(store.complete_rows(chosen))


def test_the_table_has_every_completion_with_prompt_answer_and_the_graders_reading(root: Path) -> None:
    _, rows = filled(root)
    assert len(rows) == 2 * (4 + 2)
    lost = next(row for row in rows if (row["arm"], row["step"], row["problem"]) == ("a", 4, "p1"))
    expected = {"kind": "test greedy", "outcome": "wrong", "change": "lost", "answer": "3", "prompt": "Q p1"}
    expected |= {"stop": "limit", "length": 3, "failed_test": r"test 2 of 3: f(1) == 2, got '\x1b[2J<b>'"}
    assert {name: lost[name] for name in expected} == expected
    trained = [row for row in rows if row["kind"] == "rollout" and row["arm"] == "b"]
    assert [row["outcome"] for row in trained] == ["right", "unparsable"]
    assert trained[0]["turns"] == [["policy", "look"], ["environment", "a wall"]]
    assert (trained[0]["prompt"], trained[0]["reward"], trained[1]["answer"]) == ("go", 1.0, None)
    assert (trained[0]["failed_test"], trained[1]["failed_test"]) == ("", expected["failed_test"])


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"change": ["lost"]}, [("a", 4, "p1")]),
        ({"change": ["lost"], "step": [4]}, [("a", 4, "p1")]),  # the first step is read, and not shown
        ({"change": ["gained"]}, [("a", 4, "p2")]),
        ({"arm": ["b"], "problem": ["p2"], "step": [0, 4]}, [("b", 0, "p2"), ("b", 4, "p2")]),
        ({"arm": ["a"], "outcome": ["unparsable"]}, [("a", 4, "t1")]),
        ({"arm": ["a"], "contains": "IT IS 4"}, [("a", 4, "p2")]),
        ({"arm": ["a"], "pattern": r"^left \d$"}, [("a", 4, "t1")]),
        ({"arm": ["a"], "reward_min": 0.5}, [("a", 4, "t1")]),
        ({"arm": ["a"], "length_max": 1}, [("a", 4, "t1")]),
        ({"arm": ["a"], "kind": ["test greedy"], "stop": ["limit"]}, [("a", 4, "p1"), ("a", 4, "p2")]),
    ],
)
def test_filters_leave_what_they_ask_for(root: Path, filters: dict[str, Any], expected: Any) -> None:
    store, rows = filled(root, **filters)
    assert [(row["arm"], row["step"], row["problem"]) for row in rows] == expected
    assert store.count(Filters.of(filters)) == len(expected)


def test_numbers_of_tokens_fit_the_shown_text_and_those_that_fit_no_text_are_named(tmp_path: Path) -> None:
    """An emoji takes two units of UTF-16, and a zero byte is shown as the four characters of its escape."""
    run = write_run(tmp_path / "r", "a", 1)
    tokens = {"characters": [1, 1, 0, 2], "logp": [-0.5, None, -1, -2], "ratio": [1, None, 1, 2]}
    good = completion("x\x00\U0001f600!", 1.0, token_numbers=tokens)
    pack(run / "rollouts/step-1.jsonl.zst", [{"problem": "p", "prompt": "", "completions": [good]}])
    bad = completion("xyz", 1.0, token_numbers=tokens)
    pack(run / "rollouts/step-2.jsonl.zst", [{"problem": "p", "prompt": "", "completions": [bad]}])
    store, (row,) = filled(tmp_path / "r")
    assert row["tokens"] == {"lengths": [1, 4, 0, 3], "logp": [-0.5, None, -1, -2], "ratio": [1, None, 1, 2]}
    assert row["text"] == r"x\x00" + "\U0001f600!" and sum(row["tokens"]["lengths"]) == 8
    assert "step-2.jsonl.zst: damaged numbers of tokens (they do not cover the text)" in store.faults[0]


def test_a_row_knows_its_like_in_other_arms_and_steps(root: Path) -> None:
    store, rows = filled(root)
    first = next(row for row in rows if row["problem"] == "p1")
    assert [(row["arm"], row["step"]) for row in store.alike(first["id"])] == [
        (a, s) for a in "ab" for s in (0, 4)
    ]


def test_damaged_files_are_named_and_the_others_are_read(root: Path) -> None:
    (root / "a-sums-s1" / "rollouts" / "step-4.jsonl.zst").write_bytes(b"no frame")
    with (root / "b-sums-s1" / "eval.jsonl").open("r+") as log:
        log.write("#")  # in place of the first brace
    store, rows = filled(root)
    assert len(rows) == 10
    assert [fault.split(":")[0].rpartition("/")[2] for fault in store.faults] == [
        "step-4.jsonl.zst",
        "eval.jsonl, line 1",
    ]
    assert {row["outcome"] for row in rows if row["arm"] == "b" and row["kind"] == "test greedy"} == {""}


def test_only_the_files_of_chosen_runs_and_steps_are_read(root: Path) -> None:
    assert {file.path.parent.parent.name for file in open_store(root, Filters(arm=["a"])).files} == {
        "a-sums-s1"
    }
    store = open_store(root, Filters(step=[0]))
    assert {file.step for file in store.files if file not in store.passed_over} == {0}


def hostile(text: str) -> dict[str, Any]:
    return completion(text, 0.0, failed_test=f"test 1 of 1: f() == 1, got {text[:200]}")


def test_a_terminal_gets_prompt_and_texts_without_anything_that_it_obeys(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(
        root / "a-sums-s1" / "rollouts" / "step-9.jsonl.zst",
        [{"problem": "h", "prompt": "Q\u202e?", "completions": [hostile(text) for text in HOSTILE]}],
    )
    assert main(["browse", str(root), "--problem", "h", "--step", "9"]) == 0
    printed = capsys.readouterr().out
    assert r"\x1b[2J" in printed and r"\x00" in printed and r"\u202e" in printed and r"\ud800" in printed
    assert all(character == "\n" or character.isprintable() for character in printed)
    assert r"rollout, sample 2: wrong (failed test 1 of 1: f() == 1, got \x1b[2J\x1b]0;owned" in printed
    assert printed.count("Q\\u202e?") == 1 and printed.count("a, seed 1, step 9, rollout") == len(HOSTILE)


def test_a_part_of_a_problems_name_is_enough_in_a_terminal(root: Path) -> None:
    texts = list(print_texts(root, Filters(problem=["t"], arm=["a"]), print))
    assert texts[0].startswith("sums, problem t1") and len(texts) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--problem", "nowhere"], "no text with problem nowhere; there are arm: a, b; task: sums"),
        (["--arm", "c", "--to", "page.html"], "no text with arm c; there are arm: a, b; task: sums"),
        (["--pattern", "(", "--to", "page.html"], "--pattern: '(' is no regular expression"),
        (["--step", "last", "--problem", "p1"], "--step last: write numbers"),
    ],
)
def test_a_mistake_is_told_with_what_there_is(
    root: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["browse", str(root), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_texts_says_which_setting_stores_them(tmp_path: Path) -> None:
    write_run(tmp_path / "empty", "a", 1)
    with pytest.raises(LogError, match=r"evaluate\.completions"):
        open_store(tmp_path / "empty")


def test_every_row_of_many_is_read_once(tmp_path: Path) -> None:
    files, faults = list_text_files(write_many(tmp_path / "many", 800, steps=5))
    assert (len(files), sum(map(len, read_texts(files, faults))), faults) == (20, 800, [])


def test_a_log_of_inspect_ai_explains_a_wrong_score_by_the_failed_test(root: Path, tmp_path: Path) -> None:
    words = ["--step", "4", "--arm", "a", "--kind", "test greedy", "--inspect", str(tmp_path)]
    assert main(["browse", str(root), *words]) == 0
    (path,) = tmp_path.glob("*.json")
    scores = [sample["scores"]["correct"] for sample in json.loads(path.read_text())["samples"]]
    lost, gained = (score["explanation"] for score in scores)
    assert (lost, gained) == (r"wrong; failed test 2 of 3: f(1) == 2, got '\x1b[2J<b>'", "right")


def test_inspect_ai_reads_the_logs(root: Path, tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed")
    assert main(["browse", str(root), "--step", "4", "--arm", "a", "--inspect", str(tmp_path / "logs")]) == 0
    read = {
        entry.eval.dataset.name: entry
        for entry in map(log.read_eval_log, log.list_eval_logs(str(tmp_path / "logs")))
    }
    assert read.keys() == {"test greedy", "rollout"}
    (lost, _gained), trained = read["test greedy"].samples, read["rollout"].samples
    assert (lost.id, lost.input, lost.output.completion, lost.output.stop_reason) == (
        "p1",
        "Q p1",
        "it is 3",
        "max_tokens",
    )
    assert (lost.scores["correct"].value, lost.scores["correct"].answer) == (0.0, "3")
    assert [metric.value for metric in read["test greedy"].results.scores[0].metrics.values()] == [0.5]
    assert [(sample.id, sample.epoch) for sample in trained] == [("t1", 1), ("t1", 2)]
    assert [message.role for message in trained[0].messages] == ["user", "assistant", "user"]


# The server


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    with served(root) as address:
        yield address


def get(address: str, page: str = "", host: str = "", method: str = "GET", **query: Any) -> tuple[int, str]:
    parts = urlsplit(address)
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    headers = {"Host": host} if host else {}
    connection.request(method, f"{parts.path}{page}?{urlencode(query)}", headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_the_server_answers_with_a_page_of_rows_at_most(address: str) -> None:
    status, body = get(address, "rows", filters='{"arm": ["a"]}', order="step", descending=1, start=1, most=2)
    content = json.loads(body)
    assert (status, content["total"], [row["step"] for row in content["rows"]]) == (200, 6, [4, 4])
    assert len(json.loads(get(address, "rows", most=10**9)[1])["rows"]) == 12
    number = content["rows"][0]["id"]
    assert json.loads(get(address, "row", id=number)[1])["prompt"]
    assert len(json.loads(get(address, "alike", id=number)[1])) >= 2


def test_the_server_refuses_whoever_lacks_the_token_or_comes_by_another_name(address: str) -> None:
    parts = urlsplit(address)
    bare = f"http://{parts.netloc}/"
    assert parts.hostname == "127.0.0.1" and len(parts.path) > 24
    assert get(address)[0] == get(address, host=f"localhost:{parts.port}")[0] == 200
    for wrong in (bare, bare + "x" * 32 + "/", address[:-2] + "/"):
        for page in ("", "rows", "row"):
            assert get(wrong, page)[0] == 403
    assert get(address, host=f"attacker.example:{parts.port}")[0] == get(address, host="127.0.0.1")[0] == 403
    assert get(address, method="POST")[0] == 501


@pytest.mark.parametrize(
    ("page", "query", "status"),
    [
        ("rows", {"filters": '{"pattern": "("}'}, 400),
        ("rows", {"filters": '{"arm": "a"}'}, 400),
        ("rows", {"filters": '{"id) OR (1": ["a"]}'}, 400),
        ("rows", {"filters": "[" * 10_000}, 400),
        ("rows", {"start": "x"}, 400),
        ("row", {"id": 999}, 404),
        ("row", {}, 404),
        ("other", {}, 404),
    ],
)
def test_a_bad_question_gets_an_answer_and_the_server_lives_on(
    address: str, page: str, query: dict[str, Any], status: int
) -> None:
    assert get(address, page, **query)[0] == status
    assert get(address, "rows", order="id; DROP TABLE texts")[0] == 200
    assert json.loads(get(address, "rows")[1])["total"] == 12
