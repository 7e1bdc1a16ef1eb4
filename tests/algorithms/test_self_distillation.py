"""A teacher with a prompt of its own: losses against TRL's trainers and the authors', closed forms, and where
the gradient goes."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.toys import (
    backward,
    close,
    distance,
    models_for,
    norm,
    off_policy,
    rollouts,
    tiny,
)
from torch import nn

from grpobench.algorithms.algorithm import Batch, ModelOutput
from grpobench.algorithms.libraries.dialects import DIALECTS
from grpobench.algorithms.opcd import OPCD
from grpobench.algorithms.sdft import SDFT
from grpobench.algorithms.sdpo import SDPO
from grpobench.algorithms.self_distillation import SelfDistillation
from grpobench.runs.models.head import token_divergence
from grpobench.runs.models.roles import RoleModels

BETAS = (0.0, 0.3, 0.5, 1.0)
CLOSE = 1e-9
"""float64 on both sides; theirs repeats each prompt and pads it, ours shares it."""
LENGTHS = [[7, 4, 5, 1], [9, 5, 2], [6], [3, 8]]


pytestmark = pytest.mark.usefixtures("double")


def batch(every_row: bool = True) -> Batch:
    """Rollouts whose teacher reads two prompts in turn in each group; with `every_row` also every
    third row."""
    rollout_batch = rollouts(LENGTHS)
    assert rollout_batch.teacher_prompt is not None and rollout_batch.teacher_prompt_length is not None
    if not every_row:
        return rollout_batch
    prompt, length = rollout_batch.teacher_prompt.clone(), rollout_batch.teacher_prompt_length.clone()
    for row in (length == 0).nonzero().flatten().tolist():
        prompt[row], length[row] = prompt[0], length[0]
    return dataclasses.replace(rollout_batch, teacher_prompt=prompt, teacher_prompt_length=length)


def plain_logits(
    trunk: nn.Module, head: nn.Module, prompt: torch.Tensor, length: torch.Tensor, of: Batch
) -> torch.Tensor:
    """Logits (B, T, V) before each token of the completions by an ordinary forward pass over one row at a
    time."""
    rows = []
    for row, (size, tokens) in enumerate(zip(length.tolist(), of.length.tolist(), strict=True)):
        text = torch.cat([prompt[row, :size], of.completion[row, :tokens]])
        logits = head(trunk(input_ids=text[None]).last_hidden_state)[0]
        completion_logits = logits[size - 1 : size + tokens - 1]
        rows.append(F.pad(completion_logits, (0, 0, 0, of.completion.shape[1] - tokens)))
    return torch.stack(rows)


@dataclasses.dataclass
class Compared:
    """Our gradient, and what a loss of others needs for theirs."""

    ours: dict[str, torch.Tensor]
    models: RoleModels
    of: Batch
    student: torch.Tensor
    teacher: torch.Tensor

    def distance(self, loss: torch.Tensor) -> float:
        """Of the gradient of another loss from ours."""
        parameters = self.models.named_parameters("policy")
        theirs = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        pairs = zip(parameters.items(), theirs, strict=True)
        other = {f"policy/{name}": torch.zeros_like(p) if g is None else g for (name, p), g in pairs}
        assert norm(other) > 1e-3
        return distance(self.ours, other)


def gradient(algorithm: SelfDistillation, models: RoleModels, of: Batch) -> dict[str, torch.Tensor]:
    """Of an update, which has the rows that the signal leaves in."""
    with torch.no_grad():
        signal = algorithm.compute_signal(of, models)
    rows = (signal.row_group >= 0).nonzero().squeeze(-1)
    return backward(algorithm, models, of[rows], signal[rows])[0]


def compared(algorithm: SelfDistillation, of: Batch) -> Compared:
    models = models_for(algorithm, "gpt2")
    of = off_policy(of, models)
    ours = gradient(algorithm, models, of)
    policy, teacher = models.networks["policy"], models.networks[algorithm.teacher_role]
    assert policy.head is not None and teacher.head is not None
    assert of.teacher_prompt is not None and of.teacher_prompt_length is not None
    student = plain_logits(policy.trunk, policy.head, of.prompt, of.prompt_length, of)
    length = of.teacher_prompt_length.clamp(min=1)
    with torch.no_grad():
        theirs = plain_logits(teacher.trunk, teacher.head, of.teacher_prompt, length, of)
    return Compared(ours, models, of, student, theirs)


def trl_trainer(algorithm: SelfDistillation, mode: str, topk: int | None = None) -> Any:
    """What the loss functions of TRL's trainers read of their trainer."""
    args = types.SimpleNamespace(
        distillation_mode=mode,
        distillation_topk=topk,
        distillation_alpha=algorithm.divergence_beta,
        distillation_add_tail=False,
        distillation_is_clip=algorithm.ratio_cap or None,
    )
    gather = types.SimpleNamespace(gather=lambda value: value)
    return types.SimpleNamespace(args=args, accelerator=gather, _log_self_distillation_metric=lambda *a: None)


