"""What stands around an algorithm: rows left out, refills, a reference that follows, greedy baselines, masked
sequences, entropy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from helpers.toys import (
    Fixed,
    arithmetic_run,
    backward,
    distance,
    models_for,
    norm,
    off_policy,
    reading,
    rollouts,
    trainer_for,
)

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm, ModelOutput, Role
from grpobench.algorithms.cispo import CISPO
from grpobench.algorithms.curriculum import Shuffled
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.modifiers import Modified, Modifiers, Refilled, exclude_rows, overlong
from grpobench.algorithms.modifiers import off_policy as off_policy_tokens
from grpobench.algorithms.parts import Averaging
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.remax import ReMax
from grpobench.runs.metrics.catalog import catalog
from grpobench.runs.metrics.rollout_metrics import MetricAccumulator
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.train.rollouts import set_apart
from grpobench.runs.train.update import minibatches
from grpobench.tasks.task import Outcome, Problem, Verdict


def group(rewards: Sequence[float], outcomes: Sequence[Outcome]) -> Group:
    rollout = Rollout((5, 6), (7, 1), np.zeros(2, np.float32), stopped=True)
    verdicts = [Verdict({"correct": r}, "a", o) for r, o in zip(rewards, outcomes, strict=True)]
    return Group(Problem("p", "P", None), [rollout] * len(verdicts), verdicts, list(rewards))


def test_no_modifier_leaves_the_very_same_algorithm() -> None:
    algorithm = GRPO()
    assert Modifiers().around(algorithm) is algorithm
    assert Modifiers(overlong_penalty=2.0, reference_mix=0.5).around(algorithm) is algorithm
    assert isinstance(Modifiers(mask_truncated=True).around(algorithm), Modified)


def test_every_member_that_modifiers_leave_alone_is_that_of_the_plain_algorithm() -> None:
    class Unlike(GRPO):
        minimum_group = 7
        scores = frozenset({"format"})

        def updated_roles(self, step: int) -> tuple[Role, ...]:
            return ("critic",) * step

    plain = Unlike()
    around = Modifiers(mask_truncated=True).around(plain)
    assert around.minimum_group == 7 and around.scores == {"format"} and around.inner is plain
    assert around.updated_roles(2) == ("critic", "critic")
    settled = {name for name, member in vars(Algorithm).items() if isinstance(member, property)}
    assert settled >= {"trained_roles", "reference_roles", "teacher_role", "base_rollouts"}
    assert all(getattr(around, name) == getattr(plain, name) for name in settled)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_modified_algorithm_has_the_needs_of_the_plain_one(name: str) -> None:
    """Expert answers, greedy baselines, located answers: none is lost behind a modifier."""
    plain = ALGORITHMS[name]()
    around = Modifiers(overlong_buffer=1).around(plain)
    for member, value in vars(Algorithm).items():
        if isinstance(value, property) and member not in ("inner", "differentiates_entropy", "studies"):
            assert getattr(around, member) == getattr(plain, member), member
    for member in ("expert_weights", "expert_loss", "updated_roles"):
        assert getattr(around, member) == getattr(plain, member)


def test_overlong_punishment_falls_linearly_over_the_buffer() -> None:
    """L = 20, c = 4: nothing up to 16 tokens, then a quarter for each, −1 at the limit."""
    length = torch.tensor([1, 16, 17, 18, 20])
    assert overlong(length, 20, 4).tolist() == [0.0, 0.0, -0.25, -0.5, -1.0]
    batch = rollouts([[6, 7, 8]], [[1.0, 1.0, 1.0]], limit=8)
    algorithm = Modifiers(overlong_buffer=2).around(GRPO())
    row = algorithm.observe(batch, algorithm.compute_signal(batch, Fixed()))
    assert row["modify/overlong"] == pytest.approx(-(0 + 0.5 + 1) / 3)


def test_truncated_completions_are_left_out_but_count_in_their_group() -> None:
    """Rewards 1, 0, 0, 0, the second truncated: the mean stays ¼, so the first row's advantage is ¾."""
    batch = rollouts([[3, 12, 4, 5]], [[1.0, 0.0, 0.0, 0.0]], limit=12)
    assert batch.stopped.tolist() == [True, False, True, True]
    algorithm = Modifiers(mask_truncated=True).around(GRPO(scale="none"))
    signal = algorithm.compute_signal(batch, RoleModels.__new__(RoleModels))
    assert signal.row_group.tolist() == [0, -1, 2, 3]
    assert signal.advantage[0, 0].item() == pytest.approx(0.75)
    assert algorithm.observe(batch, signal)["modify/left_out"] == 0.25


