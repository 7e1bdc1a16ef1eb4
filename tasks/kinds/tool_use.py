"""Tasks that a policy solves with tools, written in a few characters or as calls with a JSON schema, with an
oracle for the value of a state."""

# An episode is replayed from the policy's turns: a world begins as the problem says and takes one call after
# the other. So a reply, a verdict and a value depend on the problem and the turns alone.

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, NamedTuple

from grpobench.tasks.data.messages import Message, Prompt
from grpobench.tasks.data.tools import MOST_CALLS, Tool, ToolCall, parse_turn
from grpobench.tasks.kinds.generated import Drawn, demand_range
from grpobench.tasks.task import Problem, Reply, Verdict
from grpobench.tasks.thoughts import without_thoughts

Move = Literal["right", "wasted", "malformed", "wrong"]
"""What a turn does: it is the next step of a shortest solution, it changes nothing, it has no call that can
be read, or it ends the episode wrongly."""
INTEGER: Final = re.compile(r"-?[0-9]{1,6}")
MOST_DIGITS: Final = 6
ERROR: Final = "error: "
"""How the reply to a malformed or failed call begins."""


class Chances(NamedTuple):
    """A policy by the chance of each of its moves, in every turn the same."""

    right: float
    wasted: float = 0.0
    malformed: float = 0.0
    wrong: float = 0.0


@lru_cache(1 << 16)
def expected(policy: Chances, price: float, remaining: int, left: int) -> float:
    """Expected sum of rewards to come: 1 for a right end, −`price` for each call before it, none for luck,
    whose mean is 0. `remaining` turns of a shortest solution are missing, its end included, and the policy
    has `left` turns."""
    if not left:
        return 0.0
    same = expected(policy, price, remaining, left - 1)
    ahead = 1.0 if remaining <= 1 else expected(policy, price, remaining - 1, left - 1) - price
    return policy.right * ahead + policy.wasted * (same - price) + policy.malformed * same


class World(ABC):
    """The state of an episode. Calls change it."""

    ended = False
    """Whether the call that ends the episode was made."""
    correct = False
    answer: str | None = None
    luck = 0.0
    """Sum of the rewards that depend on nothing that can be learned."""

    @property
    @abstractmethod
    def remaining(self) -> int:
        """Turns of a shortest solution from here, its end included; at least 1."""

    @abstractmethod
    def call(self, call: ToolCall, turn: int) -> str:
        """The tool's reply. `turn` counts from 0. Raises ValueError with the reason of a failure."""


@dataclass(frozen=True)
class TurnRecord:
    """What a turn led to."""

    move: Move
    replies: tuple[str, ...]
    """One for each call that was made or could not be read."""
    calls: int
    """Calls that could be read, without the one that ends the episode."""
    errors: int
    """Calls that could not be read or failed."""
    remaining: int
    """Turns of a shortest solution after it; 0 at the end of the episode."""
    luck: float


