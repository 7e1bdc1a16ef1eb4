"""The algorithms that differ in what they make of rewards: numbers worked by hand and degenerate cases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, close, reading, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Algorithm, Batch, Signal
from grpobench.algorithms.bnpo import BNPO, fit_beta
from grpobench.algorithms.dr_grpo import DrGRPO
from grpobench.algorithms.gdpo import GDPO
from grpobench.algorithms.gpg import GPG
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.lite_ppo import LitePPO
from grpobench.algorithms.maxrl import MaxRL
from grpobench.algorithms.mc_grpo import MCGRPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.negative_grpo import NegativeGRPO
from grpobench.algorithms.opo import OPO
from grpobench.algorithms.passk import PassK
from grpobench.algorithms.reinforce_pp import ReinforcePP
from grpobench.algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from grpobench.algorithms.remax import ReMax
from grpobench.algorithms.rft import RFT
from grpobench.algorithms.rloo import RLOO

pytestmark = pytest.mark.usefixtures("double")
EPSILON: dict[str, float] = {"rtol": 1e-3, "atol": 1e-9}
"""An ε of 1e-4 stands beside deviations of 0.1 and more."""


def credited(algorithm: Algorithm[Any], batch: Batch) -> Any:
    """The signal, with a reference of zeros."""
    return algorithm.compute_signal(batch, Fixed(reference=reading(torch.zeros(batch.completion_mask.shape))))


def advantages(
    algorithm: Algorithm[Any], rewards: Sequence[Sequence[float]], lengths: Any = None, **changes: Any
) -> torch.Tensor:
    """Advantage of each completion's first token; all have one token unless lengths are given."""
    batch = rollouts(lengths or [[1] * len(group) for group in rewards], rewards)
    advantage: torch.Tensor = credited(algorithm, dataclasses.replace(batch, **changes)).advantage[:, 0]
    return advantage


ONE_OF_EIGHT = [[1.0] + [0.0] * 7]
ROOT = math.sqrt(7)


CASES: dict[str, tuple[Algorithm[Any], float, float]] = {
    "dr_grpo": (DrGRPO(), 7 / 8, -1 / 8),
    "gpg": (GPG(), 7 / 8, -1 / 8),  # the only group has a signal: α = 1
    "rloo": (RLOO(), 1.0, -1 / 7),
    "opo": (OPO(), 7 / 8, -1 / 8),  # equal lengths: the mean
    "remax": (ReMax(), 3 / 4, -1 / 4),  # the greedy answer gets 1/4 in this batch
    "maxrl": (MaxRL(epsilon=1e-15), 7.0, -1.0),  # (7/8)/(1/8), (−1/8)/(1/8)
    "reinforce_pp": (ReinforcePP(), ROOT, -1 / ROOT),  # mean 1/8, variance 7/64: (7/8)/(√7/8)
    "reinforce_pp_baseline": (ReinforcePPBaseline(), ROOT, -1 / ROOT),
    "lite_ppo": (LitePPO(epsilon=1e-15), math.sqrt(49 / 8), -math.sqrt(1 / 8)),  # variance 1/8 with ddof 1
    "gdpo": (GDPO(epsilon=1e-15), math.sqrt(49 / 8), -math.sqrt(1 / 8)),  # a second division by 1
    "bnpo": (BNPO(), 7 / 8, -1 / 8),  # nothing to fit in one group
    "bnpo deviation": (BNPO(density="deviation"), math.pi / 8 * ROOT, -math.pi / 8 / ROOT),  # over 8/π·√7/8
    "mc_grpo": (MCGRPO(), 1000.0, 0.0),  # median 0, deviation 0, ε = 1e-3
    "mc_grpo none": (MCGRPO(scale="none"), 1.0, 0.0),
    "passk": (PassK(epsilon=1e-15), 1.0, -1 / 7),  # R̄ = 1 − 35/70 = ½, σ = ½; wrong: (½ − 20/35)/½
    "passk undivided": (PassK(divide=False), 1 / 2, -1 / 14),
    "passk best": (PassK(form="best", epsilon=1e-15), math.sqrt(8), 0.0),  # (1 − 0)/√(1/8)
}


