"""`grpobench serve` in a process of its own, asked by sockets: every request is answered or cut in time, and
none but that of the run which holds the lease keeps others out."""

from __future__ import annotations

import collections
import contextlib
import http.server
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import tiny
from safetensors.torch import save

from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.engines.server import Remote

PATIENCE, SHORT_PATIENCE = 60.0, 1.0
"""Seconds that the servers give a connection: to those that answer, and to those that must be cut. A busy
machine may stop a test for some seconds between two requests."""
CONNECTIONS = 60
SLACK = 4.0
"""Seconds that a busy machine may need more."""
VOCABULARY = tiny(seed=1).config.vocab_size
BROKEN = 13
"""The token at which the engine fails."""
PROGRAM = f"""
import sys
from helpers.toys import Copy, tiny
from grpobench.runs.sample.engines import server
server.PATIENCE, server.CONNECTIONS = float(sys.argv[1]), {CONNECTIONS}
class Failing(Copy):
    def sample(self, jobs, *more):
        self.broken = any({BROKEN} in prompt for prompt, seed in jobs)
        return super().sample(jobs, *more)
model = tiny(seed=1)
shapes = {{name: tuple(tensor.shape) for name, tensor in model.named_parameters()}}
with server.Server(Failing(model), "tiny", shapes=shapes, vocabulary=model.config.vocab_size) as it:
    print(it.server_address[1], flush=True)
    it.serve_forever(0.05)
"""
SAMPLE = {"prompts": [[5, 6]], "jobs": [[0, 1]], "limit": 2, "temperature": 1.0, "end": [1, 7]}


@contextlib.contextmanager
def serving(patience: float) -> Iterator[int]:
    """The port of a server that gives a connection so many seconds."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    words = [sys.executable, "-c", PROGRAM, str(patience)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        yield int(process.stdout.readline())
        process.kill()
        assert process.stderr.read() == b"", "no request, however broken, prints a traceback"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(PATIENCE) as port:
        yield port


@pytest.fixture(scope="module")
def impatient_port() -> Iterator[int]:
    with serving(SHORT_PATIENCE) as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE + SLACK)


def head(page: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {page} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def answer(connection: socket.socket) -> tuple[int, str]:
    """Status and content; fails for a connection that gets no answer in time."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    content = json.loads(response.read())
    return response.status, content["error"] if response.status != 200 else ""


def post(connection: socket.socket, body: bytes | Any, page: str = "/sample") -> tuple[int, str]:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.sendall(head(page, f"Content-Length: {len(encoded)}") + encoded)
    return answer(connection)


def waits() -> Iterator[None]:
    """Waits of 0.02 seconds between attempts, SLACK seconds in all."""
    end = time.monotonic() + SLACK
    while time.monotonic() < end:
        yield
        time.sleep(0.02)


def demand_free(port: int) -> None:
    """Another run gets the lease."""
    with answered(port, SAMPLE) as (_, status, _):
        assert status == 200, f"another run is answered {status}"


@contextlib.contextmanager
def answered(port: int, body: Any, page: str = "/sample") -> Iterator[tuple[socket.socket, int, str]]:
    """A connection with the answer to its first request, after the server has noticed that the connection of
    the run before was closed. (It notices when it next reads from it.)"""
    for _ in waits():
        with connect(port) as connection:
            status, reason = post(connection, body, page)
            if status != 409:
                yield connection, status, reason
                return
    pytest.fail("the lease was not released")


def cut_after(connection: socket.socket, trickle: bytes) -> float:
    """Seconds until the server ends a connection that sends a little again and again."""
    start = time.monotonic()
    connection.settimeout(0.1)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - start < SHORT_PATIENCE + SLACK:
            connection.sendall(trickle)
            with contextlib.suppress(TimeoutError):
                if not connection.recv(4096):
                    break
    return time.monotonic() - start


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"\xff\xfe{}", "body"),
        (b"[" * 100_000, "body"),
        ({key: SAMPLE[key] for key in SAMPLE if key != "jobs"}, "jobs"),
        (SAMPLE | {"more": 1}, "more"),
        *(
            (SAMPLE | {"temperature": bad}, "temperature")
            for bad in (-1, float("nan"), float("inf"), "1", True, None)
        ),
        *((SAMPLE | {"limit": bad}, "limit") for bad in (0, -1, 10**9, 10**30, 1.5, "2")),
        *((SAMPLE | {"prompts": bad}, "prompts") for bad in ([[]], [[-1]], [[1.5]], [[2**40]], 7)),
        (SAMPLE | {"prompts": [[5], [6, VOCABULARY]]}, "prompts: token"),
        (SAMPLE | {"end": [VOCABULARY]}, "end: token"),
        *((SAMPLE | {"jobs": bad}, "jobs") for bad in ([[1, 1]], [[-1, 1]], [[0, "x"]], [[0, -5]], [[0]])),
        *((SAMPLE | {"end": bad}, "end") for bad in ("ab", [-1], [None])),
        (SAMPLE | {"prompts": [[5] * 127]}, "limit"),
    ],
)
def test_a_malformed_request_is_answered_400_with_the_field_and_keeps_no_lease(
    port: int, body: Any, field: str
) -> None:
    with answered(port, body) as (_, status, reason):
        assert status == 400 and reason.startswith(field), reason
        demand_free(port)  # while the connection is still open


