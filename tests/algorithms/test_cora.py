"""CORA: two advantages, each of its own group, and the schedule of the second's weight."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.toys import Fixed, models_for, off_policy, rollouts

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.cora import CORA
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.rules import incompatible
from grpobench.tasks.math import Math

NOBODY = Fixed()
"""CORA without a KL penalty reads no model."""
LAST = {"warmup": 0, "half_life": 0.0}
"""A weight that does not depend on the step."""


def batch(correct: list[float], consistent: list[float], step: int = 1) -> Batch:
    """One group of one-token completions."""
    rolled_out = rollouts([[1] * len(correct)], [correct], step=step)
    scores = {
        "correct": rolled_out.reward,
        "consistent": torch.tensor(consistent, dtype=rolled_out.reward.dtype),
    }
    return dataclasses.replace(rolled_out, scores=scores)


def advantages(algorithm: CORA, scored: Batch) -> list[float]:
    return algorithm.compute_signal(scored, NOBODY).advantage[:, 0].tolist()


def test_each_score_is_normalized_in_its_group_before_they_are_added() -> None:
    # (1, 0, 0, 0): mean ¼, std ½ → (1.5, −.5, −.5, −.5); (1, 1, 0, 0): mean ½, std √⅓ → ±√3/2
    algorithm = CORA(task_weight=2.0, consistency_weight=0.5, epsilon=1e-9, **LAST)
    cons = 0.5 * math.sqrt(3) / 2
    expected = [3 + cons, -1 + cons, -1 - cons, -1 - cons]
    assert advantages(algorithm, batch([1, 0, 0, 0], [1, 1, 0, 0])) == pytest.approx(expected, rel=1e-6)


def test_consistency_of_a_learned_model_replaces_the_rules() -> None:
    # Its scores 3, 1, −1, −3 have mean 0 and deviation √(20/3).
    scored = batch([1, 1, 1, 1], [1, 1, 0, 0])
    scored = dataclasses.replace(
        scored, scores=scored.scores | {"model": torch.tensor([3.0, 1.0, -1.0, -3.0])}
    )
    algorithm = CORA(consistency_weight=1.0, consistency_score="model", epsilon=1e-9, **LAST)
    deviation = math.sqrt(20 / 3)
    expected = [3 / deviation, 1 / deviation, -1 / deviation, -3 / deviation]
    assert advantages(algorithm, scored) == pytest.approx(expected, rel=1e-6)
    assert algorithm.scores == {"correct", "consistent", "model"}
    observed = algorithm.observe(scored, algorithm.compute_signal(scored, NOBODY))
    assert observed["advantage/consistency_signal"] == 1.0
    assert observed["policy/consistent_if_correct"] == 0.5  # by the rule, whatever is rewarded


def test_fully_solved_group_still_separates_consistent_completions() -> None:
    algorithm = CORA(consistency_weight=1.0, epsilon=1e-9, **LAST)
    advantage = advantages(algorithm, batch([1, 1, 1, 1], [1, 1, 1, 0]))
    assert advantage == pytest.approx([0.5, 0.5, 0.5, -1.5], rel=1e-6)
    assert not any(advantages(GRPO(), batch([1, 1, 1, 1], [1, 1, 1, 0])))  # type: ignore[arg-type]


def test_equal_scores_of_either_kind_add_exactly_nothing() -> None:
    consistent = batch([1, 0, 1, 1], [1, 1, 1, 1])
    assert advantages(CORA(**LAST), consistent) == advantages(GRPO(), consistent)  # type: ignore[arg-type]
    assert advantages(CORA(**LAST), batch([1, 1], [0, 0])) == [0.0, 0.0]


def test_weight_rises_linearly_and_halves() -> None:
    algorithm = CORA(consistency_weight=0.8, warmup=4, half_life=10.0)
    assert [algorithm.weight(step) for step in (1, 2, 4, 14, 24)] == pytest.approx([0.2, 0.4, 0.8, 0.4, 0.2])
    assert CORA(consistency_weight=0.8, **LAST).weight(1000) == 0.8
    early, late = (advantages(algorithm, batch([1, 1], [1, 0], step=step))[0] for step in (1, 4))
    assert late == pytest.approx(4 * early)


def test_only_the_reward_pays_for_a_kl_in_the_reward() -> None:
    """The penalty changes A_task; A_cons is of the score alone."""
    algorithm = CORA(beta=0.5, kl_placement="reward", consistency_weight=1.0, **LAST)
    models = models_for(algorithm, "llama")
    rollout_batch = off_policy(rollouts([[7, 4, 3]], [[1.0, 1.0, 1.0]]), models)
    rollout_batch = dataclasses.replace(
        rollout_batch, scores={**rollout_batch.scores, "consistent": torch.tensor([1.0, 0.0, 0.0])}
    )
    grpo = GRPO(beta=0.5, kl_placement="reward").compute_signal(rollout_batch, models).advantage
    cons = parts.group_advantage(
        rollout_batch.scores["consistent"], rollout_batch.group, "mean", "group", 1, 1e-4
    )
    expected = (grpo + cons[:, None]) * rollout_batch.completion_mask
    torch.testing.assert_close(algorithm.compute_signal(rollout_batch, models).advantage, expected)


def test_metrics_count_consistency_of_right_and_wrong_answers() -> None:
    scored = batch([1, 1, 0, 0], [1, 0, 1, 1])
    algorithm = CORA(consistency_weight=0.8, warmup=4)
    row = algorithm.observe(scored, algorithm.compute_signal(scored, NOBODY))
    assert row == {
        "advantage/consistency_weight": 0.2,
        "advantage/consistency_signal": 1.0,
        "policy/consistent_if_correct": 0.5,
        "policy/consistent_if_wrong": 1.0,
    }
    all_right = batch([1, 1], [1, 1])
    row = algorithm.observe(all_right, algorithm.compute_signal(all_right, NOBODY))
    assert row["advantage/consistency_signal"] == 0 and math.isnan(row["policy/consistent_if_wrong"])


def test_tasks_without_the_score_are_refused_with_a_remedy() -> None:
    config = dataclasses.replace(read_recipe("quickstart").configs[0], algorithm=CORA())
    assert config.task.name == "arithmetic" and not incompatible(config)
    (fault,) = incompatible(dataclasses.replace(config, task=Math()))
    assert "needs the task scores consistent" in fault and "`tasks = [...]`" in fault
