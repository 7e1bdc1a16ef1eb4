"""The settings of a LoRA adapter, without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Interval

from grpobench.runs.tools.strict import Settings

HEADS = re.compile(r"embed|lm_head|wte|wpe")
"""Names of matrices that are no linear layers of a trunk."""


@dataclass(frozen=True)
class Adapter(Settings):
    """A LoRA adapter: the policy's weights W stay as they are, and A and B in W + alpha/rank · B A are
    trained. Both are float32 whatever W is."""

    rank: Annotated[int, Ge(1)] = 16
    """Rows of A and columns of B."""
    alpha: Annotated[float, Gt(0), Interval(lt=math.inf)] = 32.0
    """Numerator of the scale s = alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get an adapter, such as `q_proj`; empty: all of the trunk. Embeddings
    and the output head get none."""
    dropout: float = 0.0
    """0, as peft's `lora_dropout` must be here."""

    def clashes(self) -> Iterator[str]:
        if self.dropout != 0:
            yield (
                "dropout: must be 0: the sampler and log π_old have no dropout, so that with it the ratio "
                "π/π_old would differ from 1 before any update; lower rank or raise train.weight_decay"
            )
        if len(set(self.targets)) != len(self.targets):
            yield "targets: lists a layer twice"

    def elements(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """About how many weights the adapter of a model has, whose files hold tensors of these shapes."""
        total = 0
        for name, shape in shapes.items():
            layer = name.removesuffix(".weight").rpartition(".")[2]
            # By name: embeddings are matrices too, and a file says no more of them.
            is_adapted = layer in self.targets if self.targets else not HEADS.search(name)
            # Norms and biases have one dimension, and peft adapts none of them.
            total += self.rank * sum(shape) if len(shape) == 2 and is_adapted else 0
        return total
