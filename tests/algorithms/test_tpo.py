"""TPO against TRL's trainer in value and gradient, gold answers included, and against numbers by hand."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.slopes import objective, slope
from helpers.toys import close, reading, rollouts

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.tpo import TPO

pytestmark = pytest.mark.usefixtures("double")

VOCABULARY = 9
CHOSEN, REJECTED = [0, 3, 4], [1, 2, 5]


def pairs() -> Batch:
    """One pair in each of three groups: the chosen rows are 0, 3 and 4."""
    return rollouts([[6, 2], [1, 5], [7, 4]], [[1.0, 0.0], [0.0, 1.0], [0.7, 0.2]])


def gold() -> Batch:
    return rollouts([[4], [7], [2]], seed=1)


def token_logp(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    tokens = (batch.completion % VOCABULARY)[..., None]
    return logits.log_softmax(-1).gather(-1, tokens)[..., 0] * batch.completion_mask


def trl_loss(
    trainer: Any, batch: Batch, logits: torch.Tensor, answers: Batch, gold_logits: torch.Tensor
) -> Any:
    """TRL's loss of the same tokens: rows of chosen, rejected and gold answers behind a prompt of one."""
    from trl.experimental.tpo.tpo_trainer import TPOTrainer

    tokens = torch.cat([batch.completion[CHOSEN], batch.completion[REJECTED], answers.completion])
    written = torch.cat(
        [batch.completion_mask[CHOSEN], batch.completion_mask[REJECTED], answers.completion_mask]
    ).long()
    # A logit predicts the token behind it; the last one predicts nothing.
    every = torch.cat([logits[CHOSEN], logits[REJECTED], gold_logits])
    shown = torch.cat([every, torch.zeros_like(every[:, :1])], 1)
    before = torch.ones(len(tokens), 1, dtype=torch.long)
    inputs = {
        "input_ids": torch.cat([before, tokens % VOCABULARY], 1),
        "attention_mask": torch.cat([before, written], 1),
        "completion_mask": torch.cat([0 * before, written], 1),
    }
    return TPOTrainer._compute_loss(trainer, lambda **words: SimpleNamespace(logits=shown), inputs, False)


@pytest.mark.parametrize(("beta", "weight"), [(0.01, 1.0), (0.5, 0.3)])
def test_value_and_gradient_with_gold_answers_equal_trl(beta: float, weight: float) -> None:
    batch, answers = pairs(), gold()
    generator = torch.Generator().manual_seed(2)
    logits, gold_logits = (
        torch.randn(*part.completion.shape, VOCABULARY, generator=generator).requires_grad_()
        for part in (batch, answers)
    )
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        tpo_alpha=weight,
        loss_type="sigmoid",
        beta=beta,
        label_smoothing=0.0,
        accelerator=SimpleNamespace(gather_for_metrics=lambda x: x, gather=lambda x: x),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )
    algorithm = TPO(beta=beta, gold=weight)
    ours = objective(algorithm, batch, token_logp(logits, batch))
    imitation = algorithm.expert_loss(answers, {"policy": reading(token_logp(gold_logits, answers))})
    ours = ours + (imitation.terms * algorithm.expert_weights(answers)).sum()
    theirs = trl_loss(trainer, batch, logits, answers, gold_logits)
    close(ours.detach(), theirs.detach())
    for leaf in (logits, gold_logits):
        (expected,) = torch.autograd.grad(theirs, leaf, retain_graph=True)
        (gradient,) = torch.autograd.grad(ours, leaf, retain_graph=True)
        assert expected.abs().max() > 1e-4
        close(gradient, expected)


def test_by_hand() -> None:
    """Sums −1 and −3, β = ½: −log σ(1). Two gold tokens of log 2 and log 4, weight 2: 2·(3/2)·log 2."""
    batch = rollouts([[1, 2]], [[1.0, 0.0]])
    algorithm = TPO(beta=0.5, gold=2.0)
    close(objective(algorithm, batch, torch.tensor([[-1.0, 0], [-2, -1]])), math.log(1 + math.exp(-1)))
    answers = rollouts([[1], [1]])
    logp = -torch.tensor([[2.0], [4.0]]).log()
    loss = algorithm.expert_loss(answers, {"policy": reading(logp)})
    close((loss.terms * algorithm.expert_weights(answers)).sum(), 3 * math.log(2))
    close(loss.metrics["expert/nll"], -logp)


def test_pairs_of_one_length_are_dpo_with_a_uniform_reference() -> None:
    """The reference of `slope` is the old policy."""
    batch = rollouts([[3, 3], [5, 5], [2, 2]], [[1.0, 0.0], [0.0, 1.0], [0.7, 0.2]])
    uniform = dataclasses.replace(batch, old_logp=torch.full_like(batch.old_logp, -math.log(40)))
    logp = -torch.rand(batch.completion_mask.shape, generator=torch.Generator().manual_seed(4))
    close(slope(TPO(beta=0.3), batch, logp), slope(DPO(beta=0.3), uniform, logp))
