"""What a recipe cannot say of a broken run: code that is wrong on purpose, named by the library alone."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import (
    Advantage,
    Batch,
    Loss,
    ModelOutput,
    Models,
    Role,
    Rowwise,
    Tokenwise,
)
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import GREEDY, Mixing, Request, Rollout
from grpobench.runs.settings.config import RunConfig
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.task import Problem, Split


@dataclass(frozen=True)
class Faulty(GroupNormalized, ClippedRatio):
    """Group-normalized advantages and a clipped ratio, with one fault; sound by default."""

    name = "faulty"
    summary = "group-normalized policy gradient with a fault made on purpose"
    formula = "loss = −average(sign·A-weighted clipped ratio) − entropy_bonus·H"
    departures = "wrong on purpose; for calibration only"
    metrics = parts.CLIP_METRICS

    sign: float = 1.0
    """What advantages are multiplied by: −1 makes the better answers rarer."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy in the objective."""

    @property
    def differentiates_entropy(self) -> bool:
        return self.entropy_bonus > 0

    def advantage(self, batch: Batch, models: Models) -> Rowwise | Tokenwise:
        return self.sign * super().advantage(batch, models)

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        sound = super().loss(batch, signal, now)
        if not self.entropy_bonus:
            return sound
        return dataclasses.replace(sound, terms=sound.terms - self.entropy_bonus * now["policy"].entropy)


@dataclass(frozen=True)
class Sums(Arithmetic):
    """Arithmetic whose training answers may be misread."""

    name = "sums"
    summary = "arithmetic whose training answers may be misread on purpose"
    misread: bool = False
    """Whether the training split's answers are of another column, which nothing can match."""

    def problems(self, split: Split) -> Sequence[Problem]:
        sound = super().problems(split)
        if not self.misread or split != "train":
            return sound
        return [dataclasses.replace(problem, truth=10**9 + int(problem.truth)) for problem in sound]


class Stale(HFSampler):
    """A sampler that never takes over the trainer's weights."""

    def __init__(self, config: RunConfig, models: RoleModels, loaded: Loaded) -> None:
        frozen = RoleModels(
            copy.deepcopy(models.language).requires_grad_(False),
            temperature=config.sampler.temperature,
            dtype=config.model.dtype,
        )
        super().__init__(frozen, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context)
        self.exact = False
        self.max_logprob_gap = math.inf


class StaleRollouts(Stale):
    """A sampler whose rollouts are of the weights before training, while what is decoded greedily, which
    only evaluations ask for, is of the trainer's: so that accuracy is the trained policy's."""

    def __init__(self, config: RunConfig, models: RoleModels, loaded: Loaded) -> None:
        super().__init__(config, models, loaded)
        self.current = HFSampler(
            models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context
        )

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        if temperature == 0 or any(GREEDY in request.seeds for request in requests):
            return self.current.sample(requests, limit, temperature, mixing)
        return super().sample(requests, limit, temperature, mixing)


def stale(config: RunConfig, models: RoleModels, loaded: Any) -> Stale:
    """The sampler of a run, as a recipe names it."""
    return Stale(config, models, loaded)


def stale_rollouts(config: RunConfig, models: RoleModels, loaded: Any) -> StaleRollouts:
    """The same, of which evaluations ask the trained policy."""
    return StaleRollouts(config, models, loaded)