def test_equal_reward_groups_skip_averages_but_count_in_batch_statistics() -> None:
    """Of three groups the middle one has equal rewards: the gradient is that of a batch without it, whatever
    the average. The deviation of the batch is that of all seven rewards."""
    shape = [[3, 2], [5, 1, 4], [2, 6]], [[1.0, 0.0], [0.5, 0.5, 0.5], [0.0, 1.0]]
    algorithm = Modifiers(zero_variance_filter=True).around(GRPO(scale="batch", epsilon=1e-9))
    batch = rollouts(*shape)
    signal = algorithm.compute_signal(batch, Fixed())
    assert signal.row_group.tolist() == [0, 1, -1, -1, -1, 5, 6]
    assert algorithm.observe(batch, signal)["modify/equal"] == pytest.approx(1 / 3)
    deviation = (4 * 0.25 / 6) ** 0.5  # of 1, 0, ½, ½, ½, 0, 1
    assert signal.advantage[0, 0].item() == pytest.approx(0.5 / deviation)
    for averaging in Averaging.__args__:
        plain = GRPO(averaging=averaging)
        models = models_for(plain, "gpt2")
        full_batch = off_policy(batch, models)
        telling = full_batch[(full_batch.group != 1).nonzero().squeeze(-1)]
        expected, _ = backward(plain, models, telling)
        modified = Modifiers(zero_variance_filter=True).around(plain)
        signal = modified.compute_signal(full_batch, models)
        (rows,) = minibatches(full_batch, signal.row_group, 1, 0)
        gradient, _ = backward(modified, models, full_batch[rows], signal[rows])
        assert distance(gradient, expected) < 1e-5  # float32, another order of rows
        if averaging != "sequence_sum":
            diluted, _ = backward(plain, models, full_batch)
            assert distance(diluted, expected) > 0.1


def test_scalerls_objective_is_cispo_with_its_settings() -> None:
    """arXiv:2510.13786, section 4, term by term: the mean over prompts with 0 < mean r < 1 of
    1/Σ|y_i| Σ_i Σ_t sg(min(ρ, ε)) Â_i/std(Â) log π, where the deviation is that of all Â of the batch."""
    batch = rollouts([[3, 2], [5, 1, 4], [2, 6]], [[1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0]])
    generator = torch.Generator().manual_seed(4)
    old, logp = (-torch.rand(batch.completion_mask.shape, generator=generator) for _ in range(2))
    batch = dataclasses.replace(batch, old_logp=old)
    plain = CISPO(averaging="prompt_mean", scale="batch_centered", ratio_cap=1.2, epsilon=1e-9)
    algorithm = Modifiers(zero_variance_filter=True).around(plain)
    leaf = logp.clone().requires_grad_()
    signal = algorithm.compute_signal(batch, Fixed())
    (rows,) = minibatches(batch, signal.row_group, 1, 0)
    terms = algorithm.loss(batch[rows], signal[rows], {"policy": reading(leaf[rows])}).terms
    (gradient,) = torch.autograd.grad((terms * algorithm.loss_weights(batch[rows])).sum(), leaf)
    centered = [0.5, -0.5, 0.0, 0.0, 0.0, -0.5, 0.5]
    deviation = float(np.std(centered, ddof=1))
    expected = torch.zeros_like(logp)
    for members in ([0, 1], [5, 6]):
        tokens = sum(int(batch.length[row]) for row in members)
        for row in members:
            for t in range(int(batch.length[row])):
                ratio = min(math.exp(logp[row, t] - old[row, t]), 1.2)
                expected[row, t] = -ratio * centered[row] / deviation / tokens / 2
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)  # float32


