"""An engine behind HTTP: `grpobench serve` on one side, `Remote` on the other.

One run at a time: the server belongs to the connection that first asked for anything but its state, until
that connection ends, because another run's weights would be in its way. Token ids and log-probabilities
travel as JSON, weights as safetensors. Whoever asks passes the `gate` first: a token where others than this
machine can reach it, the server's own name, no browser, and no more bytes than the page can use.

An engine behind the server of `grpobench serve`, from the side of the run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np
import torch

from grpobench.runs.models import sizes
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.engines import engine as gate
from grpobench.runs.sample.engines.engine import Drawn, Engine, Gate, Refusal, length

CHUNK = 2**20
"""Bytes of a weight file read at once."""
PATIENCE = 10.0
"""Seconds in which a server must accept a connection. A request may take as long as it takes."""
GOOD, TAKEN, UNKNOWN, FAILED = 200, 409, 404, 500
MOST_ASKED = 256 * 2**20
"""Bytes of what to sample: some hundred thousand prompts of a hundred tokens."""
MOST_WEIGHTS = 2**40
"""Bytes of weights, where nothing says how many a model has."""
HEADER = 2**20
"""Bytes of a weight file that are no weights."""


class Server(ThreadingHTTPServer):
    """Serves an engine to one run at a time. `port` 0 takes a free one."""

    daemon_threads = True

    def __init__(
        self,
        engine: Engine,
        model: str,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        most_weights: int = MOST_WEIGHTS,
    ) -> None:
        super().__init__((host, port), Handler)
        self.engine, self.model = engine, model
        self.gate = Gate(token, frozenset({host.lower()}))
        self.most = {"/sample": MOST_ASKED, "/weights": most_weights}
        """Bytes of a body, by page."""
        self.working = threading.Lock()
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

    def claim(self, handler: Handler, run: str) -> bool:
        """Whether the server belongs to this connection now."""
        with self.claiming:
            if self.holder is None:
                self.holder, self.run = handler, run
            return self.holder is handler

    def release(self, handler: Handler) -> None:
        with self.claiming:
            if self.holder is handler:
                self.holder, self.run = None, ""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"  # connections stay open
    server: Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(PATIENCE)  # until it has shown what the gate asks for

    def admitted(self) -> bool:
        """Whether the gate lets the request pass; it is answered where not, and the connection ends."""
        try:
            self.server.gate.check(self.headers)
        except Refusal as refusal:
            self.refuse(refusal.status, str(refusal))
            return False
        self.connection.settimeout(None)  # a run is silent for as long as it trains
        return True

    def refuse(self, status: int, reason: str) -> None:
        """Answer without having read the body, after which the connection cannot go on."""
        self.close_connection = True
        self.answer(status, {"error": reason})

    def do_GET(self) -> None:
        if self.admitted():
            known = self.path == "/state"
            self.answer(
                GOOD if known else UNKNOWN, self.server.state() if known else {"error": "no such page"}
            )

    def do_POST(self) -> None:
        pages: Mapping[str, Callable[[IO[bytes]], Any]] = {"/sample": self.sample, "/weights": self.weights}
        if not self.admitted():
            return
        try:
            if self.path not in pages:
                raise Refusal(UNKNOWN, "no such page")
            left = length(self.headers, self.server.most[self.path])
        except Refusal as refusal:
            self.refuse(refusal.status, str(refusal))
            return
        ours = self.server.claim(self, self.headers.get("X-Run", ""))
        with tempfile.NamedTemporaryFile() if ours else open(os.devnull, "wb") as body:
            while left > 0 and (chunk := self.rfile.read(min(CHUNK, left))):
                body.write(chunk)
                left -= len(chunk)
            if left:
                self.close_connection = True  # the other side has gone
            elif not ours:
                self.answer(TAKEN, {"error": f"in use by {self.server.run or 'another run'}"})
            else:
                body.seek(0)
                self.work(pages[self.path], body)

    def work(self, page: Callable[[IO[bytes]], Any], body: IO[bytes]) -> None:
        try:
            with self.server.working:
                found = page(body)
        except Exception as error:  # whatever it is, it is the client's run that must stop
            self.answer(FAILED, {"error": f"{type(error).__name__}: {error}"})
        else:
            self.answer(GOOD, found)

    def sample(self, body: IO[bytes]) -> Any:
        asked = json.load(body)
        jobs = [(tuple(asked["prompts"][index]), seed) for index, seed in asked["jobs"]]
        found = self.server.engine.sample(jobs, asked["limit"], asked["temperature"], asked["end"])
        return [[list(drawn.tokens), [float(p) for p in drawn.logp]] for drawn in found]

    def weights(self, body: IO[bytes]) -> Any:
        self.server.engine.load(stored_weights(body.name))
        return {}

    def answer(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def finish(self) -> None:
        self.server.release(self)
        super().finish()

    def log_message(self, *args: Any) -> None:
        """Say nothing: a run's log tells of its requests."""


