"""From prompts and derived seeds to rollouts, in one turn or in several."""

# In a task of several turns, the policy's turn ends with the model's end token, with the task's own sign, or
# at the turn's limit. Then the environment replies, and the policy continues after everything so far. A
# rollout's completion holds turns and replies in the order in which the policy saw them. Its completion mask
# marks the tokens that the policy wrote; only these have a log-probability. A turn without an end token is
# closed with one that the policy did not write, so that every turn begins after the same tokens.

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.drawn import draw
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import GREEDY, Mixing, Request, Sampler
from grpobench.runs.settings.truncation import FULL, Truncation
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data.messages import Message, offered_tools
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Reply, Task


def episodes(
    sampler: Sampler,
    loaded: Loaded,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[tuple[int, ...]],
    limit: int,
    temperature: float,
    mixing: Mixing | None = None,
    truncation: Truncation = FULL,
) -> list[list[Rollout]]:
    """Rollouts of each problem, one for each of its seeds, of at most `limit` tokens, replies included.

    A sample's random numbers depend on its seed and the turn, not on the other episodes. Raises DataError if
    prompt and `limit` exceed the model's context.
    """
    prompts = [loaded.encode(problem.prompt) for problem in problems]
    if task.turns == 1:
        requests = [Request(*pair, truncation) for pair in zip(prompts, seeds, strict=True)]
        return draw(sampler, requests, limit, temperature, mixing)
    demand_room(loaded, prompts, limit)
    table = [
        [Episode(loaded, task, problem, prompt, seed) for seed in of_problem]
        for problem, prompt, of_problem in zip(problems, prompts, seeds, strict=True)
    ]
    everyone = [episode for row in table for episode in row]
    start = 0
    while start < len(everyone):
        # Read anew for each portion: memory may have lowered it.
        at_once = sampler.episodes_at_once or len(everyone)
        with sampler.remembering():
            play(everyone[start : start + at_once], sampler, task, limit, temperature, truncation)
        start += at_once
    return [[episode.rollout() for episode in row] for row in table]


def demand_room(loaded: Loaded, prompts: Iterable[tuple[int, ...]], limit: int) -> None:
    longest = max(map(len, prompts), default=0)
    if longest + limit > loaded.context:
        raise DataError(
            f"a prompt of {longest} tokens and an episode of {limit} exceed the model's "
            f"{loaded.context_description}; give the task fewer turns, lower sampler.max_completion_tokens, "
            "or take a model with a longer context"
        )


def seed_of_turn(seed: int, turn: int) -> int:
    """The seed of an episode's turn. A seed's numbers begin again in every call, so that all turns would draw
    by the same ones; greedy completions draw none and stay greedy in every turn."""
    return seed if turn == 0 or seed == GREEDY else derive(seed, "turn", turn)


def play(
    live: Sequence[Episode],
    sampler: Sampler,
    task: Task,
    limit: int,
    temperature: float,
    truncation: Truncation = FULL,
) -> None:
    """Play episodes to their ends, all of them turn by turn. Equal histories are one request to the sampler,
    which then computes them once."""
    room = min(task.turn_tokens, limit)
    for turn in range(task.turns):
        together: dict[tuple[int, ...], list[Episode]] = {}
        for episode in live:
            together.setdefault((*episode.prompt, *episode.tokens), []).append(episode)
        requests = [
            Request(
                history,
                tuple(seed_of_turn(e.seed, turn) for e in alike),
                truncation,
            )
            for history, alike in together.items()
        ]
        for alike, sampled in zip(together.values(), draw(sampler, requests, room, temperature), strict=True):
            for episode, rollout in zip(alike, sampled, strict=True):
                episode.take(rollout.completion, rollout.sampler_logp, rollout.entropy)
        ask_environments(task, live)
        # No reply behind the last turn, after which nobody writes.
        if turn + 1 < task.turns:
            # A reply is appended only if a turn of full length fits behind it.
            live = [e for e in live if not e.ended and e.answer(limit - room)]
        if not live:
            break


def ask_environments(task: Task, live: Sequence[Episode]) -> None:
    """Get the environments' replies to the last turns of episodes. Raises ValueError for a reply without
    content, or of another role."""
    replies = task.reply_all([e.problem for e in live], [tuple(e.turns) for e in live])
    for episode, reply in zip(live, replies, strict=True):
        if reply is not None:
            demand_content(task, reply)
        episode.reply, episode.ended = reply, reply is None


def demand_content(task: Task, reply: Reply) -> None:
    # Behind a turn with an end token nothing would be added, and `spans_of` would see one turn.
    if not reply or not all(message.content for message in as_reply(reply)):
        raise ValueError(
            f"task {task.name}: an environment's reply must not be empty, and neither must a message of it; "
            'where a tool returns nothing, reply with a text such as "none"'
        )
    if roles := [message.role for message in as_reply(reply) if message.role not in ("user", "tool")]:
        raise ValueError(
            f"task {task.name}: an environment replied with a message of the {roles[0]}; its messages are of "
            "the user and of tools"
        )


def as_reply(reply: Reply) -> tuple[Message, ...]:
    """The messages of a reply."""
    return (Message("user", reply),) if isinstance(reply, str) else reply


