"""What holds for every algorithm of the registry, in every setting that changes its formula.

All comparisons run the training loop's own accumulation on a small GPT-2 in float64, where every operation
of the model is float64 too, so that a property can be told from rounding: TIGHT. One test repeats the most
important one in float32 on a Llama.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

import pytest
import torch
from helpers.batches import data
from helpers.core import CORE, core
from helpers.toys import backward, distance, models_for, norm, off_policy, rollouts, untaught
from torch.utils._python_dispatch import TorchDispatchMode

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.a_star_po import AStarPO
from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput, Role, Rows, Signal
from grpobench.algorithms.gagpo import GAGPO
from grpobench.algorithms.kto import KTO
from grpobench.algorithms.modifiers import METRICS, Modified, Modifiers
from grpobench.algorithms.pact import PACT
from grpobench.algorithms.parts import Averaging, Baseline, Estimator, Scale
from grpobench.algorithms.rae import RAE
from grpobench.algorithms.rft import RFT
from grpobench.runs.metrics.catalog import catalog
from grpobench.runs.metrics.rollout_metrics import MetricAccumulator
from grpobench.runs.models.packing import micro_batches
from grpobench.runs.models.roles import RoleModels

TIGHT = 1e-11
"""Relative to the norm of the whole gradient: float64 has 1e-16, a sum of some thousand terms loses two or
three digits, and 1/(std + ε) of a group multiplies them once more."""


BETA = """
    ads bnpo cispo clip_cov dapo dppo dr_grpo dro gdpo gmpo gpg gspo kimi kl_cov lite_ppo luspo maxrl
    mc_grpo opo reinforce_pp reinforce_pp_baseline remax rgra rloo sapo topr vespo
"""
KL_IN_THE_REWARD = """
    cispo clip_cov dapo dppo exppo gdpo gigpo gmpo grpo kimi kl_cov luspo m2po mc_grpo otb ppo rae
    reinforce_pp_baseline remax sapo topr vespo
