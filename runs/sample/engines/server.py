"""An engine behind HTTP: `grpobench serve` on one side, `Remote` on the other."""

# The server works for one run at a time, because a second run would load its own weights. The first
# connection whose /sample or /weights request is complete and valid gets the lease and stays open. The lease
# ends with that connection, and with any answer but 200. Every other connection is closed after one answer.
# It has `PATIENCE` seconds for its headers, and a second more for each `SLOWEST` bytes of its body.
#
# Token ids and log-probabilities travel as JSON, weights as safetensors. The `gate` checks the headers of
# every request: the token where other machines can reach the server, the server's own name, no browser, and
# the size.

from __future__ import annotations

import contextlib
import http.client
import io
import itertools
import json
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import IO, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from grpobench.runs.models import sizes
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.engines import gate
from grpobench.runs.sample.engines.engine import Engine, EngineCompletion
from grpobench.runs.sample.engines.gate import BAD, Gate, Refusal, length
from grpobench.runs.sample.sampler import GREEDY
from grpobench.runs.settings.truncation import FULL, Truncation
from grpobench.tasks.data import bounded

CHUNK = 2**20
"""Bytes of a body that are read at once."""
PATIENCE = 10.0
"""Seconds to accept a connection, and to send or receive anything but a body."""
SLOWEST = 2**20
"""Bytes of a body per second that a connection must move at least."""
LINGER = 1.0
"""Seconds for which a refused connection is read on, so that its answer arrives before the reset."""
CONNECTIONS = 128
"""Connections at the same time; further ones are answered 503."""
GOOD, UNKNOWN, LATE, TAKEN, FAILED = 200, 404, 408, 409, 500
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"
BUSY += b"Content-Length: 33\r\n\r\n" + b'{"error": "too many connections"}'
MOST_ASKED = 256 * 2**20
"""Bytes of what to sample: some hundred thousand prompts of a hundred tokens."""
MOST_WEIGHTS = 2**40
"""Bytes of weights, where the shapes of the model's tensors are unknown."""
HEADER = 2**20
"""Bytes of a weight file that are no weights."""
STORED = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""What safetensors calls a dtype."""

MOST_TOKENS = 2**31
"""More than the tokens of any vocabulary."""

Token: TypeAlias = Annotated[int, Field(ge=0, lt=MOST_TOKENS)]
Index: TypeAlias = Annotated[int, Field(ge=0)]
Seed: TypeAlias = Annotated[int, Field(ge=GREEDY, lt=2**63)]
# FailFast, else a list of wrong tokens would make as many errors.
Prompt: TypeAlias = Annotated[tuple[Token, ...], Field(min_length=1), FailFast()]


class Sampling(BaseModel):
    """The body of a /sample request."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    prompts: Annotated[list[Prompt], FailFast()]
    jobs: Annotated[list[tuple[Index, Seed]], FailFast()]
    """A completion each: the index of its prompt, and its seed."""
    limit: Annotated[int, Field(gt=0)]
    """Most tokens of a completion."""
    temperature: Annotated[float, Field(ge=0)]
    end: Annotated[list[Token], FailFast()]
    """Tokens that end a completion."""


def read_sampling(content: bytes, context: int, vocabulary: int) -> Sampling:
    """Validate the body of a /sample request for a model of a context of so many tokens and a vocabulary of
    that size. Raises Refusal, which names the field."""
    try:
        sampling = Sampling.model_validate_json(content)
    except ValidationError as error:
        # Without the input, which may be the whole body.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise Refusal(BAD, f"{where}: {first['msg']}") from error
    longest = max(map(len, sampling.prompts), default=0)
    if longest + sampling.limit > context:
        reason = f"limit: a prompt of {longest} tokens and {sampling.limit} new ones exceed the context"
        raise Refusal(BAD, f"{reason} of {context}")
    for name, sequences in (("prompts", sampling.prompts), ("end", [sampling.end])):
        largest = max(itertools.chain.from_iterable(sequences), default=0)
        if largest >= vocabulary:
            raise Refusal(BAD, f"{name}: token {largest} is outside the vocabulary of {vocabulary} tokens")
    if any(index >= len(sampling.prompts) for index, _ in sampling.jobs):
        raise Refusal(BAD, f"jobs: an index is not below {len(sampling.prompts)}, the number of prompts")
    return sampling


