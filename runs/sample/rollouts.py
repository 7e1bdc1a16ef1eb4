"""Rollouts, groups of rollouts, and the padded `Batch` that algorithms train on."""

# A `Rollout` is one completion, a `Group` all completions of one problem with their rewards. `pack_groups`
# pads the groups of a step to a `Batch`. Shapes: B rollouts, P longest prompt, T longest completion.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch, Mixture, RoutedExperts
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.task import Problem, Verdict


@dataclass(frozen=True)
class Rollout:
    """One completion of one prompt."""

    prompt: tuple[int, ...]
    """Token ids of the prompt, without padding."""
    completion: tuple[int, ...]
    """Token ids, with the end token if the policy wrote one. If the task has several turns, they include the
    environment's replies."""
    sampler_logp: np.ndarray
    """Float (T,): the sampler's log-probability of each token under the tempered and truncated distribution
    that it was drawn from; 0 for tokens that the policy did not write."""
    stopped: bool
    """True if the policy ended the completion, False if the limit of tokens or turns cut it."""
    completion_mask: tuple[bool, ...] = ()
    """Which tokens the policy wrote. Empty means all of them."""
    mixture: tuple[np.ndarray, np.ndarray] | None = None
    """Token ids (T, k) and weights (T, k): after each token the model was fed this weighted mean of
    embeddings. None if the sampler fed plain tokens."""
    routed_experts: tuple[np.ndarray, np.ndarray] | None = None
    """Int16 (P, routers, k) and (T, routers, k): the experts that each token of the prompt and of the
    completion was sent to. −1 for tokens that were never fed to the model, such as the last one. None if the
    sampler does not record them."""
    entropy: np.ndarray | None = None
    """Float (T,): entropy in nats of the tempered distribution before each token, over the full vocabulary
    even if tokens are drawn from a truncated one; 0 for tokens that the policy did not write. None if the
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
    def turn_ends(self) -> list[int]:
        """The index of the last token of each turn in which the policy wrote."""
        mask = self.completion_mask or (True,) * len(self.completion)
        following = (*mask[1:], False)
        return [index for index, by_policy in enumerate(mask) if by_policy and not following[index]]

    @property
    def turns(self) -> int:
        """The number of turns in which the policy wrote; 0 for an empty completion."""
        return len(self.turn_ends)


@dataclass(frozen=True)
class AnswerLocation:
    """Where the parts of a completion begin. All numbers are indices of its tokens."""

    answer: int
    """The first token of the statement of the final answer; the completion's length if there is none."""
    breaks: tuple[int, ...]
    """The first tokens of lines, sentences and turns of thought before the answer, ascending."""


@dataclass(frozen=True)
class Judgment:
    """What a language model says of one completion, and what it took to ask it."""

    scores: tuple[float | None, ...]
    """Its verdicts, from 0 to 1; None for one that cannot be read."""
    calls: int
    """Requests for them, with retries."""
    cached: int
    """Verdicts that were there already."""
    tokens: int
    """Of prompts and replies of these requests."""
    cost: float | None = None
    """In the unit of the recipe's prices; None without prices."""

    @property
    def score(self) -> float:
        """The mean of the verdicts that can be read; NaN if none can."""
        readable = [score for score in self.scores if score is not None]
        return sum(readable) / len(readable) if readable else math.nan


@dataclass(frozen=True)
class Group:
    """A problem with its rollouts. All sequences are in the order of `rollouts`."""

    problem: Problem
    rollouts: Sequence[Rollout]
    verdicts: Sequence[Verdict]
    """The verifier's result for each rollout. Its outcome is `infra_error` if grading failed."""
    reward: Sequence[float]
    """The reward of each rollout, after weights and doses."""
    components: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Component of the reward -> its unweighted value for each rollout. NaN if it does not apply to the
    completion or if the reward failed."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Component of the reward -> its weight."""
    doses: Mapping[str, Sequence[bool | None]] = field(default_factory=dict)
    """Kind of reward noise that the recipe adds, by its metric (such as `flipped_share`) -> whether it
    changed each reward; None where it could not."""
    judgments: Sequence[Judgment | None] = ()
    """What the judge says of each rollout; None if the verifier failed. Empty if none judges."""
    turn_rewards: Sequence[tuple[float, ...]] = ()
    """The environment's rewards of the turns of each rollout, after `reward.scale`; an empty tuple for a
    rollout whose turns are not rewarded. Empty if none is."""
    greedy: float | None = None
    """The reward of the greedy answer to the problem, a baseline. NaN if it could not be graded; None if
    the algorithm asks for none."""
    answers: Sequence[AnswerLocation] = ()
    """Where each completion states its answer; empty if the algorithm does not ask for it."""
    teacher_prompts: Sequence[tuple[int, ...]] = ()
    """Token ids that the teacher reads in place of each rollout's prompt. A rollout that the teacher does not
    read has no tokens. Empty if the teacher reads the policy's prompts."""
    expected: float = math.nan
    """The problem's value that the curriculum knew before grading, as in SPO. NaN if it knows none."""
    index: int = -1
    """The number of the problem among all training problems; −1 if unknown."""

    def graded_rewards(self) -> list[float]:
        """The rewards of the rollouts that could be graded."""
        pairs = zip(self.verdicts, self.reward, strict=True)
        return [reward for verdict, reward in pairs if verdict.outcome != "infra_error"]

    def scores(self, index: int) -> dict[str, float]:
        """The task's scores and the reward's components of rollout `index`, by name. If both have a name, the
        task's score counts."""
        components = {name: column[index] for name, column in self.components.items()}
        return components | {**self.verdicts[index].scores}


