"""FLOPs of a run, from the tokens that went through each model and the weights that each token meets."""

# A token costs 2N FLOPs in a forward pass through a model of N weights, a multiplication and an addition per
# weight, and 4N more in the backward pass (Kaplan et al., arXiv:2001.08361, section 2.1). A run has spent
#
#     2 N_policy · tokens sampled
#     + 2 N_role · tokens read, for each pass without gradient that the algorithm asks for
#     + 6 N_role · tokens trained on, for each trained role and each pass over the batch.
#
# Tokens are those of the completions, with an environment's replies, and each group's prompt once: sampler
# and trainer compute it once. Completions that an algorithm needs before the first step are sampled tokens,
# and expert completions are trained on. N counts the output head, which a critic lacks. It does not count
# input embeddings, which are looked up. Of routed experts it counts the share that a token uses. A value head
# on the policy's trunk adds nothing. Weights under an adapter have no gradient of their own: they cost 4
# instead of 6 in an update.
#
# Left out: attention over the context (2 · layers · width for each pair of tokens), evaluation, measurements
# such as entropy, warm starts, reward models, and what is computed twice to save memory.

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from grpobench.algorithms.algorithm import Batch, Role

FORWARD = 2.0
"""FLOPs per weight and token of a forward pass."""
UPDATE = 6.0
"""FLOPs per weight and token of a forward and a backward pass."""
OWN_GRADIENT = 2.0
"""FLOPs of these that the gradient of the weight itself takes."""
ROUTED = re.compile(r"(?<!shared_)experts\.")
"""Names of the weights of experts that only some tokens meet."""


def weights_per_token(trunk: nn.Module, head: nn.Module | None, config: Any) -> float:
    """N of a model: the weights that a token is multiplied with. An output head counts although it may be the
    embeddings' matrix."""
    looked_up = {
        id(p) for module in trunk.modules() if isinstance(module, nn.Embedding) for p in module.parameters()
    }
    routed = _routed_share(config)
    weights = sum(
        p.numel() * (routed if ROUTED.search(name) else 1.0)
        for name, p in trunk.named_parameters()
        if id(p) not in looked_up
    )
    return weights + sum(p.numel() for p in (head.parameters() if head is not None else ()))


def _routed_share(config: Any) -> float:
    """The share of a layer's routed experts that a token meets; 1 for a model without experts."""
    # What Mixtral, Qwen and DeepSeek call the same number.
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((count for name in names if (count := getattr(config, name, None))), None)
    used = getattr(config, "num_experts_per_tok", None)
    return used / experts if experts and used else 1.0


def tokens_of(batch: Batch) -> int:
    """Tokens of a pass over a batch: its completions, and the longest prompt of each group once."""
    prompts: dict[int, int] = {}
    for group, length in zip(batch.group.tolist(), batch.prompt_length.tolist(), strict=True):
        prompts[group] = max(prompts.get(group, 0), length)
    return int(batch.length.sum()) + sum(prompts.values())


@dataclass
class FlopCount:
    """FLOPs of the passes inside `counting`. Other passes measure or evaluate and are not counted."""

    weights: Mapping[str, float]
    """N of each network, by role. A value head belongs to the policy's."""
    frozen: Mapping[str, float] = field(default_factory=dict)
    """The share of N that is not trained, by role; none without an adapter."""
    total: float = 0.0
    active: bool = False

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the passes inside the block."""
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def add_forward(self, role: Role, batch: Batch) -> None:
        """Count a pass without gradient."""
        self._add(FORWARD, (role,), batch)

    def add_update(self, roles: Iterable[Role], batch: Batch) -> None:
        """Count a forward and a backward pass of these roles. Roles on one trunk share it."""
        self._add(UPDATE, roles, batch, OWN_GRADIENT)

    def _add(self, factor: float, roles: Iterable[Role], batch: Batch, saved: float = 0.0) -> None:
        if self.active:
            # A set: the value head shares the policy's pass, which must not count twice.
            networks = {"policy" if role == "value_head" else role for role in roles}
            weights = sum(self.weights[name] for name in networks)
            frozen = sum(self.frozen.get(name, 0.0) for name in networks)
            self.total += (factor * weights - saved * frozen) * tokens_of(batch)
