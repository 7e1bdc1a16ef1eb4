"""An algorithm is one class: fields are hyperparameters, `compute_signal` turns rewards into advantages."""

import dataclasses

from grpobench.algorithms.grpo import GRPO


@dataclasses.dataclass(frozen=True)
class Clipped(GRPO):
    """GRPO whose advantages are cut, so that no completion weighs more than `limit`."""

    name = "clipped"
    summary = "GRPO with advantages cut at a limit"
    limit: float = 1.0

    def compute_signal(self, batch, models):
        signal = super().compute_signal(batch, models)
        return dataclasses.replace(signal, advantage=signal.advantage.clamp(-self.limit, self.limit))
