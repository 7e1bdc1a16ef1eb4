"""Algorithms against the loss code of TRL 1.16's own trainers: same tokens, same weights, fp32.

The trainers are constructed as a user would, and their `_compute_loss` is called on padded inputs. Both the
loss and the gradient of every parameter are compared. The old log-probabilities are the policy's plus noise,
so that ratios are clipped on both sides, and one completion is empty and one holds tool output.

`CASES` holds every loss, scale of rewards, level of importance ratios and KL setting that TRL has; where an
algorithm of ours means something else by the same name, `DIFFERENCES` says what. RLOO and GDPO are compared
in test_advantages_trl.py.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import backward, distance, norm, rollouts, tiny
from helpers.trl_trainers import (
    GRADIENT,
    REWARDS,
    batch_of,
    computed,
    grpo_trainer,
    models_with_reference,
    parameters,
    their_gradient,
    tiny_of_characters,
    trl_inputs,
)

from grpobench.algorithms.algorithm import Algorithm, Batch, Signal
from grpobench.algorithms.bnpo import BNPO
from grpobench.algorithms.cispo import CISPO
from grpobench.algorithms.dapo import DAPO
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.dr_grpo import DrGRPO
from grpobench.algorithms.entropy_mask import EntropyMask
from grpobench.algorithms.gmpo import GMPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.ipo import IPO
from grpobench.algorithms.lite_ppo import LitePPO
from grpobench.algorithms.luspo import LUSPO
from grpobench.algorithms.modifiers import Modified, Modifiers
from grpobench.algorithms.policy_gradient import ClippedRatio
from grpobench.algorithms.sapo import SAPO
from grpobench.algorithms.sppo import SPPO
from grpobench.algorithms.vespo import VESPO
from grpobench.runs.models.nano import character_tokenizer
from grpobench.runs.models.roles import RoleModels

trl = pytest.importorskip("trl", reason="trl is the reference of this file: pip install 'grpobench[trl]'")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning"),  # of TRL in transformers
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
]

LOSS = 1e-5
"""Relative: the same float32 numbers through another attention layout, averaged."""


def our_loss(algorithm: Algorithm[Any], models: RoleModels, batch: Batch, signal: Signal) -> float:
    with torch.no_grad():
        used = signal.row_group >= 0
        now = models.forward_train(("policy",), batch[used])
        terms = algorithm.loss(batch[used], signal[used], now).terms
        return float((terms * algorithm.loss_weights(batch[used])).sum())


# Policy gradients


CLIP = {"epsilon": 0.1, "epsilon_high": 0.28}
NARROW = {"epsilon": 0.05, "epsilon_high": 0.08}
SEQUENCE = {"importance_sampling_level": "sequence", **NARROW}
OURS_CLIP = {"clip_low": 0.1, "clip_high": 0.28}
OURS_NARROW = {"clip_low": 0.05, "clip_high": 0.08}
KL = {"beta": 0.1}
UNBIASED = {"beta": 0.1, "kl_estimator": "k3_unbiased"}
MASKED, BONUS = {"off_policy_mask_threshold": 0.02}, {"entropy_coef": 0.3}
TRLS_UNBIASED = {"beta": 0.1, "use_bias_correction_kl": True}

Case = tuple[Algorithm[Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "grpo": (GRPO(), {"loss_type": "grpo"}),
    "grpo, clip-higher": (GRPO(**OURS_CLIP), {"loss_type": "grpo", **CLIP}),
    "grpo, two-sided clip": (GRPO(**OURS_CLIP, dual_clip=1.4), {"loss_type": "grpo", **CLIP, "delta": 1.4}),
    "grpo, beta": (GRPO(**KL), {"loss_type": "grpo", **KL}),
    "grpo, beta unbiased": (GRPO(**UNBIASED), {"loss_type": "grpo", **TRLS_UNBIASED}),
    "grpo, batch": (GRPO(scale="batch"), {"loss_type": "grpo", "scale_rewards": "batch"}),
    "dr_grpo, paper": (DrGRPO(), {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "dr_grpo, TRL's own scale": (GRPO(averaging="constant"), {"loss_type": "dr_grpo"}),
    "bnpo": (GRPO(averaging="token_mean"), {"loss_type": "bnpo"}),
    "dapo, TRL's own clip": (DAPO(clip_high=0.2), {"loss_type": "dapo"}),
    "dapo, paper's clip": (DAPO(), {"loss_type": "dapo", "epsilon_high": 0.28}),
    "lite_ppo": (LitePPO(), {"loss_type": "dapo", "scale_rewards": "batch"}),
    "cispo": (CISPO(), {"loss_type": "cispo", "epsilon_high": 5.0}),
    "cispo, low cap": (CISPO(ratio_cap=1.2), {"loss_type": "cispo", "epsilon_high": 1.2}),
    "cispo, beta": (
        CISPO(ratio_cap=1.2, scale="batch", **UNBIASED),
        {"loss_type": "cispo", "epsilon_high": 1.2, "scale_rewards": "batch", **TRLS_UNBIASED},
    ),
    "sapo": (SAPO(), {"loss_type": "sapo"}),
    "sapo, temperatures": (
        SAPO(temperature_positive=2.0, temperature_negative=5.0, scale="none"),
        {
            "loss_type": "sapo",
            "sapo_temperature_pos": 2.0,
            "sapo_temperature_neg": 5.0,
            "scale_rewards": "none",
        },
    ),
    "luspo": (LUSPO(**OURS_NARROW), {"loss_type": "luspo", **SEQUENCE}),
    "luspo, two-sided clip": (
        LUSPO(**OURS_NARROW, dual_clip=1.1),
        {"loss_type": "luspo", **SEQUENCE, "delta": 1.1},
    ),
    "luspo, beta": (LUSPO(**OURS_NARROW, **KL), {"loss_type": "luspo", **SEQUENCE, **KL}),
    "luspo, token ratios": (GRPO(averaging="sequence_sum"), {"loss_type": "luspo"}),
    "vespo": (VESPO(), {"loss_type": "vespo"}),
    "vespo, shapes": (
        VESPO(power_positive=1.0, decay_positive=0.5, power_negative=0.3, decay_negative=1.5),
        {
            "loss_type": "vespo",
            "vespo_k_pos": 1.0,
            "vespo_lambda_pos": 0.5,
            "vespo_k_neg": 0.3,
            "vespo_lambda_neg": 1.5,
        },
    ),
    "gspo": (GSPO(**OURS_NARROW), {"loss_type": "grpo", **SEQUENCE}),
    "gspo, beta": (GSPO(**OURS_NARROW, **KL), {"loss_type": "grpo", **SEQUENCE, **KL}),
    # TRL warns of these three, which weigh a sequence's ratio by its length; it is our token form
    **{
        f"gspo, {loss}": (
            GSPO(**OURS_NARROW, level="token", averaging=averaging),
            {"loss_type": loss, **SEQUENCE},
        )
        for loss, averaging in (("bnpo", "token_mean"), ("dapo", "token_mean"), ("dr_grpo", "constant"))
    },
    "80/20": (EntropyMask(), {"loss_type": "dapo", "epsilon_high": 0.28, "top_entropy_quantile": 0.2}),
    "80/20, half and beta": (
        EntropyMask(top_fraction=0.5, averaging="sequence_mean", **KL),
        {"loss_type": "grpo", "epsilon_high": 0.28, "top_entropy_quantile": 0.5, **KL},
    ),
    # δ: of eight completions with tokens of negative advantage some are masked and some are not
    **{
        f"{name}, off-policy mask": (Modifiers(off_policy_mask=0.02).around(algorithm), settings | MASKED)
        for name, algorithm, settings in (
            ("grpo", GRPO(**KL), {"loss_type": "grpo", **KL}),
            ("gspo", GSPO(**OURS_NARROW), {"loss_type": "grpo", **SEQUENCE}),
            ("vespo", VESPO(), {"loss_type": "vespo"}),
        )
    },
    **{
        f"{name}, entropy bonus": (Modifiers(entropy_bonus=0.3).around(algorithm), settings | BONUS)
        for name, algorithm, settings in (
            ("dapo", DAPO(**KL), {"loss_type": "dapo", "epsilon_high": 0.28, **KL}),
            ("cispo", CISPO(), {"loss_type": "cispo", "epsilon_high": 5.0}),
        )
    },
    "gmpo": (GMPO(), {"trainer": "GMPO"}),
    "gmpo, asymmetric": (
        GMPO(clip_low=0.1, clip_high=0.28, scale="batch", **KL),
        {"trainer": "GMPO", **CLIP, "scale_rewards": "batch", **KL},
    ),
}


@dataclasses.dataclass(frozen=True)
class Compared:
    """Loss, gradient and metrics of ours and of TRL's, and the batch."""

    ours: float
    theirs: float
    gradient: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]
    metrics: dict[str, float]
    logged: dict[str, list[float]]