"""
AVERAGED = ("grpo", "gmpo", "luspo", "kimi", "cispo")
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"grpo-{baseline}": {"baseline": baseline, "scale": "none"} for baseline in Baseline.__args__},
    **{f"grpo-scale-{scale}": {"scale": scale, "ddof": 0} for scale in Scale.__args__},
    **{f"grpo-loss-{kind}": {"beta": 0.1, "kl_estimator": kind} for kind in Estimator.__args__},
    **{f"{name}-{kind}": {"averaging": kind} for name in AVERAGED for kind in Averaging.__args__},
    **{f"{name}-beta": {"beta": 0.1} for name in BETA.split()},
    **{f"{name}-kl-loss": {"beta": 0.1, "kl_placement": "loss"} for name in ("ppo", "reinforce_pp")},
    **{f"{name}-kl-reward": {"beta": 0.1, "kl_placement": "reward"} for name in KL_IN_THE_REWARD.split()},
    **{
        f"{name}-kl-advantage": {"beta": 0.1, "kl_placement": "advantage"}
        for name in ("grpo", "vespo", "gapo", "topr", "m2po", "fipo")
    },
    "grpo-whiten": {"whiten": True},
    "cispo-floor": {"ratio_floor": 0.9, "ratio_cap": 1.1},
    "cispo-truncated": {"ratio_cap": 1.1},
    "gspo-wide": {"clip_low": 0.1, "clip_high": 0.1},
    "gspo-token": {"level": "token"},
    "gspo-token-beta": {"level": "token", "beta": 0.1},
    "gspo-batch": {"scale": "batch"},
    "ppo-shared": {"critic": "shared"},
    "ppo-shared-kl-reward": {"critic": "shared", "beta": 0.1, "kl_placement": "reward"},
    "ppo-warmup": {"critic_warmup": 1},
    "ppo-shared-warmup": {"critic": "shared", "critic_warmup": 1},
    "ppo-raw": {"whiten": False, "value_clip": 0.0, "discount": 0.9},
    "ppo-entropy": {"entropy_bonus": 0.1},
    "ppo-turns": {"gae": "turn", "turn_rewards": 0.5, "discount": 0.9, "beta": 0.1},
    "vapo-turns": {"critic_warmup": 0, "gae": "turn", "length_scale": 2.0, "trace": 0.9},
    "vapo-trained": {"critic_warmup": 0},
    "vapo-long": {"critic_warmup": 0, "length_scale": 0.5, "trace": 0.9, "nll": 0.0},
    "vapo-shared": {"critic_warmup": 0, "critic": "shared", "averaging": "sequence_mean", "beta": 0.1},
    "dpo-nll": {"nll": 1.0},
    "dpo-one": {"pairs_per_group": 1},
    "kto-rollouts": {"reference_point": "rollouts", "threshold": 0.5},
    "kto-zero": {"reference_point": "zero", "desirable_weight": 2.0, "undesirable_weight": 0.5},
    "simpo-nll": {"beta": 0.5, "gamma": 0.0, "nll": 1.0},
    "orpo-heavy": {"beta": 2.0, "nll": 0.0},
    "tpo-strong": {"beta": 1.0, "nll": 0.5, "pairs_per_group": 1},
    "sppo-hard": {"beta": 0.1, "win": "hard", "pairs_per_group": 0},
    "sppo-pair": {"beta": 0.1, "win": "hard", "opponents": "pair", "nll": 0.5},
    "bnpo-deviation": {"density": "deviation"},
    "mc_grpo-group": {"scale": "group"},
    "mc_grpo-none": {"scale": "none", "averaging": "token_mean"},
    "otb-tail": {"zero_tail": False, "beta": 0.1},
    "negative_grpo-two": {"virtual": 2, "max_reward": 1.5, "beta": 0.1},
    "negative_grpo-none": {"virtual": 0, "averaging": "sequence_mean"},
    "passk": {"k": 2},
    "passk-one": {"k": 1, "beta": 0.1},
    "passk-best": {"form": "best", "divide": False},
    "rebel-beta": {"eta": 2.0, "beta": 0.1},
    "rgra-kl-reward": {"beta": 0.1, "kl_placement": "reward", "averaging": "token_mean"},
    "flowrl-bounded": {"reward_scale": 2.0, "ratio_cap": 1.1, "ddof": 0},
    "gigpo-reply": {"anchor": "reply", "scale": "none", "beta": 0.0},
    "gigpo-history": {"anchor": "history", "step_weight": 2.0, "discount": 0.5, "ddof": 0},
    "gigpo-rewards": {"turn_rewards": 0.5},
    "gagpo-reply": {"anchor": "reply", "trace": 0.0, "scale": "batch", "averaging": "token_mean"},
    "gagpo-rewards": {"turn_rewards": 0.5, "discount": 0.5, "trace": 1.0, "beta": 0.0},
    "gagpo-kl-advantage": {"beta": 0.1, "kl_placement": "advantage", "dual_clip": 1.3},
    "hierarchical_grpo-beta": {"beta": 0.1, "averaging": "turn_mean"},
    "echo-token_mean": {"reply_weight": 2.0, "averaging": "token_mean", "beta": 0.1},
    "gvpo-strict": {"temperature": 2.0},
    "spo-beta": {"beta": 0.1, "prior_success": 0.2, "max_reward": 2.0},
    "spo-kl-advantage": {"beta": 0.1, "kl_placement": "advantage", "averaging": "sequence_mean"},
    "rae-short": {"decay": 0.3, "averaging": "sequence_mean"},
    "real-sharp": {"temperature": 0.1, "threshold": 0.5},
    "rft-low": {"threshold": 0.5, "averaging": "sequence_mean"},
    "opd-to-go": {"discount": 0.9, "bound": 0.5},
    "opd-task": {"task_weight": 0.5, "beta": 0.1, "clip_low": 0.2, "clip_high": 0.2},
    "iw_opd-to-go": {"prefix_weight": 2.0, "discount": 0.9, "beta": 0.1},
    "gkd-forward": {"divergence_beta": 0.0},
    "gkd-mixed": {"divergence_beta": 0.3, "averaging": "sequence_mean"},
    "gkd-task": {"task_weight": 0.5, "distill_weight": 0.5, "beta": 0.1},
    "sdft-live": {"teacher": "policy", "divergence_beta": 1.0, "skip_tokens": 0, "averaging": "token_mean"},
    "sdft-model": {"teacher": "model", "ratio_cap": 1.1},
    "sdft-task": {"task_weight": 0.5, "beta": 0.1, "teacher": "initial"},
    "sdpo-reverse": {"divergence_beta": 1.0, "ratio_cap": 0.0, "averaging": "sequence_mean"},
    "sdpo-task": {"task_weight": 0.5, "teacher": "policy", "beta": 0.1, "skip_tokens": 1},
    "opcd-forward": {"divergence_beta": 0.0, "distill_weight": 0.5},
    "opcd-task": {"task_weight": 0.5, "beta": 0.1},
    "a_star_po-heavy": {"beta2": 0.5},
    "chord-mu": {"mu_peak": 0.9, "mu_valley": 0.05, "mu_decay_steps": 4, "token_weight": "none"},
    "chord-beta": {"beta": 0.1, "averaging": "sequence_mean", "dual_clip": 1.3},
    "chord-kl-reward": {"beta": 0.1, "kl_placement": "reward", "mu_peak": 0.5, "mu_valley": 0.5},
    "dapo-dual": {"dual_clip": 1.3},
    "gapo-wide": {"clip_low": 0.05, "clip_high": 0.2, "beta": 0.1},
    "gapo-token": {"level": "token", "clip_low": 0.2, "clip_high": 0.28, "averaging": "token_mean"},
    "exppo-strong": {"strength": 0.9, "beta": 0.1, "averaging": "token_mean"},
    "bpo-tight": {"clip_low": 0.02, "clip_high": 0.02, "ratio_cap": 1.01, "beta": 0.1},
    "bpo-kl-advantage": {"beta": 0.1, "kl_placement": "advantage", "averaging": "token_mean"},
    "gmpo-tight": {"clip_low": 0.05, "clip_high": 0.1},
    "sapo-steep": {"temperature_positive": 3.0, "temperature_negative": 5.0},
    "luspo-wide": {"clip_low": 0.1, "clip_high": 0.1},
    "luspo-dual": {"clip_low": 0.1, "clip_high": 0.2, "dual_clip": 1.25},
    "topr-token": {"level": "token", "averaging": "token_mean", "offset": 0.2},
    "m2po-strict": {"threshold": 0.001, "beta": 0.1},
    "m2po-cap": {"rule": "cap", "threshold": 0.02, "averaging": "sequence_mean"},
    "dro-free": {"temperature": 0.0},
    "dro-strict": {"temperature": 2.0, "scale": "group", "averaging": "sequence_sum"},
    "fipo-wide": {"influence_low": 0.9, "influence_high": 9.0, "half_life": 2.0},
    "fipo-outliers": {
        "dual_clip": 1.3,
        "safety_ratio": 1.1,
        "influence_low": 0.5,
        "influence_high": 0.5,
        "half_life": 3.0,
    },
    "fipo-kept": {"dual_clip": 1.3, "drop_outliers": False, "averaging": "sequence_mean"},
    "fipo-unbounded": {"dual_clip": 0.0, "safety_ratio": 0.0, "beta": 0.1},
    "vespo-plain": {"power_positive": 0.0, "decay_positive": 0.0},
    "clip_cov-band": {"fraction": 0.2, "lowest": 0.0, "highest": 9.0, "clip_low": 0.2},
    "kl_cov-many": {"fraction": 0.3, "coefficient": 0.5},
    "entropy_mask-half": {"top_fraction": 0.5, "beta": 0.1},
    "dppo-tight": {"threshold": 0.02, "ratio_cap": 1.2},
    "dppo-token_mean": {"averaging": "token_mean", "scale": "group"},
    "dppo-kl": {"divergence": "kl", "threshold": 0.01},
    "kimi-free": {"temperature": 0.0},
    "kimi-strict": {"temperature": 2.0},
    "kimi-length": {"length_reward": 0.5},
    "sao-trained": {"critic_warmup": 0, "clip_low": 0.1, "clip_high": 0.2},
    "sao-shared": {"critic_warmup": 0, "critic": "shared", "nll": 0.1, "beta": 0.1, "gae": "turn"},
    "pact-warmup": {"critic_warmup": 1},
    "pact-clip": {"bounds": "clip", "clip_low": 0.1, "clip_high": 0.1, "trace": 0.5, "beta": 0.1},
    "pact-turns": {"gae": "turn", "trace": 0.0, "averaging": "sequence_mean"},
    "ipo-token": {"compare": "token", "nll": 0.5},
    "ngu-beta": {"beta": 0.1, "scale": "group"},
    "ngrpo-beta": {"rho": 1.0, "k": 2, "beta": 0.1},
    "cora-late": {"warmup": 0, "half_life": 3.0, "task_weight": 0.5, "consistency_weight": 2.0},
    "cora-batch": {"scale": "batch", "beta": 0.1},
    "rredcot-breaks": {"cut": "breaks", "segments": 3},
    "rredcot-entropy": {"cut": "entropy", "longest_answer": 1, "beta": 0.1},
    "rredcot-one": {"segments": 1, "beta": 0.1, "kl_placement": "reward"},
}
"""Settings that change a formula, by algorithm and what they are. The groups of `data` have no more than four
rows, so that k of passk is smaller here than by default."""


def modified() -> dict[str, Algorithm[Any]]:
    """What the section `modify` does to credit and loss, around algorithms that differ in the shape of their
    terms, in what else these hold and in the roles that they train."""
    registry = ALGORITHMS
    mask, bonus = Modifiers(off_policy_mask=0.02), Modifiers(entropy_bonus=0.1)
    equal = Modifiers(zero_variance_filter=True)
    target = Modifiers(entropy_bonus=0.1, entropy_target=0.2)
    discounted = Modifiers(credit="discounted", credit_discount=0.8, credit_rewards=0.5)
    anchored = Modifiers(credit="anchored", credit_weight=2.0, off_policy_mask=0.02)
    every = Modifiers(off_policy_mask=0.02, entropy_bonus=0.1, zero_variance_filter=True, mask_truncated=True)
    plain = {
        "grpo": registry["grpo"](beta=0.1),
        "gspo": registry["gspo"](clip_low=0.1, clip_high=0.1),
        "vespo-kl-advantage": registry["vespo"](beta=0.1, kl_placement="advantage"),
        "ppo-warmup": registry["ppo"](critic_warmup=1),
        "ppo-shared": registry["ppo"](critic="shared"),
    }
    algorithms = {f"{name}-mask": mask.around(algorithm) for name, algorithm in plain.items()}
    algorithms |= {f"{name}-bonus": bonus.around(algorithm) for name, algorithm in plain.items()}
    return algorithms | {
        "dpo-bonus": bonus.around(registry["dpo"]()),
        "grpo-discounted": discounted.around(plain["grpo"]),
        "gspo-discounted": discounted.around(plain["gspo"]),
        "rloo-anchored": anchored.around(registry["rloo"]()),
        "spo-anchored": dataclasses.replace(anchored, credit_rewards=0.0).around(registry["spo"](beta=0.1)),
        "grpo-filter": equal.around(plain["grpo"]),
        "dpo-filter": equal.around(registry["dpo"]()),
        "dapo-every": every.around(registry["dapo"]()),
        "grpo-target": target.around(plain["grpo"]),
        "ppo-shared-target": target.around(plain["ppo-shared"]),
        "spo-target": target.around(registry["spo"]()),
    }


def declared(algorithm: Algorithm[Any]) -> set[str]:
    """Names of the metrics that an algorithm may return."""
    if isinstance(algorithm, Modified):
        return declared(algorithm.plain) | {metric.name for metric in METRICS}
    return {metric.name for metric in algorithm.metrics}


RARE = {"trained/ratio_tail", "trained/ratio_extreme_at", "policy/reply_nll"}
"""Metrics of tokens that a small batch, or one in which nothing has moved, does not have: NaN without any."""
VARIANTS: dict[str, Algorithm[Any]] = {
    **{name: cls() for name, cls in ALGORITHMS.items()},
    **{case: ALGORITHMS[case.partition("-")[0]](**settings) for case, settings in SETTINGS.items()},
    **modified(),
}
"""Every algorithm with its defaults, and with the settings that change its formula."""
SHARED = ("beta", "kl-reward", "kl-loss", "kl-advantage", *Averaging.__args__)
"""Settings that all algorithms leave to the same code (parts.py)."""
every = pytest.mark.parametrize(
    "algorithm",
    core(VARIANTS.items(), lambda name: name.partition("-")[2] not in SHARED),
)
"""Every algorithm, and every setting that is its own; shared ones where the algorithm is of the core, and the
rest in `make test-long`."""
by_default = pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(algorithm, id=name, marks=[pytest.mark.slow] * ("-" in name))
        for name, algorithm in VARIANTS.items()
    ],
)
"""Every algorithm with its default settings, and with all others in `make test-long`."""


pytestmark = pytest.mark.usefixtures("double")


UNBOUNDED = {"bound", "clip_high", "dual_clip", "ratio_cap", "highest"} | {"dppo threshold"}
"""Settings in which infinity says that nothing is bounded."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_are_finite_unless_infinity_means_no_bound(name: str) -> None:
    plain = ALGORITHMS[name]()
    for field in dataclasses.fields(plain):
        if (
            isinstance(getattr(plain, field.name), float)
            and not {field.name, f"{name} {field.name}"} & UNBOUNDED
        ):
            with pytest.raises(ValueError, match=field.name):
                dataclasses.replace(plain, **{field.name: math.inf})


