"""FLOPs by hand: weights of small models, tokens of small batches, and the whole of a run's first step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toys import rollouts, tiny
from helpers.whole_runs import configure, run, transcript

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.remax import ReMax
from grpobench.runs.models.flops import FlopCount, tokens_of, weights_per_token
from grpobench.runs.models.loading import load
from grpobench.runs.models.roles import RoleModels, trunk_and_head
from grpobench.runs.sample.rollouts import Rollout, count_sampled_tokens

LAYER = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32
"""Query, key and value (two heads of eight), output, three matrices of the MLP, two norms."""
HEAD = 40 * 32
ATTENTION = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 2 * 8
"""With the norms of query and key."""
EXPERT = 3 * 32 * 24


def test_weights_that_a_token_meets() -> None:
    language = tiny("llama")
    trunk, head = trunk_and_head(language)
    assert weights_per_token(trunk, head, language.config) == 2 * LAYER + 32 + HEAD
    assert weights_per_token(trunk, None, language.config) == 2 * LAYER + 32  # a critic


def test_a_token_meets_two_of_four_experts_and_the_router() -> None:
    language = tiny("qwen3_moe")
    trunk, head = trunk_and_head(language)
    layer = ATTENTION + 4 * 32 + 2 * EXPERT + 2 * 32
    assert weights_per_token(trunk, head, language.config) == 2 * layer + 32 + HEAD


def test_a_tied_head_counts_once() -> None:
    """GPT-2's head is its embedding table, which is looked up as well; its positions only are."""
    language = tiny("gpt2")
    trunk, head = trunk_and_head(language)
    assert head.weight is language.get_input_embeddings().weight
    layer = (32 * 96 + 96) + (32 * 32 + 32) + (32 * 128 + 128) + (128 * 32 + 32) + 4 * 32
    assert weights_per_token(trunk, head, language.config) == 2 * layer + 2 * 32 + 40 * 32


def test_a_prompt_counts_once_in_its_group() -> None:
    batch = rollouts([[3, 4, 0], [5]])  # prompts of 5 and 3 tokens
    assert tokens_of(batch) == (3 + 4 + 0 + 5) + (5 + 3)
    empty = Rollout((1, 2, 3), (), np.zeros(0), stopped=False)
    turns = dataclasses.replace(empty, completion=(4, 5, 6), completion_mask=(True, False, True))
    assert count_sampled_tokens([[empty, turns], [empty]]) == 3 + 3 + 3  # with the reply between two turns


def test_passes_are_counted_inside_the_block_and_a_shared_trunk_once() -> None:
    batch = rollouts([[3], [5]])  # 8 tokens and prompts of 5 and 3: 16
    count = FlopCount({"policy": 100.0, "critic": 10.0})
    count.add_forward("policy", batch)
    assert count.total == 0
    with count.counting():
        count.add_forward("critic", batch)
        assert count.total == 2 * 10 * 16
        count.add_update(("policy", "value_head"), batch)
        assert count.total == 2 * 10 * 16 + 6 * 100 * 16
        count.add_update(("policy", "critic"), batch)
    assert count.total == 2 * 10 * 16 + 6 * 100 * 16 + 6 * 110 * 16


def test_a_forward_pass_in_many_micro_batches_counts_as_one() -> None:
    batch = rollouts([[3, 4], [5, 6], [2, 2]])
    totals = []
    for budget in (16, 10**6):
        models = RoleModels(tiny(), budget=budget)
        with models.flops.counting():
            models.forward("policy", batch)
        totals.append(models.flops.total)
    assert totals[0] == totals[1] == 2 * (2 * LAYER + 32 + HEAD) * tokens_of(batch)


def first_step(policy: str, algorithm: Algorithm[Any], path: Path) -> tuple[list[dict[str, Any]], int, float]:
    """(rows of a run, tokens of the first step's rollouts with each prompt once, N of the policy)."""
    config = configure(policy, algorithm)
    config = dataclasses.replace(config, evaluate=dataclasses.replace(config.evaluate, every=1))
    run_rows = run(config, path)
    groups = transcript(path, 1)
    loaded = load(policy)
    prompts = sum(len(loaded.encode(group["prompt"])) for group in groups)
    tokens = prompts + sum(completion["tokens"] for group in groups for completion in group["completions"])
    return run_rows, tokens, weights_per_token(*trunk_and_head(loaded.model), loaded.model.config)


@pytest.mark.parametrize(
    ("algorithm", "factor", "critic_factor", "copies", "critic_copies"),
    [
        (GRPO(), 2 + 6, 0, 4, 0),
        (GRPO(beta=0.1), 2 + 2 + 6, 0, 4 + 1, 0),
        (DPO(), 2 + 2 + 6, 0, 4 + 1, 0),
        (PPO(critic="separate", critic_warmup=0), 2 + 6, 2 + 6, 4, 4),
        (PPO(critic="shared", critic_warmup=0), 2 + 2 + 6, 0, 4, 0),
        (PPO(critic="separate", critic_warmup=9), 2, 2 + 6, 1, 4),
    ],
    ids=["grpo", "grpo with a reference", "dpo", "ppo", "value head", "critic alone"],
)
def test_the_first_step_of_a_run(
    algorithm: Algorithm[Any],
    factor: int,
    critic_factor: int,
    copies: int,
    critic_copies: int,
    policy: str,
    tmp_path: Path,
) -> None:
    """2N for each token sampled, 2N for each read, 6N for each trained on; evaluations cost nothing. Four
    numbers of each trained weight stay in memory, which are itself, its gradient and AdamW's two moments, and
    one of each that only reads."""
    run_rows, tokens, weights = first_step(policy, algorithm, tmp_path)
    head = load(policy).model.get_output_embeddings().weight.numel()
    total = tokens * (factor * weights + critic_factor * (weights - head))
    if isinstance(algorithm, DPO):  # trains on one pair of each group whose rewards differ
        assert 2 * weights * tokens < run_rows[1]["cost/flops"] < total
    else:
        assert run_rows[1]["cost/flops"] == total
    assert run_rows[1]["cost/flops"] < run_rows[2]["cost/flops"] < run_rows[3]["cost/flops"]
    every = sum(p.numel() for p in load(policy).model.parameters())
    value = load(policy).model.config.hidden_size + 1 if isinstance(algorithm, PPO) else 0
    # The tied head is the embeddings, which a critic has too.
    state = 4 * ((copies + critic_copies) * every + 4 * value)
    counters = 4 * 100  # AdamW counts the updates of each tensor, of which there are fewer
    assert state <= run_rows[1]["cost/state_gb"] * 2**30 < state + counters


def test_a_greedy_baseline_is_sampled_and_not_trained_on(policy: str, tmp_path: Path) -> None:
    run_rows, tokens, weights = first_step(policy, ReMax(), tmp_path)
    trained = 6 * weights * tokens
    groups = transcript(tmp_path, 1)
    written = sum(completion["tokens"] for group in groups for completion in group["completions"])
    greedy = run_rows[1]["cost/generated_tokens"] - written
    assert greedy > 0 and run_rows[1]["cost/flops"] == trained + 2 * weights * (tokens + greedy)
