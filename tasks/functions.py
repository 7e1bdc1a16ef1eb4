"""Write a small Python function from a sentence and an example; generated, and run on hidden inputs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from grpobench.tasks.data.tables import Source
from grpobench.tasks.kinds import compositions, programs
from grpobench.tasks.kinds.compositions import Composition, Undefined
from grpobench.tasks.kinds.generated import SHARES, Generated, accuracy_by_category, bucket, distinct
from grpobench.tasks.prompts.templates import Template, template, template_fault
from grpobench.tasks.task import Graded, Problem, Split, identity

HIDDEN: Final = 8
"""Hidden inputs."""
MOST_SHOWN: Final = 3
DRAWS: Final = 4
"""How often inputs are drawn for a composition until they tell it from its rivals."""
SENTENCES: Final = (
    "Write a function that takes {thing}, {they_do} and returns the result.",
    "Write a function for {thing}. It should {do} and return the result.",
    "Given {thing}, {do}. Write a function that returns the result.",
)


@dataclass(frozen=True)
class Functions(Generated, programs.Programs):
    """A sentence that describes one to three operations on a number, a list or a text, and an example.

    The hidden inputs tell the function from every constant, from the function that returns its argument, and
    from the same function with a step left out or with another constant. Splits share no function: its
    operations and constants decide the split. `category` and `difficulty`: the number of operations.
    """

    name = "functions"
    source = "generated from a seed by grpobench.tasks.functions (Apache-2.0)"
    summary = "write a small Python function from a sentence and an example; generated, run on hidden inputs"
    max_completion_tokens = 128
    operations: tuple[int, ...] = (1, 2)
    """Allowed numbers of operations, each equally frequent."""
    shown: int = 1
    """How many examples the prompt shows."""
    template: str = "mbpp"
    """Prompt template: a packaged one, or a path ending in .txt."""

    def __post_init__(self) -> None:
        Generated.__post_init__(self)
        programs.Programs.__post_init__(self)
        if not self.operations or not all(1 <= count <= 3 for count in self.operations):
            raise ValueError("operations: each must be from 1 to 3")
        if not 1 <= self.shown <= MOST_SHOWN:
            raise ValueError(f"shown: must be from 1 to {MOST_SHOWN}")

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self, split, template(self.template))

    def sources(self, split: Split) -> tuple[Source, ...]:
        return (template(self.template).source,)

    def missing(self) -> str:
        """An invalid template, or no sandbox."""
        return template_fault(self.template) or super().missing()

    def demonstrate(self, problem: Problem) -> str:
        return programs.in_block(problem.truth["reference"])

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        """``accuracy/<n> operations``."""
        return accuracy_by_category(graded)


@cache
def _problems(task: Functions, split: Split, chosen: Template) -> tuple[Problem, ...]:
    def draw(rng: random.Random) -> Problem:
        while True:
            composition = compositions.compose(rng, rng.choice(task.operations))
            # `distinct` would reject it too, but only after the inputs, which take most of the time.
            if bucket(compositions.source(composition)) not in SHARES[split]:
                continue
            if inputs := _inputs(composition, task.shown, rng):
                return _problem(composition, inputs, task.shown, chosen, rng)

    return distinct(task, split, draw, identity=lambda problem: str(problem.traits["cluster"]))


def _inputs(composition: Composition, shown: int, rng: random.Random) -> list[Any]:
    """Inputs of which the hidden ones tell a composition from its rivals and from a constant; none if that
    does not succeed, as for a step without an effect: sorting before a sum."""
    rivals = compositions.rivals(composition)
    for _ in range(DRAWS):
        inputs = _defined(composition, shown + HIDDEN, rng)
        if not inputs:
            return []
        values = [compositions.value(composition, argument) for argument in inputs]
        hidden = values[shown:]
        telling = all(value not in ("", []) for value in values[:shown])
        varied = max(Counter(map(repr, hidden)).values()) <= HIDDEN // 2
        if telling and varied and all(compositions.differ(hidden, rival, inputs[shown:]) for rival in rivals):
            return inputs
    return []


def _defined(composition: Composition, count: int, rng: random.Random) -> list[Any]:
    """Different inputs for which a composition has a value; none if they are rare."""
    inputs: dict[str, Any] = {}
    for _ in range(4 * count):
        argument = compositions.draw_input(compositions.takes(composition), rng)
        try:
            compositions.value(composition, argument)
        except Undefined:
            continue
        inputs[repr(argument)] = argument
        if len(inputs) == count:
            return [*inputs.values()]
    return []


def _problem(
    composition: Composition, inputs: Sequence[Any], shown: int, chosen: Template, rng: random.Random
) -> Problem:
    entry, reference = compositions.name(composition), compositions.source(composition)
    calls = [f"{entry}({argument!r})" for argument in inputs]
    results = [repr(compositions.value(composition, argument)) for argument in inputs]
    examples = [f"assert {call} == {result}" for call, result in zip(calls, results, strict=True)]
    code = "\n".join(examples[:shown])
    question = f"{sentence(composition, rng)}\n```python\n{code}\n```"
    conditions = [f"_{index} == {result}" for index, result in enumerate(results)]
    truth = programs.asserted(entry, reference, calls, conditions)
    count = len(composition)
    traits: dict[str, str | float] = {
        "category": f"{count} operation{'s' * (count > 1)}",
        "difficulty": float(count),
        "cluster": reference,
    }
    return Problem(identity(question), chosen.prompt(question), truth, traits)


def sentence(composition: Composition, rng: random.Random) -> str:
    """What the function does, in one of a few forms."""
    phrases = [step.phrase for step in composition]
    do, they_do = ", then ".join(phrases), ", then ".join(map(third_person, phrases))
    input_name = compositions.NAMED[compositions.takes(composition)]
    return rng.choice(SENTENCES).format(thing=input_name, do=do, they_do=they_do)


def third_person(phrase: str) -> str:
    """A request as what somebody does: ``multiply each number`` becomes ``multiplies each number``."""
    verb, _, remainder = phrase.partition(" ")
    return f"{verb[:-1]}ies {remainder}" if verb.endswith("ly") else f"{verb}s {remainder}"
