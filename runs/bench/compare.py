"""`grpobench bench`: our GRPO and TRL's GRPOTrainer on the same work, step by step in turn.

Each side has a process of its own and every core while it works; the other side then waits at a pipe. Both
take the same model in float32, prompts, group size, lengths, reward and learning rate, and make one update
per step. Numbers are medians over the steps after the warm-up; `ratio` is TRL's seconds over ours, so above
1 ours is faster. `ours_cpu_s` and `trl_cpu_s` are processor seconds: on a machine that is busy with other
things they are steadier than the seconds, which then swing with every wait of one thread for another.

Memory is the peak resident size of each process since just before its model was loaded (on a GPU: the peak
that torch allocated there). The libraries that a process has imported are part of it; `ours_before_gb` and
`trl_before_gb` say how much was there before the model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

from grpobench.runs.bench.sides import PHASES, SIDES, Case, Failed, Ready, Step, serve
from grpobench.runs.tools.process import environment
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.workers.processors import cores

WARM_UP = 2
"""First steps of each side, which are not counted."""
REST = 0.05
"""Seconds between two steps, in which the threads of the side that has just worked go to sleep."""
SMALL = ("nano", "nano-moe")
"""Models that get both cases; any other gets the long-prompt case with fewer prompts."""


class Side(Protocol):
    """What the comparison needs of a side."""

    ready: Ready

    def step(self) -> Step: ...


Start = Callable[[str, Case], contextlib.AbstractContextManager[Side]]


def main(model: str, as_json: bool = False) -> None:
    """Bench one model and print the outcome. Raises ConfigError or DataError for what the user can put
    right, ChildProcessError when a side dies."""
    from rich.console import Console

    if importlib.util.find_spec("trl") is None:
        raise ConfigError(["bench compares with TRL, which is not installed: pip install 'trl==1.16.*'"])
    from grpobench.runs.models.errors import ModelError
    from grpobench.runs.models.finding import missing

    if why := missing(model):
        raise ModelError(why)
    with Console(stderr=True).status("starting") as status:
        outcome = measure(cases(model), process, status.update)
    if as_json:
        print(json.dumps(outcome, indent=1))
    else:
        show(outcome, Console())


def cases(model: str) -> list[Case]:
    """The shapes that a model is measured on."""
    steps = WARM_UP + 8
    if model not in SMALL:
        return [Case("long-prompt", model, 2, 16, 150, 8, steps, cores())]
    return [
        Case("short", model, 16, 8, 16, 24, WARM_UP + 16, cores()),
        Case("long-prompt", model, 16, 8, 150, 8, steps, cores()),
    ]


def measure(shapes: Sequence[Case], start: Start, tell: Callable[[str], None]) -> dict[str, Any]:
    """All cases, and the facts of the machine."""
    results, found = [], dict[str, str | int]()
    for case in shapes:
        result, found = compare(case, start, tell)
        results.append(result)
    return {
        "model": shapes[0].model,
        "precision": "float32",
        "trl_gradient_checkpointing": False,
        "warm_up_steps": WARM_UP,
        **found,
        "cases": results,
    }


def compare(
    case: Case, start: Start, tell: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, str | int]]:
    """Both sides on one case, in turn; who goes first alternates. Raises RuntimeError when a side decodes
    another number of tokens than the case says."""
    tell(f"{case.name}: loading")
    with (
        start("trl", case) as theirs,
        start("ours", replace(case, texts=theirs.ready.texts)) as ours,
    ):
        sides = {"ours": ours, "trl": theirs}
        steps: dict[str, list[Step]] = {name: [] for name in sides}
        for number in range(case.steps):
            tell(f"{case.name}: step {number + 1} of {case.steps}")
            for name in sorted(sides, reverse=bool(number % 2)):
                time.sleep(REST)
                steps[name].append(step := sides[name].step())
                if step.tokens != case.tokens:
                    raise RuntimeError(
                        f"{name} worked on {step.tokens} tokens in a step of {case.name}, not on "
                        f"{case.tokens}; the comparison would not be fair"
                    )
        counted = {name: taken[WARM_UP:] for name, taken in steps.items()}
        return summary(case, counted, {n: s.ready for n, s in sides.items()}), dict(theirs.ready.facts)


def summary(case: Case, steps: Mapping[str, Sequence[Step]], ready: Mapping[str, Ready]) -> dict[str, Any]:
    """One case of the outcome. Seconds are medians; the lists hold every counted step in order."""
    seconds = {name: [step.seconds for step in taken] for name, taken in steps.items()}
    median = {name: statistics.median(values) for name, values in seconds.items()}
    result: dict[str, Any] = {
        "name": case.name,
        "prompts": case.prompts,
        "completions": case.group,
        "prompt_tokens": case.prompt_tokens,
        "completion_tokens": case.completion_tokens,
        "ours_s": round(median["ours"], 4),
        "trl_s": round(median["trl"], 4),
        "ratio": round(median["trl"] / median["ours"], 3),
        "phases": {
            phase: round(statistics.median(step.phases[phase] for step in steps["ours"]), 4)
            for phase in (*PHASES, "other")
        },
    }
    for name, taken in steps.items():
        result[f"{name}_peak_gb"] = round(max(step.peak_gb for step in taken), 3)
        result[f"{name}_before_gb"] = round(ready[name].before_gb, 3)
        result[f"{name}_cpu_s"] = round(statistics.median(step.cpu_seconds for step in taken), 4)
        result[f"{name}_steps_s"] = [round(value, 4) for value in seconds[name]]
    return result


class Process:
    """A side in a process of its own."""

    def __init__(self, name: str, connection: Connection, process: Any) -> None:
        self.name, self.connection, self.process = name, connection, process
        first = self.receive()
        assert isinstance(first, Ready)
        self.ready = first

    def step(self) -> Step:
        self.connection.send("step")
        step = self.receive()
        assert isinstance(step, Step)
        return step

    def receive(self) -> Ready | Step:
        """The side's next message. Raises ConfigError for the user's mistake, ChildProcessError when the
        side cannot go on."""
        try:
            message: Ready | Step | Failed = self.connection.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            why = (
                f"signal {-code}; if that is 9, memory may have run out" if code < 0 else f"exit code {code}"
            )
            raise ChildProcessError(f"the process of {self.name} died ({why})") from None
        if isinstance(message, Failed):
            if message.mistake:
                raise ConfigError([message.why])
            raise ChildProcessError(f"{self.name} failed:\n{message.why}")
        return message


@contextlib.contextmanager
def process(name: str, case: Case) -> Iterator[Process]:
    """Start a side and wait until its model is loaded; end its process afterwards."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(there, SIDES[name], case, os.getpid()))
    with environment(OMP_NUM_THREADS=str(case.threads), MKL_NUM_THREADS=str(case.threads)):
        child.start()
    there.close()
    try:
        yield Process(name, here, child)
    finally:
        here.close()
        child.join(5)
        child.kill()
        child.join()


