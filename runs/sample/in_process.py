"""The in-process sampler, which decodes with the trained model itself.

The prompt of a group is prefilled and kept once (`decoding.py`), finished sequences leave the batch, and
every sample has random numbers of its own, whatever else is in the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from grpobench.algorithms.algorithm import Mixture
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import TokenBudget, portions
from grpobench.runs.sample.decoding import Decoding, History, ways
from grpobench.runs.sample.fused import Fused
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import GREEDY, Mixing, Request, demand_room
from grpobench.runs.tools.process import safe_point

LARGEST_GAP = 1e-3
"""Nats per token: far above what the order of float32 sums can do."""
LARGEST_ROUNDED_GAP = 0.2
"""The same in bfloat16, where sampler and trainer round in other shapes (docs/samplers.md has
measurements); a sampler that reads something else is off by nats."""
NEVER = -1e4
"""Nats: its exponential is nought in float64, and times that it is nought, as p·log p is at p = 0."""
LOOK, LOOK_CPU = 8, 1
"""Tokens after which a batch is asked which of its sequences have ended. A GPU has to be waited for, a CPU
does not."""
TAIL = 64
"""Tokens: more than a marker of some letters can take."""


class HFSampler:
    """Samples from the policy of `models`. Always in step with the trainer: they share the weights.

    `end` are the token ids that end a completion; `rows` bounds the sequences decoded at once, of which fewer
    are where memory does not hold so many.
    """

    def __init__(self, models: RoleModels, end: Sequence[int], pad: int, rows: int, context: int) -> None:
        self.models = models
        self.end = torch.tensor(sorted(end), device=models.device)
        self.pad = pad
        self.token_budget = TokenBudget("sequences decoded (sampler.max_batch_size)", rows)
        self.context = context
        self.exact = models.dtype == torch.float32
        self.max_logprob_gap = LARGEST_GAP if self.exact else LARGEST_ROUNDED_GAP
        self.history: History | None = None
        with torch.inference_mode():
            self.shares, self.fuses = ways(models, pad)

    def sync(self) -> dict[str, float]:
        """Nothing to do: sampler and trainer share the weights."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """Within, prompts that go on from what the call before sampled are computed from there on; the
        weights must stay as they are."""
        self.history = History()
        try:
            yield
        finally:
            self.history = None

    @torch.inference_mode()
    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        """Completions of each request, in order. `limit` is the longest completion in tokens; temperature 0
        is greedy (log-probabilities are then those of temperature 1), and so is a seed of `GREEDY`. Raises
        DataError for a prompt that leaves no room for `limit` tokens in the model's context, NoRoom where
        memory does not hold a single sequence."""
        demand_room(requests, limit, self.context)
        jobs = [(i, j) for i, request in enumerate(requests) for j in range(len(request.seeds))]
        # Prompts of similar length together: less padding; stable, so that a group stays together.
        jobs.sort(key=lambda job: len(requests[job[0]].prompt))
        out: list[list[Rollout | None]] = [[None] * len(request.seeds) for request in requests]
        kept = None if self.history is None or mixing is not None else History()
        fused = Fused(self.models) if self.shares and self.fuses else None

        def decode(chosen: range) -> None:
            part = jobs[chosen.start : chosen.stop]
            for (i, j), rollout in zip(
                part, self._decode(requests, part, limit, temperature, mixing, kept, fused), strict=True
            ):
                out[i][j] = rollout

        longest = max((len(request.prompt) for request in requests), default=0)
        portions(
            self.token_budget,
            len(jobs),
            decode,
            f"a sequence of up to {limit:,} tokens behind a prompt of up to {longest:,}",
        )
        if self.history is not None:
            self.history = kept or History()
        return [[rollout for rollout in group if rollout is not None] for group in out]

    def _decode(
        self,
        requests: Sequence[Request],
        jobs: Sequence[tuple[int, int]],
        limit: int,
        temperature: float,
        mixing: Mixing | None,
        kept: History | None,
        fused: Fused | None,
    ) -> list[Rollout]:
        indices = list(dict.fromkeys(i for i, _ in jobs))
        owner = torch.tensor([indices.index(i) for i, _ in jobs], device=self.models.device)
        seeds = [requests[i].seeds[j] for i, j in jobs]
        noise = None if temperature == 0 else uniforms(seeds, limit).to(self.models.device)
        greedy = torch.tensor([seed == GREEDY for seed in seeds], device=self.models.device)
        some_greedy = GREEDY in seeds
        prompts = [requests[i].prompt for i in indices]
        known = self.history.find(prompts) if self.history else None
        keeps = kept is not None
        run = Decoding(self.models, prompts, owner, limit, self.pad, self.shares, known, keeps, fused)
        written = Written(len(jobs), limit, self.pad, self.models.device)
        look = LOOK_CPU if self.models.device.type == "cpu" else LOOK
        plain = greedy.clone()  # jobs that are fed no mixtures, or no more
        mixed: list[tuple[int, torch.Tensor, Mixture]] = []
        for t in range(limit):
            safe_point()
            logits = run.logits if temperature in (0.0, 1.0) else run.logits / temperature
            logp = logits.log_softmax(-1)
            if noise is None:
                drawn = logp.argmax(-1)
            else:
                drawn, written.entropy[run.alive, t] = draw(logp, noise[run.alive, t])
                drawn = torch.where(greedy[run.alive], logp.argmax(-1), drawn) if some_greedy else drawn
            written.add(t, run.alive, drawn, logp, self.end)
            # The device is asked now and then: each time it has to finish what it was given first.
            looks = (t + 1) % look == 0
            if t + 1 == limit or (looks and bool(written.stopped[run.alive].all())):
                break
            mixture = None
            if mixing is not None and noise is not None:
                tail = written.tokens[:, max(0, t + 1 - TAIL) : t + 1]
                plain |= _begun(mixing, tail, run.alive[~plain[run.alive]])
                rows = (~(plain | written.stopped)[run.alive]).nonzero().squeeze(-1)
                # A second number per token, derived from the first: drawing stays as it is without mixing.
                mixture = _mixed(mixing, rows, drawn, logits, noise[run.alive, t] * 2**20 % 1)
            if mixture is not None:
                mixed.append((t, run.alive, mixture))
            run.advance(drawn, written.stopped if looks else None, mixture)
        feeds = _feeds(mixed, len(jobs), limit)
        rollouts = written.rollouts([requests[i].prompt for i, _ in jobs], noise is not None, feeds)
        if kept is not None:
            kept.add(
                run, [rollout.prompt for rollout in rollouts], [rollout.completion for rollout in rollouts]
            )
        return rollouts


class Written:
    """What the jobs of a batch have written so far, `limit` tokens at most."""

    def __init__(self, jobs: int, limit: int, pad: int, device: torch.device) -> None:
        self.tokens = torch.full((jobs, limit), pad, device=device)
        self.logp = torch.zeros(jobs, limit, device=device)
        self.entropy = torch.zeros_like(self.logp)
        self.length = torch.full((jobs,), limit, device=device)
        self.stopped = torch.zeros(jobs, dtype=torch.bool, device=device)

    def add(
        self, t: int, alive: torch.Tensor, drawn: torch.Tensor, logp: torch.Tensor, end: torch.Tensor
    ) -> None:
        """The t-th token, `drawn` (R,) from `logp` (R, V), of the jobs `alive` (R,); one of `end` stops a
        job."""
        self.tokens[alive, t] = drawn
        self.logp[alive, t] = logp.gather(-1, drawn[:, None]).squeeze(-1)
        before = self.stopped[alive]
        now = before | torch.isin(drawn, end)
        self.length[alive] = torch.where(before | ~now, self.length[alive], t + 1)
        self.stopped[alive] = now

    def rollouts(
        self,
        prompts: Sequence[tuple[int, ...]],
        sampled: bool,
        feeds: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[Rollout]:
        """A rollout of each job; one of a greedy batch, which is not `sampled`, has no entropy."""
        tokens, logp = self.tokens.cpu(), self.logp.cpu().numpy()
        entropy = self.entropy.cpu().numpy() if sampled else None
        stopped = self.stopped.tolist()
        return [
            Rollout(
                prompt=prompt,
                completion=tuple(tokens[row, :length].tolist()),
                sampler_logp=logp[row, :length].copy(),
                stopped=stopped[row],
                mixture=None if feeds is None else (feeds[0][row, :length], feeds[1][row, :length]),
                entropy=None if entropy is None else entropy[row, :length].copy(),
            )
            for row, (prompt, length) in enumerate(zip(prompts, self.length.tolist(), strict=True))
        ]


def uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """(rows, count) numbers in [0, 1), each row from its own counter-based generator; nought for `GREEDY`."""
    rows = [
        np.zeros(count) if seed == GREEDY else np.random.Generator(np.random.Philox(key=seed)).random(count)
        for seed in seeds
    ]
    return torch.from_numpy(np.stack(rows))


def draw(logp: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (R,) by inverting the cumulative distribution of logp (R, V) at `uniform` (R,), and the entropy
    (R,) in nats of that distribution, both computed in float64."""
    wide = logp.clamp(min=NEVER).double()
    probability = wide.exp()
    cumulative = probability.cumsum(-1)
    point = uniform.double()[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, point, right=True).squeeze(-1).clamp(max=logp.shape[-1] - 1)
    return drawn, -wide.mul_(probability).sum(-1).to(logp.dtype)


