"""Degenerate cases: where an algorithm is another one, and the policy gradient that each is at ratio 1."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from helpers.batches import data
from helpers.slopes import slope, surrounded
from helpers.toys import Fixed, backward, close, distance, models_for, norm, off_policy, rollouts

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm, ModelOutput
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.policy_gradient import GroupNormalized

pytestmark = pytest.mark.usefixtures("double")
FREE = {"clip_low": 1.0, "clip_high": math.inf, "averaging": "token_mean"}
"""No clip, as far as GRPO has one, and a mean over tokens."""
WIDE = {"clip_low": 0.1, "clip_high": 0.1}
TOKENS = {"averaging": "token_mean"}
CENTERED = {**TOKENS, "scale": "none"}
SHAPES = ("power_positive", "decay_positive", "power_negative", "decay_negative")
Settings = dict[str, Any]
TWINS: dict[str, tuple[Settings, str, Settings]] = {
    "ads": ({}, "grpo", {}),
    "bnpo": (
        {"density": "flat"},
        "dr_grpo",
        {"averaging": "sequence_sum", "clip_high": 0.28, "dual_clip": 10.0},
    ),
    "chord": ({"mu_peak": 0.0, "mu_valley": 0.0}, "grpo", {**TOKENS, "epsilon": 1e-6}),
    "cispo": ({"ratio_cap": 1e9}, "grpo", FREE),
    "cora": ({"consistency_weight": 0.0}, "grpo", {}),
    "cora-beta": ({"consistency_weight": 0.0, **CENTERED, "beta": 0.1}, "grpo", {**CENTERED, "beta": 0.1}),
    "dapo": ({}, "grpo", {**TOKENS, "clip_high": 0.28}),
    "dppo": ({"threshold": 2.0, "ratio_cap": 1e9, **TOKENS, "scale": "group"}, "grpo", FREE),
    "dr_grpo": ({}, "grpo", {"averaging": "constant", "scale": "none"}),
    "dro": ({"temperature": 0.0}, "rgra", CENTERED),
    "echo": ({}, "grpo", {}),  # without replies
    "entropy_mask": ({"top_fraction": 1.0}, "dapo", {}),
    "exppo": ({"strength": 0.0}, "grpo", {}),
    "fipo": (
        {"influence_high": 0.0, "dual_clip": 3.0, "drop_outliers": False, "safety_ratio": 0.0},
        "dapo",
        {"dual_clip": 3.0},
    ),
    "gapo": (WIDE, "gspo", {**WIDE, "scale": "none"}),
    "gigpo": ({"step_weight": 0.0, "beta": 0.0}, "grpo", {**TOKENS, "epsilon": 1e-6}),
    "gmpo": ({"clip_low": 50.0, "clip_high": 50.0}, "gspo", {"clip_low": 1.0, "clip_high": math.inf}),
    "gspo-token": ({**WIDE, "level": "token"}, "gspo", WIDE),
    "hierarchical_grpo": ({"proposal_turns": 99}, "dr_grpo", TOKENS),
    "iw_opd": (
        {"prefix_weight": 0.0, "discount": 0.5, "bound": 0.7, "task_weight": 0.3},
        "opd",
        {"discount": 0.5, "bound": 0.7, "task_weight": 0.3},
    ),
    "kl_cov": ({"coefficient": 0.0}, "grpo", FREE),
    "lite_ppo": ({}, "grpo", {**TOKENS, "scale": "batch"}),
    "luspo": ({**WIDE, "averaging": "sequence_mean"}, "gspo", WIDE),
    "m2po": ({"threshold": 1e9}, "grpo", FREE),
    "negative_grpo": (
        {"virtual": 0},
        "grpo",
        {**TOKENS, "epsilon": 1e-6, "clip_low": 0.16, "clip_high": 0.24},
    ),
    "ngu": ({}, "grpo", {"scale": "none"}),
    "passk": ({"k": 1}, "grpo", {**TOKENS, "ddof": 0, "epsilon": 1e-6, "clip_high": 0.28}),
    "sapo": (
        {"temperature_positive": 1e-6, "temperature_negative": 1e-6},
        "grpo",
        {"clip_low": 1.0, "clip_high": math.inf},
    ),
    "vespo": (dict.fromkeys(SHAPES, 0.0), "rgra", TOKENS),
}
"""Settings with which an algorithm is another one, with settings of its own."""
EXACT = """
    ads chord cora cora-beta dapo dr_grpo echo entropy_mask exppo gigpo hierarchical_grpo iw_opd lite_ppo ngu