def test_a_step_without_any_telling_group_updates_nothing() -> None:
    config = arithmetic_run(GRPO(), modify=Modifiers(zero_variance_filter=True))
    trainer = trainer_for(config)
    batch = rollouts([[3, 2], [4, 1]], [[1.0, 1.0], [0.0, 0.0]])
    signal = trainer.algorithm.compute_signal(batch, trainer.models)
    before = {name: p.clone() for name, p in trainer.models.named_parameters("policy").items()}
    update_report = trainer.updater.update(batch, signal, MetricAccumulator(catalog()), 1)
    assert update_report.left_out == 0 and not update_report.ruined
    for name, p in trainer.models.named_parameters("policy").items():
        assert torch.equal(p, before[name])


def test_a_completion_that_has_become_improbable_is_no_longer_discouraged() -> None:
    """Mean log μ/π of the three rows: (0.3 + 0.1)/2 = 0.2, 0.2 and (0.1 − 0.3)/2 = −0.1; the first one's
    advantage is positive. Tokens that the policy did not write do not count."""
    batch = rollouts([[2, 3, 2]], [[1.0, 0.0, 0.0]], gaps={1: (1,)})
    logp = -torch.tensor([[0.3, 0.1, 9.0], [0.2, 9.0, 0.2], [0.1, -0.3, 9.0]])
    advantage = torch.tensor([[1.0], [-1.0], [-1.0]]).expand(3, 3)

    def masked(most: float) -> list[bool]:
        stale = off_policy_tokens(batch, logp, advantage, most)
        assert torch.equal(stale.any(-1), stale.all(-1))
        return stale[:, 0].tolist()

    assert masked(0.19) == [False, True, False]
    assert masked(0.21) == [False, False, False]


def test_masking_leaves_the_critic_and_the_kl_alone() -> None:
    plain = PPO(beta=0.1, kl_placement="loss", critic="shared")
    models = models_for(plain, "gpt2")
    batch = off_policy(rollouts([[4, 5, 3]], [[1.0, 0.0, 0.0]]), models)
    far = dataclasses.replace(batch, sampler_logp=batch.sampler_logp + 5.0)  # everything is stale
    signal = plain.compute_signal(far, models)
    hopeless = dataclasses.replace(signal, advantage=-torch.ones_like(signal.advantage))
    gradient, metrics = backward(Modifiers(off_policy_mask=1.0).around(plain), models, far, hopeless)
    without_policy = dataclasses.replace(hopeless, advantage=torch.zeros_like(signal.advantage))
    expected, _ = backward(plain, models, far, without_policy)
    assert distance(gradient, expected) == 0 and norm(expected) > 1e-3
    assert metrics["modify/off_policy_masked"] == 1
    assert metrics["policy/clip_low"] == backward(plain, models, far, hopeless)[1]["policy/clip_low"] > 0


