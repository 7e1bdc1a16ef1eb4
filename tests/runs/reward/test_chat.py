"""Requests to a real server on this machine: retries, refusals, time-outs, broken answers, secrets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from helpers.chat_server import Answer, chat_server, completion

from grpobench.runs.reward import chat
from grpobench.runs.reward.chat import ChatClient, ChatReply, JudgingError

BODY = {"model": "m", "messages": [{"role": "user", "content": "grüße 你好 \ud800"}]}
KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "FIRST_PAUSE", 0.001)


def ask(url: str, begin: Callable[[], None] = lambda: None, **settings: Any) -> ChatReply:
    options = {"timeout": 5.0, "retries": 3, **settings}
    return ChatClient(url, KEY, section="reward.judge", **options).ask(BODY, begin, threading.Event())


def scripted(answers: Sequence[Answer]) -> Callable[[str, int], Answer]:
    """The answers in order, the last one again and again."""
    return lambda content, number: answers[min(number, len(answers) - 1)]


def test_request_is_a_chat_completion_with_the_key() -> None:
    with chat_server(scripted([completion("Score: 7", (12, 3))])) as server:
        assert ask(server.url + "/") == ChatReply("Score: 7", (12, 3), was_cut=False, calls=1)
    assert server.requests == [{**BODY, "path": "/v1/chat/completions"}]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "broken",
    [
        Answer(b"slow down", 429, {"Retry-After": "0"}),
        Answer(b"slow down", 429, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}),
        Answer(b"", 500),
        Answer(b"<html>bad gateway</html>", 502),
        Answer(b"{", 200),
        Answer(b"[]", 200),
        Answer(b'{"choices": []}', 200),
        Answer(b'{"choices": [{"message": null}]}', 200),
        Answer(b'{"choices": [{"message": {"content": 7}}]}', 200),
        Answer(b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": -1}}', 200),
        Answer(b"\xff\xfe", 200),
        Answer(b"[" * 100_000, 200),
        Answer(b"short", 200, {"Content-Length": "4000"}),
    ],
)
def test_what_may_pass_is_asked_again_and_counted(broken: Answer) -> None:
    begun: list[int] = []
    with chat_server(scripted([broken, broken, completion("ok")])) as server:
        reply = ask(server.url, lambda: begun.append(1), timeout=1.0)
    assert (reply.text, reply.calls, len(begun), len(server.requests)) == ("ok", 3, 3, 3)


def test_server_that_keeps_failing_is_named_with_its_last_fault() -> None:
    with (
        chat_server(scripted([Answer(b"out of memory", 503)])) as server,
        pytest.raises(
            JudgingError, match=r"failed 4 times, the last time with status 503: out of memory; see"
        ),
    ):
        ask(server.url)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_refusal_ends_at_once_and_hides_the_key(status: int) -> None:
    message = f"wrong key {KEY}".encode()
    with (
        chat_server(scripted([Answer(message, status)])) as server,
        pytest.raises(JudgingError, match=rf"status {status}: wrong key \*\*\*") as refused,
    ):
        ask(server.url)
    assert len(server.requests) == 1 and KEY not in str(refused.value)


def test_key_follows_no_redirect() -> None:
    with chat_server(scripted([completion("stolen")])) as thief:
        moved = Answer(b"", 302, {"Location": thief.url + "/chat/completions"})
        with chat_server(scripted([moved])) as server, pytest.raises(JudgingError, match="status 302"):
            ask(server.url)
    assert not thief.requests


def test_server_that_hangs_is_left_after_the_timeout() -> None:
    free = threading.Event()

    def hang(content: str, number: int) -> Answer:
        if number == 0:
            free.wait(20)
        return completion("ok")

    with chat_server(hang) as server:
        began = time.monotonic()
        reply = ask(server.url, timeout=0.5)
        free.set()
    assert reply.calls == 2 and time.monotonic() - began < 10


def test_answer_that_has_no_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "LARGEST", 1000)
    with (
        chat_server(scripted([completion("x" * 2000)])) as server,
        pytest.raises(JudgingError, match="an answer of more than 1,000 bytes"),
    ):
        ask(server.url, retries=0)


def test_nobody_at_the_address() -> None:
    with chat_server(scripted([])) as server:
        pass
    with pytest.raises(JudgingError, match="failed 2 times, the last time with URLError"):
        ask(server.url, retries=1)


def test_reply_without_text_is_empty_and_a_cut_one_is_marked() -> None:
    with chat_server(scripted([completion(None), completion("Score: 1", finish="length")])) as server:
        assert ask(server.url).text == ""
        assert ask(server.url).was_cut


def test_server_without_usage_counts_no_tokens() -> None:
    answer = Answer(b'{"choices": [{"message": {"content": "ok"}}]}')
    with chat_server(scripted([answer])) as server:
        assert ask(server.url).tokens == (0, 0)


def test_pause_is_what_the_server_asks_for_within_bounds() -> None:
    assert chat.asked_pause("3", 1.0) == 3
    assert chat.asked_pause("86400", 1.0) == chat.LONGEST_PAUSE
    assert chat.asked_pause("-1", 1.0) == 0
    assert chat.asked_pause("", 1.0) == chat.asked_pause("tomorrow", 1.0) == 1