def with_their_epsilon(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """TRL adds 1e-4 to the deviation."""
    if isinstance(algorithm, Modified):
        return dataclasses.replace(algorithm, plain=with_their_epsilon(algorithm.plain))
    if hasattr(algorithm, "epsilon"):
        return dataclasses.replace(algorithm, epsilon=1e-4)
    return algorithm


def compared(
    algorithm: Algorithm[Any], settings: dict[str, Any], folder: Path, truncated: bool = False
) -> Compared:
    algorithm = with_their_epsilon(algorithm)
    models = models_with_reference(algorithm)
    batch = batch_of(models)
    if truncated:
        batch = dataclasses.replace(batch, stopped=batch.length < 6)
        algorithm = Modifiers(mask_truncated=True).around(algorithm)
    # TRL corrects its KL term with the importance ratio unless told otherwise
    settings = {"beta": 0.0, "use_bias_correction_kl": False, **settings}
    beta = settings.pop("beta")
    trainer = grpo_trainer(folder, copy.deepcopy(models.language), **settings)
    trainer.beta = beta  # given at construction TRL would look for the reference's weights on a disk or hub
    with torch.no_grad():
        signal = algorithm.compute_signal(batch, models)
    reference = signal.ref_logp if beta else torch.zeros_like(batch.old_logp)
    advantage = their_advantage(batch.reward, settings.get("scale_rewards", "group"))
    inputs = trl_inputs(batch, advantage, reference)
    if truncated:  # as TRL's own masks are where the last token is no end token
        inputs["completion_mask"] = inputs["completion_mask"] * batch.stopped[:, None]
        inputs["tool_mask"] = inputs["tool_mask"] * batch.stopped[:, None]
        inputs["num_items_in_batch"] = inputs["tool_mask"].sum()
    loss, expected = their_gradient(trainer, inputs)
    if settings.get("trainer") == "GMPO":  # it counts weight 1 of an empty completion, a constant
        loss += float((advantage * (batch.length == 0)).mean())
    used = signal.row_group >= 0
    gradient, metrics = backward(algorithm, models, batch[used], signal[used])
    ours = our_loss(algorithm, models, batch, signal)
    assert norm(expected) > 0.01
    return Compared(ours, loss, parameters(gradient), expected, metrics, trainer._metrics["eval"])


@pytest.mark.parametrize("case", CASES)
def test_policy_loss_and_gradients_equal_trls(case: str, tmp_path: Path) -> None:
    algorithm, settings = CASES[case]
    comparison = compared(algorithm, settings, tmp_path)
    assert comparison.ours == pytest.approx(comparison.theirs, rel=LOSS, abs=1e-6)
    assert distance(comparison.gradient, comparison.expected) < GRADIENT
    metrics, logged = comparison.metrics, comparison.logged
    for name, theirs in NAMES:
        if name in metrics and not (name.startswith("policy/clip") and by_response(algorithm)):
            assert metrics[name] == pytest.approx(logged[theirs][-1], rel=1e-4, abs=1e-7), name
    if "off_policy_mask_threshold" in settings:
        assert 0.1 < metrics["modify/off_policy_masked"] < 0.4, "some of the negative ones must be masked"
    if not isinstance(algorithm, EntropyMask):  # which leaves few tokens to clip
        clipped = [metrics[name] for name in metrics if "clip_" in name]
        assert all(share > 0 for share in clipped), "the example must be clipped on both sides"
    if "beta" in settings and not settings.get("use_bias_correction_kl"):
        assert metrics["policy/kl_reference_k3"] == pytest.approx(logged["kl"][-1], rel=1e-4)


NAMES = (
    ("trained/entropy", "entropy"),
    ("policy/clip_low", "clip_ratio/low_mean"),
    ("policy/clip_high", "clip_ratio/high_mean"),
    ("policy/log_clip_low", "clip_ratio/low_mean"),
    ("policy/log_clip_high", "clip_ratio/high_mean"),
    ("policy/sequence_weight", "vespo/phi_seq_mean"),
)
"""Metrics of ours and what TRL logs."""


def by_response(algorithm: Algorithm[Any]) -> bool:
    """TRL counts a clipped response once at the level of sequences, we each of its tokens; and tokens that
    the entropy mask leaves out, which have no advantage here."""
    if isinstance(algorithm, Modified):
        return by_response(algorithm.plain)
    return not isinstance(algorithm, ClippedRatio) or isinstance(algorithm, EntropyMask)


def test_every_choice_that_trl_has_is_in_the_table() -> None:
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    losses = set(re.findall(r'"(\w+)"', " ".join(re.findall(r"loss_type (?:in|==) .*:", source))))
    assert losses >= {"grpo", "dapo", "cispo"}, "TRL's source has another form: look for its losses again"

    def values_of(name: str, default: str) -> set[str]:
        return {settings.get(name, default) for _, settings in CASES.values()}

    assert values_of("loss_type", "grpo") == losses
    assert values_of("importance_sampling_level", "token") == {"token", "sequence"}
    assert values_of("scale_rewards", "group") == {"group", "batch", "none"}
    assert values_of("use_bias_correction_kl", "False") == {True, "False"}


DIFFERENCES: dict[str, tuple[Algorithm[Any], dict[str, Any], str]] = {
    "dr_grpo": (
        DrGRPO(),
        {"loss_type": "dr_grpo"},
        "TRL's loss changes the divisor alone and leaves the standard deviation of the group in",
    ),
    "bnpo": (
        BNPO(),
        {"loss_type": "bnpo"},
        "TRL's loss is a token mean of GRPO's terms; the paper normalizes rewards with a Beta density",
    ),
    "dapo": (
        DAPO(),
        {"loss_type": "dapo"},
        "TRL's clip range is symmetric unless epsilon_high is set",
    ),
    "entropy bonus": (
        Modifiers(entropy_bonus=0.3).around(GRPO()),
        {"loss_type": "grpo", **BONUS},
        "TRL's bonus is the mean over tokens whatever the loss, ours has the average of its terms",
    ),
    "gspo beta": (
        GSPO(**OURS_NARROW, **UNBIASED),
        {"loss_type": "grpo", **SEQUENCE, **TRLS_UNBIASED},
        "TRL corrects a token's KL with the ratio of its sequence, which is not unbiased; we with its own",
    ),
    "luspo beta": (
        LUSPO(**OURS_NARROW, **UNBIASED),
        {"loss_type": "luspo", **SEQUENCE, **TRLS_UNBIASED},
        "as for gspo",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_what_trl_means_by_the_same_name_differs(case: str, tmp_path: Path) -> None:
    algorithm, settings, why = DIFFERENCES[case]
    comparison = compared(algorithm, settings, tmp_path)
    assert distance(comparison.gradient, comparison.expected) > 100 * GRADIENT, why


@pytest.mark.parametrize("case", ["dapo, TRL's own clip", "bnpo", "cispo"])
def test_masked_truncated_completions_leave_no_trace_in_token_means(case: str, tmp_path: Path) -> None:
    algorithm, settings = CASES[case]
    comparison = compared(
        algorithm, {"mask_truncated_completions": True, **settings}, tmp_path, truncated=True
    )
    assert comparison.ours == pytest.approx(comparison.theirs, rel=LOSS, abs=1e-6)
    assert distance(comparison.gradient, comparison.expected) < GRADIENT


@pytest.mark.parametrize("case", ["grpo", "dr_grpo, paper", "sapo", "gspo", "luspo"])
def test_only_trl_counts_masked_truncated_completions_in_means(case: str, tmp_path: Path) -> None:
    """Of twelve completions those of 6, 9, 7 and 8 tokens are cut off: TRL divides by twelve, we by the eight
    that are left."""
    algorithm, settings = CASES[case]
    comparison = compared(
        algorithm, {"mask_truncated_completions": True, **settings}, tmp_path, truncated=True
    )
    assert comparison.ours * 8 / 12 == pytest.approx(comparison.theirs, rel=LOSS, abs=1e-6)
    assert (
        distance({name: g * 8 / 12 for name, g in comparison.gradient.items()}, comparison.expected)
        < GRADIENT
    )


def test_off_policy_mask_uses_sampler_probabilities_like_trl_with_vllm(
    tmp_path: Path,
) -> None:
    """π_old is the policy itself, so that only the sampler's distance can mask."""
    models = models_with_reference(GRPO())
    batch = batch_of(models)
    now = models.forward("policy", batch).logp
    batch = dataclasses.replace(batch, sampler_logp=batch.old_logp, old_logp=now)
    algorithm = Modifiers(off_policy_mask=0.02).around(GRPO())
    trainer = grpo_trainer(tmp_path, copy.deepcopy(models.language), loss_type="grpo", **MASKED)
    with torch.no_grad():
        signal = algorithm.compute_signal(batch, models)
    inputs = trl_inputs(batch, their_advantage(batch.reward, "group"), torch.zeros_like(now))
    _, plain = their_gradient(trainer, inputs)
    _, expected = their_gradient(trainer, inputs | {"sampling_per_token_logps": batch.sampler_logp})
    gradient, _ = backward(algorithm, models, batch, signal)
    assert distance(parameters(gradient), expected) < GRADIENT
    assert distance(plain, expected) > 100 * GRADIENT


def their_advantage(reward: torch.Tensor, scale: str) -> torch.Tensor:
    """TRL's formula in `_generate_and_score_completions`, which it has inline, for groups of four rows."""
    from trl.trainer.utils import nanstd

    grouped = reward.view(-1, 4)
    advantage = reward - torch.nanmean(grouped, dim=1).repeat_interleave(4)
    if scale == "group":
        return advantage / (nanstd(grouped, dim=1).repeat_interleave(4) + 1e-4)
    return advantage / (nanstd(reward) + 1e-4) if scale == "batch" else advantage


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_equal_those_that_trl_computes_from_sampled_completions(
    scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = grpo_trainer(tmp_path, tiny_of_characters(), scale_rewards=scale, per_device_train_batch_size=8)
    theirs = computed(trainer, torch.tensor(REWARDS)[:, None], monkeypatch)["advantages"]
    batch = dataclasses.replace(rollouts([[2] * 4] * 2), reward=torch.tensor(REWARDS))
    signal = GRPO(scale=scale, epsilon=1e-4).compute_signal(batch, RoleModels(tiny()))  # type: ignore[arg-type]
    torch.testing.assert_close(signal.advantage[:, 0], theirs, rtol=1e-6, atol=1e-7)


# DPO


def dpo_trainer(folder: Path, language: Any, reference: Any, **settings: Any) -> Any:
    from datasets import Dataset

    args = trl.DPOConfig(
        output_dir=str(folder), report_to="none", use_cpu=True, bf16=False, beta=0.3, **settings
    )
    pair = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}
    trainer = trl.DPOTrainer(
        model=language,
        ref_model=reference,
        args=args,
        train_dataset=Dataset.from_dict(pair),
        processing_class=character_tokenizer(),
    )
    trainer.model.eval()
    return trainer


def preferences(equal: bool) -> tuple[Batch, dict[str, torch.Tensor]]:
    """One pair per group, as a batch of ours and as TRL's own collator makes it."""
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    lengths = [[4, 4], [4, 4], [4, 4]] if equal else [[6, 2], [1, 5], [8, 8]]
    batch = rollouts(lengths, [[1.0, 0.0], [0.0, 1.0], [0.7, 0.2]])
    examples = []
    for first in range(0, len(batch), 2):
        chosen = first + int(batch.reward[first + 1] > batch.reward[first])
        texts = {
            name: batch.completion[row, : batch.length[row]].tolist()
            for name, row in (("chosen_ids", chosen), ("rejected_ids", 2 * first + 1 - chosen))
        }
        prompt = batch.prompt[first, : batch.prompt_length[first]].tolist()
        examples.append({"prompt_ids": prompt, **texts})
    return batch, DataCollatorForPreference(pad_token_id=0)(examples)


PAIRED: dict[str, tuple[DPO, str, float]] = {
    "dpo": (DPO(beta=0.3), "sigmoid", 1.0),
    "ipo": (IPO(beta=0.3, compare="token"), "ipo", 1.0),
    # TRL takes log-ratios per token, eq. 17 those of whole completions. With all completions of length L = 4
    # and our β divided by L, ours is (h − L/(2β))² = L²·(h/L − 1/(2β))², which is L² times TRL's.
    "ipo of equal lengths": (IPO(beta=0.3 / 4), "ipo", 16.0),
    # TRL adds both errors up.
    "sppo": (SPPO(beta=0.3, win="hard", opponents="pair"), "sppo_hard", 0.5),
}
"""An algorithm, TRL's name of its loss, and how many times TRL's ours is."""


@pytest.mark.parametrize("case", PAIRED)
def test_preference_losses_and_gradients_equal_trls(case: str, tmp_path: Path) -> None:
    algorithm, loss_type, factor = PAIRED[case]
    models = models_with_reference(algorithm)
    reference = copy.deepcopy(models.language)
    frozen = models.networks["reference"]
    reference.base_model.load_state_dict(frozen.trunk.state_dict())
    reference.get_output_embeddings().load_state_dict(frozen.head.state_dict())
    trainer = dpo_trainer(tmp_path, copy.deepcopy(models.language), reference, loss_type=[loss_type])
    batch, inputs = preferences(equal="equal" in case)
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs, False)
    loss.backward()
    expected = {name: factor * p.grad for name, p in trainer.model.named_parameters()}
    signal = algorithm.compute_signal(batch, models)
    gradient, metrics = backward(algorithm, models, batch, signal)
    assert norm(expected) > 0.1
    assert our_loss(algorithm, models, batch, signal) == pytest.approx(factor * loss.item(), rel=LOSS)
    assert distance(parameters(gradient), expected) < GRADIENT
    if case == "dpo":
        logged = trainer._metrics["eval"]
        assert metrics["preference/margin"] == pytest.approx(logged["rewards/margins"][-1], rel=1e-3)
        assert metrics["preference/accuracy"] == pytest.approx(logged["rewards/accuracies"][-1])
        assert metrics["preference/chosen_logp"] == pytest.approx(logged["logps/chosen"][-1], rel=1e-4)
        assert metrics["preference/rejected_logp"] == pytest.approx(logged["logps/rejected"][-1], rel=1e-4)
