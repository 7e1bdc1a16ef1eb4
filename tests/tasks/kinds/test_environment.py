"""An environment of others plays by the protocol, in workers, and whatever it does stays an episode's affair:
the verdict says what happened, and other episodes go on."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.stored import dump, load
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.messages import Message, offered_tools
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.data.tools import ToolCall
from grpobench.tasks.kinds import environment
from grpobench.tasks.kinds.environment import EnvironmentTask
from grpobench.tasks.task import Problem
from grpobench.tasks.verifiers import share

SOURCE = '''
import os, random, signal, subprocess, sys, time
from grpobench.tasks.kinds.environment import Message, Tool

STEPS = __file__ + ".steps"

class Counter:
    """Count up to a target by calls of a tool; a text says the total. Each step is noted in a file."""
    name = "counter"
    turns = 6
    scores = ("calls",)

    def __init__(self, by=1):
        self.by = by

    def problems(self, split):
        for target in range(1, 4):
            yield {"id": f"{split}-{target}", "target": target, "category": "sums"}

    def reset(self, problem, seed):
        self.target, self.total, self.calls = problem["target"], 0, 0
        self.noise = random.Random(seed).random()
        return f"Count to {self.target}.", [Tool("add", "Adds.")]

    def step(self, turn):
        with open(STEPS, "a") as file:
            file.write(turn.text + "\\n")
        if not turn.calls:
            return None, float(turn.text == str(self.target) == str(self.total)), True
        self.calls += len(turn.calls)
        self.total += self.by * len(turn.calls)
        return [Message("tool", str(self.total)) for call in turn.calls], 0.25, False

    def grade(self):
        return {"correct": float(self.total == self.target), "calls": self.calls}

class Odd:
    """Does what the policy says."""
    name = "odd"
    def problems(self, split):
        return [{"id": "0"}]
    def reset(self, problem, seed):
        return "Go.", []
    def step(self, turn):
        return {
            "fine": lambda: ("ok", 0.5, False),
            "end": lambda: (None, 0.5, True),
            "hang": lambda: time.sleep(60),
            "spin": lambda: len(str(9 ** (9**8))),
            "raise": lambda: 1 // 0,
            "exit": lambda: sys.exit(0),
            "die": lambda: os._exit(0),
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "eat": lambda: len(bytearray(3 * 1024**3)),
            "huge": lambda: ("x" * 100_000_000, 0.0, False),
            "nan": lambda: ("ok", float("nan"), False),
            "text": lambda: ("ok", "1", False),
            "empty": lambda: ("", 0.0, False),
            "quiet": lambda: ([Message("tool", "")], 0.0, False),
            "none": lambda: None,
            "number": lambda: (7, 0.0, False),
            "system": lambda: ([Message("system", "obey")], 0.0, False),
            "maybe": lambda: ("ok", 0.0, "no"),
            "fork": lambda: (os.fork(), "ok", 0.5, False)[1:],
            "print": lambda: (print("[0]"), os.write(1, b"[0]"), "ok", 0.5, False)[2:],
            "surrogate": lambda: ("\\ud800", 0.5, False),
            "sleeper": lambda: (str(subprocess.Popen(["sleep", "60"]).pid), 0.0, False),
        }[turn.text]()

class Moody(Odd):
    """Replies by a generator of its own."""
    name = "moody"
    def step(self, turn):
        return str(random.SystemRandom().random()), 0.0, False

class Broken(Odd):
    name = "broken"
    def __init__(self, method, what=None):
        self.method, self.what = method, what
    def problems(self, split):
        return self.what if self.method == "problems" else [{"id": "0"}]
    def reset(self, problem, seed):
        return self.what if self.method == "reset" else ("Go.", [])
    def grade(self):
        return {"correct": self.what}

class Late(Odd):
    """What is earned shows at the end; `prepare` has loaded what it takes."""
    name = "late"
    @classmethod
    def prepare(cls, earned):
        cls.loaded = {"earned": earned}
    def __init__(self, earned):
        pass
    def grade(self):
        return {"return": self.loaded["earned"], "correct": 1.0}
'''


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("environments")
    (made / "mine.py").write_text(SOURCE)
    yield made
    for pool in environment.POOLS.values():
        pool.close()


def task(folder: Path, name: str, **settings: Any) -> EnvironmentTask:
    return EnvironmentTask(name=name.lower(), environment=f"mine:{name}", folder=folder, **settings)


def call(name: str = "add") -> str:
    return str(ToolCall(name))


def test_an_episode_has_replies_rewards_and_scores(folder: Path) -> None:
    counter = task(folder, "Counter", arguments={"by": 1}, scores=("correct", "return", "calls"))
    problem = counter.problems("train")[1]
    assert (problem.id, problem.truth["target"], problem.traits) == ("train-2", 2, {"category": "sums"})
    assert [tool.name for tool in offered_tools(problem.prompt)] == ["add"]
    assert problem.prompt[1:] == (Message("user", "Count to 2."),)
    turns = (call(), call(), "2")
    assert counter.reply(problem, turns[:1]) == (Message("tool", "1"),)
    assert counter.reply(problem, turns[:2]) == (Message("tool", "2"),)
    assert counter.reply(problem, turns) is None
    (verdict,) = counter.verify_episodes(problem, [turns])
    assert verdict.turn_rewards == (0.25, 0.25, 1.0)
    assert verdict.scores == {"correct": 1.0, "return": 1.5, "calls": 2.0}
    assert (verdict.outcome, verdict.fault) == ("graded", "")


def test_a_turn_costs_one_step_and_a_lost_worker_a_replay(folder: Path) -> None:
    counter = task(folder, "Counter", scores=("correct", "return", "calls"))
    problem = counter.problems("test")[2]
    noted = folder / "mine.py.steps"
    noted.write_text("")
    turns = [f"{n}{call()}" for n in range(4)]
    replies = [counter.reply(problem, turns[: n + 1]) for n in range(4)]
    counter.verify_episodes(problem, [turns])
    assert noted.read_text().split() == ["0", "1", "2", "3"]
    for pool in environment.POOLS.values():
        pool.close()
    assert counter.reply(problem, turns) == replies[-1] == (Message("tool", "4"),)
    assert noted.read_text().split() == ["0", "1", "2", "3"] * 2


def test_malformed_calls_are_observations_that_the_environment_does_not_see(folder: Path) -> None:
    counter = task(folder, "Counter", scores=("correct", "return", "calls"))
    problem = counter.problems("train")[0]
    reply = counter.reply(problem, ["<tool_call>{no</tool_call>"])
    assert reply is not None and isinstance(reply[0], Message) and reply[0].role == "tool"
    assert reply[0].content.startswith("error: a tool call is no JSON")
    assert counter.reply(problem, [call("sub")]) == (
        Message("tool", "error: no tool 'sub'; the tools are add"),
    )
    turns = ["<tool_call>{no</tool_call>", call(), "1"]
    (verdict,) = counter.verify_episodes(problem, [turns])
    assert verdict.scores["correct"] == 1.0 and verdict.turn_rewards == (0.0, 0.25, 1.0)


@pytest.mark.parametrize(
    ("turn", "outcome", "fault"),
    [
        ("hang", "timeout", "Odd.step took longer than 0.2 s of CPU or 0.6 s"),
        ("spin", "timeout", "Odd.step took longer than 0.2 s of CPU or 0.6 s"),
        ("raise", "crash", "Odd.step raised ZeroDivisionError: integer division or modulo by zero (mine.py:"),
        ("exit", "crash", "Odd.step raised SystemExit: 0"),
        ("die", "crash", "Odd.step ended its process, or took more than 2 GiB"),
        ("kill", "infra_error", "Odd.step did not return: its process was killed from outside"),
        ("eat", "crash", "Odd.step ended its process, or took more than 2 GiB"),
        ("huge", "crash", "Odd.step returned a reply of 100,000,000 characters, more than 100,000"),
        ("nan", "crash", "Odd.step returned the reward = float nan, expected a finite number"),
        ("text", "crash", "Odd.step returned the reward = str '1', expected a finite number"),
        ("empty", "crash", "Odd.step returned an empty reply before the end"),
        ("none", "crash", "Odd.step returned None, expected (reply, reward, done)"),
        ("number", "crash", "Odd.step returned the reply int 7, expected a text or messages"),
        ("system", "crash", "Odd.step returned a message of 'system', expected text of user or tool"),
        ("maybe", "crash", "Odd.step returned done = str 'no', expected True or False"),
    ],
)
def test_what_an_environment_does_wrong_is_its_episode_s_affair(
    folder: Path, turn: str, outcome: str, fault: str
) -> None:
    # Only what hangs has to be ended soon: on a busy machine an honest step may take long.
    odd = task(folder, "Odd", step_seconds=0.2 if outcome == "timeout" else 5.0)
    (problem,) = odd.problems("train")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        replies = odd.reply_all([problem] * 3, [["fine"], ["fine", turn], ["fine", "fine"]])
        began = time.monotonic()
        wrong, fine = odd.verify_episodes(problem, [["fine", turn], ["fine", "fine"]])
    assert replies == [(Message("user", "ok"),), None, (Message("user", "ok"),)]
    assert (wrong.outcome, wrong.scores) == (outcome, {"correct": 0.0, "return": 0.0})
    assert wrong.fault.startswith(fault)
    assert (fine.outcome, fine.turn_rewards, fine.scores["correct"]) == ("graded", (0.5, 0.5), 1.0)
    assert time.monotonic() - began < 30  # what hung once is not waited for again; a busy host takes long


@pytest.mark.parametrize("turn", ["fork", "print", "surrogate"])
def test_forks_output_and_half_characters_disturb_nothing(folder: Path, turn: str) -> None:
    odd = task(folder, "Odd", step_seconds=2.0)
    (problem,) = odd.problems("train")
    for _ in range(3):
        assert odd.reply(problem, ["fine", turn]) in [(Message("user", "ok"),), (Message("user", "?"),)]
    assert [v.turn_rewards for v in odd.verify_episodes(problem, [["fine", turn]])] == [(0.5, 0.5)]


def test_what_an_environment_started_ends_with_its_worker(folder: Path) -> None:
    odd = task(folder, "Odd", step_seconds=0.3)
    (problem,) = odd.problems("train")
    reply = odd.reply(problem, ["sleeper"])
    assert reply is not None and isinstance(reply[0], Message)
    sleeper = Path(f"/proc/{reply[0].content}/stat")
    assert sleeper.exists()
    with pytest.warns(UserWarning, match="outcome timeout: Odd.step took longer than 0.3 s") as warned:
        odd.reply(problem, ["sleeper", "hang"])
        odd.reply(problem, ["fine", "hang"])
    assert len(warned) == 1  # of equal messages
    until = time.monotonic() + 5
    while sleeper.exists() and " Z " not in sleeper.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert not sleeper.exists() or " Z " in sleeper.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "problems"}, "Broken.problems raised TypeError: 'NoneType' object is not iterable"),
        ({"method": "problems", "what": []}, r"problems\('train'\) is empty"),
        ({"method": "problems", "what": [7]}, "Broken.problems returned int 7 as problem 1"),
        ({"method": "problems", "what": [{"id": 1}, {"id": "1"}]}, "two problems with the id '1'"),
        ({"method": "reset"}, r"Broken.reset returned None, expected \(prompt, tools\)"),
        ({"method": "nothing"}, None),
    ],
)
def test_malformed_problems_stop_with_class_and_method(
    folder: Path, arguments: dict[str, Any], message: str | None
) -> None:
    broken = task(folder, "Broken", arguments=arguments)
    if message is None:
        (problem,) = broken.problems("train")
        with pytest.warns(UserWarning, match="Broken.grade returned the score correct = None"):
            assert broken.verify_episodes(problem, [["end"]])[0].outcome == "crash"
        return
    with pytest.raises(DataError, match=f"task broken: .*{message}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        broken.problems("train")


def test_what_is_earned_at_the_end_is_the_last_turn_s(folder: Path) -> None:
    late = task(folder, "Late", arguments={"earned": 3.0})
    (problem,) = late.problems("train")
    (verdict,) = late.verify_episodes(problem, [["fine", "fine", "end"]])
    assert verdict.turn_rewards == (0.5, 0.5, 2.0) and verdict.scores["return"] == 3.0


def test_a_tool_may_return_nothing(folder: Path) -> None:
    odd = task(folder, "Odd")
    (problem,) = odd.problems("train")
    assert odd.reply(problem, ["quiet"]) == (Message("tool", "none"),)
    (verdict,) = odd.verify_episodes(problem, [["quiet", "end"]])
    assert verdict.outcome == "graded" and verdict.scores["return"] == 0.5


def test_an_environment_without_reference_episodes_says_what_needs_them(folder: Path) -> None:
    odd = task(folder, "Odd")
    message = r"task odd: Odd has no method demonstrate.*leave out .*model\.warm_start_answers"
    with pytest.raises(DataError, match=message):
        odd.demonstrate_episode(odd.problems("train")[0])


@given(rows=st.lists(st.text(), unique=True, min_size=3, max_size=60), tested=st.booleans())
def test_rows_of_verifiers_are_split_without_an_empty_split(rows: list[str], tested: bool) -> None:
    train, validation, test = (share(rows, split, tested) for split in ("train", "validation", "test"))
    assert sorted(train + validation + test) == list(range(len(rows)))
    assert len(validation) == math.ceil(len(rows) / 10) and len(test) == (0 if tested else len(validation))
    assert train  # 3 rows are 1, 1 and 1


def test_replays_that_differ_show_in_the_check(folder: Path) -> None:
    moody, odd = task(folder, "Moody"), task(folder, "Counter")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (fault,) = moody.replay_faults(moody.problems("train"))
    assert "problem 0: two replays of the same turns differ at turn 1" in fault
    assert odd.replay_faults(odd.problems("train")) == []
    assert isinstance(odd.problems("train")[0], Problem)


def recipe(folder: Path, tasks: str, *sets: str) -> Any:
    path = folder / "recipe.toml"
    path.write_text(f'tasks = [{tasks}]\n[[arm]]\nalgorithm = "grpo"\n')
    return read_recipe(str(path), list(sets)).configs[0]


def test_a_recipe_adds_names_of_scores(folder: Path) -> None:
    config = recipe(folder, '{ name = "env:mine:Odd", settings = { scores = ["depth", "return"] } }')
    assert config.task.scores == ("correct", "return", "depth")
    with pytest.raises(ConfigError, match=r"scores"):
        recipe(folder, '{ name = "env:mine:Odd", settings = { scores = 7 } }')


def test_a_recipe_names_the_class_and_run_toml_keeps_it(folder: Path) -> None:
    config = recipe(folder, '{ name = "env:mine:Counter", settings = { seed = 3, arguments = { by = 2 } } }')
    counter = config.task
    assert (counter.name, counter.turns, counter.scores) == ("counter", 6, ("correct", "return", "calls"))
    assert (counter.folder, counter.seed, counter.arguments) == (folder, 3, {"by": 2})
    assert load(dump(config)).task == counter and config.beside == str(folder)
    again = recipe(folder, '"env:mine:Counter"', "task.counter.settings.turns=2")
    assert again.task == dataclasses.replace(counter, turns=2, seed=0, arguments={})


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ('"env:mine:Conter"', r"mine.py has no 'Conter'; did you mean mine:Counter\?"),
        ('"env:mine:STEPS"', "mine:STEPS lacks problems, reset, step"),
        ('"env:yours:Counter"', "no module 'yours'"),
        (
            '{ name = "env:mine:Counter", settings = { arguments = { bye = 1 } } }',
            "unexpected keyword argument 'bye'|unexpected.*'bye'",
        ),
        ('{ name = "env:mine:Counter", settings = { turns = 0 } }', "turns: must be at least 1"),
        ('{ name = "env:mine:Counter", settings = { turn = 1 } }', "did you mean .*turns"),
    ],
)
def test_what_is_wrong_with_the_entry_of_an_environment(folder: Path, tasks: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(folder, tasks)
