"""Tokens per second of every way to decode in process, and the steps of our trainer and TRL's."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from grpobench.benchmarks.decoding import ways_of
from grpobench.benchmarks.gpu.rows import Outcome, Report, Skip, judged, measured
from grpobench.benchmarks.sides import impossible, prompt_texts
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Request

Sizes = tuple[int, int, int, int]
"""Prompts, completions of each, tokens of a prompt and of a completion."""
Work = tuple[str, str, Sizes, int]
"""A model, the dtype of its weights and products, what it decodes, and the tokens a second to aim at."""
WORKS: dict[bool, tuple[Work, ...]] = {
    True: (("random:tiny", "float32", (2, 4, 16, 16), 0),),
    False: (
        ("random:0.5b", "bfloat16", (16, 8, 128, 256), 20_000),
        ("random:7b", "bfloat16", (4, 8, 128, 256), 2_000),
    ),
}
"""By `Report.small`."""


def decoding(report: Report) -> None:
    """Ours in every way, and transformers' `generate`, with which TRL samples unless it has vLLM."""
    for name, dtype, sizes, aim in WORKS[report.small]:
        label = f"{name} {dtype}, {described(sizes)}"
        for way in ("as it is", "fused"):
            report.attempt(f"{label}: ours {way}", partial(ours, name, dtype, sizes, way, aim))
        if name == WORKS[report.small][0][0]:  # a larger model would take the rest of the time
            report.attempt(f"{label}: generate", partial(generate, name, dtype, sizes))


def described(sizes: Sizes) -> str:
    prompts, samples, before, count = sizes
    return f"{prompts} × {samples} of {before}+{count} tokens"


def rate(work: Callable[[], int], note: str = "") -> Outcome:
    """Tokens per second of the second call; the first one warms up."""
    work()
    began = time.perf_counter()
    count = work()
    wait()
    seconds = time.perf_counter() - began
    ways = f"; {note}" if note else ""
    return measured(f"{count / seconds:,.0f} tokens/s ({count:,} in {seconds:.2f} s){ways}")


def wait() -> None:
    """Until the GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def requests_of(loaded: Loaded, sizes: Sizes) -> list[Request]:
    prompts, samples, before, _ = sizes
    texts = prompt_texts(loaded.encode, prompts, before + (24 if loaded.has_chat_template else 0))
    return [
        Request(loaded.encode(text), tuple(range(100 * number, 100 * number + samples)))
        for number, text in enumerate(texts)
    ]


def ours(name: str, dtype: str, sizes: Sizes, way: str, aim: int = 0) -> Outcome:
    loaded = load(name, weights_in=dtype)
    models = RoleModels(loaded.model, dtype=dtype)
    sampler = HFSampler(models, [impossible(loaded)], loaded.pad, 256, loaded.context)
    if way == "fused":
        if not sampler.fuses:
            raise Skip("fused decoding is not proven for this model and precision")
        sampler.graphs = None
    ways = ", ".join(ways_of(sampler))
    requests = requests_of(loaded, sizes)

    def work() -> int:
        groups = sampler.sample(requests, sizes[-1], 1.0)
        return sum(len(rollout.completion) for group in groups for rollout in group)

    return rate(work, ways + (f"; {aim:,} aimed at" if aim else ""))


def generate(name: str, dtype: str, sizes: Sizes) -> Outcome:
    """The model's own `generate` over prompts that are repeated."""
    loaded = load(name, weights_in=dtype)
    models = RoleModels(loaded.model, dtype=dtype)
    rows = [request.prompt for request in requests_of(loaded, sizes) for _ in request.seeds]
    tokens = torch.tensor(rows, device=models.device)
    settings: dict[str, Any] = {
        "do_sample": True,
        "min_new_tokens": sizes[-1],
        "max_new_tokens": sizes[-1],
        "pad_token_id": loaded.pad,
        "attention_mask": torch.ones_like(tokens),
    }

    def work() -> int:
        with models.precision(), torch.inference_mode():
            sequences = loaded.model.generate(tokens, **settings)
        return int(sequences.shape[1] - tokens.shape[1]) * len(rows)

    return rate(work)


def step(report: Report) -> None:
    """A step at 0.5 B in bfloat16, of our trainer and of TRL's, as long as answers are."""
    bench(report, *(("nano", "short") if report.small else ("random:0.5b", "long-answer")))


def bench(report: Report, model: str, *cases: str) -> None:
    """Rows of `grpobench bench` for cases of a model; none names its usual ones."""
    outcome: dict[str, Any] = {}
    chosen = [word for case in cases for word in ("--case", case)]

    def measure() -> Outcome:
        words = ["-m", "grpobench", "bench", "--model", model, "--json", *chosen]
        done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 2:
            raise Skip(f"see {report.part}.log: trl 1.16 is not installed, or the bench refused")
        if done.returncode:
            return judged(False, f"grpobench bench ended with {done.returncode}; see {report.part}.log")
        outcome.update(json.loads(done.stdout))
        return judged(True, f"TRL {outcome['trl']}, {outcome['threads']} threads, {outcome['device']}")

    report.attempt(" ".join(("grpobench bench --model", model, *chosen)), measure)
    for case in outcome.get("cases", ()):
        seconds_text = (
            "ours {ours_s:.3f} s, TRL {trl_s:.3f} s, TRL ÷ ours {ratio:.2f}, ours ÷ floor {ours_to_floor}"
        )
        memory = "peak {ours_peak_gb:.2f} and {trl_peak_gb:.2f} GiB"
        phases = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in case["phases"].items())
        report.add(
            case["name"], measured(f"{seconds_text}; {memory}; {phases}".format(**case)), case["ours_s"]
        )
