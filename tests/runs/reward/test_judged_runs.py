"""Whole runs and evaluations with a judge: killed and resumed, offline, and without a trace of the key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.chat_server import Answer, ChatServer, chat_server, completion
from helpers.shell import command
from helpers.whole_runs import TIMED

from grpobench.runs import cli
from grpobench.runs.reward.chat import JudgingError
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import RewardConfig
from grpobench.runs.settings.judge import JudgeConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.train.parts import build
from grpobench.runs.train.trial import unjudged

KEY = "sk-never-written-anywhere"
RUN = "judged/grpo-arithmetic-s0"
RECIPE = """
name = "judged"
seeds = [0]
tasks = ["arithmetic"]
model.name = "nano"
train = { steps = 3, prompts_per_step = 2, group_size = 4 }
sampler.max_completion_tokens = 16
checkpoint.every = 1

[reward]
kind = "sum"
weights = { correct = 1, judge = 0.5 }

[reward.judge]
model = "tester"
key_variable = "JUDGE_KEY"
rubric = "Rate {response} as an answer to {prompt}, which is {reference}."
repeats = 2
temperature = 1

[evaluate]
every = 2
problems = 4
test_problems = 0
samples = 1
greedy = false
kl_base = false

[evaluate.judge]
model = "tester"
rubric = "Is it short? {response}"

[[arm]]
algorithm = "grpo"
"""


def reply(content: str, number: int) -> Answer:
    """A verdict that depends on when it is asked for, as those of a real judge do."""
    return completion(
        f"<think>{number}?</think>\n**Score: {(len(content) + 3 * number) % 11}**", (len(content), 4)
    )


def begin(folder: Path, url: str) -> subprocess.Popen[str]:
    """`grpobench run` in a group of processes of its own."""
    program = "import sys; from grpobench.runs.cli import main; sys.exit(main())"
    address = [f"--set=reward.judge.url={url}", f"--set=evaluate.judge.url={url}"]
    words = [sys.executable, "-c", program, "run", "judged.toml", "--workers=1", *address]
    environment = {**os.environ, "JUDGE_KEY": KEY, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def logged(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run without its times."""
    lines = (folder / "results" / RUN / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith(TIMED)}
        for line in lines
    ]


def duplicates(server: ChatServer) -> list[str]:
    """Requests that came more often than their judge repeats them."""
    most = {True: 2, False: 1}  # of rewards, of evaluations
    counted = Counter(server.contents)
    return [content for content, count in counted.items() if count > most[content.startswith("Rate")]]


@pytest.mark.slow
def test_killed_run_resumes_with_no_request_twice_and_the_same_numbers(tmp_path: Path) -> None:
    (tmp_path / "judged.toml").write_text(RECIPE)
    verdicts = tmp_path / "results" / "judged" / "shared" / "judge.jsonl"
    patience = time.monotonic() + 600  # seconds, of a busy machine
    stuck = 12

    def until_killed(content: str, number: int) -> Answer:
        if number >= stuck:  # this one and those after it get no answer
            time.sleep(600)
        return reply(content, number)

    with chat_server(until_killed) as server:
        process = begin(tmp_path, server.url)
        while not (verdicts.exists() and len(verdicts.read_text().splitlines()) == stuck):
            assert process.poll() is None and time.monotonic() < patience, process.communicate()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        answered = server.contents[:stuck]
    killed = verdicts.read_text()
    assert not duplicates(server)

    with chat_server(lambda content, number: reply(content, number + stuck)) as server:
        process = begin(tmp_path, server.url)
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        server.requests[:0] = [
            {"messages": [{"content": content}]} for content in answered
        ]  # those of both attempts together
    assert not duplicates(server)
    assert verdicts.read_text().startswith(killed)
    rows = logged(tmp_path)
    assert sum(row["judge/calls"] for row in rows if "judge/calls" in row) > 0

    # Offline, from the verdicts of the run, in a folder of its own.
    offline = tmp_path / "offline"
    offline.mkdir()
    (offline / "verdicts.jsonl").write_bytes(verdicts.read_bytes())
    recorded = RECIPE.replace('model = "tester"', 'model = "tester"\nrecorded = "verdicts.jsonl"')
    (offline / "judged.toml").write_text(recorded)
    done = command("run", "judged.toml", "--workers=1", folder=offline)
    assert done.returncode == 0, done.stdout + done.stderr
    assert logged(offline) == rows
    assert not (offline / "results" / "judged" / "shared" / "judge.jsonl").exists()

    traces = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not traces and KEY not in printed


