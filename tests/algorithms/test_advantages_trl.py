"""RLOO and GDPO against TRL 1.16's own trainers: the advantages that these make of sampled completions,
and the gradient of RLOO's loss where the policy has not moved."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, backward, distance, norm, reading, rollouts
from helpers.trl_trainers import (
    GRADIENT,
    REWARDS,
    batch_of,
    computed,
    grpo_trainer,
    models_with_reference,
    parameters,
    their_gradient,
    tiny_of_characters,
    trl_inputs,
)

from grpobench.algorithms.gdpo import GDPO
from grpobench.algorithms.rloo import RLOO

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # of TRL in transformers


def test_leave_one_out_advantages_with_a_penalty_equal_trls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL reads policy and reference itself; a reference that says −2 of every token is put in its place."""
    trainer = grpo_trainer(tmp_path, tiny_of_characters(), "RLOO", per_device_train_batch_size=8, beta=0.0)
    trainer.beta, trainer.ref_model = 0.1, object()
    read = trainer._get_per_token_logps_and_entropies

    def scripted(
        model: Any, ids: torch.Tensor, mask: torch.Tensor, keep: int, *positional: Any, **kwargs: Any
    ) -> Any:
        if model is trainer.ref_model:
            return torch.full((len(ids), keep), -2.0), None, None
        return read(model, ids, mask, keep, *positional, **kwargs)

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", scripted)
    theirs = computed(trainer, torch.tensor(REWARDS)[:, None], monkeypatch)
    written = theirs["completion_mask"].bool()
    batch = dataclasses.replace(
        rollouts([[int(row.sum()) for row in part] for part in written.view(2, 4, -1)]),
        reward=torch.tensor(REWARDS),
    )
    # TRL keeps log-probabilities of whole completions; spread over their tokens they have the same sum
    old = (theirs["old_logps"] / written.sum(-1))[:, None] * written
    batch = dataclasses.replace(batch, old_logp=old)
    signal = RLOO(beta=0.1).compute_signal(batch, Fixed(reference=reading(torch.full(old.shape, -2.0))))
    # float32 log-probabilities of some ten tokens, divided and added up again
    torch.testing.assert_close(signal.advantage[:, 0], theirs["advantages"], rtol=1e-4, atol=1e-5)
    assert (signal.advantage[:, 0] - RLOO().compute_signal(batch, Fixed()).advantage[:, 0]).abs().max() > 0.1


def test_gradient_equals_trl_sequence_ratio_before_policy_moves(tmp_path: Path) -> None:
    models = models_with_reference(RLOO())
    batch = batch_of(models)
    inside = torch.arange(batch.completion.shape[1]) < batch.length[:, None]
    batch = dataclasses.replace(batch, completion_mask=inside)  # this trainer knows no tool output
    batch = dataclasses.replace(batch, old_logp=models.forward("policy", batch).logp)
    language = copy.deepcopy(models.language)
    trainer = grpo_trainer(tmp_path, language, "RLOO", per_device_train_batch_size=8, beta=0.0)
    signal = RLOO().compute_signal(batch, models)
    inputs = trl_inputs(batch, signal.advantage[:, 0], batch.old_logp)
    inputs["old_logps"] = (batch.old_logp * inside).sum(-1)
    _, expected = their_gradient(trainer, inputs)
    gradient, _ = backward(RLOO(), models, batch, signal)
    assert norm(expected) > 0.1
    assert distance(parameters(gradient), expected) < GRADIENT


def test_decoupled_advantages_equal_trls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = grpo_trainer(
        tmp_path,
        tiny_of_characters(),
        multi_objective_aggregation="normalize_then_sum",
        per_device_train_batch_size=8,
    )
    second = [0.0, 1.0, 1.0, 1.0, 3.0, 2.0, 0.0, 0.0]
    table = torch.tensor([REWARDS, second]).T
    trainer.reward_funcs, trainer.reward_func_names = [None, None], ["one", "other"]
    trainer.reward_weights = torch.tensor([2.0, 0.5])
    theirs = computed(trainer, table, monkeypatch)["advantages"]
    batch = dataclasses.replace(
        rollouts([[2] * 4] * 2),
        reward=2 * table[:, 0] + 0.5 * table[:, 1],
        scores={"one": table[:, 0], "other": table[:, 1]},
        weights={"one": 2.0, "other": 0.5},
    )
    signal = GDPO().compute_signal(batch, Fixed())
    torch.testing.assert_close(signal.advantage[:, 0], theirs, rtol=1e-5, atol=1e-6)
