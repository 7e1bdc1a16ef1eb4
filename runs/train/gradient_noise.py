"""How noisy the gradient of a step is: unbiased estimates of its variance and of its squared mean."""

# The step's groups are dealt to M parts like those of minibatches, and g_i is the gradient of the algorithm's
# loss over part i, all at the weights before the step's first update. If the parts are independent and
# equally large, then with ḡ = Σ g_i / M
#
#     variance = Σ |g_i − ḡ|² / (M (M − 1))             of tr Cov(ḡ)
#     signal   = (|Σ g_i|² − Σ |g_i|²) / (M (M − 1))    of |E ḡ|²
#
# are unbiased, and |ḡ|² = signal + variance. Both are of the whole step's gradient, so that neither depends
# on M; the gradient of 1/n of the step has n times the variance. See McCandlish et al. 2018,
# arXiv:1812.06162, appendix A, where rollouts · variance / signal is the simple noise scale, a batch size.
#
# They are approximate where parts differ in size (groups that M does not divide, rows that the algorithm
# leaves out) and where the signal of a group depends on others (advantages divided by a deviation over the
# batch).

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from grpobench.algorithms.algorithm import Batch, Metric, Signal
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.corrections import Correction
from grpobench.runs.train.update import Updater, minibatches

Gradient = Mapping[str, torch.Tensor]
"""By the name of the parameter; one without a gradient may be left out."""


@dataclass(frozen=True)
class Noise:
    """Of the mean of the parts' gradients."""

    variance: float
    """The trace of its covariance."""
    signal: float
    """The squared norm of its expectation; an estimate may be below 0."""


def estimate(gradients: Iterable[Gradient]) -> Noise | None:
    """The noise of the mean of these gradients, which are used one after the other; None for fewer than
    two."""
    count, squares = 0, 0.0
    total: dict[str, torch.Tensor] = {}
    for gradient in gradients:
        count += 1
        squares += squared_norm(gradient)
        for name, part in gradient.items():
            wide = torch.promote_types(part.dtype, torch.float32)  # a sum in bfloat16 would lose small parts
            # A copy of the first one, which is the caller's: the others are added in place.
            total[name] = total[name].add_(part) if name in total else part.to(wide, copy=True)
    if count < 2:
        return None
    squared_total = squared_norm(total)
    pairs = count * (count - 1)
    return Noise((squares - squared_total / count) / pairs, (squared_total - squares) / pairs)


def squared_norm(gradient: Gradient) -> float:
    """Over all parameters. The squares of each are added in float32 or better, those of all in float64."""
    norms = [
        torch.linalg.vector_norm(part, dtype=torch.promote_types(part.dtype, torch.float32))
        for part in gradient.values()
    ]
    return math.fsum(norm.item() ** 2 for norm in norms)


class GradientNoise:
    """Measures the policy's gradient noise every `train.gradient_noise` steps; changes nothing of the run."""

    def __init__(self, config: RunConfig, updater: Updater, catalog: Mapping[str, Metric]) -> None:
        self.config, self.updater, self.catalog = config, updater, catalog
        self.variance = self.signal = 0.0
        """Sums over the steps that were measured so far."""

    def due(self, step: int) -> bool:
        """Whether a step (from 1) is measured: every k-th with its first, if it updates the policy."""
        every = self.config.train.gradient_noise
        return (
            bool(every) and (step - 1) % every == 0 and "policy" in self.updater.algorithm.updated_roles(step)
        )

    def measure(
        self, batch: Batch, signal: Signal, correction: Correction | None, step: int
    ) -> dict[str, float]:
        """The metrics of a step, before its first update; empty where the batch has fewer than two parts."""
        noise = estimate(self._gradients(batch, signal, correction, step))
        if noise is None or not math.isfinite(noise.variance + noise.signal):  # finite if both are
            return {}
        self.variance += noise.variance
        self.signal += noise.signal
        # Not of this step alone: its signal may be 0 or less by chance, and a ratio would be biased.
        ratio = self.variance / self.signal if self.signal > 0 else math.nan
        return {
            "grad/variance": noise.variance,
            "grad/signal": noise.signal,
            "grad/noise_to_signal": ratio,
        }

    def _gradients(
        self, batch: Batch, signal: Signal, correction: Correction | None, step: int
    ) -> Iterator[Gradient]:
        """The policy's gradient of each part; each is gone with the next."""
        updater, models = self.updater, self.updater.models
        roles = updater.algorithm.updated_roles(step)
        # A stream of its own: measuring must not change how updates deal their groups.
        seed = derive(self.config.seed, "gradient noise", step)
        for rows in minibatches(batch, signal.row_group, self.config.train.gradient_noise_parts, seed):
            try:
                updater.differentiate(
                    batch[rows],
                    signal[rows],
                    roles,
                    self.catalog,
                    None if correction is None else correction[rows],
                    first=updater.needs_layout(roles),
                )
                # Before anything reads the gradient, as in an update.
                updater.unscale(("policy",))
                yield models.optimizers["policy"].weights.gradients()
            finally:
                models.clear()  # of every role: a critic's loss has a gradient too

    def state(self) -> Any:
        return [self.variance, self.signal]

    def restore(self, state: Any) -> None:
        self.variance, self.signal = state
