"""Doses of the training reward: closed forms, equal draws in every arm, and what they leave alone."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.graded import LOADED, make_rollouts
from helpers.logs import is_metric
from helpers.toys import Letters
from helpers.whole_runs import configure, rows, run, run_until_killed, same, timeless, transcript, weights
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from grpobench.algorithms.cora import CORA
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.gdpo import GDPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.remax import ReMax
from grpobench.runs.reward.doses import dosed
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.rollouts import Group
from grpobench.runs.settings.config import RewardConfig, SamplerConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.settings.verifier_errors import VerifierErrors
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.task import Problem, Task, Verdict

DRAWS = 4000


def group(reward: RewardConfig, *texts: str, task: Task | None = None, seed: int = 0) -> Group:
    task = task or Letters()
    problem = task.problems("train")[0]
    return Grader(task, reward, LOADED, seed).groups(["1/0"], [problem], [make_rollouts(*texts)])[0]


def doses(settings: RewardConfig, reward: float = 1.0, seed: int = 0) -> list[Any]:
    return [dosed(reward, settings, {"correct": 1.0}, seed, ("1/0", f"p{i}", i % 8)) for i in range(DRAWS)]


# Closed forms


def test_outliers_have_their_share_both_signs_and_the_size_of_the_recipe() -> None:
    dosed_rewards = doses(RewardConfig(outliers=0.2, outlier_size=7.0, offset=2.0, scale=3.0))
    hit = [dosed_reward.reward for dosed_reward in dosed_rewards if dosed_reward.outlier]
    assert binomtest(len(hit), DRAWS, 0.2).pvalue > 1e-3
    assert set(hit) == {3.0 + 2.0 + 7.0, 3.0 + 2.0 - 7.0}  # added after scale and offset
    assert binomtest(hit.count(12.0), len(hit), 0.5).pvalue > 1e-3
    assert {dosed_reward.reward for dosed_reward in dosed_rewards if not dosed_reward.outlier} == {5.0}


def test_flips_and_outliers_are_drawn_independently() -> None:
    dosed_rewards = doses(RewardConfig(flip=0.5, outliers=0.5))
    both = sum(dosed_reward.flipped and dosed_reward.outlier for dosed_reward in dosed_rewards)
    assert binomtest(both, DRAWS, 0.25).pvalue > 1e-3


def test_larger_share_changes_all_that_a_smaller_one_does() -> None:
    for name, hit in (("flip", "flipped"), ("outliers", "outlier")):
        few, many = (doses(RewardConfig(**{name: share})) for share in (0.1, 0.4))
        assert all(getattr(b, hit) for a, b in zip(few, many, strict=True) if getattr(a, hit))


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    factors=st.lists(st.floats(-3, 3), min_size=4, max_size=4),
)
def test_flip_is_low_plus_high_less_the_reward(scores: list[float], factors: list[float]) -> None:
    """Low and high by trying every corner of the scores' range."""
    factor_by_score = {f"s{i}": factors[i] for i in range(len(scores))}
    corners = np.array(np.meshgrid(*[[0, 1]] * len(scores))).reshape(len(scores), -1)
    possible = np.array(list(factor_by_score.values())) @ corners
    reward = float(np.dot(list(factor_by_score.values()), scores))
    flipped_reward = dosed(reward, RewardConfig(flip=1.0), factor_by_score, 0, ("1/0", "p", 0)).reward
    assert flipped_reward == pytest.approx(possible.min() + possible.max() - reward, abs=1e-9)
    assert possible.min() - 1e-9 <= flipped_reward <= possible.max() + 1e-9


def test_doses_apply_in_their_order() -> None:
    dosed_group = group(RewardConfig(flip=1.0, scale=-2.0, offset=5.0), "AAAAAA", "zz")
    assert dosed_group.reward == [5.0, 3.0]  # −2·(1−1)+5, −2·(1−0)+5