RowIndex = tuple[int, int]
"""Where a row of a batch comes from: (index of the group, index of the rollout in it)."""


def pack_groups(
    groups: Sequence[Group],
    max_completion_tokens: int,
    step: int,
    pad: int,
    device: str = "cpu",
    *,
    include_ungraded: bool = False,
) -> Batch:
    """Pad the rollouts of all groups, in order, to one batch.

    Args:
        max_completion_tokens: the longest completion that the sampler allowed, for `Batch`.
        step: the update counter of the run, for `Batch`.
        pad: the token id that fills prompts and completions on the right.
        include_ungraded: include rollouts whose grading failed (outcome `infra_error`).
    """
    rows = graded_rows(groups, include_ungraded)
    rollouts = [groups[number].rollouts[index] for number, index in rows]
    masks = [r.completion_mask or (True,) * len(r.completion) for r in rollouts]
    sampler_logp = pad_rows([r.sampler_logp for r in rollouts], 0.0, np.float32)
    answers = _answers(groups, rows)
    teacher_prompts = _teacher_prompts(groups, rows)
    return Batch(
        prompt=pad_rows([r.prompt for r in rollouts], pad, np.int64).to(device),
        prompt_length=_integers([len(r.prompt) for r in rollouts], device),
        completion=pad_rows([r.completion for r in rollouts], pad, np.int64).to(device),
        length=_integers([len(r.completion) for r in rollouts], device),
        # The pad token cannot mark padding: it may be an end token, which the policy writes too.
        completion_mask=pad_rows(masks, False, np.bool_).to(device),
        sampler_logp=sampler_logp.to(device),
        # The trainer replaces them if the sampler is not exact.
        old_logp=sampler_logp.to(device),
        group=_integers([number for number, _ in rows], device),
        stopped=torch.tensor([r.stopped for r in rollouts], dtype=torch.bool, device=device),
        reward=_floats([groups[number].reward[index] for number, index in rows], device),
        scores=_scores(groups, rows, device),
        weights=groups[0].weights if groups else {},  # the same in every group
        mixture=_mixture(rollouts, device),
        routed_experts=_routed_experts(rollouts, device),
        turn_reward=_turn_reward(groups, rows, device),
        greedy_reward=_greedy_reward(groups, rows, device),
        answer=None if answers is None else _integers([answer.answer for answer in answers], device),
        breaks=None if answers is None else _breaks(answers, sampler_logp.shape[1]).to(device),
        teacher_prompt=pad_rows(teacher_prompts, pad, np.int64).to(device) if teacher_prompts else None,
        teacher_prompt_length=(
            _integers([len(prompt) for prompt in teacher_prompts], device) if teacher_prompts else None
        ),
        expected=_expected(groups, rows, device),
        problem=_integers([groups[number].index for number, _ in rows], device),
        member=_integers([index for _, index in rows], device),
        category=_integers([category_number(groups[number].problem) for number, _ in rows], device),
        max_completion_tokens=max_completion_tokens,
        step=step,
    )


def graded_rows(groups: Sequence[Group], include_ungraded: bool = False) -> list[RowIndex]:
    """Where each row of `pack_groups` comes from."""
    return [
        (number, index)
        for number, group in enumerate(groups)
        for index, verdict in enumerate(group.verdicts)
        if include_ungraded or verdict.outcome != "infra_error"
    ]


def environment_replies(batch: Batch) -> torch.Tensor:
    """Bool (B, T): tokens of completions that the policy did not write."""
    position = torch.arange(batch.completion.shape[1], device=batch.length.device)
    return (position < batch.length[:, None]) & ~batch.completion_mask


def category_number(problem: Problem) -> int:
    """The number of a problem's category, made of its name; −1 if it has none."""
    category = problem.traits.get("category")
    return -1 if category is None else derive(0, "category", str(category))


def _floats(values: Sequence[float], device: str) -> torch.Tensor:
    return torch.tensor([float(value) for value in values], device=device)


