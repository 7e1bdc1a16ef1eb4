"""A sampler with weights of its own, in process and behind a server, with a copy of the model for an engine:
it follows the trainer, and is caught when it does not. The same with vLLM itself is in test_vllm.py."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import math
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import stand_ins
from helpers.logs import is_metric
from helpers.sampling import END, EXACT, PROMPTS, flat, same, texts, update
from helpers.sampling import requests as sampled
from helpers.toys import Copy, tiny
from helpers.whole_runs import after, arithmetic, run

from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.quantization import linear_weights, quantize
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.engines import gate
from grpobench.runs.sample.engines import sampler as vllm_sampler
from grpobench.runs.sample.engines.sampler import EngineSampler, SamplerMismatch, halved, stretched
from grpobench.runs.sample.engines.server import Remote, Server, serve
from grpobench.runs.sample.engines.vllm import start
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import GREEDY, Request
from grpobench.runs.settings import config as runs_config
from grpobench.runs.settings.config import RunConfig, SamplerConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.settings.truncation import Truncation
from grpobench.runs.train import trainer
from grpobench.runs.train.progress import Preempted
from grpobench.tasks.data.tables import DataError


def trained(temperature: float = 1.0, rate: float = 1e-3) -> RoleModels:
    models = RoleModels(tiny(), ("policy",), temperature=temperature)
    models.optimize({"policy": rate}, (0.9, 0.95), 0.0, 1.0)
    return models


def sampler(models: RoleModels, engine: Any = None, **settings: Any) -> EngineSampler:
    options = {"end": END, "pad": 0, "context": 128, "prompt": PROMPTS[0], **settings}
    return EngineSampler(engine or Copy(models.language), models, **options)


def requests() -> list[Request]:
    """With a greedy completion of each prompt."""
    return [dataclasses.replace(request, seeds=(*request.seeds[:2], GREEDY)) for request in sampled()[:3]]


def in_process(models: RoleModels, sample_requests: list[Request], temperature: float) -> list[list[Rollout]]:
    """Completions of at most nine tokens by the trainer's own sampler."""
    return HFSampler(models, END, 0, 64, 128).sample(sample_requests, 9, temperature)


# Sampling


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_samples_are_those_of_the_in_process_sampler(temperature: float) -> None:
    models = trained(temperature or 1.0)
    ours = flat(sampler(models).sample(requests(), 9, temperature))
    assert all(map(same, ours, flat(in_process(models, requests(), temperature)))) and len(ours) == 9
    assert {rollout.stopped for rollout in ours} == {True, False}


def test_an_engine_draws_from_the_truncated_distribution() -> None:
    models = trained()
    truncated_requests = [
        dataclasses.replace(request, truncation=Truncation(top_k=3)) for request in requests()
    ]
    ours = flat(sampler(models).sample(truncated_requests, 9, 1.0))
    assert all(map(same, ours, flat(in_process(models, truncated_requests, 1.0)))) and len(ours) == 9


def test_prompt_without_room_names_remedy_and_smaller_context_counts() -> None:
    models = trained()
    cramped = Copy(models.language, context=40)
    for settings, more in (
        ({"context": 40}, ""),
        ({"engine": cramped}, r".*larger cache \(sampler.cache_gb"),
    ):
        source = sampler(models, **settings)
        assert source.sample([Request(tuple(range(2, 22)), (1,))], 20, 1.0)
        with pytest.raises(
            DataError, match=f"21 tokens and 20 new ones.*context of 40.*max_completion_tokens{more}"
        ):
            source.sample([Request(tuple(range(2, 23)), (1,))], 20, 1.0)


def test_mixing_is_refused() -> None:
    models = trained()
    with pytest.raises(DataError, match=r'set sampler\.kind = "hf"'):
        sampler(models).sample(requests(), 4, 1.0, lambda *_: None)  # type: ignore[arg-type, return-value]


# Following the trainer


def test_engine_has_the_trainers_weights_after_every_sync() -> None:
    models = trained()
    other = Copy(tiny(seed=1))
    source = sampler(models, other)  # an engine that begins with other weights
    for _ in range(3):
        update(models)
        assert source.sync()["gap/sync"] < 1e-4
        engine_state = other.models.language.state_dict()
        assert all(torch.equal(engine_state[name], p) for name, p in models.language.state_dict().items())


