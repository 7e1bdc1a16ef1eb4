"""KTO, SimPO, ORPO and SPPO by hand, against TRL 1.16's own loss functions on random numbers, and against
formulas of the authors' code.

TRL's methods are called unbound, with what they read of their trainer.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, close, models_for, reading, rollouts

from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput, Role
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.kto import KTO, cross, mismatch
from grpobench.algorithms.orpo import ORPO, log_complement
from grpobench.algorithms.simpo import SimPO
from grpobench.algorithms.sppo import SPPO


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


EQUAL = {"rtol": 1e-9, "atol": 1e-12}  # float64 in both
SINGLE = {"rtol": 1e-6, "atol": 1e-7}  # TRL's ORPO casts to float32


class ByRow:
    """A reader of any part of `numbered` rows, with readings by role."""

    def __init__(self, **readings: torch.Tensor) -> None:
        self.readings = readings

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        return reading(self.readings[role].detach()[batch.sampler_logp[:, 0].long()])


def numbered(batch: Batch) -> Batch:
    """The rows with their numbers where nothing is read."""
    number = torch.arange(len(batch), dtype=batch.sampler_logp.dtype)[:, None]
    return dataclasses.replace(batch, sampler_logp=number.expand(batch.sampler_logp.shape))


def objective(algorithm: Algorithm[Any], batch: Batch, logp: torch.Tensor, reference: torch.Tensor) -> Any:
    """The weighted loss of the rows that are trained on."""
    signal = algorithm.compute_signal(numbered(batch), ByRow(reference=reference, policy=logp))
    used = signal.row_group >= 0
    loss = algorithm.loss(batch[used], signal[used], {"policy": reading(logp)[used]})
    return (loss.terms * algorithm.loss_weights(batch[used])).sum()


def both(algorithm: Algorithm[Any], batch: Batch, seed: int = 0) -> tuple[Any, Any, torch.Tensor, Any]:
    """(our loss, its gradient with respect to log π (B, T), log π, log π_ref), for random numbers."""
    generator = torch.Generator().manual_seed(seed)
    logp, reference = (
        -torch.rand(batch.completion_mask.shape, generator=generator) * 3 * batch.completion_mask
        for _ in range(2)
    )
    logp.requires_grad_()
    loss = objective(algorithm, batch, logp, reference)
    return loss, torch.autograd.grad(loss, logp)[0], logp, reference


def gradient(loss: torch.Tensor, logp: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, logp)[0]


def trl() -> Any:
    return pytest.importorskip("trl", reason="trl is the reference: pip install 'grpobench[trl]'")


PAIRS = rollouts([[6, 2], [1, 5], [8, 8]], [[1.0, 0.0], [0.0, 1.0], [0.7, 0.2]])
CHOSEN, REJECTED = torch.tensor([0, 3, 4]), torch.tensor([1, 2, 5])


def paired() -> Batch:
    """One pair in each of three groups, in float64."""
    return dataclasses.replace(
        PAIRS,
        reward=PAIRS.reward.double(),
        old_logp=PAIRS.old_logp.double(),
        sampler_logp=PAIRS.sampler_logp.double(),
    )


# KTO


def test_kto_by_hand() -> None:
    """Gains 2 (desirable), 1 and −1 (not) and z = 1: σ(−β), 2σ(0), 2σ(−2β) with β = ½."""
    batch = rollouts([[2, 1, 3]], [[1.0, 0.0, 0.4]])
    reference = torch.tensor([[-1.0, -2.0, 0.0], [-2.0, 0.0, 0.0], [0.0, -1.0, -1.0]])
    logp = torch.tensor([[-0.5, -0.5, 0.0], [-1.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    algorithm = KTO(beta=0.5, undesirable_weight=2.0)
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(reference)))
    assert signal.sign.tolist() == [1, -1, -1] and signal.row_group.tolist() == [0, 1, 2]
    signal = dataclasses.replace(signal, point=torch.ones(3))
    loss = algorithm.loss(batch, signal, {"policy": reading(logp)})
    sigmoid = [1 / (1 + math.exp(0.5)), 2 / 2, 2 / (1 + math.exp(1.0))]
    close(loss.terms, sigmoid)
    close(algorithm.loss_weights(batch), [1 / 3] * 3)
    assert loss.metrics["kto/desirable_gain"].nan_to_num(7).tolist() == [2, 7, 7]
    assert loss.metrics["kto/undesirable_gain"].nan_to_num(7).tolist() == [7, 1, -1]
    assert algorithm.observe(batch, signal)["kto/desirable"] == pytest.approx(1 / 3)


def kto_of_trl(logp: torch.Tensor, reference: torch.Tensor, label: torch.Tensor, z: tuple[Any, Any]) -> Any:
    """TRL's loss from per-token log-probabilities (B, T) and sums (log π, log π_ref) of mismatched pairs."""
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        calculate_KL=True,
        loss_type="kto",
        beta=0.3,
        desirable_weight=1.5,
        undesirable_weight=0.5,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
        _compute_kl_logps=lambda model, batch: z[0],
    )
    ones = torch.ones(len(logp), logp.shape[1] + 1, dtype=torch.long)  # a token of prompt before the others
    inputs = {
        "input_ids": ones,
        "attention_mask": ones,
        "completion_mask": ones,
        "label": label,
        "ref_logps": reference.sum(-1),
        "ref_KL_logps": z[1],
    }
    output = SimpleNamespace(log_probs=logp, entropy=logp.detach(), mean_logits=logp.detach())
    return trl().KTOTrainer._compute_loss(trainer, lambda **settings: output, inputs, False)