@dataclass(frozen=True)
class Example:
    """An algorithm's gradient and metrics on `data`, off policy, in one micro-batch with shared prompts."""

    models: RoleModels
    batch: Batch
    gradient: dict[str, torch.Tensor]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Roles:
    """All that models depend on of their algorithm."""

    trained_roles: tuple[Role, ...]
    reference_roles: tuple[Role, ...]

    @classmethod
    def of(cls, algorithm: Algorithm[Any]) -> Roles:
        return cls(tuple(algorithm.trained_roles), tuple(algorithm.reference_roles))


@cache
def models_of(roles: Roles) -> RoleModels:
    """Made once for all algorithms of these roles: `backward` leaves no gradient behind, nothing here makes
    an update, and what a test sets otherwise it sets back."""
    return models_for(roles, "gpt2")


@cache
def first_models(roles: Roles) -> RoleModels:
    """Models at the beginning of a run: reference and teacher are the policy, the critic says 0."""
    models = models_for(roles, "gpt2")
    with torch.no_grad():
        for network in models.networks.values():
            if network.value is not None:
                network.value.weight.zero_()
                network.value.bias.zero_()
        for role in ("reference", "teacher"):
            if role not in models.networks:
                continue
            frozen = models.networks[role]
            for part, ours in (
                (frozen.trunk, models.networks["policy"].trunk),
                (frozen.head, models.networks["policy"].head),
            ):
                part.load_state_dict(ours.state_dict())
    return models


