"""The horizon tasks: chains, the tool, grading."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs.models.loading import load
from grpobench.tasks import TASKS
from grpobench.tasks.horizon import HIGHEST, LOWEST, Horizon, astray
from grpobench.tasks.task import Problem

NAMES = ("horizon", "horizon-1", "horizon-16", "horizon-64")


def by_hand(**settings: int) -> tuple[Horizon, Problem]:
    """The chain 412 +7 419 -9 410, whose table holds neither 411 nor 413 and has +8 under 418."""
    task = Horizon(steps=2, **settings)
    problem = Problem("x", "table aaadc start 412\n", {"keys": [412, 419, 410], "table": "aaadc"})
    return task, problem


def play(task: Horizon, problem: Problem, turns: list[str]) -> list[str | None]:
    """The tool's reply to each turn."""
    return [task.reply(problem, turns[: end + 1]) for end in range(len(turns))]


# Chains


@pytest.mark.parametrize("name", NAMES)
def test_names_say_how_many_steps(name: str) -> None:
    task = TASKS[name]()
    assert isinstance(task, Horizon)
    assert task.name == name
    assert task.steps == int(name.partition("-")[2] or 4)
    assert task.turns == task.steps + 1 + task.spare


@given(steps=st.integers(1, 64), largest=st.integers(1, 99), seed=st.integers(0, 10**6))
def test_keys_of_a_chain_differ_and_follow_from_each_other(steps: int, largest: int, seed: int) -> None:
    task = Horizon(steps=steps, largest=largest, seed=seed, train=2)
    for problem in task.problems("train"):
        keys = problem.truth["keys"]
        assert len(set(keys)) == len(keys) == steps + 1
        assert all(LOWEST <= key <= HIGHEST for key in keys)
        assert all(0 < abs(b - a) <= task.largest for a, b in itertools.pairwise(keys))
        assert problem.prompt == f"table {problem.truth['table']} start {keys[0]}\n"
        crossed = [a // 10 != b // 10 for a, b in itertools.pairwise(keys)]
        assert problem.traits == {
            "difficulty": steps,
            "category": f"{steps} steps",
            "carries": sum(crossed),
        }


def test_about_half_of_the_keys_off_the_chain_are_in_the_table() -> None:
    entries = [astray(table, key, 9) for table in ("abcde", "vwxyz") for key in range(LOWEST, HIGHEST + 1)]
    there = [entry for entry in entries if entry is not None]
    assert 0.45 < len(there) / len(entries) < 0.55  # 1,800 draws: four standard errors are 0.047
    assert set(there) == {*range(-9, 0), *range(1, 10)}
    assert entries[:900] != entries[900:]


# The tool


def test_replies_by_hand() -> None:
    task, problem = by_hand()
    assert play(task, problem, ["?412", "?419", "=410"]) == ["+7\n", "-9!\n", None]
    assert play(task, problem, ["?411", "?413", "?418", "?99", "?1000"]) == [
        "none\n",
        "none\n",
        "+8\n",
        "none\n",
        "none\n",
    ]
    assert (
        play(task, problem, ["", "412", "?", "=", "? 412", "?412?412", "=4a", "?-12", "?4.0"])
        == ["error\n"] * 9
    )
    assert play(task, problem, [" ?412\n", "=410\n"]) == ["+7\n", None], "space around an action is free"


@pytest.mark.parametrize("name", NAMES)
def test_demonstration_follows_the_replies_to_the_answer(name: str) -> None:
    task = TASKS[name](train=20)
    assert isinstance(task, Horizon)
    for problem in task.problems("train"):
        turns = list(task.demonstrate_episode(problem))
        key = int(problem.prompt.split()[-1])
        for turn, reply in zip(turns, play(task, problem, turns), strict=True):
            if reply is None:
                assert turn == turns[-1] == f"={key}"
            else:
                assert turn == f"?{key}"
                assert reply.endswith("!\n") == (turn == turns[-2])
                key += int(reply.strip("!\n"))
        (verdict,) = task.verify_episodes(problem, [turns])
        assert verdict.scores == {"correct": 1, "progress": 1, "format": 1}
        assert (verdict.answer, verdict.outcome) == (str(key), "graded")


def test_detours_make_a_share_of_the_look_ups_twice() -> None:
    straight, winding = Horizon(train=200, steps=16), Horizon(train=200, steps=16, detours=0.25)
    looked = repeated = 0
    for problem in winding.problems("train"):
        plain, turns = straight.demonstrate_episode(problem), winding.demonstrate_episode(problem)
        assert list(dict.fromkeys(turns)) == list(plain), "the same keys in the same order"
        assert all(turns.count(turn) <= 2 for turn in turns) and turns.count(plain[-1]) == 1
        looked, repeated = looked + 16, repeated + len(turns) - len(plain)
        (verdict,) = winding.verify_episodes(problem, [turns])
        assert verdict.scores == {"correct": 1, "progress": 1, "format": 1}
    assert repeated / looked == pytest.approx(0.25, abs=0.03)  # four standard errors of 3,200 draws
    (problem,) = Horizon(train=1, detours=1.0).problems("train")
    assert len(Horizon(train=1, detours=1.0).demonstrate_episode(problem)) == 9


def test_reply_depends_on_its_arguments_alone() -> None:
    task, problem = by_hand()
    first = play(task, problem, ["?419", "x", "?412"])
    assert play(task, problem, ["?412", "?1", "=1"]) == ["+7\n", "none\n", None]
    assert play(task, problem, ["?419", "x", "?412"]) == first


def test_every_well_formed_episode_fits_the_budget_and_the_nano_context() -> None:
    """The dearest well-formed turn is ?999, its end token and the reply none; prompts have 22 characters."""
    loaded = load("nano")
    for name in NAMES:
        task = TASKS[name](train=3)
        assert task.max_completion_tokens >= task.turns * len("?999.none\n") + task.turn_tokens
        for problem in task.problems("train"):
            assert len(loaded.encode(problem.prompt)) == 22
            assert 22 + task.max_completion_tokens <= loaded.context


def test_rules_are_in_the_prompt_when_asked_for() -> None:
    plain, with_rules = Horizon(train=1), Horizon(train=1, rules=True)
    (bare,), (full,) = plain.problems("train"), with_rules.problems("train")
    assert full.prompt.endswith(bare.prompt)
    assert all(part in full.prompt for part in ("?KEY", "=NUMBER", "You have 9 turns.", "none", "error"))
    assert full.truth == bare.truth


# Grading


@pytest.mark.parametrize(
    ("turns", "correct", "progress", "form", "answer"),
    [
        (["?412", "?419", "=410"], 1, 1, 1, "410"),
        (["?412", "?411", "?419", "=410"], 1, 1, 1, "410"),
        (["?412", "?419", "=411"], 0, 1, 1, "411"),
        (["=410"], 1, 0, 1, "410"),
        (["?419", "=410"], 1, 0, 1, "410"),  # in order: 419 counts behind 412 only
        (["?419", "?412", "=5"], 0, 0.5, 1, "5"),
        (["?412", "oops", "?419", "=410"], 1, 1, 0.75, "410"),
        (["?412", "?419"], 0, 1, 1, None),
        (["?412", "=7", "?419", "=410"], 0, 0.5, 1, "7"),  # the first answer ends the episode
        (["?0412", "=0410"], 1, 0.5, 1, "410"),
        ([""], 0, 0, 0, None),
        ([], 0, 0, 0, None),
    ],
)
def test_scores_by_hand(
    turns: list[str], correct: float, progress: float, form: float, answer: str | None
) -> None:
    task, problem = by_hand()
    (verdict,) = task.verify_episodes(problem, [turns])
    assert verdict.scores == {"correct": correct, "progress": progress, "format": form}
    assert verdict.answer == answer
    assert verdict.outcome == ("graded" if answer else "unparsable")


def test_reward_is_the_answer_alone() -> None:
    task, problem = by_hand()
    assert task.reward == {"correct": 1.0}
    assert task.verify(problem, ["=410", "=411", task.corrupt(problem)]) == [
        *task.verify_episodes(problem, [["=410"], ["=411"], ["=411"]])
    ]


@given(turns=st.lists(st.text(), min_size=1, max_size=6))
def test_no_text_raises(turns: list[str]) -> None:
    task, problem = by_hand()
    assert all(reply is None or reply for reply in play(task, problem, turns))
    (verdict,) = task.verify_episodes(problem, [turns])
    assert all(0 <= score <= 1 for score in verdict.scores.values())


def test_settings_that_change_no_chain_change_no_problem() -> None:
    base = Horizon(train=5)
    assert dataclasses.replace(base, spare=9).problems("train") == base.problems("train")