def test_engine_that_knows_no_adapters_gets_the_sum_of_weights_and_adapter() -> None:
    models = RoleModels(tiny(), ("policy",), adapter=Adapter(rank=4, alpha=8.0))
    models.optimize({"policy": 3e-2}, (0.9, 0.95), 0.0, 1.0)
    before = {name: p.clone() for name, p in models.language.named_parameters() if "lora" not in name}
    source = sampler(models, Copy(tiny()))
    for _ in range(2):
        update(models)
        assert source.sync()["gap/sync"] < 1e-4
    assert texts(source.sample(requests(), 9, 1.0)) == texts(in_process(models, requests(), 1.0))
    parameter_by_name = dict(models.language.named_parameters())
    assert all(torch.equal(parameter_by_name[name], p) for name, p in before.items())


def names() -> list[str]:
    return [name for name, _ in tiny().named_parameters()]


@pytest.mark.parametrize("name", names())
def test_engine_that_ignores_any_one_tensor_is_found_out_at_the_start(name: str) -> None:
    models = trained()
    with pytest.raises(SamplerMismatch, match=r"after a weight synchronization.*not taken over the weights"):
        sampler(models, Copy(models.language, deaf=[name]))


@pytest.mark.parametrize("rate", [1e-3, 1e-7])
def test_skipped_sync_is_caught_at_once_at_any_learning_rate(rate: float) -> None:
    """With 1e-7 the trainer moves by less than the allowed gap, but by more than rounding explains."""
    models = trained(rate=rate)
    engine = Copy(models.language)
    source = sampler(models, engine)
    update(models)
    engine.deaf = names()
    moved = source.probe().gap
    assert (moved > source.allowed) == (rate == 1e-3)
    with pytest.raises(SamplerMismatch, match="differ by" if rate == 1e-3 else "the engine made 0% of"):
        source.sync()
    engine.deaf = ()
    assert source.sync()["gap/sync"] < 1e-5


class Rounding(Copy):
    """Rounds the weights that it is handed to fp8, in place."""

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().load(weights)
        for weight, _ in linear_weights(self.models.networks["policy"].trunk):
            weight.data.copy_(quantize(weight, "fp8"))


def test_an_engine_of_8_bits_is_kept_in_step_and_found_out() -> None:
    models = trained()
    source = sampler(models, Rounding(models.language), quantized=True)
    update(models)
    # More than float32 would explain, and less than what 8 bits may.
    assert 1e-3 < source.sync()["gap/sync"] < source.allowed
    with pytest.raises(SamplerMismatch):
        sampler(models, Rounding(models.language))
    with pytest.raises(SamplerMismatch, match="not taken over the weights"):
        sampler(models, Rounding(models.language, deaf=names()), quantized=True)


def test_vllm_is_asked_for_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_settings: dict[str, Any] = {}
    modules = {
        "vllm": SimpleNamespace(LLM=lambda **settings: engine_settings.update(settings)),
        "vllm.platforms": SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: False)),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for quantization in (None, "fp8"):
        start("model", "bfloat16", rows=1, cache_gb=1.0, quantization=quantization)
        assert engine_settings["quantization"] == quantization


def test_answers_that_are_no_numbers_are_a_gap() -> None:
    models = trained()
    source = sampler(models)
    with torch.no_grad():
        models.language.lm_head.weight[3] = math.nan
    with pytest.raises(SamplerMismatch):
        source.sync()


def test_proof_leaves_the_weights_as_they_were_to_the_bit() -> None:
    models = trained()
    before = {name: p.clone() for name, p in models.language.named_parameters()}
    engine = Copy(models.language)
    sampler(models, engine)
    assert engine.loads == 3
    assert all(torch.equal(before[name], p) for name, p in models.language.named_parameters())
    with pytest.raises(KeyError), halved(models.language):
        raise KeyError
    assert all(torch.equal(before[name], p) for name, p in models.language.named_parameters())


def test_probe_fills_a_block_of_the_prefix_cache_within_the_context() -> None:
    assert stretched((1, 2, 3), 7, 100) == (1, 2, 3, 1, 2, 3, 1, 2, 3)
    assert stretched((1, 2, 3), 7, 5) == (1, 2, 3, 1, 2)
    assert stretched(range(9), 7, 100) == tuple(range(9))


# Behind a server


