"""BFCL's multi-turn problems: replies, and verdicts on right and wrong episodes beside the package's own."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from grpobench.tasks import bfcl
from grpobench.tasks.bfcl import BFCL, VARIANTS
from grpobench.tasks.data import sources
from grpobench.tasks.data.messages import Message, offered_tools
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.data.tools import ToolCall
from grpobench.tasks.task import Problem
from grpobench.tasks.workers.bfcl import Backends, ServiceWorld
from grpobench.tasks.workers.pool import Pool

Calls = list[list[dict[str, Any]]]
"""The calls of each request."""
REFUSED = ("cut short", "no calls", "one request skipped")
"""Kinds of wrong episodes that are refused for every problem."""


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    if lack := BFCL().missing():
        pytest.skip(lack)
    with pytest.MonkeyPatch.context() as patch:
        pool = Pool("grpobench.tasks.workers.bfcl:bfcl", workers=2)
        patch.setattr(bfcl, "POOL", pool)
        yield
        pool.close()


def every(step: int = 1, **settings: Any) -> list[Problem]:
    """Every `step`-th problem, in the package's order."""
    return list(BFCL(all_test=True, **settings).problems("test"))[::step]


def problem_of(name: str) -> Problem:
    return next(problem for problem in every() if problem.id == f"multi_turn_{name}")


def played(requests: Sequence[Sequence[Mapping[str, Any]]], at_once: bool = True) -> tuple[str, ...]:
    """An episode with these calls, all calls of a request in one turn or each in its own."""
    turns: list[str] = []
    for calls in requests:
        texts = [str(ToolCall(call["name"], call["arguments"])) for call in calls]
        turns += ["".join(texts)] if texts and at_once else texts
        turns.append("Done.")
    return tuple(turns)


def wrong_calls(problem: Problem) -> dict[str, Calls]:
    """Corruptions of a reference, by kind."""
    rng = random.Random(problem.id)
    reference: Calls = copy.deepcopy(problem.truth["reference"])
    with_calls = [i for i, calls in enumerate(reference) if calls]
    wrong = {
        kind: copy.deepcopy(reference)
        for kind in (*REFUSED, "call left out", "calls added", "value changed", "late")
    }
    wrong["cut short"].pop()
    wrong["no calls"] = [[] for _ in reference]
    wrong["one request skipped"][rng.choice(with_calls)] = []
    calls = wrong["call left out"][rng.choice(with_calls)]
    del calls[rng.randrange(len(calls))]
    first = with_calls[0]
    wrong["calls added"][first] += foreign_calls(problem)
    arguments = [call["arguments"] for calls in wrong["value changed"] for call in calls if call["arguments"]]
    if arguments:
        chosen = rng.choice(arguments)
        name = rng.choice(sorted(chosen))
        chosen[name] = changed(chosen[name])
    if first + 1 < len(reference):
        wrong["late"][first + 1] = wrong["late"][first] + wrong["late"][first + 1]
        wrong["late"][first] = []
    return {kind: requests for kind, requests in wrong.items() if requests != reference}


def foreign_calls(problem: Problem) -> list[dict[str, Any]]:
    """The calls of another question on the same services, among the functions that the problem offers."""
    others = every(variants=(problem.traits["category"],))
    start = others.index(problem) + 1
    for other in others[start:] + others[:start]:
        if other.traits["services"] == problem.traits["services"] and other is not problem:
            return [
                call
                for calls in other.truth["reference"]
                for call in calls
                if call["name"] in problem.truth["offered"][0]
            ]
    return []


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return [*value, value[-1]] if isinstance(value, list) and value else f"{value}x"


