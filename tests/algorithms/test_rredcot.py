"""RREDCoT: values of beginnings of a chain, what segments earn by them, and what it costs to know."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import VOCABULARY, arithmetic_run, execute, models_for, rollouts, tiny

from grpobench.algorithms.algorithm import Batch, ModelOutput, Role
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.rredcot import (
    RREDCoT,
    answer_values,
    choose_first,
    segment_values,
    thin_out,
)
from grpobench.runs.models.packing import Cost, pack
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Request
from grpobench.runs.settings.rules import incompatible
from grpobench.tasks.nanobias import NanoBias

RIGHT, WRONG = 20, 21
EXACT = 1e-5
"""Nats, or rewards from 0 to 1: float32 logits by two ways of attending to the same tokens."""


def batch(
    chains: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    rewards: Sequence[float],
    breaks: Sequence[int] = (1, 2),
    groups: Sequence[int] | None = None,
) -> Batch:
    """One group of completions, chain and then answer, with breaks at the same places of each chain."""
    texts = [[*chain, *answer] for chain, answer in zip(chains, answers, strict=True)]
    rollout_batch = rollouts([[len(text) for text in texts]], [list(rewards)])
    completion = torch.zeros_like(rollout_batch.completion)
    for row, text in enumerate(texts):
        completion[row, : len(text)] = torch.tensor(text)
    answer = torch.tensor([len(chain) for chain in chains])
    columns = torch.arange(completion.shape[1])
    marked = torch.isin(columns, torch.tensor(breaks)) & (columns < answer[:, None])
    return dataclasses.replace(
        rollout_batch,
        completion=completion,
        answer=answer,
        breaks=marked,
        group=rollout_batch.group if groups is None else torch.tensor(groups),
    )


class Odds:
    """A policy that answers `RIGHT` with a probability by what it has written, and `WRONG` else. Its entropy
    is the place in the completion."""

    def __init__(self, right: Mapping[tuple[int, ...], float], prompt: int = 5) -> None:
        self.right, self.prompt = right, prompt
        self.forced_batches: list[Batch] = []

    def forward(self, role: Role, batch: Batch) -> ModelOutput:
        assert role == "policy"
        logp = torch.zeros(batch.completion_mask.shape)
        if batch.answer is None:  # a batch that the algorithm has made
            self.forced_batches.append(batch)
            for row, (prompt, length) in enumerate(zip(batch.prompt, batch.prompt_length, strict=True)):
                share = self.right[tuple(prompt[self.prompt : length].tolist())]
                probability = share if batch.completion[row, 0] == RIGHT else 1 - share
                logp[row, 0] = math.log(probability)
        entropy = torch.arange(logp.shape[1]).expand(logp.shape).float()
        return ModelOutput(logp, entropy, logp[:, :0])


def two() -> Batch:
    return batch([[10, 11, 12], [10, 13, 12]], [[RIGHT], [WRONG]], [1.0, 0.0])


TWO = {
    (): 0.4,
    (10,): 0.5,
    (10, 11): 0.8,
    (10, 11, 12): 0.9,
    (10, 13): 0.3,
    (10, 13, 12): 0.2,
}
BREAKS = RREDCoT(segments=4, cut="breaks")


def compute_signal(algorithm: RREDCoT, batch: Batch, models: Any) -> torch.Tensor:
    return algorithm.compute_signal(batch, models).advantage


def test_advantages_by_hand() -> None:
    """V̂ of the first row: .4, .5, .8, .9, of the second: .4, .5, .3, .2. The returns to go, R − V̂, are
    .6, .5, .2, .1 and −.4, −.5, −.3, −.2; their means by segment .1, 0, −.05, −.05."""
    expected = torch.tensor([[0.5, 0.5, 0.25, 0.15], [-0.5, -0.5, -0.25, -0.15]])
    torch.testing.assert_close(compute_signal(BREAKS, two(), Odds(TWO)), expected, rtol=0, atol=1e-6)


def test_segments_earn_the_reward_beyond_the_first_value_in_all() -> None:
    """Σ_k (V̂_k − V̂_{k−1}) = R − V̂_0, with values of a real model and completions of every kind; a token's
    advantage is what is earned from its segment on, less the group's mean of that."""
    algorithm = RREDCoT(segments=5)
    rollout_batch = rollouts([[9, 5, 8, 1], [7, 7, 6]], [[1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 0.25]])
    models = models_for(algorithm, "llama")
    starts = algorithm.starts(rollout_batch, models)
    value = segment_values(rollout_batch, starts, answer_values(rollout_batch, 32), models)
    segments = (1 + starts.sum(-1)).tolist()
    assert value.shape == (7, 5) and sorted(segments) == [1, 5, 5, 5, 5, 5, 5]
    assert len(value.unique()) > 20
    to_go = torch.zeros(7, 5)
    for row, reward in enumerate(rollout_batch.reward.tolist()):
        levels = [*value[row, : segments[row]].tolist(), reward]
        earned = [after - before for before, after in itertools.pairwise(levels)]
        assert sum(earned) == pytest.approx(reward - value[row, 0].item(), abs=EXACT)
        for k in range(5):
            to_go[row, k] = sum(earned[min(k, len(earned) - 1) :])
    advantage = compute_signal(algorithm, rollout_batch, models)
    for row in range(7):
        for t in range(int(rollout_batch.length[row])):
            k = int(starts[row, : t + 1].sum())
            mean = to_go[rollout_batch.group == rollout_batch.group[row], k].mean()
            assert advantage[row, t].item() == pytest.approx((to_go[row, k] - mean).item(), abs=EXACT)


