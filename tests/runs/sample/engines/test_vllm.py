"""vLLM itself: its samples are the policy's, it follows the trainer, and whole runs with it, in process and
behind a server. Run by `make test-vllm`, which installs its CPU build."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.logs import is_metric
from helpers.sampling import (
    END,
    PROMPTS,
    demand_ends,
    demand_frequencies,
    demand_order,
    flat,
    logps,
    requests,
    texts,
    update,
)
from helpers.toys import SIZES, VOCABULARY, plain_logp
from helpers.whole_runs import after, arithmetic, run

from grpobench.runs.experiment.experiment import run_experiment
from grpobench.runs.inventory import doctor
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.draws import truncate
from grpobench.runs.sample.engines import vllm as engines
from grpobench.runs.sample.engines.sampler import EngineSampler, SamplerMismatch
from grpobench.runs.sample.engines.vllm import VLLM, AdapterRoom
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import GREEDY, Request
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig, RunConfig, SamplerConfig, TrainConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.truncation import Truncation
from grpobench.runs.train.execute import execute
from grpobench.runs.train.progress import Preempted
from grpobench.tasks.data.tables import DataError

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed; `make test-vllm` brings it"
    ),
]

EXACT = 1e-4
"""Nats: float32 logits of some tens, by other kernels in another order."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random Llama over 40 tokens whose next-token distributions are far from uniform."""
    import transformers

    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(0)
    heads = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(**SIZES | heads | {"intermediate_size": 96})
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


cached_engine: dict[str, tuple[str, VLLM]] = {}


ATTENTION = ("k_proj", "o_proj", "q_proj", "v_proj")
EVERY = AdapterRoom(4, (*ATTENTION, "down_proj", "gate_proj", "up_proj"))


def vllm(model_path: str, dtype: str = "float32", room: AdapterRoom | None = None) -> VLLM:
    """The engine of the last test where it will do: there is one in a process, and it starts slowly."""
    name, engine = cached_engine.get("engine", ("", None))
    key = f"{model_path} {dtype} {room}"
    if engine is None or name != key or engine is not VLLM._open:
        engine = VLLM(model_path, dtype=dtype, rows=64, cache_gb=0.25, room=room)
        cached_engine["engine"] = (key, engine)
    return engine


def language(model_path: str) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)


def sampler(model_path: str, temperature: float = 1.0, **settings: Any) -> EngineSampler:
    models = RoleModels(language(model_path), ("policy",), temperature=temperature)
    models.optimize({"policy": 1e-3}, (0.9, 0.95), 0.0, 1.0)
    options = {"end": END, "pad": 0, "context": 128, "prompt": PROMPTS[0], **settings}
    return EngineSampler(vllm(model_path), models, **options)


