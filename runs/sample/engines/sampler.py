"""The sampler that decodes with vLLM, in this process or behind `grpobench serve`, with weights of its
own."""

# After every update the engine takes over the trainer's weights, or the adapter alone where the weights do
# not change. A measurement proves it: the engine answers a probe prompt, and its log-probabilities must be
# those that the trainer gives the same tokens. Engines have reported success and gone on with a stale output
# head or with keys and values of the old weights.

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpobench.runs.models import adapters
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.engines.engine import Engine, EngineCompletion
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.sample.sampler import Mixing, Request, Sampler, demand_room, shared_truncation
from grpobench.runs.settings.config import RunConfig
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Verdict

PROBES = 4
"""Completions of the probe prompt."""
PROBE_TOKENS = 16
"""Their length."""
LARGEST_GAP = {torch.float32: 1e-4, torch.bfloat16: 1.0, torch.float8_e4m3fn: 4.0}
"""Greatest |Δ log p| in nats on the probe that is arithmetic and not a fault, by the coarser precision; of
quantized weights it is an assumption."""
LARGEST_MEAN_GAP = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float8_e4m3fn: 0.5}
"""The same for the mean over a step's rollouts."""
NOISE = 5e-7
"""Nats (root mean square) below which a difference says nothing, whatever was measured."""
STIRRED = 0.125
"""Size of the adapter with which it is proven that the engine takes adapters over, in shares of each layer's
weights (Frobenius norm)."""
SURE = 4
"""How many times the noise the trainer must have moved on the probe to demand that the engine moved along.
With 64 tokens the share in which it followed is then known to within a few hundredths."""


class SamplerMismatch(RuntimeError):
    """Sampler and trainer do not have the same weights, or not the same arithmetic."""


@dataclass(frozen=True)
class ProbeAnswers:
    """What engine and trainer said about the engine's own answers to the probe prompt: log-probabilities
    (PROBES, PROBE_TOKENS) in float64."""

    tokens: tuple[tuple[int, ...], ...]
    engine: torch.Tensor
    trainer: torch.Tensor

    @property
    def gap(self) -> float:
        """Greatest difference."""
        return float((self.engine - self.trainer).abs().max())

    @property
    def noise(self) -> float:
        """Root mean square difference."""
        return float((self.engine - self.trainer).square().mean().sqrt())

    def followed(self, before: ProbeAnswers | None, noise: float) -> float:
        """The share of the trainer's move since `before` that the engine made too; 1 where there is nothing
        to compare: other tokens (then the engine did move), or a move that is lost in the noise."""
        if before is None or before.tokens != self.tokens:
            return 1.0
        move = self.trainer - before.trainer
        if float(move.square().mean().sqrt()) <= SURE * noise:
            return 1.0
        # Projected on the trainer's move, so that noise of the engine in other directions does not count.
        return float(((self.engine - before.engine) * move).sum() / move.square().sum())