def test_components_scores_and_masked_completions_are_left_alone() -> None:
    @dataclasses.dataclass(frozen=True)
    class Brittle(Letters):
        def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
            if any(text.startswith("!") for text in completions):
                raise ValueError("cannot grade this")
            return super().verify(problem, completions)

    dosed_group = group(RewardConfig(flip=1.0, offset=3.0, outliers=1.0), "AAAAAA", "!", "zz", task=Brittle())
    assert dosed_group.components["correct"][0] == 1.0 and math.isnan(dosed_group.components["correct"][1])
    assert [verdict.scores.get("correct") for verdict in dosed_group.verdicts] == [1.0, None, 0.0]
    assert dosed_group.reward[1] == 0.0
    assert dosed_group.doses == {
        "flipped_share": [True, False, True],
        "false_positive_rate": [None, None, True],
        "false_negative_rate": [True, None, None],
        "outlier_share": [True, False, True],
    }


# Errors of a verifier


GROUPS, GROUP_SIZE = 500, 8


def errors_of(settings: VerifierErrors, steps: int = 1, seed: int = 0) -> np.ndarray:
    """Whether each reward is flipped, (steps, problems, completions): even completions are right."""
    keys = itertools.product(range(steps), range(GROUPS), range(GROUP_SIZE))
    config = RewardConfig(flip=settings)
    flipped = [
        dosed(1.0 - i % 2, config, {"correct": 1.0}, seed, (f"{step}/0", f"p{problem}", i)).flipped
        for step, problem, i in keys
    ]
    return np.array(flipped).reshape(steps, GROUPS, GROUP_SIZE)


@pytest.mark.parametrize("by", ["completion", "group", "problem"])
@pytest.mark.parametrize(("false_positive", "false_negative"), [(0.2, 0.05), (0.0, 0.3), (1.0, 0.0)])
def test_rates_of_both_errors_are_binomial_over_their_draws(
    by: Any, false_positive: float, false_negative: float
) -> None:
    """Where completions share a draw, the draws are counted: right and wrong ones of a group have equal
    draws among themselves."""
    flipped = errors_of(VerifierErrors(false_positive, false_negative, by))[0]
    if by != "completion":
        assert (flipped[:, ::2] == flipped[:, :1]).all() and (flipped[:, 1::2] == flipped[:, 1:2]).all()
        flipped = flipped[:, :2]
    for hits, chance in ((flipped[:, 1::2], false_positive), (flipped[:, ::2], false_negative)):
        if 0 < chance < 1:
            assert binomtest(int(hits.sum()), hits.size, chance).pvalue > 1e-3
        else:
            assert (hits == bool(chance)).all()


def correlation(flipped: np.ndarray) -> float:
    """Mean correlation of the errors of two completions of a group, over groups."""
    table = np.corrcoef(flipped.T.astype(float))
    return float(table[~np.eye(len(table), dtype=bool)].mean())


def test_errors_of_a_group_are_one_draw_and_those_of_completions_are_not() -> None:
    """With equal chances a group is flipped as a whole: correlation 1. Independent ones have a mean over 28
    pairs of 500 groups with SD 1/√(28 · 500) = 0.0085."""
    assert correlation(errors_of(VerifierErrors(0.3, 0.3, "group"))[0]) == pytest.approx(1.0)
    assert abs(correlation(errors_of(VerifierErrors(0.3, 0.3, "completion"))[0])) < 4 * 0.0085


def test_only_errors_by_problem_last_over_steps() -> None:
    by_problem = errors_of(VerifierErrors(0.3, 0.1, "problem"), steps=3)
    assert (by_problem == by_problem[:1]).all()
    first, second = errors_of(VerifierErrors(0.5, 0.5, "group"), steps=2)[:, :, 0]
    assert binomtest(int((first == second).sum()), GROUPS, 0.5).pvalue > 1e-3
    other = errors_of(VerifierErrors(0.5, 0.5, "problem"), seed=1)[0, :, 0]  # another run, other problems
    mine = errors_of(VerifierErrors(0.5, 0.5, "problem"))[0, :, 0]
    assert binomtest(int((mine == other).sum()), GROUPS, 0.5).pvalue > 1e-3


@given(share=st.floats(0.001, 1), reward=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 99))
def test_plain_number_is_the_chance_of_both_errors_with_the_draws_of_completions(
    share: float, reward: float, seed: int
) -> None:
    key = ("3/0", "p", 4)
    plain = dosed(reward, RewardConfig(flip=share), {"correct": 1.0}, seed, key)
    errors = RewardConfig(flip=VerifierErrors(share, share))
    assert plain == dosed(reward, errors, {"correct": 1.0}, seed, key)
    draw = random.Random(derive(seed, "flip", *key)).random()  # as before there were other errors
    assert plain.flipped == (draw < share)