@pytest.mark.parametrize("shift", [0.0, -50.0])
def test_kto_loss_and_gradient_equal_trls(shift: float) -> None:
    """Of random numbers; the mean of the mismatched log-ratios is positive, and with a shift clamped at 0."""
    batch = rollouts([[6, 2, 4], [1, 5], [8, 8]], [[1.0, 0.0, 0.0], [0.0, 1.0], [0.7, 0.2]])
    algorithm = KTO(beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)
    _, _, logp, reference = both(algorithm, batch)
    generator = torch.Generator().manual_seed(3)
    policy = torch.rand(7, generator=generator) * 4 + shift
    frozen = torch.rand(7, generator=generator)
    signal = algorithm.compute_signal(numbered(batch), ByRow(reference=reference, policy=logp))
    z = (policy - frozen).mean().clamp(min=0)
    assert (z > 0) == (not shift)
    signal = dataclasses.replace(signal, point=z.expand(7))
    ours = (algorithm.loss(batch, signal, {"policy": reading(logp)}).terms / 7).sum()
    theirs = kto_of_trl(logp * batch.completion_mask, reference, signal.sign > 0, (policy, frozen))
    torch.testing.assert_close(ours, theirs, **EQUAL)
    torch.testing.assert_close(gradient(ours, logp), gradient(theirs, logp), **EQUAL)


class Told:
    """Models that say of each token (its prompt's first token)·scale, which a mismatch changes."""

    def __init__(self, **scale: float) -> None:
        self.scale, self.reads = scale, list[tuple[Role, Batch]]()

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        self.reads.append((role, batch))
        return reading(-self.scale[role] * batch.prompt[:, :1] * torch.ones(batch.completion.shape))


def test_kto_reference_point_by_hand() -> None:
    """Prompts 3 and 5, completions of 2, 1 and 4 tokens: log π/π_ref is 0.5 per token and unit of prompt."""
    batch = rollouts([[2, 1], [4]], [[1.0, 0.0], [1.0]], prompts=(1, 1))
    prompt = torch.tensor([[3], [3], [5]])
    batch = dataclasses.replace(batch, prompt=prompt, old_logp=-prompt * torch.ones(3, 4))
    models = Told(policy=1.0, reference=1.5)
    # own prompts: (0.5·3·2 + 0.5·3·1 + 0.5·5·4)/3
    own_prompts = KTO(reference_point="rollouts").compute_signal(batch, models)
    close(own_prompts.point, [(3 + 1.5 + 10) / 3] * 3)
    assert [role for role, _ in models.reads] == ["reference"]
    assert not KTO(reference_point="zero").compute_signal(batch, models).point.any()
    # a ring of the group of two and that of one, two steps on: the third's completion under the first prompt,
    # and either of the others' under the third's
    signal = KTO().compute_signal(batch, models)
    (_, _), (_, crossed), _ = models.reads[-3:]
    assert sorted(crossed.prompt[:, 0].tolist()) == [3, 5]
    tokens = crossed.completion_mask.sum(-1)
    close(signal.point, [(0.5 * crossed.prompt[:, 0] * tokens).mean().item()] * 3)
    # a policy below the reference: the estimate is clamped
    assert not KTO().compute_signal(batch, Told(policy=1.5, reference=1.0)).point.any()


