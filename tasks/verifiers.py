"""Environments of the package `verifiers`, `verifiers:NAME`: problems from its data set, replies from its
`env_response`, scores from its rubric."""

# The environment's own `rollout` runs, with a client in place of an inference server: the client waits for a
# turn of the policy. What the environment asks for next is the reply. Everything runs in a worker process
# (`tasks/workers/environment.py`), which has one event loop.

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from grpobench.tasks.data.messages import Message
from grpobench.tasks.data.tables import Package
from grpobench.tasks.data.tools import Tool, ToolCall, Turn

PACKAGE: Final = Package("verifiers", "0.3.1", "verifiers", exact=False)
"""The last version with `env_response` and `load_environment`."""
LOAD: Final = "load_environment"
"""The function of an environment's module."""
POLICY: Final = "policy"


class Verifiers:
    """One episode. `return` is the rubric's reward, at the end of the episode; its metrics are scores. An
    episode is correct if its reward reaches the environment's `pass_threshold`."""

    turns = 10
    turn_tokens = 256
    max_completion_tokens = 2048

    @classmethod
    def prepare(cls, load: Callable[..., Any], **arguments: Any) -> None:
        """Load the environment and its data, once for all workers."""
        loaded(load, json.dumps(arguments))

    def __init__(self, load: Callable[..., Any], **arguments: Any) -> None:
        self.environment = loaded(load, json.dumps(arguments))

    def problems(self, split: str) -> Iterator[dict[str, Any]]:
        environment = self.environment
        tested = environment.eval_dataset is not None
        if environment.dataset is not None:
            rows = [json.dumps(row, default=str) for row in environment.dataset]
            for number in share(rows, split, tested):
                row = json.loads(rows[number])
                yield {"id": f"train-{row['example_id']}", "input": row}
        if split == "test" and tested:
            for row in environment.eval_dataset:
                yield {"id": f"eval-{row['example_id']}", "input": json.loads(json.dumps(row, default=str))}

    def reset(self, problem: Mapping[str, Any], seed: int) -> tuple[list[Message], list[Tool]]:
        self.client = client()
        self.state: Any = None
        self.asked: list[Any] = []
        """All messages of the last question to the policy."""
        self.episode = loop().create_task(
            self.environment.rollout(dict(problem["input"]), self.client, POLICY, {})
        )
        if not self.wait():
            raise RuntimeError(f"the episode ended before its first turn: {self.ending()}")
        tools = [Tool(tool.name, tool.description, tool.parameters) for tool in self.client.tools or ()]
        return [as_message(message) for message in self.asked], tools

    def step(self, turn: Turn) -> tuple[list[Message] | None, float, bool]:
        before = self.asked
        self.client.turn.set_result(response(turn, len(before)))
        if not self.wait():
            if self.state["error"] is not None:
                raise RuntimeError(self.ending())
            return None, 0.0, True
        if self.asked[: len(before)] != before or self.asked[len(before)].role != "assistant":
            raise ValueError("it rewrites earlier messages, which a policy has already read")
        return [as_message(message) for message in self.asked[len(before) + 1 :]], 0.0, False

    def grade(self) -> dict[str, float]:
        """The rubric's scores, also of an episode that was cut by the limits of the task."""
        self.close()
        rubric = self.environment.rubric
        loop().run_until_complete(rubric.score_rollout(self.state))
        loop().run_until_complete(rubric.cleanup(self.state))
        reward = self.state["reward"]
        right = float(reward >= getattr(self.environment, "pass_threshold", 0.5))
        return {**self.state["metrics"], "correct": right, "return": reward}

    def close(self) -> None:
        """End the episode; the environment's cleanup runs."""
        self.episode.cancel()
        loop().run_until_complete(asyncio.wait({self.episode}))

    def wait(self) -> bool:
        """Let the environment go on until it asks for a turn. Returns False if it has ended instead."""
        self.client.question = loop().create_future()
        loop().run_until_complete(
            asyncio.wait({self.episode, self.client.question}, return_when=asyncio.FIRST_COMPLETED)
        )
        if self.client.question.done():
            self.asked, self.state = self.client.question.result()
            return True
        self.state = self.episode.result()
        return False

    def ending(self) -> str:
        return f"{self.state['error']!r}" if self.state["error"] else f"{self.state['stop_condition']}"


def share(rows: Sequence[str], split: str, tested: bool) -> list[int]:
    """The indices of the training rows that belong to a split, in order: a tenth, and at least one, is for
    validation, and as many are the test unless a data set for evaluation is. The rows' hashes choose."""
    order = sorted(range(len(rows)), key=lambda number: hashlib.sha256(rows[number].encode()).digest())
    tenth = -(-len(rows) // 10)
    cuts = {
        "validation": order[:tenth],
        "test": [] if tested else order[tenth : 2 * tenth],
        "train": order[tenth if tested else 2 * tenth :],
    }
    return sorted(cuts[split])


@cache
def loaded(load: Callable[..., Any], arguments: str) -> Any:
    """An environment with its data. Raises TypeError for one that no episode can be played of."""
    import verifiers as vf

    environment = load(**json.loads(arguments))
    if not isinstance(environment, vf.Environment):
        raise TypeError(f"{LOAD} returned {type(environment).__name__}, no Environment of verifiers")
    if environment.requires_group_rollouts:
        raise TypeError("its rubric scores groups of episodes, and a task scores each episode alone")
    environment.build_dataset()
    environment.build_eval_dataset()
    return environment


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The event loop of this worker."""
    return asyncio.new_event_loop()


def client() -> Any:
    """A client of verifiers that shows each question and waits for a turn."""
    import verifiers as vf

    class Waiting(vf.Client):  # type: ignore[misc]
        question: asyncio.Future[Any]
        turn: asyncio.Future[Any]
        tools: Sequence[Any] | None = None

        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any
        ) -> Any:
            self.tools, self.turn = tools, loop().create_future()
            self.question.set_result((list(prompt), more["state"]))
            return await self.turn

        async def close(self) -> None:
            pass

    # The others translate for a server.
    Waiting.__abstractmethods__ = frozenset()
    return Waiting(None)


def response(turn: Turn, number: int) -> Any:
    """A turn as verifiers has it from a server."""
    from verifiers.types import Response, ResponseMessage
    from verifiers.types import ToolCall as Call

    calls = [
        Call(id=f"call-{number}-{i}", name=call.name, arguments=json.dumps(call.arguments))
        for i, call in enumerate(turn.calls)
    ]
    message = ResponseMessage(
        content=turn.text,
        tool_calls=calls or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return Response(id=f"turn-{number}", created=0, model=POLICY, message=message)


def as_message(message: Any) -> Message:
    """A message of verifiers. Raises ValueError for images and sounds."""
    content = message.content or ""
    if not isinstance(content, str):
        parts = [part if isinstance(part, Mapping) else part.model_dump() for part in content]
        if wrong := [part.get("type") for part in parts if part.get("type") != "text"]:
            raise ValueError(f"a message has a part of type {wrong[0]}; tasks have text alone")
        content = "".join(part["text"] for part in parts)
    calls = [
        ToolCall(call.name, json.loads(call.arguments)) for call in getattr(message, "tool_calls", None) or ()
    ]
    text = "\n".join([*([content] if content else []), *map(str, calls)])
    return Message("user" if message.role == "text" else message.role, text)
