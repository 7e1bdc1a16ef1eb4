"""The algorithms that differ in what they make of ratios, against closed forms and numbers worked by hand.

Gradients are taken with respect to the log-probabilities themselves, so that a token's gradient is the factor
that its ∇log π gets.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.slopes import close_loss, metrics, moved, objective, slope
from helpers.toys import Fixed, close, reading, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, ModelOutput
from grpobench.algorithms.cispo import CISPO
from grpobench.algorithms.clip_cov import ClipCov
from grpobench.algorithms.dppo import DPPO
from grpobench.algorithms.entropy_mask import EntropyMask
from grpobench.algorithms.gmpo import GMPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.ipo import IPO
from grpobench.algorithms.kimi import Kimi
from grpobench.algorithms.kl_cov import KLCov
from grpobench.algorithms.luspo import LUSPO
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.sapo import SAPO
from grpobench.algorithms.vapo import VAPO
from grpobench.algorithms.vespo import VESPO

pytestmark = pytest.mark.usefixtures("double")
HALF: dict[str, Any] = {"scale": "none"}
"""Rewards 1 and 0 of a group of two then have advantages ½ and −½."""


def pair(ratios: Sequence[Sequence[float]], old: float = -1.0, **settings: Any) -> tuple[Batch, torch.Tensor]:
    """One group of completions, the first with reward 1 and the others with 0, and log π of these ratios."""
    lengths = [len(row) for row in ratios]
    batch = rollouts([lengths], [[1.0] + [0.0] * (len(lengths) - 1)], **settings)
    logp = torch.full(batch.completion_mask.shape, old)
    for row, values in enumerate(ratios):
        for column, ratio in enumerate(values):
            logp[row, column] += math.log(ratio)
    return dataclasses.replace(batch, old_logp=torch.full(batch.completion_mask.shape, old)), logp


# By hand


def test_cispo_keeps_the_gradient_of_a_token_beyond_the_cap() -> None:
    batch, logp = pair([[0.5, 7.0], [7.0]])
    algorithm = CISPO(ratio_cap=4.0, **HALF)
    # weights .5, 4 | 4 times advantages ½ | −½, over three tokens
    close(slope(algorithm, batch, logp), [[-0.25 / 3, -2 / 3], [2 / 3, 0]])
    assert metrics(algorithm, batch, logp)["policy/weight_truncated"].tolist() == [[0, 1], [1, 0]]
    # a floor of .8 lifts the weight of the token that fell, and leaves it its gradient
    floored = CISPO(ratio_cap=4.0, ratio_floor=0.8, **HALF)
    close(slope(floored, batch, logp), [[-0.4 / 3, -2 / 3], [2 / 3, 0]])
    # a clip lets go of the first completion's second token
    assert slope(GRPO(**HALF), batch, logp)[0, 1] == 0


def test_sapo_gates_by_the_sign_of_the_advantage() -> None:
    batch, logp = pair([[2.0], [2.0]])
    algorithm = SAPO(temperature_positive=1.0, temperature_negative=3.0, **HALF)
    # x = τ(ρ − 1) is 1 and 3: gates 4σ(1) and 4/3·σ(3)
    sigmoid_1, sigmoid_3 = (1 / (1 + math.exp(-x)) for x in (1, 3))
    close(objective(algorithm, batch, logp), -(0.5 * 4 * sigmoid_1 - 0.5 * 4 / 3 * sigmoid_3) / 2)
    # slope of the gate 4σ(1 − σ), times dρ/d log π = 2
    gates = [4 * s * (1 - s) for s in (sigmoid_1, sigmoid_3)]
    close(slope(algorithm, batch, logp), [[-0.5 * gates[0] * 2 / 2], [0.5 * gates[1] * 2 / 2]])
    close(metrics(algorithm, batch, logp)["policy/gate"], [[gates[0]], [gates[1]]])


def test_vespo_weighs_by_the_ratio_of_the_whole_sequence() -> None:
    batch, logp = pair([[2.0, 0.25], [2.0, 1.5]])
    # w = ½ with (k, λ) = (2, 3) and w = 3 with (3, 2): φ = w^k e^{λ(1 − w)}
    phi = [0.5**2 * math.exp(3 * 0.5), 3**3 * math.exp(2 * -2)]
    close(slope(VESPO(**HALF), batch, logp), [[-0.5 * phi[0] / 4] * 2, [0.5 * phi[1] / 4] * 2])
    close(metrics(VESPO(**HALF), batch, logp)["policy/sequence_weight"], phi)


def test_vespo_takes_shape_from_response_reward_not_from_token_kl() -> None:
    batch, logp = pair([[2.0, 0.25], [2.0, 1.5]])
    reference = torch.full(batch.completion_mask.shape, -1.0)
    reference[0, 0] = -9.0  # k1 of the first token of the first response: −1 − −9 = 8
    algorithm = VESPO(beta=0.1, kl_placement="advantage", **HALF)
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(reference)))
    # ½ − 0.1·8 is negative, but the response earned ½: φ(½) with (k, λ) = (2, 3) for both of its tokens
    close(signal.advantage, [[-0.3, 0.5], [-0.5, -0.5]])
    sequence_weight = algorithm.loss(batch, signal, {"policy": reading(logp)}).metrics[
        "policy/sequence_weight"
    ]
    close(sequence_weight, [0.5**2 * math.exp(3 * 0.5), 3**3 * math.exp(2 * -2)])
    assert signal[torch.tensor([1])].negative.tolist() == [True]  # cut with its rows


def test_vespo_is_finite_where_the_ratio_is_not() -> None:
    batch, _ = pair([[1.0] * 6, [1.0] * 6])
    far = torch.full(batch.completion_mask.shape, 200.0)
    for sign in (1, -1):
        gradient = slope(VESPO(), batch, batch.old_logp + sign * far)
        assert gradient.isfinite().all()
        close(gradient, torch.zeros_like(gradient))  # φ(e^20) = 0, and φ(1e-8) = 1e-16·e³ or less


def test_dppo_drops_likely_token_that_fell_and_keeps_rare_one_that_rose() -> None:
    # probabilities .01 → .1 (ratio 10) with A > 0, and .9 → .7 (ratio .78) with A < 0
    batch, _ = pair([[1.0], [1.0]])
    old, new = (torch.tensor(p).log()[:, None] for p in ([0.01, 0.9], [0.1, 0.7]))
    batch = dataclasses.replace(batch, old_logp=old)
    close(slope(DPPO(**HALF), batch, new), [[-0.5 * 10 / 2], [0.0]])
    assert metrics(DPPO(**HALF), batch, new)["policy/divergence_masked"].tolist() == [[0], [1]]
    # the ratios are 10 and .78, so that a clip range of .2 lets go of both
    close(slope(GRPO(**HALF), batch, new), [[0.0], [0.0]])
    # against the advantage nothing is left out: .9 → .7 with A > 0
    turned = dataclasses.replace(batch, old_logp=old.flip(0))
    assert (slope(DPPO(**HALF), turned, new.flip(0)) != 0).tolist() == [[True], [True]]


def test_dppo_binary_kl_by_hand() -> None:
    batch, _ = pair([[1.0], [1.0]])
    old, new = (torch.tensor(p).log()[:, None] for p in ([0.5, 0.5], [0.6, 0.25]))
    batch = dataclasses.replace(batch, old_logp=old)
    # ½ ln(½/.6) + ½ ln(½/.4) = .0204 and ½ ln(½/¼) + ½ ln(½/¾) = .1438
    first = 0.5 * math.log(0.5 / 0.6) + 0.5 * math.log(0.5 / 0.4)
    second = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert [first, second] == pytest.approx([0.0204, 0.1438], abs=1e-4)
    for threshold, masked in ((0.02, [1, 1]), (0.021, [0, 1]), (0.143, [0, 1]), (0.144, [0, 0])):
        algorithm = DPPO(divergence="kl", threshold=threshold, **HALF)
        assert metrics(algorithm, batch, new)["policy/divergence_masked"].tolist() == [
            [float(m)] for m in masked
        ]


def test_dppo_truncates_weights_and_stays_finite_at_certainty() -> None:
    batch, logp = pair([[30.0], [1.0]], old=-5.0)
    # e^-5·30 = .2 > .007 + .15: masked; with a wide threshold its weight is the cap, which is 10⁴ by default
    assert slope(DPPO(**HALF), batch, logp)[0, 0] == 0
    close(slope(DPPO(threshold=0.9, ratio_cap=20.0, **HALF), batch, logp)[0, 0], -0.5 * 20 / 2)
    close(slope(DPPO(threshold=0.9), batch, logp)[0, 0], -0.5 * 30 / 2)
    batch, logp = pair([[2e4], [1.0]], old=-11.0)
    close(slope(DPPO(threshold=0.9), batch, logp)[0, 0], -0.5 * 1e4 / 2)
    sure = torch.zeros(2, 1)  # probability 1
    for kind in ("tv", "kl"):
        assert slope(DPPO(divergence=kind, **HALF), batch, sure).isfinite().all()


def test_dppo_sums_tokens_of_centered_rewards_as_the_authors_do() -> None:
    batch, logp = pair([[1.0, 1.0, 1.0], [1.0]])
    # advantages ½ and −½, which no deviation divides; every token weighs 1 of 2 completions, short or long
    close(slope(DPPO(), batch, logp), [[-0.25] * 3, [0.25, 0, 0]])


def test_dppo_adds_1e_minus_8_to_probability_of_other_tokens() -> None:
    batch, _ = pair([[1.0], [1.0]])
    ten = 1e-8
    old, new = (torch.log1p(torch.tensor([[-complement], [-complement]])) for complement in (ten, 3 * ten))
    batch = dataclasses.replace(batch, old_logp=old)
    # The others have 1e-8, then 3e-8: D = 2e-8 + 1e-8·ln((1 + 1)/(3 + 1)), 1.31e-8; a lower bound of 1e-8
    # instead makes it 2e-8 + 1e-8·ln(1/3), 0.90e-8. (D itself is a difference of numbers near 1e-8, rounded
    # at 1e-16 in float64.) The second completion has A < 0, the direction of the move.
    assert (2 + math.log(1 / 2), 2 + math.log(1 / 3)) == pytest.approx((1.307, 0.901), abs=1e-3)
    for threshold, masked in ((1.30e-8, 1.0), (1.31e-8, 0.0)):
        algorithm = DPPO(divergence="kl", threshold=threshold)
        assert metrics(algorithm, batch, new)["policy/divergence_masked"].tolist() == [[0.0], [masked]]


# Statistics of the batch


def covariances(batch: Batch, advantage: torch.Tensor) -> torch.Tensor:
    """torch's own covariance of advantage and log-probability."""
    inside = batch.completion_mask
    both = torch.stack([advantage[inside], batch.old_logp[inside]])
    return torch.cov(both, correction=0)[0, 1]


