"""`--case decoding` and `short-decoding`: tokens per second of our sampler in bfloat16, and of its
fallback."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from grpobench.benchmarks.cases import BUDGET, DECODINGS, SMALL, UNKNOWN, BenchmarkCase, Tell, counted
from grpobench.benchmarks.compare import Facts
from grpobench.benchmarks.sides import Stopwatch, facts, impossible, prompt_texts
from grpobench.runs.tools.machine import count_threads_per_worker

if TYPE_CHECKING:
    from grpobench.runs.sample.in_process import HFSampler
    from grpobench.runs.sample.sampler import Request

DTYPE: Final = "bfloat16"
CALLS: Final = 9
"""Most counted calls of each way."""
USED, FALLBACK = "used", "fallback"


@dataclass(frozen=True)
class SamplerCall:
    """The cost of one call of a sampler."""

    tokens: int
    """That were written."""
    seconds: float
    cpu_seconds: float
    """Processor time of all threads."""


def shape(model: str, name: str) -> BenchmarkCase:
    """The requests of a call: one step's of a small model, and fewer of others."""
    prompts, group = (16, 8) if model in SMALL else (2, 8)
    return BenchmarkCase(
        name, model, prompts, group, 150, DECODINGS[name], 1 + CALLS, count_threads_per_worker(1)
    )


def decoding(case: BenchmarkCase, tell: Tell) -> tuple[dict[str, Any], Facts]:
    """Measure both ways; returns the outcome, and facts about the machine.

    The fallback is what the sampler does with a model for which its probes do not confirm anything else: the
    prompt of a group is repeated for every completion, and the model's own forward pass casts its weights at
    every token. Both ways share one model and one process, and answer the same requests with the same seeds.
    They take turns, and which of them goes first alternates, so a machine that becomes slower or faster
    favors neither. Every completion has the same length, because no token ends one. The time includes the
    prefill of the prompts."""
    import torch

    from grpobench.runs.models.loading import load
    from grpobench.runs.models.roles import RoleModels
    from grpobench.runs.sample.in_process import HFSampler
    from grpobench.runs.sample.sampler import Request

    torch.set_num_threads(case.threads)
    tell("loading the model", UNKNOWN)
    loaded = load(case.model)
    models = RoleModels(loaded.model, dtype=DTYPE)
    used = HFSampler(models, [impossible(loaded)], loaded.pad, case.rows, loaded.context)
    fallback = copy.copy(used)
    plainly(fallback)
    requests = [
        Request(loaded.encode(text), tuple(range(case.group * number, case.group * (number + 1))))
        for number, text in enumerate(prompt_texts(loaded.encode, case.prompts, case.prompt_tokens))
    ]
    samplers = {USED: used, FALLBACK: fallback}
    calls = take_turns(samplers, requests, case, tell)
    rows = {name: row(calls[name], ways_of(sampler)) for name, sampler in samplers.items()}
    outcome = {
        "dtype": DTYPE,
        "prompts": case.prompts,
        "prompt_tokens": case.prompt_tokens,
        "completions": case.group,
        "completion_tokens": case.completion_tokens,
        "ways": rows,
        "ratio": ratio(rows, "tokens_per_s"),
        "cpu_ratio": ratio(rows, "tokens_per_cpu_s"),
    }
    return outcome, facts()


def take_turns(
    samplers: Mapping[str, HFSampler], requests: Sequence[Request], case: BenchmarkCase, tell: Tell
) -> dict[str, list[SamplerCall]]:
    """The counted calls of each sampler, in order, after one of warm-up."""
    turns: list[dict[str, SamplerCall]] = []
    began = time.perf_counter()

    def turn(activity: str, left: float) -> None:
        tell(activity, left)
        names = sorted(samplers, reverse=bool(len(turns) % 2))
        turns.append({name: call(samplers[name], requests, case) for name in names})

    turn("warm-up", UNKNOWN)
    took = time.perf_counter() - began
    call_count = counted(took, took, case.steps - 1, BUDGET)
    for number in range(call_count):
        turn(f"call {number + 1} of {call_count}", (call_count - number) * took)
    return {name: [made[name] for made in turns[1:]] for name in samplers}


def call(sampler: HFSampler, requests: Sequence[Request], case: BenchmarkCase) -> SamplerCall:
    """Answer the requests once. Raises RuntimeError for completions of another length than the case's."""
    clock = Stopwatch()
    groups = sampler.sample(requests, case.completion_tokens, 1.0)
    seconds, cpu_seconds = clock.read()
    tokens = sum(len(rollout.completion) for group in groups for rollout in group)
    if tokens != case.rows * case.completion_tokens:
        raise RuntimeError(f"{tokens} tokens were written, not {case.rows * case.completion_tokens}")
    return SamplerCall(tokens, seconds, cpu_seconds)


def row(calls: Sequence[SamplerCall], ways: Sequence[str]) -> dict[str, Any]:
    """One way's part of the outcome; `tokens_per_s` are medians, the list holds every counted call."""
    rates = [measured_call.tokens / measured_call.seconds for measured_call in calls]
    return {
        "ways": list(ways),
        "tokens_per_s": statistics.median(rates),
        "tokens_per_cpu_s": statistics.median(
            measured_call.tokens / measured_call.cpu_seconds for measured_call in calls
        ),
        "calls_tokens_per_s": rates,
    }


def ratio(rows: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """How many times as fast the way in use is."""
    return float(rows[USED][name] / rows[FALLBACK][name])


# Ways to decode


def ways_of(sampler: HFSampler) -> list[str]:
    """How a sampler decodes."""
    graphs = sampler.graphs
    names = {"shared": sampler.shares, "fused": sampler.fuses, "graphs": graphs is not None}
    names["kernels"] = graphs is not None and graphs.kernels is not None
    return [name for name, used in names.items() if used] or ["plain"]


def plainly(sampler: HFSampler) -> None:
    """From now on the sampler repeats prompts and calls the model's own forward pass."""
    sampler.shares = sampler.fuses = False
    sampler.graphs = None