@pytest.mark.parametrize(
    ("beta", "mode", "teacher"),
    [*((beta, "full_logits", "average") for beta in BETAS), (0.5, "topk_logits", "policy")],
)
def test_sdft_equals_trl(beta: float, mode: str, teacher: Any) -> None:
    """SDFTTrainer._compute_self_distillation_loss of TRL 1.16: a mean over each completion's tokens behind
    the first, then over completions, times the clipped ratio. Top-k of all tokens is the whole vocabulary."""
    from trl.experimental.sdft.sdft_trainer import DistillationLogits, SDFTTrainer

    algorithm = SDFT(divergence_beta=beta, teacher=teacher, skip_tokens=2, ratio_cap=1.1)
    comparison = compared(algorithm, batch())
    mask = comparison.of.completion_mask & (torch.arange(comparison.of.completion.shape[1]) >= 2)
    logits = DistillationLogits(comparison.of.completion, mask.long(), comparison.student, comparison.teacher)
    trainer = trl_trainer(algorithm, mode, comparison.student.shape[-1])
    inputs = {"old_per_token_logps": comparison.of.old_logp}
    model = types.SimpleNamespace(training=True)
    loss = SDFTTrainer._compute_self_distillation_loss(trainer, model, inputs, logits)
    assert comparison.distance(loss) < CLOSE


@pytest.mark.parametrize("beta", BETAS)
def test_sdpo_equals_trl(beta: float) -> None:
    """SDPOTrainer of TRL 1.16 averages over all completions, also over those that no teacher reads: its loss
    is the share of the others times ours."""
    from trl.experimental.sdpo.sdpo_trainer import DistillationLogits, SDPOTrainer

    algorithm = SDPO(divergence_beta=beta, averaging="sequence_mean", ratio_cap=1.1)
    comparison = compared(algorithm, batch(every_row=False))
    assert comparison.of.teacher_prompt_length is not None
    read = comparison.of.teacher_prompt_length > 0
    mask = (comparison.of.completion_mask & read[:, None]).long()
    full_mask = comparison.of.completion_mask.long()
    logits = DistillationLogits(
        comparison.of.completion, full_mask, mask, comparison.student, comparison.teacher
    )
    trainer = trl_trainer(algorithm, "full_logits")
    inputs = {"old_per_token_logps": comparison.of.old_logp}
    model = types.SimpleNamespace(training=True)
    loss = SDPOTrainer._compute_self_distillation_loss(trainer, model, inputs, logits)
    assert 0 < read.double().mean() < 1
    assert comparison.distance(loss / read.double().mean()) < CLOSE