@dataclass(frozen=True)
class ToolUse(Drawn):
    """A task with tools. The shares `wasted`, `malformed` and `wrong` describe its base policy, which draws
    episodes for warm starts and whose value is known."""

    scores: ClassVar[tuple[str, ...]] = ("correct", "progress", "calls", "errors")
    turn_end = "\n"
    ending: ClassVar[str]
    """Name of the tool that ends the episode."""
    notation: Literal["short", "tools"] = "short"
    """How calls are written: `short` in a few characters, for the nano policies, or as calls of `tools`, for
    language models. The problems are the same."""
    spare: int = 4
    """Turns beyond those of the longest reference, for mistakes; at most 16."""
    wasted: float = 0.0
    """Share of turns in drawn episodes with a call that changes nothing."""
    malformed: float = 0.0
    """Share of turns in drawn episodes that cannot be read."""
    wrong: float = 0.0
    """Share of turns in drawn episodes that end the episode wrongly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_range(self, 0, 16, "spare")
        demand_range(self, 0, 1, "wasted", "malformed", "wrong")
        if self.wasted + self.malformed + self.wrong > 1 + 1e-9:
            raise ValueError("wasted: with malformed and wrong it must be at most 1")

    @property
    def base(self) -> Chances:
        """The policy that draws episodes."""
        right = max(0.0, 1 - self.wasted - self.malformed - self.wrong)
        return Chances(right, self.wasted, self.malformed, self.wrong)

    @property
    @abstractmethod
    def toolbox(self) -> Mapping[str, Tool]:
        """The tools by the character that stands for each in the short notation."""

    @abstractmethod
    def world(self, problem: Problem) -> World:
        """The state in which the problem's episodes begin."""

    @abstractmethod
    def reference(self, problem: Problem) -> Sequence[ToolCall]:
        """The calls of a shortest solution by a policy that knows nothing but the prompt, one a turn."""

    @abstractmethod
    def idle_call(self, problem: Problem, rng: random.Random) -> ToolCall:
        """A call that changes nothing and tells nothing."""

    def read(self, turn: str) -> list[ToolCall | str]:
        """The calls of a turn with checked arguments; for a malformed one the reason."""
        if self.notation == "tools":
            parsed = parse_turn(turn)
            tools = {tool.name: tool for tool in self.toolbox.values()}
            calls = [checked(tools, call) for call in parsed.calls]
            return [*calls, *parsed.faults] or ["no call of a tool"]
        texts = turn.strip().split(";", MOST_CALLS)
        if len(texts) > MOST_CALLS:
            return [f"more than {MOST_CALLS} calls in one turn"]
        return [read_short(self.toolbox, text.strip()) for text in texts]

    def write(self, *calls: ToolCall) -> str:
        """A turn with these calls."""
        if self.notation == "tools":
            return "\n".join(map(str, calls))
        sign_of = {tool.name: sign for sign, tool in self.toolbox.items()}
        return ";".join(sign_of[c.name] + " ".join(map(str, c.arguments.values())) for c in calls)

    def prompt(self, short: str, rules: str, request: str) -> Prompt:
        """The prompt in the task's notation."""
        if self.notation == "short":
            return short
        return Message("system", rules, tuple(self.toolbox.values())), Message("user", request)

    # Episodes

    def steps(self, problem: Problem, turns: Sequence[str]) -> Iterator[tuple[World, TurnRecord]]:
        """Replay an episode up to its end: the world after each turn, and what the turn led to."""
        world = self.world(problem)
        for number, turn in enumerate(turns):
            if world.ended:
                return
            remaining, luck, replies, calls, errors = world.remaining, world.luck, [], 0, 0
            # Replies and verdicts get turns without thoughts, but values do not.
            for call in self.read(without_thoughts(turn)):
                if world.ended:
                    break
                if isinstance(call, ToolCall):
                    calls += call.name != self.ending
                try:
                    replies.append(demand_call(call, world, number))
                except ValueError as error:
                    errors += 1
                    replies.append(f"{ERROR}{error}")
            move: Move = "wasted" if calls else "malformed"
            if world.ended or world.remaining < remaining:
                move = "wrong" if world.ended and not world.correct else "right"
            after = 0 if world.ended else world.remaining
            yield world, TurnRecord(move, tuple(replies), calls, errors, after, world.luck - luck)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply | None:
        steps = [step for _, step in self.steps(problem, turns)]
        if len(steps) < len(turns) or not steps[-1].remaining:
            return None
        if self.notation == "tools":
            return tuple(Message("tool", text) for text in steps[-1].replies)
        return ";".join(steps[-1].replies) + "\n"

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        """Grade completions, each an episode of one turn."""
        return self.verify_episodes(problem, [[text] for text in completions])

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        return [self._grade(problem, [*self.steps(problem, turns)], len(turns)) for turns in episodes]

    def _grade(self, problem: Problem, steps: Sequence[tuple[World, TurnRecord]], turns: int) -> Verdict:
        begin = self.world(problem)
        world = steps[-1][0] if steps else begin
        scores = {
            "correct": float(world.correct),
            "progress": max(0.0, (begin.remaining - world.remaining) / max(1, begin.remaining - 1)),
            "calls": float(sum(step.calls for _, step in steps)),
            "errors": float(sum(step.errors for _, step in steps)),
        }
        return Verdict(scores, world.answer, "graded" if world.ended else "unparsable")

    def right_besides(self, problem: Problem, episode: Sequence[str]) -> bool:
        return any(world.correct for world, _ in self.steps(problem, episode))

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        return (*self.demonstrate_episode(problem)[:-1], self.written_answer(answer))

    def written_answer(self, answer: str) -> str:
        """A turn that ends the episode with this answer."""
        tool = next(tool for tool in self.toolbox.values() if tool.name == self.ending)
        return self.write(ToolCall(self.ending, dict.fromkeys(tool.parameters["properties"], answer)))

    # Demonstrations

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        return [self.write(call) for call in self.reference(problem)]

    def draw_episode(self, problem: Problem, rng: random.Random) -> Sequence[str]:
        missing = list(self.reference(problem))
        turns: list[str] = []
        while missing and len(turns) < self.turns:
            move = rng.choices(Chances._fields, self.base)[0]
            if move == "wrong":
                return [*turns, str(self.corrupt(problem))]
            if move == "malformed":
                turns.append("<tool_call>{</tool_call>" if self.notation == "tools" else "!")
                continue
            call = missing.pop(0) if move == "right" else self.idle_call(problem, rng)
            turns.append(self.write(self.ticketed(call, rng)))
        return turns

    def ticketed(self, call: ToolCall, rng: random.Random) -> ToolCall:
        """A call with what of it is free drawn at random."""
        return call

    # The oracle

    @property
    def call_price(self) -> float:
        """Reward that each call costs."""
        return 0.0

    def values(
        self, problem: Problem, turns: Sequence[str], policy: Chances | None = None
    ) -> tuple[float, ...]:
        """The expected sum of rewards to come before the first turn and after each, for a policy with these
        chances, by default the base policy: exact wherever its wasted calls change nothing."""
        return self._values(problem, [step for _, step in self.steps(problem, turns)], len(turns), policy)

    def credits(
        self, problem: Problem, turns: Sequence[str], policy: Chances | None = None
    ) -> tuple[float, ...]:
        """What each turn is worth: its reward without luck, plus the value after it, minus the value before.
        The credits and the value before the first turn add up to the return without luck."""
        replayed = [*self.steps(problem, turns)]
        values = self._values(problem, [step for _, step in replayed], len(turns), policy)
        rewards = [
            (not step.remaining and world.correct) - self.call_price * step.calls for world, step in replayed
        ]
        rewards += [0.0] * (len(turns) - len(rewards))
        return tuple(
            reward + after - before
            for reward, before, after in zip(rewards, values[:-1], values[1:], strict=True)
        )

    def _values(
        self, problem: Problem, steps: Sequence[TurnRecord], turns: int, policy: Chances | None
    ) -> tuple[float, ...]:
        remaining = [self.world(problem).remaining, *(step.remaining for step in steps)]
        remaining += [0] * (1 + turns - len(remaining))
        return tuple(
            expected(policy or self.base, self.call_price, count, max(0, self.turns - number))
            if count
            else 0.0
            for number, count in enumerate(remaining)
        )

    def measured(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> Chances:
        """The shares of moves in episodes of a problem. Raises ValueError without any turn."""
        moves = [step.move for turns in episodes for _, step in self.steps(problem, turns)]
        if not moves:
            raise ValueError("no turns to measure a policy by")
        return Chances(*(moves.count(move) / len(moves) for move in Chances._fields))  # type: ignore[arg-type]


def demand_call(call: ToolCall | str, world: World, turn: int) -> str:
    """The reply to a call, never empty. Raises ValueError with the reason if it is malformed or fails."""
    if isinstance(call, str):
        raise ValueError(call)
    return world.call(call, turn) or "empty"


def read_short(toolbox: Mapping[str, Tool], text: str) -> ToolCall | str:
    """A call in the short notation: a character for the tool, then the arguments with spaces between them.
    The last one may have spaces itself."""
    tool = toolbox.get(text[:1])
    if tool is None:
        return "not an action"
    names = list(tool.parameters["properties"])
    values = text[1:].split(" ", len(names) - 1) if names else [text[1:]] if text[1:] else []
    if len(values) != len(names):
        return "not an action"
    return checked({tool.name: tool}, ToolCall(tool.name, dict(zip(names, values, strict=True))))


def checked(tools: Mapping[str, Tool], call: ToolCall) -> ToolCall | str:
    """A call whose arguments follow the tool's schema, in its order; otherwise the reason."""
    if (tool := tools.get(call.name)) is None:
        return f"no tool {call.name!r:.40}; there are {', '.join(tools)}"
    properties: Mapping[str, Mapping[str, Any]] = tool.parameters["properties"]
    if set(call.arguments) != set(properties):
        return f"{call.name} takes {', '.join(properties) or 'no arguments'}"
    try:
        arguments = {name: argument(name, call.arguments[name], kind) for name, kind in properties.items()}
    except ValueError as error:
        return str(error)
    return ToolCall(call.name, arguments)


def argument(name: str, value: Any, kind: Mapping[str, Any]) -> int | str:
    """An argument as its schema wants it; digits in a text are a number. Raises ValueError with the
    reason."""
    if kind["type"] == "integer":
        if isinstance(value, bool) or not INTEGER.fullmatch(text := str(value)[: MOST_DIGITS + 2]):
            raise ValueError(f"{name} must be an integer of at most {MOST_DIGITS} digits")
        return int(text)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string")
    if "enum" in kind and value not in kind["enum"]:
        raise ValueError(f"{name} must be one of {', '.join(kind['enum'])}")
    return value


def tool(name: str, description: str, **properties: Mapping[str, Any]) -> Tool:
    """A tool that requires all of its arguments."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return Tool(name, description, schema)
