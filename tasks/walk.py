"""A walk on a ring of letters, which have neighbors in meaning, toward a goal of which only the region can be
learned, so that only different answers find it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import ClassVar

from grpobench.tasks.kinds.generated import Drawn, demand_range
from grpobench.tasks.kinds.written import END, Written, form, number_of
from grpobench.tasks.task import Problem, Split, Verdict

RING = ascii_uppercase + ascii_lowercase[:22]
"""48 letters in a ring: after v comes A."""
LENGTH = 6
"""Letters of a completion."""
STEPS = {step: (5 - abs(step)) / 25 for step in range(-4, 5)}
"""Chance of each step of the base policy along the ring."""
CONTEXTS = "01234567"


@dataclass(frozen=True)
class Walk(Drawn, Written):
    """``48210 3:`` asks for six letters of the ring A … Z a … v. The sixth is right if it is at most `near`
    places from the problem's goal. The goals of a context, here 3, lie in a region of `region` letters. Which
    of these it is, is a hash of the prompt that nobody can learn, because no prompt is seen twice.

    A policy that learns the region can answer anywhere in it. Whether it does decides pass@k: answers that
    are all at one place of the region succeed on the same few problems.

    The base policy writes any letter first and then moves by up to four places. Letters near each other on
    the ring are followed by nearly the same letters, so that they are near each other among the embeddings
    too. Its sixth letter is uniform, and its success rate (2 · near + 1)/48.
    """

    name = "walk"
    source = "generated from a seed by grpobench.tasks.walk (Apache-2.0)"
    summary = "a walk on a ring of letters toward a goal of which only the region can be learned"
    scores = ("correct", "region", "format")
    reward: ClassVar[Mapping[str, float]] = {"correct": 1.0, "format": 0.5}
    max_completion_tokens = LENGTH + 4
    region: int = 12
    """Letters among which the goals of a context lie."""
    near: int = 1
    """Places between the sixth letter and the goal that are still right."""
    contexts: int = 2
    """Contexts, each with a region of its own."""
    secret: int = 0
    """Chooses regions and goals."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_range(self, 1, len(RING), "region")
        demand_range(self, 0, len(RING) // 2 - 1, "near")
        demand_range(self, 1, len(CONTEXTS), "contexts")

    def draw(self, split: Split, rng: random.Random) -> Problem:
        context = rng.choice(CONTEXTS[: self.contexts])
        prompt = f"{rng.randrange(100_000):05d} {context}:"
        first = number_of(self.secret, "region", context) % len(RING)
        goal = (first + number_of(self.secret, "goal", prompt) % self.region) % len(RING)
        return Problem(prompt, prompt, {"goal": goal, "first": first}, {"category": f"context {context}"})

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [self._grade(problem, completion) for completion in completions]

    def _grade(self, problem: Problem, completion: str) -> Verdict:
        last = completion[LENGTH - 1 : LENGTH]
        goal, first = problem.truth["goal"], problem.truth["first"]
        inside = {RING[(first + offset) % len(RING)] for offset in range(self.region)}
        scores = {
            "correct": float(bool(last) and last in RING and apart(last, RING[goal]) <= self.near),
            "region": float(last in inside),
            "format": form(completion, RING, LENGTH),
        }
        return Verdict(scores, last or None, "graded" if completion else "unparsable")

    def demonstrate(self, problem: Problem) -> str:
        return str(RING[problem.truth["goal"]] * LENGTH)

    def corrupt(self, problem: Problem) -> str:
        """The letter on the other side of the ring."""
        return RING[(problem.truth["goal"] + len(RING) // 2) % len(RING)] * LENGTH

    def distribution(self, problem: Problem, turns: Sequence[str]) -> Mapping[str, float]:
        if len(turns[-1]) >= LENGTH:
            return {END: 1.0}
        if not turns[-1]:
            return dict.fromkeys(RING, 1 / len(RING))
        position = RING.index(turns[-1][-1])
        return {RING[(position + step) % len(RING)]: chance for step, chance in STEPS.items()}


def apart(first: str, second: str) -> int:
    """Places between two letters, the shorter way around the ring."""
    distance = abs(RING.index(first) - RING.index(second))
    return min(distance, len(RING) - distance)
