"""Play episodes of other people's environments, in the workers of `grpobench.tasks.kinds.environment`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import random
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from grpobench.tasks.data.messages import Message, parse_messages
from grpobench.tasks.data.tools import Tool, Turn, parse_turn
from grpobench.tasks.workers.folders import import_from
from grpobench.tasks.workers.pool import WALL_PER_CPU

MOST_CHARACTERS: Final = 100_000
"""Characters of a reply, and of a prompt."""
ROWS_BYTES: Final = 2**28
"""Size of the problems of a split, as JSON."""
NEEDED: Final = ("problems", "reset", "step")
"""Methods that an environment must have."""
REPLY_ROLES: Final = ("user", "tool")
SILENCE: Final = "none"
"""The reply of a tool that returned an empty text."""


class Environment(Protocol):
    """What a class must have to be a task, ``env:module:Class``. It needs no base class.

    Optional class attributes are defaults of the task's settings: `name`, `turns`, `turn_tokens`, `turn_end`,
    `max_completion_tokens`, `step_seconds`, and `scores`, the names of what `grade` returns. Optional
    methods:

    - `grade()`: the scores at the end of an episode by name, among them `correct` from 0 to 1, and `return`
      if it is not the sum of the rewards. The last turn then earns the rest.
    - `demonstrate(problem)`: the policy's turns of an episode that solves it.
    - `close()`.
    - `prepare(**arguments)`, a class method: called before any episode, for what takes long to load.

    An object plays one episode. Its randomness must follow from `seed`, because an episode is replayed from
    the policy's turns; `random` and NumPy's global generator are seeded before each call."""

    def problems(self, split: str) -> Iterable[Mapping[str, Any]]:
        """The problems of ``train``, ``validation`` or ``test``, as tables of JSON. Known keys are `id`, and
        `category`, `difficulty` and `cluster` for reports."""
        ...

    def reset(self, problem: Mapping[str, Any], seed: int) -> tuple[str | Sequence[Any], Sequence[Tool]]:
        """Begin an episode: (prompt, tools). The prompt is a text or messages, the last one of the user."""
        ...

    def step(self, turn: Turn) -> tuple[str | Sequence[Any] | None, float, bool]:
        """(reply, reward, done) to a turn of the policy. The reply is a text, or messages of `user` and
        `tool`; nobody reads it if the episode is done."""
        ...


class EnvironmentFault(Exception):
    """What an environment did wrong. The message names class and method."""


@dataclass
class LiveEpisode:
    """An episode as far as it was played."""

    environment: Any
    seed: int
    prompt: Sequence[Message]
    tools: Sequence[Tool]
    replies: list[list[list[str]]] = field(default_factory=list)
    """Role and content of each message, by turn; the reply to a turn that ends the episode is empty."""
    rewards: list[float] = field(default_factory=list)
    done: bool = False
    scores: dict[str, float] | None = None
    """What `grade` returned."""


def player(
    environment: str, adapter: str, folder: str, arguments: Mapping[str, Any], seconds: float, live: int
) -> Callable[..., Any]:
    """The function that the pool's workers run: it does what a question's `do` says, and returns ``value`` or
    ``fault``. An adapter is a class that makes an environment of what `environment` names."""
    module, _, name = environment.partition(":")
    cls = definition = getattr(import_from(module, Path(folder)), name)
    first: tuple[Any, ...] = ()
    if adapter:
        adapter_module, _, adapter_name = adapter.partition(":")
        cls, first = getattr(import_from(adapter_module, None), adapter_name), (definition,)
    if hasattr(cls, "prepare"):
        cls.prepare(*first, **arguments)
    make = partial(cls, *first, **arguments)
    return Player(label(environment, adapter), make, seconds, definition.__module__, live).answer


def label(environment: str, adapter: str) -> str:
    """An environment's name in messages: its class or, with an adapter, its module."""
    module, _, name = environment.rpartition(":")
    return module if adapter else name


