"""Locks: a metric has one population, whatever the algorithm makes of the rollouts.

What a step sampled is told of all of it: arms with the same policy and seeds have the same numbers at the
first step, also where one trains on pairs only or rejects groups. What the updates used is told under
``trained/``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.logs import is_metric
from helpers.toys import Letters, arithmetic_run, rollouts, trainer_for
from helpers.whole_runs import training
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Signal
from grpobench.algorithms.modifiers import Modifiers
from grpobench.runs.metrics.rollout_metrics import (
    auc,
    categories_of,
    entropy,
    group_metrics,
    sampled_metrics,
    trained_metrics,
)
from grpobench.runs.sample.rollouts import Group, Rollout
from grpobench.runs.settings.config import ModelConfig, RunConfig, SamplerConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.tasks.task import Problem, Verdict

POPULATION = ("reward/", "score/", "groups/", "length/", "diversity/", "outcome/", "policy/entropy")
"""What is measured over everything that a step sampled."""


def biased(arm: str, attempts: int | None = None) -> RunConfig:
    """One step of an arm of the recipe zoo on nanobias; with `attempts`, of dynamic sampling, so many."""
    (config,) = [c for c in read_recipe("zoo").configs if (c.arm, c.task.name) == (arm, "nanobias")]
    if attempts is not None:
        config = dataclasses.replace(config, modify=Modifiers(dynamic_sampling=attempts - 1))
    return training(config, steps=1)


def population(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name.startswith(POPULATION)}


def test_equal_policies_have_equal_numbers_whatever_they_train_on() -> None:
    grpo, dpo = (trainer_for(biased(arm)).step(1) for arm in ("grpo", "dpo"))
    assert population(grpo) == population(dpo)
    assert grpo["groups/sampled"] == dpo["groups/sampled"] == grpo["trained/groups"] == 8
    assert grpo["trained/share"] == 1
    for sampled, trained in (
        ("policy/entropy", "trained/entropy"),
        ("reward/mean", "trained/reward_mean"),
        ("groups/zero_signal", "trained/zero_signal"),
        ("length/mean", "trained/length_mean"),
    ):
        # the updates read the sampled tokens again, in float32 and after the first of two minibatches
        assert grpo[trained] == pytest.approx(grpo[sampled], rel=0.05), sampled
    assert grpo["groups/zero_signal"] > 0, "groups of equal rewards have no pair"
    # a pair per group with both kinds: one right answer, one wrong
    assert dpo["trained/groups"] == 8 * (1 - dpo["groups/zero_signal"])
    assert dpo["trained/zero_signal"] == 0 and dpo["trained/reward_mean"] == 0.5
    assert dpo["trained/share"] == 2 * dpo["trained/groups"] / 64
    assert dpo["trained/entropy"] > 2 * dpo["policy/entropy"]
    assert all(is_metric(name) for name in (*grpo, *dpo))


def test_rejected_groups_are_counted_and_an_arm_that_samples_more_shows_it() -> None:
    grpo = trainer_for(biased("grpo")).step(1)
    once = trainer_for(biased("dapo", attempts=1)).step(1)
    assert population(once) == population(grpo)
    trainer = trainer_for(biased("dapo", attempts=3))
    attempts: list[Sequence[Group]] = []
    honest = trainer.source.gather

    def watched(step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        attempts.append(honest(step, attempt, index))
        return list(attempts[-1])

    trainer.source.gather = watched  # type: ignore[method-assign]
    dapo = trainer.step(1)
    everything = [group for groups in attempts for group in groups]
    assert len(attempts) > 1 and dapo["groups/sampled"] == len(everything) == 8 * len(attempts)
    first = sampled_metrics(attempts[0], trainer.categories) | {"policy/entropy": entropy(attempts[0])}
    assert first == population(grpo)
    rewards = [reward for group in everything for reward in group.reward]
    assert dapo["reward/mean"] == dapo["score/correct"] == pytest.approx(np.mean(rewards))
    equal = [len(set(group.reward)) == 1 for group in everything]
    assert dapo["groups/zero_signal"] == pytest.approx(np.mean(equal))
    lengths = [len(rollout.completion) for group in everything for rollout in group.rollouts]
    assert dapo["length/mean"] == pytest.approx(np.mean(lengths))
    assert dapo["cost/generated_tokens"] == sum(lengths)
    assert dapo["trained/zero_signal"] == 0 < dapo["groups/zero_signal"]
    assert dapo["trained/groups"] == min(8, equal.count(False))
    assert dapo["trained/share"] == pytest.approx(dapo["trained/groups"] / len(everything))
    assert dapo["trained/entropy"] > dapo["policy/entropy"], "what is undecided is kept"


def test_entropy_does_not_depend_on_whether_the_sampler_tells_it(policy: str) -> None:
    """A third of these completions can not be graded, and all of them were written."""
    config = arithmetic_run(ALGORITHMS["grpo"](), task=Letters(faulty=True), model=ModelConfig(policy))
    reporting, silent = trainer_for(config), trainer_for(config)
    honest = silent.source.gather

    def without(*args: Any) -> list[Group]:
        return [
            dataclasses.replace(
                group, rollouts=[dataclasses.replace(rollout, entropy=None) for rollout in group.rollouts]
            )
            for group in honest(*args)
        ]

    silent.source.gather = without  # type: ignore[method-assign]
    reported_row, other = reporting.step(1), silent.step(1)
    assert 0 < reported_row["outcome/infra_error"] < 1
    # the same float32 logits of some tens, by a cached and by a whole forward pass
    assert reported_row["policy/entropy"] == pytest.approx(other["policy/entropy"], rel=1e-5)
    assert reported_row["policy/entropy"] > 0.1
    same = {
        name
        for name in reported_row
        if name != "policy/entropy" and not name.startswith(("time/", "cost/peak"))
    }
    assert {name: reported_row[name] for name in same} == {name: other[name] for name in same}


def test_recorded_rollouts_show_the_entropy_of_the_policy_as_it_is() -> None:
    """Replay: six problems were answered by the base policy; later steps draw them again."""
    config = arithmetic_run(ALGORITHMS["dpo"](), sampler=SamplerConfig(kind="replay", problems=4))
    trainer = trainer_for(config)
    first = trainer.step(1)
    groups = trainer.source.gather(2, 0, range(4))
    base = entropy(groups)
    assert base is not None and first["policy/entropy"] == pytest.approx(base, rel=1e-5)
    later = trainer.entropy(groups, 2)
    assert later != first["policy/entropy"] and trainer.step(2)["policy/entropy"] == later
    assert first["groups/sampled"] == 4


def test_numbers_of_three_groups_by_hand() -> None:
    groups = [
        group([[5, 6], [5, 6, 7, 8]], [1.0, 0.0], [[0.5, 1.5], [1.0] * 4]),
        group([[9], [9]], [1.0, 1.0], [[0.0], [1.0]], outcomes=("graded", "infra_error")),
        group([[], [3, 3, 3]], [0.0, 0.0], [[], [2.0, 9.0, 2.0]], written=(True, False, True)),
    ]
    row = sampled_metrics(groups)
    assert row["groups/sampled"] == 3
    assert row["reward/mean"] == pytest.approx(1 / 5 * 2), "one of six could not be graded"
    assert row["groups/zero_signal"] == pytest.approx(2 / 3)
    # (1, 0) has sample variance 1/2, (0, 0) has 0, each over 2; the group with one graded rollout has none
    assert row["groups/baseline_variance"] == pytest.approx((0.5 / 2 + 0) / 2)
    assert math.isnan(sampled_metrics(groups[1:2])["groups/baseline_variance"])
    assert row["outcome/infra_error"] == pytest.approx(1 / 6)
    assert row["length/mean"] == pytest.approx((2 + 4 + 1 + 1 + 0 + 2) / 6), "what was not graded was written"
    # (5,6), (5,6), (6,7), (7,8): three of four; a group without a 2-gram says nothing; (3,3) alone
    assert row["diversity/distinct_2"] == pytest.approx((3 / 4 + 1) / 2)
    # 2 + 4 + 0 + 1 + 4 over ten tokens; the reply of 9 nats was not the policy's
    assert entropy(groups) == pytest.approx(11 / 10)
    assert entropy([*groups, group([[4]], [0.0], None)]) is None
    assert math.isnan(entropy([]) or math.nan)
    assert group_metrics([])["groups/zero_signal"] != 0


def test_the_variance_of_the_baseline_is_that_of_a_groups_mean() -> None:
    """Unbiased: over all 16 groups of four coin flips its mean is p(1 − p)/4, the variance of their mean."""
    flips = [list(map(float, bits)) for bits in itertools.product((0, 1), repeat=4)]
    every = [group([[5]] * 4, rewards, None, ("graded",) * 4) for rewards in flips]
    assert sampled_metrics(every)["groups/baseline_variance"] == pytest.approx(0.25 / 4)
    assert np.var([np.mean(rewards) for rewards in flips]) == pytest.approx(0.25 / 4)


def test_accuracy_by_category_and_lengths_of_right_and_wrong_by_hand() -> None:
    easy_group = group([[5, 6], [5]], [1.0, 0.0], [[0.5, 1.5], [1.0]])
    two = group([[9], [9, 9, 9], [9]], [1.0, 0.5, 0.0], None, ("graded", "graded", "infra_error"))
    categorized_groups = [
        dataclasses.replace(g, problem=dataclasses.replace(g.problem, traits={"category": name}))
        for g, name in ((easy_group, "easy"), (two, "hard"))
    ]
    row = sampled_metrics(categorized_groups, ("easy", "hard", "rare"))
    assert row["score/correct/easy"] == 0.5 and row["score/correct/hard"] == 0.75
    assert math.isnan(row["score/correct/rare"]), "no rollout of the step is of it"
    assert row["length/right"] == pytest.approx((2 + 1) / 2)
    assert row["length/wrong"] == pytest.approx((1 + 3) / 2)
    assert not [name for name in sampled_metrics(categorized_groups) if name.startswith("score/correct/")]
    assert all(is_metric(name) for name in row)


@pytest.mark.parametrize(("count", "metrics"), [(0, 0), (1, 0), (2, 2), (16, 16), (17, 0)])
def test_two_to_sixteen_categories_have_metrics(count: int, metrics: int) -> None:
    problems = [Problem(f"p{i}", "", None, {"category": f"c{i % count}"} if count else {}) for i in range(40)]
    assert len(categories_of(problems)) == metrics


def test_categories_are_averaged_to_the_whole_in_a_step() -> None:
    trainer = trainer_for(biased("grpo"))
    assert len(trainer.categories) > 1
    row = trainer.step(1)
    drawn = [str(group.problem.traits["category"]) for group in trainer.groups]
    weighted = [row[f"score/correct/{name}"] for name in drawn]
    assert np.mean(weighted) == pytest.approx(row["score/correct"])


def group(
    completions: Sequence[Sequence[int]],
    rewards: Sequence[float],
    spread: Sequence[Sequence[float]] | None,
    outcomes: Sequence[Any] = ("graded", "graded"),
    written: tuple[bool, ...] = (),
) -> Group:
    sampled = [
        Rollout(
            (2,),
            tuple(tokens),
            np.zeros(len(tokens), dtype=np.float32),
            stopped=True,
            completion_mask=written if len(written) == len(tokens) else (),
            entropy=None if spread is None else np.array(spread[index], dtype=np.float32),
        )
        for index, tokens in enumerate(completions)
    ]
    verdicts = [
        Verdict({"correct": reward} if outcome == "graded" else {}, None, outcome)
        for reward, outcome in zip(rewards, outcomes, strict=False)
    ]
    return Group(Problem("p", "", None), sampled, verdicts, rewards)


def test_what_is_trained_on_is_told_of_the_rows_of_the_updates() -> None:
    batch = rollouts([[3, 5], [2, 2], [4, 6]], [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    signal = Signal(torch.tensor([0, 1, -1, 2, 3, -1]))
    sampled = [group([[5]] * 2, [0.0, 0.0], None) for _ in range(4)]
    assert trained_metrics(batch[(signal.row_group >= 0).nonzero().squeeze(-1)], sampled) == {
        "trained/share": 4 / 8,
        "trained/groups": 3.0,
        "trained/zero_signal": pytest.approx(2 / 3),  # one row is left of the second and of the third
        "trained/reward_mean": 0.75,
        "trained/length_mean": (3 + 5 + 2 + 4) / 4,
    }
    assert trained_metrics(batch[:0], sampled) == {"trained/share": 0.0}


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_auc_is_the_statistic_of_mann_and_whitney_over_the_pairs(rows: list[tuple[int, bool]]) -> None:
    labeled = [value for value, label in rows if label]
    others = [value for value, label in rows if not label]
    u = stats.mannwhitneyu(labeled, others).statistic
    assert auc([(value, float(label)) for value, label in rows]) == pytest.approx(
        u / (len(labeled) * len(others)), abs=1e-12
    )
