"""Adaptive entropy control against its authors' controller, restated; runs that go on."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, rollouts
from helpers.whole_runs import configure

from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput
from grpobench.algorithms.dapo import DAPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.libraries.trl_arguments import Splitting, translate
from grpobench.algorithms.modifiers import ENTROPY, Modified, Modifiers
from grpobench.algorithms.ppo import PPO
from grpobench.runs.settings.config import SamplerConfig
from grpobench.runs.settings.rules import incompatible

SKYWORK = Modifiers(entropy_target=0.2)


class Controller:
    """SkyworkAI/Skywork-OR1@64e96af, verl/trainer/ppo/core_algos.py: EntController, with the values of
    or1_scripts/train/7b_8k.sh. ray_trainer.py asks it before the update and tells it behind the update the
    entropy that dp_actor.py's get_entropy_metric has made of log π_old."""

    def __init__(self, first: float = 0.0) -> None:
        self.value, self.enabled = first, 1

    def update(self, entropy: float) -> None:
        self.value += 0.0001 if entropy < 0.2 else -0.0001
        self.value = min(max(self.value, 0), 0.005)
        self.enabled = int(entropy < 0.2)


def step_of(entropy: float, state: Any, step: int = 1) -> Batch:
    """Rollouts whose mean −log π_old over the four written tokens is `entropy`."""
    batch = rollouts([[2, 3]], [[1.0, 0.0]], gaps={1: (0,)}, step=step)
    share = torch.tensor([[0.5, 1.0, 9.0], [9.0, 2.0, 0.5]])
    return dataclasses.replace(batch, old_logp=-entropy * share, state=state)


def weight(algorithm: Algorithm[Any], batch: Batch) -> float:
    """The weight of the bonus in the loss: its part per nat of entropy."""
    signal = algorithm.compute_signal(batch, Fixed())
    none = torch.zeros(len(batch), 0)
    terms = [
        algorithm.loss(batch, signal, {"policy": ModelOutput(batch.old_logp, entropy, none)}).terms
        for entropy in (torch.zeros_like(batch.old_logp), torch.ones_like(batch.old_logp))
    ]
    return (terms[0] - terms[1])[batch.completion_mask].mean().item()


def test_weights_equal_the_authors_controller_over_ninety_steps() -> None:
    """The entropy is drawn around the target, then far below and far above it: both bounds are met."""
    algorithm = dataclasses.replace(SKYWORK, entropy_bonus=0.004).around(GRPO())
    authors, state = Controller(0.004), algorithm.initial_state()
    generator = torch.Generator().manual_seed(0)
    drawn = (0.1 + 0.2 * torch.rand(10, generator=generator)).tolist()
    weights = set()
    for entropy in [*drawn, *[0.05] * 20, *[0.3] * 55, 0.1, 0.1]:
        batch = step_of(entropy, state)
        assert weight(algorithm, batch) == pytest.approx(authors.value * authors.enabled, abs=1e-6)  # float32
        signal = algorithm.compute_signal(batch, Fixed())
        reported = algorithm.observe(batch, signal)["modify/entropy_coefficient"]
        assert reported == pytest.approx(authors.value * authors.enabled, rel=1e-9)
        state = json.loads(json.dumps(algorithm.next_state(batch, Fixed())))
        authors.update(entropy)
        assert state[ENTROPY] == {
            "weight": pytest.approx(authors.value, abs=1e-12),
            "on": bool(authors.enabled),
        }
        weights.add(round(authors.value, 6))
    assert {0.0, 0.005} <= weights


def test_an_entropy_at_the_target_lowers_the_weight_and_turns_it_off() -> None:
    """0.5 is a sum of powers of two: what is compared is exact."""
    modify = Modifiers(entropy_bonus=0.25, entropy_target=0.5, entropy_step=0.125, entropy_limit=1.0)
    algorithm = modify.around(GRPO())
    state = algorithm.next_state(step_of(0.5, None), Fixed())
    assert state == {ENTROPY: {"weight": 0.125, "on": False}}
    assert weight(algorithm, step_of(0.5, state)) == 0
    state = algorithm.next_state(step_of(0.25, state), Fixed())
    assert state == {ENTROPY: {"weight": 0.25, "on": True}}
    assert weight(algorithm, step_of(0.25, state)) == pytest.approx(0.25)


def test_loss_and_gradient_are_those_of_a_fixed_bonus_of_that_weight() -> None:
    state = {ENTROPY: {"weight": 0.3, "on": True}}
    batch = step_of(0.4, state)
    entropy = torch.rand(batch.old_logp.shape, generator=torch.Generator().manual_seed(1))
    outcomes = []
    for modify in (SKYWORK, Modifiers(entropy_bonus=0.3)):
        algorithm, leaf = modify.around(DAPO()), entropy.clone().requires_grad_()
        assert algorithm.differentiates_entropy
        signal = algorithm.compute_signal(batch, Fixed())
        now = ModelOutput(batch.old_logp * 0.9, leaf, leaf[:, :0])
        total = (algorithm.loss(batch, signal, {"policy": now}).terms * algorithm.loss_weights(batch)).sum()
        outcomes.append((total.item(), torch.autograd.grad(total, leaf)[0].tolist()))
    assert outcomes[0] == outcomes[1] and any(map(any, outcomes[0][1]))


def test_what_is_not_trained_or_not_written_moves_nothing() -> None:
    """A critic that is warmed up leaves the policy as it is; a step without tokens has no entropy."""
    warming = SKYWORK.around(PPO(critic_warmup=2))
    assert warming.next_state(step_of(0.1, None, step=2), Fixed()) == warming.initial_state()
    moved = warming.next_state(step_of(0.1, None, step=3), Fixed())
    assert moved == {ENTROPY: {"weight": 1e-4, "on": True}}
    empty = rollouts([[0, 0]], [[1.0, 0.0]])
    assert SKYWORK.around(GRPO()).next_state(empty, Fixed()) == {ENTROPY: {"weight": 0.0, "on": True}}


def test_without_a_target_nothing_is_carried() -> None:
    plain = Modifiers(entropy_bonus=0.1).around(GRPO())
    assert isinstance(plain, Modified) and plain.initial_state() is None
    assert plain.next_state(step_of(0.1, None), Fixed()) is None


def test_trl_and_recorded_rollouts_are_refused(policy: str) -> None:
    _, faults = translate(DAPO(), SKYWORK, Splitting(1, True, 1))
    assert ["modify.entropy_target" in fault for fault in faults] == [True]
    replay = configure(policy, PPO(), modify=SKYWORK, sampler=SamplerConfig(kind="replay", problems=12))
    assert any("modify.entropy_target follows the entropy" in fault for fault in incompatible(replay))
    assert not incompatible(configure(policy, GRPO(), modify=SKYWORK))
