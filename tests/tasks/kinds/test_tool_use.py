"""What tasks with tools share: notations, replay, and the oracle for the value of a state."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.tasks import TASKS
from grpobench.tasks.data.messages import Message, offered_tools
from grpobench.tasks.data.tools import ToolCall
from grpobench.tasks.kinds.tool_use import Chances, ToolUse, expected
from grpobench.tasks.task import Problem

FORMS = [(name, notation) for name in ("tools", "files") for notation in ("short", "tools")]
MOVES = (
    *(
        "?412",
        "*412 37",
        "=5",
        "@7",
        "?1 b",
        "?1;?2",
        "l",
        "rb/h",
        "wb/h cat",
        "mb/h x/h",
        "db/h",
        "fcat",
        ".",
    ),
    *("", "!", ";" * 99, "?" + "9" * 9999, "w../h x", "wb/h/h x", "mb/h b/h"),
    '<tool_call>{"name": "list", "arguments": {"folder": ""}}</tool_call>',
    '<tool_call>{"name": "find", "arguments": {"text": "\\ud400"}}</tool_call>',
    '<tool_call>{"name": "write", "arguments": {"path": "b/h", "text": "\\ud400"}}</tool_call>',
    '<tool_call>{"name": "write", "arguments": {"path": ["b/h"], "text": {}}}</tool_call>',
    '<tool_call>{"name": "lookup", "arguments": {"key": "412"}}</tool_call>' * 2,
    '<tool_call>{"name": "lookup", "arguments": {"key": true}}</tool_call>',
    '<tool_call>{"name": "answer", "arguments": {"number": NaN}}</tool_call>',
    '<tool_call>{"name": "answer", "arguments": {"number": 1e99}}</tool_call>',
    '<tool_call>{"name": "nothing"}</tool_call>',
)
CONTEXT = 1024
"""Characters that a nano policy reads."""
TURNS = st.lists(st.one_of(st.sampled_from(MOVES), st.text()), min_size=1, max_size=6)


@cache
def some(name: str, size: int = 1, **changes: Any) -> tuple[ToolUse, tuple[Problem, ...]]:
    task = TASKS[name](train=size, **changes)
    assert isinstance(task, ToolUse)
    return task, tuple(task.problems("train"))


# Notations and replay


@pytest.mark.parametrize("name", ["tools", "files"])
def test_both_notations_state_the_same_problems_solutions_and_replies(name: str) -> None:
    short, problems = some(name, 30)
    tools, others = some(name, 30, notation="tools")
    for problem, offering in zip(problems, others, strict=True):
        assert (problem.id, problem.truth, problem.traits) == (offering.id, offering.truth, offering.traits)
        assert offered_tools(offering.prompt) == tuple(tools.toolbox.values()) and isinstance(
            problem.prompt, str
        )
        calls = list(short.reference(problem))
        assert [short.read(short.write(call)) for call in calls] == [[call] for call in calls]
        assert [tools.read(tools.write(call)) for call in calls] == [[call] for call in calls]
        turns = [task.demonstrate_episode(problem) for task in (short, tools)]
        for end in range(1, len(calls)):
            answer = short.reply(problem, turns[0][:end])
            assert isinstance(answer, str)
            assert tools.reply(offering, turns[1][:end]) == (Message("tool", answer.rstrip("\n")),)
        assert short.reply(problem, turns[0]) is tools.reply(offering, turns[1]) is None


@pytest.mark.parametrize(("name", "notation"), FORMS)
@given(turns=TURNS, others=TURNS)
@settings(max_examples=60, deadline=None)
def test_any_text_has_a_reply_and_a_verdict_that_depend_on_the_turns_alone(
    name: str, notation: str, turns: list[str], others: list[str]
) -> None:
    task, (problem,) = some(name, notation=notation)
    replies = [task.reply(problem, turns[:end]) for end in range(1, len(turns) + 1)]
    (verdict,) = task.verify_episodes(problem, [turns])
    task.reply(problem, others)
    assert [task.reply(problem, turns[:end]) for end in range(1, len(turns) + 1)] == replies
    assert task.verify_episodes(problem, [others, turns])[1] == verdict
    for reply in replies:
        texts = [reply] if isinstance(reply, str) else [message.content for message in reply or ()]
        assert all(text.strip() and text.encode() for text in texts), "neither empty nor a lone surrogate"
    scores = verdict.scores
    assert set(scores) == set(task.scores)
    assert scores["correct"] in (0, 1) and 0 <= scores["progress"] <= 1
    assert scores["calls"] + scores["errors"] >= len(list(task.steps(problem, turns))) - (replies[-1] is None)
    assert len(verdict.turn_rewards) in (0, len(turns))
    assert len(task.values(problem, turns)) == len(task.credits(problem, turns)) + 1 == len(turns) + 1


@pytest.mark.parametrize(
    ("turn", "reply"),
    [
        ("hello", "no call of a tool"),
        ("<tool_call>{</tool_call>", "a tool call is no JSON"),
        (str(ToolCall("look", {})), "no tool 'look'; there are lookup, calculator, answer"),
        (str(ToolCall("lookup", {})), "lookup takes key"),
        (str(ToolCall("lookup", {"key": 4, "more": 1})), "lookup takes key"),
        (str(ToolCall("lookup", {"key": 4.5})), "key must be an integer of at most 6 digits"),
        (str(ToolCall("lookup", {"key": True})), "key must be an integer"),
        (str(ToolCall("lookup", {"key": 1234567})), "key must be an integer of at most 6 digits"),
        (str(ToolCall("lookup", {"key": 1})) * 2, "more than one call in a turn"),
    ],
)
def test_a_malformed_call_gets_the_reason_as_its_reply(turn: str, reply: str) -> None:
    task, (problem,) = some("tools", notation="tools")
    (message,) = task.reply(problem, [turn]) or ()
    assert isinstance(message, Message)
    assert (message.role, message.content[:7]) == ("tool", "error: ") and reply in message.content


@pytest.mark.parametrize(("name", "notation"), FORMS)
def test_turns_are_short_enough_and_episodes_fit_the_nano_context(name: str, notation: str) -> None:
    longest = {"horizon": 16, "luck": 1.0} if name == "tools" else {"files": 12, "matching": 8}
    task, problems = some(name, 20, notation=notation, wasted=0.3, malformed=0.1, **longest)
    if notation == "short":
        assert len(problems[0].text) + task.max_completion_tokens <= CONTEXT
        turns = [turn for p in problems for turn in task.draw_episode(p, random.Random(0))]
        assert max(map(len, turns)) < task.turn_tokens, "the end token needs room too"
    assert task.turns >= max(len(task.demonstrate_episode(problem)) for problem in problems) + task.spare


def test_shares_that_add_up_to_one_are_taken_whatever_their_rounding() -> None:
    """1 − .8 − .1 − .1 is below 0 in floats."""
    assert TASKS["files"](wasted=0.8, malformed=0.1, wrong=0.1).base.right == 0


def test_thoughts_are_no_calls_for_replies_verdicts_and_values() -> None:
    task, (problem,) = some("tools", notation="tools")
    right, *_ = task.demonstrate_episode(problem)
    thought = f"<think>perhaps {task.corrupt(problem)}?</think>{right}"
    assert task.reply(problem, [thought]) == task.reply(problem, [right])
    assert task.values(problem, [thought]) == task.values(problem, [right])


# The oracle


@given(
    chances=st.tuples(*[st.integers(1, 9)] * 4),
    price=st.sampled_from([0.0, 0.25]),
    remaining=st.integers(1, 4),
    left=st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_value_is_the_mean_over_all_sequences_of_moves(
    chances: tuple[int, ...], price: float, remaining: int, left: int
) -> None:
    policy = Chances(*(chance / sum(chances) for chance in chances))
    mean = 0.0
    for moves in itertools.product(Chances._fields, repeat=left):
        earned, missing = 0.0, remaining
        for move in moves:
            missing -= move == "right"
            earned += (missing == 0) - price * (move == "wasted" or (move == "right" and missing > 0))
            if missing == 0 or move == "wrong":
                break
        mean += earned * math.prod(getattr(policy, move) for move in moves)
    assert expected(policy, price, remaining, left) == pytest.approx(mean)


WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"horizon": 2, "wasted": 0.3, "wrong": 0.1, "spare": 0}),
    ("tools", {"horizon": 5, "luck": 1.0, "price": 0.2, "distractors": 2, "wasted": 0.2, "wrong": 0.1}),
    ("tools", {"horizon": 8, "luck": 0.5, "wasted": 0.2, "malformed": 0.1, "spare": 2, "notation": "tools"}),
    ("files", {"wasted": 0.2, "malformed": 0.1, "wrong": 0.1, "spare": 1}),
]


@pytest.mark.parametrize(("name", "changes"), WORLDS)
def test_value_is_the_mean_return_of_drawn_episodes_and_credits_have_the_mean_zero(
    name: str, changes: dict[str, Any]
) -> None:
    """400 episodes of one problem. Within 4 standard errors, for each of up to 13 turns."""
    task, (problem,) = some(name, **changes)
    rng = random.Random(1)
    drawn = [task.draw_episode(problem, rng) for _ in range(400)]
    verdicts = task.verify_episodes(problem, drawn)
    returns = [verdict.scores["correct"] + sum(verdict.turn_rewards) for verdict in verdicts]
    begin = task.values(problem, [])[0]
    credit = [task.credits(problem, turns) for turns in drawn]
    luck = [sum(step.luck for _, step in task.steps(problem, turns)) for turns in drawn]
    for parts, earned, chance in zip(credit, returns, luck, strict=True):
        assert begin + sum(parts) == pytest.approx(earned - chance, abs=1e-9)
    assert abs(statistics.mean(returns) - begin) <= 4 * statistics.stdev(returns) / math.sqrt(400)
    by_turn = [[*column] for column in itertools.zip_longest(*credit, fillvalue=0.0)]
    for column in by_turn:
        assert abs(statistics.mean(column)) <= 4 * statistics.stdev(column) / math.sqrt(400) + 1e-9
    measured = task.measured(problem, drawn)
    turns = sum(map(len, drawn))
    assert all(
        abs(share - chance) <= 4 * math.sqrt(chance * (1 - chance) / turns) + 1e-9
        for share, chance in zip(measured, task.base, strict=True)
    )


def test_a_policy_without_turns_has_no_measured_chances() -> None:
    task, (problem,) = some("tools")
    with pytest.raises(ValueError, match="no turns to measure a policy by"):
        task.measured(problem, [[]])
