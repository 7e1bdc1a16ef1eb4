"""The in-process sampler, which decodes with the trained model itself."""

# The prompt of a group is prefilled and kept once (`decoding.py`), finished sequences leave the batch, and
# every sample has random numbers of its own, whatever else is in the batch.

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from grpobench.algorithms.algorithm import Mixture
from grpobench.runs.models.quantization import linear_weights, quantized
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.routing import UNKNOWN
from grpobench.runs.models.token_budgets import NoRoom, TokenBudget, portions, retry_smaller
from grpobench.runs.sample.decoding import Decoding, KeptBatches, ways
from grpobench.runs.sample.draws import Draws, WrittenTokens
from grpobench.runs.sample.fused import Fused
from grpobench.runs.sample.graphs import Graphs, proven, warn_unrecorded
from grpobench.runs.sample.recording import RecordingError
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import Mixing, Request, Sampler, demand_room, shared_truncation
from grpobench.runs.settings.truncation import Truncation
from grpobench.runs.tools.process import safe_point

LARGEST_GAP = 1e-3
"""Nats per token: far more than the order of float32 sums can change."""
LARGEST_ROUNDED_GAP = 0.2
"""The same in bfloat16, where sampler and trainer round in different shapes (docs/samplers.md has
measurements). A sampler with other weights or prompts is off by whole nats."""
LARGEST_QUANTIZED_GAP = 1.0
"""The same with weights of 8 or 4 bits."""
CHECK_INTERVAL, CHECK_INTERVAL_CPU = 8, 1
"""Tokens between two checks which sequences of a batch have ended. A check waits until a GPU has finished all
its work; on a CPU it costs nothing."""
TAIL = 64
"""Tokens at the end of a completion in which a marker is looked for; it has far fewer."""


@dataclass(frozen=True)
class Call:
    """What one call of the sampler asks for."""

    requests: Sequence[Request]
    limit: int
    temperature: float
    truncation: Truncation
    mixing: Mixing | None
    new_history: KeptBatches | None
    """Where the batches are kept for the next call; None: nowhere."""
    fused: Fused | None
    """The weights to decode with; None: the model's own."""


