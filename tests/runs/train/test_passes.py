"""One forward pass gives the entropy and log π_old of a step whose sampler reports no entropy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from helpers.toys import Letters, arithmetic_run, trainer_for

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Batch
from grpobench.runs.sample.rollouts import Group
from grpobench.runs.settings.config import ModelConfig, SamplerConfig
from grpobench.runs.train.trainer import Trainer

EXACT = 1e-5
"""Nats: the same float32 logits of some tens, with other rows in the forward pass."""


class Counted:
    """A trainer that takes its sampler for an engine: not exact and, if `silent`, without entropies."""

    def __init__(self, policy: str, silent: bool = True, reject: bool = False, **sampler: Any) -> None:
        config = arithmetic_run(
            ALGORITHMS["grpo"](),
            task=Letters(faulty=True),
            model=ModelConfig(policy),
            sampler=SamplerConfig(**sampler),
        )
        self.trainer: Trainer = trainer_for(config)
        self.trainer.sampler.exact = False
        self.passes = 0
        self.old_logp: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Of each step: what it took for log π_old, and what a pass over its batch gives."""
        gather, forward = self.trainer.source.gather, self.trainer.models.forward
        signal = self.trainer.compute_signal

        def gathered(*arguments: Any) -> list[Group]:
            groups = gather(*arguments)
            return [without_entropy(group) for group in groups] if silent else groups

        def counted(*arguments: Any, **more: Any) -> Any:
            self.passes += 1
            return forward(*arguments, **more)

        def recording(batch: Batch, record: Any) -> Any:
            mask = batch.completion_mask
            self.old_logp.append((batch.old_logp[mask], forward("policy", batch).logp[mask]))
            return signal(batch, record)

        self.trainer.source.gather = gathered  # type: ignore[method-assign]
        self.trainer.models.forward = counted  # type: ignore[method-assign]
        self.trainer.compute_signal = recording  # type: ignore[method-assign]
        if reject:
            chosen = lambda step, index, rewards: [number % 2 == 1 for number, _ in enumerate(index)]  # noqa: E731
            self.trainer.curriculum.accept = chosen  # type: ignore[method-assign]

    def step(self, number: int) -> tuple[int, dict[str, float]]:
        """(forward passes of a step beside its update, its row)."""
        before = self.passes
        row = self.trainer.step(number)
        return self.passes - before, row


def without_entropy(group: Group) -> Group:
    rollouts = [dataclasses.replace(rollout, entropy=None) for rollout in group.rollouts]
    return dataclasses.replace(group, rollouts=rollouts)


@pytest.mark.parametrize("reject", [False, True])
def test_one_pass_gives_entropy_and_old_log_probabilities(policy: str, reject: bool) -> None:
    """A third of these completions cannot be graded. They have an entropy, but are not trained on."""
    run = Counted(policy, reject=reject)
    for number in (1, 2):
        passes, row = run.step(number)
        assert passes == 1
        assert row["groups/sampled"] == 4 and row["trained/groups"] <= (2 if reject else 4)
        assert 0 < row["outcome/infra_error"] < 1 and row["policy/entropy"] > 0.1
    for taken, expected in run.old_logp:
        torch.testing.assert_close(taken, expected, rtol=0, atol=EXACT)


def test_the_shared_pass_changes_nothing_but_how_the_entropy_is_computed(policy: str) -> None:
    """Against a sampler that reports it, where log π_old takes a pass of its own; FLOPs included."""
    (_, silent_row), (passes, other) = (Counted(policy, silent).step(1) for silent in (True, False))
    assert passes == 1
    assert silent_row["policy/entropy"] == pytest.approx(other["policy/entropy"], rel=1e-5)
    same = (
        silent_row.keys()
        - {"policy/entropy"}
        - {name for name in silent_row if name.startswith(("time/", "cost/peak"))}
    )
    assert "cost/flops" in same and "gap/mean" in same
    # float32 sums over other rows than the batch has
    assert {name: silent_row[name] for name in same} == pytest.approx(
        {name: other[name] for name in same}, rel=1e-4, abs=1e-5, nan_ok=True
    )


def test_other_weights_need_another_pass(policy: str) -> None:
    """Behind an update, a sampler with a lag has earlier weights than log π_old."""
    run = Counted(policy, lag=1)
    assert [run.step(number)[0] for number in (1, 2)] == [1, 2]
    for taken, expected in run.old_logp:
        torch.testing.assert_close(taken, expected, rtol=0, atol=EXACT)
