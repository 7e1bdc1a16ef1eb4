"""Prompts, requests and samplers of tiny models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import Request
from helpers.toys import tiny

END = (1, 7, 11)
EXACT = 1e-5
"""Nats: the same float32 logits of some tens, by a cached and by a whole forward pass."""


PROMPTS = ((5, 9, 30, 7, 12), (8, 3), (22, 22, 4, 17, 31, 6, 2), (39,))


def sampler(architecture: str = "llama", temperature: float = 1.0, **settings: Any) -> HFSampler:
    options = {"end": END, "pad": 0, "rows": 64, "context": 128, **settings}
    return HFSampler(RoleModels(tiny(architecture), temperature=temperature), **options)


def requests(samples: int = 3) -> list[Request]:
    return [Request(prompt, tuple(100 * i + j for j in range(samples))) for i, prompt in enumerate(PROMPTS)]


def update(models: RoleModels) -> None:
    """A step of the policy's optimizer along a drawn gradient."""
    generator = torch.Generator().manual_seed(5)
    for parameter in models.named_parameters("policy").values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    models.step(("policy",), 1.0)


def same(first: Rollout, second: Rollout) -> bool:
    return (
        first.completion == second.completion
        and first.stopped == second.stopped
        and np.allclose(first.sampler_logp, second.sampler_logp, rtol=0, atol=EXACT)
    )