class HFSampler(Sampler):
    """Samples from the policy of `models`. Always in step with the trainer: they share the weights.

    `end` are the token ids that end a completion. `rows` is the largest number of sequences decoded at once;
    it is halved if memory does not hold so many. `weights` is the precision of rollouts, `sampler.weights`.
    """

    deterministic = True
    mixes_greedy = True

    def __init__(
        self,
        models: RoleModels,
        end: Sequence[int],
        pad: int,
        rows: int,
        context: int,
        weights: str = "trainer",
    ) -> None:
        self.models, self.weights = models, weights
        self.end = torch.tensor(sorted(end), device=models.device)
        self.pad = pad
        self.token_budget = TokenBudget("sequences decoded (sampler.max_batch_size)", rows)
        self.copies = TokenBudget("copies of the policy's weights to decode with", 1, least=0)
        self.context = context
        # In float32 only the order of sums differs between sampler and trainer.
        self.exact = models.dtype == torch.float32 and weights == "trainer"
        # A subclass may sample with anything, as beside training.
        self.reads_trainer_weights = type(self) is HFSampler and weights == "trainer"
        self.records = models.router_replay == "R3"
        """Whether rollouts carry the experts that their tokens were sent to."""
        self.max_logprob_gap = LARGEST_GAP if self.exact else LARGEST_ROUNDED_GAP
        if weights != "trainer":
            linear_weights(self.trunk)  # raises for a model without any
            self.max_logprob_gap = LARGEST_QUANTIZED_GAP
        self.history: KeptBatches | None = None
        with torch.inference_mode():
            self.shares, self.fuses = ways(models, pad)
            recordable = models.device.type == "cuda" and self.fuses
            self.graphs: Graphs | None = proven(models, pad) if recordable else None

    @property
    def trunk(self) -> nn.Module:
        """Of the policy that is decoded."""
        return self.models.networks["policy"].trunk

    def rollout_weights(self) -> contextlib.AbstractContextManager[None]:
        """Within, the policy's linear layers hold their weights in the precision of rollouts."""
        if self.weights == "trainer":
            return contextlib.nullcontext()
        self.wake()  # they may not be here yet
        return quantized(self.trunk, self.weights)

    @property
    def token_budgets(self) -> dict[str, TokenBudget]:
        return {"decoding": self.token_budget, "copies": self.copies}

    @property
    def episodes_at_once(self) -> int:
        """Most sequences of a call within `remembering`, whose keys and values are all kept."""
        return self.token_budget.limit

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """Within, a prompt that begins with a completion of the call before reuses its keys and values. The
        weights must not change meanwhile."""
        self.history = KeptBatches()
        try:
            yield
        finally:
            self.history = None

    @torch.inference_mode()
    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        """Completions of each request, in order. `limit` is the longest completion in tokens. Temperature 0
        is greedy (log-probabilities are then those of temperature 1), and so is a seed of `GREEDY`. Raises
        DataError for a prompt that leaves no room for `limit` tokens in the model's context, and NoRoom if
        memory does not hold a single sequence."""
        demand_room(requests, limit, self.context)
        jobs = [(i, j) for i, request in enumerate(requests) for j in range(len(request.seeds))]
        # Prompts of similar length together: less padding; stable, so that a group stays together.
        jobs.sort(key=lambda job: len(requests[job[0]].prompt))
        rollouts_by_request: list[list[Rollout | None]] = [
            [None] * len(request.seeds) for request in requests
        ]
        # Histories are looked up by tokens, which say nothing of mixtures.
        new_history = None if self.history is None or mixing is not None else KeptBatches()
        # Once per call, during which the weights stay as they are.
        fused = self._fused()
        call = Call(requests, limit, temperature, shared_truncation(requests), mixing, new_history, fused)

        def decode(chosen: range) -> None:
            part = jobs[chosen.start : chosen.stop]
            for (i, j), rollout in zip(part, self._decode(call, part), strict=True):
                rollouts_by_request[i][j] = rollout

        longest = max((len(request.prompt) for request in requests), default=0)
        single = f"a sequence of up to {limit:,} tokens behind a prompt of up to {longest:,}"
        graphs = self.graphs if fused is not None else None
        no_room = ""
        try:
            with contextlib.nullcontext() if graphs is None or fused is None else graphs.using(fused):
                portions(self.token_budget, len(jobs), decode, single)
        except NoRoom as error:
            if graphs is None or self.graphs is None:
                raise
            # Repeated below: here the traceback still holds the failed attempt's tensors.
            no_room = str(error)
        if no_room:
            # Graphs need memory of their own: without them as many sequences as at first may fit.
            self._stop_recording(no_room)
            self.token_budget.limit = self.token_budget.initial
            portions(self.token_budget, len(jobs), decode, single)
        if self.history is not None:
            # The batches before are dropped: a next turn continues from this one alone.
            self.history = new_history or KeptBatches()
        return [[rollout for rollout in group if rollout is not None] for group in rollouts_by_request]

    def _stop_recording(self, reason: str) -> None:
        """From now on, decode without CUDA graphs."""
        warn_unrecorded(reason)
        self.graphs = None

    def _fused(self) -> Fused | None:
        """A copy of the weights as they are now; None where a probe did not confirm it. Where memory does not
        hold it, the run goes on without copies, by the model's own forward pass."""

        def copied() -> Fused | None:
            return Fused(self.models) if self.shares and self.fuses and self.copies.limit else None

        return retry_smaller(copied, lambda why: self.copies.lower(1, why))

    def _decode(self, call: Call, jobs: Sequence[tuple[int, int]]) -> list[Rollout]:
        """The rollouts of some jobs, (request, seed) each, decoded as one batch."""
        requests, limit, mixing, new_history = call.requests, call.limit, call.mixing, call.new_history
        device = self.models.device
        # A graph has its own cache; it feeds plain tokens, and its batch is not continued.
        recorded = self.graphs if call.fused is not None and mixing is None and new_history is None else None
        batch = self._prefill(call, jobs, 0 if recorded else limit)
        written = WrittenTokens(len(jobs), limit, self.pad, self.end)
        draws = Draws(
            [requests[i].seeds[j] for i, j in jobs], limit, call.temperature, device, call.truncation
        )
        if recorded is not None:
            try:
                recorded.decode(batch, draws, written)
            except RecordingError as error:
                self._stop_recording(str(error))
            # After the except block, whose traceback holds the tensors of the failed attempt.
            if self.graphs is None:
                del batch, written, draws
                return self._decode(call, jobs)
            return written.rollouts([requests[i].prompt for i, _ in jobs], draws.noise is not None, None)
        # Greedy batches are fed plain tokens: a mixture takes a random number.
        feeds = MixedFeeds(mixing, draws, limit) if mixing is not None and draws.noise is not None else None
        routes = Routes(batch, limit) if batch.records else None
        interval = CHECK_INTERVAL_CPU if device.type == "cpu" else CHECK_INTERVAL
        for t in range(limit):
            safe_point()
            # At temperature 0 the log-probabilities are those of 1.
            logits = batch.logits if call.temperature in (0.0, 1.0) else batch.logits / call.temperature
            logp = logits.log_softmax(-1)
            drawn, chosen, entropy = draws.draw(t, batch.alive, logp)
            written.add(t, batch.alive, drawn, chosen, entropy)
            checks = (t + 1) % interval == 0
            if t + 1 == limit or (checks and bool(written.stopped[batch.alive].all())):
                break
            mixture = None if feeds is None else feeds.mix(t, batch.alive, drawn, logits, written)
            # Sequences are dropped only where the device is waited for anyway.
            batch.advance(drawn, written.stopped if checks else None, mixture)
            if routes is not None:
                routes.add(t, batch)
        rollouts = written.rollouts(
            [requests[i].prompt for i, _ in jobs],
            draws.noise is not None,
            None if feeds is None else feeds.arrays(),
        )
        if routes is not None:
            rollouts = routes.put_into(rollouts)
        if new_history is not None:
            prompts = [rollout.prompt for rollout in rollouts]
            new_history.add(batch, prompts, [rollout.completion for rollout in rollouts])
        return rollouts

    def _prefill(self, call: Call, jobs: Sequence[tuple[int, int]], limit: int) -> Decoding:
        """A batch whose prompts are computed, each once, and in which no job has written a token yet."""
        indices = list(dict.fromkeys(i for i, _ in jobs))
        owner = torch.tensor([indices.index(i) for i, _ in jobs], device=self.models.device)
        prompts = [call.requests[i].prompt for i in indices]
        prefix_cache = self.history.find(prompts) if self.history else None
        keeps = call.new_history is not None
        # Not in a conversation, in which a prompt's experts were chosen in an earlier batch.
        records = self.records and self.history is None
        return Decoding(
            self.models,
            prompts,
            owner,
            limit,
            self.pad,
            self.shares,
            prefix_cache,
            keeps,
            call.fused,
            records,
        )


