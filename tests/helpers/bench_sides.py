"""Sides of the bench that only say how long a step took."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from grpobench.benchmarks.cases import BenchmarkCase
from grpobench.benchmarks.floor import Floor, MatrixProduct
from grpobench.benchmarks.sides import PHASES, SideReady, StepCost

CASE = BenchmarkCase("short", "nano", prompts=2, group=4, prompt_tokens=16, completion_tokens=24, steps=6)
FACTS: dict[str, str | int] = {
    "threads": 1,
    "device": "cpu",
    "torch": "2",
    "transformers": "5",
    "trl": "1.16.0",
}
FLOOR = Floor({"decode": MatrixProduct(5.0, 0.3, "torch"), "forward": MatrixProduct(15.0, 0.2, "onednn")})


def quiet(activity: str, left: float) -> None:
    """Tells nobody."""


class Stub:
    """A side whose n-th step takes `seconds[n]`, and the last ever after; half of it is sampling."""

    def __init__(self, name: str, case: BenchmarkCase, seconds: Sequence[float], calls: list[str]) -> None:
        self.name, self.case, self.calls = name, case, calls
        self.seconds = chain(seconds, repeat(seconds[-1]))
        texts = case.texts or ("made by the first side",)
        self.ready = SideReady(texts, FACTS, before_gb=0.5)

    def step(self) -> StepCost:
        self.calls.append(self.name)
        seconds = next(self.seconds)
        phases = dict.fromkeys((*PHASES, "other"), 0.0) | {"sample": seconds / 2, "other": seconds / 2}
        return StepCost(seconds, seconds * 2, self.case.tokens, 1.0 + seconds, phases)

    def floor(self) -> Floor:
        self.calls.append(f"floor of {self.name}")
        return FLOOR


class Stage:
    """Starts stubs and keeps what happened to them."""

    def __init__(
        self,
        tokens: int = 0,
        ours: Sequence[float] = (2.0, 2.0, 1.0, 2.0, 3.0, 4.0),
        trl: Sequence[float] = (2.0, 2.0, 10.0, 10.0, 5.0, 50.0),
    ) -> None:
        self.calls: list[str] = []
        self.given: dict[str, BenchmarkCase] = {}
        self.tokens = tokens
        self.seconds = {"ours": ours, "trl": trl}

    @contextlib.contextmanager
    def start(self, name: str, case: BenchmarkCase) -> Iterator[Stub]:
        self.given[name] = case
        stub = Stub(name, case, self.seconds[name], self.calls)
        if self.tokens:
            stub.case = BenchmarkCase("other", "nano", 1, 1, self.tokens, 0, 1)
        yield stub
        self.calls.append(f"end {name}")