def test_mismatch_uses_other_problems_each_completion_once_and_no_empty_one() -> None:
    batch = rollouts([[4, 2, 3], [5, 0, 1], [2, 2, 6]])
    prompts, completions = mismatch(batch)
    assert len(prompts) >= 5 and 4 not in prompts and 4 not in completions
    assert len(set(completions.tolist())) == len(completions) == len(set(prompts.tolist()))
    assert (batch.group[prompts] != batch.group[completions]).all()
    room = (batch.prompt_length + batch.length).max()
    crossed = cross(batch, prompts, completions)
    assert (crossed.prompt_length + crossed.length).max() <= room
    assert torch.equal(crossed.prompt, batch.prompt[prompts])
    assert torch.equal(crossed.completion_mask, batch.completion_mask[completions])
    # one problem, or one row, or nothing written: no match
    for lengths in ([[3, 2]], [[3]], [[0], [0]], [[3], [0]]):
        assert [len(side) for side in mismatch(rollouts(lengths))] == [0, 0]


def test_a_match_that_may_not_fit_is_left_out() -> None:
    """Prompts of 1 and 9, completions of 9 and 1 tokens: 9 + 9 is beyond the batch's longest, 10."""
    batch = rollouts([[9], [1]], prompts=(1, 9))
    prompts, completions = mismatch(batch)
    assert (prompts.tolist(), completions.tolist()) == ([0], [1])


class Swapped:
    """Models whose policy and reference have changed places, which turns the sign of every log-ratio."""

    def __init__(self, models: Any) -> None:
        self.models = models

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        other: Role = "reference" if role == "policy" else "policy"
        return self.models.forward(other, batch, squares=squares)  # type: ignore[no-any-return]


def test_a_reference_point_above_0_depends_on_neither_rows_nor_numbers_nor_padding() -> None:
    """Of models and their swapped pair one has a positive mean, which no clamp at 0 hides."""
    batch, models = rollouts([[4, 2, 3], [5, 0, 1], [2, 2, 6]]), models_for(KTO(), "gpt2")
    sides = [models, Swapped(models)]
    points = [KTO().compute_signal(batch, side).point[0].item() for side in sides]
    assert sorted(points)[0] == 0 < sorted(points)[1]
    side = sides[points.index(max(points))]
    shuffled = batch[torch.tensor([7, 2, 0, 5, 3, 8, 6, 1, 4])]
    renumbered = dataclasses.replace(batch, group=(2 - batch.group) * 5)
    padding = {
        name: torch.nn.functional.pad(getattr(batch, name), (0, 3))
        for name in ("prompt", "completion", "completion_mask", "sampler_logp", "old_logp", "breaks")
    }
    for changed in (shuffled, renumbered, dataclasses.replace(batch, **padding)):
        point = KTO().compute_signal(changed, side).point
        close(point, torch.full_like(point, max(points)))


def test_labels_train_without_pairs() -> None:
    batch = rollouts([[2], [3]], [[1.0], [1.0]])
    _, slope, _, _ = both(KTO(), batch)
    assert (slope[batch.completion_mask] < 0).all()  # both are made likelier


# SimPO


def test_simpo_by_hand() -> None:
    """Means −1 against −3, β = 2, γ = 1: −log σ(2·2 − 1); means −2 against −2 (4 tokens): −log σ(−1)."""
    batch = rollouts([[2, 1], [1, 4]], [[1.0, 0.0], [1.0, 0.0]])
    logp = torch.zeros(4, 4)
    logp[:, 0] = torch.tensor([-2.0, -3.0, -2.0, -8.0])
    nothing = Fixed()  # no reference is read
    algorithm = SimPO(beta=2.0, gamma=1.0)
    signal = algorithm.compute_signal(batch, nothing)
    loss = algorithm.loss(batch, signal, {"policy": reading(logp)})
    total = (loss.terms * algorithm.loss_weights(batch)).sum()
    close(total, (math.log1p(math.exp(-3.0)) + math.log1p(math.exp(1.0))) / 2)
    close(loss.metrics["preference/margin"], [4.0, 4.0, 0.0, 0.0])