@contextlib.contextmanager
def serving(engine: Copy, token: str = "") -> Iterator[Server]:
    with Server(engine, "tiny", token=token) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def served() -> Iterator[tuple[Server, Copy]]:
    engine = Copy(tiny(seed=1))
    with serving(engine) as server:
        yield server, engine


def test_server_gives_what_its_engine_gives(served: tuple[Server, Copy]) -> None:
    server, engine = served
    models = trained()
    source = sampler(models, Remote(server.url, "run a"))
    update(models)
    assert source.sync()["gap/sync"] < EXACT
    engine_state = engine.models.language.state_dict()
    assert all(torch.equal(engine_state[name], p) for name, p in models.language.state_dict().items())
    behind, local = (flat(each.sample(requests(), 9, 0.7)) for each in (source, sampler(models)))
    for a, b in zip(behind, local, strict=True):
        assert a.completion == b.completion and a.sampler_logp.dtype == np.float32
        assert np.array_equal(a.sampler_logp, b.sampler_logp)
    source.close()


def test_server_belongs_to_one_run_until_it_leaves(served: tuple[Server, Copy]) -> None:
    server, _ = served
    jobs = [((5, 6), 1)]
    first, idle = Remote(server.url, "run a"), Remote(server.url, "run b")
    first.sample(jobs, 2, 1.0, END)
    with pytest.raises(ModelError, match=r"in use by run a; start another on its own port"):
        idle.sample(jobs, 2, 1.0, END)
    with pytest.raises(ModelError, match="in use by run a"):
        Remote(server.url, "run c")
    first.close()
    deadline = threading.Event()
    for _ in range(100):  # the server notices when it next reads from the connection
        if not server.run:
            break
        deadline.wait(0.05)
    assert Remote(server.url, "run d").sample(jobs, 2, 1.0, END)


def test_failing_engine_and_vanished_server_stop_the_run_with_the_reason(
    served: tuple[Server, Copy],
) -> None:
    server, engine = served
    remote = Remote(server.url, "run a")
    engine.broken = True
    with pytest.raises(RuntimeError, match="failed: ArithmeticError: it does not work"):
        remote.sample([((5, 6), 1)], 2, 1.0, END)
    remote.connection.close()
    server.server_close()
    with pytest.raises(RuntimeError, match=r"went away .*start it again and resume"):
        remote.sample([((5, 6), 1)], 2, 1.0, END)


def test_no_server_is_an_error_that_names_the_command() -> None:
    with pytest.raises(ModelError, match=r"no engine answers at http://127.0.0.1:9 .*grpobench serve MODEL"):
        Remote("http://127.0.0.1:9", "run a")


def test_server_answers_its_state_and_no_other_page(
    served: tuple[Server, Copy],
) -> None:
    server, _ = served
    connection = http.client.HTTPConnection(*server.server_address[:2])  # type: ignore[arg-type]
    for method, page, status in (("GET", "/state", 200), ("GET", "/x", 404), ("POST", "/x", 404)):
        connection.request(method, page, b"{}" if method == "POST" else None)
        response = connection.getresponse()
        content = json.loads(response.read())
        assert response.status == status
        if status == 200:
            expected = {"model": "tiny", "dtype": "float32", "context": 128, "block": 4, "run": ""}
            assert content == expected | {"provenance": {"engine": "a copy"}}
    connection.close()


# The gate


def raw(server: Server, head: str, body: bytes = b"") -> tuple[int, str]:
    """Status and answer of a request as it is written; fails where there is none within ten seconds."""
    address = server.server_address[:2]
    with socket.create_connection(address, timeout=10) as connection:  # type: ignore[arg-type]
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.read().decode()