# Values against the policy itself


def answered(models: RoleModels, prompt: Sequence[int], worth: Mapping[tuple[int, ...], float]) -> float:
    """Expected reward by plain forward passes: Σ p(y)·u(y) / Σ p(y)."""
    weights = []
    for answer in worth:
        tokens = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            logits = models.language(input_ids=tokens).logits[0, len(prompt) - 1 : -1] / models.temperature
        picked = logits.double().log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])
        weights.append(picked.sum().exp().item())
    return sum(w * u for w, u in zip(weights, worth.values(), strict=True)) / sum(weights)


def test_values_are_renormalized_probabilities_of_whole_answers() -> None:
    """Answers of one to four tokens, one of them given twice with different rewards."""
    chains = [[9, 8, 7, 6], [5, 4], [], [3, 3, 3], [11, 12, 13]]
    answers = [[20, 1], [21, 22, 23, 1], [24], [20, 1], [25, 26, 1]]
    rollout_batch = batch(chains, answers, [1.0, 0.0, 0.5, 0.5, 0.25])
    models = RoleModels(tiny("qwen2"), temperature=0.7)
    worth = answer_values(rollout_batch, 32)[0]
    assert worth == {(20, 1): 0.75, (21, 22, 23, 1): 0.0, (24,): 0.5, (25, 26, 1): 0.25}
    algorithm = RREDCoT(segments=9, cut="breaks")
    starts = algorithm.starts(rollout_batch, models)
    value = segment_values(rollout_batch, starts, {0: worth}, models)
    prompt = rollout_batch.prompt[0, :5].tolist()
    for row, chain in enumerate(chains):
        heads = [0, *starts[row].nonzero()[:, 0].tolist()]
        assert heads == sorted({0, *range(min(3, len(chain) + 1)), len(chain)} - set(range(3, len(chain))))
        for k, head in enumerate(heads):
            expected = answered(models, [*prompt, *chain[:head]], worth)
            assert value[row, k].item() == pytest.approx(expected, abs=EXACT)
    assert len(value[:, 0].unique()) == 1, "behind the prompt all are alike"


def test_values_are_those_of_monte_carlo_continuations() -> None:
    """Every answer that the policy can give at once, one token each, is in the group, so that p̃ is its own
    probability: the mean reward of continuations that it samples is the value, within four standard errors,
    and the exact expectation to rounding."""
    chain, draws = [30, 7, 12, 33], 2000
    worth = torch.rand(VOCABULARY, generator=torch.Generator().manual_seed(1))
    rollout_batch = batch(
        [chain] * VOCABULARY, [[token] for token in range(VOCABULARY)], worth.tolist(), breaks=(1, 2, 3)
    )
    models = RoleModels(tiny(), temperature=0.7)
    algorithm = RREDCoT(segments=8, cut="breaks")
    starts = algorithm.starts(rollout_batch, models)
    assert starts[0].nonzero()[:, 0].tolist() == [1, 2, 3, 4]
    value = segment_values(rollout_batch, starts, answer_values(rollout_batch, 32), models)
    source = HFSampler(models, (VOCABULARY + 1,), 0, draws, 128)
    for position in (0, 2, 4):
        prompt = (*rollout_batch.prompt[0, :5].tolist(), *chain[:position])
        rewards = [
            worth[rollout.completion[0]].item()
            for rollout in source.sample([Request(prompt, tuple(range(draws)))], 1, 0.7)[0]
        ]
        mean = torch.tensor(rewards).mean().item()
        error = torch.tensor(rewards).std().item() / math.sqrt(draws)
        exact = answered(models, prompt, {(t,): worth[t].item() for t in range(VOCABULARY)})
        assert value[0, position].item() == pytest.approx(exact, abs=EXACT)
        assert abs(value[0, position].item() - mean) < 4 * error < 0.03
    assert value[0].max() - value[0].min() > 0.05, "the values differ by more than that"


# Groups without a signal


def unanswered(rollout_batch: Batch, *rows: int) -> Batch:
    """Without an answer in these rows."""
    answer = rollout_batch.answer.clone()
    answer[list(rows)] = rollout_batch.length[list(rows)]
    return dataclasses.replace(rollout_batch, answer=answer)


class Nobody:
    def forward(self, role: Role, batch: Batch) -> ModelOutput:
        raise AssertionError("there is nothing to know")


@pytest.mark.parametrize(
    "rollout_batch",
    [
        unanswered(two(), 0, 1),
        dataclasses.replace(two(), reward=torch.tensor([1.0, 1.0])),
        two()[torch.tensor([0])],
    ],
    ids=["no answer", "equal rewards", "one completion"],
)
def test_groups_without_answers_or_without_variation_give_exactly_nothing(rollout_batch: Batch) -> None:
    assert not compute_signal(BREAKS, rollout_batch, Nobody()).any()


def test_completions_without_an_answer_are_judged_by_the_others() -> None:
    """The third row ends without an answer and earns 0; it is cut at its breaks. Its V̂ are .4, .5, .6 and its
    returns −.4, −.5, −.6; the others' are those above, and the means of three −.2/3, −.5/3, −.7/3."""
    rollout_batch = batch(
        [[10, 11, 12], [10, 13, 12], [10, 14, 15]], [[RIGHT], [WRONG], []], [1.0, 0.0, 0.0], breaks=(1, 2)
    )
    assert answer_values(rollout_batch, 32) == {0: {(RIGHT,): 1.0, (WRONG,): 0.0}}
    row = compute_signal(BREAKS, rollout_batch, Odds({**TWO, (10, 14): 0.6}))[2]
    expected = [-0.4 + 0.2 / 3, -0.5 + 0.5 / 3, -0.6 + 0.7 / 3, 0]
    torch.testing.assert_close(row, torch.tensor(expected), rtol=0, atol=1e-6)


def test_single_segment_gives_centered_reward_and_reads_only_the_start() -> None:
    odds = Odds({(): 0.4})
    advantage = compute_signal(RREDCoT(segments=1), two(), odds)
    torch.testing.assert_close(advantage, torch.tensor([[0.5] * 4, [-0.5] * 4]))
    assert [len(forced) for forced in odds.forced_batches] == [2]


def test_answers_that_are_worth_the_same_need_no_reading() -> None:
    rollout_batch = unanswered(two(), 1)  # one answer, worth 1; the other completion has none
    torch.testing.assert_close(
        compute_signal(BREAKS, rollout_batch, Nobody()), torch.tensor([[0.5] * 4, [-0.5] * 4])
    )


def test_groups_do_not_lend_each_other_answers() -> None:
    both = batch(
        [[10, 11, 12], [10, 13, 12]] * 2, [[RIGHT], [WRONG]] * 2, [1.0, 0.0, 0.5, 0.0], groups=[0, 0, 7, 7]
    )
    together, alone = compute_signal(BREAKS, both, Odds(TWO)), compute_signal(BREAKS, two(), Odds(TWO))
    torch.testing.assert_close(together[:2], alone)
    torch.testing.assert_close(together[2:], 0.5 * alone)  # half the reward: half of everything


# Segments


def test_thinned_marks_are_evenly_spread() -> None:
    marked = torch.tensor([[1, 1, 0, 1, 1, 1, 1], [0, 1, 0, 0, 1, 0, 0]]).bool()
    assert thin_out(marked, 3).int().tolist() == [[0, 1, 0, 0, 1, 0, 1], [0, 1, 0, 0, 1, 0, 0]]
    assert not thin_out(marked, 0).any()


def test_breaks_come_before_other_tokens_and_greater_entropy_before_less() -> None:
    entropy = torch.tensor([[5.0, 1.0, 9.0, 2.0, 8.0, 7.0]])
    breaks = torch.tensor([[0, 1, 0, 1, 0, 0]]).bool()
    inside = torch.tensor([[0, 1, 1, 1, 1, 0]]).bool()  # never the first token, nor the answer
    chosen = {
        most: choose_first([breaks, inside], entropy, most)[0].nonzero()[:, 0].tolist() for most in range(6)
    }
    assert chosen == {0: [], 1: [3], 2: [1, 3], 3: [1, 2, 3], 4: [1, 2, 3, 4], 5: [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("cut", "starts"),
    # Odds' entropy is the place; the answer at 8 is a segment of its own; at most two more begin inside
    [("breaks", [2, 5, 8]), ("entropy", [6, 7, 8]), ("both", [4, 5, 8])],
)
def test_places_where_a_chain_is_cut(cut: Any, starts: list[int]) -> None:
    rollout_batch = batch([list(range(10, 18))] * 2, [[RIGHT], [WRONG]], [1.0, 0.0], breaks=(1, 2, 4, 5))
    marks = RREDCoT(segments=4, cut=cut).starts(rollout_batch, Odds({}))
    assert marks[0].nonzero()[:, 0].tolist() == starts


def test_long_answers_are_compared_by_their_beginning() -> None:
    rollout_batch = batch([[10], [11], [12]], [[20, 5, 6, 7], [20, 5, 9], [20, 4, 1]], [1.0, 0.0, 0.5])
    assert answer_values(rollout_batch, 2)[0] == {(20, 5): 0.5, (20, 4): 0.5}
    assert len(answer_values(rollout_batch, 4)[0]) == 3


# What it costs


def test_a_chain_is_computed_once_for_all_its_segments_and_answers() -> None:
    """8 completions of 20 + 2 tokens with 8 answers, cut into 5 segments: a beginning that several share is
    asked about once, and a chain's tokens are laid out once, not once per segment."""
    chains = [[10, *range(11, 19), *([row + 20] * 11)] for row in range(8)]
    rollout_batch = batch(
        chains, [[30 + row, 1] for row in range(8)], [float(row) for row in range(8)], (3, 12, 16)
    )
    starts = RREDCoT(segments=5, cut="breaks").starts(rollout_batch, Nobody())
    assert starts.sum(-1).tolist() == [4] * 8
    odds = Counting()
    segment_values(rollout_batch, starts, answer_values(rollout_batch, 32), odds)
    (forced,) = odds.forced_batches
    # two beginnings in common (of 0 and 3 tokens) and three of its own for each of 8 completions; 8 answers
    assert len(forced) == (2 + 3 * 8) * 8
    cost = Cost(1.0, 0.0)  # attention costs nothing: no group is split
    laid_out = int((pack(forced, cost).segment >= 0).sum())
    # prompts and chains; of each answer of two tokens the first is read, and the second only predicted
    assert laid_out == 8 * (5 + 20) + len(forced) == 408
    apart = dataclasses.replace(forced, group=forced.prompt_length * 100 + forced.group)
    beginnings = 5 + 8 + 8 * (17 + 21 + 25)
    assert int((pack(apart, cost).segment >= 0).sum()) == beginnings + len(forced)


class Counting:
    def __init__(self) -> None:
        self.forced_batches: list[Batch] = []

    def forward(self, role: Role, batch: Batch) -> ModelOutput:
        self.forced_batches.append(batch)
        return ModelOutput(*(torch.zeros(batch.completion_mask.shape) for _ in range(3)))


# Metrics and runs


def test_metrics_say_how_much_the_values_explain() -> None:
    rollout_batch = two()
    algorithm = BREAKS
    row = algorithm.observe(rollout_batch, algorithm.compute_signal(rollout_batch, Odds(TWO)))
    # advantages .5 .5 .25 .15 of either sign: three stretches each, and 2 · .15² against 2 · .5²
    assert row["advantage/segments"] == 3
    assert row["advantage/explained"] == pytest.approx(1 - 0.15**2 / 0.5**2, abs=1e-5)
    assert row["advantage/answered"] == 1
    silent = unanswered(rollout_batch, 0, 1)
    row = algorithm.observe(silent, algorithm.compute_signal(silent, Nobody()))
    assert row["advantage/segments"] == 1 and row["advantage/answered"] == 0
    assert math.isnan(row["advantage/explained"])


def test_run_on_arithmetic_with_the_built_in_policy(tmp_path: Path) -> None:
    config = arithmetic_run(RREDCoT(), steps=1)
    assert not incompatible(config)
    _, first = execute(config, tmp_path / "run")
    assert first["advantage/answered"] > 0.5
    assert 1.5 < first["advantage/segments"] <= 6
    assert first["grad_norm/policy"] > 0
    _, plain = execute(arithmetic_run(GRPO(), steps=1), tmp_path / "plain")
    assert first["reward/mean"] == plain["reward/mean"], "the same first rollouts"


def test_tasks_without_a_marker_are_refused_with_a_remedy() -> None:
    config = dataclasses.replace(arithmetic_run(RREDCoT()), task=NanoBias())
    (fault,) = incompatible(config)
    assert "locates the final answer" in fault and "`tasks = [...]`" in fault
