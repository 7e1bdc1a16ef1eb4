"""The task tools: the chain, luck, prices and distractors by hand."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from grpobench.tasks.kinds.written import ALPHABET
from grpobench.tasks.task import Problem
from grpobench.tasks.tools import MODULUS, Tools, value_of


def by_hand(**changes: Any) -> tuple[Tools, Problem]:
    """The chain 412 → 45, 412·45 mod 997 = 594 → 27: the answer after two look-ups and a multiplication."""
    calls = [["lookup", {"key": 412}], ["calculator", {"a": 412, "b": 45}], ["lookup", {"key": 594}]]
    truth = {"table": "aaaah", "calls": calls, "answer": value_of("aaaah", 594)}
    return Tools(horizon=4, **changes), Problem("aaaah-412", "table aaaah start 412\n", truth)


def play(task: Tools, problem: Problem, turns: list[str]) -> list[Any]:
    """The reply to each turn."""
    return [task.reply(problem, turns[: end + 1]) for end in range(len(turns))]


def test_values_of_the_example() -> None:
    assert (value_of("aaaah", 412), 412 * 45 % MODULUS, value_of("aaaah", 594)) == (45, 594, 27)


def test_replies_by_hand() -> None:
    task, problem = by_hand(distractors=1)
    turns = ["?412", "*412 45", "?594", "=27"]
    assert play(task, problem, turns) == ["45\n", "594\n", "27!\n", None]
    assert task.demonstrate_episode(problem) == turns
    # The last reply is marked only where the chain was followed to it; keys off the chain have no value.
    assert play(task, problem, ["?594", "?1", "*2 3", "*9 -1"]) == ["27\n", "none\n", "6\n", "988\n"]
    wrong = ["", "412", "?", "?4x", "?412 b", "*412", "&1", "?412;?412"]
    assert [reply[:6] for reply in play(task, problem, wrong)] == ["error:"] * len(wrong)
    (distractor,) = play(task, problem, ["@412"])
    assert 10 <= int(distractor) <= 99


@pytest.mark.parametrize(
    ("turns", "correct", "progress", "calls", "errors", "values"),
    [
        (["?412", "*412 45", "?594", "=27"], 1, 1, 3, 0, (1, 1, 1, 1, 0)),
        (["?412", "?594", "=27"], 1, 1, 2, 0, (1, 1, 1, 0)),  # multiplied in its head
        (["?594", "?412", "!", "=27"], 1, 1 / 3, 2, 1, (1, 1, 1, 0, 0)),  # too few turns are left after three
        (["=27"], 1, 0, 0, 0, (1, 0)),
        (["?412", "=28", "?412"], 0, 1 / 3, 1, 0, (1, 1, 0, 0)),  # the answer ends the episode
        ([], 0, 0, 0, 0, (1,)),
    ],
)
def test_scores_and_values_by_hand(
    turns: list[str], correct: float, progress: float, calls: float, errors: float, values: tuple[float, ...]
) -> None:
    task, problem = by_hand(spare=1)
    (verdict,) = task.verify_episodes(problem, [turns])
    assert verdict.scores == {
        "correct": correct,
        "progress": pytest.approx(progress),
        "calls": calls,
        "errors": errors,
        "earned": 0,
        "return": correct,
    }
    assert task.values(problem, turns) == values, "the base policy makes no mistakes"


def test_prices_are_rewards_of_turns_and_part_of_the_value() -> None:
    """Three calls at a quarter are left before the answer; the wasted second turn costs one more."""
    task, problem = by_hand(price=0.25, spare=1)
    turns = ["?412", "?1", "*412 45", "?594", "=27"]
    (verdict,) = task.verify_episodes(problem, [turns])
    assert verdict.turn_rewards == (-0.25, -0.25, -0.25, -0.25, 0)
    assert (verdict.scores["earned"], verdict.scores["return"]) == (-1, 0)
    assert task.values(problem, turns) == (0.25, 0.5, 0.5, 0.75, 1, 0)
    assert task.credits(problem, turns) == (0, -0.25, 0, 0, 0)


def test_half_of_the_tickets_of_a_turn_win_and_others_in_other_turns() -> None:
    task, problem = by_hand(luck=2.0, spare=8)
    winners = []
    for number in range(12):
        earlier = ["?1 a"] * number
        rewards = {}
        for letter in ALPHABET:
            (verdict,) = task.verify_episodes(problem, [[*earlier, f"?412 {letter}"]])
            rewards[letter] = verdict.turn_rewards[-1]
            assert play(task, problem, [*earlier, f"?412 {letter}"])[-1] == (
                "45+\n" if rewards[letter] > 0 else "45-\n"
            )
        assert sorted(rewards.values()) == [-2] * 4 + [2] * 4
        winners.append("".join(letter for letter in ALPHABET if rewards[letter] > 0))
    assert len(set(winners)) > 6, "12 draws of 70 sets"
    assert play(task, problem, ["?412", "?412 i", "=27"]) == [
        "error: not an action\n",
        "error: ticket must be one of a, b, c, d, e, f, g, h\n",
        None,
    ]


def test_doses_change_no_chain() -> None:
    plain = Tools(train=20)
    for changes in ({"luck": 1.0}, {"price": 0.1}, {"distractors": 4}, {"wasted": 0.2}, {"spare": 9}):
        assert dataclasses.replace(plain, **changes).problems("train") == plain.problems("train")
    longer = [problem.truth["calls"] for problem in Tools(train=20, horizon=9).problems("train")]
    assert [calls[:3] for calls in longer] == [problem.truth["calls"] for problem in plain.problems("train")]


def test_idle_calls_never_advance() -> None:
    task = Tools(train=5, distractors=2)
    names = set()
    for problem in task.problems("train"):
        for seed in range(20):
            call = task.idle_call(problem, random.Random(seed))
            names.add(call.name)
            ((_, step),) = task.steps(problem, [task.write(call)])
            assert step.move == "wasted"
    assert names == {"lookup", "clock", "weather"}