@pytest.mark.parametrize(
    ("announced", "status"),
    [
        ("Content-Length: -1", 400),
        ("Content-Length: 1e3", 400),
        ("Content-Length: \u0663", 400),
        ("Content-Length:", 400),
        ("X-Nothing: 1", 400),
        ("Transfer-Encoding: chunked", 400),
        (f"Content-Length: {2**50}", 413),
        (f"Content-Length: {'9' * 5000}", 400),
    ],
)
def test_a_body_without_a_length_or_too_long_is_answered_and_not_read(
    served: tuple[Server, Copy], announced: str, status: int
) -> None:
    for page in ("/sample", "/weights"):
        answered, text = raw(served[0], f"POST {page} HTTP/1.1\nHost: localhost\n{announced}")
        assert answered == status and json.loads(text)["error"]
    assert served[0].run == "" and Remote(served[0].url, "run a").sample([((5, 6), 1)], 2, 1.0, END)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Host: 127.0.0.1:8765", 200),
        ("Host: localhost", 200),
        ("Host: [::1]:1", 200),
        ("Host: rebound.example:8765", 403),
        ("Host: localhost.rebound.example", 403),
        ("Host: [", 403),
        ("X-Nothing: 1", 403),
        ("Host: 127.0.0.1\nOrigin: http://127.0.0.1:8765", 403),
        ("Host: 127.0.0.1\nOrigin: null", 403),
    ],
)
def test_a_page_in_a_browser_gets_nothing(served: tuple[Server, Copy], header: str, status: int) -> None:
    assert raw(served[0], f"GET /state HTTP/1.1\n{header}")[0] == status
    answered, _ = raw(served[0], f"POST /x HTTP/1.1\n{header}\nContent-Length: 2", b"{}")
    assert answered == (404 if status == 200 else 403)


def test_a_server_with_a_token_answers_nobody_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gate.VARIABLE, raising=False)
    with serving(Copy(tiny()), "secret") as server:
        for shown, status in (("X: y", 401), ("Authorization: Bearer secre", 401), ("Authorization: é", 401)):
            assert raw(server, f"GET /state HTTP/1.1\nHost: localhost\n{shown}")[0] == status
        with pytest.raises(ModelError, match=f"no token or another one: set {gate.VARIABLE}"):
            Remote(server.url, "run a")
        monkeypatch.setenv(gate.VARIABLE, "secret")
        assert Remote(server.url, "run a").sample([((5, 6), 1)], 2, 1.0, END)


def test_beyond_the_machine_there_is_a_token_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gate.VARIABLE, raising=False)
    assert [gate.token_for(host) for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8")] == [""] * 4
    made = [gate.token_for(host) for host in ("0.0.0.0", "::", "10.0.0.1", "gpu1.example", "")]
    assert len(set(made)) == 5 and all(len(token) >= 32 for token in made)
    monkeypatch.setenv(gate.VARIABLE, "mine")
    assert gate.token_for("0.0.0.0") == gate.token_for("127.0.0.1") == "mine"


def test_served_model_says_its_token_once_and_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpobench.runs.sample.engines import server, vllm

    monkeypatch.delenv(gate.VARIABLE, raising=False)
    monkeypatch.setattr(vllm, "VLLM", lambda *_, **__: Copy(tiny(), context=128))
    monkeypatch.setattr(server.signal, "signal", lambda *_: None)
    servers: list[Server] = []

    def ended(self: Server) -> None:
        servers.append(self)

    monkeypatch.setattr(server.Server, "serve_forever", ended)
    for beyond in (False, True):
        monkeypatch.setattr(gate, "loopback", lambda _, beyond=beyond: not beyond)
        messages: list[str] = []
        serve("nano", host="127.0.0.1", port=0, dtype="float32", rows=1, cache_gb=0.1, tell=messages.append)
        assert [gate.VARIABLE in line for line in messages] == ([False, True] if beyond else [False])
        assert servers[-1].gate.token == (messages[1].partition("=")[2] if len(messages) > 1 else "")
        assert 10**6 < servers[-1].most["/weights"] < 10**7  # four bytes for each of nano's weights


# Whole runs


def configure(url: str = "", **sections: Any) -> RunConfig:
    return arithmetic(**{"sampler": SamplerConfig(kind="vllm-server", url=url), **sections})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Copy]:
    """Runs find copies of the nano policy behind every URL; the list holds those that were made."""
    made: list[Copy] = []

    def remote(url: str, run: str) -> Copy:
        from grpobench.runs.models.loading import load

        made.append(Copy(load("nano").model, context=1024))
        return made[-1]

    monkeypatch.setattr("grpobench.runs.sample.engines.server.Remote", remote)
    return made


