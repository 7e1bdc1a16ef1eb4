"""Which tokens rollouts are drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpobench.runs.settings.config import SamplerConfig


@dataclass(frozen=True)
class Truncation:
    """Limits of the tokens that are drawn, as in `SamplerConfig`. `top_k` comes before `top_p`."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def active(self) -> bool:
        """Whether any token may be excluded."""
        return self != FULL


FULL = Truncation()
"""Every token can be drawn."""


def truncation_of(sampler: SamplerConfig) -> Truncation:
    return Truncation(sampler.top_k, sampler.top_p, sampler.min_p)
