"""Policies whose every answer can be enumerated, with their rewards and their true gradient."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grpobench.analysis.statistics.intervals import Floats

Rows: TypeAlias = NDArray[Any]
"""Whole numbers or truth values."""


@dataclass(frozen=True)
class Scenario:
    """Q questions; a completion is a chain of at most T independent tokens out of V, and its first token says
    how long it is. The parameters are the logits, so that every gradient has Q·T·V entries. The objective J
    is the mean over questions of the expected reward."""

    name: str
    logits: Floats
    """Of the policy that is trained, (Q, T, V)."""
    lengths: tuple[int, ...]
    """Tokens of a completion by its first token, (V,), from 1 to T."""
    rewards: Floats
    """From 0 to 1, (Q, N): of every completion, in the order of `completions`."""
    old_logits: Floats | None = None
    """Of the policy that wrote the completions, (Q, T, V); None: it is the one that is trained."""

    @cached_property
    def completions(self) -> Rows:
        """Every completion, (N, T), with 0 behind its end."""
        return chains(self.logits.shape[1], self.lengths)

    @cached_property
    def length(self) -> Rows:
        """Tokens of every completion, (N,)."""
        length: Rows = np.array(self.lengths)[self.completions[:, 0]]
        return length

    @cached_property
    def written(self) -> Rows:
        """Bool (N, T): the tokens of every completion."""
        return np.arange(self.completions.shape[1]) < self.length[:, None]

    @property
    def sampling_logits(self) -> Floats:
        return self.logits if self.old_logits is None else self.old_logits

    def probability(self, logits: Floats) -> Floats:
        """Of every completion, (Q, N)."""
        steps = np.arange(logits.shape[1])
        tokens: Floats = softmax(logits)[:, steps, self.completions]
        probability: Floats = np.where(self.written, tokens, 1.0).prod(-1)
        return probability

    @cached_property
    def score(self) -> Floats:
        """∇ log π of every completion, (Q, N, T·V): one-hot minus π at each token."""
        hot = np.eye(self.logits.shape[2])[self.completions]
        score: Floats = (hot - softmax(self.logits)[:, None]) * self.written[:, :, None]
        return score.reshape(*score.shape[:2], -1)

    @cached_property
    def gradient(self) -> Floats:
        """∇J = 1/Q Σ_q Σ_a π(a) r(a) ∇ log π(a), (Q·T·V,)."""
        weight = self.probability(self.logits) * self.rewards
        gradient: Floats = (weight[:, :, None] * self.score).sum(1).ravel() / len(self.logits)
        return gradient

    @cached_property
    def greedy_rewards(self) -> Floats:
        """Reward of the likeliest token at every place, (Q,), under the policy that samples."""
        likeliest = self.sampling_logits.argmax(-1)
        return np.array([self.rewards[q, self.row_of(tokens)] for q, tokens in enumerate(likeliest)])

    @cached_property
    def _rows(self) -> Rows:
        rows = np.full(self.logits.shape[2] ** self.logits.shape[1], -1)
        rows[self._number(self.completions)] = np.arange(len(self.completions))
        return rows

    def _number(self, tokens: Rows) -> Rows:
        """Tokens (…, T) as the digits of a number."""
        number: Rows = tokens @ self.logits.shape[2] ** np.arange(tokens.shape[-1])[::-1]
        return number

    def row_of(self, tokens: Rows) -> Rows:
        """Row in `completions` of tokens (…, T), of which those behind the end do not count."""
        length = np.array(self.lengths)[tokens[..., :1]]
        rows: Rows = self._rows[self._number(np.where(np.arange(tokens.shape[-1]) < length, tokens, 0))]
        return rows


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    weight: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    probability: Floats = weight / weight.sum(-1, keepdims=True)
    return probability


def chains(longest: int, lengths: Sequence[int]) -> Rows:
    """Every completion of at most `longest` tokens whose first token fixes its length, with 0 behind its end,
    (N, T)."""
    rows = [
        (first, *later, *(0,) * (longest - length))
        for first, length in enumerate(lengths)
        for later in itertools.product(range(len(lengths)), repeat=length - 1)
    ]
    return np.array(rows)


def scenario(
    name: str,
    probability: Sequence[Sequence[float]],
    reward: Callable[[tuple[int, ...]], float],
    lengths: Sequence[int] = (),
    tokens: int = 1,
) -> Scenario:
    """A scenario of questions with these probabilities of the first token, (Q, V); later tokens are uniform.
    `reward` is that of a completion's tokens."""
    first = np.log(np.array(probability))
    logits = np.zeros((len(first), tokens, first.shape[1]))
    logits[:, 0] = first
    every = tuple(lengths) or (tokens,) * first.shape[1]
    rewards = np.array([reward(tuple(row)) for row in chains(tokens, every).tolist()])
    return Scenario(name, logits, every, np.tile(rewards, (len(first), 1)))


FOUR = (0.4, 0.3, 0.2, 0.1)
"""Probabilities of the four answers of most scenarios."""
STEP = 0.4
"""How far the trained policy of `moved` is from the one that sampled: STEP·r is added to the logit of an
answer of reward r, so that the right answer has the ratio 1.30 and a wrong one 0.87."""


def second_is_right(tokens: tuple[int, ...]) -> float:
    return float(tokens[0] == 1)


def graded(tokens: tuple[int, ...]) -> float:
    return (0.5, 1.0, 0.0, 0.25)[tokens[0]]


def ends_are_right(tokens: tuple[int, ...]) -> float:
    return float(tokens[0] in (0, 3))


def both_are_right(tokens: tuple[int, ...]) -> float:
    return float(tokens[0] == 1 and tokens[1] < 2)


def moved(toy: Scenario) -> Scenario:
    """The policy after a step toward the rewards, with completions of the policy before it."""
    later = toy.logits.copy()
    later[:, 0] += STEP * toy.rewards  # an answer is a token
    return dataclasses.replace(toy, name="moved", logits=later, old_logits=toy.logits)


ANSWERS = scenario("answers", [FOUR], second_is_right)
SCENARIOS: Mapping[str, Scenario] = {
    toy.name: toy
    for toy in (
        ANSWERS,
        scenario("graded", [FOUR], graded),
        scenario("questions", [(0.4, 0.1, 0.3, 0.2), (0.2, 0.6, 0.1, 0.1)], second_is_right),
        scenario("lengths", [FOUR], ends_are_right, lengths=(1, 3, 2, 4), tokens=4),
        scenario("chain-1", [(0.25,) * 4], second_is_right),
        scenario("chain-2", [(0.25,) * 4], second_is_right, tokens=2),
        scenario("chain-4", [(0.25,) * 4], second_is_right, tokens=4),
        scenario("pair", [(0.25,) * 4], both_are_right, tokens=2),
        moved(ANSWERS),
    )
}
"""By name. `answers`: one of four is right, which the greedy answer is not. `graded`: four rewards.
`questions`: two with success rates of .1 and .6. `lengths`: a short and a long answer are right. `chain-T`:
the first of T letters decides. `pair`: both letters do. `moved`: `answers` after a step, with completions
from before it."""