def accepted_by_package(problem: Problem, requests: Calls, published: list[list[str]], name: str) -> bool:
    """The verdict of the package's own checker, which evaluates calls as Python."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    if len(requests) != len(published):
        return False  # as the package's evaluation says before it asks the checker
    scenario = problem.truth["scenario"]
    steps = [
        [[f"{c['name']}({', '.join(f'{k}={v!r}' for k, v in c['arguments'].items())})" for c in calls]]
        if calls
        else []
        for calls in requests
    ]
    entry = {
        "initial_config": scenario["config"],
        "involved_classes": scenario["classes"],
        "id": problem.id,
    }
    return bool(multi_turn_checker(steps, published, entry, "", name)["valid"])


def published_references() -> dict[str, list[list[str]]]:
    rows = [
        row
        for variant in VARIANTS
        for row in bfcl._read(f"possible_answer/BFCL_v4_multi_turn_{variant}.json")
    ]
    return {row["id"]: row["ground_truth"] for row in rows}


def compare(problems: Sequence[Problem]) -> Counter[tuple[str, str]]:
    """Grade references and wrong episodes, demand the package's verdict on each, and count the accepted."""
    published = published_references()
    cases = [{"reference": problem.truth["reference"], **wrong_calls(problem)} for problem in problems]
    verdicts = BFCL().verify_all(problems, [[played(calls) for calls in case.values()] for case in cases])
    counts: Counter[tuple[str, str]] = Counter()
    for problem, case, of_case in zip(problems, cases, verdicts, strict=True):
        for (kind, calls), verdict in zip(case.items(), of_case, strict=True):
            right = verdict.scores["correct"] == 1
            reference = published[problem.id]
            if problem.id == HELD_TOO_EARLY[0]:
                reference = [[text for text in texts if text != HELD_TOO_EARLY[1]] for texts in reference]
            theirs = accepted_by_package(problem, calls, reference, kind.replace(" ", "_"))
            assert right == theirs, (problem.id, kind, calls)
            counts[kind, "tried"] += 1
            counts[kind, "accepted"] += right
    return counts


HELD_TOO_EARLY = ("multi_turn_miss_func_49", "tail(file_name='file3.txt')")
"""The only call of a published reference to a function that is not offered yet."""


def test_references_are_accepted_and_wrong_episodes_get_the_verdict_of_the_package() -> None:
    problems = [*every(23), problem_of("miss_func_49")]
    counts = compare(problems)
    assert counts["reference", "accepted"] == len(problems)
    assert all(counts[kind, "tried"] and not counts[kind, "accepted"] for kind in REFUSED)
    assert counts["value changed", "accepted"] < counts["value changed", "tried"]


@pytest.mark.slow
def test_all_references_are_accepted_and_wrong_episodes_get_the_verdict_of_the_package() -> None:
    """The counts that the page of the task reports: pytest -s -m slow tests/tasks/test_bfcl.py."""
    problems = every()
    counts = compare(problems)
    for kind in dict.fromkeys(kind for kind, _ in counts):
        print(f"{kind}: {counts[kind, 'accepted']} of {counts[kind, 'tried']} accepted")
    assert len(problems) == counts["reference", "accepted"] == 800
    assert not any(counts[kind, "accepted"] for kind in REFUSED)
    one_by_one = [played(problem.truth["reference"], at_once=False) for problem in problems]
    graded = BFCL().verify_all(problems, [[episode] for episode in one_by_one])
    assert all(set(verdict.scores.values()) == {1.0} for (verdict,) in graded)


@pytest.mark.slow
def test_references_of_all_problems_play_to_their_end_within_the_longest_result() -> None:
    """The lengths that the page of the task reports: pytest -s -m slow tests/tasks/test_bfcl.py."""
    task, problems = BFCL(), every()
    episodes = [task.demonstrate_episode(problem) for problem in problems]
    lengths = [sum(map(len, episode)) for episode in episodes]
    for turn in range(max(map(len, episodes))):
        live = [i for i, episode in enumerate(episodes) if turn < len(episode)]
        replies = task.reply_all([problems[i] for i in live], [episodes[i][: turn + 1] for i in live])
        for i, reply in zip(live, replies, strict=True):
            assert (reply is None) == (turn + 1 == len(episodes[i]))
            texts = [reply or ""] if not isinstance(reply, tuple) else [m.content for m in reply]
            assert max(map(len, texts)) < bfcl.LONGEST_RESULT
            lengths[i] += sum(map(len, texts))
    for variant in VARIANTS:
        chosen = [i for i, problem in enumerate(problems) if problem.traits["category"] == variant]
        prompts, of_variant = [len(problems[i].text) for i in chosen], sorted(lengths[i] for i in chosen)
        print(
            f"{variant}: prompts of {min(prompts):,} to {max(prompts):,} characters, reference episodes of "
            f"{of_variant[0]:,} to {of_variant[-1]:,}, three quarters at most {of_variant[150]:,}"
        )


def test_references_are_the_published_ones_but_for_one_call() -> None:
    published = published_references()
    missing = [
        (problem.id, text)
        for problem in every()
        for calls, texts in zip(problem.truth["reference"], published[problem.id], strict=True)
        for text in texts
        if text.partition("(")[0] not in [call["name"] for call in calls]
    ]
    assert missing == [HELD_TOO_EARLY]
    assert sum(len(calls) for p in every() for calls in p.truth["reference"]) + 1 == sum(
        len(texts) for reference in published.values() for texts in reference
    )


