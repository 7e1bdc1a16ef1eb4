"""ECHO against prime-rl's loss and its authors', restated; replies in a model against transformers; a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers.slopes import objective
from helpers.toys import (
    Fixed,
    Letters,
    backward,
    close,
    distance,
    models_for,
    off_policy,
    reading,
    rollouts,
    tiny,
)
from helpers.whole_runs import configure, run

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.echo import ECHO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.runs.sample.rollouts import environment_replies
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.tasks.task import Problem

double = pytest.mark.usefixtures("double")
FLOAT64 = {"rtol": 1e-12, "atol": 1e-14}
"""float64 on both sides; only the order of sums differs."""


def episodes(**settings: object) -> Batch:
    """Two groups; replies of two, one and three tokens in rows 0, 1 and 3, none in rows 2 and 4."""
    batch = rollouts(
        [[7, 4, 5], [8, 3]],
        [[1.0, 0.0, 0.0], [0.0, 0.0]],
        gaps={0: (2, 3), 1: (1,), 3: (1, 4, 5)},
        **settings,  # type: ignore[arg-type]
    )
    return dataclasses.replace(batch, replies=environment_replies(batch))


def probabilities(batch: Batch, seed: int) -> torch.Tensor:
    drawn = torch.randn(batch.completion.shape, generator=torch.Generator().manual_seed(seed))
    return -drawn.abs() * (batch.completion != 0)


def prime_rl(batch: Batch, logp: torch.Tensor, advantage: torch.Tensor, alpha: float) -> torch.Tensor:
    """PrimeIntellect-ai/prime-rl@559b447, src/prime_rl/trainer/rl/loss.py: compute_loss with default_loss_fn
    on policy and kl_tau = 0, and ce_loss_fn, each over the tokens of its mask; ce weights are alpha on the
    tokens of later messages (src/prime_rl/orchestrator/algo/echo.py)."""
    policy, other = torch.tensor(0.0), torch.tensor(0.0)
    for row in range(len(batch)):
        mask, weights = batch.completion_mask[row], alpha * batch.replies[row]  # type: ignore[index]
        ratio = (logp[row] - batch.old_logp[row]).exp()
        policy = policy + (-(mask * advantage[row] * ratio)).sum()
        other = other + (-logp[row] * weights)[weights != 0].sum()
    return policy / batch.completion_mask.sum() + other / batch.replies.sum()  # type: ignore[union-attr]


def authors(batch: Batch, logp: torch.Tensor, coefficient: float) -> torch.Tensor:
    """leon2k2k2k/echo-rl@3066734, a copy of microsoft/echo-rl, echo_rl/world_modeling/loss.py,
    compute_world_model_loss with loss_reduction = "sequence_mean" and without warnings: the sum over
    sequences, which the trainer divides by their number."""
    mask = batch.replies.to(logp.dtype)  # type: ignore[union-attr]
    denominator = mask.sum(-1, keepdim=True) + 1e-3
    return coefficient * ((-logp * mask) / denominator).sum() / len(batch)


@double
@pytest.mark.parametrize("alpha", [0.05, 0.1, 2.0])
def test_value_and_gradient_equal_prime_rl(alpha: float) -> None:
    batch = episodes()
    logp = probabilities(batch, 1)
    batch = dataclasses.replace(batch, old_logp=logp)
    algorithm = ECHO(reply_weight=alpha, averaging="token_mean", scale="none")
    advantage = algorithm.compute_signal(batch, Fixed()).advantage
    leaf, other = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    ours, theirs = objective(algorithm, batch, leaf), prime_rl(batch, other, advantage, alpha)
    close(ours.detach(), theirs.detach(), **FLOAT64)
    (gradient,), (expected,) = torch.autograd.grad(ours, leaf), torch.autograd.grad(theirs, other)
    close(gradient, expected, **FLOAT64)
    assert gradient[batch.replies].all() and gradient[:3][batch.completion_mask[:3]].all()


@double
def test_the_term_of_replies_equals_the_authors_with_a_mean_over_sequences() -> None:
    batch = episodes()
    logp = probabilities(batch, 2).requires_grad_()
    added = objective(ECHO(), batch, logp) - objective(ECHO(reply_weight=0.0), batch, logp)
    theirs = authors(batch, logp, 0.05)
    # They add 0.001 to counts of one to three tokens.
    close(added.detach(), theirs.detach(), rtol=1e-3, atol=0.0)
    close(*(torch.autograd.grad(total, logp)[0] for total in (added, theirs)), rtol=1e-3, atol=0.0)


@double
def test_gradient_of_replies_by_hand() -> None:
    """λ = 0.5, five episodes: a reply of two tokens has −0.5/(5·2) for each, in a failed group too."""
    batch = episodes()
    leaf = probabilities(batch, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(objective(ECHO(reply_weight=0.5), batch, leaf), leaf)
    close(gradient[0, 2:4], [-0.05, -0.05])
    close(gradient[3, [1, 4, 5]], [-1 / 30] * 3)
    assert not gradient[3:][batch.completion_mask[3:]].any()  # equal rewards
    assert not gradient[batch.completion == 0].any()
    measured = ECHO().loss(batch, ECHO().compute_signal(batch, Fixed()), {"policy": reading(leaf)})
    nll = measured.metrics["policy/reply_nll"]
    assert nll.isnan().tolist() == [False, False, True, False, True]
    close(nll[0], -leaf.detach()[0, 2:4].mean())


@double
def test_a_bonus_for_entropy_leaves_replies_alone() -> None:
    batch = episodes()
    logp = probabilities(batch, 5)
    bonus = Modifiers(entropy_bonus=0.3)
    now = {"policy": dataclasses.replace(reading(logp), entropy=torch.ones_like(logp))}
    with_bonus, without = bonus.around(ECHO()), ECHO()
    assert with_bonus.learns_replies and not ECHO(reply_weight=0.0).learns_replies
    signal = without.compute_signal(batch, Fixed())
    added = with_bonus.loss(batch, signal, now).terms - without.loss(batch, signal, now).terms
    close(added, -0.3 * batch.completion_mask)


@double
@pytest.mark.parametrize("share", [True, False])
def test_a_model_gives_replies_the_log_probabilities_and_gradients_of_transformers(share: bool) -> None:
    """Each row by itself through the Hugging Face model, with ∂loss/∂log π of `loss` at every token."""
    algorithm = ECHO(reply_weight=0.7)
    models = models_for(algorithm, "gpt2", share=share)
    batch = off_policy(episodes(), models)
    language = tiny("gpt2")
    rows = []
    for row in range(len(batch)):
        prompt = batch.prompt[row, : batch.prompt_length[row]]
        tokens = torch.cat([prompt, batch.completion[row, : batch.length[row]]])
        states = language(input_ids=tokens[None, :-1]).logits[0, len(prompt) - 1 :].log_softmax(-1)
        row_logp = states.gather(-1, tokens[len(prompt) :, None])[:, 0]
        rows.append(torch.nn.functional.pad(row_logp, (0, batch.completion.shape[1] - len(row_logp))))
    plain = torch.stack(rows)
    outputs = models.forward("policy", batch).logp
    inside = batch.completion_mask | batch.replies  # type: ignore[operator]
    close(outputs, (plain * inside).detach(), rtol=1e-9, atol=1e-10)  # attention sums in another order
    silent = models.forward("policy", dataclasses.replace(batch, replies=None)).logp
    close(silent, (plain * batch.completion_mask).detach(), rtol=1e-9, atol=1e-10)
    objective(algorithm, batch, plain).backward()
    expected = {f"policy/{name}": p.grad for name, p in language.named_parameters() if p.grad is not None}
    gradient, metrics = backward(algorithm, models, batch)
    compared = {name: value for name, value in gradient.items() if name in expected}
    assert len(compared) > 10
    assert distance(compared, {name: expected[name] for name in compared}) < 1e-9
    assert metrics["policy/reply_nll"] > 0


@dataclasses.dataclass(frozen=True)
class Replied(Letters):
    """The environment says the same after each first turn."""

    max_completion_tokens = 20
    turn_tokens = 6

    @property
    def turns(self) -> int:
        return 2

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return "go on" if len(turns) < 2 else None


def test_a_run_learns_to_predict_its_environment(policy: str, tmp_path: Path) -> None:
    """An untrained policy is surprised by what it reads, and less so step by step."""
    train = TrainConfig(steps=4, prompts_per_step=4, group_size=4, learning_rate={"policy": 1e-2})
    sections = {"task": Replied(), "train": train, "evaluate": EvaluateConfig(0, 0, 0, 0)}
    rows = run(configure(policy, ECHO(reply_weight=1.0), **sections), tmp_path / "echo")[1:]
    measured = [row["policy/reply_nll"] for row in rows]
    assert len(measured) == 4 and measured == sorted(measured, reverse=True)
    assert measured[-1] < measured[0] - 0.5