# Its samples


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_behavior_logp_is_that_of_a_forward_pass_at_the_temperature(small: str, temperature: float) -> None:
    source = sampler(small, temperature)
    for rollout in flat(source.sample(requests(), 15, temperature)):
        expected = logps(source.models.language, rollout, temperature)
        np.testing.assert_allclose(rollout.sampler_logp, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("truncation", [Truncation(top_k=4, top_p=0.7), Truncation(top_k=4, min_p=0.3)])
def test_behavior_logp_is_that_of_the_truncated_distribution(small: str, truncation: Truncation) -> None:
    source = sampler(small)
    truncated_requests = [dataclasses.replace(request, truncation=truncation) for request in requests()]
    for rollout in flat(source.sample(truncated_requests, 15, 1.0)):
        with torch.no_grad():
            full = plain_logp(source.models.language, rollout.prompt, rollout.completion)
        expected = truncate(full, truncation).gather(-1, torch.tensor(rollout.completion)[:, None])[:, 0]
        np.testing.assert_allclose(rollout.sampler_logp, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("seed", [3, GREEDY])
def test_greedy_answers_and_logps_match_the_in_process_sampler(small: str, seed: int) -> None:
    source = sampler(small)
    sample_requests = [Request(prompt, (seed,)) for prompt in PROMPTS]
    temperature = 1.0 if seed == GREEDY else 0.0
    ours = source.sample(sample_requests, 12, temperature)
    theirs = HFSampler(source.models, END, 0, 64, 128).sample(sample_requests, 12, temperature)
    for (a,), (b,) in zip(ours, theirs, strict=True):
        assert (a.prompt, a.completion, a.stopped) == (b.prompt, b.completion, b.stopped)
        np.testing.assert_allclose(a.sampler_logp, b.sampler_logp, rtol=0, atol=EXACT)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_frequencies_of_two_token_completions_are_their_probabilities(small: str, temperature: float) -> None:
    source = sampler(small, temperature)
    demand_frequencies(source, source.models.language, temperature, draws=3000, often=20)


def test_sample_depends_on_nothing_but_its_seed_and_prompt(small: str) -> None:
    source = sampler(small)
    together = source.sample(requests(), 15, 1.0)
    again = source.sample(requests(), 15, 1.0)
    assert texts(again) == texts(together)
    for i, request in enumerate(requests()):
        for j, seed in enumerate(request.seeds):
            ((alone,),) = source.sample([Request(request.prompt, (seed,))], 15, 1.0)
            assert alone.completion == together[i][j].completion
    backwards = source.sample([Request(r.prompt, r.seeds[::-1]) for r in requests()[::-1]], 15, 1.0)
    assert texts([group[::-1] for group in backwards[::-1]]) == texts(together)
    ((first, two, huge),) = source.sample([Request(PROMPTS[0], (1, 2, 2**63 - 1))], 15, 1.0)
    assert len({first.completion, two.completion, huge.completion}) == 3


def test_completion_ends_with_its_first_end_token_or_at_the_limit(small: str) -> None:
    demand_ends(sampler(small))


def test_end_token_at_the_very_limit_counts_as_stopped(small: str) -> None:
    for group in sampler(small, end=range(VOCABULARY)).sample(requests(2), 1, 1.0):
        assert all(rollout.stopped and len(rollout.completion) == 1 for rollout in group)


def test_groups_keep_their_prompts_and_sizes_in_order(small: str) -> None:
    demand_order(sampler(small))


def test_prompt_filling_context_is_served_and_longer_one_names_remedy(small: str) -> None:
    source = sampler(small)
    ((filling_rollout,),) = source.sample([Request((5,) * 118, (1,))], 10, 1.0)
    assert filling_rollout.stopped or len(filling_rollout.completion) == 10
    with pytest.raises(DataError, match=r"prompt of 119 tokens and 10 new ones.*context of 128"):
        source.sample([Request((5,) * 119, (1,))], 10, 1.0)


def test_many_long_prompts_are_not_cut_in_two(small: str) -> None:
    """vLLM 0.30 fails on a CPU when a seeded request's prompt is computed in parts, which happens when the
    prompts of a batch exceed what it computes at once."""
    source = sampler(small)
    long_requests = [Request(tuple((i + j) % 38 + 2 for j in range(100)), (i,)) for i in range(120)]
    assert all(rollout.completion for (rollout,) in source.sample(long_requests, 2, 1.0))


def test_generators_and_threads_of_the_process_stay_as_they_were(small: str) -> None:
    torch.manual_seed(1)
    random.seed(1)
    before, plain, threads = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    if VLLM._open:
        VLLM._open.close()  # so that one is started here
    sampler(small).sample(requests(), 5, 1.0)
    assert torch.equal(before, torch.get_rng_state()) and random.getstate() == plain
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1, "the CPU engine puts a function that does nothing there"
    torch.set_num_threads(threads)


# Following the trainer


@pytest.fixture(scope="module")
def nano() -> Loaded:
    """Its output head is tied to its embeddings, of which the CPU build keeps a packed copy."""
    return load("nano")


def follower(
    loaded: Loaded,
    engine: Any,
    rate: float = 1e-4,
    dtype: str = "float32",
    adapter: Adapter | None = None,
) -> EngineSampler:
    torch.manual_seed(0)  # an adapter's A is drawn
    models = RoleModels(loaded.model, ("policy",), dtype=dtype, adapter=adapter)
    models.optimize({"policy": rate}, (0.9, 0.95), 0.0, 1.0)
    prompt = loaded.encode("17+25=")
    return EngineSampler(
        engine, models, end=loaded.end, pad=loaded.pad, context=loaded.context, prompt=prompt
    )


def test_gap_is_nought_after_every_sync_and_on_fresh_samples(nano: Loaded) -> None:
    source = follower(nano, vllm(nano.model.name_or_path))
    for step in range(5):
        update(source.models)
        assert source.sync()["gap/sync"] < 1e-4
        ((*rollouts,),) = source.sample([Request(nano.encode("17+25="), tuple(range(8)))], 12, 1.0)
        for rollout in rollouts:
            expected = logps(source.models.language, rollout)
            np.testing.assert_allclose(rollout.sampler_logp, expected, rtol=0, atol=EXACT, err_msg=str(step))


@pytest.mark.parametrize("rate", [1e-4, 1e-6])
def test_skipped_sync_is_caught_at_once(nano: Loaded, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    source = follower(nano, vllm(nano.model.name_or_path), rate)
    update(source.models)
    monkeypatch.setattr(VLLM, "load", lambda self, weights: None)
    with pytest.raises(SamplerMismatch, match="after a weight synchronization"):
        source.sync()
    monkeypatch.undo()
    assert source.sync()["gap/sync"] < 1e-4


def test_head_that_stays_packed_is_caught_at_the_start(nano: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM reports success, and its output head goes on with old weights."""
    monkeypatch.setattr(engines, "pack_again", lambda model: 0)
    if not hasattr(torch.ops._C, "convert_weight_packed") or torch.cuda.is_available():
        pytest.skip("only the CPU build packs weights")
    with pytest.raises(SamplerMismatch):
        follower(nano, vllm(nano.model.name_or_path))


def test_keys_of_old_weights_are_caught_at_the_start(nano: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = vllm(nano.model.name_or_path)
    monkeypatch.setattr(engine.llm, "reset_prefix_cache", lambda: True)
    with pytest.raises(SamplerMismatch):
        follower(nano, engine)


def test_mixture_of_experts_follows() -> None:
    loaded = load("nano-moe")
    source = follower(loaded, vllm(loaded.model.name_or_path))
    update(source.models)
    assert source.sync()["gap/sync"] < 1e-4


def test_bfloat16_stays_within_its_allowance() -> None:
    loaded = load("nano")
    source = follower(loaded, vllm(loaded.model.name_or_path, "bfloat16"), dtype="bfloat16")
    update(source.models)
    assert 1e-4 < source.sync()["gap/sync"] < 1


LORA = Adapter(rank=4, alpha=8.0)


def test_adapter_alone_follows_and_its_samples_are_the_policys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are handed over for the proof; from then on only the adapter is."""
    loaded = load("nano")
    source = follower(loaded, vllm(loaded.model.name_or_path, room=EVERY), 1e-2, adapter=LORA)
    assert source.provenance["adapter"] == "beside"
    monkeypatch.setattr(VLLM, "load", None)
    for _ in range(3):
        update(source.models)
        assert source.sync()["gap/sync"] < EXACT
        request = Request(loaded.encode("17+25="), tuple(range(8)))
        ((*rollouts,),) = source.sample([request], 12, 1.0)
        for rollout in rollouts:
            expected = logps(source.models.language, rollout)
            np.testing.assert_allclose(rollout.sampler_logp, expected, rtol=0, atol=EXACT)
        bare = logps(source.models.plain, rollouts[0])
        moved = float((bare - torch.tensor(rollouts[0].sampler_logp)).abs().max())
        assert moved > 10 * EXACT, "the adapter is in it"
    monkeypatch.setattr(VLLM, "load_adapter", lambda self, config, tensors: None)
    update(source.models)
    with pytest.raises(SamplerMismatch, match=r"Set sampler\.merge_adapter = true"):
        source.sync()


def test_small_adapter_survives_bfloat16() -> None:
    """The sum of weights and adapter would be rounded to the weights; beside them the adapter is not."""
    loaded = load("nano")
    engine = vllm(loaded.model.name_or_path, "bfloat16", EVERY)
    source = follower(loaded, engine, 1e-2, "bfloat16", LORA)
    update(source.models)
    assert source.sync()["gap/sync"] < 1


def test_engine_that_slept_samples_as_before(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU no memory is given back, but vLLM goes through the same states: asleep it would refuse to
    sample, and half awake too."""
    source = sampler(small)
    engine = vllm(small)
    assert not engine.sleeps, "a CPU has no sleep mode"
    engine.sleep()
    assert not engine.asleep
    monkeypatch.setattr(engine, "sleeps", True)
    before = source.sample(requests(), 9, 1.0)
    source.sleep()
    core = engine.llm.llm_engine.engine_core.engine_core
    assert engine.asleep and core.is_sleeping()
    after_sleep = source.sample(requests(), 9, 1.0)
    assert not engine.asleep and not core.is_sleeping()
    assert texts(after_sleep) == texts(before)


def test_mixture_with_an_adapter_names_the_remedy_on_a_cpu() -> None:
    """With room for adapters vLLM 0.30 computes experts by Triton, which is not there on a CPU."""
    if torch.cuda.is_available():
        pytest.skip("a GPU has Triton")
    with pytest.raises(ModelError, match=r"nano-moe with an adapter .*set sampler\.merge_adapter = true"):
        vllm(load("nano-moe").model.name_or_path, room=AdapterRoom(4, ATTENTION))
    assert VLLM._open is None


def test_cache_that_holds_nothing_is_an_error_with_the_remedy(small: str) -> None:
    with pytest.raises(ModelError, match=r"vLLM cannot serve .*raise sampler\.cache_gb"):
        VLLM(small, dtype="float32", rows=4, cache_gb=1e-6)


# Whole runs


def configure(**sections: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "sampler": SamplerConfig(kind="vllm", cache_gb=0.25),
        "train": TrainConfig(
            steps=3, prompts_per_step=4, group_size=4, num_minibatches=2, learning_rate={"policy": 1e-4}
        ),
        "evaluate": EvaluateConfig(every=2, problems=8, samples=2, test_problems=8),
    }
    return arithmetic(**{**settings, **sections})


def test_run_finishes_and_logs_gap_and_correction_at_every_step(tmp_path: Path) -> None:
    sampling = SamplerConfig(kind="vllm", cache_gb=0.25, correction="tis", correction_level="sequence")
    run_rows = run(configure(sampler=sampling), tmp_path / "ours")
    theirs = run(configure(sampler=SamplerConfig()), tmp_path / "theirs")
    assert [row["step"] for row in run_rows] == [0, 1, 2, 3]
    assert not {key for row in run_rows for key in row if not is_metric(key)}
    for row in run_rows[1:]:
        assert row["gap/sync"] < 1e-4 and row["gap/mean"] < 1e-5 and abs(row["gap/k3"]) < 1e-6
        assert row["correction/weight_mean"] == pytest.approx(1, abs=1e-4)
        assert row["correction/clipped"] == 0
    greedy = [key for key in run_rows[0] if key.startswith("eval/") and "/greedy/" in key]
    assert greedy and all(run_rows[0][key] == theirs[0][key] for key in greedy), "the same base, greedily"
    assert VLLM._open is None


def test_run_with_an_adapter_logs_the_gap_at_every_step(tmp_path: Path) -> None:
    run_rows = run(configure(model=ModelConfig(adapter=LORA)), tmp_path)
    for row in run_rows[1:]:
        assert row["gap/sync"] < EXACT and row["gap/mean"] < 1e-5 and row["grad_norm/policy"] > 0
    (attempt,) = json.loads((tmp_path / "provenance.json").read_text())["attempts"]
    version = attempt["versions"]["vllm"]
    assert attempt["sampler"] == {
        "engine": "vllm",
        "version": version,
        "seeds": "a generator per request",
        "sleeps": False,
        "adapter": "beside",
    }


def test_interrupted_run_goes_on_with_the_checkpoints_weights(tmp_path: Path) -> None:
    undisturbed = run(configure(), tmp_path / "whole")
    with pytest.raises(Preempted):
        run(configure(), tmp_path / "parts", after(tmp_path / "parts", 1))
    parts = run(configure(), tmp_path / "parts")
    assert [row["reward/mean"] for row in parts[1:]] == [row["reward/mean"] for row in undisturbed[1:]]
    for row, other in zip(parts[1:], undisturbed[1:], strict=True):
        assert row["grad_norm/policy"] == pytest.approx(other["grad_norm/policy"], rel=1e-3)


def test_doctor_tries_it() -> None:
    engine_check = doctor.vllm()
    assert engine_check.health == "ok" and "writes tokens on" in engine_check.detail


RECIPE = """
tasks = ["arithmetic"]
workers = 1
[sampler]
kind = "vllm"
cache_gb = 0.25
[train]
steps = 3
prompts_per_step = 2
group_size = 2
learning_rate = 1e-4
[evaluate]
problems = 0
test_problems = 0
[[arm]]
algorithm = "grpo"
"""


def forgetting(*args: Any) -> None:
    """`trainer.execute` with an engine that ignores new weights from the second step on. Workers import this
    module by name."""
    plain, calls = VLLM.load, []

    def load(self: VLLM, weights: Any) -> None:
        calls.append(1)
        if len(calls) <= 4:  # three for the proof at the start, one for step 1
            plain(self, weights)

    VLLM.load = load  # type: ignore[method-assign]
    execute(*args)


def test_run_whose_sync_is_skipped_ends_with_70_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "stale.toml"
    file.write_text(RECIPE)
    outcome = run_experiment(read_recipe(str(file)), tmp_path, execute="test_vllm.forgetting")
    assert outcome.code == 70
    (ended,) = outcome.runs_in_state("crashed")
    assert "SamplerMismatch: after a weight synchronization the sampler and the trainer differ" in ended.why
    steps = [json.loads(row)["step"] for row in (ended.path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1]


def test_run_with_a_server_equals_the_run_with_an_engine(tmp_path: Path) -> None:
    program = "import sys; from grpobench.runs.cli import main; sys.exit(main())"
    words = ["serve", "nano", "--port", "0", "--cache-gb", "0.25"]
    server = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        line = next(text for text in server.stdout if text.startswith("serving nano at"))
        url = line.rstrip().rpartition('"http')[2].rstrip('"')
        behind = configure(sampler=SamplerConfig(kind="vllm-server", url=f"http{url}"))
        remote = run(behind, tmp_path / "remote")
        local = run(configure(), tmp_path / "local")
        for row, other in zip(remote[1:], local[1:], strict=True):
            assert row["reward/mean"] == other["reward/mean"] and row["gap/sync"] < 1e-4
            assert row["grad_norm/policy"] == pytest.approx(other["grad_norm/policy"], rel=1e-3)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
