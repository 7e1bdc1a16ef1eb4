"""The tokens of a batch: how they are drawn, and what was written so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import GREEDY
from grpobench.runs.settings.truncation import FULL, Truncation

NEVER = -1e4
"""Nats: finite, unlike −∞, and its exponential is 0 in float64. So p·log p is 0 at p = 0, and not NaN."""
CACHED = 2**16
"""Probabilities that are inverted at once on a CPU: four tensors of them in float64 fill a core's cache."""
ONE_BITS = 0x3FF << 52
"""The bits of 1.0 in float64. Those of 1 + p, less these, are p as an integer of 2^-52."""


class Draws:
    """Draws the next tokens of the jobs of a batch.

    All random numbers of a job are derived from its seed before the first token. What else is in the batch,
    and when other jobs end, therefore cannot change its completion.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        limit: int,
        temperature: float,
        device: torch.device,
        truncation: Truncation = FULL,
    ) -> None:
        self.temperature, self.truncation = temperature, truncation
        # Made on the CPU, so that every device gets the same numbers.
        self.noise = None if temperature == 0 else uniforms(seeds, limit).to(device)
        """(jobs, limit) numbers in [0, 1); None in a greedy batch."""
        self.greedy = torch.tensor([seed == GREEDY for seed in seeds], device=device)
        """Bool (jobs,): decoded greedily although the batch is sampled."""
        self.some_greedy = GREEDY in seeds  # known without asking the device

    def draw(
        self, t: int, alive: torch.Tensor, logp: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The t-th tokens of the jobs `alive` (R,) from logp (R, V), as `choose` gives them."""
        uniform = None if self.noise is None else self.noise[alive, t]
        return choose(logp, uniform, self.greedy[alive] if self.some_greedy else None, self.truncation)