def test_positional_arguments_of_references_have_the_names_of_the_methods() -> None:
    backends = Backends()
    for name, module in backends.modules.items():
        for tool in bfcl._tools(name):
            parameters = list(inspect.signature(getattr(getattr(module, name), tool.name)).parameters)[1:]
            described = list(tool.parameters["properties"])
            # No reference gives arguments of this one by position.
            assert described == parameters or tool.name == "purchase_insurance"


def test_variants_of_a_question_are_in_one_split_and_no_question_in_two() -> None:
    task = BFCL()
    numbers = {split: [p.id.rpartition("_")[2] for p in task.problems(split)] for split in task.splits}
    assert {split: len(of_split) for split, of_split in numbers.items()} == {
        "train": 600,
        "validation": 48,
        "test": 152,
    }
    assert all(set(Counter(of_split).values()) == {len(VARIANTS)} for of_split in numbers.values())
    assert len({number for of_split in numbers.values() for number in of_split}) == 200
    assert len({problem.id for problem in every()}) == 800


def test_leaderboard_split_has_everything_and_leaves_nothing_to_train_on() -> None:
    assert len(every()) == 800 and len(every(variants=("base",))) == 200
    with pytest.raises(DataError, match="all_test leaves no problem for train"):
        BFCL(all_test=True).problems("train")


def test_requests_come_one_after_another_and_calls_get_their_results() -> None:
    task, problem = BFCL(), problem_of("base_0")
    assert isinstance(problem.prompt, tuple)
    assert problem.prompt[-1].content == problem.truth["messages"][0]
    episode = task.demonstrate_episode(problem)
    replies = [task.reply(problem, episode[: i + 1]) for i in range(len(episode))]
    assert [reply for reply in replies if not isinstance(reply, tuple)] == [
        *problem.truth["messages"][1:],
        None,
    ]
    assert replies[0] == (
        Message("tool", '{"current_working_directory": "document"}'),
        Message("tool", "None"),
        Message("tool", "{\"result\": \"'final_report.pdf' moved to 'temp/final_report.pdf'\"}"),
    )


def test_functions_are_held_out_until_the_user_offers_them() -> None:
    task, problem = BFCL(), problem_of("miss_func_0")
    sort = '<tool_call>{"name": "sort", "arguments": {"file_name": "final_report.pdf"}}</tool_call>'
    assert isinstance(problem.prompt, tuple)
    assert "sort" not in {tool.name for tool in offered_tools(problem.prompt)}
    before, after = task.demonstrate_episode(problem)[:4], task.demonstrate_episode(problem)[:5]
    early = task.reply(problem, [*before, sort])
    assert early == (Message("tool", "error: there is no tool 'sort'"),)
    offer = task.reply(problem, after)
    assert isinstance(offer, str) and '"name": "sort"' in offer and offer.endswith("What about now?")
    (late,) = task.reply(problem, [*after, sort]) or ()
    assert isinstance(late, Message) and late.content.startswith('{"sorted_content"')


@pytest.mark.parametrize(
    ("turn", "reply"),
    [
        ("<tool_call>{oops</tool_call>", "error: a tool call is no JSON"),
        ('<tool_call>{"name": "cd"', "error: a tool call is no JSON"),
        (str(ToolCall("_load_scenario", {"scenario": {}})), "error: there is no tool '_load_scenario'"),
        (str(ToolCall("__class__")), "error: there is no tool '__class__'"),
        (str(ToolCall("cd", {"place": "x"})), "error: .* unexpected keyword"),
        (str(ToolCall("cat", {"file_name": []})), "error: unhashable"),
        (str(ToolCall("touch", {"file_name": "__import__('os').getcwd()"})), "None"),
    ],
)
def test_calls_that_cannot_be_run_are_observations(turn: str, reply: str) -> None:
    task, problem = BFCL(), problem_of("base_0")
    (message,) = task.reply(problem, [turn]) or ()
    assert isinstance(message, Message) and message.role == "tool"
    assert re.match(reply, message.content), message.content
    # The request goes on, and the reference still meets it, but for the file that one of them makes.
    (verdict,) = task.verify_episodes(problem, [(turn, *task.demonstrate_episode(problem))])
    assert verdict.scores["correct"] == ("touch" not in turn)
    assert (verdict.scores["calls"] < 1) == message.content.startswith("error")


