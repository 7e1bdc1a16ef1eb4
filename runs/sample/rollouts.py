"""Rollouts, groups, and the batch of padded tensors made from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch, Mixture, RoutedExperts
from grpobench.tasks.task import Problem, Verdict


@dataclass(frozen=True)
class Rollout:
    """One completion of one prompt."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """Token ids, with the end token if the policy wrote one; in several turns also the replies between."""
    sampler_logp: np.ndarray
    """Float (T,): the sampler's log-probability of each token under the distribution that it was drawn from,
    tempered and truncated; 0 for tokens that the policy did not write."""
    stopped: bool
    """True if the policy ended it, False if the limit of tokens or turns cut it."""
    completion_mask: tuple[bool, ...] = ()
    """Which tokens the policy wrote; empty means all of them."""
    mixture: tuple[np.ndarray, np.ndarray] | None = None
    """(tokens (T, k), weights (T, k)) that a mixing sampler fed after each token."""
    routed_experts: tuple[np.ndarray, np.ndarray] | None = None
    """Int16 (P, routers, k) and (T, routers, k): the experts that each token of the prompt and of the
    completion was sent to when it was fed; −1 where it was not, as the last one."""
    entropy: np.ndarray | None = None
    """Float (T,): entropy in nats of the tempered distribution before each token, over the full vocabulary
    even where tokens are drawn from a truncated one; 0 for tokens that the policy did not write. None if the
    sampler does not report it."""

    @property
    def written_tokens(self) -> tuple[int, ...]:
        """The tokens of the completion that the policy wrote."""
        if not self.completion_mask:
            return self.completion
        pairs = zip(self.completion, self.completion_mask, strict=True)
        return tuple(token for token, by_policy in pairs if by_policy)

    @property
    def length(self) -> int:
        """The number of tokens that the policy wrote."""
        return sum(self.completion_mask) if self.completion_mask else len(self.completion)

    @property
    def turns(self) -> int:
        """The number of turns in which the policy wrote; 0 for an empty completion."""
        if not self.completion_mask:
            return int(bool(self.completion))
        before = (False, *self.completion_mask)
        pairs = zip(self.completion_mask, before, strict=False)
        return sum(by_policy and not preceding for by_policy, preceding in pairs)


@dataclass(frozen=True)
class Located:
    """Where parts of a completion begin, as indices of its tokens."""

    answer: int
    """The token with which the statement of the final answer begins; the length if there is none."""
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
    """The components of the reward, before their weights; NaN for a component that does not apply to a
    completion, and for a completion whose reward failed."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of the components."""
    doses: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    """By dose of the recipe that is drawn (`flipped`, `outlier`), which rewards it changed."""
    greedy: float | None = None
    """Reward of the greedy answer, NaN if it could not be graded; None if there is no greedy answer."""
    answers: Sequence[Located] = ()
    """Where each completion states its answer; empty if the algorithm does not need it."""
    teacher_prompts: Sequence[tuple[int, ...]] = ()
    """What the teacher reads before each completion, no tokens for one that it does not read; empty if the
    algorithm's teacher reads what the policy reads."""
    expected: float = math.nan
    """Value of the problem that the curriculum knew before the completions were graded; NaN without one."""
    index: int = -1
    """Number of the problem among all training problems; −1 if unknown."""

    def graded(self) -> list[float]:
        """The rewards of the rollouts that could be graded."""
        pairs = zip(self.verdicts, self.reward, strict=True)
        return [reward for verdict, reward in pairs if verdict.outcome != "infra_error"]

    def scores(self, index: int) -> dict[str, float]:
        """The task's scores of a completion and the components of its reward. A score of the task wins over a
        component of the same name."""
        components = {name: column[index] for name, column in self.components.items()}
        return components | {**self.verdicts[index].scores}


def pack_groups(
    groups: Sequence[Group],
    limit: int,
    step: int,
    pad: int,
    device: str = "cpu",
    *,
    ungraded: bool = False,
) -> Batch:
    """The batch of all graded rollouts, in order. Rollouts with outcome `infra_error` are left out, unless
    `ungraded` is set. The scores are the task's and the components of the reward."""
    rows = [
        (number, index)
        for number, group in enumerate(groups)
        for index, verdict in enumerate(group.verdicts)
        if ungraded or verdict.outcome != "infra_error"
    ]
    rollouts = [groups[number].rollouts[index] for number, index in rows]
    masks = [r.completion_mask or (True,) * len(r.completion) for r in rollouts]
    sampler_logp = padded([r.sampler_logp for r in rollouts], 0.0, torch.float32)
    answers = _answers(groups, rows)
    taught = _taught(groups, rows)
    return Batch(
        prompt=padded([r.prompt for r in rollouts], pad, torch.long).to(device),
        prompt_length=_integers([len(r.prompt) for r in rollouts], device),
        completion=padded([r.completion for r in rollouts], pad, torch.long).to(device),
        length=_integers([len(r.completion) for r in rollouts], device),
        # The pad token cannot mark padding: it may be an end token, which the policy writes too.
        completion_mask=padded(masks, False, torch.bool).to(device),
        sampler_logp=sampler_logp.to(device),
        # The sampler's to begin with; the trainer replaces them where they are not exact enough.
        old_logp=sampler_logp.to(device),
        group=_integers([number for number, _ in rows], device),
        stopped=torch.tensor([r.stopped for r in rollouts], dtype=torch.bool, device=device),
        reward=_floats([groups[number].reward[index] for number, index in rows], device),
        scores=_scores(groups, rows, device),
        weights=groups[0].weights if groups else {},  # the same in every group
        mixture=_mixture(rollouts, device),
        routed_experts=_routed_experts(rollouts, device),
        greedy_reward=_greedy_reward(groups, rows, device),
        answer=None if answers is None else _integers([answer.answer for answer in answers], device),
        breaks=None if answers is None else _breaks(answers, sampler_logp.shape[1]).to(device),
        teacher_prompt=padded(taught, pad, torch.long).to(device) if taught else None,
        teacher_prompt_length=_integers([len(prompt) for prompt in taught], device) if taught else None,
        expected=_expected(groups, rows, device),
        problem=_integers([groups[number].index for number, _ in rows], device),
        max_completion_tokens=limit,
        step=step,
    )


