"""What stands around an algorithm: rows left out, refills, a reference that follows, greedy baselines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from helpers.toys import models_for, rollouts

from grpobench.algorithms.curriculum import Shuffled
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.modifiers import Modified, Modifiers, Refilled, overlong, without
from grpobench.algorithms.remax import ReMax
from grpobench.runs.models.roles import Models
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.train.collect import set_apart
from grpobench.tasks.task import Outcome, Problem, Verdict


def group(rewards: Sequence[float], outcomes: Sequence[Outcome]) -> Group:
    rollout = Rollout((5, 6), (7, 1), np.zeros(2, np.float32), stopped=True)
    verdicts = [Verdict({"correct": r}, "a", o) for r, o in zip(rewards, outcomes, strict=True)]
    return Group(Problem("p", "P", None), [rollout] * len(verdicts), verdicts, list(rewards))


def test_no_modifier_leaves_the_very_same_algorithm() -> None:
    algorithm = GRPO()
    assert Modifiers().around(algorithm) is algorithm
    assert Modifiers(overlong_penalty=2.0, reference_mix=0.5).around(algorithm) is algorithm
    assert isinstance(Modifiers(mask_truncated=True).around(algorithm), Modified)


def test_overlong_punishment_falls_linearly_over_the_buffer() -> None:
    """L = 20, c = 4: nothing up to 16 tokens, then a quarter for each, −1 at the limit."""
    length = torch.tensor([1, 16, 17, 18, 20])
    assert overlong(length, 20, 4).tolist() == [0.0, 0.0, -0.25, -0.5, -1.0]


def test_truncated_completions_are_left_out_but_count_in_their_group() -> None:
    """Rewards 1, 0, 0, 0, the second truncated: the mean stays ¼, so the first row's advantage is ¾."""
    batch = rollouts([[3, 12, 4, 5]], [[1.0, 0.0, 0.0, 0.0]], limit=12)
    assert batch.stopped.tolist() == [True, False, True, True]
    algorithm = Modifiers(mask_truncated=True).around(GRPO(scale="none"))
    signal = algorithm.credit(batch, Models.__new__(Models))
    assert signal.unit.tolist() == [0, -1, 2, 3]
    assert signal.advantage[0, 0].item() == pytest.approx(0.75)
    assert algorithm.observe(batch, signal)["modify/left_out"] == 0.25


def test_a_pair_with_a_truncated_half_is_left_out_whole() -> None:
    unit = torch.tensor([4, 4, -1, 7, 7])
    truncated = torch.tensor([False, True, True, False, False])
    assert without(unit, truncated).tolist() == [-1, -1, -1, 7, 7]


def test_groups_of_equal_graded_rewards_are_replaced() -> None:
    """A completion that could not be graded is no reward of 0 beside three of 1."""
    curriculum = Refilled(Shuffled(12, 2, 0), 3)
    assert curriculum.attempts == 4
    ungraded = group([1.0, 1.0, 1.0, 0.0], ["graded", "graded", "graded", "infra_error"])
    mixed = group([1.0, 1.0, 1.0, 0.0], ["graded"] * 4)
    assert curriculum.accept(1, [0, 1], [ungraded.graded(), mixed.graded()]) == [False, True]
    assert curriculum.accept(1, [0], [[]]) == [False]


def test_the_reference_moves_by_its_share_at_its_steps_and_survives_a_checkpoint() -> None:
    algorithm = Modifiers(reference_every=3, reference_mix=0.25).around(GRPO(beta=0.1))
    assert [algorithm.synchronise(step) for step in range(1, 7)] == [0, 0, 0.25, 0, 0, 0.25]
    models = models_for(algorithm, "llama")
    before = {name: p.clone() for name, p in models.named("reference").items()}
    policy = {name: p.clone() for name, p in models.networks["policy"].trunk.named_parameters()}
    assert "reference" not in models.state()
    models.follow(0.25)
    after = dict(models.networks["reference"].trunk.named_parameters())
    for name, p in after.items():
        expected = 0.75 * before[f"trunk.{name}"] + 0.25 * policy[name]
        torch.testing.assert_close(p, expected, rtol=1e-5, atol=1e-7)  # float32
    saved = {role: {k: v.clone() for k, v in part.items()} for role, part in models.state().items()}
    other = models_for(algorithm, "llama")
    other.restore(saved)
    assert other.moved
    for name, p in other.named("reference").items():
        assert torch.equal(p, saved["reference"][name])


def test_the_greedy_answer_is_no_row_but_the_baseline_of_its_group() -> None:
    graded = set_apart(group([1.0, 0.0, 0.5], ["graded"] * 3))
    assert graded.greedy == 0.5 and list(graded.reward) == [1.0, 0.0] and len(graded.rollouts) == 2
    failed = set_apart(group([1.0, 0.0, 0.5], ["graded", "graded", "infra_error"]))
    assert failed.greedy is not None and math.isnan(failed.greedy)
    batch = pack_groups([graded, failed], 4, 1, 0)
    assert batch.greedy_reward is not None and batch.greedy_reward[:2].tolist() == [0.5, 0.5]
    signal = ReMax().credit(batch, Models.__new__(Models))
    assert signal.unit.tolist() == [0, 1, -1, -1]
    assert signal.advantage[:2, 0].tolist() == [0.5, -0.5]


def test_a_modified_algorithm_keeps_what_it_is() -> None:
    plain = DPO()
    modified = Modifiers(schedule="ads", dynamic_sampling=1).around(plain)
    assert modified.studies and not plain.studies
    for name in ("trains", "reads", "scores", "greedy_baseline", "locates_answers", "differentiates_entropy"):
        assert getattr(modified, name) == getattr(plain, name)


@pytest.mark.parametrize(
    "settings",
    [{"overlong_penalty": math.inf}, {"reference_mix": 0.0}, {"ads_band": 0.6}, {"ads_clusters": 0}],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        dataclasses.replace(Modifiers(), **settings)