@pytest.mark.parametrize("case", CASES)
def test_one_of_eight_correct(case: str) -> None:
    algorithm, right, wrong = CASES[case]
    close(advantages(algorithm, ONE_OF_EIGHT), [right] + [wrong] * 7, rtol=1e-7, atol=1e-9)  # ε of whitening


GROUPED = {
    "lite_ppo": LitePPO(),
    "passk 1": PassK(k=1),
    "passk 2": PassK(k=2),
    "mc_grpo group": MCGRPO(scale="group"),
    # what compares with the greedy answer or the whole batch has no zero there
    **{name: case[0] for name, case in CASES.items() if not name.startswith(("remax", "reinforce_pp"))},
}


@pytest.mark.parametrize("case", GROUPED)
def test_groups_of_equal_rewards_get_exactly_zero_beside_others(case: str) -> None:
    """0.1 + 0.1 + 0.1 is not 0.3; and all wrong, all right, one sample alone."""
    rewards = [[0.1] * 3, [1.0, 0.0, 0.0, 1.0, 0.0, 0.5], [0.0] * 4, [1.0] * 4, [1.0]]
    lengths = [[3, 1, 2], [4, 1, 2, 2, 3, 1], [1, 2, 3, 4], [4, 3, 2, 1], [2]]
    advantage = advantages(GROUPED[case], rewards, lengths)
    assert advantage.isfinite().all()
    assert advantage[3:9].any() or case == "passk best"  # two are best
    assert not advantage[:3].any() and not advantage[9:].any()


# Baselines


@given(st.lists(st.floats(0, 5), min_size=2, max_size=9))
def test_leave_one_out_is_the_centered_reward_up_to_a_factor(rewards: list[float]) -> None:
    size = len(rewards)
    rloo, centered = (advantages(algorithm, [rewards]) for algorithm in (RLOO(), DrGRPO()))
    close(rloo * (size - 1) / size, centered, rtol=1e-9, atol=1e-12)


def test_without_a_baseline_rewards_are_advantages_also_in_equal_groups() -> None:
    plain = GRPO(baseline="none", scale="none")
    rewards = [[1.0, 1.0], [0.0, 2.0], [0.0, 0.0]]
    close(advantages(plain, rewards), [1, 1, 0, 2, 0, 0])
    divided = advantages(GRPO(baseline="none", scale="batch", ddof=0, epsilon=1e-15), rewards)
    deviation = math.sqrt(6 / 6 - (4 / 6) ** 2)
    close(divided, [reward / deviation for reward in (1, 1, 0, 2, 0, 0)])


def test_opo_weighs_rewards_by_length() -> None:
    # b = (3·1 + 1·0 + 6·½)/10 = 0.6; the second group has no token at all, so its mean ½
    advantage = advantages(OPO(), [[1.0, 0.0, 0.5], [1.0, 0.0]], [[3, 1, 6], [0, 0]])
    close(advantage, [0.4, -0.6, -0.1, 0, 0])
    batch = rollouts([[3, 1, 6]], [[1.0, 0.0, 0.5]], gaps={2: (1, 2, 3, 4)})  # replies have no length
    close(credited(OPO(), batch).advantage[:, 0], [1 - 4 / 6, -4 / 6, 0.5 - 4 / 6])


def test_gpg_makes_up_for_groups_without_a_signal() -> None:
    rewards = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0]]  # 9 rows, 4 of them with a signal
    close(advantages(GPG(), rewards), [9 / 8, -9 / 8, 0, 0, 0, 0, 0, -9 / 8, 9 / 8])
    assert not advantages(GPG(), rewards[1:3]).any()