def test_parts_of_the_covariance_add_up_to_it() -> None:
    batch, _ = moved()
    advantage = GRPO().compute_signal(batch, Fixed()).advantage
    covariance = parts.covariance(advantage, batch.old_logp, batch.completion_mask)
    assert not covariance[~batch.completion_mask].any()
    close(covariance.sum() / batch.completion_mask.sum(), covariances(batch, advantage))
    # advantages 1, 1 | −2 and log π −1, −2 | −6, mean −3; the padding's 9 counts nowhere
    written = torch.tensor([[True, True], [True, False]])
    by_hand = parts.covariance(
        torch.tensor([[1.0, 1.0], [-2.0, 9.0]]), torch.tensor([[-1.0, -2.0], [-6.0, 9.0]]), written
    )
    close(by_hand, [[2.0, 1.0], [6.0, 0.0]])
    equal = torch.full_like(advantage, 0.1)  # whose mean is not 0.1 to the last bit
    assert not parts.covariance(equal, batch.old_logp, batch.completion_mask).any()


def uncertain(entropy: torch.Tensor) -> ModelOutput:
    """A reading with these entropies."""
    return ModelOutput(torch.zeros_like(entropy), entropy, entropy[:, :0])


def surprised() -> tuple[Batch, torch.Tensor]:
    """Advantages ½, ½ | −½, −½ and log π_old of −1, −3 | −2, −6, mean −3: covariances 1, 0 | −½, 1½."""
    batch, _ = pair([[1.0, 1.0], [1.0, 1.0]])
    old = torch.tensor([[-1.0, -3.0], [-2.0, -6.0]])
    return dataclasses.replace(batch, old_logp=old), old + torch.tensor([[0.1, -0.1], [0.1, -0.1]])


