"""The routes of the trainer's own pass for log π_old, for the updates of a step (R2)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from grpobench.algorithms.algorithm import Batch, RoutedExperts, Tokenwise
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.routing import from_packed, recorded, stacked


def forward_recording(models: RoleModels, batch: Batch) -> tuple[Tokenwise, RoutedExperts]:
    """The policy's log-probabilities (B, T) without gradient, as `RoleModels.forward` computes them, and the
    experts that it chose."""
    trunk = models.networks["policy"].trunk

    # `forward_train` itself keeps a graph wherever gradients are enabled.
    @torch.no_grad()
    def collect(micro_batches: Iterable[torch.Tensor]) -> tuple[torch.Tensor, RoutedExperts]:
        order, logp, prompts, completions = [], [], [], []
        for rows in micro_batches:
            part = batch[rows]
            with recorded(trunk) as choices:
                logp.append(models.forward_train(("policy",), part)["policy"].logp)
            # Laid out again, as in that pass: a layout depends on its rows alone.
            routes = from_packed(stacked(choices), models.layout(part), part)
            order.append(rows)
            prompts.append(routes.prompt)
            completions.append(routes.completion)
        # Micro-batches hold rows of similar length: put the rows back in their order.
        back = torch.cat(order).argsort()
        routes = RoutedExperts(torch.cat(prompts)[back], torch.cat(completions)[back])
        return torch.cat(logp)[back], routes

    output = models.in_micro_batches(batch, torch.arange(len(batch)), collect)
    models.flops.add_forward("policy", batch)  # once, however often memory ran out
    return output