def test_evaluation_with_a_judge_scores_answers_and_keeps_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.toml").write_text(
        'url = "URL"\nmodel = "tester"\nrubric = "Is it short? {response}"\nrepeats = 2\ntemperature = 1\n'
    )
    with chat_server(reply) as server:
        path = tmp_path / "judge.toml"
        path.write_text(path.read_text().replace("URL", server.url))
        words = ["eval", "nano", "--task", "arithmetic", "--problems", "4", "--judge", "judge.toml"]
        assert cli.main([*words, "--json"]) == 0
        first = json.loads(capsys.readouterr().out)
        asked_first = len(server.requests)
        assert cli.main([*words, "--json", "--again"]) == 0
    assert len(server.requests) == asked_first
    assert {*Counter(server.contents).values()} == {2}  # each answer as often as it is repeated
    (record,) = first["records"]
    numbers = record["numbers"]["model"]
    assert 0 <= numbers["eval/test/greedy/judge"] <= 1
    assert {f"eval/test/greedy/judge_{name}" for name in ("agreement", "unreadable", "calls")} <= {*numbers}
    repeated = json.loads(capsys.readouterr().out)["records"][0]["numbers"]["model"]
    assert repeated == numbers
    rows = [json.loads(line) for line in Path(tmp_path / record["path"]).with_suffix(".jsonl").open()]
    assert all(len(row["judge"]) == 2 and "judge" in row["scores"] for row in rows)


def test_how_a_judge_is_asked_is_no_change_of_a_run_and_what_is_asked_is_one(tmp_path: Path) -> None:
    path = tmp_path / "judged.toml"
    path.write_text(RECIPE.replace('model = "tester"', 'model = "tester"\nurl = "http://a/v1"'))
    (before,) = read_recipe(str(path)).configs

    def differences(*sets: str) -> list[str]:
        (after,) = read_recipe(str(path), list(sets)).configs
        assert stored.load(stored.dump(after)) == after
        return stored.differences(stored.dump(before), stored.dump(after))

    ways = ("url=http://b/v1", "max_calls=9", "timeout=3", "prices=[1.0, 2.0]", "concurrency=1", "retries=0")
    assert differences(*(f"reward.judge.{way}" for way in ways), "evaluate.judge.max_tokens=5") == []
    assert differences("reward.judge.repeats=3") == ["reward.judge.repeats: 2 -> 3"]
    assert differences("evaluate.judge.model=other") == ['evaluate.judge.model: "tester" -> "other"']


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[reward.judge]", "[reward.juge]"), "reward.juge: unknown key; did you mean reward.judge?"),
        (
            ('rubric = "Rate', 'rubrik = "Rate'),
            "reward.judge.rubrik: unknown key; did you mean reward.judge.rubric?",
        ),
        (("repeats = 2", 'repeats = "many"'), "reward.judge.repeats: must be a whole number"),
        (("temperature = 1", "temperature = 0"), "reward.judge.repeats: at temperature 0 they would agree"),
        (
            ("weights = { correct = 1, judge = 0.5 }", "weights = { correct = 1, jugde = 1 }"),
            "did you mean judge?",
        ),
    ],
)
def test_wrong_settings_are_named_with_a_remedy(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    text = RECIPE.replace('model = "tester"', 'model = "tester"\nurl = "http://a/v1"').replace(*change)
    (tmp_path / "judged.toml").write_text(text)
    done = command("run", "judged.toml", "--dry-run", folder=tmp_path)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_trial_asks_no_judge() -> None:
    judge = JudgeConfig(model="m", url="http://a", rubric="{response}")
    weighed = RewardConfig(kind="sum", weights={"correct": 1.0, "judge": 0.5}, judge=judge)
    assert unjudged(weighed).weights == {"correct": 1.0, "constant": 0.5}
    assert unjudged(RewardConfig(kind="judge", judge=judge)).kind == "constant"
    assert unjudged(RewardConfig()) == RewardConfig()


def test_key_that_is_not_set_stops_a_run_before_it_trains(tmp_path: Path) -> None:
    text = RECIPE.replace('model = "tester"', 'model = "tester"\nurl = "http://a/v1"')
    (tmp_path / "judged.toml").write_text(text)
    (config,) = read_recipe(str(tmp_path / "judged.toml")).configs  # also where the key is not
    with pytest.raises(JudgingError, match="variable JUDGE_KEY is not set; set it to the API"):
        build(config)