def test_clip_cov_lets_go_of_tokens_in_the_band_only() -> None:
    batch, logp = surprised()
    everything = slope(ClipCov(lowest=9, highest=10, **HALF), batch, logp)
    assert (everything != 0).all()
    for band, trained in (
        ((0.9, 1.2), [[False, True], [True, True]]),
        ((1.2, 2.0), [[True, True], [True, False]]),
        ((0.9, 2.0), [[False, True], [True, False]]),
        ((1.0, 1.5), [[True, True], [True, True]]),  # open at both ends
    ):
        algorithm = ClipCov(fraction=1.0, lowest=band[0], highest=band[1], **HALF)
        close(slope(algorithm, batch, logp), everything * torch.tensor(trained))
        signal = algorithm.compute_signal(batch, Fixed())
        share = 1 - sum(itertools.chain(*trained)) / 4
        assert algorithm.observe(batch, signal) == {"policy/covariance_selected": share}


def test_clip_cov_draws_share_evenly_over_steps_and_at_least_one_token() -> None:
    batch, _ = surprised()
    algorithm = ClipCov(lowest=-9, highest=9, **HALF)  # 2e-4 of four tokens: one
    count = torch.zeros(2, 2)
    for step in range(100):
        cut = algorithm.compute_signal(dataclasses.replace(batch, step=step), Fixed()).selected
        assert cut.sum() == 1
        count += cut
    # 100 draws of four: 25 each, with a standard deviation of √(100·¼·¾) = 4.33
    assert (count - 25).abs().max() < 4 * 4.33
    half = dataclasses.replace(algorithm, fraction=0.5)
    assert half.compute_signal(batch, Fixed()).selected.sum() == 2


