"""Checks of vLLM in this process: its speed, the weights and adapters it follows, and the memory it gives
back."""

from __future__ import annotations

import re
from functools import cached_property, partial
from typing import Any

import torch

from grpobench.benchmarks.gpu.rows import Outcome, Report, Skip, judged, load_rows, measured
from grpobench.benchmarks.gpu.speed import WORKS, Sizes, described, rate, requests_of, wait
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.tools import installed

CACHE = 2.0
"""GiB of the key-value cache."""
RETURNED = 0.9
"""Least share of the cache that a sleeping engine gives back; its weights come on top."""
RANK = 16
"""Of the adapter."""
RATE = re.compile(r"([\d,]+) tokens/s")
"""As `speed.rate` tells it."""


class Serving:
    """An engine of a model, begun by the first check that needs it. A worker has one after the other in its
    process, as these are."""

    def __init__(self, name: str, dtype: str, rank: int = 0) -> None:
        self.name, self.dtype, self.rank = name, dtype, rank

    @cached_property
    def loaded(self) -> Loaded:
        return load(self.name, weights_in=self.dtype)

    @cached_property
    def models(self) -> RoleModels:
        adapter = Adapter(rank=self.rank) if self.rank else None
        return RoleModels(self.loaded.model, dtype=self.dtype, adapter=adapter)

    @cached_property
    def engine(self) -> Any:
        from grpobench.runs.sample.engines.vllm import VLLM, room_for

        path, room = self.loaded.model.name_or_path, room_for(self.models)
        return VLLM(path, dtype=self.dtype, rows=256, cache_gb=CACHE, room=room, sleeps=True)

    @cached_property
    def follower(self) -> Any:
        """A sampler that keeps the engine in step with the model, which the probe proves."""
        from grpobench.runs.sample.engines.sampler import EngineSampler

        loaded = self.loaded
        prompt, end = loaded.encode("one two six ten"), loaded.end
        return EngineSampler(
            self.engine, self.models, end=end, pad=loaded.pad, context=loaded.context, prompt=prompt
        )

    def close(self) -> None:
        if "engine" in vars(self):
            self.engine.close()


def vllm(report: Report) -> None:
    """The work of `decoding` by vLLM, in its own environment; weights, an adapter, and sleep."""
    report.attempt(
        "version",
        lambda: measured(f"vllm {installed.version_of(*installed.VLLM)}, torch {torch.__version__}"),
    )
    for name, dtype, sizes, _ in WORKS[report.small]:
        serving, label = Serving(name, dtype), f"{name} {dtype}, {described(sizes)}"
        report.attempt(f"{label}: vLLM", partial(engine_rate, serving, sizes))
        report.attempt(f"{label}: vLLM ÷ ours", partial(compared, report, label))
        checks(report, serving, "weights")
        checks(report, Serving(name, dtype, RANK), "an adapter alone")


def checks(report: Report, serving: Serving, weights: str) -> None:
    """That an engine follows the trainer and gives its memory back. Closes it while it sleeps, so that the
    next one tells whether its memory is free."""
    label = f"{serving.name} {serving.dtype}"
    report.attempt(f"{label}: vLLM follows {weights}", partial(follows, serving))
    report.attempt(f"{label}: vLLM with {weights} sleeps", partial(sleeps, serving))
    serving.close()


def engine_rate(serving: Serving, sizes: Sizes) -> Outcome:
    engine, requests = serving.engine, requests_of(serving.loaded, sizes)
    jobs = [(request.prompt, seed) for request in requests for seed in request.seeds]
    return rate(lambda: sum(len(completion.tokens) for completion in engine.sample(jobs, sizes[-1], 1.0, ())))


def compared(report: Report, label: str) -> Outcome:
    """The ratio of two rates that stand in rows: of the part `decoding`, and of this one."""
    rates = {
        (row.part, row.what): float(match[1].replace(",", ""))
        for row in load_rows(report.path)
        if (match := RATE.match(row.result)) and row.device == report.device
    }
    ours = rates.get(("decoding", f"{label}: ours as it is"))
    theirs = rates.get((report.part, f"{label}: vLLM"))
    if ours is None or theirs is None:
        raise Skip("the rows of vLLM and of the part decoding, `ours as it is`, are not both there")
    return measured(f"{theirs / ours:.2f}")


def follows(serving: Serving) -> Outcome:
    """The engine takes over weights, halved ones, the weights again, and an adapter; the probe tells."""
    gap = serving.follower.sync()["gap/sync"]
    return judged(True, f"gap on the probe {gap:.2g} nats")


def sleeps(serving: Serving) -> Outcome:
    """A sleeping engine gives its memory back, wakes up with the trainer's weights, and sleeps again."""
    if not serving.engine.sleeps:
        raise Skip("vLLM sleeps on GPUs alone")
    sampler = serving.follower
    wait()
    before = torch.cuda.mem_get_info()[0]
    sampler.sleep()
    freed = (torch.cuda.mem_get_info()[0] - before) / 2**30
    gap = sampler.sync()["gap/sync"]
    sampler.sleep()
    message = f"{freed:.2f} GiB are free while it sleeps; awake again, gap on the probe {gap:.2g} nats"
    return judged(freed > RETURNED * CACHE, message)