@cache
def example(algorithm: Algorithm[Any]) -> Example:
    models = models_of(Roles.of(algorithm))
    batch = off_policy(data(), models)
    gradient, metrics = backward(algorithm, models, batch)
    assert norm(gradient) > 1e-3, "the example must have a gradient, or its tests could not fail"
    return Example(models, batch, gradient, metrics)


# What may not change a gradient


def widened(batch: Batch) -> Batch:
    """The same rollouts with more columns of padding."""

    def more(tensor: torch.Tensor, columns: int) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, columns))

    changes = {
        name: more(getattr(batch, name), 6)
        for name in ("completion", "completion_mask", "sampler_logp", "old_logp", "breaks", "turn_reward")
    }
    prompts = {name: more(getattr(batch, name), 4) for name in ("prompt", "teacher_prompt")}
    return dataclasses.replace(batch, **prompts, **changes)


def permuted(batch: Batch) -> Batch:
    return batch[torch.randperm(len(batch), generator=torch.Generator().manual_seed(3))]


def relabeled(batch: Batch) -> Batch:
    return dataclasses.replace(batch, group=torch.tensor([9, 2, 40, 0])[batch.group])


@by_default
def test_order_of_rows_decides_no_tie(algorithm: Algorithm[Any]) -> None:
    """Completions of one length and equal rewards: whoever picks, pairs or draws rows may not go by order."""
    models = models_of(Roles.of(algorithm))
    size = 2 * max(4, algorithm.minimum_group)
    rewards = [[1.0, 1.0, *[0.0] * (size - 2)], [0.0, 1.0, *[0.0] * (size - 2)]]
    batch = off_policy(rollouts([[5] * size, [4] * size], rewards), models)
    gradient, _ = backward(algorithm, models, batch)
    assert norm(gradient) > 1e-3
    assert distance(backward(algorithm, models, permuted(batch))[0], gradient) < TIGHT


