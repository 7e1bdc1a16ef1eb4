"""Rollouts, groups, and the batch of padded tensors made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch, Mixture
from grpobench.tasks.task import Problem, Verdict


@dataclass(frozen=True)
class Rollout:
    """One completion of one prompt."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """Token ids, with the end token when the policy wrote one; in several turns also what stood between."""
    sampler_logp: np.ndarray
    """Float (T,): the sampler's log-probability of each token under the tempered distribution; 0 for tokens
    that the policy did not write."""
    stopped: bool
    """True when the policy ended it, False when the limit of tokens or turns did."""
    completion_mask: tuple[bool, ...] = ()
    """Which tokens the policy wrote; empty means all of them."""
    mixture: tuple[np.ndarray, np.ndarray] | None = None
    """(tokens (T, k), weights (T, k)) that a mixing sampler fed after each token."""
    entropy: np.ndarray | None = None
    """Float (T,): entropy in nats of the tempered distribution that each token was drawn from, over the full
    vocabulary; 0 for tokens that the policy did not write. None where the sampler does not tell."""

    @property
    def written_tokens(self) -> tuple[int, ...]:
        """The tokens of the completion that the policy wrote."""
        if not self.completion_mask:
            return self.completion
        return tuple(token for token, own in zip(self.completion, self.completion_mask, strict=True) if own)

    @property
    def length(self) -> int:
        """How many they are."""
        return sum(self.completion_mask) if self.completion_mask else len(self.completion)

    @property
    def turns(self) -> int:
        """How often the policy began to write; 0 for an empty completion."""
        if not self.completion_mask:
            return int(bool(self.completion))
        before = (False, *self.completion_mask)
        return sum(
            own and not preceding for own, preceding in zip(self.completion_mask, before, strict=False)
        )


@dataclass(frozen=True)
class Located:
    """Where parts of a completion begin, as places in its tokens."""

    answer: int
    """The token with which the statement of the final answer begins; the length where there is none."""
    breaks: tuple[int, ...]
    """Tokens with which a line, a sentence or a turn of thought begins."""


@dataclass(frozen=True)
class Group:
    """A problem with its rollouts, their verdicts and their rewards."""

    problem: Problem
    rollouts: Sequence[Rollout]
    verdicts: Sequence[Verdict]
    reward: Sequence[float]
    components: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the reward is made of, before the weights; NaN for a part that does not apply to a completion, and
    for a completion whose reward failed."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of those parts."""
    greedy: float | None = None
    """Reward of the greedy answer, NaN where it could not be graded; None where none was asked for."""
    answers: Sequence[Located] = ()
    """Where each completion states its answer; empty where nobody asked."""

    def graded(self) -> list[float]:
        """The rewards of the rollouts that could be graded."""
        pairs = zip(self.verdicts, self.reward, strict=True)
        return [reward for verdict, reward in pairs if verdict.outcome != "infra_error"]

    def scores(self, place: int) -> dict[str, float]:
        """The task's scores of a completion and the parts of its reward."""
        return {name: column[place] for name, column in self.components.items()} | {
            **self.verdicts[place].scores
        }


def pack_groups(
    groups: Sequence[Group],
    limit: int,
    step: int,
    pad: int,
    device: str = "cpu",
    *,
    ungraded: bool = False,
) -> Batch:
    """The batch of all graded rollouts, in order; samples with outcome `infra_error` are left out unless the
    `ungraded` are wanted too. The scores are the task's and the reward's components.

    `old_logp` starts as the behavior log-probabilities; the loop replaces it when it must.
    """
    rows = [
        (number, place)
        for number, group in enumerate(groups)
        for place, verdict in enumerate(group.verdicts)
        if ungraded or verdict.outcome != "infra_error"
    ]
    rollouts = [groups[number].rollouts[place] for number, place in rows]
    behavior = padded([r.sampler_logp for r in rollouts], 0.0, torch.float32)
    scored = [groups[number].scores(place) for number, place in rows]
    names = sorted({name for own in scored for name in own})
    answers = [groups[number].answers[place] for number, place in rows if groups[number].answers]

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor([float(value) for value in values], device=device)

    def whole(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    greedy = [groups[number].greedy for number, _ in rows]
    return Batch(
        prompt=padded([r.prompt for r in rollouts], pad, torch.long).to(device),
        prompt_length=whole([len(r.prompt) for r in rollouts]),
        completion=padded([r.completion for r in rollouts], pad, torch.long).to(device),
        length=whole([len(r.completion) for r in rollouts]),
        completion_mask=padded(
            [r.completion_mask or (True,) * len(r.completion) for r in rollouts], False, torch.bool
        ).to(device),
        sampler_logp=behavior.to(device),
        old_logp=behavior.to(device),
        group=whole([number for number, _ in rows]),
        stopped=torch.tensor([r.stopped for r in rollouts], dtype=torch.bool, device=device),
        reward=column([groups[number].reward[place] for number, place in rows]),
        scores={name: column([own.get(name, 0.0) for own in scored]) for name in names},
        weights=groups[0].weights if groups else {},
        mixture=_mixture(rollouts, device),
        greedy_reward=None if None in greedy else column([value for value in greedy if value is not None]),
        answer=whole([found.answer for found in answers]) if answers else None,
        breaks=_breaks(answers, behavior.shape[1]).to(device) if answers else None,
        max_completion_tokens=limit,
        step=step,
    )


def _breaks(answers: Sequence[Located], width: int) -> torch.Tensor:
    breaks = torch.zeros(len(answers), width, dtype=torch.bool)
    for row, found in enumerate(answers):
        breaks[row, list(found.breaks)] = True
    return breaks


def padded(
    rows: Sequence[Sequence[float] | np.ndarray], fill: float | bool, dtype: torch.dtype
) -> torch.Tensor:
    """Right-padded (B, longest); at least one column wide."""
    out = torch.full((len(rows), max([1, *map(len, rows)])), fill, dtype=dtype)
    for index, row in enumerate(rows):
        if len(row):
            out[index, : len(row)] = torch.as_tensor(row, dtype=dtype)
    return out


def _mixture(rollouts: Sequence[Rollout], device: str) -> Mixture | None:
    width = max([1, *(len(r.completion) for r in rollouts)])
    mixed = [r.mixture for r in rollouts if r.mixture is not None]
    if not mixed:
        return None
    k = mixed[0][0].shape[1]
    token = torch.zeros(len(rollouts), width, k, dtype=torch.long)
    weight = torch.zeros(len(rollouts), width, k)
    for index, rollout in enumerate(rollouts):
        if rollout.mixture is not None:
            tokens, weights = rollout.mixture
            token[index, : len(tokens)] = torch.as_tensor(tokens)
            weight[index, : len(weights)] = torch.as_tensor(weights)
    return Mixture(token.to(device), weight.to(device))