class EngineSampler(Sampler):
    """Samples with an engine that is kept in step with the policy of `models`.

    `prompt` is the probe; `max_logprob_gap` in nats overrides what is allowed there (0 keeps the default).
    `quantized` is whether the engine rounds the weights that it is handed to 8 bits. Raises SamplerMismatch
    at once when the engine cannot follow the trainer.
    """

    exact = False
    """log π_old is read by the trainer: the engine's arithmetic is its own."""

    def __init__(
        self,
        engine: Engine,
        models: RoleModels,
        *,
        end: Sequence[int],
        pad: int,
        context: int,
        prompt: Sequence[int],
        max_logprob_gap: float = 0.0,
        quantized: bool = False,
    ) -> None:
        self.engine, self.models = engine, models
        self.apart = models.adapter is not None and engine.adapts
        """Whether the engine has the adapter beside weights that stay as they are."""
        self.end, self.pad = tuple(sorted(end)), pad
        self.context = min(context, engine.context)
        cramped = engine.context < context
        self.remedy = ", give the engine a larger cache (sampler.cache_gb)" if cramped else ""
        # The coarser of both precisions decides how far rounding alone may part them.
        coarser = torch.float32 if {engine.dtype, models.dtype} == {torch.float32} else torch.bfloat16
        coarser = torch.float8_e4m3fn if quantized else coarser
        self.allowed = max_logprob_gap or LARGEST_GAP[coarser]
        self.max_logprob_gap = max(LARGEST_MEAN_GAP[coarser], max_logprob_gap)
        self.noise = NOISE
        self.prompt = stretched(prompt, engine.block + 1, self.context - PROBE_TOKENS)
        self.last: ProbeAnswers | None = None
        self.prove()

    @property
    def provenance(self) -> dict[str, Any]:
        """The engine, and what it has of an adapter: it `beside` its weights, or `merged` ones; for
        provenance.json."""
        adapter = "none" if self.models.adapter is None else "beside" if self.apart else "merged"
        return {**self.engine.provenance, "adapter": adapter}

    def prove(self) -> None:
        """Find out whether the engine follows: with the policy's weights, with every weight halved (which
        moves whatever depends on any of them, and is undone exactly), and with the policy's again. An adapter
        of its own begins at nought, which halves to nought: it is stirred as well."""
        self._load_all()
        with halved(self.models.language):
            self._load_all()
        self._load_all()
        if self.apart:
            with stirred(self.models.language):
                self.sync()
            self.sync()

    def _load_all(self) -> None:
        """Hand over the weights, and the adapter if the engine has it beside them."""
        if self.apart:
            # What the engine has read from the model's files are not the weights after a warm start.
            self.engine.load(checkpoint_weights(self.models.plain))
            self.sync()
        else:
            self.sync()

    def sync(self) -> dict[str, float]:
        """Hand what is trained to the engine, which wakes up if it was asleep: the adapter where the engine
        has it apart, else all weights. Raises SamplerMismatch when it does not answer accordingly."""
        language = self.models.language
        if self.apart:
            self.engine.load_adapter(*adapters.as_peft(language, "", self.engine.dtype))
        else:
            self.engine.load(checkpoint_weights(language))
        now = self.probe()
        followed = now.followed(self.last, self.noise)
        # In this form NaN is a mismatch, too.
        if not (now.gap <= self.allowed and followed > 0.5):
            raise SamplerMismatch(self._complaint(now.gap, followed))
        # Only once both agree: a fault must not count as noise.
        self.noise = max(self.noise, now.noise)
        self.last = now
        return {"gap/sync": now.gap}

    def _complaint(self, gap: float, followed: float) -> str:
        remedy = "sampler.merge_adapter = true or " if self.apart else ""
        symptom = f"differ by {gap:.2g} nats on the probe prompt, where {self.allowed:.2g} are allowed"
        if gap <= self.allowed:
            symptom = (
                f"do not move together: the engine made {followed:.0%} of the trainer's move on the probe"
            )
        return (
            f"after a weight synchronization the sampler and the trainer {symptom}; the engine has not taken "
            f'over the weights, or computes otherwise. Set {remedy}sampler.kind = "hf"; or '
            "sampler.max_logprob_gap, if "
            "you know that the difference is one of precision"
        )

    def probe(self) -> ProbeAnswers:
        """Have the engine answer the probe prompt, end tokens ignored, and the trainer read the answers."""
        jobs = [(self.prompt, seed) for seed in range(PROBES)]
        completions = self.engine.sample(jobs, PROBE_TOKENS, self.models.temperature, ())
        rollouts = [self._rollout(self.prompt, drawn) for drawn in completions]
        verdicts, rewards = [Verdict({}, None)] * PROBES, [0.0] * PROBES
        group = Group(Problem("probe", "", None), rollouts, verdicts, rewards)
        batch = pack_groups([group], PROBE_TOKENS, 0, self.pad, str(self.models.device))
        trainer = self.models.forward("policy", batch).logp.double().cpu()
        return ProbeAnswers(
            tuple(drawn.tokens for drawn in completions), batch.sampler_logp.double().cpu(), trainer
        )

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        """Completions of each request, in order. `limit` is the longest completion in tokens; temperature 0
        is greedy (log-probabilities are then those of temperature 1), and so is a seed of `GREEDY`. An engine
        that is asleep wakes up first. Raises DataError for a prompt that leaves no room for `limit` tokens.
        """
        if mixing is not None:
            raise DataError('vLLM feeds plain tokens and mixes no embeddings; set sampler.kind = "hf"')
        demand_room(requests, limit, self.context, self.remedy)
        jobs = [(request.prompt, seed) for request in requests for seed in request.seeds]
        if self.engine.asleep:  # a step that had nothing to train on makes no synchronization
            self.sync()
        truncation = shared_truncation(requests)
        completions = iter(self.engine.sample(jobs, limit, temperature, self.end, truncation))
        return [
            [self._rollout(request.prompt, next(completions)) for _ in request.seeds] for request in requests
        ]

    def _rollout(self, prompt: tuple[int, ...], drawn: EngineCompletion) -> Rollout:
        stopped = bool(drawn.tokens) and drawn.tokens[-1] in self.end
        return Rollout(prompt, drawn.tokens, drawn.logp, stopped)

    def sleep(self) -> None:
        """Have the engine give its memory to the trainer until the next synchronization, if it can."""
        self.engine.sleep()

    def close(self) -> None:
        self.engine.close()