@every
def test_micro_batches_padding_order_numbers_and_sharing_together_change_neither_gradient_nor_metrics(
    algorithm: Algorithm[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = example(algorithm)
    monkeypatch.setattr(reference.models, "budget", 30)
    monkeypatch.setattr(reference.models, "share", False)
    batch = widened(permuted(relabeled(reference.batch)))
    gradient, metrics = backward(algorithm, reference.models, batch)
    assert distance(gradient, reference.gradient) < TIGHT
    assert metrics == pytest.approx(reference.metrics, rel=1e-9, nan_ok=True)


@by_default
def test_padding_tokens_are_never_read(algorithm: Algorithm[Any]) -> None:
    reference = example(algorithm)
    batch, generator, changes = reference.batch, torch.Generator().manual_seed(4), {}
    lengths = {
        "prompt": batch.prompt_length,
        "completion": batch.length,
        "teacher_prompt": batch.teacher_prompt_length,
    }
    for name, length in lengths.items():
        tokens = getattr(batch, name)
        padding = torch.arange(tokens.shape[1]) >= length[:, None]
        assert padding.any()
        changes[name] = torch.where(padding, torch.randint(2, 40, tokens.shape, generator=generator), tokens)
    gradient, _ = backward(algorithm, reference.models, dataclasses.replace(batch, **changes))
    assert distance(gradient, reference.gradient) == 0


class Refusing(TorchDispatchMode):
    """Refuses what a GPU refuses under deterministic operators."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("aten::").split(".")[0]
        floats = isinstance(args[0], torch.Tensor) and args[0].is_floating_point() if args else False
        assert not (name == "cumsum" and floats), "cumsum of floats: use parts.running_sum"
        assert name not in ("kthvalue", "histc", "put_") and function.name() != "aten::median.dim", name
        return function(*args, **(kwargs or {}))


@by_default
def test_no_operator_is_called_that_a_gpu_with_deterministic_operators_refuses(
    algorithm: Algorithm[Any],
) -> None:
    reference = example(algorithm)
    with Refusing():
        backward(algorithm, reference.models, reference.batch)
        with torch.no_grad():
            algorithm.observe(reference.batch, algorithm.compute_signal(reference.batch, reference.models))


def test_a_refused_operator_would_be_found() -> None:
    with Refusing(), pytest.raises(AssertionError, match="running_sum"):
        torch.ones(3).cumsum(-1)
    with Refusing(), pytest.raises(AssertionError, match="kthvalue"):
        torch.ones(3).kthvalue(1)


@pytest.mark.parametrize("name", CORE)
def test_float32_gradients_do_not_depend_on_the_split(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # leave float64
    torch.set_default_dtype(torch.float32)
    algorithm = ALGORITHMS[name]()
    models = models_for(algorithm, "llama")
    batch = off_policy(data(), models)
    gradient, _ = backward(algorithm, models, batch)
    models.budget, models.share = 20, False
    # float32 has 1e-7; two layers and sums of some thousand terms in another order
    assert distance(backward(algorithm, models, batch)[0], gradient) < 2e-5


# What an algorithm may read and return


class Spy:
    """Readings of a run's models, for declared roles only."""

    def __init__(self, models: RoleModels, allowed: set[Role]) -> None:
        self.models, self.allowed, self.seen = models, allowed, set[Role]()

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        assert role in self.allowed, f"reads the undeclared role {role}"
        self.seen.add(role)
        return self.models.forward(role, batch, squares=squares)


@every
def test_credit_reads_declared_roles_only_and_all_of_reads(algorithm: Algorithm[Any]) -> None:
    reference = example(algorithm)
    spy = Spy(reference.models, {*algorithm.trained_roles, *algorithm.reference_roles})
    with torch.no_grad():
        algorithm.compute_signal(reference.batch, spy)
    # A divergence to the teacher is read in the update, with the policy's gradient.
    later = {algorithm.teacher_role} if algorithm.teacher_divergence is not None else set()
    assert {*algorithm.reference_roles} - later <= spy.seen


class Updated(dict[Role, ModelOutput]):
    def __missing__(self, role: Role) -> ModelOutput:
        raise AssertionError(f"loss reads {role}, which is not updated at this step")


def numbers(algorithm: Algorithm[Any], batch: Batch, seed: int = 5) -> Updated:
    """Random readings of the roles updated at the batch's step."""
    generator = torch.Generator().manual_seed(seed)

    def values() -> torch.Tensor:
        return torch.randn(batch.completion_mask.shape, generator=generator)

    outputs = Updated()
    for role in algorithm.updated_roles(batch.step):
        nothing = values()[:, :0]
        policy = role in ("policy", "reference")
        outputs[role] = (
            ModelOutput(values(), values(), nothing) if policy else ModelOutput(nothing, nothing, values())
        )
        if role == "policy" and algorithm.teacher_divergence is not None:
            outputs[role] = dataclasses.replace(outputs[role], divergence=values())
    return outputs


@cache
def scripted(algorithm: Algorithm[Any]) -> tuple[Batch, Signal]:
    """`data`, and the signal of models made of numbers. Nobody changes either."""
    batch = data()
    return batch, algorithm.compute_signal(batch, Scripted(batch))


@every
def test_loss_has_the_shape_of_its_weights_and_declared_metrics_only(algorithm: Algorithm[Any]) -> None:
    batch, signal = scripted(algorithm)
    loss = algorithm.loss(batch, signal, numbers(algorithm, batch))
    assert loss.terms.shape == algorithm.loss_weights(batch).shape
    assert loss.terms.shape in (batch.completion_mask.shape, batch.reward.shape)
    returned = {*loss.metrics, *algorithm.observe(batch, signal)}
    assert returned and returned <= declared(algorithm)
    for name, values in loss.metrics.items():
        assert values.shape in (batch.completion_mask.shape, batch.reward.shape), name
        assert not values.requires_grad, name
    plain = algorithm.plain if isinstance(algorithm, Modified) else algorithm
    assert plain.has_advantages == hasattr(signal, "advantage")
    assert not plain.has_advantages or signal.advantage.shape == batch.completion_mask.shape
    for unit in signal.row_group[signal.row_group >= 0].unique():
        assert len(batch.group[signal.row_group == unit].unique()) == 1, "rows of two problems in one unit"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_declared_metric_is_returned_by_some_setting(name: str) -> None:
    cls = ALGORITHMS[name]
    returned: set[str] = set()
    for algorithm in VARIANTS.values():
        if type(algorithm) is cls:
            batch = data(step=2)
            signal = algorithm.compute_signal(batch, Scripted(batch))
            loss = algorithm.loss(batch, signal, numbers(algorithm, batch))
            returned |= {*loss.metrics, *algorithm.observe(batch, signal)}
            if algorithm.expert_answers:
                returned |= {*algorithm.expert_loss(batch, numbers(algorithm, batch)).metrics}
    assert returned == {metric.name for metric in cls.metrics}


class Scripted:
    """Models made of numbers, which can be asked about any batch: what a role says about a token is a
    function of the prompt, of the tokens that the policy wrote before it, and of the token itself. It is deaf
    to the replies of `batch`, also where they stand in a prompt made from its rows; of a token that the
    policy did not write it says `other`."""

    def __init__(self, batch: Batch, other: float = 0.0) -> None:
        self.batch, self.other = batch, other

    @cached_property
    def written_rows(self) -> list[tuple[tuple[int, ...], list[bool]]]:
        """The rows of `batch`, and which of their tokens the policy reads."""
        return [(text, [True] * len(prompt) + written) for prompt, _, written, text in texts(self.batch)]

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        nothing = batch.old_logp[:, :0]
        quantities = ("logp", "entropy") if role in ("policy", "reference", "teacher") else ("value",)
        quantities += ("squares",) if squares else ()
        outputs = {name: torch.zeros(batch.completion_mask.shape) for name in quantities}
        for row, (prompt, completion, written, _) in enumerate(texts(batch)):
            heard = self.heard(prompt)
            for position, (token, is_written) in enumerate(zip(completion, written, strict=True)):
                heard = (*heard, token) if is_written else heard
                for name in quantities:
                    outputs[name][row, position] = spoken(role, name, heard) if is_written else self.other
        every = (outputs.get(name, nothing) for name in ("logp", "entropy", "value"))
        return ModelOutput(*every, squares=outputs.get("squares"))

    def heard(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """A prompt without the replies in it."""
        for text, written in self.written_rows:
            if text[: len(prompt)] == prompt:
                return tuple(token for token, is_written in zip(prompt, written, strict=False) if is_written)
        return prompt


@cache
def spoken(role: Role, name: str, heard: tuple[int, ...]) -> float:
    number = random.Random(f"{role}/{name}/{heard}").gauss(0.0, 1.0)
    if name == "squares":  # the written token's own square and something of the others
        return math.exp(2 * spoken(role, "logp", heard)) + 0.01 * abs(number)
    return {"logp": -abs(number), "entropy": abs(number), "value": number}[name]


def texts(batch: Batch) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], list[bool], tuple[int, ...]]]:
    """Prompt, completion, which of its tokens the policy wrote, and both in one, of each row."""
    parts = (batch.prompt, batch.prompt_length, batch.completion, batch.length, batch.completion_mask)
    for tokens, size, written, length, mask in zip(*(part.tolist() for part in parts), strict=True):
        prompt, completion = tuple(tokens[:size]), tuple(written[:length])
        yield prompt, completion, mask[:length], (*prompt, *completion)


