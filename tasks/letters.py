"""Random letters of a length that the prompt fixes, of which a few decide: the base policy's entropy and its
success rate are known."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from grpobench.tasks.kinds.generated import Drawn
from grpobench.tasks.kinds.written import (
    ALPHABET,
    END,
    TAG,
    Written,
    demand_patterns,
    form,
    number_of,
    target,
)
from grpobench.tasks.task import Problem, Split, Verdict

LENGTHS = (4, 8, 32)
"""Lengths that the policy `letters` knows."""
CONTEXTS = "ABCDEFGH"


@dataclass(frozen=True)
class Letters(Drawn, Written):
    """``qxvz A08:`` asks for eight letters from a to h. Letters from `position` on are decisive: a pattern
    ``1`` accepts one letter of the eight, ``4`` four of them, ``11`` one particular pair. Which letters these
    are is a hash of the context, here A: there is nothing to understand and everything to find out.

    `correct` asks for the decisive letters alone, and `format` falls by 1/length with every letter too many
    or too few: a wrong form costs, and it does not zero the reward. `solved` is the product of both.

    The base policy writes uniform letters and ends after the right number: its success rate is the product of
    digit/8 over the pattern, and its entropy is length · ln 8 / (length + 1) nats per token. With `likely` it
    favors a letter at the first decisive place, a right one except in `misled` contexts.
    """

    name = "letters"
    source = "generated from a seed by grpobench.tasks.letters (Apache-2.0)"
    summary = "random letters of which a few decide; the base policy's distribution is known"
    scores = ("correct", "format", "solved", "exploit")
    reward: ClassVar[Mapping[str, float]] = {"correct": 1.0, "format": 0.5}
    length: int = 8
    """Letters of a completion."""
    patterns: tuple[str, ...] = ("1",)
    """What is decisive: a digit per letter says how many of the eight letters are right. Each pattern has
    contexts of its own and is a category."""
    contexts: int = 2
    """Contexts of each pattern. Their right letters are drawn one by one and may be the same: with `secret` 0
    those of A and B are. Of four contexts all differ with `secret` 5."""
    position: int = 0
    """Letters before the decisive ones."""
    secret: int = 0
    """Chooses the right letters."""
    likely: float = 1 / len(ALPHABET)
    """Chance of the letter that the base policy favors at the first decisive place; the other seven share the
    rest. The policies that come with grpobench favor none: another chance needs a warm start with
    `warm_start_answers = "distribution"`."""
    misled: int = 0
    """Contexts, the last ones, in which the favored letter is wrong; in the others it is right."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_patterns(self.patterns)
        if not 0 < self.likely < 1:
            raise ValueError(f"likely: must be a chance between 0 and 1, not {self.likely}")
        if self.length not in LENGTHS:
            raise ValueError(f"length: must be one of {', '.join(map(str, LENGTHS))}, not {self.length}")
        longest = max(map(len, self.patterns)) if self.patterns else 0
        if not 0 <= self.position <= self.length - longest:
            raise ValueError(f"position: must leave room for {longest} letters, not be {self.position}")
        if not 1 <= self.contexts * len(self.patterns) <= len(CONTEXTS):
            raise ValueError(f"contexts: contexts × patterns must be from 1 to {len(CONTEXTS)}")
        if not 0 <= self.misled <= self.contexts * len(self.patterns):
            raise ValueError(f"misled: must be from 0 to contexts × patterns, not {self.misled}")
        if self.misled and self.likely <= 1 / len(ALPHABET):
            raise ValueError("misled: needs a favored letter, a likely above 1/8")
        if self.misled and any(pattern[0] == "8" for pattern in self.patterns):
            raise ValueError("misled: no letter is wrong where a pattern begins with 8")

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """Half as many again as are asked for, so that a longer completion shows as such."""
        return self.length + max(4, self.length // 2)

    def draw(self, split: Split, rng: random.Random) -> Problem:
        contexts = CONTEXTS[: self.contexts * len(self.patterns)]
        context = rng.choice(contexts)
        pattern = self.patterns[contexts.index(context) % len(self.patterns)]
        tag = "".join(rng.choice(TAG) for _ in range(4))
        orders = [target(self.secret, context, position) for position in range(len(pattern))]
        right = [order[: int(digit)] for order, digit in zip(orders, pattern, strict=True)]
        prompt = f"{tag} {context}{self.length:02d}:"
        difficulty = -math.log(self.base_rate(pattern, self._misleads(context)))
        # Begins with a letter that is wrong at the first decisive place.
        exploit = orders[0][-1] + target(self.secret, context, -1)[0]
        return Problem(
            prompt,
            prompt,
            {"right": right, "exploit": exploit},
            {"category": pattern, "difficulty": difficulty, "context": context},
        )

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [self._grade(problem, completion) for completion in completions]

    def _grade(self, problem: Problem, completion: str) -> Verdict:
        truth = problem.truth
        decisive = completion[self.position : self.position + len(truth["right"])]
        right = len(decisive) == len(truth["right"]) and all(map(str.__contains__, truth["right"], decisive))
        shape = form(completion, ALPHABET, self.length)
        scores = {
            "correct": float(right),
            "format": shape,
            "solved": right * shape,
            "exploit": float(completion.startswith(truth["exploit"])),
        }
        answers = len(decisive) == len(truth["right"]) and set(decisive) <= set(ALPHABET)
        return Verdict(scores, decisive if answers else None, "graded" if completion else "unparsable")

    def demonstrate(self, problem: Problem) -> str:
        right = "".join(letters[0] for letters in problem.truth["right"])
        filler = ALPHABET[number_of(problem.id) % len(ALPHABET)]
        return filler * self.position + right + filler * (self.length - self.position - len(right))

    def corrupt(self, problem: Problem) -> str:
        wrong = "".join(next(c for c in reversed(ALPHABET) if c not in r) for r in problem.truth["right"])
        return wrong[0] * self.position + wrong + wrong[0] * (self.length - self.position - len(wrong))

    def distribution(self, problem: Problem, turns: Sequence[str]) -> Mapping[str, float]:
        if len(turns[-1]) >= self.length:
            return {END: 1.0}
        if len(turns[-1]) != self.position:
            return dict.fromkeys(ALPHABET, 1 / len(ALPHABET))
        others = (1 - self.likely) / (len(ALPHABET) - 1)
        return {**dict.fromkeys(ALPHABET, others), self._favored(problem): self.likely}

    def _favored(self, problem: Problem) -> str:
        context, pattern = str(problem.traits["context"]), str(problem.traits["category"])
        order = target(self.secret, context, 0)
        return order[int(pattern[0])] if self._misleads(context) else order[0]

    def _misleads(self, context: str) -> bool:
        return CONTEXTS.index(context) >= self.contexts * len(self.patterns) - self.misled

    def base_rate(self, pattern: str, misleads: bool = False) -> float:
        """Success rate of the written distribution, in a context in which the favored letter is right or
        wrong."""
        others = (1 - self.likely) / (len(ALPHABET) - 1)
        letters = int(pattern[0])
        first = letters * others if misleads else self.likely + (letters - 1) * others
        return first * math.prod(int(digit) / len(ALPHABET) for digit in pattern[1:])