class WrittenTokens:
    """The tokens that the jobs of a batch have written so far, at most `limit` each. A token of `end` (n,)
    stops its job."""

    def __init__(self, jobs: int, limit: int, pad: int, end: torch.Tensor) -> None:
        device = end.device
        self.end, self.pad, self.jobs = end, pad, torch.arange(jobs, device=device)
        self.alive = self.row_of_job = self.jobs
        """The jobs (R,) that wrote last, and where each job (jobs,) stands among them, if it does."""
        self.tokens = torch.full((jobs, limit), pad, device=device)
        self.logp = torch.zeros(jobs, limit, device=device)
        self.entropy = torch.zeros_like(self.logp)
        self.length = torch.full((jobs,), limit, device=device)  # of jobs that never stop
        self.stopped = torch.zeros(jobs, dtype=torch.bool, device=device)

    def add(
        self,
        t: int,
        alive: torch.Tensor,
        drawn: torch.Tensor,
        logp: torch.Tensor,
        entropy: torch.Tensor | None,
    ) -> None:
        """Add the t-th tokens `drawn` (R,) of the jobs `alive` (R,), in their order, their `logp` (R,) and
        `entropy` (R,)."""
        # Whole columns: a GPU with deterministic operators sorts the places of every assignment to an index.
        self.tokens[:, t] = self._of_jobs(alive, drawn, self.pad)
        self.logp[:, t] = self._of_jobs(alive, logp, 0.0)
        if entropy is not None:
            self.entropy[:, t] = self._of_jobs(alive, entropy, 0.0)
        # Jobs that have stopped stay in the batch until the next check: their length must not move.
        now = self._of_jobs(alive, torch.isin(drawn, self.end), False) & ~self.stopped
        self.length = torch.where(now, t + 1, self.length)
        self.stopped = self.stopped | now

    def _of_jobs(self, alive: torch.Tensor, values: torch.Tensor, other: float) -> torch.Tensor:
        """Values (R,) of the jobs `alive` (R,) as values (jobs,) of all jobs, `other` for those that have
        left."""
        if len(alive) == len(self.jobs):
            return values
        # By identity: to compare values would wait for the device.
        if alive is not self.alive:
            self.alive = alive
            # `alive` ascends; a job beyond its last one would get an index out of range.
            self.row_of_job = torch.searchsorted(alive, self.jobs).clamp(max=len(alive) - 1)
        return torch.where(alive[self.row_of_job] == self.jobs, values[self.row_of_job], other)

    def rollouts(
        self,
        prompts: Sequence[tuple[int, ...]],
        sampled: bool,
        feeds: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[Rollout]:
        """The rollout of each job. Those of a batch that is not `sampled`, but greedy, have no entropy."""
        # One transfer from the device for the batch, not one per rollout.
        tokens, logp = self.tokens.cpu(), self.logp.cpu().numpy()
        entropy = self.entropy.cpu().numpy() if sampled else None
        stopped = self.stopped.tolist()
        return [
            Rollout(
                prompt=prompt,
                completion=tuple(tokens[row, :length].tolist()),
                # Copies: a view would keep the arrays of the batch as long as the rollout.
                sampler_logp=logp[row, :length].copy(),
                stopped=stopped[row],
                mixture=None if feeds is None else (feeds[0][row, :length], feeds[1][row, :length]),
                entropy=None if entropy is None else entropy[row, :length].copy(),
            )
            for row, (prompt, length) in enumerate(zip(prompts, self.length.tolist(), strict=True))
        ]


def uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """(rows, count) numbers in [0, 1), each row from its own counter-based generator; 0 for `GREEDY`."""
    rows = [
        np.zeros(count) if seed == GREEDY else np.random.Generator(np.random.Philox(key=seed)).random(count)
        for seed in seeds
    ]
    return torch.from_numpy(np.stack(rows))


def choose(
    logp: torch.Tensor, uniform: torch.Tensor | None, greedy: torch.Tensor | None, truncation: Truncation
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Tokens (R,) drawn from logp (R, V) at `uniform` (R,), or the most probable ones where that is None or
    `greedy` (R,) is true; their log-probabilities (R,) in the distribution that they were drawn from; and the
    entropies (R,) in nats of logp, which is not truncated. The entropies are None without `uniform`."""
    entropy = None
    if uniform is None:
        drawn = logp.argmax(-1)
    else:
        # Of the full distribution, also where another token is drawn below.
        drawn, entropy = draw(logp, uniform)
        full = logp
        if truncation.active:
            logp = truncate(logp, truncation)
            drawn, _ = draw(logp, uniform)
        if greedy is not None:
            drawn = torch.where(greedy, full.argmax(-1), drawn)
            # Greedy tokens are chosen from the full distribution, and their log-probabilities are of that.
            logp = torch.where(greedy[:, None], full, logp) if truncation.active else logp
    return drawn, logp.gather(-1, drawn[:, None]).squeeze(-1), entropy


def truncate(logp: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Log-probabilities (R, V) of the tokens that a truncation keeps, renormalized, and −∞ for the others.
    Tokens as probable as the least probable one that is kept are kept too, whatever their order."""
    truncated = logp
    if 0 < truncation.top_k < logp.shape[-1]:
        least = truncated.topk(truncation.top_k).values[:, -1:]
        # Renormalized here, because top_p and min_p are shares of what top_k leaves.
        truncated = truncated.masked_fill(truncated < least, -math.inf).log_softmax(-1)
    if truncation.min_p:
        least = truncated.amax(-1, keepdim=True) + math.log(truncation.min_p)
        truncated = truncated.masked_fill(truncated < least, -math.inf)
    if truncation.top_p < 1:
        ordered = truncated.sort(-1, descending=True).values
        mass = integers(ordered.clamp(min=NEVER).double().exp())
        cumulative = mass.cumsum(-1)
        before = cumulative - mass
        # A token is needed while those before it have less than the share.
        needed = before < truncation.top_p * cumulative[:, -1:].double()
        least = ordered.masked_fill(~needed, math.inf).amin(-1, keepdim=True)
        truncated = truncated.masked_fill(truncated < least, -math.inf)
    return truncated.log_softmax(-1)


def integers(probability: torch.Tensor) -> torch.Tensor:
    """Probabilities in float64 as integers of 2^-52, whose sum is the same in every order: a GPU with
    deterministic operators refuses that of floats. By their bits, since a conversion takes as long as the
    exponential."""
    return (probability + 1.0).view(torch.int64).sub_(ONE_BITS)


def draw(logp: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (R,) by inverting the cumulative distribution of logp (R, V) at `uniform` (R,), and the entropy
    (R,) in nats of that distribution, both computed in float64."""
    rows = max(1, CACHED // logp.shape[-1])
    if logp.device.type != "cpu" or len(logp) <= rows:
        return invert(logp, uniform)
    # Some rows at a time, so that what one operation writes is in the cache for the next.
    parts = [invert(*part) for part in zip(logp.split(rows), uniform.split(rows), strict=True)]
    drawn, entropy = map(torch.cat, zip(*parts, strict=True))
    return drawn, entropy


def invert(logp: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `draw`, all rows at once."""
    # float64: in float32 the sum over a vocabulary is off by more than the probability of a rare token.
    wide = logp.clamp(min=NEVER).double()
    probability = wide.exp()
    cumulative = integers(probability).cumsum(-1)
    # Of the last sum, which rounding keeps from being exactly 2^52. The product may round up to it, where no
    # token lies.
    total = cumulative[:, -1:]
    quantile = torch.minimum((uniform.double()[:, None] * total).long(), total - 1)
    # `right`, by which a token of probability 0 has an empty interval and is never drawn.
    drawn = torch.searchsorted(cumulative, quantile, right=True).squeeze(-1).clamp(max=logp.shape[-1] - 1)
    # In place: a fourth tensor in float64 would leave a core's cache (`CACHED`).
    return drawn, -wide.mul_(probability).sum(-1).to(logp.dtype)