@by_default
def test_credit_and_loss_leave_their_inputs_alone(algorithm: Algorithm[Any]) -> None:
    batch = data()
    now = numbers(algorithm, batch)
    signal = algorithm.compute_signal(batch, Scripted(batch))
    before = [copied(batch), copied(signal), *(copied(part) for part in now.values())]
    algorithm.loss(batch, signal, now)
    algorithm.observe(batch, signal)
    algorithm.compute_signal(batch, Scripted(batch))
    algorithm.loss_weights(batch)
    for old, new in zip(before, [batch, signal, *now.values()], strict=True):
        for key, value in tensors(new).items():
            assert torch.equal(old[key], value), key


def tensors(part: Rows) -> dict[str, torch.Tensor]:
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}


def copied(part: Rows) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tensors(part).items()}


def cut(now: Mapping[Role, ModelOutput], rows: torch.Tensor) -> Updated:
    return Updated({role: part[rows] for role, part in now.items()})


# Degenerate batches


def aligned(algorithm: Algorithm[Any], batch: Batch) -> tuple[RoleModels, Batch]:
    """`first_models` and the batch with the policy as π_old, in which a teacher reads what the policy
    reads."""
    batch = untaught(batch)
    models = first_models(Roles.of(algorithm))
    old = models.forward("policy", batch).logp
    return models, dataclasses.replace(batch, old_logp=old, sampler_logp=old)


def finite(gradient: Mapping[str, torch.Tensor]) -> bool:
    return all(bool(g.isfinite().all()) for g in gradient.values())


def credits_turns(algorithm: Algorithm[Any]) -> bool:
    return isinstance(algorithm, Modified) and algorithm.modify.credit != "outcome"


