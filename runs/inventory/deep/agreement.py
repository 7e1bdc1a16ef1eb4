"""Whether sampler and trainer compute with the same policy, before and after an update; small runs for this
and other checks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.inventory.deep.result import CheckInput, Finding, good, unknown, wrong
from grpobench.runs.metrics.rollout_metrics import gap_metrics
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.sample.rollouts import pack_groups
from grpobench.runs.settings.checks import ChecksConfig
from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    RewardConfig,
    RunConfig,
)
from grpobench.runs.train.execute import execute
from grpobench.runs.train.parts import build
from grpobench.runs.train.progress import Preempted
from grpobench.runs.train.trainer import Trainer
from grpobench.runs.train.trial import first_update

PROMPTS, GROUP = 4, 8
"""Limits the seconds of a step, if a check is not about its size."""
LARGE_RATE = 1e-3
"""Learning rate at which one update changes what the policy writes."""


def small(config: RunConfig, rate: float | None = None, *, full_size: bool = False) -> RunConfig:
    """The run with few short steps, no warm start, no observers, and coin flips as rewards, so that there is
    a gradient whatever the policy can do. With `full_size`, it keeps its numbers of prompts and
    completions."""
    train = config.train
    group = max(min(train.group_size, GROUP), config.algorithm.minimum_group)
    sizes: dict[str, Any] = {
        "prompts_per_step": min(train.prompts_per_step, PROMPTS),
        "group_size": group,
        "epochs": 1,
    }
    sizes["num_minibatches"] = min(train.num_minibatches, 2, sizes["prompts_per_step"])
    rates = train.learning_rate if rate is None else dict.fromkeys(train.learning_rate, rate)
    recorded = config.sampler.kind == "preferences"
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, warm_start=0),
        reward=config.reward if recorded else RewardConfig(kind="random"),
        train=dataclasses.replace(
            train,
            **({} if full_size else sizes),
            steps=first_update(config) + 2,
            learning_rate=rates,
            warmup_steps=0,
            schedule="constant",
            schedule_settings={},
            floor=0.0,
        ),
        sampler=dataclasses.replace(config.sampler, problems=min(config.sampler.problems, 16)),
        evaluate=EvaluateConfig(every=0, problems=4, samples=1, test_problems=0, greedy=False),
        checkpoint=CheckpointConfig(every=0),
        checks=ChecksConfig("off", "off"),
        observe=(),
        stop_on=(),
    )


def without_lag(config: RunConfig) -> RunConfig:
    """The run with a sampler that is to follow every update: one that lags keeps old weights on purpose."""
    return dataclasses.replace(config, sampler=dataclasses.replace(config.sampler, lag=0))


@contextlib.contextmanager
def trainer(config: RunConfig) -> Iterator[Trainer]:
    """A run's trainer, before its first step."""
    made = Trainer(config, build(config))
    with contextlib.closing(made.sampler):
        yield made


def up_to_update(made: Trainer) -> dict[str, float]:
    """Make the steps up to the first that updates the policy; returns the row of that one."""
    row: dict[str, float] = {}
    for step in range(1, first_update(made.config) + 1):
        row = made.step(step)
    return row


def run(config: RunConfig, path: Path, stop_after: int = 0) -> None:
    """The whole run in a folder; if `stop` is given it ends with a checkpoint after so many logged steps."""
    with (
        RunFolder.open(path, config, threads=torch.get_num_threads()) as folder,
        contextlib.suppress(Preempted),
    ):
        execute(config, folder, lambda progress: None, lambda: 0 < stop_after <= folder.step)


ROUNDED = 1e-3
"""How far a ratio may be from 1 in float32, because sampler and trainer add in different orders."""
REMEDY = (
    'take sampler.kind = "hf", or see docs/samplers.md for what engines and precisions are known to do; '
    "sampler.max_logprob_gap bounds what vLLM may differ by"
)
RECORDED = "rollouts are recorded: no sampler generates them while the policy changes"


