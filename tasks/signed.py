"""A letter, a sign that the environment answers with and nobody can learn, and a tail of free length."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grpobench.tasks.kinds.generated import Drawn, demand_range
from grpobench.tasks.kinds.written import ALPHABET, END, TAG, Written, number_of, target
from grpobench.tasks.task import Problem, Split, Verdict

CONTEXTS = "AB"
TAIL = {"+": "p", "-": "m"}
"""The token that a tail consists of, by sign. With one token for both, lengths would wander together."""
STOP = 1 / 9
"""Chance of the base policy to end its tail at each token: a mean of 8 tokens."""


@dataclass(frozen=True)
class Signed(Drawn, Written):
    """After ``qxvz A:`` the policy writes a letter, the environment answers ``+`` or ``-`` (a hash of prompt
    and letter), or several of them, and the policy writes a second letter and a tail of as many ``p`` or
    ``m`` as it likes. The tail follows the last sign.

    The sign cannot be learned, because no prompt is seen twice. What follows it can: nothing rewards the
    length of a tail, so that a drift of lengths is the algorithm's, and the second letter is the policy's to
    find out. The base policy writes uniform letters (ln 8 nats each) and ends its tail with probability 1/9.
    """

    name = "signed"
    source = "generated from a seed by grpobench.tasks.signed (Apache-2.0)"
    summary = "free length after a sign that cannot be learned; the base policy's distribution is known"
    scores = ("correct", "sign", "letter", "format")
    turn_end = "\n"
    decides: Literal["sign", "letter", "both"] = "letter"
    """What makes a completion correct: the sign, the second letter, or both. With both, half of the
    completions stay wrong whatever is learned, and the base policy is right in one of sixteen."""
    signs: int = 1
    """Signs of the reply. The score `sign` is the number that are +, less half of the signs before the last:
    luck with a mean of one half and a variance of a quarter of their number. More than one need
    `decides = "letter"`."""
    cap: int = 64
    """Largest number of tokens of the second turn."""
    secret: int = 0
    """Chooses the right second letters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_range(self, 4, 120, "cap")
        if self.signs < 1 or (self.signs > 1 and self.decides != "letter"):
            raise ValueError(f"signs: must be 1, or more with decides = 'letter', not {self.signs}")

    @property
    def turns(self) -> int:
        return 2

    @property
    def turn_tokens(self) -> int:  # type: ignore[override]
        return self.cap

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """Two turns, and the reply between them."""
        return 2 * self.cap + 1 + self.signs

    def draw(self, split: Split, rng: random.Random) -> Problem:
        context = rng.choice(CONTEXTS)
        while True:
            prompt = "".join(rng.choice(TAG) for _ in range(4)) + f" {context}:"
            if any(number_of(prompt, letter) % 2 for letter in ALPHABET):
                break
        return Problem(prompt, prompt, {"right": target(self.secret, context, 0)[0]}, {"category": context})

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        first = turns[0].rstrip("\n")
        if len(turns) > 1 or len(first) != 1 or first not in ALPHABET:
            return None
        earlier = [number_of(problem.id, first, position) for position in range(1, self.signs)]
        return "".join("-+"[number % 2] for number in [*earlier, number_of(problem.id, first)])

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        """Grade second turns, as if they followed signs that are all +."""
        return [self._grade(problem, "+" * self.signs, text) for text in completions]

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        return [
            self._grade(problem, self.reply(problem, turns[:1]) if turns else None, *turns[1:2])
            for turns in episodes
        ]

    def _grade(self, problem: Problem, signs: str | None, second: str = "") -> Verdict:
        if signs is None:
            return Verdict(dict.fromkeys(self.scores, 0.0), None, "unparsable")
        tail = second[1:]
        scores = {
            "sign": signs.count("+") - (self.signs - 1) / 2,
            "letter": float(second[:1] == problem.truth["right"]),
            "format": float(second[:1] in [*ALPHABET] and set(tail) <= {TAIL[signs[-1]]}),
        }
        correct = scores["sign"] * scores["letter"] if self.decides == "both" else scores[self.decides]
        return Verdict({"correct": correct, **scores}, second[:1] or None)

    def demonstrate(self, problem: Problem) -> str:
        return str(problem.truth["right"])

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        """The first letter whose last sign is +."""
        for letter in ALPHABET:
            if (self.reply(problem, [letter]) or "").endswith("+"):
                return f"{letter}\n", self.demonstrate(problem)
        raise AssertionError("a problem without a + is never drawn")

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        return (*self.demonstrate_episode(problem)[:1], answer)

    def corrupt(self, problem: Problem) -> str | None:
        """Another second letter; where the sign decides, no second turn is wrong."""
        if self.decides == "sign":
            return None
        return next(letter for letter in ALPHABET if letter != problem.truth["right"])

    def credits(self, problem: Problem, turns: Sequence[str]) -> Sequence[float]:
        """Under the base policy, for which the sign is luck and whose second letter is right in one of eight.
        A first turn gains nothing and loses all if it ends the episode."""
        letter = 1 / len(ALPHABET)
        before = {"sign": 1 / 2, "letter": letter, "both": letter / 2}[self.decides]
        signs = self.reply(problem, turns[:1])
        if signs is None:
            return (-before, *(0.0 for _ in turns[1:]))
        luck = float(signs == "+")
        between = {"sign": luck, "letter": letter, "both": luck * letter}[self.decides]
        correct = self._grade(problem, signs, *turns[1:2]).scores["correct"]
        return (0.0, correct - between)[: len(turns)]

    def distribution(self, problem: Problem, turns: Sequence[str]) -> Mapping[str, float]:
        letters = dict.fromkeys(ALPHABET, 1 / len(ALPHABET))
        if len(turns) == 1:
            return {"\n": 1.0} if turns[0] else letters
        if not turns[1]:
            return letters
        signs = self.reply(problem, turns[:1])
        assert signs is not None
        return {TAIL[signs[-1]]: 1 - STOP, END: STOP}
