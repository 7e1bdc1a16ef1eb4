"""A chain of look-ups and multiplications through tools, with luck and prices for every turn, and an oracle
for the value of a state."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from grpobench.tasks.data.tools import Tool, ToolCall
from grpobench.tasks.kinds.generated import demand_range
from grpobench.tasks.kinds.tool_use import ToolUse, TurnRecord, World, tool
from grpobench.tasks.kinds.written import ALPHABET, number_of
from grpobench.tasks.task import Problem, Split, Verdict

MODULUS = 997
"""A prime, so that keys from 1 to 996 stay in that range."""
DISTRACTORS = {"@": "clock", "&": "weather", "%": "rates", "$": "archive"}
"""Tools that no problem needs, by their short sign."""
RULES = """\
You follow a chain of keys through a table. The tool lookup gives the value of a key, and the tool \
calculator multiplies the key and that value modulo 997, which is the next key. A reply that ends in ! is \
the last one: call the tool answer with its number. Call one tool in each turn, and write nothing without a \
call. You have {turns} turns."""
LUCK = " Each call takes a ticket, a letter from a to h, which wins or loses {luck:g}."
PRICE = " Each call before the answer costs {price:g}."


@dataclass(frozen=True)
class Tools(ToolUse):
    """Look up ``?412``, read ``37``, multiply ``*412 37``, read ``289``, look up ``?289``, …, answer ``=…``.

    Every step needs the reply to the one before. The table is a hash that no policy can know, and keys off
    the chain have no value. Distractors reply with numbers of the same form.
    """

    name = "tools"
    source = "generated from a seed by grpobench.tasks.tools (Apache-2.0)"
    summary = "a calculator and a table over 2 to 16 turns, with luck, prices, distractors and an oracle"
    scores = (*ToolUse.scores, "earned", "return")
    reward: ClassVar[Mapping[str, float]] = {"return": 1.0}
    ending = "answer"
    horizon: int = 4
    """Turns of the reference, the answer included; from 2 to 16."""
    luck: float = 0.0
    """Reward that each call wins or loses. With luck, a call ends with a ticket, a letter from a to h. Half
    of a turn's letters win; which ones is a hash of problem and turn."""
    price: float = 0.0
    """Reward that each call before the answer costs."""
    distractors: int = 0
    """Tools that no problem needs, from 0 to 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_range(self, 2, 16, "horizon")
        demand_range(self, 0, 100, "luck", "price")
        demand_range(self, 0, len(DISTRACTORS), "distractors")

    @property
    def turns(self) -> int:
        return self.horizon + self.spare

    @property
    def turn_tokens(self) -> int:  # type: ignore[override]
        return 12 if self.notation == "short" else 128

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """In the short notation in characters: an action, its end and the longest reply for each turn, and
        room for a whole turn."""
        return (33 if self.notation == "short" else 192) * self.turns + self.turn_tokens

    @property
    def call_price(self) -> float:
        return self.price

    @cached_property
    def toolbox(self) -> Mapping[str, Tool]:
        number = {"type": "integer"}
        ticket = {"ticket": {"type": "string", "enum": list(ALPHABET)}} if self.luck else {}
        tools = {
            "?": tool("lookup", "The value of a key in the table.", key=number, **ticket),
            "*": tool("calculator", "The product of a and b modulo 997.", a=number, b=number, **ticket),
            "=": tool("answer", "Ends the task with the last number.", number=number),
        }
        for sign, name in list(DISTRACTORS.items())[: self.distractors]:
            tools[sign] = tool(name, f"The number of the {name} for a key.", key=number, **ticket)
        return tools

    def draw(self, split: Split, rng: random.Random) -> Problem:
        rules = RULES.format(turns=self.turns)
        rules += LUCK.format(luck=self.luck) if self.luck else ""
        rules += PRICE.format(price=self.price) if self.price else ""
        table = "".join(rng.choices(string.ascii_lowercase, k=5))
        start = rng.randint(100, MODULUS - 1)
        prompt = self.prompt(f"table {table} start {start}\n", rules, f"Table {table}, first key {start}.")
        return Problem(
            f"{table}-{start}",
            prompt,
            truth(table, start, self.horizon),
            {"difficulty": float(self.horizon), "category": f"{self.horizon} turns"},
        )

    def world(self, problem: Problem) -> World:
        return Chain(problem, self.luck)

    def reference(self, problem: Problem) -> Sequence[ToolCall]:
        rng = random.Random(number_of(problem.id, "tickets"))
        calls = [ToolCall(*call) for call in problem.truth["calls"]]
        end = ToolCall(self.ending, {"number": problem.truth["answer"]})
        return [*(self.ticketed(call, rng) for call in calls), end]

    def ticketed(self, call: ToolCall, rng: random.Random) -> ToolCall:
        if not self.luck or call.name == self.ending:
            return call
        return replace(call, arguments={**call.arguments, "ticket": rng.choice(ALPHABET)})

    def idle_call(self, problem: Problem, rng: random.Random) -> ToolCall:
        """A distractor or, half of the time and without distractors, a key that is not on the chain."""
        keys = {arguments["key"] for name, arguments in problem.truth["calls"] if name == "lookup"}
        key = rng.choice([key for key in range(1, MODULUS) if key not in keys])
        names = list(DISTRACTORS.values())[: self.distractors]
        return ToolCall(rng.choice(names) if names and rng.random() < 0.5 else "lookup", {"key": key})

    def demonstrate(self, problem: Problem) -> str:
        """The answer alone."""
        return self.written_answer(problem.truth["answer"])

    def corrupt(self, problem: Problem) -> str:
        return self.written_answer(problem.truth["answer"] % (MODULUS - 1) + 1)

    def _grade(self, problem: Problem, steps: Sequence[tuple[World, TurnRecord]], turns: int) -> Verdict:
        verdict = super()._grade(problem, steps, turns)
        rewards = [step.luck - self.price * step.calls for _, step in steps]
        earned = sum(rewards)
        scores = {**verdict.scores, "earned": earned, "return": verdict.scores["correct"] + earned}
        return replace(verdict, scores=scores, turn_rewards=(*rewards, *[0.0] * (turns - len(steps))))

    def read(self, turn: str) -> list[ToolCall | str]:
        calls = super().read(turn)
        return calls if len(calls) == 1 else ["more than one call in a turn"]


class Chain(World):
    """How far a chain was followed in order."""

    def __init__(self, problem: Problem, luck: float) -> None:
        self.problem, self.luck_of_call = problem, luck
        self.chain = [ToolCall(*call) for call in problem.truth["calls"]]
        self.reached = 0

    @property
    def remaining(self) -> int:
        return len(self.chain) - self.reached + 1

    def call(self, call: ToolCall, turn: int) -> str:
        arguments = dict(call.arguments)
        if call.name == "answer":
            self.ended = True
            self.answer = str(arguments["number"])
            self.correct = arguments["number"] == self.problem.truth["answer"]
            return self.answer
        ticket = arguments.pop("ticket", None)
        # A policy that multiplies in its head may skip the calculator.
        for index in (self.reached, self.reached + 1):
            if self.chain[index : index + 1] == [ToolCall(call.name, arguments)]:
                self.reached = index + 1
                break
        reply = self._number(call.name, arguments)
        if self.reached == len(self.chain) and self.chain[-1] == ToolCall(call.name, arguments):
            reply += "!"
        return reply if ticket is None else reply + self._draw(ticket, turn)

    def _number(self, name: str, arguments: Mapping[str, int]) -> str:
        table = self.problem.truth["table"]
        if name == "calculator":
            return str(arguments["a"] * arguments["b"] % MODULUS)
        if name == "lookup":
            keys = [call.arguments["key"] for call in self.chain if call.name == "lookup"]
            return str(value_of(table, arguments["key"])) if arguments["key"] in keys else "none"
        return str(10 + number_of(table, name, arguments["key"]) % 90)

    def _draw(self, ticket: str, turn: int) -> str:
        """The sign of a ticket, which half of the letters win."""
        wins = ticket in winners(self.problem.id, turn)
        self.luck += self.luck_of_call if wins else -self.luck_of_call
        return "+" if wins else "-"


@lru_cache(1 << 16)  # an episode is replayed after each of its turns
def winners(problem: str, turn: int) -> frozenset[str]:
    """The letters that win in a turn of a problem, half of them."""
    order = random.Random(number_of(problem, "luck", turn)).sample(ALPHABET, len(ALPHABET))
    return frozenset(order[: len(order) // 2])


def value_of(table: str, key: int) -> int:
    """The table's value of a key, from 10 to 99."""
    return 10 + number_of(table, key) % 90


def followed(table: str, key: int) -> Iterator[tuple[ToolCall, int]]:
    """The calls of the chain from a key, with their replies."""
    while True:
        value = value_of(table, key)
        yield ToolCall("lookup", {"key": key}), value
        product = key * value % MODULUS
        yield ToolCall("calculator", {"a": key, "b": value}), product
        key = product


def truth(table: str, start: int, horizon: int) -> dict[str, Any]:
    """What a problem's verdict and values need: its table, the calls of its chain, the answer."""
    chain = [step for step, _ in zip(followed(table, start), range(horizon - 1), strict=False)]
    calls = [[call.name, dict(call.arguments)] for call, _ in chain]
    return {"table": table, "calls": calls, "answer": chain[-1][1]}