def stored_weights(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file, one at a time."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as held:
        for name in held.keys():  # noqa: SIM118 - it is no dictionary
            yield name, held.get_tensor(name)


def serve(
    model: str, *, host: str, port: int, dtype: str, rows: int, cache_gb: float, tell: Callable[[str], None]
) -> None:
    """Serve a model until SIGINT or SIGTERM. Raises ModelError for one that cannot be served."""
    from grpobench.runs.models.model_files import locate
    from grpobench.runs.sample.engines.vllm import VLLM

    place, token = locate(model), gate.token_for(host)
    engine = VLLM(place, dtype=dtype, rows=rows, cache_gb=cache_gb)
    weights = sizes.held(sizes.files(place, local_files_only=True)[1])
    most = 4 * weights.elements + HEADER if weights.elements else MOST_WEIGHTS  # in float32 at most
    try:
        with Server(engine, model, host, port, token, most) as server:
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
            self.connection.connect()
            self.connection.sock.settimeout(None)
            self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            state = self._ask("GET", "/state")
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            raise ModelError(
                f"no engine answers at {url} ({error}); start one with `grpobench serve MODEL` and set "
                "sampler.url to what it prints"
            ) from error
        if state["run"]:
            raise ModelError(
                f"the engine at {url} is in use by {state['run']}; start another on its own port"
            )
        self.context, self.block = int(state["context"]), int(state["block"])
        self.dtype: torch.dtype = getattr(torch, state["dtype"])
        self.provenance: Mapping[str, Any] = state.get("provenance", {})
        self.adapts = self.asleep = False

    def sample(
        self, jobs: Sequence[tuple[tuple[int, ...], int]], limit: int, temperature: float, end: Sequence[int]
    ) -> list[Drawn]:
        """One completion per (prompt, seed), in order. A prompt of many seeds travels once."""
        prompts = list(dict.fromkeys(prompt for prompt, _ in jobs))
        number = {prompt: index for index, prompt in enumerate(prompts)}
        asked = {
            "prompts": prompts,
            "jobs": [(number[prompt], seed) for prompt, seed in jobs],
            "limit": limit,
            "temperature": temperature,
            "end": list(end),
        }
        found = self._ask("POST", "/sample", json.dumps(asked).encode())
        return [Drawn(tuple(tokens), np.array(logp, dtype=np.float32)) for tokens, logp in found]

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Send weights, in the engine's precision."""
        from safetensors.torch import save_file

        held = {name: tensor.to("cpu", self.dtype, copy=True).contiguous() for name, tensor in weights}
        with tempfile.NamedTemporaryFile() as file:
            save_file(held, file.name)
            del held
            with open(file.name, "rb") as body:
                self._ask("POST", "/weights", body)

    def load_adapter(self, config: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """A server takes whole weights (`adapts`)."""
        raise NotImplementedError("grpobench serve takes whole weights, with the adapter added")

    def sleep(self) -> None:
        """The engine is on another device: it keeps its memory."""

    def _ask(self, method: str, page: str, body: Any = None) -> Any:
        headers = {"X-Run": self.run}
        if token := os.environ.get(gate.VARIABLE, ""):
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            size = len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size
            headers["Content-Length"] = str(size)
        try:
            self.connection.request(method, self.base + page, body, headers)
            response = self.connection.getresponse()
            status, data = response.status, response.read()
            content = json.loads(data)
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            raise RuntimeError(
                f"the engine at {self.url} went away ({type(error).__name__}: {error}); start it again and "
                "resume"
            ) from error
        if status == TAKEN:
            raise ModelError(f"the engine at {self.url} is {content['error']}; start another on its own port")
        if status != GOOD:
            raise RuntimeError(f"the engine at {self.url} failed: {content['error']}")
        return content

    def close(self) -> None:
        """Leave the server to the next run."""
        with contextlib.suppress(OSError):
            self.connection.close()