def connect(config: RunConfig, models: RoleModels, loaded: Loaded) -> EngineSampler:
    """The engine that the configuration asks for, and its sampler."""
    settings = config.sampler
    if settings.kind == "vllm-server":
        from grpobench.runs.sample.engines.server import Remote

        engine: Engine = Remote(settings.url, f"{config.experiment}/{config.folder}")
    else:
        from grpobench.runs.sample.engines.vllm import VLLM, room_for

        engine = VLLM(
            loaded.model.name_or_path,
            dtype=config.model.dtype,
            rows=settings.max_batch_size,
            cache_gb=settings.cache_gb,
            room=None if settings.merge_adapter else room_for(models),
            sleeps=settings.sleep,
            quantization=None if settings.weights == "trainer" else settings.weights,
        )
    try:
        return EngineSampler(
            engine,
            models,
            end=loaded.end,
            pad=loaded.pad,
            context=loaded.context,
            prompt=loaded.encode(config.task.problems("train")[0].prompt),
            max_logprob_gap=settings.max_logprob_gap,
            quantized=settings.weights != "trainer",
        )
    # A run that is stopped raises `Preempted`, which is no Exception.
    except BaseException:
        engine.close()
        raise


def stretched(prompt: Sequence[int], least: int, most: int) -> tuple[int, ...]:
    """The prompt, repeated until it fills more than a block of the engine's prefix cache: only then would
    keys and values of old weights be met again."""
    times = -(-least // max(1, len(prompt)))
    return tuple((list(prompt) * times)[: max(1, most)])


def checkpoint_weights(language: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters by the names and in the shapes of the model's checkpoints, tied ones once. An adapter is
    added to copies of its layers' weights, for an engine that knows nothing of it."""
    from transformers.core_model_loading import revert_weight_conversion

    # transformers 5 keeps some weights under other names and in other shapes than checkpoints have.
    yield from revert_weight_conversion(language, adapters.merged_weights(language)).items()


@contextlib.contextmanager
def halved(language: Any) -> Iterator[None]:
    """Every weight times one half, and afterwards times two: exact in floating point."""
    with torch.no_grad():
        for parameter in language.parameters():
            parameter.mul_(0.5)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter in language.parameters():
                parameter.mul_(2.0)


@contextlib.contextmanager
def stirred(language: Any) -> Iterator[None]:
    """Every adapter with random numbers in place of B, so that s·BA is a fixed part (`STIRRED`) of W in the
    Frobenius norm; afterwards with what it had. The numbers are the same each time."""
    generator, original_weights = torch.Generator().manual_seed(0), []
    with torch.no_grad():
        for layer in language.modules():
            if adapters.is_adapted(layer):
                up = layer.lora_B[adapters.NAME].weight
                original_weights.append((up, up.clone()))
                up.copy_(torch.randn(up.shape, generator=generator))
                down, scaled = adapters.low_rank(layer)
                # |BA|² = tr(B (A Aᵀ) Bᵀ): no product of the size of W is made.
                size = ((scaled @ (down @ down.T)) * scaled).sum().sqrt()
                up.mul_(STIRRED * layer.base_layer.weight.float().norm() / size)
    try:
        yield
    finally:
        with torch.no_grad():
            for up, before in original_weights:
                up.copy_(before)