def test_kl_cov_penalizes_the_tokens_of_largest_covariance() -> None:
    batch, logp = surprised()
    # Δ log π = .1, −.1 | .1, −.1; gradient of the ratio term −ρA/4, of the penalty ±1/4
    plain = [[-math.exp(0.1) / 8, -math.exp(-0.1) / 8], [math.exp(0.1) / 8, math.exp(-0.1) / 8]]
    for fraction, penalty in (
        (2e-4, [[0, 0], [0, -1]]),  # at least one token: the one with 1½
        (0.5, [[1, 0], [0, -1]]),
        (1.0, [[1, 0], [0, -1]]),  # the covariances 0 and −½ are not positive
    ):
        algorithm = KLCov(fraction=fraction, coefficient=2.0, **HALF)
        close(slope(algorithm, batch, logp), torch.tensor(plain) + 2.0 * torch.tensor(penalty) / 4)
        share = algorithm.observe(batch, algorithm.compute_signal(batch, Fixed()))
        assert share == {"policy/covariance_selected": sum(map(abs, itertools.chain(*penalty))) / 4}


def test_entropy_mask_trains_the_top_fraction_and_divides_by_all_tokens() -> None:
    batch, logp = pair([[1.0] * 5, [1.0] * 6])
    entropy = torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0, 99.0], [0.5, 2.5, 6.0, 0.1, 0.2, 0.3]])
    # of eleven tokens the quantile of .8 has place .8·10 = 8, from 0: it is 4, and 4, 5 and 6 are kept
    top_entropy = torch.tensor([[1, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]])
    advantage = torch.tensor([[0.5], [-0.5]])
    close(slope(EntropyMask(**HALF), batch, logp, policy=uncertain(entropy)), -advantage * top_entropy / 11)
    equal = torch.ones_like(entropy)
    close(
        slope(EntropyMask(**HALF), batch, logp, policy=uncertain(equal)),
        -advantage * batch.completion_mask / 11,
    )


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.9, 1.0]),
)
def test_entropy_mask_keeps_what_reaches_the_linear_quantile(entropies: list[int], top: float) -> None:
    batch = rollouts([[len(entropies)]], limit=40)
    entropy = torch.tensor([[float(h) for h in entropies]])
    forks = EntropyMask(top_fraction=top)._forks(entropy, batch)
    threshold = torch.quantile(entropy, 1 - top).item()
    assert torch.equal(forks, entropy >= threshold - 1e-9)  # the quantile is rounded