def test_remax_compares_with_greedy_answer_and_skips_samples_without_one() -> None:
    batch = rollouts([[2, 1], [3, 1]], [[1.0, 0.0], [0.5, 1.0]])
    batch = dataclasses.replace(batch, greedy_reward=torch.tensor([0.75, 0.75, math.nan, math.nan]))
    signal = credited(ReMax(), batch)
    close(signal.advantage, [[0.25, 0.25, 0], [-0.75, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert signal.row_group.tolist() == [0, 1, -1, -1]
    assert ReMax().observe(batch, signal) == {"reward/greedy": 0.75}
    nothing = dataclasses.replace(batch, greedy_reward=torch.full((4,), math.nan))
    assert math.isnan(ReMax().observe(nothing, signal)["reward/greedy"])
    with pytest.raises(ValueError, match="greedy"):
        credited(ReMax(), dataclasses.replace(batch, greedy_reward=None))


# The median


def test_median_and_its_deviation_by_hand() -> None:
    # median ½; deviations ½, ¼, 0, ¼, ½, of which the median is ¼
    rewards = [[0.0, 0.25, 0.5, 0.75, 1.0]]
    batch = rollouts([[1] * 5], rewards)
    signal = credited(MCGRPO(epsilon=0.25), batch)
    close(signal.advantage[:, 0], [-1, -0.5, 0, 0.5, 1])
    assert signal.row_group.tolist() == [0, 1, -1, 3, 4]
    # variance (¼ + 1/16 + 0 + 1/16 + ¼)/4 = 5/32 with ddof 1
    close(advantages(MCGRPO(scale="group", epsilon=1e-15), rewards)[4], 0.5 / math.sqrt(5 / 32))


def test_pivot_is_the_longest_median_in_any_order_of_rows() -> None:
    batch = rollouts([[1, 4, 2, 3, 5], [2, 2, 2]], [[0.0, 0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert credited(MCGRPO(), batch).row_group.tolist()[:5] == [0, -1, 2, 3, 4]
    for seed in range(5):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
        left = order[credited(MCGRPO(), batch[order]).row_group < 0]
        assert sorted(left.tolist()) == sorted(
            (credited(MCGRPO(), batch).row_group < 0).nonzero()[:, 0].tolist()
        )
        assert len(left) == 2  # one per group, also where all are equal


def test_even_group_has_no_pivot_where_its_middle_two_differ() -> None:
    assert (credited(MCGRPO(), rollouts([[1] * 4], [[0.0, 0.0, 1.0, 1.0]])).row_group >= 0).all()
    assert (credited(MCGRPO(), rollouts([[1] * 4], [[0.0, 0.5, 0.5, 1.0]])).row_group == -1).sum() == 1
    assert MCGRPO().minimum_group == 3


# Whitening over the batch


def test_returns_to_go_carry_the_penalty_of_later_tokens_and_are_whitened() -> None:
    batch = rollouts([[3], [1]], [[1.0], [0.0]])
    old = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, 0.0, 0.0]])
    batch = dataclasses.replace(batch, old_logp=old)
    # k1 against a reference of zeros is −1, −2, −3: returns 1.6, 1.5, 1.3; the other completion's is 0.1
    returns = torch.tensor([1.6, 1.5, 1.3, 0.1])
    expected = (returns - 1.125) / returns.std(correction=0)  # 4.5/4 = 1.125
    advantage = credited(ReinforcePP(beta=0.1), batch).advantage
    close(advantage[batch.completion_mask], expected, rtol=1e-6, atol=0.0)  # ε = 1e-8 in the variance
    # the whole completion's penalty on each token instead: 1 + 0.6 three times, and 0.1
    penalized = credited(ReinforcePP(beta=0.1, kl_placement="reward"), batch).advantage
    close(penalized[0], [1 / math.sqrt(3)] * 3, rtol=1e-6, atol=0.0)  # one of four values differs


def test_baseline_form_shifts_a_group_of_equal_rewards_with_the_batch() -> None:
    # centered: +½ on three tokens, −½ on one, 0 on two; mean 1/6, variance 1/6 − 1/36 = 5/36
    advantage = advantages(ReinforcePPBaseline(), [[1.0, 0.0], [1.0, 1.0]], [[3, 1], [1, 1]])
    spread = math.sqrt(5 / 36)
    close(advantage, [1 / 3 / spread, -2 / 3 / spread, -1 / 6 / spread, -1 / 6 / spread], rtol=1e-6, atol=0.0)


def test_returns_are_not_compared_in_groups() -> None:
    together = advantages(ReinforcePP(), [[1.0, 1.0, 0.0, 0.0]])
    close(together, advantages(ReinforcePP(), [[1.0, 1.0], [0.0, 0.0]]))
    close(together, [1, 1, -1, -1], rtol=1e-6, atol=0.0)
    assert not advantages(ReinforcePP(), [[0.1, 0.1], [0.1]]).any()  # whose mean is not 0.1


# Averages and settings of GRPO


def test_default_averages_by_hand() -> None:
    """Completions of 1 and 3 tokens, the sampler's limit is 12: the weight of a token of each."""
    batch = rollouts([[1, 3]])
    expected = {
        (DrGRPO,): (1 / 24, 1 / 24),
        (RLOO, OPO, ReMax, BNPO): (1 / 2, 1 / 2),
        (GPG, ReinforcePP, ReinforcePPBaseline, LitePPO, MaxRL, PassK, RFT): (1 / 4, 1 / 4),
        (MCGRPO, GDPO): (1 / 2, 1 / 6),
    }
    for classes, (short, long) in expected.items():
        for cls in classes:
            close(cls().loss_weights(batch), [[short, 0, 0], [long] * 3])


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 2e-7), (torch.float64, 4e-16)])
def test_weights_have_the_precision_of_the_batch(
    dtype: torch.dtype, rounding: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1/3 of float32 is 1e-8 away from 1/3; two roundings of half a unit in the last place are allowed."""
    monkeypatch.undo()  # of `.float()`, which is `.double()` in this file
    batch = rollouts([[3, 1], [2]])
    batch = dataclasses.replace(batch, reward=batch.reward.to(dtype))
    for kind, expected in (
        ("sequence_mean", 1 / 9),
        ("sequence_sum", 1 / 3),
        ("token_mean", 1 / 6),
        ("turn_mean", 1 / 9),
        ("prompt_mean", 1 / 8),
        ("constant", 1 / 36),
    ):
        weights = parts.average(batch, kind)
        assert weights.dtype == dtype
        assert weights[0, 0].item() == pytest.approx(expected, rel=rounding)


@pytest.mark.parametrize("virtual", [1, 3])
def test_negative_grpo_is_grpo_in_a_group_with_perfect_completions(virtual: int) -> None:
    rewards = [[1.0, 0.0, 0.0, 0.25], [0.0, 0.0, 0.0], [1.0, 1.0], [0.5]]
    algorithm = NegativeGRPO(virtual=virtual)
    advantage = credited(algorithm, rollouts([[2] * len(row) for row in rewards], rewards)).advantage[:, 0]
    filled = [row + [1.0] * virtual for row in rewards]
    filled_advantage = credited(
        GRPO(epsilon=1e-6), rollouts([[2] * len(row) for row in filled], filled)
    ).advantage[:, 0]
    expected, start = [], 0
    for row in rewards:
        expected += filled_advantage[start : start + len(row)].tolist()
        start += len(row) + virtual
    close(advantage, expected)
    assert (advantage[4:7] < -0.1).all() and not advantage[7:9].any()


def test_a_reward_above_the_greatest_stops_the_run_by_name() -> None:
    with pytest.raises(ValueError, match="max_reward"):
        credited(NegativeGRPO(), rollouts([[2, 2]], [[1.5, 0.0]]))


# The Beta density


def test_shapes_follow_the_moments_of_the_success_rates() -> None:
    # mean ½, variance 1/8 (ddof 1): a + b = ¼/⅛ − 1 = 1, so a = b = ½
    assert fit_beta(torch.tensor([0.25, 0.75])) == pytest.approx((7 / 6, 7 / 6))
    # mean 0.2, variance 0.02: 0.16/0.02 − 1 = 7, a = 1.4, b = 5.6
    assert fit_beta(torch.tensor([0.1, 0.3])) == pytest.approx((1 + 1.4 / 3, 1 + 5.6 / 3))
    assert fit_beta(torch.tensor([0.0, 1.0])) == (1, 1)  # variance ½ above ¼: a and b would be negative
    assert fit_beta(torch.tensor([0.5, 0.5, 0.5])) == fit_beta(torch.tensor([0.3])) == (1, 1)


def test_bnpo_divides_by_the_fitted_density() -> None:
    rewards = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]]  # rates ¼ and ¾, as above
    shape = 7 / 6
    density = math.gamma(2 * shape) / math.gamma(shape) ** 2 * (3 / 16) ** (shape - 1)
    expected = [0.75, -0.25, -0.25, -0.25, -0.75, 0.25, 0.25, 0.25]
    close(advantages(BNPO(), rewards), [value / density for value in expected])
    batch = rollouts([[1] * 4] * 2, rewards)
    assert BNPO().observe(batch, credited(BNPO(), batch)) == pytest.approx(
        {"bnpo/alpha": shape, "bnpo/beta": shape}
    )


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_density_of_the_deviation_is_in_proportion_to_grpo(solved: list[int]) -> None:
    rewards = [[1.0] * count + [0.0] * (8 - count) for count in solved]
    grpo = advantages(GRPO(ddof=0, epsilon=1e-15), rewards)
    close(advantages(BNPO(density="deviation"), rewards), grpo * math.pi / 8, rtol=1e-9, atol=0.0)


def test_density_of_zero_where_nothing_or_all_is_solved_makes_no_nan() -> None:
    rewards = [[0.0] * 4, [1.0] * 4, [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]]
    rates = torch.tensor([0, 1, 0.25, 0.5, 0.5])
    assert min(fit_beta(rates)) > 1  # so that the density at 0 and at 1 is 0
    advantage = advantages(BNPO(), rewards)
    assert advantage.isfinite().all() and advantage[8:].all() and not advantage[:8].any()


def test_bnpo_maps_rewards_and_refuses_those_outside() -> None:
    signs = [[1.0, -1.0, -1.0, -1.0], [-1.0, 1.0, 1.0, 1.0]]
    plain = [[(value + 1) / 2 for value in group] for group in signs]
    close(advantages(BNPO(lowest=-1.0), signs), advantages(BNPO(), plain))
    with pytest.raises(ValueError, match=r"a reward of -1 is not from 0 to 1.*lowest and highest"):
        advantages(BNPO(), signs)


def test_maxrl_divides_by_the_mean_and_refuses_negative_rewards() -> None:
    # means ½, ¼ and 2
    advantage = advantages(MaxRL(epsilon=1e-15), [[1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [3.0, 1.0]])
    close(advantage, [1, -1, -1, 3, -1, -1, 0.5, -0.5])
    with pytest.raises(ValueError, match=r"a reward of -0\.5 is not from 0 to inf"):
        advantages(MaxRL(), [[1.0, -0.5]])


# Several rewards


def two_scores(extra: Sequence[float] = (0, 0, 0, 0)) -> Batch:
    """Two groups of two: the first differs in both scores, the second in one; `extra` is what else is
    rewarded. The first completion is as long as the limit."""
    batch = rollouts([[3, 1], [1, 1]], [[0.0, 0.0], [0.0, 0.0]], limit=3)
    scores = {"correct": torch.tensor([1.0, 0, 1, 0]), "short": torch.tensor([1.0, 0, 0, 0])}
    reward = 2 * scores["correct"] + scores["short"] + torch.tensor(extra)
    return dataclasses.replace(batch, reward=reward, scores=scores, weights={"correct": 2.0, "short": 1.0})


def test_scores_are_normalized_before_they_are_added() -> None:
    # per score ±1/√2; sums ±3/√2 and ±2/√2, squares 9 + 4 = 13, over 3 rows
    root, spread = math.sqrt(0.5), math.sqrt(13 / 3)
    advantage = credited(GDPO(), two_scores()).advantage[:, 0]
    close(
        advantage, [3 * root / spread, -3 * root / spread, 2 * root / spread, -2 * root / spread], **EPSILON
    )
    grpo = credited(GRPO(), two_scores()).advantage[:, 0]
    close(grpo[:2].abs(), grpo[2:].abs(), **EPSILON)  # GRPO does not tell the groups apart


def test_what_else_is_rewarded_is_centered_and_added_as_it_is() -> None:
    # the rest is −0.4 on row 2: centered −0.2 and +0.2 beside ±√2, before the batch divides
    raw = [1.5 * math.sqrt(2), -1.5 * math.sqrt(2), math.sqrt(2) - 0.2, -math.sqrt(2) + 0.2]
    spread = math.sqrt(sum(value**2 for value in raw) / 3)
    advantage = credited(GDPO(), two_scores((0, 0, -0.4, 0))).advantage[:, 0]
    close(advantage, [value / spread for value in raw], **EPSILON)


def test_overlong_penalty_reaches_gdpo() -> None:
    shaped = Modifiers(overlong_buffer=1, overlong_penalty=0.4).around(GDPO())
    expected = credited(GDPO(), two_scores((-0.4, 0, 0, 0))).advantage
    close(credited(shaped, two_scores()).advantage, expected)


# Pass@k


def test_groups_too_small_for_k_are_left_out() -> None:
    batch = rollouts([[1] * 4, [1] * 5, [1]], [[1.0, 0, 0, 0], [0.0, 0, 0, 0, 1], [1.0]])
    assert PassK().minimum_group == 5 and PassK(form="best").minimum_group == 2
    assert credited(PassK(), batch).row_group.tolist() == [-1] * 4 + [4, 5, 6, 7, 8] + [-1]
    assert (credited(PassK(form="best"), batch).row_group < 0).tolist() == [False] * 9 + [True]


def test_only_the_single_best_sample_has_an_advantage() -> None:
    advantage = advantages(PassK(form="best", divide=False), [[0.2, 0.9, 0.5], [1.0, 1.0, 0.0]])
    close(advantage, [0, 0.4, 0, 0, 0, 0])


# Imitation


def test_rft_imitates_the_completions_that_reach_the_threshold() -> None:
    batch = rollouts([[2, 1, 3], [1, 2]], [[1.0, 0.0, 0.5], [1.0, 1.0]])
    signal = RFT().compute_signal(batch, Fixed())
    assert signal.row_group.tolist() == [0, -1, -1, 3, 4]
    assert RFT(threshold=0.5).compute_signal(batch, Fixed()).row_group.tolist() == [0, -1, 2, 3, 4]
    assert RFT().observe(batch, signal) == {"rft/kept": 0.6}
    imitated: torch.Tensor = signal.row_group >= 0
    part, logp = batch[imitated], torch.full(batch.completion_mask.shape, -2.0)[imitated]
    logp[0, 0] = -7.0  # 5 tokens, one of them at −7: mean (7 + 4·2)/5
    loss = RFT().loss(part, Signal(signal.row_group[imitated]), {"policy": reading(logp)})
    close((loss.terms * RFT().loss_weights(part)).sum(), 3.0)
    close(loss.metrics["rft/nll"], -logp)
    assert parts.average(part, "token_mean").sum() == pytest.approx(1.0)
