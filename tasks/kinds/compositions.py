"""Functions composed of small operations on numbers, lists and texts, each in words and as Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

Kind = Literal["number", "numbers", "text", "words"]
"""Kinds of values; also the names of the variables that hold them."""
NAMED: Final = {
    "number": "a whole number",
    "numbers": "a list of whole numbers",
    "text": "a text",
    "words": "a list of words",
}
VOCABULARY: Final = (
    *("apple", "bridge", "cat", "door", "Eve", "forest", "gold", "hat", "island", "juice", "kite", "Lamp"),
    *("moon", "Nora", "otter", "pan", "queen", "river", "sea", "tree", "umbrella", "Vera", "wind", "yard"),
)


@dataclass(frozen=True)
class Operation:
    """One operation, with a constant if there are `constants` to choose from."""

    name: str
    """Its part of the function's name."""
    takes: Kind
    gives: Kind
    phrase: str
    """What it does, as a request that begins with a verb; ``{k}`` is the constant."""
    code: str
    """A Python expression of the value ``{v}`` and the constant ``{k}``."""
    constants: tuple[int | str, ...] = ()


SMALL: Final = tuple(range(2, 10))
FREQUENT: Final = tuple("aeort")
"""Letters that occur in most texts."""
TABLE: Final[Mapping[tuple[Kind, Kind], Sequence[tuple[Any, ...]]]] = {
    ("numbers", "numbers"): (
        ("evens", "keep only the even numbers", "[n for n in {v} if n % 2 == 0]"),
        ("odds", "keep only the odd numbers", "[n for n in {v} if n % 2 == 1]"),
        ("positives", "keep only the numbers above zero", "[n for n in {v} if n > 0]"),
        ("above", "keep only the numbers greater than {k}", "[n for n in {v} if n > {k}]", (2, 3, 4, 5, 6)),
        ("below", "keep only the numbers less than {k}", "[n for n in {v} if n < {k}]", (3, 4, 5, 6, 7)),
        ("times", "multiply each number by {k}", "[n * {k} for n in {v}]", SMALL),
        ("plus", "add {k} to each number", "[n + {k} for n in {v}]", SMALL),
        ("minus", "subtract {k} from each number", "[n - {k} for n in {v}]", SMALL),
        ("squares", "square each number", "[n * n for n in {v}]"),
        ("negated", "negate each number", "[-n for n in {v}]"),
        ("absolutes", "replace each number by its absolute value", "[abs(n) for n in {v}]"),
        ("ascending", "sort the numbers in ascending order", "sorted({v})"),
        ("descending", "sort the numbers in descending order", "sorted({v}, reverse=True)"),
        ("backwards", "reverse the order of the numbers", "{v}[::-1]"),
        ("distinct", "remove numbers that came before in the list", "list(dict.fromkeys({v}))"),
        ("without_first", "drop the first number", "{v}[1:]"),
        ("without_last", "drop the last number", "{v}[:-1]"),
        ("head", "keep only the first {k} numbers", "{v}[:{k}]", (2, 3)),
        ("alternate", "keep every second number, beginning with the first", "{v}[::2]"),
    ),
    ("numbers", "number"): (
        ("total", "add up all numbers", "sum({v})"),
        ("count", "count the numbers", "len({v})"),
        ("largest", "find the largest number", "max({v})"),
        ("smallest", "find the smallest number", "min({v})"),
        ("first", "take the first number", "{v}[0]"),
        ("last", "take the last number", "{v}[-1]"),
        ("spread", "subtract the smallest number from the largest one", "max({v}) - min({v})"),
    ),
    ("number", "number"): (
        ("add", "add {k} to the number", "{v} + {k}", SMALL),
        ("subtract", "subtract {k} from the number", "{v} - {k}", SMALL),
        ("multiply", "multiply the number by {k}", "{v} * {k}", SMALL),
        ("square", "square the number", "{v} * {v}"),
        ("remainder", "take the remainder of dividing the number by {k}", "{v} % {k}", (3, 4, 5, 6, 7, 8, 9)),
        ("quotient", "divide the number by {k} and round down", "{v} // {k}", (2, 3, 4, 5)),
        ("digit_sum", "add up the digits of the number", "sum(int(d) for d in str(abs({v})))"),
    ),
    ("number", "numbers"): (
        ("digits", "list the digits of the number from left to right", "[int(d) for d in str(abs({v}))]"),
        ("count_up", "list the numbers from 1 up to the number", "list(range(1, {v} + 1))"),
    ),
    ("text", "text"): (
        ("upper", "change the text to upper case", "{v}.upper()"),
        ("lower", "change the text to lower case", "{v}.lower()"),
        ("mirrored", "reverse the text", "{v}[::-1]"),
        ("twice", "write the text twice in a row", "{v} * 2"),
        ("closed_up", "remove all spaces from the text", '{v}.replace(" ", "")'),
        ("no_vowels", "remove all vowels from the text", '"".join(c for c in {v} if c not in "aeiouAEIOU")'),
        ("dashed", "replace each letter '{k}' in the text by '-'", '{v}.replace("{k}", "-")', FREQUENT),
        ("start", "keep only the first {k} characters of the text", "{v}[:{k}]", (2, 3, 4)),
    ),
    ("text", "number"): (
        ("length", "count the characters of the text", "len({v})"),
        ("vowels", "count the vowels of the text", 'sum(c in "aeiouAEIOU" for c in {v})'),
        ("letters", "count how often the letter '{k}' occurs in the text", '{v}.count("{k}")', FREQUENT),
    ),
    ("text", "words"): (("split", "split the text into words", "{v}.split()"),),
    ("words", "words"): (
        ("sorted_words", "sort the words in alphabetical order", "sorted({v})"),
        ("by_length", "sort the words by length, shortest first", "sorted({v}, key=len)"),
        ("words_backwards", "reverse the order of the words", "{v}[::-1]"),
        (
            "long_words",
            "keep only the words with more than {k} letters",
            "[w for w in {v} if len(w) > {k}]",
            (3, 4, 5),
        ),
        ("shouted", "change each word to upper case", "[w.upper() for w in {v}]"),
        ("mirrored_words", "reverse each word", "[w[::-1] for w in {v}]"),
        ("rest", "drop the first word", "{v}[1:]"),
    ),
    ("words", "numbers"): (("lengths", "replace each word by its length", "[len(w) for w in {v}]"),),
    ("words", "text"): (
        ("joined", "join the words with '{k}' between them", '"{k}".join({v})', ("-", "+", "/")),
        ("initials", "join the first letters of the words", '"".join(w[0] for w in {v})'),
    ),
    ("words", "number"): (("number_of_words", "count the words", "len({v})"),),
}
"""By the kind that an operation takes and the one that it gives: name, phrase, code and constants."""
OPERATIONS: Final = tuple(
    Operation(name, takes, gives, *how) for (takes, gives), rows in TABLE.items() for name, *how in rows
)