# Kimi


def test_kimi_minimizes_the_squared_difference_of_reward_and_log_ratio() -> None:
    batch, logp = moved()
    tau = 0.7

    def squares(log_probability: torch.Tensor) -> torch.Tensor:
        total = ((log_probability - batch.old_logp) * batch.completion_mask).sum(-1)
        centered = batch.reward - parts.group_mean(batch.reward, batch.group)
        return (centered - tau * total).square().mean() / (2 * tau)

    constant = squares(batch.old_logp)  # log-ratios of 0
    close_loss(Kimi(temperature=tau), batch, logp, lambda leaf: squares(leaf) - constant)


def test_kimi_length_reward_by_hand() -> None:
    batch = rollouts([[2, 4, 6, 3], [5, 5]], [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0]])
    algorithm = Kimi(length_reward=0.2)
    # λ = ½ − (len − 2)/4: ½, 0, −½, ¼; wrong answers min(0, λ): −½, 0; equal lengths: 0
    reward = batch.reward + 0.2 * torch.tensor([0.5, 0.0, -0.5, 0.0, 0.0, 0.0])
    expected = reward - torch.tensor([reward[:4].mean()] * 4 + [reward[4:].mean()] * 2)
    signal = algorithm.compute_signal(batch, Fixed())
    close(signal.advantage[:, 0], expected)
    assert algorithm.observe(batch, signal) == {"advantage/length_reward": pytest.approx(0.0)}
    assert algorithm.scores == {"correct"} and not Kimi().scores and not Kimi().observe(batch, signal)


# IPO


def test_ipo_by_hand() -> None:
    batch = rollouts([[2, 1], [2, 4]], [[1.0, 0.0], [0.0, 1.0]])
    gains = [3.0, 1.0, -1.0, 2.0]  # log π/π_ref of whole completions
    logp = torch.zeros(4, 4)
    logp[:, 0] = torch.tensor(gains)
    # h = 3 − 1 = 2 and 2 − (−1) = 3, 1/(2β) = 1: (2 − 1)² and (3 − 1)²
    close(objective(IPO(beta=0.5), batch, logp), (1 + 4) / 2)
    # per token: 3/2 − 1 = ½ and 2/4 + 1/2 = 1: (½ − 1)² and 0
    close(objective(IPO(beta=0.5, compare="token"), batch, logp), 0.25 / 2)
    close(objective(IPO(beta=0.5, nll=0.1), batch, logp), 2.5 - 0.1 * (3 / 2 + 2 / 4) / 2)


# VAPO


def critic(value: torch.Tensor) -> ModelOutput:
    """A reading with these values."""
    return reading(value[:, :0], value)


def vapo_batch() -> tuple[Batch, torch.Tensor]:
    batch = rollouts([[1, 4], [2, 0]], [[1.0, 0.0], [1.0, 0.0]], limit=5)
    value = torch.tensor([[0.5, 9, 9, 9], [0.4, 0.2, 0.3, 0.1], [0.6, 0.8, 9, 9], [9.0, 9, 9, 9]])
    return batch, value


def test_vapo_trace_grows_with_length_and_the_critics_does_not() -> None:
    batch, value = vapo_batch()
    algorithm = VAPO(length_scale=0.5, whiten=False)
    signal = algorithm.compute_signal(batch, Fixed(critic=critic(value)))
    # λ = 1 − 1/(½·l): l = 1 → −1, held at 0; 2 → 0; 4 → ½
    assert algorithm.observe(batch, signal)["advantage/trace"] == pytest.approx((0 + 0.5 + 0) / 3)
    # l = 4, rewards 0: δ = −.2, .1, −.2, −.1; A = δ + ½A': −.1, −.25, −.025, −.2125
    # l = 2, λ = 0: δ = .8 − .6, 1 − .8
    expected = [[0.5, 0, 0, 0], [-0.2125, -0.025, -0.25, -0.1], [0.2, 0.2, 0, 0], [0, 0, 0, 0]]
    close(signal.advantage, expected)
    # λ = 1 and γ = 1 for the critic: the reward of the completion, whatever the values
    close(signal.returns, batch.reward[:, None] * batch.completion_mask)


