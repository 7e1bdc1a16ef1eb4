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
    behaviour_logp: np.ndarray
    """Float (T,): the sampler's log-probability of each token under the tempered distribution; 0 for tokens
    that the policy did not write."""
    stopped: bool
    """True when the policy ended it, False when the limit of tokens or turns did."""
    written: tuple[bool, ...] = ()
    """Which tokens the policy wrote; empty means all of them."""
    mixture: tuple[np.ndarray, np.ndarray] | None = None
    """(tokens (T, k), weights (T, k)) that a mixing sampler fed after each token."""

    @property
    def own(self) -> tuple[int, ...]:
        """The tokens of the completion that the policy wrote."""
        if not self.written:
            return self.completion
        return tuple(token for token, own in zip(self.completion, self.written, strict=True) if own)

    @property
    def length(self) -> int:
        """How many they are."""
        return sum(self.written) if self.written else len(self.completion)

    @property
    def turns(self) -> int:
        """How often the policy began to write; 0 for an empty completion."""
        if not self.written:
            return int(bool(self.completion))
        before = (False, *self.written)
        return sum(own and not preceding for own, preceding in zip(self.written, before, strict=False))


@dataclass(frozen=True)
class Group:
    """A problem with its rollouts, their verdicts and their rewards."""

    problem: Problem
    rollouts: Sequence[Rollout]
    verdicts: Sequence[Verdict]
    reward: Sequence[float]
    components: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the reward is made of, before the weights; NaN for a completion whose reward failed."""


def pack_groups(groups: Sequence[Group], limit: int, step: int, pad: int, device: str = "cpu") -> Batch:
    """The batch of all graded rollouts, in order; samples with outcome `infra_error` are left out. The scores
    are the task's and the reward's components.

    `old_logp` starts as the behaviour log-probabilities; the loop replaces it when it must.
    """
    rows = [
        (
            number,
            rollout,
            {name: column[place] for name, column in group.components.items()} | {**verdict.scores},
            reward,
        )
        for number, group in enumerate(groups)
        for place, (rollout, verdict, reward) in enumerate(
            zip(group.rollouts, group.verdicts, group.reward, strict=True)
        )
        if verdict.outcome != "infra_error"
    ]
    rollouts = [rollout for _, rollout, _, _ in rows]
    behaviour = padded([r.behaviour_logp for r in rollouts], 0.0, torch.float32)
    names = sorted({name for _, _, own, _ in rows for name in own})
    scores: Mapping[str, torch.Tensor] = {
        name: torch.tensor([float(own.get(name, 0.0)) for _, _, own, _ in rows], device=device)
        for name in names
    }
    return Batch(
        prompt=padded([r.prompt for r in rollouts], pad, torch.long).to(device),
        prompt_length=torch.tensor([len(r.prompt) for r in rollouts], dtype=torch.long, device=device),
        completion=padded([r.completion for r in rollouts], pad, torch.long).to(device),
        length=torch.tensor([len(r.completion) for r in rollouts], dtype=torch.long, device=device),
        written=padded([r.written or (True,) * len(r.completion) for r in rollouts], False, torch.bool).to(
            device
        ),
        behaviour_logp=behaviour.to(device),
        old_logp=behaviour.to(device),
        group=torch.tensor([number for number, _, _, _ in rows], dtype=torch.long, device=device),
        stopped=torch.tensor([r.stopped for r in rollouts], dtype=torch.bool, device=device),
        reward=torch.tensor([float(reward) for _, _, _, reward in rows], device=device),
        scores=scores,
        mixture=_mixture(rollouts, device),
        limit=limit,
        step=step,
    )


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
