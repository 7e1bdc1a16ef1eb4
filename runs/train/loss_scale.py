"""Dynamic loss scaling, without which gradients in float16 vanish."""

# The smallest number that float16 tells from 0 is 6e-8, and gradients inside a model are often smaller. The
# loss is therefore multiplied by a scale before it is differentiated, and the gradients of the weights are
# divided by it before anything reads them: norms, clipping, gradient noise, the optimizer. The scale is a
# power of 2, so that both are exact. An update whose gradient overflows is skipped and halves the scale, and
# the scale doubles after `GROWTH_INTERVAL` updates without one (Micikevicius et al. 2018, arXiv:1710.03740;
# the numbers are those of torch.amp.GradScaler).
#
# It departs from GradScaler in one point. At a scale of 1 an overflow is no fault of the scale any more: the
# scale stays, and the update counts as one without a finite gradient, of which a few in a row end the run.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

INITIAL = 2.0**16
GROWTH_INTERVAL = 2000
"""Updates in a row without an overflow after which the scale doubles."""


@dataclass
class LossScale:
    """The scale of a run's losses; one for all of its roles, since they share their losses."""

    value: float = INITIAL
    finite: int = 0
    """Updates since the last change of the scale."""

    def divide(self, gradients: Iterable[torch.Tensor]) -> None:
        """Undo the scale in gradients, in place."""
        for gradient in gradients:
            gradient.mul_(1 / self.value)  # exact: a power of 2

    def grow(self) -> None:
        """After an update."""
        self.finite += 1
        if self.finite == GROWTH_INTERVAL:
            self.value, self.finite = self.value * 2, 0

    def shrink(self) -> bool:
        """After a gradient that is not finite. Returns whether a smaller scale may make it finite."""
        if self.value <= 1:
            return False
        # The count begins anew: a scale that has just been too large should stay lower for a while.
        self.value, self.finite = self.value / 2, 0
        return True

    def state(self) -> list[float]:
        """For `restore`, as JSON holds it."""
        return [self.value, self.finite]

    def restore(self, state: list[float]) -> None:
        self.value, self.finite = state[0], int(state[1])
