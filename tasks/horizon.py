"""A chain of dependent look-ups through a tool, with the reward at the end, to test how far back credit
reaches."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpobench.tasks.kinds.generated import Drawn, demand_range
from grpobench.tasks.kinds.written import number_of
from grpobench.tasks.task import Problem, Split, Verdict

ACTION = re.compile(r"([?=])([0-9]{1,6})")
LOWEST, HIGHEST = 100, 999
"""Keys have three digits."""
MISSING, MALFORMED = "none\n", "error\n"
RULES = """\
You follow a chain of keys through a table. In each turn write one line and nothing else.
?KEY looks up a key from 100 to 999. The reply is a change, such as +7: add it to the key to get the next key.
A reply that ends in ! is the last one: add it as well and write =NUMBER with the result.
The reply none says that there is no such key, error that the line was not understood.
You have {turns} turns.
"""


@dataclass(frozen=True)
class Horizon(Drawn):
    """Look up ``?412``, read ``+7``, look up ``?419``, …, read ``-3!``, answer ``=…``.

    Each key is the sum of the previous key and the tool's reply, so every step depends on all earlier ones;
    only the answer is rewarded. The table also holds about half of all other keys: a slip in the arithmetic
    gets the reply ``none`` (and costs one of the `spare` turns) or leads to a wrong answer unnoticed.
    """

    name = "horizon"
    source = "generated from a seed by grpobench.tasks.horizon (Apache-2.0)"
    summary = "several turns with a tool: a chain of look-ups and additions, rewarded at its end only"
    scores = ("correct", "progress", "format")
    turn_tokens = 8
    turn_end = "\n"
    steps: int = 4
    """H, the dependent look-ups before the answer."""
    largest: int = 9
    """Largest change from one key to the next."""
    spare: int = 4
    """Turns beyond the needed ones, for replies that report a mistake."""
    detours: float = 0.0
    """Share of look-ups that reference episodes make twice. A policy that learned from them wastes turns.
    With few `spare` turns it fails because of that long before it notices, and can learn not to."""
    rules: bool = False
    """Whether the prompt states the rules, for models that read English; else it is only the first key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_range(self, 1, 128, "steps")
        demand_range(self, 1, 99, "largest")
        if self.spare < 0:
            raise ValueError(f"spare: must be at least 0, not {self.spare}")
        demand_range(self, 0, 1, "detours")

    @property
    def turns(self) -> int:
        return self.steps + 1 + self.spare

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """In characters: an action, its end, and the longest reply, for each turn; and room for a whole
        turn."""
        return 10 * self.turns + self.turn_tokens

    def draw(self, split: Split, rng: random.Random) -> Problem:
        keys = chain(rng, self.steps, self.largest)
        draw = number_of(str(keys))
        table = "".join(chr(ord("a") + draw // 26**power % 26) for power in range(5))
        carries = sum(a // 10 != b // 10 for a, b in itertools.pairwise(keys))
        return Problem(
            f"{table}-{keys[0]}",
            f"{RULES.format(turns=self.turns) if self.rules else ''}table {table} start {keys[0]}\n",
            {"keys": keys, "table": table},
            {
                "difficulty": float(self.steps),
                "category": f"{self.steps} steps",
                "carries": float(carries),
            },
        )

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        action = read(turns[-1])
        if action is None:
            return MALFORMED
        verb, number = action
        return None if verb == "=" else look_up(problem, number, self.largest)

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        """Grade answers, each an episode of one turn."""
        return self.verify_episodes(problem, [[text] for text in completions])

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        return [grade(problem, turns) for turns in episodes]

    def demonstrate(self, problem: Problem) -> str:
        """The answer alone."""
        return f"={problem.truth['keys'][-1]}"

    def corrupt(self, problem: Problem) -> str:
        return f"={problem.truth['keys'][-1] + 1}"

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        return (f"={answer}",)

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        *keys, _ = problem.truth["keys"]
        table = problem.truth["table"]
        twice = [number_of(f"{table}/{i}/twice") < self.detours * 2**64 for i in range(len(keys))]
        looks = [f"?{key}" for key, again in zip(keys, twice, strict=True) for _ in range(1 + again)]
        return (*looks, self.demonstrate(problem))


@dataclass(frozen=True)
class Horizon1(Horizon):
    """One look-up."""

    name = "horizon-1"
    steps: int = 1


@dataclass(frozen=True)
class Horizon16(Horizon):
    """Sixteen look-ups."""

    name = "horizon-16"
    steps: int = 16


@dataclass(frozen=True)
class Horizon64(Horizon):
    """Sixty-four look-ups."""

    name = "horizon-64"
    steps: int = 64


def read(turn: str) -> tuple[str, int] | None:
    """The verb and number of an action; None for anything else."""
    match = ACTION.fullmatch(turn.strip())
    return (match[1], int(match[2])) if match else None


def look_up(problem: Problem, key: int, largest: int) -> str:
    """The tool's reply: the table's entry for a key."""
    keys: list[int] = problem.truth["keys"]
    if key in keys[:-1]:
        index = keys.index(key)
        end = "!" if index == len(keys) - 2 else ""
        return f"{keys[index + 1] - key:+d}{end}\n"
    change = astray(problem.truth["table"], key, largest) if LOWEST <= key <= HIGHEST else None
    return MISSING if change is None else f"{change:+d}\n"


def astray(table: str, key: int, largest: int) -> int | None:
    """A table's entry for a key outside of the chain: None for about half of them, else a change derived from
    a hash."""
    draw = number_of(f"{table}/{key}")
    if draw % 2:
        return None
    size = 1 + (draw >> 2) % largest
    return size if draw >> 1 & 1 else -size


def grade(problem: Problem, turns: Sequence[str]) -> Verdict:
    """`correct`: the answer is the end of the chain. `progress`: the share of the chain that was looked up in
    order. `format`: the share of turns with a well-formed action."""
    keys: list[int] = problem.truth["keys"]
    actions = [read(turn) for turn in turns]
    reached, answer = 0, None
    for action in actions:
        if action == ("?", keys[reached]) and reached < len(keys) - 1:
            reached += 1
        elif action and action[0] == "=":
            answer = action[1]
            break
    scores = {
        "correct": float(answer == keys[-1]),
        "progress": reached / (len(keys) - 1),
        "format": sum(action is not None for action in actions) / max(1, len(turns)),
    }
    if answer is None:
        return Verdict(scores, None, "unparsable")
    return Verdict(scores, str(answer))


def chain(rng: random.Random, steps: int, largest: int) -> list[int]:
    """Different keys, each at most `largest` from the one before. A chain without a free next key goes back
    some steps, and begins anew if that has not helped for long."""
    while True:
        keys = [rng.randint(LOWEST, HIGHEST)]
        for _ in range(20 * steps):
            if len(keys) > steps:
                return keys
            key = keys[-1] + rng.choice((-1, 1)) * rng.randint(1, largest)
            if LOWEST <= key <= HIGHEST and key not in keys:
                keys.append(key)
            elif rng.random() < 0.5 / largest:
                del keys[max(1, len(keys) - rng.randint(1, 2 * largest)) :]