def test_error_is_positive_if_it_raises_the_reward_whatever_the_weights() -> None:
    """Of weights 1 and −0.5 rewards go from −0.5 to 1, and 0.25 is the middle: it is neither."""
    weights = {"correct": 1.0, "long": -0.5}
    kinds = {-0.5: 0.0, 0.0: 0.0, 0.25: None, 0.5: 1.0, 1.0: 1.0}
    for reward, kind in kinds.items():
        flip = RewardConfig(flip=VerifierErrors(false_positive=1.0))
        assert dosed(reward, flip, weights, 0, ("1/0", "p", 0)).was_high == kind
        negative = dosed(reward, RewardConfig(flip=VerifierErrors(0.0, 1.0)), weights, 0, ("1/0", "p", 0))
        assert negative.reward == pytest.approx(0.5 - reward if kind else reward)


# What a wrong format costs


def test_negative_weight_makes_a_wrong_format_cost_instead_of_zeroing_the_reward() -> None:
    task = Arithmetic()
    problem = task.problems("train")[0]
    right, wrong = f"#{problem.truth}", f"#{problem.truth + 1}"
    fined = RewardConfig(kind="sum", weights={"correct": 1.0, "format": 0.5, "constant": -0.5})
    assert group(fined, right, wrong, "none", task=task).reward == [1.0, 0.0, -0.5]
    penalized = RewardConfig(weights={"correct": 1.0, "format": -0.25})
    assert group(penalized, right, wrong, "none", task=task).reward == [0.75, -0.25, 0.0]


# Refusals


def refused(algorithm: Any, reward: RewardConfig, **sections: Any) -> list[str]:
    return incompatible(configure("nano", algorithm, reward=reward, task=Arithmetic(), **sections))


@pytest.mark.parametrize(
    ("algorithm", "read"), [(GDPO(), "each part of the reward"), (CORA(), "consistent and correct")]
)
def test_algorithm_that_reads_scores_refuses_flips_and_takes_scales(algorithm: Any, read: str) -> None:
    refusals = refused(algorithm, RewardConfig(flip=0.1))
    assert (
        len(refusals) == 1
        and f"reads {read} beside the reward, which reward.flip does not reach" in refusals[0]
    )
    assert refused(algorithm, RewardConfig(scale=2.0, offset=1.0, outliers=0.1)) == []


def test_trl_takes_doses_where_it_is_given_the_whole_reward() -> None:
    trl = TrainConfig(backend="trl", prompts_per_step=4, group_size=4)
    for doses_of_run in (RewardConfig(), RewardConfig(flip=0.1, scale=2.0)):
        assert not [why for why in refused(GRPO(), doses_of_run, train=trl) if "reward." in why]


# Whole runs


def ends(tmp_path: Path, reward: RewardConfig, policy: str, algorithm: Any = None) -> dict[str, torch.Tensor]:
    path = tmp_path / str(len(list(tmp_path.iterdir())))
    settings = TrainConfig(steps=2, prompts_per_step=4, group_size=4, learning_rate={"policy": 1e-3})
    run(configure(policy, algorithm, reward=reward, train=settings), path)
    return weights(path / "final" / "policy.safetensors")


def equal(weights: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weights[name], other[name]) for name in weights)


def test_offset_and_scale_leave_the_steps_of_grpo_as_they_are(policy: str, tmp_path: Path) -> None:
    """Rewards of 0 and 1, their sums and means over 4 are exact in float32, with an offset of 8 too; so are
    those times 1024, as is their deviation, to which an ε of 1e-30 adds nothing."""
    plain = ends(tmp_path, RewardConfig(), policy)
    assert equal(ends(tmp_path, RewardConfig(offset=8.0), policy), plain)
    exact = ends(tmp_path, RewardConfig(), policy, GRPO(epsilon=1e-30))
    assert equal(ends(tmp_path, RewardConfig(scale=1024.0), policy, GRPO(epsilon=1e-30)), exact)
    assert not equal(ends(tmp_path, RewardConfig(flip=1.0), policy), plain)
    assert not equal(ends(tmp_path, RewardConfig(scale=-1.0), policy), plain)
    assert equal(
        ends(tmp_path, RewardConfig(flip=1.0), policy), ends(tmp_path, RewardConfig(scale=-1.0), policy)
    )  # 1 − r and −r differ by an offset