def graded_rows(groups: Sequence[Group], sampled: Sequence[Group]) -> list[int]:
    """The rows of `pack_groups(groups)` as rows of `pack_groups(sampled, ungraded=True)`; the groups are some
    of those that were sampled."""
    starts, rows = {}, 0
    for group in sampled:
        # By identity: a group has lists, and so no hash.
        starts[id(group)] = rows
        rows += len(group.rollouts)
    return [
        starts[id(group)] + index
        for group in groups
        for index, verdict in enumerate(group.verdicts)
        if verdict.outcome != "infra_error"
    ]


RowIndex = tuple[int, int]
"""A row of a batch: (number of its group, index in the group)."""


def _floats(values: Sequence[float], device: str) -> torch.Tensor:
    return torch.tensor([float(value) for value in values], device=device)


def _integers(values: Sequence[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)


def _scores(groups: Sequence[Group], rows: Sequence[RowIndex], device: str) -> dict[str, torch.Tensor]:
    """Each score and component of the reward by name, 0 for a rollout that does not have it."""
    scores = [groups[number].scores(index) for number, index in rows]
    names = sorted({name for of_rollout in scores for name in of_rollout})
    return {name: _floats([of_rollout.get(name, 0.0) for of_rollout in scores], device) for name in names}


def _greedy_reward(groups: Sequence[Group], rows: Sequence[RowIndex], device: str) -> torch.Tensor | None:
    """The reward of each row's greedy answer; None if any group has none."""
    greedy = [groups[number].greedy for number, _ in rows]
    return None if None in greedy else _floats([value for value in greedy if value is not None], device)


def _expected(groups: Sequence[Group], rows: Sequence[RowIndex], device: str) -> torch.Tensor | None:
    """The value of each row's problem; None if that of no row is known."""
    values = [groups[number].expected for number, _ in rows]
    return None if all(math.isnan(value) for value in values) else _floats(values, device)


def _answers(groups: Sequence[Group], rows: Sequence[RowIndex]) -> list[Located] | None:
    """Where each completion states its answer; None if the algorithm does not need it."""
    return [groups[number].answers[index] for number, index in rows if groups[number].answers] or None


def _taught(groups: Sequence[Group], rows: Sequence[RowIndex]) -> list[tuple[int, ...]]:
    """What the teacher reads before each row; empty if it reads what the policy reads."""
    return [groups[number].teacher_prompts[index] for number, index in rows if groups[number].teacher_prompts]


def _breaks(answers: Sequence[Located], width: int) -> torch.Tensor:
    """Bool (B, width): the tokens with which parts of the completions begin."""
    breaks = torch.zeros(len(answers), width, dtype=torch.bool)
    for row, located in enumerate(answers):
        breaks[row, list(located.breaks)] = True
    return breaks


def padded(
    rows: Sequence[Sequence[float] | np.ndarray], fill: float | bool, dtype: torch.dtype
) -> torch.Tensor:
    """Right-padded (B, longest); at least one column wide, so that reductions over tokens are defined."""
    padded_rows = torch.full((len(rows), max([1, *map(len, rows)])), fill, dtype=dtype)
    for index, row in enumerate(rows):
        if len(row):
            padded_rows[index, : len(row)] = torch.as_tensor(row, dtype=dtype)
    return padded_rows


def _mixture(rollouts: Sequence[Rollout], device: str) -> Mixture | None:
    """The mixtures that the sampler fed, with weights of 0 where it fed a plain token; None without any."""
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


def count_sampled(sampled: Sequence[Sequence[Rollout]]) -> float:
    """Tokens that the policy read or wrote to sample the rollouts of each problem: every completion with its
    replies, and the problem's prompt once."""
    return float(
        sum(
            max((len(rollout.prompt) for rollout in rollouts), default=0)
            + sum(len(rollout.completion) for rollout in rollouts)
            for rollouts in sampled
        )
    )


def _routed_experts(rollouts: Sequence[Rollout], device: str) -> RoutedExperts | None:
    """The experts that the sampler chose, padded with −1; None unless every rollout has them."""
    routes = [r.routed_experts for r in rollouts if r.routed_experts is not None]
    if not routes or len(routes) < len(rollouts):
        return None

    def joined(parts: Sequence[np.ndarray]) -> torch.Tensor:
        width = max([1, *map(len, parts)])
        padded_routes = torch.full((len(parts), width, *parts[0].shape[1:]), -1, dtype=torch.int16)
        for index, part in enumerate(parts):
            padded_routes[index, : len(part)] = torch.as_tensor(part)
        return padded_routes.to(device)

    prompts, completions = zip(*routes, strict=True)
    return RoutedExperts(joined(prompts), joined(completions))
