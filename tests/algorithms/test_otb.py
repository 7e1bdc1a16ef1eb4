"""OTB: squared gradient norms from probabilities alone, and the baseline of least variance that they give."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.batches import data
from helpers.toys import Fixed, close, models_for, rollouts

from grpobench.algorithms.algorithm import Batch, ModelOutput
from grpobench.algorithms.dr_grpo import DrGRPO
from grpobench.algorithms.otb import OTB

pytestmark = pytest.mark.usefixtures("double")


def says(batch: Batch, shares: list[list[float]]) -> Fixed:
    """A policy whose tokens each have the probability ½ and these squared gradient norms: 1 − 2·½ + Σπ²."""
    squares = torch.tensor(shares)
    logp = torch.full_like(squares, 0.5).log()
    return Fixed(policy=ModelOutput(logp, torch.zeros_like(logp), logp[:, :0], squares=squares))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sums_of_squares_are_those_of_the_models_own_distributions(temperature: float) -> None:
    models = models_for(OTB(), "gpt2", temperature=temperature, chunk=100, budget=40)
    batch = data()
    output = models.forward("policy", batch, squares=True)
    plain = models.forward("policy", batch)
    assert plain.squares is None and torch.equal(output.logp, plain.logp)
    assert output.squares is not None
    for row in range(len(batch)):
        prompt, length = int(batch.prompt_length[row]), int(batch.length[row])
        tokens = torch.cat([batch.prompt[row, :prompt], batch.completion[row, :length]])
        with torch.no_grad():
            logits = models.language(input_ids=tokens[None]).logits[0, prompt - 1 : -1].double()
        expected = (logits / temperature).softmax(-1).square().sum(-1)
        written = batch.completion_mask[row, :length]
        # The harness reads distributions with `.float()`.
        close(output.squares[row, :length][written], expected[written], rtol=1e-5, atol=1e-7)


def test_no_other_single_token_baseline_gives_lower_gradient_variance() -> None:
    """A policy of probabilities ½, ¼, ⅛ and ⅛ and a group in which every answer stands as often as it says,
    so that means over the group are expectations. The variance of (r − b)∇log π is E[(r − b)²‖∇log π‖²] but
    for a constant; its derivative by b is 0 at OTB's baseline, and it is larger at the mean reward."""
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().requires_grad_()
    answers = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])
    reward = torch.tensor([0.2, 1.0, 0.0, 0.7])[answers]
    logp = logits.log_softmax(-1)
    norms = []
    for answer in answers.tolist():
        (gradient,) = torch.autograd.grad(logp[answer], logits, retain_graph=True)
        norms.append(gradient.square().sum())
    batch = rollouts([[1] * 8], [reward.tolist()])
    answer_logp = logp.detach()[answers][:, None]
    squares = torch.full_like(answer_logp, float(logp.detach().exp().square().sum()))
    models = Fixed(policy=ModelOutput(answer_logp, squares, answer_logp[:, :0], squares=squares))
    advantage = OTB().compute_signal(batch, models).advantage[:, 0]
    baseline = (reward - advantage).unique()
    assert baseline.max() - baseline.min() < 1e-12
    b = baseline[0].clone().requires_grad_()

    def variance(b: torch.Tensor) -> torch.Tensor:
        return ((reward - b).square() * torch.stack(norms)).mean()

    (slope,) = torch.autograd.grad(variance(b), b)
    close(slope, 0.0)
    assert variance(b) < variance(reward.mean()) - 1e-4


def test_energies_add_up_and_only_samples_reaching_a_token_are_compared() -> None:
    """Rewards 1, 0, ½ and lengths 1, 2, 3, a reply inside the third. Token 1: energies 0.1, 0.3, 0.6. Token
    2: energies 0.3 + 0.1 and 0.6 + 0.2. Token 3 is reached by one alone."""
    batch = rollouts([[1, 2, 4]], [[1.0, 0.0, 0.5]], gaps={2: (1,)})
    shares = [[0.1, 9, 9, 9], [0.3, 0.1, 9, 9], [0.6, 9, 0.2, 0.7]]
    first = (0.1 * 1.0 + 0.6 * 0.5) / 1.0
    second = 0.8 * 0.5 / 1.2
    for zero_tail, last in ((True, 0.5), (False, 0.0)):
        advantage = OTB(zero_tail=zero_tail).compute_signal(batch, says(batch, shares)).advantage
        close(
            advantage,
            [[1 - first, 0, 0, 0], [-first, -second, 0, 0], [0.5 - first, 0, 0.5 - second, last]],
        )


