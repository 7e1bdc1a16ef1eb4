"""The in-process sampler of a run on several devices.

No token is decoded through sharded weights, which would have to be gathered for every token. Each rank has a
whole copy of the policy, decodes its share of the prompts with it, and the completions are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grpobench.runs.models.adapters import trained
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.shards import whole
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Mixing, Request, Rollout


class DealtSampler(HFSampler):
    """Samples from `copy`, which gets the weights of `models`, the sharded ones, at every `sync`."""

    def __init__(
        self, models: RoleModels, copy: RoleModels, end: Sequence[int], pad: int, rows: int, context: int
    ) -> None:
        super().__init__(copy, end, pad, rows, context)
        self.sharded = models
        self.sync()

    @torch.no_grad()
    def sync(self) -> dict[str, float]:
        """Gather the policy's weights, one tensor after the other."""
        targets = dict(self.models.language.named_parameters())
        # Of a model with an adapter only that is trained.
        adapter = self.models.adapter is not None
        moving = trained(self.sharded.language) if adapter else self.sharded.language.named_parameters()
        for name, parameter in dict(moving).items():
            targets[name].copy_(whole(parameter))
        return {}

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        def own(share: Sequence[Request]) -> list[list[Rollout]]:
            return super(DealtSampler, self).sample(share, limit, temperature, mixing) if share else []

        return self.sharded.ranks.dealt(requests, own)