def test_rows_of_a_dosed_run(policy: str, tmp_path: Path) -> None:
    reward = RewardConfig(flip=0.5, scale=2.0, offset=1.0, outliers=0.25, outlier_size=32.0)
    run_rows = run(configure(policy, reward=reward), tmp_path / "run")
    plain = run(configure(policy), tmp_path / "plain")
    assert not {key for row in run_rows for key in row if not is_metric(key)}
    assert timeless(run_rows[0]) == timeless(plain[0])  # evaluations have no dose
    assert not {"reward/flipped_share", "reward/outlier_share"} & plain[1].keys()
    for row in run_rows[1:]:
        assert row["reward/correct"] == row["score/correct"]
    first = [completion for group in transcript(tmp_path / "run", 1) for completion in group["completions"]]
    assert run_rows[1]["reward/mean"] == pytest.approx(
        np.mean([completion["reward"] for completion in first])
    )
    assert run_rows[1]["reward/correct"] == plain[1]["reward/correct"]  # the base policy's, before any update
    clean = {1.0, 3.0}  # 2·0+1, 2·1+1
    assert {completion["reward"] for completion in first} <= clean | {
        r + s for r in clean for s in (32.0, -32.0)
    }
    outliers = np.mean([completion["reward"] not in clean for completion in first])
    assert run_rows[1]["reward/outlier_share"] == outliers
    flips = [
        (completion["reward"] + 32 * (completion["reward"] < -9) - 32 * (completion["reward"] > 9) - 1) / 2
        != completion["scores"]["correct"]
        for completion in first
    ]
    assert run_rows[1]["reward/flipped_share"] == np.mean(flips)


def test_rows_have_the_measured_rates_of_errors_and_a_killed_run_repeats_them(
    policy: str, tmp_path: Path
) -> None:
    """Rates by the scores and rewards of the transcripts, and the same run after a kill."""
    reward = RewardConfig(flip=VerifierErrors(0.4, 0.2, "group"))
    run_rows = run(configure(policy, reward=reward), tmp_path / "whole")
    for step, row in enumerate(run_rows[1:], 1):
        pairs = [
            (completion["scores"]["correct"], completion["reward"])
            for group in transcript(tmp_path / "whole", step)
            for completion in group["completions"]
        ]
        for name, right in (("false_positive_rate", 0), ("false_negative_rate", 1)):
            errors = [correct != paid for correct, paid in pairs if correct == right]
            assert row[f"reward/{name}"] == pytest.approx(np.mean(errors))
        assert row["reward/flipped_share"] == np.mean([correct != paid for correct, paid in pairs])
    run_until_killed(configure(policy, reward=reward), tmp_path / "resumed", 2)
    run(configure(policy, reward=reward), tmp_path / "resumed")
    assert same(tmp_path / "whole", tmp_path / "resumed")


def test_greedy_answer_is_dosed_and_leaves_no_trace_in_the_shares(policy: str, tmp_path: Path) -> None:
    reward = RewardConfig(flip=0.5, outliers=0.5, scale=2.0)
    run_rows = run(configure(policy, ReMax(), reward=reward), tmp_path)
    assert all((16 * row["reward/flipped_share"]).is_integer() for row in run_rows[1:])


def test_replayed_answers_keep_their_doses(policy: str, tmp_path: Path) -> None:
    replay = SamplerConfig(kind="replay", problems=4)
    run(configure(policy, DPO(), reward=RewardConfig(flip=0.5), sampler=replay), tmp_path)
    by_step = [
        {
            (group["problem"], i): completion["reward"]
            for group in part
            for i, completion in enumerate(group["completions"])
        }
        for part in (transcript(tmp_path, 1), transcript(tmp_path, 2))
    ]
    assert by_step[0] == by_step[1]
    assert json.dumps(rows(tmp_path)[1]["reward/flipped_share"]) != "0.0"