class Player:
    """Plays episodes of environments that `new` makes. `seconds` of CPU limit each call of a method, and
    `WALL_PER_CPU` times as many seconds on the clock: a signal without a handler then ends the process."""

    def __init__(
        self, name: str, new: Callable[[], Any], seconds: float, module: str, most_live: int
    ) -> None:
        self.name, self.new, self.seconds, self.most_live = name, new, seconds, most_live
        self.file = getattr(sys.modules.get(module), "__file__", None) or ""
        self.live: OrderedDict[tuple[str, int, tuple[str, ...]], LiveEpisode] = OrderedDict()
        """Episodes by problem, seed and the policy's turns."""

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        jobs: dict[str, Callable[..., Any]] = {
            "rows": self.rows,
            "start": self.start,
            "reply": self.reply,
            "grade": self.grade,
            "replay": self.replay,
            "demonstrate": self.demonstrate,
        }
        try:
            return {"value": jobs[question["do"]](**{k: v for k, v in question.items() if k != "do"})}
        except EnvironmentFault as fault:
            return {"fault": str(fault)}

    # What is asked

    def rows(self, split: str, seconds: float) -> list[tuple[str, Mapping[str, Any]]]:
        """(id, problem) of a split."""
        environment = self.make(seconds)
        rows = self.call(environment, "problems", split, seconds=seconds, collect=True)
        by_id: dict[str, Mapping[str, Any]] = {}
        size = 0
        for number, row in enumerate(rows, 1):
            if not isinstance(row, Mapping):
                raise self.fault(
                    "problems", f"returned {described(row)} as problem {number}, expected a table"
                )
            try:
                text = json.dumps(dict(row), sort_keys=True, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise self.fault(
                    "problems", f"returned problem {number}, which is no JSON: {error}"
                ) from None
            size += len(text)
            if size > ROWS_BYTES:
                raise self.fault("problems", f"returned more than {ROWS_BYTES:,} bytes")
            name = str(row.get("id", hashlib.sha256(text.encode()).hexdigest()[:16]))
            if name in by_id:
                raise self.fault("problems", f"returned two problems with the id {name!r:.80}")
            by_id[name] = json.loads(text)
        return list(by_id.items())

    def start(self, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The prompt and the tools of a problem."""
        episode = self.begin(row, seed)
        self.close(episode)
        return {"prompt": packed(episode.prompt), "tools": [vars(tool) for tool in episode.tools]}

    def reply(self, **where: Any) -> list[list[str]] | None:
        """The reply to the last turn; None if the episode is done."""
        episode = self.advance(**where)
        return None if episode.done else episode.replies[-1]

    def grade(self, **where: Any) -> dict[str, Any]:
        """The reward of each turn and the scores. Turns behind the end of an episode earn nothing."""
        episode = self.advance(**where)
        scores = self.score(episode)
        rewards = episode.rewards + [0.0] * (len(where["turns"]) - len(episode.rewards))
        if "return" in scores and rewards:
            rewards[-1] += scores["return"] - sum(rewards)
        return {"rewards": rewards, "scores": scores}

    def replay(self, row: Mapping[str, Any], seed: int, turns: Sequence[str]) -> list[Any]:
        """All that can be seen of an episode that is played from its beginning."""
        episode = self.begin(row, seed)
        for turn in turns:
            self.step(episode, turn)
        self.score(episode)
        self.close(episode)
        steps = zip(episode.replies, episode.rewards, strict=True)
        return [packed(episode.prompt), *steps, episode.done, episode.scores]

    def demonstrate(self, row: Mapping[str, Any]) -> list[str] | None:
        """The policy's turns of a reference episode; None without such a method."""
        environment = self.make()
        if not hasattr(environment, "demonstrate"):
            return None
        turns = self.call(environment, "demonstrate", row, collect=True)
        if not turns:
            raise self.fault("demonstrate", "returned no turns")
        return [str(turn) for turn in turns]

    # Episodes

    def advance(self, id: str, row: Mapping[str, Any], seed: int, turns: Sequence[str]) -> LiveEpisode:
        """The episode after these turns: the live one if there is one, else the live one of the first turns
        continued, else a replay. An episode that was continued is no longer one of fewer turns."""
        everything = tuple(turns)
        played = len(everything)
        while played >= 0 and (id, seed, everything[:played]) not in self.live:
            played -= 1
        # Popped: if a step fails, nothing is left of the episode.
        episode = self.live.pop((id, seed, everything[:played])) if played >= 0 else self.begin(row, seed)
        try:
            for turn in everything[max(0, played) :]:
                self.step(episode, turn)
        except EnvironmentFault:
            self.close(episode)
            raise
        self.live[id, seed, everything] = episode
        return episode

    def begin(self, row: Mapping[str, Any], seed: int) -> LiveEpisode:
        while len(self.live) >= self.most_live:  # Before it begins: a server may have few sessions.
            self.close(self.live.popitem(last=False)[1])
        environment = self.make()
        seed_everything(f"{seed}")
        returned = self.call(environment, "reset", json.loads(json.dumps(row)), seed)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise self.fault("reset", f"returned {described(returned)}, expected (prompt, tools)")
        prompt, tools = returned
        if not isinstance(tools, list | tuple) or not all(isinstance(tool, Tool) for tool in tools):
            raise self.fault("reset", f"returned the tools {described(tools)}, expected a list of Tool")
        try:
            json.dumps([vars(tool) for tool in tools])
            messages = parse_messages([Message("user", prompt)] if isinstance(prompt, str) else prompt)
        except (TypeError, ValueError) as error:
            raise self.fault("reset", f"returned a prompt or tools that are malformed: {error}") from None
        self.demand_size("reset", "a prompt", messages)
        return LiveEpisode(environment, seed, messages, tools)

    def step(self, episode: LiveEpisode, text: str) -> None:
        """Play one turn. The environment does not see a turn with malformed calls: the reply is what is wrong
        with them."""
        if episode.done:
            return
        turn = parse_turn(text)
        if errors := call_errors(turn, episode.tools):
            episode.replies.append([["tool", f"error: {error}"] for error in errors])
            episode.rewards.append(0.0)
            return
        seed_everything(f"{episode.seed}/{len(episode.replies)}")
        returned = self.call(episode.environment, "step", turn)
        if not isinstance(returned, tuple) or len(returned) != 3:
            raise self.fault("step", f"returned {described(returned)}, expected (reply, reward, done)")
        reply, reward, done = returned
        if not isinstance(done, bool) and type(done).__name__ not in ("bool", "bool_"):
            raise self.fault("step", f"returned done = {described(done)}, expected True or False")
        episode.rewards.append(self.number("step", "the reward", reward))
        episode.done = bool(done)
        episode.replies.append([] if done else packed(self.messages(reply)))

    def messages(self, reply: Any) -> list[Message]:
        """A reply of `step` as messages."""
        parts = [Message("user", reply)] if isinstance(reply, str) else reply
        if not isinstance(parts, list | tuple):
            raise self.fault("step", f"returned the reply {described(reply)}, expected a text or messages")
        messages = []
        for part in parts:
            fields = vars(part) if isinstance(part, Message) else part
            if not isinstance(fields, Mapping) or not {"role", "content"} <= fields.keys():
                raise self.fault("step", f"returned the message {described(part)}, expected role and content")
            if fields["role"] not in REPLY_ROLES or not isinstance(fields["content"], str):
                raise self.fault(
                    "step", f"returned a message of {fields['role']!r:.40}, expected text of user or tool"
                )
            # What a tool returns may be empty, but a reply without tokens would join two turns into one.
            silent = fields["role"] == "tool" and not fields["content"]
            messages.append(Message(fields["role"], SILENCE if silent else fields["content"]))
        self.demand_size("step", "a reply", messages)
        if not messages or not all(message.content for message in messages):
            raise self.fault("step", "returned an empty reply before the end; return text, or done = True")
        return messages

    def score(self, episode: LiveEpisode) -> dict[str, float]:
        if episode.scores is not None:
            return episode.scores
        episode.scores = {}
        if hasattr(episode.environment, "grade"):
            scores = self.call(episode.environment, "grade")
            if not isinstance(scores, Mapping):
                raise self.fault("grade", f"returned {described(scores)}, expected scores by name")
            for name, score in scores.items():
                episode.scores[str(name)] = self.number("grade", f"the score {name}", score)
        return episode.scores

    def close(self, episode: LiveEpisode) -> None:
        if hasattr(episode.environment, "close"):
            with contextlib.suppress(EnvironmentFault):  # The episode is over, and its scores are known.
                self.call(episode.environment, "close")

    # Calls of the environment

    def make(self, seconds: float = 0.0) -> Any:
        return self.call(None, "", seconds=seconds)

    def call(
        self, environment: Any, method: str, *arguments: Any, seconds: float = 0.0, collect: bool = False
    ) -> Any:
        """Call a method, or the class if it is "". Exceptions become a EnvironmentFault."""
        signal.setitimer(signal.ITIMER_PROF, seconds or self.seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_PER_CPU * (seconds or self.seconds))
        try:
            if not method:
                return self.new()
            returned = getattr(environment, method)(*arguments)
            return list(returned) if collect else returned
        except MemoryError:
            raise
        except BaseException as error:  # SystemExit is an error like any other.
            raised = f"raised {type(error).__name__}: {error}"[:300] + self.line(error)
            raise self.fault(method, raised) from None

    def fault(self, method: str, complaint: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self.name}{f'.{method}' if method else '()'} {complaint}")

    def line(self, error: BaseException) -> str:
        """The last line of the environment's file that an error went through."""
        trace, last = error.__traceback__, ""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.file:
                last = f" ({Path(self.file).name}:{trace.tb_lineno})"
            trace = trace.tb_next
        return last

    def number(self, method: str, name: str, value: Any) -> float:
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self.fault(method, f"returned {name} = {described(value)}, expected a finite number")
        return number

    def demand_size(self, method: str, kind: str, messages: Iterable[Message]) -> None:
        size = sum(len(message.content) for message in messages)
        if size > MOST_CHARACTERS:
            raise self.fault(method, f"returned {kind} of {size:,} characters, more than {MOST_CHARACTERS:,}")


def call_errors(turn: Turn, tools: Sequence[Tool]) -> list[str]:
    """What is wrong with the calls of a turn, for the policy to read."""
    if not tools:
        return []
    names = [tool.name for tool in tools]
    unknown = [call.name for call in turn.calls if call.name not in names]
    return [*turn.faults, *(f"no tool {name!r:.40}; the tools are {', '.join(names)}" for name in unknown)]


def packed(messages: Iterable[Message]) -> list[list[str]]:
    """Role and content of messages. Halves of characters, which no tokenizer reads, become question marks."""
    return [[message.role, message.content.encode("utf-8", "replace").decode()] for message in messages]


def described(value: Any) -> str:
    """A value in few characters; a long one is not written out."""
    if isinstance(value, str | bytes | list | tuple | dict | set) and len(value) > 8:
        return f"a {type(value).__name__} of length {len(value):,}"
    return f"{type(value).__name__} {value!r:.80}" if value is not None else "None"


def seed_everything(text: str) -> None:
    """Seed the global generators. Two episodes in one process would otherwise disturb each other."""
    random.seed(text)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]))
