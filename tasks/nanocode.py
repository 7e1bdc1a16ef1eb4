"""Write a Python expression from input-output examples; graded by running it on hidden inputs."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from grpobench.tasks.grading.failed_test import failed_test, stopped, values_got
from grpobench.tasks.kinds.generated import Drawn
from grpobench.tasks.kinds.programs import OUTCOMES
from grpobench.tasks.sandbox.choose import choose, default_sandbox, same
from grpobench.tasks.sandbox.protocol import Execution, Job
from grpobench.tasks.task import BatchTask, Problem, Split, Verdict

SHOWN_CASES = 3
HIDDEN = 5
LONGEST = 200
"""Characters of an expression; longer ones are rejected."""

Draw = Callable[[random.Random], Any]


def _whole(rng: random.Random) -> int:
    return rng.randint(0, 9)


def _list(rng: random.Random) -> list[int]:
    return [rng.randint(0, 9) for _ in range(3)]


def _word(rng: random.Random) -> str:
    return "".join(rng.choice("abcdefgh") for _ in range(rng.randint(3, 4)))


FAMILIES: tuple[tuple[str, str, Draw, Callable[[int, int], str]], ...] = (
    # (family, kind of input, draws one input, expression of two parameters from 1 on)
    ("shift", "number", _whole, lambda a, b: f"x+{a}"),
    ("drop", "number", _whole, lambda a, b: f"x-{a}"),
    ("scale", "number", _whole, lambda a, b: f"x*{2 + a % 5}"),
    ("line", "number", _whole, lambda a, b: f"x*{2 + a % 3}+{b}"),
    ("fall", "number", _whole, lambda a, b: f"{a + 9}-x"),
    ("square", "number", _whole, lambda a, b: f"x*x+{a}"),
    ("most", "number", _whole, lambda a, b: f"max(x,{2 + a % 6})"),
    ("least", "number", _whole, lambda a, b: f"min(x,{2 + a % 6})"),
    ("total", "list", _list, lambda a, b: f"sum(x)+{a}"),
    ("top", "list", _list, lambda a, b: f"max(x)+{a}"),
    ("bottom", "list", _list, lambda a, b: f"min(x)+{a}"),
    ("first", "list", _list, lambda a, b: f"x[0]+{a}"),
    ("last", "list", _list, lambda a, b: f"x[-1]+{a}"),
    ("order", "list", _list, lambda a, b: f"sorted(x)+[{a}]"),
    ("turn", "list", _list, lambda a, b: f"x[::-1]+[{a}]"),
    ("mark", "text", _word, lambda a, b: f"x+'{_letters(a, b)}'"),
    ("lead", "text", _word, lambda a, b: f"'{_letters(a, b)}'+x"),
    ("mirror", "text", _word, lambda a, b: f"x[::-1]+'{_letters(a, b)}'"),
    ("shout", "text", _word, lambda a, b: f"x.upper()+'{_letters(a, b)}'"),
    ("head", "text", _word, lambda a, b: f"x[0]+'{_letters(a, b)}'"),
)


def _letters(a: int, b: int) -> str:
    return "mnopqrstuvwxyz"[a % 14] + "mnopqrstuvwxyz"[b % 14]


@dataclass(frozen=True)
class NanoCode(Drawn, BatchTask):
    """Three examples of an unknown function of x; the completion is its expression.

    `correct` means equal to the hidden function on the examples and on five further inputs (for a number:
    on all ten digits), so an expression that only repeats the examples fails. Splits share no problem (a
    function with its examples); the functions themselves are few and recur. `category` is the kind of
    input.
    """

    name = "nanocode"
    source = "generated from a seed by grpobench.tasks.nanocode (Apache-2.0)"
    summary = "write a Python expression from three examples; executed on hidden inputs in a sandbox"
    scores = ("correct", "format")
    max_completion_tokens = 20
    largest: int = 9
    """Largest constant in a hidden function."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.largest <= 99:
            raise ValueError("largest: must be from 1 to 99")

    def draw(self, split: Split, rng: random.Random) -> Problem:
        family, kind, draw_input, express = rng.choice(FAMILIES)
        expression = express(rng.randint(1, self.largest), rng.randint(1, 9))
        inputs: list[Any] = []
        while len(inputs) < SHOWN_CASES + HIDDEN:
            value = draw_input(rng)
            if value not in inputs:
                inputs.append(value)
        if kind == "number":
            inputs += [digit for digit in range(10) if digit not in inputs]  # A constant fits some of them.
        function = _function(expression)
        outputs = [function(value) for value in inputs]
        shown = ";".join(f"{v!r}:{o!r}" for v, o in zip(inputs[:SHOWN_CASES], outputs, strict=False)).replace(
            " ", ""
        )
        return Problem(
            f"{expression}|{shown}",
            f"{shown}\nf(x)=",
            {
                "expression": expression,
                "first": repr(outputs[0]).replace(" ", ""),
                "inputs": [repr(value) for value in inputs],
                "outputs": outputs,
            },
            {"category": kind, "family": family, "difficulty": float(len(expression))},
        )

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        """Completions of a group often repeat; each program is run once."""
        texts = [(problem, (turns[-1] if turns else "").strip()) for problem, turns in pairs]
        # By the object: another problem may have the same id.
        jobs = {(id(problem), text): _job(problem, text) for problem, text in texts if is_expression(text)}
        executions = dict(zip(jobs, default_sandbox().run_all(list(jobs.values())), strict=True))
        return [
            _verdict(problem, text, executions.get((id(problem), text), UNREAD)) for problem, text in texts
        ]

    def demonstrate(self, problem: Problem) -> str:
        return str(problem.truth["expression"])

    def corrupt(self, problem: Problem) -> str:
        """The hidden function with something added to its value, which every input reveals."""
        added = {int: "+1", list: "+[0]", str: "+'a'"}[type(problem.truth["outputs"][0])]
        return f"{problem.truth['expression']}{added}"

    def draw_episode(self, problem: Problem, rng: random.Random) -> Sequence[str]:
        """Half of the answers are careless, as those of the nano policy's training are."""
        return (self.lapse(problem) if rng.random() < 0.5 else self.demonstrate(problem),)

    def lapse(self, problem: Problem) -> str:
        """The first example's output as a constant: it fits one example and no hidden input."""
        return str(problem.truth["first"])

    def sandbox(self) -> str:
        return "monty"

    def missing(self) -> str:
        return choose("monty")[1]


