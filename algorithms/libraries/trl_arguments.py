"""How TRL's trainers (1.16) are told to do what our algorithms do: settings as arguments of their configs.

An entry of `TABLE` names the trainer of an algorithm and, for every field, the rule that makes its value into
arguments. A value that no argument expresses is refused with those that one does. Adding an algorithm is an
entry; `tests/runs/train/test_trl.py` demands a rule for each of its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpobench.algorithms.algorithm import Algorithm, Signal
from grpobench.algorithms.dpo import Paired
from grpobench.algorithms.modifiers import Modifiers

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Splitting:
    """How a rollout batch is cut."""

    minibatches: int
    whole: bool
    """Whether a minibatch goes forward at once; else TRL accumulates gradients."""
    updates: int
    """Optimizer updates per rollout batch."""


@dataclass(frozen=True)
class Rule:
    """What becomes of a field's value."""

    arguments: Callable[[Any, Any, Splitting], Arguments | None]
    """(value, the algorithm, splitting) -> arguments; None where TRL has none."""
    expressed: str
    """The values that it does have, for the message."""


def written(value: Any) -> str:
    """A value as a recipe has it."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def passed(argument: str) -> Rule:
    """Any value, as this argument."""
    return Rule(lambda value, algorithm, splitting: {argument: value}, "")


def only(wanted: Any) -> Rule:
    """This value, which is TRL's fixed one."""
    return Rule(lambda value, algorithm, splitting: {} if value == wanted else None, written(wanted))


def choice(table: Mapping[Any, Arguments]) -> Rule:
    return Rule(
        lambda value, algorithm, splitting: table.get(value), " or ".join(written(value) for value in table)
    )


def where(needed: Callable[[Any], bool], rule: Rule) -> Rule:
    """A rule that holds for algorithms that need it; else the value changes nothing."""
    return Rule(
        lambda value, algorithm, splitting: (
            rule.arguments(value, algorithm, splitting) if needed(algorithm) else {}
        ),
        rule.expressed,
    )


FREE = Rule(lambda value, algorithm, splitting: {}, "")
"""A field that acts before TRL sees the data."""


def token_mean(splitting: Splitting) -> Arguments:
    """TRL's `bnpo` divides by the tokens of what goes forward at once, `dapo` by those of the rollout batch
    over the number of minibatches. Ours is the minibatch's own number, which one of them is unless one of
    several minibatches is cut again."""
    return {"loss_type": "bnpo" if splitting.whole and splitting.minibatches > 1 else "dapo"}


AVERAGING = Rule(
    lambda value, algorithm, splitting: {
        "sequence_mean": {"loss_type": "grpo"},
        "token_mean": token_mean(splitting),
        "constant": {"loss_type": "dr_grpo"},
    }.get(value),
    '"sequence_mean" or "token_mean" or "constant"',
)


def penalized(algorithm: Any) -> bool:
    return bool(algorithm.beta)


def scaled(algorithm: Any) -> bool:
    return bool(algorithm.scale != "none")


K3 = where(penalized, choice({"k3": {"use_bias_correction_kl": False}}))
K3_UNBIASED = where(
    penalized,
    choice({"k3": {"use_bias_correction_kl": False}, "k3_unbiased": {"use_bias_correction_kl": True}}),
)
KL: Mapping[str, Rule] = {
    "beta": passed("beta"),
    "kl_estimator": K3_UNBIASED,
    "kl_placement": where(penalized, only("loss")),
}
KL_OF_SEQUENCES = {**KL, "kl_estimator": K3}
"""TRL's bias correction then takes the ratio of the sequence."""
GROUP: Mapping[str, Rule] = {
    "baseline": only("mean"),
    "scale": choice({kind: {"scale_rewards": kind} for kind in ("group", "batch", "none")}),
    "ddof": where(scaled, only(1)),
    "epsilon": where(scaled, only(1e-4)),
}
CLIP: Mapping[str, Rule] = {
    "clip_low": passed("epsilon"),
    "clip_high": passed("epsilon_high"),
    "dual_clip": Rule(lambda value, algorithm, splitting: {"delta": value or None}, ""),
}
GRPO: Mapping[str, Rule] = {**GROUP, "whiten": only(False), **CLIP, "averaging": AVERAGING, **KL}
PAIRS: Mapping[str, Rule] = {
    "beta": passed("beta"),
    "nll": only(0.0),  # TRL's "sft" averages over the tokens of all completions
    "pairs_per_group": FREE,
}

# What TRL logs and we do too. At the level of sequences it counts a clipped response once, we each of its
# tokens: not the same metric.
KL_METRICS = {"kl": "policy/kl_reference_k3"}
TOKEN_METRICS = {
    "clip_ratio/low_mean": "policy/clip_low",
    "clip_ratio/high_mean": "policy/clip_high",
    **KL_METRICS,
}
PAIR_METRICS = {"logps/chosen": "preference/chosen_logp", "logps/rejected": "preference/rejected_logp"}
COUNT = "preference/pairs"