def test_weights_that_are_not_the_models_are_answered_400(port: int) -> None:
    weights = {name: tensor.detach().clone() for name, tensor in tiny(seed=1).named_parameters()}
    name, tensor = next(iter(weights.items()))
    for body, reason in (
        (save(weights | {name: torch.zeros(1)}), rf"{name}: shape (1,), and the model's is "),
        (save(weights | {name: tensor.T.contiguous()}), f"{name}: shape"),
        (save(weights | {name: tensor.to(torch.int64)}), f"{name}: dtype I64"),
        (b"junk" * 9, "weights: not a safetensors file"),
        (save(weights)[:-9], "weights: not a safetensors file"),
        (b"", "weights: not a safetensors file"),
    ):
        with answered(port, body, "/weights") as (_, status, message):
            assert status == 400 and message.startswith(reason), message
        demand_free(port)
    with answered(port, save(weights), "/weights") as (_, status, _):
        assert status == 200


def test_an_error_ends_the_lease_of_the_run_that_holds_it(port: int) -> None:
    for body, status in ((b"{}", 400), (SAMPLE | {"prompts": [[BROKEN]]}, 500)):
        with answered(port, SAMPLE) as (connection, *_):
            assert [post(connection, SAMPLE)[0] for _ in range(2)] == [200] * 2
            with connect(port) as other:
                assert post(other, SAMPLE)[0] == 409
            assert post(connection, body)[0] == status
            demand_free(port)


@pytest.mark.parametrize("start", [b"", b"POST /sample", head("/sample", "Content-Length: 900")[:-2]])
def test_headers_that_dribble_are_cut_in_total_time(impatient_port: int, start: bytes) -> None:
    with connect(impatient_port) as connection:
        connection.sendall(start)
        assert cut_after(connection, b"X: y\r\n" if start else b"A") < SHORT_PATIENCE + SLACK


def test_a_slow_body_is_cut_in_total_time_and_keeps_nobody_out(impatient_port: int) -> None:
    for page in ("/sample", "/weights"):
        with connect(impatient_port) as connection:
            connection.sendall(head(page, "Content-Length: 900") + b"{")
            demand_free(impatient_port)
            assert cut_after(connection, b" ") < SHORT_PATIENCE + SLACK


def test_a_body_of_another_length_than_announced_is_refused(port: int) -> None:
    body = json.dumps(SAMPLE).encode()
    for lines, sent, reason in (
        (["Content-Length: 5"], body, "body: Invalid JSON"),
        (["Content-Length: 900"], body, f"the body ends after {len(body)} of 900 bytes"),
        (["Content-Length: 5", "Content-Length: 86"], body, "Content-Length is '5, 86'"),
    ):
        with connect(port) as connection:
            connection.sendall(head("/sample", *lines) + sent)
            connection.shutdown(socket.SHUT_WR)
            status, message = answer(connection)
            assert status == 400 and message.startswith(reason)
    demand_free(port)


def test_a_large_body_that_is_refused_gets_its_answer_and_is_not_read(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(head("/weights", f"Content-Length: {2**50}") + bytes(2**16))
        assert answer(connection)[0] == 413
    demand_free(port)


def test_a_connection_that_is_reset_within_its_body_keeps_nothing(port: int) -> None:
    for _ in range(3):
        connection = connect(port)
        connection.sendall(head("/sample", "Content-Length: 900") + b"{")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets
        connection.close()
    demand_free(port)


@pytest.mark.parametrize("line", ["BREW / HTTP/1.1", "GET /" + "a" * 70_000 + " HTTP/1.1", "GET / HTTP/9.9"])
def test_a_request_that_is_not_http_is_answered_in_json(port: int, line: str) -> None:
    with connect(port) as connection:
        connection.sendall(f"{line}\r\nHost: localhost\r\n\r\n".encode())
        assert answer(connection)[0] >= 400


def at_once(port: int, count: int) -> collections.Counter[int]:
    """Statuses of clients that ask at the same time and stay connected until all have an answer."""
    statuses: collections.Counter[int] = collections.Counter()
    everybody = threading.Barrier(count, timeout=120)  # no client waits for ever for one that failed

    def ask() -> None:
        with connect(port) as connection:
            everybody.wait()
            status = post(connection, SAMPLE)[0]
            everybody.wait()
        statuses[status] += 1

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def test_of_fifty_clients_at_once_one_is_served_and_every_other_gets_an_answer(port: int) -> None:
    assert at_once(port, 50) == {200: 1, 409: 49}
    demand_free(port)


def test_more_connections_than_there_is_room_for_are_answered_503(port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connect(port))
        with connect(port) as connection:
            assert answer(connection) == (503, "too many connections")
    demand_free(port)


def test_an_address_of_another_web_server_is_no_engine() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, args=(0.05,), daemon=True).start()
        with pytest.raises(ModelError, match="no engine answers at"):
            Remote(f"http://127.0.0.1:{other.server_address[1]}", "run a")
        other.shutdown()