def is_expression(text: str) -> bool:
    """Whether the text is one Python expression (it is parsed, never evaluated here)."""
    if not 0 < len(text) <= LONGEST:
        return False
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


UNREAD = Execution("syntax")


def _job(problem: Problem, expression: str) -> Job:
    calls = tuple(f"f({argument})" for argument in problem.truth["inputs"])
    return Job(f"def f(x):\n    return ({expression}\n    )", calls)


def _verdict(problem: Problem, expression: str, execution: Execution) -> Verdict:
    failed = _failed_test(problem, execution)
    scores = {"correct": float(execution.outcome == "pass" and not failed)}
    scores["format"] = float(execution.outcome == "pass")
    return Verdict(scores, expression, OUTCOMES[execution.outcome], failed_test=failed)


def _failed_test(problem: Problem, execution: Execution) -> str:
    """The first test that an expression fails; empty if it is right, and if no test began."""
    if execution.outcome in ("syntax", "infra_error"):
        return ""
    inputs, expected = problem.truth["inputs"], problem.truth["outputs"]
    tests = [f"f({argument}) == {output!r}" for argument, output in zip(inputs, expected, strict=True)]
    if execution.outcome != "pass":
        return failed_test(tests, execution.returned, stopped(execution))
    if not execution.brief:  # A right expression is never long.
        return failed_test(tests, None, "values that are too long")
    values = execution.values
    wrong = next((i for i, pair in enumerate(zip(values, expected, strict=True)) if not same(*pair)), None)
    return "" if wrong is None else failed_test(tests, wrong, values_got([values[wrong]]))


@cache
def _function(expression: str) -> Callable[[Any], Any]:
    """The hidden function; there are few. `expression` is one of ours, from FAMILIES, never a model's."""
    names = {"__builtins__": {}, "max": max, "min": min, "sum": sum, "sorted": sorted}
    function: Callable[[Any], Any] = eval(f"lambda x: {expression}", names)
    return function