@dataclass(frozen=True)
class Step:
    """An operation with its constant."""

    operation: Operation
    constant: int | str | None = None

    @property
    def phrase(self) -> str:
        return self.operation.phrase.format(k=self.constant)

    def code(self, variable: str) -> str:
        """The expression of a variable."""
        return self.operation.code.format(v=variable, k=self.constant)

    def others(self) -> list[Step]:
        """The same operation with another constant."""
        return [Step(self.operation, k) for k in self.operation.constants if k != self.constant]


Composition = tuple[Step, ...]


def compose(rng: random.Random, count: int) -> Composition:
    """As many operations, each on what the one before gives. Every operation is equally likely to be first,
    and equally likely among those that fit."""
    steps: list[Step] = []
    for _ in range(count):
        fitting = [
            operation for operation in OPERATIONS if not steps or operation.takes == steps[-1].operation.gives
        ]
        chosen = rng.choice(fitting)
        steps.append(Step(chosen, rng.choice(chosen.constants) if chosen.constants else None))
    return tuple(steps)


def takes(composition: Composition) -> Kind:
    return composition[0].operation.takes


def name(composition: Composition) -> str:
    """The function's name."""
    return "_".join(step.operation.name for step in composition)


def source(composition: Composition) -> str:
    """The function in Python, one operation a line."""
    variable: str = takes(composition)
    lines = [f"def {name(composition)}({variable}):"]
    for step in composition[:-1]:
        lines.append(f"    {step.operation.gives} = {step.code(variable)}")
        variable = step.operation.gives
    return "\n".join([*lines, f"    return {composition[-1].code(variable)}"])


class Undefined(ValueError):
    """A composition has no value, or a long one, for an input."""


LARGEST: Final = 10**9
"""Largest number on the way to a value."""
LONGEST: Final = 60
"""Most elements of a list, or characters of a text, on the way to a value."""


def value(composition: Composition, argument: Any) -> Any:
    """What the function returns. Raises Undefined."""
    for step in composition:
        try:
            argument = function(step)(argument)
        except (IndexError, ValueError) as error:  # of an empty list
            raise Undefined(str(error)) from None
        if abs(argument) > LARGEST if isinstance(argument, int) else len(argument) > LONGEST:
            raise Undefined("large")
    return argument


@cache
def function(step: Step) -> Callable[[Any], Any]:
    """A step as a function. Its code is ours, from OPERATIONS, never a model's."""
    compiled: Callable[[Any], Any] = eval(f"lambda v: {step.code('v')}")
    return compiled


def rivals(composition: Composition) -> list[Composition]:
    """Other functions that a wrong program may compute: one step left out, or with another constant. The
    empty composition returns its argument."""
    variants: list[Composition] = []
    for index, step in enumerate(composition):
        before, after = composition[:index], composition[index + 1 :]
        if step.operation.takes == step.operation.gives or not after:
            variants.append(before + after)
        variants += [(*before, other, *after) for other in step.others()]
    return [(), *variants]


def differ(values: Sequence[Any], rival: Composition, inputs: Sequence[Any]) -> bool:
    """Whether another composition has other values than these for the inputs, or none for one of them."""
    return any(
        outcome(rival, argument) != ("value", right) for right, argument in zip(values, inputs, strict=True)
    )


def outcome(composition: Composition, argument: Any) -> tuple[str, Any]:
    try:
        return "value", value(composition, argument)
    except Undefined:
        return "undefined", None


def draw_input(kind: Kind, rng: random.Random) -> Any:
    """An argument of a kind."""
    if kind == "number":
        return rng.randint(0, 60)
    if kind == "numbers":
        return [rng.randint(-4, 9) for _ in range(rng.randint(3, 6))]
    words = rng.choices(VOCABULARY, k=rng.randint(2, 5))
    return words if kind == "words" else " ".join(words[:3])