def _integers(values: Sequence[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)


def _scores(groups: Sequence[Group], rows: Sequence[RowIndex], device: str) -> dict[str, torch.Tensor]:
    """Name of each score or component of the reward -> its values (B,); 0 for rollouts without it."""
    row_scores = [groups[number].scores(index) for number, index in rows]
    names = sorted({name for scores in row_scores for name in scores})
    return {name: _floats([scores.get(name, 0.0) for scores in row_scores], device) for name in names}


def _turn_reward(groups: Sequence[Group], rows: Sequence[RowIndex], device: str) -> torch.Tensor | None:
    """The reward of each turn at its last token, (B, T); None if no turn is rewarded. Raises ValueError if
    rewards and turns of a rollout differ in number."""
    placed, rewarded = [], False
    for number, index in rows:
        group, rollout = groups[number], groups[number].rollouts[index]
        rewards, ends = group.turn_rewards[index] if group.turn_rewards else (), rollout.turn_ends
        # To its task an empty completion is one turn, but no token can carry its reward.
        if rewards and len(rewards) != max(1, len(ends)):
            raise ValueError(
                f"problem {group.problem.id}: rollout {index} has {len(ends)} turns and {len(rewards)} "
                "turn_rewards; give a reward for each of the policy's turns, or none"
            )
        row = np.zeros(len(rollout.completion))
        row[ends] = rewards[: len(ends)] or 0.0
        placed.append(row)
        rewarded = rewarded or bool(rewards)
    return pad_rows(placed, 0.0, np.float32).to(device) if rewarded else None


def _greedy_reward(groups: Sequence[Group], rows: Sequence[RowIndex], device: str) -> torch.Tensor | None:
    """The reward of the greedy answer to each row's problem, (B,); None if any group has none."""
    greedy = [groups[number].greedy for number, _ in rows]
    return None if None in greedy else _floats([value for value in greedy if value is not None], device)


def _expected(groups: Sequence[Group], rows: Sequence[RowIndex], device: str) -> torch.Tensor | None:
    """The value of each row's problem that the curriculum knows, (B,); None if it knows none."""
    values = [groups[number].expected for number, _ in rows]
    return None if all(math.isnan(value) for value in values) else _floats(values, device)


def _answers(groups: Sequence[Group], rows: Sequence[RowIndex]) -> list[AnswerLocation] | None:
    """Where each row's completion states its answer; None if the algorithm does not ask for it."""
    return [groups[number].answers[index] for number, index in rows if groups[number].answers] or None


def _teacher_prompts(groups: Sequence[Group], rows: Sequence[RowIndex]) -> list[tuple[int, ...]]:
    """Token ids of each row's prompt for the teacher; empty if the teacher reads the policy's prompts."""
    return [groups[number].teacher_prompts[index] for number, index in rows if groups[number].teacher_prompts]


def _breaks(answers: Sequence[AnswerLocation], width: int) -> torch.Tensor:
    """Bool (B, width): the first tokens of lines, sentences and turns of thought."""
    breaks = torch.zeros(len(answers), width, dtype=torch.bool)
    for row, location in enumerate(answers):
        breaks[row, list(location.breaks)] = True
    return breaks


def pad_rows(
    rows: Sequence[Sequence[float] | np.ndarray], fill: float | bool, dtype: type[np.generic]
) -> torch.Tensor:
    """Pad rows (T, …) on the right to (B, longest, …), at least one column wide: reductions over none
    fail."""
    shape = np.shape(rows[0])[1:] if rows else ()
    padded_rows = np.full((len(rows), max([1, *map(len, rows)]), *shape), fill, dtype=dtype)
    for index, row in enumerate(rows):
        padded_rows[index, : len(row)] = row
    return torch.from_numpy(padded_rows)


def _mixture(rollouts: Sequence[Rollout], device: str) -> Mixture | None:
    """The mixtures (B, T, k) that the sampler fed, with weights of 0 where it fed a plain token; None if no
    rollout has any."""
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


def _routed_experts(rollouts: Sequence[Rollout], device: str) -> RoutedExperts | None:
    """The experts of prompts (B, P, routers, k) and completions (B, T, routers, k), padded with −1. None if
    any rollout lacks them."""
    routes = [r.routed_experts for r in rollouts if r.routed_experts is not None]
    if not routes or len(routes) < len(rollouts):
        return None
    prompts, completions = (pad_rows(part, -1, np.int16).to(device) for part in zip(*routes, strict=True))
    return RoutedExperts(prompts, completions)


def find_graded_rows(groups: Sequence[Group], sampled: Sequence[Group]) -> list[int]:
    """For each row of `pack_groups(groups)`, its row in `pack_groups(sampled, include_ungraded=True)`.

    `groups` must be some of the objects in `sampled`.
    """
    starts, rows = {}, 0
    for group in sampled:
        # By identity: a group has lists, and so no hash.
        starts[id(group)] = rows
        rows += len(group.rollouts)
    return [starts[id(groups[number])] + index for number, index in graded_rows(groups)]


def count_sampled_tokens(rollouts_by_problem: Sequence[Sequence[Rollout]]) -> float:
    """The number of tokens that the policy read or wrote to sample these rollouts: every completion, with the
    environment's replies, and each problem's prompt once."""
    return float(
        sum(
            max((len(rollout.prompt) for rollout in rollouts), default=0)
            + sum(len(rollout.completion) for rollout in rollouts)
            for rollouts in rollouts_by_problem
        )
    )