class Routes:
    """The experts that the tokens of a batch were sent to. To be made before its first token is fed."""

    def __init__(self, batch: Decoding, limit: int) -> None:
        self.prompt = batch.prompt_routes
        self.owner = batch.owner
        shape = (len(batch.alive), limit, *batch.prompt_routes.shape[2:])
        self.completion = batch.prompt_routes.new_full(shape, UNKNOWN)

    def add(self, t: int, batch: Decoding) -> None:
        """Keep the routes of the t-th tokens, which were fed last."""
        self.completion[batch.alive, t] = batch.routes

    def put_into(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts of all jobs, with their routes."""
        # One transfer for the batch, as for its tokens.
        prompts, completions = self.prompt.cpu().numpy(), self.completion.cpu().numpy()
        owner, routed_rollouts = self.owner.tolist(), []
        for row, rollout in enumerate(rollouts):
            # Prompts are padded on the left.
            prompt = prompts[owner[row]][prompts.shape[1] - len(rollout.prompt) :]
            completion = completions[row, : len(rollout.completion)].copy()
            # A sequence that has ended may stay in the batch, and its last token is then fed for nothing.
            completion[-1:] = UNKNOWN
            routed_rollouts.append(dataclasses.replace(rollout, routed_experts=(prompt, completion)))
        return routed_rollouts


class MixedFeeds:
    """What a batch is fed instead of its plain tokens, and what it was fed so far."""

    def __init__(self, mixing: Mixing, draws: Draws, limit: int) -> None:
        assert draws.noise is not None
        self.mixing, self.noise, self.limit = mixing, draws.noise, limit
        # A clone: it grows in place, and the draws need theirs.
        self.plain = draws.greedy.clone()
        """Bool (jobs,): fed plain tokens from now on."""
        self.mixed: list[tuple[int, torch.Tensor, Mixture]] = []
        """(t, jobs, mixtures) of every token that was fed mixed."""

    def mix(
        self, t: int, alive: torch.Tensor, drawn: torch.Tensor, logits: torch.Tensor, written: WrittenTokens
    ) -> Mixture | None:
        """What to feed the jobs `alive` (R,) instead of their t-th tokens `drawn` (R,); None: the tokens."""
        self._end_mixing(written.tokens[:, max(0, t + 1 - TAIL) : t + 1], alive[~self.plain[alive]])
        rows = (~(self.plain | written.stopped)[alive]).nonzero().squeeze(-1)
        if not len(rows):
            return None
        # The second number of a token is derived from the first one's low bits: so mixing does not change
        # which tokens are drawn.
        uniform = self.noise[alive, t] * 2**20 % 1
        some = self.mixing.mixer(drawn[rows], logits[rows], uniform[rows])
        # Weights of 0 mean the token itself.
        empty = some.token.new_zeros((len(drawn), some.token.shape[-1]))
        mixture = Mixture(
            empty.index_copy(0, rows, some.token),
            empty.to(some.weight.dtype).index_copy(0, rows, some.weight),
        )
        self.mixed.append((t, alive, mixture))
        return mixture

    def _end_mixing(self, tail: torch.Tensor, mixing_jobs: torch.Tensor) -> None:
        """Feed plain tokens to those of these jobs from now on whose mixing ends with the last token of their
        `tail` (jobs, t). Only of jobs that still mix, since looking for the marker decodes text."""
        if self.mixing.over is not None:
            ended = [self.mixing.over(tokens) for tokens in tail[mixing_jobs].tolist()]
            self.plain[mixing_jobs] = torch.tensor(ended, dtype=torch.bool, device=tail.device)

    def arrays(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(tokens (jobs, limit, k), weights (jobs, limit, k)), of which the weights are 0 where a plain token
        was fed; None if none was fed mixed."""
        if not self.mixed:
            return None
        shape = len(self.plain), self.limit, self.mixed[0][2].token.shape[-1]
        token, weight = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        for t, alive, mixture in self.mixed:
            token[alive.cpu(), t] = mixture.token.cpu()
            weight[alive.cpu(), t] = mixture.weight.float().cpu()
        return token.numpy(), weight.numpy()