@dataclass
class Episode:
    """One episode, as far as it was played."""

    loaded: Loaded
    task: Task
    problem: Problem
    prompt: tuple[int, ...]
    seed: int = 0
    turns: list[str] = field(default_factory=list)
    """What the policy wrote, turn by turn."""
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] | None = field(default_factory=list)
    """None once the sampler reported none for a turn."""
    written: list[bool] = field(default_factory=list)
    reply: Reply | None = None
    """The environment's answer to the last turn."""
    ended: bool = False
    """Whether the environment has ended the episode."""

    def take(
        self, tokens: Sequence[int], logp: Iterable[float], entropy: Iterable[float] | None = None
    ) -> None:
        """Add the policy's next turn, up to the sign that ends it. Tokens after the sign are dropped."""
        turn = tokens[: turn_length(self.loaded, tokens, self.task.turn_end)]
        self.tokens += turn
        # Not strict: tokens behind the sign were sampled, too, and are dropped here.
        self.logp += [float(p) for p, _ in zip(logp, turn, strict=False)]
        self._spread(None if entropy is None else [float(h) for h, _ in zip(entropy, turn, strict=False)])
        self.written += [True] * len(turn)
        self.turns.append(self.loaded.read_turn(turn, offered_tools(self.problem.prompt)))

    def answer(self, most: int) -> bool:
        """Append the environment's reply. Returns False if the completion would then exceed `most` tokens."""
        assert self.reply is not None
        ended = bool(self.tokens) and self.tokens[-1] in self.loaded.end
        # The reply begins with an end token, which a turn that ended by itself already has.
        more = reply_tokens(self.loaded, self.reply)[ended:]
        if len(self.tokens) + len(more) > most:
            return False
        self.tokens += more
        self.logp += [0.0] * len(more)  # not drawn from the policy: no log-probability, and no entropy
        self._spread([0.0] * len(more))
        self.written += [False] * len(more)
        return True

    def _spread(self, more: list[float] | None) -> None:
        self.entropy = None if self.entropy is None or more is None else [*self.entropy, *more]

    def rollout(self) -> Rollout:
        return Rollout(
            prompt=self.prompt,
            completion=tuple(self.tokens),
            sampler_logp=np.array(self.logp, dtype=np.float32),
            stopped=self.ended,
            completion_mask=tuple(self.written),
            entropy=None if self.entropy is None else np.array(self.entropy, dtype=np.float32),
        )


def turn_length(loaded: Loaded, tokens: Sequence[int], sign: str) -> int:
    """Tokens of a turn up to the one that completes `sign` behind some text; all of them where none does."""
    if sign and sign in loaded.decode(tokens).lstrip():
        # By the text of all tokens so far: a sign may begin in one token and end in another.
        for count in range(1, len(tokens) + 1):
            if sign in loaded.decode(tokens[:count]).lstrip():
                return count
    return len(tokens)


def reply_tokens(loaded: Loaded, reply: Reply) -> tuple[int, ...]:
    """The tokens between two turns: an end token and the reply or, if the model has a chat template, the
    template's next messages with its cue for an answer."""
    messages = as_reply(reply)
    if loaded.has_chat_template:
        text = loaded.render_reply(messages)
    else:
        text = "\n".join(message.content for message in messages)
    # Without special tokens: a start token belongs to the beginning of the prompt.
    tokens = tuple(loaded.tokenizer.encode(text, add_special_tokens=False))
    # The template closes the turn itself.
    if tokens[:1] and tokens[0] in loaded.end:
        return tokens
    usual = loaded.tokenizer.eos_token_id
    return (usual if usual in loaded.end else loaded.end[0], *tokens)


def demonstrated(loaded: Loaded, task: Task, problem: Problem, turns: Sequence[str] | None = None) -> Rollout:
    """The reference episode of a problem, or that of these turns, with log-probabilities of 0."""
    episode = Episode(loaded, task, problem, loaded.encode(problem.prompt))
    texts = turns
    if texts is None:
        first, *later_turns = task.demonstrate_episode(problem)
        texts = [loaded.format_answer(first), *later_turns]
    for number, text in enumerate(texts, 1):
        turn = (*loaded.tokenizer.encode(text, add_special_tokens=False), loaded.end[0])
        episode.take(turn, [0.0] * len(turn))
        ask_environments(task, [episode])
        if number < len(texts) and (episode.ended or not episode.answer(most=10**9)):
            raise ValueError(f"task {task.name}: the demonstration of {problem.id} ends before its last turn")
    if (length := len(episode.prompt) + len(episode.tokens)) > loaded.context:
        raise DataError(
            f"the demonstration of problem {problem.id} and its prompt have {length} tokens, beyond "
            f"the model's {loaded.context_description}; leave out what reads demonstrations "
            "(model.warm_start, modify.schedule) or take a model with a longer context"
        )
    return episode.rollout()


def policy_turns(loaded: Loaded, problem: Problem, rollout: Rollout) -> list[str]:
    """What the policy wrote in each turn, as the environment saw it; [""] for an empty completion."""
    tools = offered_tools(problem.prompt)
    return [loaded.read_turn(tokens, tools) for written, tokens in spans_of(rollout) if written] or [""]


def spans_of(rollout: Rollout) -> Iterator[tuple[bool, tuple[int, ...]]]:
    """(written by the policy, tokens) of each stretch of the completion with one author, in order."""
    if not rollout.completion_mask:
        yield True, rollout.completion
        return
    pairs = zip(rollout.completion_mask, rollout.completion, strict=True)
    for written, span in itertools.groupby(pairs, key=operator.itemgetter(0)):
        yield written, tuple(token for _, token in span)


def conversation(loaded: Loaded, problem: Problem, rollout: Rollout) -> dict[str, list[dict[str, str]]]:
    """The turns of a rollout for a transcript, in order; nothing for a task of one turn."""
    if not rollout.completion_mask:
        return {}
    tools = offered_tools(problem.prompt)
    return {
        "turns": [
            {"by": "policy", "text": loaded.read_turn(tokens, tools)}
            if written
            else {"by": "environment", "text": loaded.decode(tokens)}
            for written, tokens in spans_of(rollout)
        ]
    }
