"""A*-PO: V* by hand and against the authors', loss against theirs and TRL's, what is left out."""

from __future__ import annotations

import dataclasses
import math
import types
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from helpers.slopes import objective, slope
from helpers.toys import Fixed, backward, close, distance, models_for, norm, off_policy, reading, rollouts

from grpobench.algorithms.a_star_po import AStarPO, optimal_value
from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.curriculum import NoProblems, Study, ValuedShuffle

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
]


def example() -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """(batch, the reference's log-probabilities, the policy's as a leaf)."""
    batch = rollouts([[4, 2, 6], [5, 1, 3]], [[1.0, 0.0, 1.0], [0.5, 0.0, 1.0]], gaps={2: (1,)})
    draw = torch.Generator().manual_seed(1)
    shape = batch.completion_mask.shape
    reference, policy = (-torch.rand(shape, generator=draw) for _ in range(2))
    return batch, reference, policy.requires_grad_()


# V*


def theirs(reward: np.ndarray, beta1: float) -> np.ndarray:
    """ZhaolinGao/A-PO@45b6570, verl/utils/dataset/rl_dataset.py: _process_values, restated."""
    if beta1 == 0:
        return reward.mean(axis=1)
    return beta1 * np.log(np.exp(reward / beta1).mean(axis=1))


@pytest.mark.parametrize("beta1", [0.1, 0.5, 3.0])
def test_optimal_value_equals_the_authors(beta1: float) -> None:
    reward = np.random.default_rng(0).normal(size=(20, 8))
    close(optimal_value(torch.tensor(reward), beta1, "soft"), theirs(reward, beta1))
    close(optimal_value(torch.tensor(reward), beta1, "mean"), theirs(reward, 0))


def test_limits_of_beta1_are_the_mean_and_the_largest_reward() -> None:
    reward = torch.tensor([[0.0, 0.25, 1.0, 0.0]], dtype=torch.float64)
    close(optimal_value(reward, 1e4, "soft"), [0.3125], rtol=0, atol=1e-5)  # + variance / (2 beta1)
    close(optimal_value(reward, 1e-3, "soft"), [1.0 - 1e-3 * math.log(4)])  # exp(1000) would overflow


def test_completions_without_a_reward_do_not_count() -> None:
    nan = math.nan
    reward = torch.tensor([[1.0, nan, 0.0], [nan, nan, nan], [nan, 0.5, nan]], dtype=torch.float64)
    for estimate in ("soft", "mean"):
        values = optimal_value(reward, 0.5, estimate)  # type: ignore[arg-type]
        close(values[:1], optimal_value(reward[:1, [0, 2]], 0.5, estimate))  # type: ignore[arg-type]
        assert values[1].isnan() and values[2] == 0.5


# The regression


def test_loss_and_gradient_equal_the_authors(double: None) -> None:
    """ZhaolinGao/A-PO@45b6570, verl/trainer/apo/core_algos.py: compute_policy_loss, restated."""
    batch, reference, policy = example()
    loss = objective(AStarPO(beta2=0.3), batch, policy, reference=reading(reference))
    (gradient,) = torch.autograd.grad(loss, policy)
    mask = batch.completion_mask
    log_ratio = (policy * mask).sum(-1) - (reference * mask).sum(-1)
    expected = ((0.3 * log_ratio + batch.expected - batch.reward) ** 2).mean()
    close(loss, expected.detach())
    close(gradient, torch.autograd.grad(expected, policy)[0])


