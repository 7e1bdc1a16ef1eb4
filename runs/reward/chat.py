"""Requests to an address that speaks OpenAI's chat completions."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

LARGEST = 8 * 2**20
"""Bytes of an answer."""
SHOWN = 300
"""Characters of a server's message that an error repeats."""
TRANSIENT = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which a request is repeated."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the first repetition, and before any."""


class JudgingError(DataError):
    """A judge cannot be asked, or must not be asked any more."""


class BrokenReply(Exception):
    """What a server sent is no chat completion."""


@dataclass(frozen=True)
class ChatReply:
    """The answer to a request."""

    text: str
    tokens: tuple[int, int]
    """Of the prompt and of the completion, as the server counts them; 0 where it does not."""
    was_cut: bool
    """Whether a limit of tokens ended it."""
    calls: int
    """Requests that it took."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would take the key to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ChatClient:
    """Sends requests to one address. Safe to use from several threads.

    `section` is the recipe's, for messages, and none of these has the `key`."""

    def __init__(self, url: str, key: str, timeout: float, retries: int, section: str) -> None:
        self.url = url.rstrip("/") + "/chat/completions"
        self.timeout, self.retries, self.section = timeout, retries, section
        self._key = key
        self._opener = urllib.request.build_opener(NoRedirects())

    def ask(self, body: Mapping[str, Any], begin: Callable[[], None], stopped: threading.Event) -> ChatReply:
        """The reply to a request. `begin` is called before each attempt, and may raise. Raises JudgingError
        for a status that no repetition changes, for a last attempt that failed, and when `stopped` is set."""
        content = json.dumps(body).encode()
        for attempt in range(1, self.retries + 2):
            if stopped.is_set():
                raise JudgingError(f"{self.section}: stopped")
            begin()
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
            pause *= random.Random(content + bytes([attempt])).uniform(0.5, 1)  # not all threads at once
            try:
                return self._parse(self._post(content), attempt)
            except urllib.error.HTTPError as error:
                fault = f"status {error.code}: {self._message(error)}"
                if error.code < 500 and error.code not in TRANSIENT:
                    raise JudgingError(f"{self.section}: {self.url} refuses requests with {fault}") from None
                pause = asked_pause(error.headers.get("Retry-After", ""), pause)
            except (OSError, http.client.HTTPException, BrokenReply) as error:
                fault = self._hidden(f"{type(error).__name__}: {error}")
            if attempt <= self.retries:
                stopped.wait(pause)
        raise JudgingError(
            f"{self.section}: {self.url} failed {self.retries + 1} times, the last time with {fault}; see "
            "that it works, and start the same command again"
        )

    def _post(self, content: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "User-Agent": "grpobench"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self.url, content, headers)
        deadline = time.monotonic() + self.timeout
        with self._opener.open(request, timeout=self.timeout) as response:
            received = b""
            while piece := response.read1(2**16):
                received += piece
                if len(received) > LARGEST:
                    raise BrokenReply(f"an answer of more than {LARGEST:,} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out")  # the timeout of a socket is for each piece
        return received

    def _parse(self, received: bytes, attempt: int) -> ChatReply:
        try:
            content = bounded.parse_json(received)
            choice = content["choices"][0]
            text = choice["message"].get("content")
            usage = content.get("usage") or {}
            tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            shown = received[:SHOWN].decode(errors="replace")
            raise BrokenReply(self._hidden(f"no chat completion: {shown!r}")) from None
        if not isinstance(text, str | None) or not all(type(n) is int and n >= 0 for n in tokens):
            raise BrokenReply("a chat completion whose content is no text or whose usage has no counts")
        return ChatReply(text or "", tokens, choice.get("finish_reason") == "length", attempt)

    def _message(self, response: IO[bytes]) -> str:
        try:
            return self._hidden(response.read(SHOWN).decode(errors="replace"))
        except (OSError, http.client.HTTPException):
            return "without a message"

    def _hidden(self, text: str) -> str:
        """A text without the key, which servers like to repeat."""
        return text.replace(self._key, "***") if self._key else text


def asked_pause(header: str, otherwise: float) -> float:
    """The seconds that a server asks to wait, within bounds."""
    try:
        return min(LONGEST_PAUSE, max(0.0, float(header)))
    except ValueError:
        return otherwise
