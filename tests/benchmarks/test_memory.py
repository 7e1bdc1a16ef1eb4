"""Peak memory by setting: which steps are made, and what is made of them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace

from helpers.bench_sides import FACTS, Stub
from rich.console import Console

from grpobench.benchmarks import memory
from grpobench.benchmarks.bench import show_memory
from grpobench.benchmarks.cases import BenchmarkCase
from grpobench.benchmarks.sides import StepCost, our_trainer


class Greedy(Stub):
    """Takes 3 GiB more without checkpointing, from its second step on."""

    def step(self) -> StepCost:
        checkpointed = dict(self.case.train)["activation_checkpointing"]
        step = super().step()
        grown = 0.0 if checkpointed or self.calls.count("ours") == 1 else 3.0
        return replace(step, peak_gb=1.5 + grown, phases={**step.phases, "backward": step.seconds / 4})


def test_each_setting_makes_the_same_steps_in_a_process_of_its_own() -> None:
    cases, activities = list[BenchmarkCase](), list[str]()

    @contextlib.contextmanager
    def start(name: str, case: BenchmarkCase) -> Iterator[Stub]:
        assert name == "ours"
        cases.append(case)
        yield Greedy(name, case, [9.0, 4.0], [])

    report, facts = memory.memory("nano", start, lambda activity, left: activities.append(activity))
    assert activities == ["activation_checkpointing = false", "activation_checkpointing = true"]
    assert facts == FACTS
    first, second = cases
    assert replace(first, train=()) == replace(second, train=()) and len(set(first.texts)) == first.prompts
    settings = [
        {"train": activities[0], "peak_gb": 4.5, "own_gb": 4.0, "step_s": 4.0, "backward_s": 1.0},
        {"train": activities[1], "peak_gb": 1.5, "own_gb": 1.0, "step_s": 4.0, "backward_s": 1.0},
    ]
    assert report["settings"] == settings
    assert json.loads(json.dumps(report)) == report
    text = io.StringIO()
    show_memory(report, Console(file=text, width=120))
    assert "4.50 GiB" in text.getvalue() and "1.00 GiB" in text.getvalue()


def test_our_side_trains_with_the_settings_of_the_case() -> None:
    case = BenchmarkCase(
        "memory", "nano", 1, 2, 16, 4, 1, texts=("one",), train=(("activation_checkpointing", True),)
    )
    assert our_trainer(case).models.activation_checkpointing