def means(batch: Batch, logp: torch.Tensor) -> torch.Tensor:
    return (logp * batch.completion_mask).sum(-1) / batch.completion_mask.sum(-1)


def test_simpo_loss_and_gradient_equal_trls() -> None:
    trl()
    from trl.experimental.cpo import CPOTrainer

    batch = paired()
    ours, slope, logp, _ = both(SimPO(beta=2.5, gamma=0.7), batch)
    trainer = SimpleNamespace(
        alpha=0.0,
        accelerator=SimpleNamespace(device="cpu"),
        loss_type="simpo",
        simpo_gamma=0.7,
        beta=2.5,
        label_smoothing=0.0,
    )
    mean = means(batch, logp)
    theirs = CPOTrainer.cpo_loss(trainer, mean[CHOSEN], mean[REJECTED])[0].mean()
    torch.testing.assert_close(ours, theirs, **EQUAL)
    torch.testing.assert_close(slope, gradient(theirs, logp), **EQUAL)


def test_simpo_of_one_length_is_dpo_with_a_uniform_reference() -> None:
    batch = rollouts([[4, 4], [4, 4]], [[1.0, 0.0], [0.0, 1.0]])
    ours, slope, logp, _ = both(SimPO(beta=2.0, gamma=0.0), batch)
    theirs = objective(DPO(beta=0.5), batch, logp, torch.full_like(logp, -math.log(40)))
    torch.testing.assert_close(ours, theirs, **EQUAL)
    torch.testing.assert_close(slope, gradient(theirs, logp), **EQUAL)


# ORPO


def test_orpo_by_hand() -> None:
    """p = ½ against ¼: odds 1 and ⅓, h = log 3, −log σ(h) = log(4/3); imitation log 2."""
    batch = rollouts([[1, 2]], [[1.0, 0.0]])
    logp = torch.tensor([[-math.log(2), 0.0], [-math.log(8), -math.log(2)]])
    close(objective(ORPO(beta=0.3), batch, logp, logp), math.log(2) + 0.3 * math.log(4 / 3))
    close(objective(ORPO(beta=0.3, nll=0.0), batch, logp, logp), 0.3 * math.log(4 / 3))


def test_orpo_odds_ratio_and_its_gradient_equal_trls() -> None:
    trl()
    from trl.experimental.orpo import ORPOTrainer

    batch = paired()
    trainer = SimpleNamespace(beta=0.4, accelerator=SimpleNamespace(device="cpu"))
    ours, slope, logp, _ = both(ORPO(beta=0.4, nll=0.0), batch)
    mean = means(batch, logp)
    theirs = -ORPOTrainer.odds_ratio_loss(trainer, mean[CHOSEN], mean[REJECTED])[0].mean()
    torch.testing.assert_close(ours, theirs.double(), **SINGLE)
    torch.testing.assert_close(slope, gradient(theirs, logp), **SINGLE)
    # with imitation, whose mean TRL takes over all tokens and we over each completion's
    total, slope, logp, _ = both(ORPO(beta=0.4), batch)
    expected = theirs.double() - mean[CHOSEN].mean()
    torch.testing.assert_close(total, expected, **SINGLE)


def test_orpo_odds_and_gradient_equal_the_authors() -> None:
    """xfactlab/orpo@0f0abfe, src/orpo_trainer.py: the difference of log p − log1p(−p), in float64."""
    batch = paired()
    ours, slope, logp, _ = both(ORPO(beta=0.4, nll=0.0), batch)
    mean = means(batch, logp)
    log_odds = mean - torch.log1p(-mean.exp())
    theirs = -0.4 * (log_odds[CHOSEN] - log_odds[REJECTED]).sigmoid().log().mean()
    torch.testing.assert_close(ours, theirs, **EQUAL)
    torch.testing.assert_close(slope, gradient(theirs, logp), **EQUAL)