@dataclass(frozen=True)
class Entry:
    """Which of TRL's trainers runs an algorithm, and how."""

    trainer: str
    """Its class is this name with Trainer behind, its configuration's with Config."""
    fields: Mapping[str, Rule]
    """A rule for every field of the algorithm."""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments that the algorithm always needs."""
    metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names under which TRL logs what our catalog has too, and ours."""
    pairs: str = ""
    """For a trainer of recorded pairs that samples nothing: our metric of how many pairs it saw."""
    separate: bool = False
    """Whether each part of the reward is a reward function of its own, instead of their weighted sum."""
    clips: str = ""
    """What TRL clips and we do not, so that only the first update on a batch is the same."""


SEQUENCES = {"importance_sampling_level": "sequence"}
TABLE: Mapping[str, Entry] = {
    "grpo": Entry("GRPO", GRPO, metrics=TOKEN_METRICS),
    "dapo": Entry("GRPO", GRPO, metrics=TOKEN_METRICS),
    "dr_grpo": Entry(
        "GRPO", {**CLIP, "averaging": AVERAGING, **KL}, {"scale_rewards": "none"}, TOKEN_METRICS
    ),
    "lite_ppo": Entry("GRPO", GRPO, metrics=TOKEN_METRICS),
    "entropy_mask": Entry(
        "GRPO", {**GRPO, "top_fraction": passed("top_entropy_quantile")}, metrics=TOKEN_METRICS
    ),
    "gdpo": Entry(
        "GRPO",
        {**CLIP, "averaging": AVERAGING, **KL, "ddof": only(1), "epsilon": only(1e-4)},
        {"multi_objective_aggregation": "normalize_then_sum"},
        TOKEN_METRICS,
        separate=True,
    ),
    "gspo": Entry(  # both levels have one gradient where advantages are the same for all tokens, as TRL's are
        "GRPO",
        {**GROUP, **CLIP, **KL_OF_SEQUENCES, "averaging": AVERAGING, "level": FREE},
        SEQUENCES,
        KL_METRICS,
    ),
    "luspo": Entry(
        "GRPO",
        {**GROUP, **CLIP, **KL_OF_SEQUENCES, "averaging": only("sequence_sum")},
        {"loss_type": "luspo", **SEQUENCES},
        KL_METRICS,
    ),
    "cispo": Entry(
        "GRPO",
        {
            **GROUP,
            **KL,
            "averaging": only("token_mean"),
            "ratio_cap": passed("epsilon_high"),
            "ratio_floor": only(0.0),
        },
        {"loss_type": "cispo"},
        KL_METRICS,
    ),
    "sapo": Entry(
        "GRPO",
        {
            **GROUP,
            **KL,
            "averaging": only("sequence_mean"),
            "temperature_positive": passed("sapo_temperature_pos"),
            "temperature_negative": passed("sapo_temperature_neg"),
        },
        {"loss_type": "sapo"},
        KL_METRICS,
    ),
    "vespo": Entry(
        "GRPO",
        {
            **GROUP,
            **KL,
            "averaging": only("token_mean"),
            "power_positive": passed("vespo_k_pos"),
            "decay_positive": passed("vespo_lambda_pos"),
            "power_negative": passed("vespo_k_neg"),
            "decay_negative": passed("vespo_lambda_neg"),
        },
        {"loss_type": "vespo"},
        {**KL_METRICS, "vespo/phi_seq_mean": "policy/sequence_weight"},
    ),
    "rloo": Entry(
        "RLOO",
        {
            "averaging": only("sequence_sum"),
            "beta": passed("beta"),
            "kl_estimator": FREE,  # in the reward it is k1 in both
            "kl_placement": where(penalized, only("reward")),
        },
        metrics={"kl": "policy/kl_reference_k1"},
        clips="the ratio of whole completions",
    ),
    "dpo": Entry(
        "DPO",
        PAIRS,
        {"loss_type": ["sigmoid"]},
        {
            **PAIR_METRICS,
            "rewards/margins": "preference/margin",
            "rewards/accuracies": "preference/accuracy",
        },
        COUNT,
    ),
    "ipo": Entry(  # TRL's margins are those of whole completions
        "DPO", {**PAIRS, "compare": only("token")}, {"loss_type": ["ipo"]}, PAIR_METRICS, COUNT
    ),
}


def translate(
    algorithm: Algorithm[Any], modify: Modifiers, splitting: Splitting
) -> tuple[Arguments, list[str]]:
    """(the arguments, why there are none). Each reason names a remedy."""
    entry = TABLE.get(algorithm.name)
    if entry is None:
        return {}, [f"TRL's trainers have no {algorithm.name}, only {', '.join(TABLE)}; {STAY}"]
    arguments: Arguments = dict(entry.fixed)
    faults = []
    for name in (field.name for field in dataclasses.fields(algorithm)):
        value, rule = getattr(algorithm, name), entry.fields.get(name)
        found = rule.arguments(value, algorithm, splitting) if rule else None
        if found is not None:
            arguments |= found
            continue
        remedy = f"set settings.{name} = {rule.expressed}, or {STAY}" if rule else STAY
        faults.append(
            f"settings.{name} is {written(value)}, which TRL's {entry.trainer}Trainer does not have; {remedy}"
        )
    if entry.clips and splitting.updates > 1:
        faults.append(
            f"TRL's {entry.trainer}Trainer clips {entry.clips}, which changes all updates on a batch but the "
            f"first; set train.num_minibatches = 1 and train.epochs = 1, or {STAY}"
        )
    more, why = around(modify, entry, arguments, splitting)
    return arguments | more, faults + why


