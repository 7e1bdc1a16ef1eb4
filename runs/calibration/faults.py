"""Code that is wrong on purpose, for faults that no setting can cause."""

# The recipes of calibration and of some findings name these as `grpobench.runs.calibration.faults:NAME`:
#
#     Faulty           an algorithm with the wrong sign or too large an entropy bonus
#     Sums             a task whose training answers are wrong
#     stale            a sampler that keeps the initial weights
#     stale_rollouts   the same, but greedy evaluations use the trained weights
#     noisy_routes     a sampler whose routers choose other experts than the trainer's

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """Group-normalized advantages and a clipped ratio. The defaults have no fault; each setting adds one."""

    name = "faulty"
    summary = "group-normalized policy gradient with a fault made on purpose"
    formula = "loss = −average(sign·A-weighted clipped ratio) − entropy_bonus·H"
    departures = "wrong on purpose; for calibration only"
    metrics = parts.CLIP_METRICS

    sign: float = 1.0
    """Factor of the advantages. −1 lowers the probability of the better answers."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy in the objective, which is maximized."""

    @property
    def differentiates_entropy(self) -> bool:
        return self.entropy_bonus > 0

    def advantage(self, batch: Batch, models: Models) -> Rowwise | Tokenwise:
        return self.sign * super().advantage(batch, models)

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        loss = super().loss(batch, signal, now)
        if not self.entropy_bonus:
            return loss
        return dataclasses.replace(loss, terms=loss.terms - self.entropy_bonus * now["policy"].entropy)


@dataclass(frozen=True)
class Sums(Arithmetic):
    """The arithmetic task, with wrong training answers if `misread` is set."""

    name = "sums"
    summary = "arithmetic whose training answers may be misread on purpose"
    misread: bool = False
    """Replace the answers of the training split by numbers that no completion matches, as if they had been
    read from another column."""

    def problems(self, split: Split) -> Sequence[Problem]:
        problems = super().problems(split)
        if not self.misread or split != "train":
            return problems
        return [dataclasses.replace(problem, truth=10**9 + int(problem.truth)) for problem in problems]


class StaleSampler(HFSampler):
    """Samples from a copy of the initial weights and ignores every update of the trainer."""

    def __init__(self, config: RunConfig, models: RoleModels, loaded: Loaded) -> None:
        initial_models = RoleModels(
            copy.deepcopy(models.language).requires_grad_(False),
            temperature=config.sampler.temperature,
            dtype=config.model.dtype,
        )
        super().__init__(
            initial_models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context
        )
        # The trainer computes log π_old itself, and no gap stops the run: the gap is the fault.
        self.exact = False
        self.max_logprob_gap = math.inf


class StaleRolloutSampler(StaleSampler):
    """Samples rollouts from the initial weights, and decodes greedily from the trainer's current weights.

    Only evaluations decode greedily, so accuracy is that of the trained policy.
    """

    def __init__(self, config: RunConfig, models: RoleModels, loaded: Loaded) -> None:
        super().__init__(config, models, loaded)
        self.current_sampler = HFSampler(
            models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context
        )

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        if has_greedy(requests, temperature):
            return self.current_sampler.sample(requests, limit, temperature, mixing)
        return super().sample(requests, limit, temperature, mixing)


ERROR_FREQUENCY = 1e3
"""Radians per nat. The error of a score is a cosine of the score; this is large, so that similar scores have
unrelated errors."""
NOISE = 1.0
"""Root mean square of the error of a score, in nats."""


class NoisyRouteSampler(HFSampler):
    """Samples from the trainer's weights, but each router chooses experts by scores with an error.

    The error has a root mean square of `noise` nats. The weights of the chosen experts come from the scores
    without it. Greedy decoding, which only evaluations use, has no error.

    Like a rounding error, the error is a fixed function of the score: a token's route depends neither on
    random numbers nor on other completions. Raises ModelError for a model without routers.
    """

    def __init__(self, config: RunConfig, models: RoleModels, loaded: Loaded, noise: float = NOISE) -> None:
        super().__init__(models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context)
        self.noise = noise
        self.exact = False
        self.max_logprob_gap = math.inf
        routers_of(models.networks["policy"].trunk)  # raises for a dense model

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        if has_greedy(requests, temperature):
            return super().sample(requests, limit, temperature, mixing)
        with choosing(self.models.networks["policy"].trunk, self.choose_experts):
            return super().sample(requests, limit, temperature, mixing)

    def choose_experts(
        self, router_index: int, scores: torch.Tensor, router_choice: torch.Tensor
    ) -> torch.Tensor:
        """The k experts with the largest log-probability plus error, long (N, k).

        Args:
            router_index: the number of the router in the model, from 0; it shifts the phase of the error.
            scores: probabilities (N, experts).
            router_choice: the router's own choice (N, k), of which only k is used.
        """
        # float32, above 0: the logarithm of a probability that underflowed is −inf, whose cosine is NaN.
        log_scores = scores.float().clamp(min=torch.finfo(torch.float32).tiny).log()
        # A cosine has a root mean square of 1/√2.
        error = self.noise * math.sqrt(2) * (ERROR_FREQUENCY * log_scores + router_index).cos()
        return (log_scores + error).topk(router_choice.shape[-1]).indices


def has_greedy(requests: Sequence[Request], temperature: float) -> bool:
    """Whether any completion of a call is decoded greedily: only evaluations ask for such."""
    return temperature == 0 or any(GREEDY in request.seeds for request in requests)


# What recipes name as `sampler.kind`.
stale = StaleSampler
stale_rollouts = StaleRolloutSampler
noisy_routes = NoisyRouteSampler
