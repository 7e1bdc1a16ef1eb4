"""One step of the recipe's size on the device that it would use."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from grpobench.runs.inventory.deep.keeping import other_bytes, unsteady
from grpobench.runs.inventory.deep.result import Finding, Given, good, unknown, wrong
from grpobench.runs.inventory.deep.small import small, trainer, up_to_update
from grpobench.runs.matrix.merging import TIMED
from grpobench.runs.models.determinism import determinism, deterministic
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.memory import peak_memory_gb, reset_peak_memory

State = dict[str, dict[str, torch.Tensor]]
TIGHT = 0.9
"""Share of the memory above which longer completions may not fit."""


def step(given: Given) -> Finding:
    """The loss is finite, the policy has a gradient, and the memory does."""
    reset_peak_memory()
    row, _, device = once(small(given.first, whole=True))
    peak, there = peak_memory_gb(), memory_gb()
    norm = row.get("grad_norm/policy", math.nan)
    told = f"on {device}: gradient norm {norm:.3g}, peak memory {peak:.2f} of {there:.1f} GiB"
    if row.get("grad/nonfinite"):
        remedy = "see train.learning_rate and model.dtype"
        return wrong(f"loss, reward or gradient is not finite {told}", remedy, "yours")
    if not norm > 0:
        return unknown(f"no gradient from coin flips for rewards {told}", "this algorithm may need others")
    if peak > TIGHT * there:
        return wrong(
            f"memory is nearly full {told}",
            "set sampler.rows and train.tokens_per_micro_batch lower, which changes no gradient",
            "yours",
        )
    return good(f"a step of the recipe's size {told}")


def repeated(given: Given) -> Finding:
    """The same step twice gives the same bits."""
    config = small(given.first)
    first, weights, device = once(config)
    second, again, _ = once(config)
    names = [name for name in first if not name.startswith(TIMED) and not name.startswith("cost/")]
    differing = [name for name in names if not same(first[name], second.get(name, math.nan))]
    if place := differing[0] if differing else other_bytes(weights, again):
        return wrong(f"on {device} a step made twice differs in {place}", unsteady())
    told = ", ".join(f"{name} {value}" for name, value in determinism().items())
    return good(f"on {device} a step made twice has the same bits ({told})")


def once(config: RunConfig) -> tuple[dict[str, float], State, str]:
    """The first update of the policy: its row, every trained tensor after it, the device."""
    deterministic(config.model.deterministic)
    with trainer(config) as made:
        row = up_to_update(made)
        state = {
            role: {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            for role, tensors in made.models.state().items()
        }
        return row, state, str(made.models.device)


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def memory_gb() -> float:
    """Memory in GiB: of the GPU, else of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory / 2**30
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        return math.inf
    return int(lines["MemTotal"].split()[0]) / 2**20