def test_vapo_imitates_correct_completions_by_their_tokens_mean() -> None:
    batch, value = vapo_batch()
    logp = batch.old_logp - 1.0 * batch.completion_mask
    plain = PPO(trace=1.0, clip_high=0.28, whiten=False)
    twin = VAPO(length_scale=1e15, critic_warmup=0, whiten=False, nll=0.1)  # λ = 1 everywhere
    gap = slope(twin, batch, logp, critic=critic(value)) - slope(plain, batch, logp, critic=critic(value))
    # rows 0 and 2 are correct and have 1 + 2 tokens: −.1/3 each
    close(gap, -0.1 / 3 * torch.tensor([1.0, 0, 1, 0])[:, None] * batch.completion_mask)
    signal = twin.compute_signal(batch, Fixed(critic=critic(value)))
    now = {"policy": reading(logp), "critic": reading(logp, value)}
    mean = twin.loss(batch, signal, now).metrics["policy/imitation"][batch.completion_mask].mean()
    close(mean, 1.0)  # −log π is 1 at every token


def test_vapo_imitates_nothing_without_successes_or_before_policy_moves() -> None:
    batch, value = vapo_batch()
    none = dataclasses.replace(batch, scores={"correct": torch.zeros(4)})
    signal = VAPO().compute_signal(none, Fixed(critic=critic(value)))
    assert not signal.imitation.any()
    assert VAPO().updated_roles(10) == ("critic",) and VAPO().updated_roles(11) == ("policy", "critic")
    assert VAPO().scores == {"correct"} and not VAPO(nll=0.0).scores


def example() -> tuple[Batch, torch.Tensor]:
    """Two groups with lengths 3, 1, 5 and 2, 4; random old log-probabilities, and new ones around them."""
    batch = rollouts([[3, 1, 5], [2, 4]], [[1.0, 0.0, 0.5], [0.0, 1.0]])
    drawn = torch.randn((2, *batch.completion_mask.shape), generator=torch.Generator().manual_seed(1))
    old = -drawn[0].abs() * batch.completion_mask
    return dataclasses.replace(batch, old_logp=old), old + 0.3 * drawn[1] * batch.completion_mask


def test_clip_cov_does_not_count_padding_nor_the_order_of_rows() -> None:
    batch, _ = example()
    algorithm = ClipCov(fraction=0.3, lowest=-9, highest=9)
    first = algorithm.compute_signal(batch, Fixed(policy=uncertain(batch.old_logp))).selected
    order = torch.tensor([3, 0, 4, 1, 2])
    again = algorithm.compute_signal(batch[order], Fixed(policy=uncertain(batch.old_logp[order]))).selected
    assert first.sum() == int(0.3 * 15) and not first[~batch.completion_mask].any()
    assert torch.equal(first[order], again)


def test_gmpo_clips_each_log_ratio_on_the_side_advantage_pushes_to() -> None:
    e = math.exp
    batch, logp = pair([[e(0.9), e(-0.9)], [e(0.9), e(-0.9)]])
    algorithm = GMPO(clip_low=0.4, clip_high=0.3, **HALF)
    # A > 0: log ratios .3 (clipped) and −.9, mean −.3; A < 0: .9 and −.4 (clipped), mean .25
    close(objective(algorithm, batch, logp), -(0.5 * e(-0.3) - 0.5 * e(0.25)) / 2)
    # a clipped token has no gradient, the other one half of its response's weight
    close(slope(algorithm, batch, logp), [[0, -0.5 * e(-0.3) / 4], [0.5 * e(0.25) / 4, 0]])
    clip_shares = {name: values.tolist() for name, values in metrics(algorithm, batch, logp).items()}
    assert clip_shares["policy/log_clip_high"] == [[1, 0], [0, 0]]
    assert clip_shares["policy/log_clip_low"] == [[0, 0], [0, 1]]


def test_luspo_is_gspo_with_every_response_weighed_by_its_length() -> None:
    batch, logp = example()
    ranges = {"clip_low": 0.05, "clip_high": 0.08}
    length = batch.completion_mask.sum(-1, keepdim=True)
    gspo = slope(GSPO(**ranges), batch, logp)
    assert (gspo.abs().sum(-1) == 0).any(), "some responses must be clipped"
    close(slope(LUSPO(**ranges), batch, logp), length * gspo)