@pytest.mark.parametrize("beta", BETAS)
def test_sdpo_equals_the_authors(beta: float) -> None:
    """lasgroup/SDPO@0e6d510, verl/trainer/ppo/core_algos.py: compute_self_distillation_loss over all logits,
    with alpha = β, is_clip = 1.1 and loss_agg_mode token-mean over tokens of completions with a teacher."""
    algorithm = SDPO(divergence_beta=beta, ratio_cap=1.1)
    comparison = compared(algorithm, batch(every_row=False))
    q, p = comparison.student.log_softmax(-1), comparison.teacher.log_softmax(-1)

    def kl(of: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return (of.exp() * (of - to)).sum(-1)

    m = ((1 - beta) * q.exp() + beta * p.exp()).log()
    token = {0.0: kl(p, q), 1.0: kl(q, p)}.get(beta, (1 - beta) * kl(q, m) + beta * kl(p, m))
    logp = q.gather(-1, comparison.of.completion[..., None]).squeeze(-1)
    ratio = (logp - comparison.of.old_logp).detach().clamp(-20, 20).exp().clamp(max=1.1)
    assert comparison.of.teacher_prompt_length is not None
    mask = comparison.of.completion_mask & (comparison.of.teacher_prompt_length > 0)[:, None]
    assert comparison.distance((token * ratio * mask).sum() / mask.sum()) < CLOSE


def test_the_average_equals_trls_and_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's SyncRefModelCallback and the authors' _update_teacher: ref ← (1 − α)·ref + α·policy. Of a policy
    that stands still, the distance shrinks by 1 − α with each step: after n steps it is (1 − α)^n."""
    from trl.trainer.callbacks import SyncRefModelCallback

    monkeypatch.undo()
    torch.set_default_dtype(torch.float32)  # in which a run keeps the average
    algorithm = SDPO(teacher_rate=0.2)
    models = models_for(algorithm, "gpt2")
    ours, theirs = models.networks["reference"].parameters(), tiny("gpt2")
    policy = [p.detach().clone() for p in models.networks["policy"].parameters()]
    start = [p.detach().clone() for p in ours]
    with torch.no_grad():
        for p, value in zip(theirs.parameters(), start, strict=True):
            p.copy_(value)
    for step in (1, 2, 3):
        models.follow(algorithm.synchronize(step))
        SyncRefModelCallback._sync_target_model(models.language, theirs, algorithm.synchronize(step))
    for p, other, end, begin in zip(ours, theirs.parameters(), policy, start, strict=True):
        close(p.detach(), end + 0.8**3 * (begin - end), rtol=1e-6, atol=1e-6)
        close(p.detach(), other.detach(), rtol=1e-6, atol=1e-6)


# Closed forms


def test_gradients_by_enumeration() -> None:
    """One token of 5, with the logits z as states and a head of ones. ∂KL(π‖μ)/∂z_v = π_v (log π_v/μ_v − KL),
    which is the policy gradient of the reward log μ − log π; ∂KL(μ‖π)/∂z_v = π_v − μ_v."""
    generator = torch.Generator().manual_seed(0)
    z, other = torch.randn(1, 5, generator=generator), torch.randn(1, 5, generator=generator)
    head = nn.Linear(5, 5, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(5))
    pi, mu = z.log_softmax(-1), other.log_softmax(-1)
    reward = mu - pi
    expected = {
        1.0: -pi.exp() * (reward - (pi.exp() * reward).sum()),
        0.0: pi.exp() - mu.exp(),
    }
    for beta, by_hand in expected.items():
        state = z.clone().requires_grad_()
        token_divergence(state, head, other, head, 1.0, 10**6, beta).sum().backward()
        close(state.grad, by_hand)


def same_prompt(of: Batch) -> Batch:
    return dataclasses.replace(of, teacher_prompt=of.prompt, teacher_prompt_length=of.prompt_length)


@pytest.mark.parametrize(
    ("teacher", "beta"), [*(("average", beta) for beta in BETAS), ("policy", 0.5), ("initial", 0.5)]
)
def test_opcd_of_same_prompt_and_weights_has_divergence_and_gradient_zero(teacher: Any, beta: float) -> None:
    algorithm = OPCD(teacher=teacher, divergence_beta=beta)
    models = RoleModels(tiny("gpt2"), ("policy",), algorithm.reference_roles, budget=10**9)
    models.optimize({"policy": 1e-3}, (0.9, 0.95), 0.0, 1.0)
    of = off_policy(same_prompt(batch()), models, spread=0.0)
    now = models.forward_train(("policy",), of, divergence=beta, teacher=algorithm.teacher_role)["policy"]
    assert now.divergence is not None
    if beta in (0.0, 1.0):
        assert not now.divergence.any()  # bit for bit
    assert float(now.divergence.detach().abs().max()) < 1e-15
    moved = gradient(algorithm, models, off_policy(batch(), models, spread=0.0))
    assert norm(gradient(algorithm, models, of)) < 1e-12 * norm(moved)


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_no_gradient_goes_to_a_teacher_that_is_the_policy(beta: float) -> None:
    """The policy as its own teacher has the gradient that a frozen copy of it as the teacher gives."""
    gradients = []
    for teacher in ("policy", "initial"):
        algorithm = SDFT(teacher=teacher, divergence_beta=beta, skip_tokens=0)  # type: ignore[arg-type]
        models = RoleModels(tiny("gpt2"), ("policy",), algorithm.reference_roles, budget=10**9)
        models.optimize({"policy": 1e-3}, (0.9, 0.95), 0.0, 1.0)
        gradients.append(gradient(algorithm, models, batch()))
    assert norm(gradients[0]) > 1e-3
    assert distance(gradients[0], gradients[1]) < 1e-12


def test_pieces_of_the_teachers_reading_change_nothing() -> None:
    """Budgets that split the policy's rows, the teacher's alone, or neither, and both chunks of logits."""
    algorithm = SDPO()
    models = models_for(algorithm, "gpt2")
    of = off_policy(batch(every_row=False), models)
    expected = gradient(algorithm, models, of)
    for budget, chunk in ((1, 10**6), (25, 10**6), (10**9, 1)):
        models.budget, models.chunk = budget, chunk
        assert distance(gradient(algorithm, models, of), expected) < 1e-12


# What is left out


def test_completions_without_a_teacher_are_left_out_unless_the_task_counts() -> None:
    of = batch(every_row=False)
    assert of.teacher_prompt_length is not None
    none: Any = types.SimpleNamespace()
    read = of.teacher_prompt_length > 0
    alone, beside = SDPO(), SDPO(task_weight=0.5)
    assert torch.equal(alone.compute_signal(of, none).row_group >= 0, read)
    assert (beside.compute_signal(of, none).row_group >= 0).all()
    assert alone.observe(of, alone.compute_signal(of, none))["sdpo/taught"] == pytest.approx(8 / 10)
    noise = torch.full_like(of.old_logp, 3.0)
    now = {"policy": ModelOutput(of.old_logp, noise, noise[:, :0], divergence=noise)}
    terms = alone.loss(of, alone.compute_signal(of, none), now).terms  # type: ignore[arg-type]
    assert (terms[read] == 3).all() and not terms[~read].any()


def test_first_tokens_are_skipped_by_what_the_policy_wrote() -> None:
    """Rows of 4 and 3 tokens, two to skip; in the first row token 1 is a reply. Left are tokens 3 of the
    first row and 2 of the second; a mean over completions gives each 1/2."""
    of = rollouts([[4, 3]], gaps={0: (1,)})
    weights = SDFT(skip_tokens=2).loss_weights(of)
    assert weights.tolist() == [[0, 0, 0, 0.5], [0, 0, 0.5, 0]]


def test_presets_have_the_defaults_of_trl() -> None:
    from trl.experimental.sdft import SDFTConfig
    from trl.experimental.sdpo import SDPOConfig

    kinds = {"base": "initial", "ema": "average"}
    for dialect, config in (("sdft@trl", SDFTConfig), ("sdpo@trl", SDPOConfig)):
        theirs = {field.name: field.default for field in dataclasses.fields(config)}
        ours = DIALECTS[dialect].values["settings"]
        assert ours["teacher"] == kinds[theirs["teacher_model_kind"]]
        assert ours["divergence_beta"] == theirs["distillation_alpha"]
        assert ours["ratio_cap"] == theirs["distillation_is_clip"]
        if dialect == "sdft@trl":
            assert ours["skip_tokens"] == theirs["num_loss_tokens_to_skip"]
            template = theirs["teacher_prompt_template"].replace("privileged_context", "demonstration")
            assert ours["template"] == template and theirs["distillation_topk"] == 100
        else:
            assert ours["teacher_rate"] == theirs["teacher_update_rate"]
            assert ours["threshold"] == theirs["success_reward_threshold"]
            assert ours["cut_thinking"] == theirs["remove_thinking_from_demonstration"]
            assert (theirs["distillation_mode"], theirs["distillation_weight"]) == ("sampled_token", 1.0)