def check_weights(path: str, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    """Raise Refusal for a file that is not safetensors, for a tensor of another dtype, and for a tensor whose
    shape is not that in `shapes`. The engine decides about names that `shapes` lacks."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - it is no dictionary
                view = stored.get_slice(name)
                shape = tuple(view.get_shape())
                if shape != shapes.get(name, shape):
                    raise Refusal(BAD, f"{name}: shape {shape}, and the model's is {shapes[name]}")
                if view.get_dtype() != STORED[dtype]:
                    raise Refusal(
                        BAD, f"{name}: dtype {view.get_dtype()}, and the engine's is {STORED[dtype]}"
                    )
    except SafetensorError as error:
        raise Refusal(BAD, f"weights: not a safetensors file ({error})") from error


class Server(ThreadingHTTPServer):
    """Serves an engine to one run at a time. `port` 0 takes a free one; `shapes` are those of the model's
    tensors by name, and `vocabulary` is its number of tokens, where they are known."""

    # Else closing the server would wait for every open connection.
    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(
        self,
        engine: Engine,
        model: str,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        vocabulary: int = MOST_TOKENS,
    ) -> None:
        super().__init__((host, port), Handler)
        self.engine, self.model, self.shapes, self.vocabulary = engine, model, shapes, vocabulary
        self.gate = Gate(token, frozenset({host.lower()}))
        weights = (
            4 * sum(map(math.prod, shapes.values())) + HEADER if shapes else MOST_WEIGHTS
        )  # float32 at most
        self.most = {"/sample": MOST_ASKED, "/weights": weights}
        """Bytes of a body, by page."""
        self.slots = threading.Semaphore(CONNECTIONS)
        self.claiming = threading.Lock()
        self.holder: Handler | None = None
        self.run = ""

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "dtype": str(self.engine.dtype).removeprefix("torch."),
            "context": self.engine.context,
            "block": self.engine.block,
            "provenance": dict(self.engine.provenance),
            "run": self.run,
        }

    def demand_free(self, handler: Handler) -> None:
        """Raise Refusal if another connection holds the lease."""
        if self.holder not in (None, handler):
            raise Refusal(TAKEN, f"in use by {self.run or 'another run'}")

    def claim(self, handler: Handler, run: str) -> None:
        """Give the lease to a connection. Raises Refusal if another one holds it."""
        # Two connections may have complete requests at the same time.
        with self.claiming:
            self.demand_free(handler)
            self.holder, self.run = handler, run

    def release(self, handler: Handler) -> None:
        """Take the lease back, if this connection holds it."""
        with self.claiming:
            if self.holder is handler:
                self.holder, self.run = None, ""

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.slots.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            # The thread that accepts connections must wait for nobody.
            request.setblocking(False)
            request.send(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Timed(io.RawIOBase):
    """Reads from a connection until a deadline, which covers any number of reads. Without a deadline it waits
    for the next byte, which sets one."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.allow(PATIENCE)

    def allow(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.connection.settimeout(left if left < math.inf else None)
        count = self.connection.recv_into(buffer)
        if left == math.inf:
            self.allow(PATIENCE)
        return count


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"  # connections stay open
    server: Server

    def setup(self) -> None:
        super().setup()
        # A run whose machine dies closes nothing, and would hold the lease for ever.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.timed = Timed(self.connection)
        self.rfile = io.BufferedReader(self.timed)

    def do_GET(self) -> None:
        self.respond({"/state": self.server.state})

    def do_POST(self) -> None:
        self.respond({"/sample": self.sample, "/weights": self.weights})

    def respond(self, pages: Mapping[str, Callable[[], Any]]) -> None:
        """Answer a request. Any answer but 200 ends the lease and the connection."""
        try:
            self.server.gate.check(self.headers)
            if self.path not in pages:
                raise Refusal(UNKNOWN, "no such page")
            content = pages[self.path]()
        except Refusal as refusal:
            self.refuse(refusal.status, str(refusal))
        except TimeoutError:
            self.refuse(LATE, "the body did not arrive in time")
        except Exception as error:  # whatever it is, it is the client's run that must stop
            self.refuse(FAILED, f"{type(error).__name__}: {error}")
        else:
            self.close_connection |= self.server.holder is not self
            self.answer(GOOD, content)
            self.timed.deadline = math.inf  # a run is silent for as long as it trains

    def refuse(self, status: int, reason: str) -> None:
        self.server.release(self)
        self.close_connection = True
        self.answer(status, {"error": reason})
        # Closing with unread bytes would reset the connection, and the answer might be lost.
        self.connection.shutdown(socket.SHUT_WR)
        self.timed.allow(LINGER)
        with contextlib.suppress(OSError):
            while self.rfile.read(CHUNK):
                pass

    @contextlib.contextmanager
    def body(self) -> Iterator[IO[bytes]]:
        """The body of the request as a temporary file. Raises Refusal."""
        # Refused by the size that it announces, before a byte of it is read.
        size = left = length(self.headers, self.server.most[self.path])
        self.timed.allow(PATIENCE + size / SLOWEST)
        with tempfile.NamedTemporaryFile() as file:
            while left:
                # Another run may have got the lease meanwhile; the rest need not arrive then.
                self.server.demand_free(self)
                # Never more than was announced, since the next request begins behind it.
                chunk = self.rfile.read(min(CHUNK, left))
                if not chunk:
                    raise Refusal(BAD, f"the body ends after {size - left} of {size} bytes")
                file.write(chunk)
                left -= len(chunk)
            # This also flushes: `weights` has the file opened by its name.
            file.seek(0)
            yield file

    def claim(self) -> None:
        # Other runs see this name in their terminals.
        run = "".join(filter(str.isprintable, self.headers.get("X-Run", "")))
        self.server.claim(self, run[:200])

    def sample(self) -> Any:
        engine = self.server.engine
        with self.body() as body:
            self.claim()  # before the body is parsed: it takes ten times its size in memory
            sampling = read_sampling(body.read(), engine.context, self.server.vocabulary)
        jobs = [(sampling.prompts[index], seed) for index, seed in sampling.jobs]
        drawn = engine.sample(jobs, sampling.limit, sampling.temperature, sampling.end)
        # As Python's floats: JSON knows no NumPy.
        return [[list(each.tokens), [float(p) for p in each.logp]] for each in drawn]

    def weights(self) -> Any:
        with self.body() as body:
            # Before the lease, which only a valid request gets.
            check_weights(body.name, self.server.shapes, self.server.engine.dtype)
            self.claim()
            self.server.engine.load(stored_weights(body.name))
        return {}

    def answer(self, status: int, content: Any) -> None:
        encoded = json.dumps(content).encode()
        # `Timed` bounds reading only.
        self.connection.settimeout(PATIENCE + len(encoded) / SLOWEST)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(encoded)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no HTTP, or of a version or method that the server does not know."""
        self.request_version = self.protocol_version  # an answer to HTTP 0.9 would have no status
        self.refuse(code, message or http.client.responses.get(code, "bad request"))

    # Called however the connection ends.
    def finish(self) -> None:
        self.server.release(self)
        super().finish()

    def log_message(self, *args: Any) -> None:
        """Say nothing: a run's log tells of its requests."""


def stored_weights(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file, one at a time."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as weights_file:
        for name in weights_file.keys():  # noqa: SIM118 - it is no dictionary
            yield name, weights_file.get_tensor(name)


def vocabulary_of(config: Mapping[str, Any]) -> int:
    """The number of tokens by a model's config.json, or that of its language model; `MOST_TOKENS` where it
    states none."""
    text = config.get("text_config")
    stated = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return stated if isinstance(stated, int) and stated > 0 else MOST_TOKENS


def serve(
    model: str, *, host: str, port: int, dtype: str, rows: int, cache_gb: float, tell: Callable[[str], None]
) -> None:
    """Serve a model until SIGINT or SIGTERM. Raises ModelError for one that cannot be served."""
    from grpobench.runs.models.model_files import locate
    from grpobench.runs.sample.engines.vllm import VLLM

    model_path, token = locate(model), gate.token_for(host)
    engine = VLLM(model_path, dtype=dtype, rows=rows, cache_gb=cache_gb)
    # After vLLM, which has fetched what was not here.
    config, weight_files = sizes.files(model_path, local_files_only=True)
    stored = [file for file in weight_files if file.suffix == ".safetensors"]
    try:
        shapes, vocabulary = sizes.shapes(stored), vocabulary_of(bounded.read_object(config))
        with Server(engine, model, host, port, token, shapes, vocabulary) as server:
            # In a thread: shutdown waits for serve_forever, which the handler interrupts.
            signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
            tell(
                f"serving {model} at {server.url} ({dtype}, context {engine.context}): set sampler.kind = "
                f'"vllm-server" and sampler.url = "{server.url}"'
            )
            if token and not os.environ.get(gate.VARIABLE):
                tell(f"for runs that use it: export {gate.VARIABLE}={token}")
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        engine.close()


class Remote:
    """An engine behind a server's URL; `run` is what the server calls whoever holds it. The server's token,
    if any, is in the environment (`gate.VARIABLE`), so that it is written into no file.

    Raises ModelError when there is no server or another run has it; RuntimeError when it fails later.
    """

    def __init__(self, url: str, run: str) -> None:
        self.url, self.run = url.rstrip("/"), run
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection = kind(parts.netloc, timeout=PATIENCE)
        self.base = parts.path
        try:
            state = self._ask("GET", "/state")
            self.context, self.block = int(state["context"]), int(state["block"])
            self.dtype: torch.dtype = getattr(torch, state["dtype"])
            self.provenance: Mapping[str, Any] = state.get("provenance", {})
            holder = state["run"]
        # Something else than a server of ours may answer there.
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"no engine answers at {url} ({error}); start one with `grpobench serve MODEL` and set "
                "sampler.url to what it prints"
            ) from error
        if holder:
            raise ModelError(f"the engine at {url} is in use by {holder}; start another on its own port")
        self.adapts = self.asleep = False

    def sample(
        self,
        jobs: Sequence[tuple[tuple[int, ...], int]],
        limit: int,
        temperature: float,
        end: Sequence[int],
        truncation: Truncation = FULL,
    ) -> list[EngineCompletion]:
        """One completion per (prompt, seed), in order. A prompt of many seeds travels once. Raises ValueError
        for a truncation, which a server that knows none would ignore."""
        if truncation.active:
            raise ValueError("grpobench serve draws from the full distribution")
        prompts = list(dict.fromkeys(prompt for prompt, _ in jobs))
        number = {prompt: index for index, prompt in enumerate(prompts)}
        request = {
            "prompts": prompts,
            "jobs": [(number[prompt], seed) for prompt, seed in jobs],
            "limit": limit,
            "temperature": temperature,
            "end": list(end),
        }
        completions = self._ask("POST", "/sample", json.dumps(request).encode())
        return [
            EngineCompletion(tuple(tokens), np.array(logp, dtype=np.float32)) for tokens, logp in completions
        ]

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Send weights, in the engine's precision."""
        from safetensors.torch import save_file

        # Copies: save_file refuses tensors that share memory, or lie in pieces.
        tensor_by_name = {
            name: tensor.to("cpu", self.dtype, copy=True).contiguous() for name, tensor in weights
        }
        with tempfile.NamedTemporaryFile() as file:
            save_file(tensor_by_name, file.name)
            del tensor_by_name  # the file has them
            with open(file.name, "rb") as body:
                self._ask("POST", "/weights", body)

    def load_adapter(self, config: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """A server takes whole weights (`adapts`)."""
        raise NotImplementedError("grpobench serve takes whole weights, with the adapter added")

    def sleep(self) -> None:
        """The engine is on another device: it keeps its memory."""

    def _connect(self) -> None:
        self.connection.connect()
        self.connection.sock.settimeout(None)  # an answer takes as long as it takes
        self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _ask(self, method: str, page: str, body: Any = None) -> Any:
        headers = {"X-Run": self.run}
        if token := os.environ.get(gate.VARIABLE, ""):
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            size = len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size
            # http.client would else send a file in chunks, which the gate refuses.
            headers["Content-Length"] = str(size)
        try:
            if self.connection.sock is None:
                self._connect()
            # A server that refuses a request answers before it has read the body, and closes the connection.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.connection.request(method, self.base + page, body, headers)
            response = self.connection.getresponse()
            # Read to its end, else the connection could not be used again.
            status, content = response.status, json.loads(response.read())
            reason = "" if status == GOOD else content["error"]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.connection.close()
            raise RuntimeError(
                f"the engine at {self.url} went away ({type(error).__name__}: {error}); start it again and "
                "resume"
            ) from error
        if status == TAKEN:
            raise ModelError(f"the engine at {self.url} is {reason}; start another on its own port")
        if status != GOOD:
            raise RuntimeError(f"the engine at {self.url} failed: {reason}")
        return content

    def close(self) -> None:
        """Leave the server to the next run."""
        with contextlib.suppress(OSError):
            self.connection.close()
