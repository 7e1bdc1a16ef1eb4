"""Training on rollouts from a truncated distribution: log π_old is of the full one, and what would weigh by
the sampler's probabilities is refused."""

from __future__ import annotations

import torch
from helpers.toys import trainer_for
from helpers.whole_runs import configure

from grpobench.algorithms.ngrpo import NGRPO
from grpobench.runs.metrics.rollout_metrics import MetricAccumulator
from grpobench.runs.sample.rollouts import pack_groups
from grpobench.runs.settings.config import SamplerConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.train.trainer import StepRecord


def test_old_log_probabilities_are_of_the_full_distribution(policy: str) -> None:
    train = TrainConfig(steps=1, prompts_per_step=2, group_size=4)
    trainer = trainer_for(configure(policy, sampler=SamplerConfig(top_k=2), train=train))
    groups = trainer.source.gather(1, 0, [0, 1])
    batch = pack_groups(groups, 16, 1, 0)
    record = StepRecord(1, MetricAccumulator(trainer.metrics))
    prepared = trainer.compute_old_logp(batch, record)
    full = trainer.models.forward("policy", batch).logp
    mask = batch.completion_mask
    assert torch.equal(prepared.old_logp[mask], full[mask])
    assert (batch.sampler_logp >= full - 1e-5)[mask].all(), "renormalized: more probable, if at all different"
    assert record.gap["gap/mean"] > 1e-3, "more than a fault's, and the run goes on"


def test_mixtures_of_embeddings_of_fewer_tokens_are_refused(policy: str) -> None:
    mixed = configure(policy, NGRPO(), sampler=SamplerConfig(top_k=5))
    assert "mixes embeddings of all tokens" in "; ".join(incompatible(mixed))


def test_rollouts_end_after_the_strings_of_the_recipe(policy: str) -> None:
    train = TrainConfig(steps=1, prompts_per_step=2, group_size=4)
    plain = trainer_for(configure(policy, train=train))
    text = plain.loaded.decode
    before = [rollout for group in plain.source.gather(1, 0, [0, 1]) for rollout in group.rollouts]
    written = "".join(text(rollout.completion) for rollout in before)
    string = max(set(written), key=written.count)
    ending = trainer_for(configure(policy, sampler=SamplerConfig(stop=(string,)), train=train))
    after = [rollout for group in ending.source.gather(1, 0, [0, 1]) for rollout in group.rollouts]
    assert any(
        len(rollout.completion) < len(other.completion) for rollout, other in zip(after, before, strict=True)
    )
    for rollout, other in zip(after, before, strict=True):
        assert rollout.completion == other.completion[: len(rollout.completion)]
        assert string not in text(rollout.completion[:-1])
        assert rollout.stopped or string not in text(rollout.completion)
