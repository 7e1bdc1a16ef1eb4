"""Settings out of range, of algorithms and of the section `modify`: each is refused by its name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.modifiers import Modifiers

IN_THE_REWARD = {"kl_placement": "reward", "beta": 0.1}
OUT_OF_RANGE: dict[str, tuple[dict[str, Any], ...]] = {
    "a_star_po": ({"beta1": 0.0}, {"beta2": -1.0}, {"value_samples": 0}),
    "bnpo": ({"highest": 0.0}, IN_THE_REWARD),
    "bpo": ({"smoothing": 0.0}, {"ratio_cap": 0.5}, {"clip_low": 1.5}),
    "chord": ({"expert_answers": 0}, {"mu_peak": 1.1}, {"mu_valley": -0.1}, {"mu_decay_steps": -1}),
    "cispo": ({"ratio_cap": 0.5}, {"ratio_floor": 1.5}),
    "clip_cov": ({"lowest": 5.0}, {"fraction": 0.0}),
    "cora": ({"task_weight": -1.0}, {"consistency_weight": -1.0}, {"warmup": -1}, {"half_life": -1.0}),
    "dppo": ({"ratio_cap": 0.5}, {"threshold": 0.0}),
    "dro": ({"temperature": -0.1},),
    "echo": ({"reply_weight": -0.1},),
    "entropy_mask": ({"top_fraction": 0.0},),
    "es": ({"sigma": 0.0}, {"sigma": -1.0}, {"sigma": math.nan}),
    "exppo": ({"strength": -0.1}, {"strength": 1.0}, {"strength": math.nan}),
    "fipo": (
        *({"half_life": 0.0}, {"influence_low": 1.5}, {"influence_low": -0.1}, {"influence_high": -0.1}),
        *({"safety_ratio": -1.0}, {"dual_clip": 1.2}),
    ),
    "flowrl": ({"ratio_cap": 0.5}, {"reward_scale": -1.0}),
    "gagpo": ({"discount": 1.1}, {"trace": -0.1}, {"turn_rewards": -1.0}),
    "gapo": ({"clip_high": 1e-3}, {"clip_high": math.inf}, {"averaging": "token_mean"}),
    "gigpo": ({"discount": 1.5},),
    "gkd": ({"divergence_beta": 1.1},),
    "gmpo": ({"clip_low": -1.0},),
    "grpo": ({"baseline": "none"},),
    "gvpo": ({"temperature": 0.0}, {"temperature": -1.0}),
    "hierarchical_grpo": (IN_THE_REWARD, {"proposal_turns": 0}),
    "ipo": ({"beta": 0.0},),
    "iw_opd": ({"prefix_weight": -0.1},),
    "kimi": ({"temperature": -1.0}, {"length_reward": -1.0}),
    "kl_cov": ({"fraction": 1.5}, {"coefficient": -1.0}),
    "kto": ({"beta": 0.0}, {"desirable_weight": -1.0}, {"threshold": math.nan}),
    "luspo": ({"clip_low": 2.0}, {"dual_clip": 1.0}),
    "m2po": ({"threshold": 0.0}, {"threshold": -1.0}, {"threshold": math.nan}),
    "maxrl": (IN_THE_REWARD,),
    "ngrpo": ({"rho": 1.5}, {"rho": -0.1}, {"k": 1}),
    "ngu": ({"again": 1.1}, {"rounds": 0}),
    "opd": ({"discount": 1.5}, {"bound": 0.0}, {"distill_weight": -1.0}),
    "pact": (
        *({"critic": "shared"}, {"discount": 0.9}, {"value_clip": 0.2}, {"turn_rewards": 1.0}),
        *(IN_THE_REWARD, {"dual_clip": 10.0}, {"accept_low": 1.5}, {"max_reward": 0.0}),
    ),
    "passk": ({"k": 0},),
    "rae": ({"decay": 1.0}, {"decay": -0.1}, {"decay": math.nan}),
    "real": ({"temperature": 0.0}, {"threshold": math.nan}),
    "rebel": ({"eta": 0.0}, {"beta": -0.1}),
    "rredcot": ({"segments": 0}, {"longest_answer": 0}),
    "sao": ({"dual_clip": 3.0, "clip_high": 1.0},),
    "sapo": ({"temperature_negative": 0.0},),
    "sdft": (
        *({"template": "{demonstration}"}, {"template": "{prompt}"}, {"teacher_rate": 0.0}),
        *({"divergence_beta": 1.5}, {"ratio_cap": -1.0}, {"skip_tokens": -1}, {"beta": 0.1}),
    ),
    "simpo": ({"gamma": -1.0},),
    "spo": (
        *({"discount_low": 0.97}, {"discount_high": 1.1}, {"half_life": 0.0}, {"prior_evidence": 0.0}),
        *({"prior_success": 1.5}, {"max_reward": 0.0}, {"exploration": -0.1}, IN_THE_REWARD),
    ),
    "topr": ({"offset": math.nan},),
    "tpo": ({"gold": -1.0}, {"expert_answers": 0}, {"beta": 0.0}),
    "vapo": ({"length_scale": 0.0}, {"nll": -0.1}),
    "vespo": ({"decay_negative": -1.0},),
    "modify": (
        *({"off_policy_mask": math.inf}, {"entropy_bonus": -0.1}, {"overlong_penalty": math.inf}),
        *(
            {name: value}
            for name in ("entropy_target", "entropy_step", "entropy_limit")
            for value in (-0.1, math.nan)
        ),
        *({"entropy_target": math.inf}, {"entropy_step": math.inf}, {"entropy_limit": math.inf}),
        *(
            {"reference_mix": 0.0},
            {"credit_discount": 1.1},
            {"credit_weight": -1.0},
            {"credit_rewards": -1.0},
        ),
        *({"ads_clusters": 0}, {"ads_components": 0}, {"ads_at_once": 0}, {"ads_smoothing": 1.5}),
        *({"ads_band": 0.6}, {"ads_success": 0.0}),
    ),
}
"""By algorithm. Infinity, which most settings refuse, is in test_conformance.py."""


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(name, settings, id="-".join([name, *map(str, next(iter(settings.items())))]))
        for name, refused in OUT_OF_RANGE.items()
        for settings in refused
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"(^|[ ,]){next(iter(settings))}(:|,| )"):
        (Modifiers if name == "modify" else ALGORITHMS[name])(**settings)