def without_signal(algorithm: Algorithm[Any], reward: float) -> float:
    """A reward, this one if possible, that is no signal where all have it."""
    if len(algorithm.trained_roles) > 1:
        reward = 0.0  # a critic of zeros has yet to learn a reward of 1; only 0 is without signal
    if isinstance(algorithm, PACT):
        reward = 0.5  # what a critic of zeros expects
    if isinstance(algorithm, RAE):
        reward = 0.0  # its averages begin there
    if isinstance(algorithm, RFT):
        reward = 0.0  # it compares nothing, and imitates whatever is correct
    if getattr(algorithm, "baseline", "") == "none":
        reward = 0.0  # nothing is subtracted
    if getattr(algorithm, "virtual", 0):
        reward = algorithm.max_reward  # failures are compared with a success that nobody had
    if getattr(algorithm, "zero_tail", False):
        reward = 0.0  # the end of a longest completion is not compared
    # `offset` is a constant baseline: only a reward that equals it is without signal
    reward = getattr(algorithm, "offset", reward)
    if getattr(algorithm, "step_weight", 0) or isinstance(algorithm, GAGPO) or credits_turns(algorithm):
        reward = 0.0  # a discount tells episodes of more turns apart
    return reward


@pytest.mark.parametrize(
    ("algorithm", "reward"),
    [
        pytest.param(algorithm, reward, id=f"{reward}-{name}", marks=[pytest.mark.slow] * ("-" in name))
        for name, algorithm in VARIANTS.items()
        for reward in dict.fromkeys(without_signal(algorithm, reward) for reward in (0.0, 1.0))
    ],
)
def test_equal_rewards_give_no_signal_and_no_nan(algorithm: Algorithm[Any], reward: float) -> None:
    base = data()
    equal = torch.full_like(base.reward, reward)
    scores = dict.fromkeys(base.scores, equal)
    # Rewards of turns tell episodes of equal rewards apart.
    changed = dataclasses.replace(base, reward=equal, scores=scores, greedy_reward=equal, turn_reward=None)
    models, batch = aligned(algorithm, changed)
    signal = algorithm.compute_signal(batch, models)
    advantage = getattr(signal, "advantage", None)
    told_apart = getattr(algorithm, "length_reward", 0)  # equal rewards are made unequal by length
    # Compares nothing of a batch: a label, or what is known of the problem, is a signal by itself.
    absolute = isinstance(algorithm, KTO | AStarPO)
    if advantage is None:
        assert absolute or (signal.row_group == -1).all()
    elif not told_apart:
        assert not advantage.any()
    gradient, metrics = backward(algorithm, models, batch, signal)
    assert finite(gradient)
    undefined = {"kto/desirable_gain", "kto/undesirable_gain"}  # one of two labels is absent
    assert not any(math.isnan(value) for name, value in metrics.items() if name not in undefined | RARE)
    assert not isinstance(algorithm, KTO) or sum(math.isnan(metrics[name]) for name in undefined) == 1
    if told_apart or absolute or algorithm.differentiates_entropy:
        return
    if getattr(algorithm, "kl_estimator", "k3") != "k1":
        # An estimator of the KL at π = π_ref has gradient 0, but for k1, whose gradient is ∇log π.
        assert norm(gradient) < 1e-12


@by_default
def test_groups_of_one_row_are_harmless(algorithm: Algorithm[Any]) -> None:
    models, batch = aligned(algorithm, rollouts([[4], [7], [2]], [[1.0], [0.0], [0.5]]))
    signal = algorithm.compute_signal(batch, models)
    gradient, metrics = backward(algorithm, models, batch, signal)
    assert finite(gradient)
    assert not any(math.isnan(value) for name, value in metrics.items() if name not in RARE)
    compares = algorithm.minimum_group > 1 and getattr(algorithm, "baseline", "") != "none"
    if compares:  # the rows of a group with each other
        assert (signal.row_group == -1).all() or not signal.advantage.any()


@by_default
def test_empty_completions_add_nothing_but_their_share_of_the_average(algorithm: Algorithm[Any]) -> None:
    """Rows without a token change the baseline and the count of rows, never a token's own gradient: here the
    empty rows have the group's own mean reward and stand in both batches, with other prompts and padding."""
    models = models_of(Roles.of(algorithm))
    batch = off_policy(rollouts([[5, 0, 3], [0, 0]], [[1.0, 0.5, 0.0], [1.0, 0.0]]), models)
    expected, _ = backward(algorithm, models, batch)
    assert finite(expected) and norm(expected) > 1e-3
    other = batch.prompt.clone()
    other[3:] = 7
    gradient, _ = backward(algorithm, models, dataclasses.replace(batch, prompt=other))
    assert distance(gradient, expected) == 0


@by_default
def test_batch_of_empty_completions_has_no_gradient_and_no_nan(algorithm: Algorithm[Any]) -> None:
    models, batch = aligned(algorithm, rollouts([[0, 0], [0]], [[1.0, 0.0], [1.0]]))
    signal = algorithm.compute_signal(batch, models)
    algorithm.observe(batch, signal)
    gradient, _ = backward(algorithm, models, batch, signal)
    assert norm(gradient) == 0


@every
def test_tokens_that_the_policy_did_not_write_get_no_gradient(algorithm: Algorithm[Any]) -> None:
    batch, signal = scripted(algorithm)
    now = numbers(algorithm, batch)
    alone = algorithm.teacher_divergence is not None and not algorithm.task_weight
    leaves = [
        tensor.requires_grad_()
        for part in now.values()
        for tensor in ((part.divergence,) if alone else (part.logp, part.value, part.divergence))
        if tensor is not None and tensor.numel()
    ]
    used = torch.cat(micro_batches(batch, signal.row_group, 10**9))
    loss = algorithm.loss(batch[used], signal[used], cut(now, used))
    (loss.terms * algorithm.loss_weights(batch[used])).sum().backward()
    for leaf in leaves:
        assert not leaf.grad[~batch.completion_mask].any()
        assert leaf.grad[batch.completion_mask].any()