def test_a_call_that_never_ends_ends_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl, "POOL", Pool(bfcl.POOL.factory, cpu_seconds=0.3, workers=1))
    task, problem = BFCL(), next(p for p in every() if "MathAPI" in p.truth["scenario"]["classes"])
    hang = str(ToolCall("power", {"base": 7, "exponent": 10**9}))
    assert task.reply(problem, [hang]) is None
    reference = task.demonstrate_episode(problem)
    verdicts = task.verify_episodes(problem, [(hang,), reference])
    assert [verdict.outcome for verdict in verdicts] == ["timeout", "graded"]
    assert [verdict.scores["correct"] for verdict in verdicts] == [0.0, 1.0]
    bfcl.POOL.close()


def test_without_workers_nothing_is_graded_and_calls_get_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl, "POOL", Pool("no_such_module:bfcl"))
    task, problem = BFCL(), problem_of("base_0")
    reference = task.demonstrate_episode(problem)
    assert task.reply(problem, reference[:1]) == (Message("tool", bfcl.UNAVAILABLE),) * 3
    assert task.verify_episodes(problem, [reference])[0].outcome == "infra_error"


def test_too_many_turns_with_calls_end_the_episode() -> None:
    task, problem = BFCL(steps=2), problem_of("base_0")
    call = str(ToolCall("pwd"))
    assert isinstance(task.reply(problem, [call, call]), tuple)
    assert task.reply(problem, [call, call, call]) is None
    assert isinstance(task.reply(problem, [call, call, "Done.", call, call]), tuple)
    assert task.turns == 3 * max(len(p.truth["messages"]) for p in every())


def test_scores_and_rewards_of_an_episode_by_hand() -> None:
    task, problem = BFCL(), problem_of("miss_param_0")  # 5 requests; the fourth lacks a value
    reference = task.demonstrate_episode(problem)
    half = (*reference[:4], str(ToolCall("nothing")), "Done.", str(ToolCall("pwd")), "Done.")
    verdict, right = task.verify_episodes(problem, [half, reference])
    assert verdict.scores == {"correct": 0.0, "requests": 2 / 4, "abstained": 0.0, "calls": 1 - 1 / 7}
    assert verdict.turn_rewards == (0, 0.25, 0, 0.25, 0, 0, 0, 0)
    assert set(right.scores.values()) == {1.0} and sum(right.turn_rewards) == 1
    silent = task.verify(problem, ["I do not know."])[0]
    assert (silent.outcome, silent.answer) == ("unparsable", None)


def test_worlds_share_nothing() -> None:
    backends = Backends()
    scenario = next(
        problem.truth["scenario"]
        for problem in every(variants=("long_context",))
        if "TravelAPI" in problem.truth["scenario"]["classes"]
    )
    world = ServiceWorld(backends, scenario).instances["TravelAPI"]
    for card in world.credit_card_list.values():
        card["balance"] = -1.0
    other = ServiceWorld(backends, scenario).instances["TravelAPI"]
    assert all(card["balance"] != -1.0 for card in other.credit_card_list.values())
    assert len(world.credit_card_list) > 5  # with those of the long context


def test_replies_are_the_same_whoever_asks_and_in_whichever_order() -> None:
    task = BFCL()
    problems = every(97)
    openings = [task.demonstrate_episode(problem)[:1] for problem in problems]
    forward = task.reply_all(problems, openings)
    assert forward == task.reply_all(problems[::-1], openings[::-1])[::-1]
    assert forward == [task.reply(*pair) for pair in zip(problems, openings, strict=True)]


def test_problems_are_plain_and_name_their_source() -> None:
    task = BFCL()
    (source,) = task.sources("test")
    assert (source.kind, source.rows) == ("package", 152) and source.location == "bfcl-eval 2026.3.23"
    for problem in every(50):
        assert json.loads(json.dumps(problem.truth)) == problem.truth
        assert all(tool.parameters["type"] == "object" for tool in offered_tools(problem.prompt))
        assert '"float"' not in problem.text and '"dict"' not in problem.text
    assert importlib.metadata.metadata("bfcl-eval")["License"] == "Apache 2.0"


def test_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    bfcl._problems.cache_clear()
    monkeypatch.setattr(sources, "find", lambda package: None)
    assert "pip install --no-deps bfcl-eval==2026.3.23" in BFCL().missing()
    with pytest.raises(DataError, match="grpobench data fetch"):
        BFCL().problems("test")