"""
"""Those that are it bit for bit."""


def variant(case: str, settings: Settings) -> Algorithm[Any]:
    return ALGORITHMS[case.partition("-")[0]](**settings)


@pytest.mark.parametrize("case", TWINS)
def test_with_these_settings_it_is_the_other(case: str) -> None:
    settings, twin, settings_of_twin = TWINS[case]
    algorithm = variant(case, settings)
    models = models_for(algorithm, "gpt2")
    batch = off_policy(data(), models)
    ours, theirs = (backward(each, models, batch)[0] for each in (algorithm, variant(twin, settings_of_twin)))
    assert norm(theirs) > 1e-3
    # float64, whose 1e-16 a division by std + ε multiplies
    assert distance(ours, theirs) <= (0 if case in EXACT.split() else 1e-10)


AVERAGED = """
    bnpo bpo cispo dapo dppo dr_grpo dro exppo fipo gdpo gmpo gpg grpo kimi lite_ppo luspo m2po maxrl mc_grpo
    negative_grpo opo otb reinforce_pp reinforce_pp_baseline remax rgra rloo sapo topr vespo
"""
AT_RATIO_ONE: dict[str, Settings] = {
    **{name: {"averaging": "prompt_mean"} for name in AVERAGED.split()},
    "clip_cov": {"lowest": 99.0, "highest": 100.0},
    "dppo-kl": {"divergence": "kl", "scale": "group"},
    "entropy_mask": {"top_fraction": 1.0},
    "fipo-wide": {"influence_low": 0.5, "influence_high": 3.0, "half_life": 1.0, "dual_clip": 2.0},
    "gapo": {},
    "grpo-kl-reward": {"beta": 0.5, "kl_placement": "reward"},
    "gspo": {},
    "gspo-token": {"level": "token"},
    "kl_cov": {"fraction": 1.0},
    "m2po-cap": {"rule": "cap"},
    "passk": {"k": 1},
    "topr-token": {"level": "token"},
}


@pytest.mark.parametrize("case", AT_RATIO_ONE)
def test_at_ratio_one_the_gradient_is_that_of_reinforce_with_its_own_advantage(case: str) -> None:
    """Three groups, the last of equal rewards, in which every token has the same share of its average."""
    algorithm = variant(case, AT_RATIO_ONE[case])
    batch, _ = surrounded(
        rollouts([[3, 1, 5], [2, 4, 1], [1, 2]], [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0], [1.0, 1.0]])
    )
    batch = dataclasses.replace(batch, sampler_logp=batch.old_logp)
    squares = (2 * batch.old_logp).exp()
    outputs = {
        "policy": ModelOutput(batch.old_logp, squares, squares[:, :0], squares=squares),
        "reference": ModelOutput(0.5 * batch.old_logp, squares, squares[:, :0]),
    }
    signal = algorithm.compute_signal(batch, Fixed(**outputs))
    rows = signal.row_group >= 0
    weights, written = algorithm.loss_weights(batch[rows]), batch.completion_mask[rows]
    if weights.dim() == 1:
        weights = weights[:, None] / written.sum(-1, keepdim=True)
    gradient = slope(algorithm, batch, batch.old_logp, **outputs)
    close(gradient[rows], -signal.advantage[rows] * weights * written)
    assert gradient.abs().max() > 1e-4
    if type(algorithm).advantage is GroupNormalized.advantage and not algorithm.beta:
        grpo = GRPO(scale=algorithm.scale, epsilon=algorithm.epsilon)
        close(signal.advantage, grpo.compute_signal(batch, Fixed()).advantage)


def test_a_policy_that_moved_has_another_gradient_with_a_ratio_and_the_same_without() -> None:
    batch, _ = surrounded(rollouts([[3, 1, 5], [2, 4]], [[1.0, 0.0, 0.5], [0.0, 1.0]]))
    for name in ("rloo", "gpg", "opo", "remax", "rgra", "dr_grpo"):
        algorithm = ALGORITHMS[name]()
        near, far = (slope(algorithm, batch, batch.old_logp + by) for by in (0.0, 2.0))
        assert torch.allclose(near, far, rtol=1e-10) == (name != "dr_grpo")
