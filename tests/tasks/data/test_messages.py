"""Prompts of messages: what is read, what is refused and how, and the text of a model without a template."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from grpobench.tasks.data.messages import (
    Message,
    as_line,
    as_messages,
    as_text,
    parse_prompt,
    with_context,
)
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
CHAT = [SYSTEM, QUESTION, ANSWER, {"role": "user", "content": "3+3?"}]


@pytest.mark.parametrize(
    "value",
    [
        CHAT,
        json.dumps(CHAT),
        json.dumps(CHAT, indent=1),
        [
            {"content": message["content"], "role": message["role"], "name": None, "tool_calls": None}
            for message in CHAT
        ],
        tuple(Message(message["role"], message["content"]) for message in CHAT),  # type: ignore[arg-type]
    ],
)
def test_the_same_messages_are_read_from_lists_json_and_tables_with_empty_columns(value: Any) -> None:
    prompt = parse_prompt(value)
    assert as_messages(prompt) == CHAT
    assert parse_prompt(as_line(prompt)) == prompt == Problem("1", as_messages(prompt), None).prompt  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["2+2?", "[1, 2]", "[{1: 2}]", '{"role": "user"}', " ", "[]", "[" * 10_000])
def test_a_text_stays_a_text(text: str) -> None:
    assert parse_prompt(text) == as_text(text) == as_line(text) == text
    assert as_messages(text) == [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be text or a list of messages, not []"),
        (None, "must be text or a list of messages, not None"),
        (QUESTION, "must be text or a list of messages"),
        (
            [QUESTION, ANSWER],
            "the last message has the role assistant, and a prompt ends with a message of the",
        ),
        ([SYSTEM], "the last message has the role system"),
        ([QUESTION, SYSTEM, QUESTION], "message 2 is a system message, which only the first may be"),
        ([SYSTEM, SYSTEM, QUESTION], "message 2 is a system message"),
        (
            [{"role": "human", "content": "?"}],
            "message 1 has the role 'human'; choose from system, user, ass",
        ),
        ([{"role": ["user"], "content": "?"}], "message 1 has the role ['user']"),
        ([{"from": "human", "value": "?"}], "message 1 must have the keys role and content, not {'from'"),
        ([SYSTEM, "2+2?"], "message 2 must have the keys role and content, not '2+2?'"),
        ([{"role": "user", "content": " \n"}], "message 1: its content must be text that is not empty"),
        (
            [{"role": "user", "content": None}],
            "message 1: its content must be text that is not empty, not None",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "?"}]}],
            "message 1: its content must be text",
        ),
        ([{**QUESTION, "tool_calls": [1]}], "message 1 also has tool_calls; remove all but role and content"),
        (str(CHAT), "is a list of messages, but not JSON"),  # what pandas writes into CSV files
        ('[{"role": "user", "content": ' + "[" * 10_000, "is a list of messages, but not JSON"),
    ],
)
def test_what_is_no_prompt_is_refused_with_the_message_and_a_remedy(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_prompt(value)
    if not isinstance(value, str):
        with pytest.raises(DataError, match="problem p: its prompt: "):
            Problem("p", value, None)


def test_the_text_of_messages_is_how_lm_eval_joins_description_examples_and_question() -> None:
    # description + fewshot_delimiter "\n\n"; question + target_delimiter " " + answer + "\n\n"; question
    assert as_text(parse_prompt(CHAT)) == "Be brief.\n\n2+2? 4\n\n3+3?"
    cells = [{"role": "user", "content": "2+2 =\n"}, {"role": "assistant", "content": "4"}, QUESTION]
    assert as_text(parse_prompt(cells)) == "2+2 =\n4\n\n2+2?"


def test_context_comes_between_a_system_message_and_the_question() -> None:
    turns = parse_prompt([QUESTION, ANSWER, QUESTION])[:2]
    assert with_context("3+3?", "", ()) == "3+3?"
    assert as_messages(with_context("3+3?", "Be brief.", turns)) == CHAT  # type: ignore[arg-type]
    assert as_messages(with_context(parse_prompt([SYSTEM, CHAT[3]]), "", turns)) == CHAT  # type: ignore[arg-type]
