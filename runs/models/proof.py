"""Checks, when a model is loaded, that packing and decoding compute what its own forward pass computes."""

# Both rely on two things that transformers offers for most models but not for all: attention that follows a
# given mask and given positions, and a cache of keys and values and nothing else. A model that keeps a state
# from token to token, or attends within a window, would give wrong probabilities without any error, in
# sampler and trainer alike. So the probabilities of some random tokens are compared with the plain forward
# pass.
#
# An attention window does no harm to sequences that are shorter than it. It therefore bounds the context
# (`Loaded.context`), and the probe is as long as the window allows.

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from grpobench.algorithms.algorithm import Batch, ModelOutput, Role
from grpobench.runs.models.loading import read_attention_window
from grpobench.runs.models.token_budgets import ModelError, is_out_of_memory

MOST = 1e-3
"""Mean nats per token in float32: far more than the order of sums can change."""
USUAL = 48
"""Tokens of the probe of a model without a window."""
FARTHEST = 1024
"""Longest probe in tokens; a longer window bounds the context without a probe."""
SUPPORTED_LAYERS = {"full_attention", "attention", "sliding_attention", "chunked_attention"}
"""Types of layers that see the past through keys and values alone."""


class ProbedModels(Protocol):
    """The models of a run, `grpobench.runs.models.roles.RoleModels`, as far as the probe needs them."""

    language: Any
    temperature: float
    dtype: torch.dtype
    device: torch.device

    def forward_train(self, roles: Iterable[Role], batch: Batch) -> Mapping[Role, ModelOutput]: ...


def demand_served_layers(language: Any) -> None:
    """Raises ModelError if the model's configuration names layers that are not attention."""
    settings = language.config.get_text_config()
    kinds = getattr(settings, "layer_types", None) or getattr(settings, "layers_block_type", None) or ()
    if other := sorted({str(kind) for kind in kinds} - SUPPORTED_LAYERS):
        raise ModelError(
            f"{type(language).__name__} has layers of type {', '.join(other)}, which carry a state from "
            "token to token; completions that share a prompt cannot be read so. Use one of attention layers"
        )


def demand_same_reading(models: ProbedModels) -> None:
    """Raises ModelError if two packed completions of one prompt do not get the log-probabilities of the
    model's own forward pass."""
    batch = probe(models)
    with plainly(models), torch.no_grad():
        plain = log_probabilities(models, torch.cat([batch.prompt, batch.completion], 1))
        # The state before a token predicts it.
        plain = plain[:, batch.prompt.shape[1] - 1 : -1].gather(-1, batch.completion[..., None]).squeeze(-1)
        try:
            packed = models.forward_train(("policy",), batch)["policy"].logp
        except Exception as error:  # an architecture fails as it likes
            if is_out_of_memory(error):
                raise
            raise unfit(models, f"packed sequences end in {type(error).__name__}: {error}") from error
    demand_equal(models, plain, packed, "packed completions")


def demand_equal(models: ProbedModels, plain: torch.Tensor, other: torch.Tensor, description: str) -> None:
    """Raises ModelError for two sets of log-probabilities that differ by more than rounding."""
    gap = (plain - other).abs().mean().item()
    if not gap <= MOST:  # true for NaN too
        raise unfit(
            models, f"{description} get probabilities that differ from its own by {gap:.2g} nats per token"
        )


def unfit(models: ProbedModels, why: str) -> ModelError:
    reach = read_attention_window(models.language.config)
    cause = f" (it has an attention window of {reach} tokens)" if reach else ""
    return ModelError(
        f"{type(models.language).__name__} cannot be used: {why}{cause}. Use a model whose layers are plain "
        "attention"
    )


def length(models: ProbedModels) -> int:
    """Tokens of a prompt and a completion of the probe: as many as the model's window or context holds."""
    config = models.language.config
    reach, context = (
        read_attention_window(config),
        int(getattr(config, "max_position_embeddings", 0) or USUAL),
    )
    # At least a token of the prompt and one behind it.
    return max(2, min(reach if 0 < reach <= FARTHEST else USUAL, context))


def random_tokens(models: ProbedModels, rows: int, columns: int) -> torch.Tensor:
    """Long (rows, columns), the same in every process."""
    vocabulary = models.language.config.get_text_config().vocab_size
    # On the CPU, as a GPU's generator draws other numbers; not the global one, whose numbers are the run's.
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (rows, columns), generator=generator).to(models.device)


def probe(models: ProbedModels) -> Batch:
    """Two completions of one prompt. Each fits into the window, but both in one sequence exceed it."""
    sequence_length = length(models)
    count = max(1, min(8, sequence_length // 4))
    tokens = random_tokens(models, 2, sequence_length)
    # One prompt, so that packing shares it: that is what the probe is for.
    tokens[1, : sequence_length - count] = tokens[0, : sequence_length - count]
    nothing = torch.zeros(2, count, device=models.device)
    two = torch.zeros(2, dtype=torch.long, device=models.device)
    return Batch(
        prompt=tokens[:, : sequence_length - count],
        prompt_length=two + sequence_length - count,
        completion=tokens[:, sequence_length - count :],
        length=two + count,
        completion_mask=nothing == 0,
        sampler_logp=nothing,
        old_logp=nothing,
        group=two,
        stopped=two > 0,
        reward=nothing[:, 0],
        scores={},
        max_completion_tokens=count,
        step=1,
    )


def log_probabilities(models: ProbedModels, tokens: torch.Tensor) -> torch.Tensor:
    """Of every next token (rows, columns, V), by the model's own forward pass over tokens (rows, columns)."""
    logits = models.language(input_ids=tokens, use_cache=False).logits.float()
    return (logits / models.temperature).log_softmax(-1)  # type: ignore[no-any-return]


@contextlib.contextmanager
def plainly(models: ProbedModels) -> Iterator[None]:
    """Float32 within, so that rounding is not mistaken for a wrong model. Weights in another type are
    replaced for the time."""
    original_dtype, models.dtype = models.dtype, torch.float32
    coarse = [(p, p.data) for p in models.language.parameters() if p.dtype != torch.float32]
    with torch.inference_mode(False):  # a parameter cannot hold a tensor of that mode
        for p, weight in coarse:
            p.data = weight.float()
    try:
        yield
    finally:
        models.dtype = original_dtype
        with torch.inference_mode(False):
            for p, weight in coarse:
                p.data = weight
