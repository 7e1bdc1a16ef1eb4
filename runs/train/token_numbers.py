"""The numbers of each token of a step's rollouts, as a rollouts file holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpobench.algorithms.algorithm import Advantage, Batch, Signal
from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.rollouts import Group, RowIndex, find_graded_rows, graded_rows
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.train.answer_locations import token_ends

DIGITS = 3
"""Significant digits that are stored."""
SMALLEST = 5e-5
"""Numbers nearer to 0 are stored as 0: nobody sees them, and zeros are compact."""
Numbers = Mapping[str, torch.Tensor]
"""Name of a number -> (B, T)."""


def is_stored(config: RunConfig, step: int) -> bool:
    """Whether the schedule stores the rollouts of a step."""
    every = config.evaluate.every
    return step in (1, config.train.steps) or bool(every and step % every == 0)


def is_due(config: RunConfig, step: int) -> bool:
    """Whether the recipe asks for the numbers of a step's tokens."""
    if config.train.log_tokens == "last":
        return step == config.train.steps
    return config.train.log_tokens == "all" and is_stored(config, step)


def entropies(
    groups: Sequence[Group], sampled: Sequence[Group], computed: torch.Tensor | None
) -> torch.Tensor | None:
    """The entropy (B, T) in nats before each token of a step's batch: what the sampler reported, else rows of
    what a forward pass over everything in `sampled` gave. None without either."""
    if computed is not None:
        return computed[find_graded_rows(groups, sampled)]
    rollouts = [groups[number].rollouts[index] for number, index in graded_rows(groups)]
    reported = [torch.as_tensor(rollout.entropy) for rollout in rollouts if rollout.entropy is not None]
    if not rollouts or len(reported) < len(rollouts):
        return None
    return torch.nn.utils.rnn.pad_sequence(reported, batch_first=True)


def numbers_of(
    batch: Batch, signal: Signal, entropy: torch.Tensor | None, after: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """What is known of each token of a batch.

    - `logp`: log π_old, in nats;
    - `entropy`: of the distribution before the token, in nats;
    - `advantage`: what the algorithm gave it; not of algorithms that compare pairs;
    - `ratio`: π / π_old after all updates of the step, of which `after` is log π. PPO's ratio inside the loss
      is that of earlier weights, and 1 in the first update."""
    numbers = {"logp": batch.old_logp}
    if entropy is not None:
        numbers["entropy"] = entropy
    if isinstance(signal, Advantage):
        numbers["advantage"] = signal.advantage.expand(batch.completion.shape)
    if after is not None:
        numbers["ratio"] = (after - batch.old_logp).exp()
    return numbers


def by_rollout(groups: Sequence[Group], numbers: Numbers, loaded: Loaded) -> dict[RowIndex, dict[str, Any]]:
    """For each graded rollout, a list for each number, and `characters`: how many of its text each token
    brings. None stands for a number that is not finite, and for tokens of the environment."""
    columns = {name: values.detach().float().cpu() for name, values in numbers.items()}
    rows = {}
    for row, (number, index) in enumerate(graded_rows(groups)):
        rollout = groups[number].rollouts[index]
        ends = token_ends(loaded, rollout.completion)
        mask = rollout.completion_mask or (True,) * len(ends)
        rows[number, index] = {
            "characters": [end - start for start, end in zip([0, *ends], ends, strict=False)],
            **{
                name: [
                    _short(value) if by_policy else None
                    for value, by_policy in zip(values[row].tolist(), mask, strict=False)
                ]
                for name, values in columns.items()
            },
        }
    return rows


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}") if abs(value) >= SMALLEST else 0.0
    return int(short) if short.is_integer() else short