def _begun(mixing: Mixing, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Bool (jobs,): those of `rows` whose last token of `tokens` (jobs, t) ends their mixing."""
    begun = torch.zeros(len(tokens), dtype=torch.bool)
    if mixing.over is not None:
        for row, written in zip(rows.tolist(), tokens[rows].tolist(), strict=True):
            begun[row] = mixing.over(written)
    return begun.to(tokens.device)


def _mixed(
    mixing: Mixing, rows: torch.Tensor, drawn: torch.Tensor, logits: torch.Tensor, uniform: torch.Tensor
) -> Mixture | None:
    """What to feed instead of the tokens `drawn` (R,): mixtures in some of `rows`, the tokens elsewhere."""
    if not len(rows):
        return None
    some = mixing.mixer(drawn[rows], logits[rows], uniform[rows])
    empty = some.token.new_zeros((len(drawn), some.token.shape[-1]))
    return Mixture(
        empty.index_copy(0, rows, some.token), empty.to(some.weight.dtype).index_copy(0, rows, some.weight)
    )


def _feeds(
    mixed: Sequence[tuple[int, torch.Tensor, Mixture]], rows: int, limit: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """(tokens (rows, limit, k), weights (rows, limit, k)) of everything that was fed mixed."""
    if not mixed:
        return None
    k = mixed[0][2].token.shape[-1]
    token, weight = torch.zeros(rows, limit, k, dtype=torch.long), torch.zeros(rows, limit, k)
    for t, alive, mixture in mixed:
        token[alive.cpu(), t] = mixture.token.cpu()
        weight[alive.cpu(), t] = mixture.weight.float().cpu()
    return token.numpy(), weight.numpy()