@by_default
def test_readings_of_tokens_that_the_policy_did_not_write_count_nowhere(algorithm: Algorithm[Any]) -> None:
    """Whatever the models say about tool output: the same loss, metrics and, by it, gradient."""
    batch = data()
    totals = []
    for other in (0.0, 5.0):
        models = Scripted(batch, other)
        shift = other * ~batch.completion_mask
        now = {role: shifted(part, shift) for role, part in numbers(algorithm, batch).items()}
        signal = algorithm.compute_signal(batch, models)
        used = torch.cat(micro_batches(batch, signal.row_group, 10**9))
        loss = algorithm.loss(batch[used], signal[used], cut(now, used))
        tally = MetricAccumulator(catalog())
        tally.add(loss.metrics, batch.completion_mask[used])
        total = (loss.terms * algorithm.loss_weights(batch[used])).sum().item()
        totals.append([total, *tally.numbers().values(), *algorithm.observe(batch, signal).values()])
    assert totals[0] == pytest.approx(totals[1], rel=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    "algorithm", [case for case in by_default.args[1] if not isinstance(case.values[0], GAGPO)]
)
def test_replies_between_turns_change_nothing(algorithm: Algorithm[Any]) -> None:
    """An episode with tool output trains like the same tokens of the policy alone: the same advantages (so
    GAE steps over replies), weights, loss, gradient, pairs and metrics. In the third group row 7 is shorter
    than row 8 only when its reply is not counted, which decides who is paired with whom. Turns by themselves
    are left out, and GAGPO, which has nothing else: without replies there are none."""
    algorithm = blind_to_turns(algorithm)
    batch = rollouts(
        [[7, 4, 0, 1], [9, 5, 1], [8, 6, 5, 7]],
        [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]],
        gaps={0: (2, 3), 4: (1, 4, 5), 5: (0,), 7: (1, 2, 3, 4)},
    )
    outcomes = []
    for part in (batch, compressed(batch, batch.completion_mask)):
        models, now = Scripted(part), numbers(algorithm, batch)
        if part is not batch:
            now = Updated({r: compressed(output, batch.completion_mask) for r, output in now.items()})
        leaves = {
            (role, name): getattr(output, name).requires_grad_()
            for role, output in now.items()
            for name in ("logp", "entropy", "value", "divergence")
            if getattr(output, name) is not None and getattr(output, name).numel()
        }
        signal = algorithm.compute_signal(part, models)
        used = torch.cat(micro_batches(part, signal.row_group, 10**9))
        loss = algorithm.loss(part[used], signal[used], cut(now, used))
        total = (loss.terms * algorithm.loss_weights(part[used])).sum()
        total.backward()
        tally = MetricAccumulator(catalog())
        tally.add(loss.metrics, part.completion_mask[used])
        gradients = {
            key: leaf.grad[part.completion_mask] for key, leaf in leaves.items() if leaf.grad is not None
        }
        outcomes.append(
            (total.item(), gradients, tally.numbers() | algorithm.observe(part, signal), signal.row_group)
        )
    (total_with, gradients, metrics, unit), (total_without, without, plain, pairs) = outcomes
    assert total_with == pytest.approx(total_without, rel=1e-12, abs=1e-15)
    assert gradients.keys() == without.keys() and any(bool(g.any()) for g in gradients.values())
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, without[key], rtol=1e-12, atol=1e-15)
    assert metrics == pytest.approx(plain, rel=1e-12, nan_ok=True)
    assert torch.equal(unit, pairs)


def blind_to_turns(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The algorithm with settings that treat all tokens of an episode alike."""
    if isinstance(algorithm, Modified):
        modify = dataclasses.replace(algorithm.modify, credit="outcome")
        return Modified(blind_to_turns(algorithm.plain), modify)
    blind = {"step_weight": 0.0, "gae": "token", "turn_rewards": 0.0, "proposal_turns": 99}
    if getattr(algorithm, "averaging", "") == "turn_mean":
        blind["averaging"] = "token_mean"
    names = {field.name for field in dataclasses.fields(algorithm)}
    return dataclasses.replace(algorithm, **{key: value for key, value in blind.items() if key in names})


P = TypeVar("P", bound=Rows)


def compressed(part: P, written: torch.Tensor) -> P:
    """A batch or reading without the tokens that the policy did not write; `written` (B, T) says which."""
    order = (~written).to(torch.int8).argsort(dim=-1, stable=True)
    lengths = written.sum(-1)
    inside = torch.arange(written.shape[1]) < lengths[:, None]
    changes: dict[str, Any] = {
        name: value.gather(-1, order) * inside
        for name, value in tensors(part).items()
        if value.shape == written.shape
    }
    if isinstance(part, Batch):
        changes["length"] = lengths
        changes["answer"] = (written & (torch.arange(written.shape[1]) < part.answer[:, None])).sum(-1)
    return dataclasses.replace(part, **changes)


def shifted(part: ModelOutput, shift: torch.Tensor) -> ModelOutput:
    moved = (t + shift if t.numel() else t for t in (part.logp, part.entropy, part.value))
    return ModelOutput(*moved, divergence=None if part.divergence is None else part.divergence + shift)
