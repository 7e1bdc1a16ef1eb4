"""Algorithms in verl's terms: a rule for every field, numbers that verl means otherwise, and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.cispo import CISPO
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.dr_grpo import DrGRPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.libraries.dialects import DIALECTS
from grpobench.algorithms.libraries.verl_arguments import ACTOR, TABLE, Translation, translate
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.ppo import PPO

LIMIT = 20


def translated(algorithm: Any, **modify: Any) -> Translation:
    return translate(algorithm, Modifiers(**modify), LIMIT)


@pytest.mark.parametrize("name", TABLE)
def test_there_is_a_rule_for_every_field_of_an_algorithm(name: str) -> None:
    assert {field.name for field in dataclasses.fields(ALGORITHMS[name])} == set(TABLE[name].fields)


@pytest.mark.parametrize("name", TABLE)
def test_the_algorithms_as_they_are_can_be_expressed(name: str) -> None:
    translation = translated(ALGORITHMS[name]())
    assert not translation.refused
    assert translation.settings


@pytest.mark.parametrize("name", sorted(name for name in TABLE if f"{name}@verl" in DIALECTS))
def test_what_a_dialect_calls_verls_default_is_asked_of_verl_unchanged(name: str) -> None:
    """The settings that a dialect reads off verl's files come out as these defaults again."""
    dialect = DIALECTS[f"{name}@verl"]
    if dialect.base != name:
        pytest.skip("verl's algorithm of this name is another one of ours")
    translation = translated(ALGORITHMS[name](**dialect.values["settings"]))
    assert not translation.refused
    defaults = {
        f"{ACTOR}.clip_ratio_c": 3.0,
        f"{ACTOR}.use_kl_loss": False,
        f"{ACTOR}.loss_agg_mode": "token-mean",
        "critic.cliprange_value": 0.5,
        "algorithm.lam": 1.0,
        "trainer.critic_warmup": 0,
    }
    if name == "dapo":  # whose dialect is a recipe
        defaults[f"{ACTOR}.clip_ratio_c"] = 10.0
    if name == "dr_grpo":
        defaults[f"{ACTOR}.loss_agg_mode"] = "seq-mean-token-sum-norm"
    if name == "sapo":
        defaults[f"{ACTOR}.loss_agg_mode"] = "seq-mean-token-mean"
    if name == "cispo":  # their ε is the distance from 1
        assert translation.settings[f"{ACTOR}.clip_ratio_high"] == pytest.approx(0.2)
        assert translation.settings[f"{ACTOR}.clip_ratio_low"] == pytest.approx(0.2)
    for key, value in defaults.items():
        assert translation.settings.get(key, value) == value, key


def test_a_cap_becomes_a_distance_from_one() -> None:
    settings = translated(CISPO(ratio_cap=5.0, ratio_floor=0.25)).settings
    assert settings[f"{ACTOR}.clip_ratio_high"] == 4.0
    assert settings[f"{ACTOR}.clip_ratio_low"] == 0.75


def test_a_bound_that_is_off_becomes_one_that_nothing_reaches() -> None:
    assert translated(GRPO()).settings[f"{ACTOR}.clip_ratio_c"] > 2.718281828**20
    assert translated(GRPO(dual_clip=3.0)).settings[f"{ACTOR}.clip_ratio_c"] == 3.0
    assert translated(PPO(value_clip=0.0)).settings["critic.cliprange_value"] == 1e9


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (1, 2), (5, 6)])
def test_verl_updates_the_actor_from_the_step_of_its_warmup_on(ours: int, theirs: int) -> None:
    """trainer_base.py: `critic_warmup <= global_steps`, which is 1 in the first step."""
    assert translated(PPO(critic_warmup=ours)).settings["trainer.critic_warmup"] == theirs


def test_a_constant_divisor_is_the_limit() -> None:
    settings = translated(DrGRPO()).settings
    assert settings[f"{ACTOR}.loss_scale_factor"] == LIMIT
    assert settings["algorithm.norm_adv_by_std_in_grpo"] is False


def test_a_penalty_is_in_the_loss_or_in_the_reward() -> None:
    loss = translated(GRPO(beta=0.04, kl_estimator="k3"))
    assert loss.settings[f"{ACTOR}.use_kl_loss"] is True
    assert loss.settings[f"{ACTOR}.kl_loss_coef"] == 0.04
    assert loss.settings[f"{ACTOR}.kl_loss_type"] == "low_var_kl"
    assert any("k3 of a token is at most 10" in note for note in loss.differs)
    reward = translated(GRPO(beta=0.04, kl_placement="reward")).settings
    assert reward["algorithm.use_kl_in_reward"] is True
    assert reward["algorithm.kl_ctrl.kl_coef"] == 0.04
    assert f"{ACTOR}.kl_loss_coef" not in reward


def test_a_small_constant_is_listed_with_its_effect_unless_it_is_verls() -> None:
    (listed,) = (note for note in translated(GRPO()).differs if "epsilon" in note)
    assert listed.endswith("its advantages are ours times (s + 0.0001)/(s + 1e-06)")
    assert not [note for note in translated(GRPO(epsilon=1e-6)).differs if "epsilon" in note]
    assert not [note for note in translated(GRPO(scale="none")).differs if "epsilon" in note]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (DPO(), "verl 0.9 has no dpo"),
        (GRPO(baseline="median"), 'settings.baseline is "median"'),
        (GRPO(whiten=True), "settings.whiten is true"),
        (GRPO(ddof=0), "settings.ddof is 0"),
        (GRPO(averaging="prompt_mean"), 'it has "sequence_mean" or "sequence_sum" or "token_mean"'),
        (GRPO(beta=0.1, kl_estimator="k3_unbiased"), 'settings.kl_estimator is "k3_unbiased"'),
        (GSPO(dual_clip=3.0), "settings.dual_clip is 3.0"),
        (PPO(critic="shared"), 'settings.critic is "shared"'),
    ],
)
def test_what_verl_lacks_is_refused_with_the_setting(algorithm: Any, words: str) -> None:
    (why,) = translated(algorithm).refused
    assert words in why


@pytest.mark.parametrize(
    "modify",
    [
        {"mask_truncated": True},
        {"zero_variance_filter": True},
        {"off_policy_mask": 0.1},
        {"reference_every": 2},
        {"schedule": "ads"},
    ],
    ids=lambda modify: next(iter(modify)),
)
def test_modifiers_that_verl_lacks_are_refused(modify: dict[str, Any]) -> None:
    (why,) = translated(GRPO(), **modify).refused
    assert f"modify.{next(iter(modify))} " in why


def test_modifiers_that_verl_has() -> None:
    translation = translated(
        GRPO(), dynamic_sampling=9, overlong_buffer=4, overlong_penalty=0.5, entropy_bonus=0.01
    )
    assert translation.settings["algorithm.filter_groups.enable"] is True
    assert translation.settings["algorithm.filter_groups.metric"] == "score"  # before lengths are punished
    assert translation.settings["reward.reward_manager.name"] == "dapo"
    assert translation.settings["reward.reward_kwargs.max_resp_len"] == LIMIT
    assert translation.settings["reward.reward_kwargs.overlong_buffer_cfg.len"] == 4
    assert translation.settings[f"{ACTOR}.entropy_coeff"] == 0.01
    assert translated(GRPO(), dynamic_sampling=9).settings["algorithm.filter_groups.metric"] == "reward"
