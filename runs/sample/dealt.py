"""The in-process sampler of a run on several devices."""

# No token is decoded through sharded weights, which would have to be gathered for every token. Each rank
# decodes its share of the prompts with a whole copy of the policy, and the completions are gathered. The copy
# exists only while it samples: `sleep` drops it before the trainer computes, and the next call gathers the
# weights again.

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.shards import full_tensor
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import Mixing, Request

ADAPTED, BASE = ".lora_", ".base_layer."
"""What the names of an adapter's weights hold, and those of the weights beneath it."""


def hollow(language: Any) -> Any:
    """A copy of a language model without weights: they are empty, and tied ones stay tied."""
    memo = {
        id(parameter): nn.Parameter(parameter.detach().new_empty(0), False)
        for parameter in language.parameters()
    }
    # deepcopy takes what the memo has instead of copying it.
    return copy.deepcopy(language, memo)


@torch.no_grad()
def fill(language: Any, models: RoleModels) -> None:
    """Give a hollow copy of the policy, which has no adapter, its weights, gathered on this rank's device.
    Every rank must call this."""
    # For its buffers: the parameters are empty yet.
    language.to(models.device)
    parameter_by_name = dict(language.named_parameters())
    for name, parameter in models.language.named_parameters():
        # `RoleModels` gives the copy an adapter only later; `wake` fills that, too.
        if ADAPTED not in name:
            parameter_by_name[name.replace(BASE, ".")].data = full_tensor(parameter.detach())


class DealtSampler(HFSampler):
    """Samples from `copy`, a policy like that of `models`, the sharded ones, whose weights it takes over."""

    def __init__(
        self,
        models: RoleModels,
        copy: RoleModels,
        end: Sequence[int],
        pad: int,
        rows: int,
        context: int,
        weights: str = "trainer",
    ) -> None:
        super().__init__(copy, end, pad, rows, context, weights)
        self.sharded = models
        # The probes of `HFSampler` have used the weights; from here on the trainer needs the memory.
        self.awake = True
        self.sleep()

    @property
    def language(self) -> Any:
        return self.models.language

    @property
    def episodes_at_once(self) -> int:
        """Of all ranks together. Not what memory has left of it, which may differ between ranks: they must
        make the same calls."""
        return self.token_budget.initial * self.sharded.ranks.size

    def sync(self) -> dict[str, float]:
        """The weights of now are outdated."""
        self.sleep()
        return {}

    def sleep(self) -> None:
        """Drop the weights."""
        if self.awake:
            for parameter in self.models.language.parameters():
                # Only the memory goes: modules and names stay, by which `wake` fills them again.
                parameter.data = parameter.data.new_empty(0)
            self.awake = False

    @torch.no_grad()
    def wake(self) -> None:
        """Gather the weights, if they are not here. Every rank must call this."""
        if self.awake:
            return
        parameter_by_name = dict(self.models.language.named_parameters())
        for name, parameter in self.sharded.language.named_parameters():
            parameter_by_name[name].data = full_tensor(parameter.detach())
        self.awake = True

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        self.wake()

        # `super` with arguments: in a nested function it would take `share` for the object.
        def sample_share(share: Sequence[Request]) -> list[list[Rollout]]:
            return super(DealtSampler, self).sample(share, limit, temperature, mixing) if share else []

        # With fewer requests than ranks some ranks get none, but all must take part in gathering.
        return self.sharded.ranks.dealt(requests, sample_share)
