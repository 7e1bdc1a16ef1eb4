"""Multi-step integer arithmetic with a visible chain of thought, generated from a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from grpobench.tasks.grading import reasoning
from grpobench.tasks.kinds.generated import Drawn, accuracy_by_category
from grpobench.tasks.task import Graded, Problem, Split, Verdict

BUDGET, STEP, DIGIT = 40, 13, 4
"""Characters for up to three operations, for each further one (``-120-20=-140,``), and for each third digit
of an operation's numbers."""
FINAL = re.compile(r"#(-?\d{1,9})$")


@dataclass(frozen=True)
class Arithmetic(Drawn):
    """Left-to-right chains of ``+ - *`` such as ``Q:7+8-19`` with the answer ``7+8=15,15-19=-4#-4``.

    `consistent` and `supported` say whether the steps lead to the answer, right or wrong (see
    `tasks/grading/reasoning.py`). `difficulty` is the number of operations. Multiplication is of a number up
    to `largest` by at most 5, so that a character-level policy can carry out every step in its chain of
    thought.
    """

    name = "arithmetic"
    source = "generated from a seed by grpobench.tasks.arithmetic (Apache-2.0)"
    summary = "chains of + - * on integers, each step written out, final answer behind #"
    scores = ("correct", "format", "consistent", "supported")
    answer_marker = "#"
    operations: tuple[int, ...] = (2, 3)
    """Allowed numbers of operations, each equally frequent."""
    measured_operations: tuple[int, ...] = ()
    """The same for validation and test problems; empty: as in training."""
    largest: int = 20
    """Largest number in a problem."""
    unsupported: float = 0.0
    """Share of the answers of `draw_episode` whose steps lead on to another value than the right answer that
    follows, as in ``7+8=15,15-19=-4;-4+6=2#-4``; 0 draws none of them, and careless answers instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, counts in (
            ("operations", self.operations),
            ("measured_operations", self.measured_operations),
        ):
            if not all(1 <= n <= 6 for n in counts):
                raise ValueError(f"{name}: each must be from 1 to 6")
        if not self.operations:
            raise ValueError("operations: must name at least one number of operations")
        if not 9 <= self.largest <= 999:
            raise ValueError("largest: must be from 9 to 999")
        if not 0 <= self.unsupported <= 1:
            raise ValueError("unsupported: must be from 0 to 1")

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """In characters: enough for the steps of the longest problem, in training and evaluation."""
        most = max(self.operations + self.measured_operations)
        digits = max(0, len(str(self.largest)) - 2)
        return BUDGET + STEP * max(0, most - 3) + DIGIT * digits * most

    def draw(self, split: Split, rng: random.Random) -> Problem:
        counts = self.operations if split == "train" else self.measured_operations or self.operations
        count = rng.choice(counts)
        value = rng.randint(1, self.largest)
        chain = str(value)
        for _ in range(count):
            sign = rng.choice("++--*")
            if sign == "*" and not 0 < value <= self.largest:
                sign = rng.choice("+-")
            number = rng.randint(2, 5) if sign == "*" else rng.randint(1, self.largest)
            value = apply(sign, value, number)
            chain += f"{sign}{number}"
        return Problem(
            chain, f"Q:{chain}\nA:", value, {"difficulty": float(count), "category": f"{count} steps"}
        )

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [grade(str(problem.truth), completion) for completion in completions]

    def demonstrate(self, problem: Problem) -> str:
        numbers, signs = parse(problem.text)
        value, steps = numbers[0], []
        for sign, number in zip(signs, numbers[1:], strict=True):
            after = apply(sign, value, number)
            steps.append(f"{value}{sign}{number}={after}")
            value = after
        return f"{','.join(steps)}#{value}"

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        """``accuracy/<n> steps``: share of right answers by number of operations."""
        return accuracy_by_category(graded)

    def draw_episode(self, problem: Problem, rng: random.Random) -> Sequence[str]:
        """Half of the answers are careless, as those of the nano policy's training are. With `unsupported`
        all have steps, which lead away from the answer in that share."""
        if self.unsupported:
            away = rng.random() < self.unsupported
            return (self.contradict(problem, rng) if away else self.demonstrate(problem),)
        return (self.lapse(problem) if rng.random() < 0.5 else self.demonstrate(problem),)

    def contradict(self, problem: Problem, rng: random.Random) -> str:
        """The right answer after a further thought that leads to another value, so that the reasoning does
        not support it. A semicolon tells a policy which value is the answer, so that it can learn both."""
        steps, _, answer = self.demonstrate(problem).partition("#")
        sign, number = rng.choice("+-"), rng.randint(1, 9)
        further = f"{answer}{sign}{number}={apply(sign, int(answer), number)}"
        return f"{steps};{further}#{answer}"

    def lapse(self, problem: Problem) -> str:
        """The answer without the steps that a small policy needs to find it."""
        return f"#{problem.truth}"


def grade(truth: str, completion: str) -> Verdict:
    """Exact integer comparison of the text after the last ``#`` at the end of the completion."""
    completion = completion.strip()
    match = FINAL.search(completion)
    if match is None:
        return Verdict(dict.fromkeys(Arithmetic.scores, 0.0), None, "unparsable")
    answer = int(match.group(1))
    chain = completion[: match.start()].replace(",", "\n")
    scores = {
        "correct": float(str(answer) == truth),
        "format": 1.0,
        "consistent": reasoning.consistent(chain, Fraction(answer)),
        "supported": reasoning.supported(chain, Fraction(answer)),
    }
    return Verdict(scores, str(answer))


def parse(prompt: str) -> tuple[list[int], list[str]]:
    """Numbers and signs of a prompt, in order."""
    chain = prompt.removeprefix("Q:").removesuffix("\nA:")
    return [int(n) for n in re.findall(r"\d+", chain)], re.findall(r"[-+*]", chain)


def apply(sign: str, left: int, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right