STAY = 'set train.backend = "grpobench"'
OVER_TOKENS = ("dapo", "bnpo", "cispo", "vespo")
"""TRL's losses that divide by the tokens that count, so that a masked completion leaves no trace."""


def around(
    modify: Modifiers, entry: Entry, arguments: Arguments, splitting: Splitting
) -> tuple[Arguments, list[str]]:
    """`translate` of the section `modify`. Overlong punishment is in the reward and needs no argument."""
    found: Arguments = {}
    faults = []
    if modify.dynamic_sampling:
        faults.append(
            f"modify.dynamic_sampling draws problems anew, which TRL does not; set it to 0, or {STAY}"
        )
    if modify.schedule != "uniform":
        faults.append(
            "modify.schedule chooses problems by earlier rewards, and TRL has its own order; set it to "
            f'"uniform", or {STAY}'
        )
    if modify.zero_variance_filter:
        faults.append(
            "modify.zero_variance_filter: TRL counts groups of equal rewards in its averages; set it to "
            f"false, or {STAY}"
        )
    if modify.off_policy_mask or modify.entropy_bonus:
        more, why = in_loss(modify, entry, arguments, splitting)
        found |= more
        faults += why
    if modify.overlong_buffer and entry.separate:
        faults.append(
            "modify.overlong_buffer: TRL would normalize the punishment like a part of the reward; set it to "
            f"0, or {STAY}"
        )
    if modify.mask_truncated and not entry.pairs:
        found["mask_truncated_completions"] = True
        if arguments.get("loss_type") not in OVER_TOKENS:
            faults.append(
                "modify.mask_truncated: TRL counts the masked completions in its mean over completions; set "
                f'settings.averaging = "token_mean", or {STAY}'
            )
    if modify.reference_every:
        found["sync_ref_model"] = True
        found["ref_model_sync_steps"] = modify.reference_every * splitting.updates
        found["ref_model_mixup_alpha"] = modify.reference_mix
        if entry.pairs:
            faults.append(
                f"modify.reference_every counts steps, TRL's {entry.trainer}Trainer updates, of which a step "
                f"without pairs has none; set it to 0, or {STAY}"
            )
    return found, faults


def in_loss(
    modify: Modifiers, entry: Entry, arguments: Arguments, splitting: Splitting
) -> tuple[Arguments, list[str]]:
    """`around` of what is a part of TRL's loss. With its own sampler TRL masks by π_old, as in the paper's
    other source of distance; in process the sampler's probabilities are the same but for rounding."""
    asked = {
        "off_policy_mask": ("off_policy_mask_threshold", modify.off_policy_mask),
        "entropy_bonus": ("entropy_coef", modify.entropy_bonus),
    }
    asked = {name: pair for name, pair in asked.items() if pair[1]}
    if entry.trainer != "GRPO":
        return {}, [
            f"modify.{name}: TRL's {entry.trainer}Trainer does not have it; set it to 0, or {STAY}"
            for name in asked
        ]
    faults = []
    if modify.entropy_bonus and arguments.get("loss_type") not in OVER_TOKENS:
        faults.append(
            "modify.entropy_bonus: TRL's is the mean over tokens whatever else is averaged how; set "
            f'settings.averaging = "token_mean", or {STAY}'
        )
    if modify.entropy_bonus and not splitting.whole:
        faults.append(
            "modify.entropy_bonus: TRL's is the mean of the means of what goes forward at once; set "
            f"train.micro_batch_tokens = 0, or {STAY}"
        )
    if modify.entropy_bonus and "top_entropy_quantile" in arguments:
        faults.append(
            "modify.entropy_bonus: TRL's is that of the tokens that the quantile of entropy leaves; set it "
            f"to 0, or {STAY}"
        )
    return dict(asked.values()), faults


def metric_names(entry: Entry, arguments: Mapping[str, Any]) -> dict[str, str]:
    """TRL's names and ours of what both log. With TRL's bias correction its `kl` is weighted: not ours."""
    names = {"entropy": "trained/entropy", "grad_norm": "grad_norm/policy", **entry.metrics}
    if arguments.get("use_bias_correction_kl"):
        names.pop("kl", None)
    return names


def pairs(signal: Signal) -> list[tuple[int, int]]:
    """(chosen row, rejected row) of every pair, in the order of their units."""
    assert isinstance(signal, Paired)
    rows: dict[int, dict[bool, int]] = {}
    for row, (unit, sign) in enumerate(zip(signal.row_group.tolist(), signal.sign.tolist(), strict=True)):
        if unit >= 0:
            rows.setdefault(unit, {})[sign > 0] = row
    return [(rows[unit][True], rows[unit][False]) for unit in sorted(rows)]
