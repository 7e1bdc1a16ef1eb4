"""`--case memory`: the peak memory of our step with and without activation checkpointing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from grpobench.benchmarks.cases import UNKNOWN, BenchmarkCase, Tell
from grpobench.benchmarks.compare import Facts
from grpobench.benchmarks.sides import Start, StepCost, prompt_texts
from grpobench.runs.models.loading import load_outline
from grpobench.runs.tools.machine import count_threads_per_worker

STEPS: Final = 2
"""Steps of each setting. The first takes the memory of the optimizer's state; the second is timed."""
SETTINGS: Final[tuple[tuple[tuple[str, Any], ...], ...]] = (
    (("activation_checkpointing", False),),
    (("activation_checkpointing", True),),
)


def memory(model: str, start: Start, tell: Tell) -> tuple[dict[str, Any], Facts]:
    """Measure every setting; returns the outcome, and facts about the machine.

    Each setting has a process of its own and makes the same steps: the same prompts, completions of one
    length, and the budget of tokens of a micro-batch that a run has by default."""
    case, rows = shape(model), list[dict[str, Any]]()
    case = replace(case, texts=prompt_texts(load_outline(model).encode, case.prompts, case.prompt_tokens))
    facts: Facts = {}
    began = time.monotonic()
    for number, settings in enumerate(SETTINGS):
        name = ", ".join(f"{key} = {str(value).lower()}" for key, value in settings)
        left = (time.monotonic() - began) / number * (len(SETTINGS) - number) if number else UNKNOWN
        tell(name, left)
        with start("ours", replace(case, train=settings)) as side:
            rows.append(row(name, [side.step() for _ in range(STEPS)], side.ready.before_gb))
            facts = dict(side.ready.facts)
    outcome = {
        "prompts": case.prompts,
        "prompt_tokens": case.prompt_tokens,
        "completions": case.group,
        "completion_tokens": case.completion_tokens,
        "settings": rows,
    }
    return outcome, facts


def row(name: str, steps: list[StepCost], before: float) -> dict[str, Any]:
    """What the steps of a setting took; `before` is the memory of the libraries in GiB."""
    peak = max(step.peak_gb for step in steps)
    return {
        "train": name,
        "peak_gb": peak,
        "own_gb": peak - before,
        "step_s": steps[-1].seconds,
        "backward_s": steps[-1].phases["backward"],
    }


def shape(model: str) -> BenchmarkCase:
    """On a CPU one micro-batch of nearly as many tokens as it may have, 890 of 1,024."""
    return BenchmarkCase("memory", model, 5, 4, 150, 8, STEPS, count_threads_per_worker(1))
