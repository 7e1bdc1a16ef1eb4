"""The policy's weights with seeded normal noise, and gradients that are sums of such noise."""

# Noise is drawn anew wherever it is needed, parameter by parameter, from a seed of the run, the step, the
# place among a problem's completions and the parameter's name: no checkpoint holds any, and a resumed run has
# the same. A seed gives other numbers on a GPU than on a CPU.

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch

from grpobench.algorithms.algorithm import WeightNoise
from grpobench.runs.tools.seeds import derive


class NoisyWeights:
    """Parameters to which noise is added for a while."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], noise: WeightNoise, seed: int) -> None:
        self.parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        self.noise, self.seed = noise, seed

    def draw(self, step: int, member: int, name: str) -> torch.Tensor:
        """ε of a parameter in float32, with its shape and on its device."""
        p = self.parameters[name]
        drawn = member - member % 2 if self.noise.mirrored else member
        generator = torch.Generator(p.device).manual_seed(
            derive(self.seed, "weight noise", step, drawn, name)
        )
        noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=torch.float32)
        return noise if drawn == member else noise.neg_()

    @contextlib.contextmanager
    def added(self, step: int, member: int) -> Iterator[None]:
        """Within, the parameters are θ + σ·ε. Behind it they are θ again, bit for bit, also after an error.
        Takes the memory of a copy of the parameters."""
        before = {name: p.detach().clone() for name, p in self.parameters.items()}
        try:
            with torch.no_grad():
                for name, p in self.parameters.items():
                    # In place: recorded graphs hold the addresses of the weights.
                    p.copy_(before[name] + self.noise.scale * self.draw(step, member, name))
            yield
        finally:
            with torch.no_grad():
                for name, p in self.parameters.items():
                    p.copy_(before[name])

    def add_gradient(self, step: int, member: torch.Tensor, slope: torch.Tensor) -> None:
        """Add Σ_i slope_i · ∇ log N(θ_i; θ, σ²I) = Σ_i slope_i · ε_i/σ to the gradients, given the member
        (B,) and the slope (B,) of each row."""
        total: dict[int, float] = {}
        for number, part in zip(member.tolist(), slope.tolist(), strict=True):
            total[number] = total.get(number, 0.0) + part
        for name, p in self.parameters.items():
            gradient = torch.zeros(p.shape, device=p.device)
            for number, part in sorted(total.items()):
                if part:
                    gradient.add_(self.draw(step, number, name), alpha=part / self.noise.scale)
            p.grad = gradient.to(p.dtype) if p.grad is None else p.grad + gradient