def test_entropy_bonus_follows_closed_form_entropy_gradient() -> None:
    """dH/dz = −p (log p + H) for each token's logits z; a response's term holds the mean over its tokens."""
    batch = rollouts([[2, 1]], [[1.0, 1.0]])
    logits = torch.tensor([[[0.3, -1.0, 0.8], [2.0, 0.0, 0.1]], [[0.5, 0.5, -0.7], [9.0, 0.0, 0.0]]])
    leaf = logits.clone().requires_grad_()
    log_p = leaf.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    now = ModelOutput(log_p[..., 0] * batch.completion_mask, entropy, entropy[:, :0])
    p = logits.softmax(-1)
    slope = -p * (p.log() + entropy.detach()[..., None]) * batch.completion_mask[..., None]
    for plain, share in ((GRPO(averaging="token_mean"), [1 / 3, 1 / 3]), (GSPO(), [1 / 4, 1 / 2])):
        algorithm = Modifiers(entropy_bonus=0.7).around(plain)
        signal = algorithm.compute_signal(batch, Fixed())  # equal rewards: nothing but the bonus
        terms = algorithm.loss(batch, signal, {"policy": now}).terms
        loss = (terms * algorithm.loss_weights(batch)).sum()
        (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        expected = -0.7 * slope * torch.tensor(share)[:, None, None]
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)  # float32


def test_a_pair_with_a_truncated_half_is_left_out_whole() -> None:
    unit = torch.tensor([4, 4, -1, 7, 7])
    truncated = torch.tensor([False, True, True, False, False])
    assert exclude_rows(unit, truncated).tolist() == [-1, -1, -1, 7, 7]


def test_groups_of_equal_graded_rewards_are_replaced() -> None:
    """A completion that could not be graded is no reward of 0 beside three of 1."""
    curriculum = Refilled(Shuffled(12, 2, 0), 3)
    assert curriculum.attempts == 4
    ungraded = group([1.0, 1.0, 1.0, 0.0], ["graded", "graded", "graded", "infra_error"])
    mixed = group([1.0, 1.0, 1.0, 0.0], ["graded"] * 4)
    assert curriculum.accept(1, [0, 1], [ungraded.graded_rewards(), mixed.graded_rewards()]) == [False, True]
    assert curriculum.accept(1, [0], [[]]) == [False]


def test_reference_moves_by_share_on_schedule_and_survives_checkpoint() -> None:
    algorithm = Modifiers(reference_every=3, reference_mix=0.25).around(GRPO(beta=0.1))
    assert [algorithm.synchronize(step) for step in range(1, 7)] == [0, 0, 0.25, 0, 0, 0.25]
    models = models_for(algorithm, "llama")
    before = {name: p.clone() for name, p in models.named_parameters("reference").items()}
    policy = {name: p.clone() for name, p in models.networks["policy"].trunk.named_parameters()}
    assert "reference" not in models.state()
    models.follow(0.25)
    after = dict(models.networks["reference"].trunk.named_parameters())
    for name, p in after.items():
        expected = 0.75 * before[f"trunk.{name}"] + 0.25 * policy[name]
        torch.testing.assert_close(p, expected, rtol=1e-5, atol=1e-7)  # float32
    saved = {role: {k: v.clone() for k, v in part.items()} for role, part in models.state().items()}
    other = models_for(algorithm, "llama")
    other.restore(saved)
    assert other.moved
    for name, p in other.named_parameters("reference").items():
        assert torch.equal(p, saved["reference"][name])


def test_the_greedy_answer_is_no_row_but_the_baseline_of_its_group() -> None:
    graded = set_apart(group([1.0, 0.0, 0.5], ["graded"] * 3))
    assert graded.greedy == 0.5 and list(graded.reward) == [1.0, 0.0] and len(graded.rollouts) == 2
    failed = set_apart(group([1.0, 0.0, 0.5], ["graded", "graded", "infra_error"]))
    assert failed.greedy is not None and math.isnan(failed.greedy)
    batch = pack_groups([graded, failed], 4, 1, 0)
    assert batch.greedy_reward is not None and batch.greedy_reward[:2].tolist() == [0.5, 0.5]
    signal = ReMax().compute_signal(batch, RoleModels.__new__(RoleModels))
    assert signal.row_group.tolist() == [0, 1, -1, -1]
    assert signal.advantage[:2, 0].tolist() == [0.5, -0.5]
