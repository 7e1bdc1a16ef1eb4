"""A server of OpenAI's chat completions on this machine, which answers as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What the server sends."""

    content: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def completion(text: str | None, tokens: tuple[int, int] = (10, 5), finish: str = "stop") -> Answer:
    """A chat completion with this text."""
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    body = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
    return Answer(json.dumps(body).encode())


@dataclass
class ChatServer:
    """Its address, and the requests that it has received."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    @property
    def contents(self) -> list[str]:
        """The message of each request."""
        return [request["messages"][-1]["content"] for request in self.requests]


@contextlib.contextmanager
def chat_server(reply: Callable[[str, int], Answer]) -> Iterator[ChatServer]:
    """A server that answers with `reply(message, number of the request, from 0)`."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(served.requests)
                served.requests.append({**body, "path": self.path})
                served.headers.append(dict(self.headers))
                served.at_once += 1
                served.most_at_once = max(served.most_at_once, served.at_once)
            answer = reply(body["messages"][-1]["content"], number)
            with lock:
                served.at_once -= 1
            with contextlib.suppress(OSError):  # a client that has gone
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.content)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = ChatServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