def test_log_complement_keeps_its_digits_at_both_ends() -> None:
    logp = torch.tensor([-1e-12, -1e-3, -math.log(2), -3.0, -50.0], requires_grad=True)
    complement = log_complement(logp)
    exact = [math.log(1e-12), math.log(-math.expm1(-1e-3)), -math.log(2), math.log1p(-math.exp(-3.0)), 0.0]
    close(complement[:4], exact[:4])
    assert complement[4].item() == pytest.approx(-math.exp(-50.0), rel=1e-9)
    # d/dx log(1 − eˣ) = −eˣ/(1 − eˣ)
    slope = torch.autograd.grad(complement.sum(), logp)[0]
    torch.testing.assert_close(slope, 1 / torch.expm1(-logp) * -1, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orpo_of_certain_and_of_empty_completions_is_finite(dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    batch = rollouts([[2, 2], [0, 2], [2, 0]], [[1.0, 0.0]] * 3)
    logp = torch.tensor([[0.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [-1.0, 0.0], [-1.0, -1.0], [0.0, 0.0]])
    logp.requires_grad_()
    loss = objective(ORPO(), batch, logp, logp)
    slope = gradient(loss, logp)
    assert loss.isfinite() and slope.isfinite().all()
    assert (slope[0] < 0).all(), "imitation goes on"
    assert (slope[3] > 0).all() and (slope[4] < 0).all()


# SPPO


def contest(algorithm: SPPO, rewards: list[float]) -> list[float]:
    """P of every row of one group that is in a pair, in the order of rows; ½ of the others."""
    batch = rollouts([[2] * len(rewards)], [rewards])
    signal = algorithm.compute_signal(numbered(batch), ByRow(reference=torch.zeros(len(rewards), 2)))
    return signal.win.tolist()


def test_win_probabilities_by_hand() -> None:
    # one of four is right; itself counts ½: (½ + 3)/4 and (0 + 1½)/4
    assert contest(SPPO(win="hard"), [1.0, 0.0, 0.0, 0.0]) == [0.875, 0.375, 0.375, 0.375]
    assert contest(SPPO(win="hard", opponents="pair", pairs_per_group=0), [0.2, 0.9]) == [0.0, 1.0]
    sigmoid = 1 / (1 + math.exp(-1.0))
    assert contest(SPPO(), [1.0, 0.0]) == pytest.approx([(0.5 + sigmoid) / 2, (1.5 - sigmoid) / 2])
    assert contest(SPPO(opponents="pair"), [1.0, 0.0]) == pytest.approx([sigmoid, 1 - sigmoid])
    assert contest(SPPO(), [1.0, 1.0]) == [0.5, 0.5]


def test_win_probabilities_and_loss_equal_the_authors() -> None:
    """uclaml/SPPO@5e61c4e: scripts/compute_prob.py makes P from scores, the sum over all five over five, and
    trains on the best and the worst; sppo/trainer.py averages the two errors."""
    score = torch.tensor([0.3, -1.2, 2.0, 0.9, -0.4])
    batch = rollouts([[4, 2, 5, 1, 3]], [score.tolist()])
    ours, slope, logp, reference = both(SPPO(beta=0.05), batch)
    table = 1 / (1 + torch.exp(score[None, :] - score[:, None]))
    chance = table.sum(1) / 5
    gain = ((logp - reference) * batch.completion_mask).sum(-1)
    best, worst = int(score.argmax()), int(score.argmin())
    error = [(gain[row] - (1 / 0.05) * (chance[row] - 0.5)) ** 2 for row in (best, worst)]
    theirs = (error[0] + error[1]) / 2
    torch.testing.assert_close(ours, theirs, **EQUAL)
    torch.testing.assert_close(slope, gradient(theirs, logp), **EQUAL)


def test_sppo_trains_best_and_worst_of_a_group_by_default() -> None:
    batch = rollouts([[2, 3, 4, 1], [1, 1]], [[0.5, 1.0, 0.0, 0.2], [1.0, 1.0]])
    models = Fixed(reference=reading(torch.zeros(2, 4)))
    signal = SPPO(win="hard").compute_signal(batch, models)
    assert signal.sign.tolist() == [0, 1, -1, 0, 0, 0]
    assert signal.row_group.tolist() == [-1, 0, 0, -1, -1, -1]
    close(signal.win, [0.625, 0.875, 0.125, 0.375, 0.5, 0.5])
