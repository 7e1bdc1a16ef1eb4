"""What a recipe cannot say of a broken run: code that is wrong on purpose, named by the library alone."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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
from grpobench.runs.models.routing import choosing, routers_of
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import GREEDY, Mixing, Request
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


FREQUENCY = 1e3
"""Radians by which the error of a score turns for each nat of the score: neighbors have unlike errors."""
NOISE = 1.0
"""Nats: root mean square of the error of a score."""


class NoisyRoutes(HFSampler):
    """A sampler with the trainer's weights whose routers see each expert's score with an error of `noise`
    nats, and so choose other experts; their weights are made of the true scores. What is decoded greedily,
    which only evaluations ask for, is decoded without.

    The error is a fixed function of the score, as a rounding error is: no random numbers, and no other
    completion, change a token's route.
    """

    def __init__(self, config: RunConfig, models: RoleModels, loaded: Loaded, noise: float = NOISE) -> None:
        super().__init__(models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context)
        self.noise = noise
        self.exact = False
        self.max_logprob_gap = math.inf
        routers_of(models.networks["policy"].trunk)  # a dense model has no routes

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        if temperature == 0 or any(GREEDY in request.seeds for request in requests):
            return super().sample(requests, limit, temperature, mixing)
        with choosing(self.models.networks["policy"].trunk, self.choose):
            return super().sample(requests, limit, temperature, mixing)

    def choose(self, number: int, scores: torch.Tensor, router_choice: torch.Tensor) -> torch.Tensor:
        """The experts (N, k) with the largest scores and errors; `scores` (N, experts) are probabilities."""
        # float32, above 0: the logarithm of a probability that underflowed is −inf, whose cosine is NaN.
        nats = scores.float().clamp(min=torch.finfo(torch.float32).tiny).log()
        error = self.noise * math.sqrt(2) * (FREQUENCY * nats + number).cos()
        return (nats + error).topk(router_choice.shape[-1]).indices


def stale(config: RunConfig, models: RoleModels, loaded: Any) -> Stale:
    """The sampler of a run, as a recipe names it."""
    return Stale(config, models, loaded)


def stale_rollouts(config: RunConfig, models: RoleModels, loaded: Any) -> StaleRollouts:
    """The same, of which evaluations ask the trained policy."""
    return StaleRollouts(config, models, loaded)


def noisy_routes(config: RunConfig, models: RoleModels, loaded: Any) -> NoisyRoutes:
    """The trainer's weights with other routes, of which evaluations see nothing."""
    return NoisyRoutes(config, models, loaded)