def test_run_logs_the_gap_at_every_step_and_equals_the_in_process_run(
    engine: list[Copy], tmp_path: Path
) -> None:
    ours = run(configure(), tmp_path / "ours")
    theirs = run(configure(sampler=SamplerConfig()), tmp_path / "theirs")
    assert not {key for row in ours for key in row if not is_metric(key)}
    for row, other in zip(ours[1:], theirs[1:], strict=True):
        assert 0 <= row["gap/sync"] < 1e-4 and row["gap/mean"] < 1e-5 and "gap/max" in row
        assert "gap/sync" not in other
        assert row["reward/mean"] == other["reward/mean"]
        assert row["grad_norm/policy"] == pytest.approx(other["grad_norm/policy"], rel=1e-3)
        assert row["grad_norm/policy"] > 0
    evaluated = [key for key in ours[2] if key.startswith("eval/") and key.endswith("/correct")]
    assert len(evaluated) == 4 and all(ours[2][key] == theirs[2][key] for key in evaluated)
    assert engine[0].closed


def test_resumed_run_hands_the_checkpoints_weights_to_its_new_engine(
    engine: list[Copy], tmp_path: Path
) -> None:
    undisturbed = run(configure(), tmp_path / "whole")
    with pytest.raises(Preempted):
        run(configure(), tmp_path / "parts", after(tmp_path / "parts", 1))
    parts = run(configure(), tmp_path / "parts")
    assert len(engine) == 3 and engine[1].closed
    assert [row["reward/mean"] for row in parts[1:]] == [row["reward/mean"] for row in undisturbed[1:]]


def test_run_stops_at_the_sync_that_its_engine_skips(engine: list[Copy], tmp_path: Path) -> None:
    from grpobench.runs.sample.engines import server as remote

    made: Callable[..., Copy] = remote.Remote  # type: ignore[assignment]

    def forgetful(url: str, run: str) -> Copy:
        remote_engine = made(url, run)
        plain = remote_engine.load
        remote_engine.load = lambda weights: plain(weights) if remote_engine.loads < 4 else None  # type: ignore[method-assign]
        return remote_engine

    remote.Remote = forgetful  # type: ignore[assignment, misc]
    with pytest.raises(SamplerMismatch, match="after a weight synchronization"):
        run(configure(), tmp_path)
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1], "three loads for the proof, one for step 1"
    assert engine[0].closed


def test_correction_is_logged_and_compares_with_the_trainer(tmp_path: Path) -> None:
    """Probabilities that the sampler understates by a factor of 0.9995: every weight is 1/0.9995."""
    plain = trainer.pack_groups

    def skewed(*args: Any, **more: Any) -> Any:
        batch = plain(*args, **more)
        return dataclasses.replace(batch, sampler_logp=batch.sampler_logp - 5e-4)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "pack_groups", skewed)
        run_rows = run(configure(sampler=SamplerConfig(correction="tis")), tmp_path / "corrected")
    for row in run_rows[1:]:
        assert row["correction/weight_mean"] == pytest.approx(math.exp(5e-4), abs=1e-5)
        assert row["correction/clipped"] == 0 and row["gap/mean"] == pytest.approx(5e-4, rel=0.01)
        assert abs(row["trained/kl_old"]) < 1e-5, "one update: π_old is the trainer's own, not the sampler's"
    first = run(configure(sampler=SamplerConfig()), tmp_path / "plain")[1]["grad_norm/policy"]
    assert run_rows[1]["grad_norm/policy"] == pytest.approx(first * math.exp(5e-4), rel=1e-4)


# Recipes


def test_recipe_that_cannot_be_served_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    mixing = dataclasses.replace(configure(sampler=SamplerConfig(kind="vllm")), algorithm=stand_ins.Mixing())
    (why,) = incompatible(mixing)
    assert why == 'mixes embeddings while decoding, and sampler.kind is "vllm"; set sampler.kind = "hf"'
    (why,) = incompatible(configure("somewhere"))
    assert "sampler.url 'somewhere' is no address" in why and "grpobench serve" in why
    assert incompatible(configure("http://there:1")) == []
    monkeypatch.setattr(runs_config.importlib.util, "find_spec", lambda name: None)
    assert "vllm is not installed: pip install" in SamplerConfig(kind="vllm").missing()
    assert SamplerConfig(kind="vllm-server").missing() == SamplerConfig().missing() == ""


def test_engine_is_closed_when_its_sampler_cannot_be_made(
    engine: list[Copy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vllm_sampler, "LARGEST_GAP", {torch.float32: -1.0})
    with pytest.raises(SamplerMismatch):
        run(configure(), tmp_path)
    assert engine[0].closed
