"""Adding up unreduced metrics over micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from grpobench.algorithms.algorithm import Metric


class Tally:
    """Numbers of one step. Tokenwise values count where the policy wrote, rowwise ones per row; NaN marks a
    place where a metric is undefined."""

    def __init__(self, catalogue: Mapping[str, Metric]) -> None:
        self.catalogue = catalogue
        self.parts: dict[str, list[torch.Tensor]] = {}

    def add(self, metrics: Mapping[str, torch.Tensor], written: torch.Tensor) -> None:
        """Metrics of shape (B, T) or (B,) with `written` (B, T)."""
        for name, values in metrics.items():
            values = values.detach()[written] if values.dim() == 2 else values.detach()
            self.parts.setdefault(name, []).append(values[~values.isnan()])

    def take(self, other: Tally) -> None:
        """Add what another one has counted."""
        for name, parts in other.parts.items():
            self.parts.setdefault(name, []).extend(parts)

    def numbers(self) -> dict[str, float]:
        """Every metric reduced as its declaration says; NaN where nothing was counted."""
        return {name: self._reduce(name, torch.cat(parts)) for name, parts in self.parts.items()}

    def _reduce(self, name: str, values: torch.Tensor) -> float:
        if not len(values):
            return math.nan
        how = self.catalogue[name].reduce if name in self.catalogue else "mean"
        reductions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "mean": torch.mean,
            "min": torch.min,
            "max": torch.max,
            "sum": torch.sum,
        }
        return float(reductions[how](values))
