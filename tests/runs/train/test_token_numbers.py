"""Numbers of tokens in rollouts files: they are those of the step, and storing them changes nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Letters, arithmetic_run, trainer_for
from helpers.whole_runs import configure, run, same, training, transcript

from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.sample.rollouts import Group, Rollout
from grpobench.runs.settings import trl
from grpobench.runs.train.token_numbers import by_rollout, entropies
from grpobench.tasks.task import Problem, Verdict


def stored(path: Path, step: int) -> list[dict[str, Any]]:
    """The `token_numbers` of a file's completions; an empty one where there are none."""
    return [c.get("token_numbers", {}) for row in transcript(path, step) for c in row["completions"]]


def test_the_default_stores_nothing_and_the_others_change_no_result(policy: str, tmp_path: Path) -> None:
    settings = ("none", "last", "all")
    for name in settings:
        run(training(configure(policy), log_tokens=name), tmp_path / name)
    assert same(tmp_path / "none", tmp_path / "last") and same(tmp_path / "none", tmp_path / "all")
    with_numbers = {
        name: [step for step in (1, 2, 3) if all(stored(tmp_path / name, step))] for name in settings
    }
    assert with_numbers == {"none": [], "last": [3], "all": [1, 2, 3]}
    for step in (1, 2, 3):
        rows = transcript(tmp_path / "all", step)
        for row in rows:
            for completion in row["completions"]:
                del completion["token_numbers"]
        assert rows == transcript(tmp_path / "none", step)


def test_the_numbers_are_those_of_the_models_logits_and_of_grpos_equation() -> None:
    """Before the step: log-softmax and entropy of transformers' logits; after it: the same with the new
    weights. The advantage is (reward − mean) / (deviation + epsilon) of the group."""
    config = training(arithmetic_run(GRPO(), steps=1), log_tokens="last")
    trainer = trainer_for(config)
    trainer.step(1)
    before, after = trainer_for(config).loaded.model, trainer.loaded.model
    for group, row in zip(trainer.groups, trainer.transcript, strict=True):
        rewards = np.array(group.reward)
        for rollout, completion in zip(group.rollouts, row["completions"], strict=True):
            numbers = completion["token_numbers"]
            tokens, start = torch.tensor([[*rollout.prompt, *rollout.completion]]), len(rollout.prompt)
            rows, chosen = slice(start - 1, -1), tokens[0, start:, None]
            with torch.no_grad():
                logp, later = (
                    (model(input_ids=tokens).logits[0, rows] / config.sampler.temperature).log_softmax(-1)
                    for model in (before, after)
                )
            # Three digits are stored; numbers below 5e-5 as 0.
            close = {"rel": 5.1e-3, "abs": 1e-4}
            assert numbers["logp"] == pytest.approx(logp.gather(1, chosen)[:, 0].tolist(), **close)
            assert numbers["entropy"] == pytest.approx((-(logp.exp() * logp).sum(-1)).tolist(), **close)
            ratio = (later - logp).gather(1, chosen)[:, 0].exp().tolist()
            assert numbers["ratio"] == pytest.approx(ratio, **close)
            deviation = rewards.std(ddof=1)
            expected = (completion["reward"] - rewards.mean()) / (deviation + 1e-6) if deviation else 0.0
            assert numbers["advantage"] == pytest.approx([expected] * len(chosen), **close)
            assert sum(numbers["characters"]) == len(completion["text"])
    assert any(r != 1 for row in trainer.transcript for r in row["completions"][0]["token_numbers"]["ratio"])


def test_pairs_have_no_advantage_and_ungraded_rollouts_no_numbers(policy: str, tmp_path: Path) -> None:
    run(training(configure(policy, DPO()), log_tokens="all"), tmp_path / "dpo")
    assert set(stored(tmp_path / "dpo", 1)[0]) == {"characters", "logp", "entropy", "ratio"}
    run(training(configure(policy, task=Letters(faulty=True)), log_tokens="all"), tmp_path / "faulty")
    rows = [c for row in transcript(tmp_path / "faulty", 1) for c in row["completions"]]
    ungraded = [completion["outcome"] == "infra_error" for completion in rows]
    assert any(ungraded) and not all(ungraded)
    assert ["token_numbers" not in completion for completion in rows] == ungraded


class Bytes:
    """Decodes each token as one byte of UTF-8."""

    def decode(self, tokens: Any) -> str:
        return bytes(tokens).decode("utf-8", "replace")


def test_a_character_of_several_tokens_belongs_to_the_last_and_replies_have_no_numbers() -> None:
    """The é takes two bytes; the last token and a NaN have no number."""
    completion = tuple("aéb".encode())
    rollout = Rollout((1,), completion, np.zeros(4), True, completion_mask=(True, True, True, False))
    group = Group(Problem("p", "", None), [rollout], [Verdict({}, None)], [0.0])
    logp = torch.tensor([[-0.00001, -1.23456, math.nan, 7.0]])
    rows = by_rollout([group], {"logp": logp}, Bytes())  # type: ignore[arg-type]
    numbers = rows[0, 0]
    assert numbers["logp"] == [0, -1.23, None, None] and sum(numbers["characters"]) == 3
    ends = np.cumsum(numbers["characters"]).tolist()
    assert ends == [1, 2, 2, 3]  # half of the é is shown as one character, and so is all of it
    assert entropies([group], [group], None) is None
    assert entropies([group], [group], logp) is not None


def test_a_step_that_stores_nothing_computes_nothing() -> None:
    trainer = trainer_for(training(arithmetic_run(GRPO()), log_tokens="last"))
    trainer.step(1)
    assert not trainer.token_numbers
    trainer.step(2)
    assert trainer.token_numbers


def test_trls_trainers_refuse_it() -> None:
    refusals = [*trl.of_memory(training(arithmetic_run(GRPO()), log_tokens="all"))]
    assert refusals == [
        'stores no numbers of tokens, and train.log_tokens is "all"; set it to "none"',
    ]
    assert not [*trl.of_memory(arithmetic_run(GRPO()))]
