"""An engine behind the server of `grpobench serve`, from the side of the run."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

from grpobench.runs.models.errors import ModelError
from grpobench.runs.sample.engines import gate
from grpobench.runs.sample.engines.engine import Drawn
from grpobench.runs.sample.engines.server import GOOD, PATIENCE, TAKEN


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