def test_equal_energies_and_lengths_give_the_groups_mean() -> None:
    batch = rollouts([[2, 2, 2], [3, 3]], [[1.0, 0.0, 0.5], [0.0, 1.0]])
    shares = [[0.2, 0.5, 0.1]] * 3 + [[0.4, 0.3, 0.3]] * 2
    advantage = OTB().compute_signal(batch, says(batch, shares)).advantage
    close(advantage, DrGRPO().compute_signal(batch, Fixed()).advantage)


def test_always_certain_policy_is_compared_with_mean_of_token_reachers() -> None:
    batch = rollouts([[1, 2, 2]], [[1.0, 0.0, 0.5]])
    nothing = says(batch, [[0.0, 0.0]] * 3)
    close(OTB().compute_signal(batch, nothing).advantage, [[0.5, 0], [-0.5, -0.25], [0.0, 0.25]])


def over_turns(batch: Batch, squares: torch.Tensor) -> torch.Tensor:
    """verl-project/verl@1dda039, verl/trainer/ppo/core_algos.py:
    compute_multi_turn_optimal_token_baseline_advantage, with the reward on the last token, row by row: the
    tokens of all turns side by side, cumulated over the whole trajectory, are compared by their number."""
    trajectories = []
    for row in range(len(batch)):
        mask = batch.completion_mask[row]
        energy = (1 - 2 * batch.old_logp[row].exp() + squares[row])[mask].cumsum(0)
        trajectories.append((batch.group[row].item(), batch.reward[row].item(), energy))
    longest = max(len(energy) for _, _, energy in trajectories)
    advantage = torch.zeros_like(batch.old_logp)
    for row, (group, reward, energy) in enumerate(trajectories):
        others = [(r, e) for g, r, e in trajectories if g == group and len(e)]
        lengths = sorted(len(e) for _, e in others)
        baseline = []
        for t in range(longest):
            here = [(r, e[t].item()) for r, e in others if t < len(e)]
            total = sum(e for _, e in here) + 1e-8
            baseline.append(sum(r * e for r, e in here) / total)
        if len(others) > 1 and len(energy) == lengths[-1] > lengths[-2]:
            baseline[lengths[-2] :] = [0.0] * (longest - lengths[-2])
        gain = reward - torch.tensor(baseline[: len(energy)])
        advantage[row, batch.completion_mask[row]] = gain
    return advantage


def test_over_two_turns_it_is_verls_baseline_for_several_turns() -> None:
    """Turns of different lengths with replies of one to three tokens between them, and one trajectory that
    ends after its first turn. Tokens of second turns are compared by their number among written tokens, not
    by their position: the replies of row 0 put its fifth token where row 1 has its seventh."""
    batch = rollouts(
        [[8, 9, 4, 6], [7, 5]],
        [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0]],
        gaps={0: (3, 4, 5), 1: (2,), 3: (1, 2), 4: (4, 5), 5: (1,)},
    )
    generator = torch.Generator().manual_seed(3)
    logp = (0.1 + 0.8 * torch.rand(batch.completion_mask.shape, generator=generator)).log()
    # Σπ² is at least that of the token itself and of an even spread of the rest.
    squares = (2 * logp).exp() + 0.5 * (1 - logp.exp()).square()
    batch = dataclasses.replace(batch, old_logp=logp)
    models = Fixed(policy=ModelOutput(logp, torch.zeros_like(logp), logp[:, :0], squares=squares))
    advantage = OTB().compute_signal(batch, models).advantage
    # 1e-8 is theirs beside sums of energies from 0.1.
    close(advantage, over_turns(batch, squares), rtol=1e-6, atol=1e-7)
    single = dataclasses.replace(batch, completion_mask=batch.completion_mask | (batch.completion != 0))
    assert not torch.allclose(OTB().compute_signal(single, models).advantage, advantage, atol=0.01)
