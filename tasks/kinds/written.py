"""Tasks whose base policy follows a written distribution, so that its entropy and success rate are known."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Task

ALPHABET = "abcdefgh"
"""Letters that a policy writes at random."""
TAG = "qrstuvwxyz"
"""Letters of the part of a prompt that only makes it unique."""
END = ""
"""In a distribution: the end of the turn."""


@dataclass(frozen=True)
class Written(Task):
    """A task with a distribution over the next character of each turn."""

    @abstractmethod
    def distribution(self, problem: Problem, turns: Sequence[str]) -> Mapping[str, float]:
        """Probabilities of the next character of the last of `turns`, which is still open; the key `END` is
        the end token. They sum to 1."""

    def right_besides(self, problem: Problem, episode: Sequence[str]) -> bool:
        """As verified: what a written text is worth is defined there alone."""
        return bool(self.verify_episodes(problem, [episode])[0].scores["correct"])

    def draw_episode(self, problem: Problem, rng: random.Random) -> Sequence[str]:
        turns = [""]
        while True:
            following = self.distribution(problem, turns)
            character = rng.choices(list(following), list(following.values()))[0]
            turns[-1] += character
            if character == END or (self.turn_end and turns[-1].endswith(self.turn_end)):
                if self.turns == len(turns) or self.reply(problem, turns) is None:
                    return turns
                turns.append("")


def number_of(*parts: object) -> int:
    """A pseudo-random number below 2^64 that is the same on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def form(completion: str, alphabet: str, length: int) -> float:
    """1 for as many letters as are asked for; a letter too many or too few, or one that is none of the
    alphabet, costs 1/length."""
    letters = sum(character in alphabet for character in completion)
    strange = len(completion) - letters
    return max(0.0, 1.0 - (abs(letters - length) + strange) / length)


def target(secret: int, context: str, position: int) -> str:
    """The alphabet in the order in which a context prefers it at a decisive place: the first letter is right
    where one is, the first four where half of them are."""
    order = list(ALPHABET)
    random.Random(number_of(secret, context, position)).shuffle(order)
    return "".join(order)


def demand_patterns(patterns: Sequence[str], key: str = "patterns") -> None:
    """Raise DataError unless each pattern is a row of digits from 1 to 8."""
    for pattern in patterns:
        if not pattern or not set(pattern) <= set("12345678"):
            raise DataError(f"{key}: {pattern!r} must be digits from 1 to 8, one for each decisive letter")
