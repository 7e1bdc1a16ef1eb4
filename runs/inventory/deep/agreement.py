"""Whether sampler and trainer speak of the same policy, before and after an update."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.inventory.deep.result import Finding, Given, good, unknown, wrong
from grpobench.runs.inventory.deep.small import LARGE_RATE, first_update, small, trainer, up_to_update
from grpobench.runs.measure.rollout_metrics import gap_metrics
from grpobench.runs.sample.rollouts import pack_groups
from grpobench.runs.train.trainer import Trainer

ROUNDED = 1e-3
"""How far a ratio may be from 1 in float32, where sampler and trainer add in other orders."""
REMEDY = (
    'take sampler.kind = "hf", or see docs/samplers.md for what engines and precisions are known to do; '
    "sampler.largest_gap bounds what vLLM may differ by"
)
RECORDED = "rollouts are recorded ones: no sampler writes them while the policy changes"


@dataclass(frozen=True)
class Distance:
    """Mean |Δ log p| in nats per token between what the sampler told of its completions and what the trainer
    reads of them."""

    now: float
    before: float
    """The trainer with the weights before the update."""


def gap(given: Given) -> Finding:
    """At learning rate 0 nothing moves: sampler and trainer agree, and every ratio is 1."""
    config = small(given.first, 0.0)
    if not config.sampler.on_policy:
        return good(RECORDED)
    with trainer(config) as made:
        weights = snapshot(made)
        now = read(made, drawn(made, first_update(config)))
        row = up_to_update(made)
        after = snapshot(made)
    moved = [name for name, weight in weights.items() if not torch.equal(after[name], weight)]
    limit, told = made.sampler.largest_gap, f"{now:.2g} nats per token on the mean"
    if not now <= limit:
        return wrong(f"sampler and trainer are {told} apart, more than {limit:g}", REMEDY)
    if moved:
        return wrong(f"learning rate 0 moved {moved[0]}", "tell the developers")
    ratios = [value for name in ("trained/ratio_min", "trained/ratio_max") if (value := row.get(name))]
    rounded = config.model.dtype == "float32" and made.sampler.exact
    clipped = {name: value for name, value in row.items() if "/clip_" in name and value}
    # What engines round differently is in the ratios where log π_old is theirs.
    far = max((abs(ratio - 1) for ratio in ratios), default=0.0)
    if clipped or far > (ROUNDED if rounded else max(ROUNDED, limit)):
        return wrong(f"ratios are up to {far:.2g} from 1 on weights that have not moved; {clipped}", REMEDY)
    exactly = "exactly 1" if not far else f"1 up to {far:.1g}"
    return good(f"{told} apart; on unmoved weights every ratio is {exactly} and nothing is clipped")


def synchronised(given: Given) -> Finding:
    """After an update the sampler draws from the new weights, and these are not the old."""
    config = small(given.first, LARGE_RATE)
    if not config.sampler.on_policy:
        return good(RECORDED)
    with trainer(config) as made:
        found = across_an_update(made)
    limit, apart = made.sampler.largest_gap, f"{found.now:.2g} nats per token from the new weights"
    if found.before < found.now:
        return wrong(
            f"after an update the sampler is {apart} and {found.before:.2g} from the old: it has kept these",
            REMEDY,
        )
    if not found.now <= limit:
        return wrong(f"after an update the sampler is {apart}, more than {limit:g}", REMEDY)
    if found.before <= 2 * found.now:
        told = f"an update changed what the policy says by no more than {found.before:.2g} nats per token"
        return unknown(told, f"the gap itself is {found.now:.2g}: too much to tell old weights from new")
    return good(f"after an update the sampler is {apart} and {found.before:.2g} from the old")


def across_an_update(made: Trainer) -> Distance:
    """Update, draw completions, and read them with the new weights and with the old."""
    old = snapshot(made)
    up_to_update(made)
    batch = drawn(made, first_update(made.config) + 1)
    now = read(made, batch)
    new = snapshot(made)
    put(made, old)
    before = read(made, batch)
    put(made, new)
    return Distance(now, before)


def drawn(made: Trainer, step: int) -> Batch:
    """Completions of a step's problems, graded or not."""
    groups, _ = made.gather(step)
    device = str(made.models.device)
    return pack_groups(groups, made.limit, step, made.loaded.pad, device, ungraded=True)


def read(made: Trainer, batch: Batch) -> float:
    """The mean gap between the sampler and the trainer's reading now; NaN without a token."""
    with torch.no_grad():
        logp = made.models.read("policy", batch).logp
    return gap_metrics([(logp, batch)]).get("gap/mean", float("nan"))


def snapshot(made: Trainer) -> dict[str, torch.Tensor]:
    """The policy's weights, on the CPU."""
    return {name: p.detach().cpu().clone() for name, p in made.models.named("policy").items()}


def put(made: Trainer, weights: dict[str, torch.Tensor]) -> None:
    """Make these the policy's weights."""
    with torch.no_grad():
        for name, p in made.models.named("policy").items():
            p.copy_(weights[name])