@dataclass(frozen=True)
class Distance:
    """Mean |Δ log p| in nats per token between the sampler's log-probabilities of its completions and the
    trainer's."""

    now: float
    before: float
    """The trainer with the weights before the update."""


def gap(check_input: CheckInput) -> Finding:
    """At learning rate 0 nothing moves: sampler and trainer agree, and every ratio is 1."""
    config = without_lag(small(check_input.first, 0.0))
    if not config.sampler.on_policy:
        return good(RECORDED)
    with trainer(config) as made:
        weights = snapshot(made)
        now = read(made, drawn(made, first_update(config)))
        row = up_to_update(made)
        after = snapshot(made)
    moved = [name for name, weight in weights.items() if not torch.equal(after[name], weight)]
    limit, distance_words = made.sampler.max_logprob_gap, f"{now:.2g} nats per token on the mean"
    if not now <= limit:
        return wrong(f"sampler and trainer are {distance_words} apart, more than {limit:g}", REMEDY)
    if moved:
        return wrong(f"learning rate 0 moved {moved[0]}", "tell the developers")
    ratios = [value for name in ("trained/ratio_min", "trained/ratio_max") if (value := row.get(name))]
    rounded = config.model.dtype == "float32" and made.sampler.exact
    clipped = {name: value for name, value in row.items() if "/clip_" in name and value}
    # If log π_old comes from an engine, its rounding shows in the ratios.
    far = max((abs(ratio - 1) for ratio in ratios), default=0.0)
    if clipped or far > (ROUNDED if rounded else max(ROUNDED, limit)):
        return wrong(f"ratios are up to {far:.2g} from 1 on weights that have not moved; {clipped}", REMEDY)
    exactly = "exactly 1" if not far else f"1 up to {far:.1g}"
    return good(f"{distance_words} apart; on unmoved weights every ratio is {exactly} and nothing is clipped")


def synchronized(check_input: CheckInput) -> Finding:
    """After an update the sampler uses the new weights, and these differ from the old ones."""
    config = without_lag(small(check_input.first, LARGE_RATE))
    if not config.sampler.on_policy:
        return good(RECORDED)
    with trainer(config) as made:
        distance = across_an_update(made)
    limit, apart = made.sampler.max_logprob_gap, f"{distance.now:.2g} nats per token from the new weights"
    if distance.before < distance.now:
        return wrong(
            f"after an update the sampler is {apart} and {distance.before:.2g} from the old: it has kept "
            "these",
            REMEDY,
        )
    if not distance.now <= limit:
        return wrong(f"after an update the sampler is {apart}, more than {limit:g}", REMEDY)
    if distance.before <= 2 * distance.now:
        message = (
            f"an update changed what the policy says by no more than {distance.before:.2g} nats per token"
        )
        return unknown(
            message, f"the gap itself is {distance.now:.2g}: too much to tell old weights from new"
        )
    return good(f"after an update the sampler is {apart} and {distance.before:.2g} from the old")


def across_an_update(made: Trainer) -> Distance:
    """Update, sample completions, and compute their log-probabilities with the new and with the old
    weights."""
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
    return pack_groups(groups, made.limit, step, made.loaded.pad, device, include_ungraded=True)


def read(made: Trainer, batch: Batch) -> float:
    """The mean gap between the sampler and the trainer's forward pass now; NaN without a token."""
    with torch.no_grad():
        logp = made.models.forward("policy", batch).logp
    return gap_metrics([(logp, batch)]).get("gap/mean", float("nan"))


def snapshot(made: Trainer) -> dict[str, torch.Tensor]:
    """The policy's weights, on the CPU."""
    # Cloned: `.cpu()` of a tensor on the CPU is the tensor itself, which the next update changes in place.
    return {name: p.detach().cpu().clone() for name, p in made.models.named_parameters("policy").items()}


def put(made: Trainer, weights: dict[str, torch.Tensor]) -> None:
    """Set the policy's weights."""
    with torch.no_grad():
        for name, p in made.models.named_parameters("policy").items():
            p.copy_(weights[name])