def test_loss_and_gradient_equal_trl(double: None) -> None:
    pytest.importorskip("trl", reason="trl is the reference of this test: pip install 'grpobench[trl]'")
    from helpers.trl_trainers import trl_inputs
    from trl.experimental.a2po import A2POTrainer

    ours = AStarPO(beta2=0.05)
    models = models_for(ours, "llama")
    batch = off_policy(rollouts([[4, 2, 6], [5, 1, 3]], [[1.0, 0.0, 1.0], [0.5, 0.0, 1.0]]), models)
    gradients, metrics = backward(ours, models, batch)
    padded, longest = trl_inputs(batch, batch.reward, batch.old_logp), batch.completion.shape[1]
    tokens, attention_mask = (
        torch.cat([padded[f"prompt_{part}"], padded[f"completion_{part}"]], 1) for part in ("ids", "mask")
    )
    trainer: Any = types.SimpleNamespace(
        model=models.language,
        args=types.SimpleNamespace(beta2=0.05),
        model_kwarg_keys={"logits_to_keep"},
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
    )
    trainer._get_sequence_logps = types.MethodType(A2POTrainer._get_sequence_logps, trainer)
    reference = models.networks["reference"]

    def read(input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> Any:
        states = reference.trunk(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return types.SimpleNamespace(logits=reference.head(states))  # type: ignore[misc]

    with torch.no_grad():
        ref_logps = trainer._get_sequence_logps(read, tokens, attention_mask, longest)
    inputs = {
        "input_ids": tokens,
        "attention_mask": attention_mask,
        "logits_to_keep": longest,
        "ref_logps": ref_logps,
        "rewards": batch.reward,
        "v_star": batch.expected,
    }
    loss = A2POTrainer.compute_loss(trainer, models.language, inputs)
    loss.backward()
    parameters = models.language.named_parameters()
    expected = {f"policy/{name}": torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters}
    assert norm(expected) > 1e-3
    assert metrics["optimal/error"] == pytest.approx(loss.item(), rel=1e-9)
    assert distance(gradients, expected) < 1e-6  # float64 here; parts of the attention are float32 in both


def test_at_the_reference_it_is_reinforce_with_the_optimal_value_as_baseline(double: None) -> None:
    batch, reference, _ = example()
    gradient = slope(AStarPO(beta2=0.01), batch, reference, reference=reading(reference))
    assert batch.expected is not None
    advantage = (batch.reward - batch.expected)[:, None]
    close(gradient, -2 * 0.01 * advantage * batch.completion_mask / len(batch))


def test_the_optimum_is_the_reference_tilted_by_the_reward(double: None) -> None:
    """One token of four, beta1 = beta2 = β and V* of all of them: the loss is 0 at π ∝ π_ref·exp(r/β)."""
    draw = torch.Generator().manual_seed(2)
    reference = torch.randn(4, generator=draw).log_softmax(-1)
    reward, beta = torch.tensor([1.0, 0.0, 0.5, 0.0]), 0.4
    value = beta * (reference + reward / beta).logsumexp(-1)
    policy = (reference + reward / beta).log_softmax(-1)
    batch = rollouts([[1, 1, 1, 1]], [reward.tolist()])
    batch = dataclasses.replace(batch, expected=value.expand(4))
    algorithm, old = AStarPO(beta2=beta), reading(reference[:, None])
    assert objective(algorithm, batch, policy[:, None], reference=old).item() < 1e-20
    assert objective(algorithm, batch, reference[:, None], reference=old).item() > 1e-2


# What is not known


def test_rows_of_a_problem_without_a_value_are_left_out() -> None:
    batch, reference, _ = example()
    value = torch.tensor([math.nan] * 3 + [0.5] * 3)
    signal = AStarPO().compute_signal(
        dataclasses.replace(batch, expected=value), Fixed(reference=reading(reference))
    )
    assert signal.row_group.tolist() == [-1, -1, -1, 3, 4, 5]
    close(signal.advantage_target, [0.0, 0.0, 0.0, 0.0, -0.5, 0.5])
    row = AStarPO().observe(dataclasses.replace(batch, expected=value), signal)
    assert row == {"optimal/value": 0.5, "optimal/advantage": 0.0, "optimal/unknown": 0.5}


def test_a_batch_without_any_value_is_refused() -> None:
    batch, reference, _ = example()
    with pytest.raises(ValueError, match=r"Batch\.expected is missing"):
        AStarPO().compute_signal(
            dataclasses.replace(batch, expected=None), Fixed(reference=reading(reference))
        )


def curriculum(algorithm: AStarPO, prompts: int, reward: list[list[float]]) -> ValuedShuffle:
    valued = algorithm.curriculum([{}] * len(reward), prompts, 0, Study(reward=torch.tensor(reward)))
    assert isinstance(valued, ValuedShuffle)
    return valued


def test_problems_that_the_base_never_solves_can_be_skipped() -> None:
    reward = [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [math.nan, math.nan], [0.0, 0.5]]
    every, some = (curriculum(AStarPO(skip_unsolved=skip), 3, reward) for skip in (False, True))
    assert sorted({i for step in (1, 2, 3, 4, 5) for i in every.draw(step, 0)}) == [0, 1, 2, 3, 4]
    assert sorted(some.draw(1, 0)) == [1, 3, 4]  # 3: nothing of it could be graded
    assert some.expected(1) == every.expected(1) > 0.5
    assert math.isnan(some.expected(3))
    with pytest.raises(NoProblems, match="skip_unsolved: leaves 3 problems, and a step has 4"):
        curriculum(AStarPO(skip_unsolved=True), 4, reward)


def test_values_are_those_of_the_checkpoint() -> None:
    before = curriculum(AStarPO(), 1, [[1.0, 0.0], [math.nan, math.nan]])
    after = curriculum(AStarPO(), 1, [[0.0, 0.0], [0.0, 0.0]])
    after.restore(before.state())
    assert after.expected(0) == before.expected(0) > 0.5 and math.isnan(after.expected(1))
