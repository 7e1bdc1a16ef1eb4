"""The base policy, kept aside so that any run can say how far its policy has moved from it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch import nn

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.models.role_weights import Network
from grpobench.runs.models.roles import RoleModels


class BasePolicy:
    """The policy as it is when this is made, which must be before its first update and before a checkpoint is
    restored: model and warm start are then loaded anew, bit for bit.

    A reference that never moves is the base policy, and so is a policy without its adapter. Where there is
    neither, a copy in float32 lies in the memory of the CPU, and goes to the device while it is read: before
    a step's updates, when no gradient exists, so that it takes no more room there than the gradients will.
    Sharded models keep it sharded, too.
    """

    def __init__(self, models: RoleModels, fixed_reference: bool) -> None:
        self.models, self.cpu_copy = models, None
        if not fixed_reference and models.plain is None and models.base is None:
            tensors = [*models.language.parameters(), *models.language.buffers()]
            # deepcopy takes what the memo has instead of copying: no second copy on the device.
            memo = {id(tensor): _on_cpu(tensor) for tensor in tensors}
            self.cpu_copy = copy.deepcopy(models.language, memo).requires_grad_(False)

    @contextlib.contextmanager
    def network(self) -> Iterator[Network]:
        """The base policy on the models' device."""
        if self.cpu_copy is None:
            plain = self.models.plain
            yield (
                (self.models.base or self.models.networks["reference"])
                if plain is None
                else Network(plain.base_model, plain.get_output_embeddings())
            )
            return
        self.cpu_copy.to(self.models.device)
        try:
            yield Network(self.cpu_copy.base_model, self.cpu_copy.get_output_embeddings())
        finally:
            self.cpu_copy.to("cpu")

    def kl(self, batch: Batch) -> float:
        """KL(π‖base) in nats, exact over the vocabulary, mean over the tokens that the policy wrote."""
        with self.network() as base:
            kl = self.models.kl_to(base, batch)
        # float64: a float32 sum over so many tokens loses digits.
        return kl[batch.completion_mask].double().mean().item()


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    # `copy`, since a policy that is on the CPU itself would else be shared and move along.
    copied = tensor.detach().to("cpu", copy=True)
    return nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied
