"""Oracles and ablations: what they know is right, and without it they are what they take from."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.toys import arithmetic_run, close, rollouts, trainer_for

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.rgra import RGRA
from grpobench.runs.calibration.oracles import (
    KnownKinds,
    KnownValues,
    OneSign,
    OnlyCategories,
    RewardedSteps,
    UnsteadyBaseline,
    graded_steps,
)
from grpobench.runs.models.nano import character_tokenizer
from grpobench.tasks.task import Problem
from grpobench.tasks.tools import Tools

NOBODY: Any = SimpleNamespace()
"""Models, which none of these reads."""


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("7+8=15,15-19=-4#-4", [True, True]),
        ("7+8=14,14-19=-5#-5", [False, True]),  # the mistake counts once, where it is made
        ("7+8=15,14-19=-5#-5", [True, False]),  # a result that was not the one before
        ("7+8=15,15+19=34#34", [True, False]),  # another sign than the problem's
        ("8+7=15#15", [False]),
        ("7+8=15,15-19=-4,-4+1=-3#-3", [True, True, False]),  # more than was asked for
        ("#-4", []),
        ("hm,", [False, False]),
    ],
)
def test_steps_by_hand(completion: str, right: list[bool]) -> None:
    grades, of_step = graded_steps("Q:7+8-19\nA:", completion)
    assert grades == right
    chain = completion.partition("#")[0]
    assert len(of_step) == len(chain)
    assert of_step == [chain[:position].count(",") for position in range(len(chain))]


def written(prompt: str, completions: list[str], rewards: list[float]) -> Batch:
    """A group of completions in characters, each with its end token."""
    vocabulary = character_tokenizer().get_vocab()
    texts = [[*(vocabulary[c] for c in text), vocabulary["<eos>"]] for text in completions]
    batch = rollouts([[len(text) for text in texts]], [rewards], prompts=(len(prompt),))
    longest = max(map(len, texts))
    return dataclasses.replace(
        batch,
        prompt=torch.tensor([[vocabulary[c] for c in prompt]] * len(texts)),
        completion=torch.tensor([text + [0] * (longest - len(text)) for text in texts]),
    )


def test_each_step_gets_its_own_advantage_by_hand() -> None:
    """First steps wrong, right, none: grades 0, 1, 0; second steps right, right, none; answers 0, 1, 1."""
    texts = ["7+8=14,14-19=-5#-5", "7+8=15,15-19=-4#-4", "#-4"]
    batch = written("Q:7+8-19\nA:", texts, [0.0, 1.0, 1.0])
    signal = RewardedSteps(scale="none").compute_signal(batch, NOBODY)
    third = 1 / 3
    for row, (first, second, answer) in enumerate(
        [(-third, third, -2 * third), (2 * third, third, third), (0, 0, third)]
    ):
        chain = texts[row].partition("#")[0]
        expected = [(first, second)[chain[:position].count(",")] for position in range(len(chain))]
        expected += [answer] * (len(texts[row]) - len(chain) + 1)  # and the end token
        close(signal.advantage[row, : len(expected)], expected, rtol=1e-5, atol=1e-6)
        assert not signal.advantage[row, len(expected) :].any()


def test_one_step_for_all_would_be_grpo() -> None:
    """Completions without a chain have an answer alone."""
    batch = written("Q:7+8-19\nA:", ["#-4", "#3", "#15"], [1.0, 0.0, 0.0])
    close(
        RewardedSteps().compute_signal(batch, NOBODY).advantage,
        GRPO().compute_signal(batch, NOBODY).advantage,
    )


def test_an_unsteady_baseline_is_off_by_one_number_per_group() -> None:
    batch = rollouts([[3, 3]] * 400, [[1, 0]] * 400)
    off = UnsteadyBaseline(error=2.0).compute_signal(batch, NOBODY).advantage
    error = (off - GRPO().compute_signal(batch, NOBODY).advantage)[:, 0].view(400, 2)
    close(error[:, 0], error[:, 1], rtol=1e-4, atol=1e-5)
    assert abs(float(error[:, 0].mean())) < 0.3 and 1.8 < float(error[:, 0].std()) < 2.2, "3 standard errors"
    again = UnsteadyBaseline(error=2.0).compute_signal(batch, NOBODY).advantage
    later = UnsteadyBaseline(error=2.0).compute_signal(dataclasses.replace(batch, step=2), NOBODY).advantage
    assert torch.equal(off, again) and not torch.equal(off, later)


def played(task: Tools, problem: Problem, turns: Sequence[str]) -> tuple[str, list[bool]]:
    """An episode in characters, and which of them the policy wrote."""
    text, by_policy = "", []
    for number, turn in enumerate(turns):
        reply = task.reply(problem, turns[: number + 1]) or ""
        text += f"{turn}\n{reply}"
        by_policy += [True] * (len(turn) + 1) + [False] * len(reply)
    return text, [*by_policy, True]  # the end token stands for itself


def test_turns_of_tool_calls_get_the_tasks_own_credits() -> None:
    """The credits of the task, which the oracle finds again from prompts and episodes in characters."""
    task = Tools(horizon=4, spare=2, luck=0.5, wasted=0.3, wrong=0.1)
    problem = task.problems("train")[0]
    episodes = [task.draw_episode(problem, random.Random(number)) for number in range(8)]
    texts = [played(task, problem, turns) for turns in episodes]
    batch = written(str(problem.prompt), [text for text, _ in texts], [0.0] * 8)
    mask = torch.zeros(batch.completion.shape, dtype=torch.bool)
    for row, (_, by_policy) in enumerate(texts):
        mask[row, : len(by_policy) - 1] = torch.tensor(by_policy[:-1])
    batch = dataclasses.replace(batch, completion_mask=mask)
    oracle = KnownValues(horizon=4, spare=2, luck=0.5)
    advantage = oracle.compute_signal(batch, NOBODY).advantage
    chances = task.measured(problem, episodes)
    credit = torch.full(mask.shape, math.nan)
    for row, turns in enumerate(episodes):
        ends = [0, *itertools.accumulate(len(turn) + 1 for turn in turns)]
        of_row = torch.full((int(mask[row].sum()),), math.nan)
        for number, worth in enumerate(task.credits(problem, turns, chances)):
            of_row[ends[number] : ends[number + 1]] = worth
        credit[row, mask[row]] = of_row
    of_policy = credit[mask]
    assert of_policy.std() > 0.1, "turns differ in worth"
    close(advantage[mask], (of_policy - of_policy.mean()) / of_policy.std(correction=0), rtol=1e-4, atol=1e-5)
    assert not advantage[~mask].any()


def test_the_oracle_of_tool_calls_refuses_another_task() -> None:
    with pytest.raises(ValueError, match="is no prompt of the task tools"):
        KnownValues().compute_signal(written("Q:7+8-19\nA:", ["#-4"], [1.0]), NOBODY)


def test_only_problems_of_the_category_are_drawn_and_each_once_per_pass() -> None:
    traits = [{"category": "ab"[number % 2]} for number in range(20)]
    curriculum = OnlyCategories(categories=("b",)).curriculum(traits, 5, 0)
    drawn = [index for step in (1, 2) for index in curriculum.draw(step, 0)]
    assert sorted(drawn) == list(range(1, 20, 2))
    with pytest.raises(ValueError, match="10 problems are of b, fewer than 11"):
        OnlyCategories(categories=("b",)).curriculum(traits, 11, 0)
    with pytest.raises(ValueError, match="at least one"):
        OnlyCategories()


def test_clusters_of_one_kind_each_move_the_schedule_to_the_kind_with_a_signal() -> None:
    """One problem in four can be learned. Uniform draws would have a quarter of those, 3 of 12."""
    traits = [{"category": "b" if number % 4 else "a"} for number in range(512)]
    schedule = KnownKinds().curriculum(traits, 12, 0)
    learnable = []
    for step in range(1, 31):
        drawn = schedule.draw(step, 0)
        learnable.append(sum(number % 4 == 0 for number in drawn))
        schedule.accept(step, drawn, [[0.0, 0.0] if number % 4 else [0.0, 1.0] for number in drawn])
    assert sum(learnable[-10:]) / 10 > 9


def test_a_run_trains_on_that_category_alone() -> None:
    trainer = trainer_for(arithmetic_run(OnlyCategories(categories=("3 steps",))))
    trainer.step(1)
    assert {group.problem.traits["category"] for group in trainer.groups} == {"3 steps"}


def test_both_signs_of_advantages_add_up_to_rgras() -> None:
    batch = rollouts([[2, 3, 1, 2], [1, 4, 2, 2]], [[1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0]])
    rgra_advantage, positive, negative = (
        algorithm.compute_signal(batch, NOBODY).advantage
        for algorithm in (RGRA(), OneSign(), OneSign(sign="negative"))
    )
    assert (positive >= 0).all() and (negative <= 0).all()
    assert positive.any() and negative.any() and torch.equal(positive + negative, rgra_advantage)
    # What is left has the weight that it has in RGRA: the average goes over the same rows.
    assert torch.equal(OneSign().loss_weights(batch), RGRA().loss_weights(batch))