def show(outcome: Mapping[str, Any], console: Any) -> None:
    """The outcome as two tables: the sides, and the phases of our step."""
    from rich.table import Table

    console.print(
        "{model}, {precision}, threads {threads}, {device}; torch {torch}, transformers {transformers}, "
        "TRL {trl}; medians after {warm_up_steps} warm-up steps".format(**outcome)
    )
    sides = Table(box=None, pad_edge=False)
    for heading in ("case", "", "step", "fastest", "slowest", "processor", "peak memory", "TRL / ours"):
        sides.add_column(heading, justify="right" if heading not in ("case", "") else "left")
    phases = Table(box=None, pad_edge=False)
    for heading in ("our step", *PHASES, "other"):
        phases.add_column(heading, justify="left" if heading == "our step" else "right")
    for case in outcome["cases"]:
        shape = "{prompts}×{completions}, {prompt_tokens}+{completion_tokens} tokens".format(**case)
        sides.add_row(case["name"], "ours", *side_cells(case, "ours"), f"{case['ratio']:.2f}")
        sides.add_row(shape, "TRL", *side_cells(case, "trl"), "")
        shares = (f"{seconds:.3f} s ({seconds / case['ours_s']:.0%})" for seconds in case["phases"].values())
        phases.add_row(case["name"], *shares)
    console.print(sides)
    console.print(phases)


def side_cells(case: Mapping[str, Any], side: str) -> list[str]:
    taken = case[f"{side}_steps_s"]
    seconds = (case[f"{side}_s"], min(taken), max(taken), case[f"{side}_cpu_s"])
    return [*(f"{value:.3f} s" for value in seconds), f"{case[f'{side}_peak_gb']:.2f} GiB"]
