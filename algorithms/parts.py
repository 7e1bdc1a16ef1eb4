"""Mathematics that algorithms share: group baselines, ratios, clips, KL estimators, GAE, averaging.

Everything is a pure function of tensors. Shapes: B rows, T tokens; `written` is the loss mask (B, T).
"""

from __future__ import annotations

from typing import Literal

import torch

from grpobench.algorithms.algorithm import Batch, Metric, Rowwise, Tokenwise
from grpobench.algorithms.turns import turns_of
from grpobench.analysis.tools import metrics

Baseline = Literal["mean", "median", "leave_one_out", "none"]
Scale = Literal["group", "leave_one_out", "batch", "batch_centered", "none"]
Averaging = Literal["sequence_mean", "sequence_sum", "token_mean", "turn_mean", "prompt_mean", "constant"]
Estimator = Literal["k1", "k2", "k3", "k3_unbiased"]
Placement = Literal["loss", "reward"]

CLIP_METRICS, KL_METRICS = metrics.CLIP_METRICS, metrics.KL_METRICS
ADVANTAGE_METRIC = Metric(
    "advantage/magnitude", "advantage", "mean |A| over the written tokens that are trained on"
)
TRUNCATED_METRIC = Metric(
    "policy/weight_truncated",
    "share of tokens",
    "tokens whose ratio is above ratio_cap, which is their weight",
)
LOG_RATIO_METRIC = Metric(
    "policy/log_ratio_square", "nats²", "mean of (log π − log π_old)² over written tokens", "lower"
)
SELECTED_METRIC = Metric(
    "policy/covariance_selected",
    "share of tokens",
    "tokens picked out by their part of the covariance of advantage and log-probability",
)


# Group baselines. Rows with the same number in `group` (B,) are compared with each other.


def numbered(group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of each row's group among the P groups in ascending order, from 0, and the rows of each
    group, both long (B,); the count is 0 from P on. As `Tensor.unique`, which waits for the device to learn
    P: losses are computed in every micro-batch."""
    ascending, order = group.sort(stable=True)
    begins = torch.cat([ascending[:1] != ascending[:1], ascending[1:] != ascending[:-1]])
    number = torch.empty_like(order).scatter(0, order, begins.cumsum(0))
    return number, torch.zeros_like(number).index_add(0, number, torch.ones_like(number))


def group_mean(value: Rowwise, group: torch.Tensor) -> Rowwise:
    """Mean of each row's group, (B,)."""
    inverse, count = numbered(group)
    mean: Rowwise = value.new_zeros(len(count)).index_add(0, inverse, value) / count.clamp(min=1)
    # The gradient of index_select is summed in a fixed order, so reruns agree; that of mean[inverse] is not.
    return mean.index_select(0, inverse)


def group_size(group: torch.Tensor) -> torch.Tensor:
    """Rows in each row's group, (B,)."""
    inverse, count = numbered(group)
    size: torch.Tensor = count[inverse]
    return size


def group_extremes(value: Rowwise, group: torch.Tensor) -> tuple[Rowwise, Rowwise]:
    """(lowest, highest) value of each row's group, both (B,)."""
    inverse, count = numbered(group)
    high = value.new_full((len(count),), float("-inf")).scatter_reduce(0, inverse, value, "amax")
    low = value.new_full((len(count),), float("inf")).scatter_reduce(0, inverse, value, "amin")
    return low[inverse], high[inverse]


def group_equal(value: Rowwise, group: torch.Tensor) -> torch.Tensor:
    """Bool (B,): all values of the row's group are the same, as in every one-row group."""
    # Compare extremes, not a deviation with 0: the mean of equal floats may differ from them by rounding.
    low, high = group_extremes(value, group)
    return high == low


def group_std(value: Rowwise, group: torch.Tensor, ddof: int) -> Rowwise:
    """Standard deviation of each row's group, (B,); 0 where the group has no more than `ddof` rows."""
    # Two passes: E[x²] − E[x]² cancels in float32 when rewards are close.
    squares = (value - group_mean(value, group)).square()
    size = group_size(group)
    variance = group_mean(squares, group) * size / (size - ddof).clamp(min=1)
    return torch.where(size > ddof, variance.sqrt(), torch.zeros_like(variance))


def group_baseline(reward: Rowwise, group: torch.Tensor, kind: Baseline) -> Rowwise:
    """What a row's reward is compared with, (B,): the group's mean, its median (the mean of the middle two if
    the group is even), the mean of its other rows, or 0 (none). A one-row group is compared with itself."""
    if kind == "none":
        return torch.zeros_like(reward)
    if kind == "mean":
        return group_mean(reward, group)
    if kind == "median":
        median = torch.empty_like(reward)
        for number in group.unique():
            rows = group == number
            # quantile, because torch's median takes the lower of the middle two
            median[rows] = reward[rows].quantile(0.5)
        return median
    size = group_size(group)
    others = (group_mean(reward, group) * size - reward) / (size - 1).clamp(min=1)
    return torch.where(size > 1, others, reward)


def others_std(value: Rowwise, group: torch.Tensor, ddof: int) -> Rowwise:
    """Standard deviation of the other rows of each row's group, (B,); exactly 0 if they are all equal or no
    more than `ddof`."""
    deviation = torch.zeros_like(value)
    for number in group.unique():
        inside = group == number
        count = int(inside.sum()) - 1
        if count <= ddof:
            continue
        same = torch.eye(count + 1, dtype=torch.bool, device=value.device)
        others = value[inside].repeat(count + 1, 1)[~same].view(count + 1, count)
        spread = others.std(-1, correction=ddof)
        # Equal rewards may have a tiny deviation by rounding, which a division would blow up.
        deviation[inside] = spread.masked_fill(others.amax(-1) == others.amin(-1), 0.0)
    return deviation


def centered(reward: Rowwise, group: torch.Tensor, baseline: Rowwise) -> Rowwise:
    """``r − baseline`` per row, (B,). Rows of a group with equal rewards get exactly 0."""
    # The mean of equal rewards may be off by rounding, which a division by (0 + ε) would make a signal.
    return torch.where(group_equal(reward, group), torch.zeros_like(reward), reward - baseline)


def group_advantage(
    reward: Rowwise, group: torch.Tensor, baseline: Baseline, scale: Scale, ddof: int, epsilon: float
) -> Rowwise:
    """``(r − baseline) / (std + ε)`` per row, (B,). With a baseline, rows of a group of equal rewards get
    exactly 0. With `leave_one_out` a row whose others are all equal is not divided."""
    advantage = centered(reward, group, group_baseline(reward, group, baseline))
    advantage = reward if baseline == "none" else advantage
    if scale == "group":
        return advantage / (group_std(reward, group, ddof) + epsilon)
    if scale == "leave_one_out":
        spread = others_std(reward, group, ddof)
        return torch.where(spread > 0, advantage / (spread + epsilon), advantage)
    if scale == "batch":
        spread = reward.std(correction=ddof) if len(reward) > ddof else reward.new_zeros(())
        return advantage / (spread + epsilon)
    if scale == "batch_centered":
        spread = advantage.std(correction=ddof) if len(reward) > ddof else reward.new_zeros(())
        return advantage / (spread + epsilon)
    return advantage


# Ratios and clips.


def importance_ratio(now: Tokenwise, old: Tokenwise) -> Tokenwise:
    """π_θ/π_old per token."""
    return (now - old).exp()


def clipped_objective(
    ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float, dual: float = 0.0
) -> torch.Tensor:
    """``min(ρA, clip(ρ, 1 − low, 1 + high)·A)``, elementwise (PPO, arXiv:1707.06347, eq. 7). With `dual` it
    is at least ``dual·A`` where A < 0 (dual clip, arXiv:1912.09729, eq. 5)."""
    bounded = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if not dual:
        return bounded
    return torch.where(advantage < 0, torch.maximum(bounded, dual * advantage), bounded)


def sequence_mean(value: Tokenwise, written: torch.Tensor) -> Rowwise:
    """Mean over each row's written tokens, (B,); 0 for a row without any."""
    mean: Rowwise = (value * written).sum(-1) / written.sum(-1).clamp(min=1)
    return mean


def turn_mean(value: Tokenwise, written: torch.Tensor) -> Tokenwise:
    """Mean over each turn's tokens, at all of them, (B, T); 0 on tokens that the policy did not write."""
    begins = written & ~torch.nn.functional.pad(written, (1, 0))[:, :-1]
    # Group 0 is what the policy did not write. `Turns` would wait for the device in every micro-batch.
    number = begins.flatten().cumsum(0).view(written.shape) * written
    return group_mean((value * written).flatten(), number.flatten()).view(value.shape)


def clip_shares(
    ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float
) -> dict[str, torch.Tensor]:
    """CLIP_METRICS, unreduced."""
    return {
        "policy/clip_low": ((ratio < 1 - low) & (advantage < 0)).float(),
        "policy/clip_high": ((ratio > 1 + high) & (advantage > 0)).float(),
    }


# KL divergence from the reference.


def kl_estimate(now: Tokenwise, reference: Tokenwise, kind: Estimator, ratio: Tokenwise) -> Tokenwise:
    """Per-token estimate of KL(π ‖ π_ref) from samples, with x = π_ref/π: k1 = −log x, k2 = ½(log x)²,
    k3 = x − 1 − log x. k3_unbiased multiplies k3 by the ratio π_θ/π_old, including the ratio's gradient, so
    that its expected gradient is that of the true KL; k3's alone is not."""
    log_x = reference - now
    if kind == "k1":
        return -log_x
    if kind == "k2":
        return 0.5 * log_x.square()
    k3 = log_x.exp() - 1 - log_x
    return ratio * k3 if kind == "k3_unbiased" else k3


def kl_metrics(now: Tokenwise, reference: Tokenwise) -> dict[str, torch.Tensor]:
    """KL_METRICS, unreduced."""
    plain = now.detach()  # a metric carries no gradient
    ones = torch.ones_like(plain)
    kinds: tuple[Estimator, ...] = ("k1", "k2", "k3")
    return {f"policy/kl_reference_{kind}": kl_estimate(plain, reference, kind, ones) for kind in kinds}


def kl_penalized_reward(batch: Batch, reference: Tokenwise, beta: float) -> Rowwise:
    """Reward minus β times the summed k1 of the whole completion, under π_old, (B,)."""
    return batch.reward - beta * ((batch.old_logp - reference) * batch.completion_mask).sum(-1)


def kl_to_go(batch: Batch, reference: Tokenwise) -> Tokenwise:
    """Sum of k1 from each token to the completion's end, under π_old."""
    # Mask first: padding and tool output have log-probabilities too, and the sum would include them.
    kl = (batch.old_logp - reference) * batch.completion_mask
    return running_sum(kl.flip(-1)).flip(-1)


# Credit over time.


def running_sum(value: torch.Tensor) -> torch.Tensor:
    """Sums of floats (..., T) up to and with each place, as `cumsum` has them, which a GPU refuses under
    deterministic operators. ``s_t ← s_t + s_{t−d}`` for d = 1, 2, 4, … (Hillis and Steele, 1986): log₂ T
    sums of whole tensors, each in one order on every device. Zeros before or behind change no bit of the
    others."""
    total, step = value, 1
    while step < value.shape[-1]:
        total = torch.cat([total[..., :step], total[..., step:] + total[..., :-step]], -1)
        step *= 2
    return total


def discounted_to_go(value: Tokenwise, written: torch.Tensor, discount: float) -> Tokenwise:
    """``s_t = v_t + discount·s_u``, u the next written token: the discount counts written tokens alone, and
    what the policy did not write adds nothing. In log₂ T steps, as `running_sum`."""
    total = value * written
    factor = torch.where(written, discount, 1.0).to(value.dtype)
    step = 1
    while step < value.shape[-1]:
        further = total[..., :-step] + factor[..., :-step] * total[..., step:]
        total = torch.cat([further, total[..., -step:]], -1)
        factor = torch.cat([factor[..., :-step] * factor[..., step:], factor[..., -step:]], -1)
        step *= 2
    return total


def last_written(written: torch.Tensor) -> torch.Tensor:
    """Bool (B, T): the last token that each row's policy wrote; nowhere for an empty completion."""
    after = written.flip(-1).cumsum(-1).flip(-1)
    return written & (after == 1)


def generalized_advantage(
    reward: Tokenwise, value: Tokenwise, written: torch.Tensor, discount: float, trace: float | Rowwise
) -> Tokenwise:
    """GAE (arXiv:1506.02438): ``δ_t = r_t + γV_{t+1} − V_t``, ``A_t = δ_t + γλA_{t+1}`` over written tokens,
    with one λ (`trace`) or one per row.

    Nothing is bootstrapped past the last written token. Tokens that the policy did not write (tool output,
    padding) are skipped as if they were absent, and get 0.
    """
    advantage = torch.zeros_like(value)
    following = torch.zeros_like(value[:, 0])
    following_value = torch.zeros_like(value[:, 0])
    for t in reversed(range(value.shape[1])):
        here = written[:, t]
        delta = reward[:, t] + discount * following_value - value[:, t]
        estimate = delta + discount * trace * following
        # An unwritten token passes its successor's values on, so that γ and λ count written tokens only.
        following = torch.where(here, estimate, following)
        following_value = torch.where(here, value[:, t], following_value)
        advantage[:, t] = torch.where(here, estimate, advantage[:, t])
    return advantage


def whiten(value: Tokenwise, written: torch.Tensor, epsilon: float = 1e-8) -> Tokenwise:
    """Zero mean and unit variance over written tokens; 0 elsewhere, and everywhere if all are equal."""
    inside = value[written]
    if not len(inside) or inside.max() == inside.min():  # a division would blow up the mean's rounding
        return torch.zeros_like(value)
    count = written.sum()
    mean = (value * written).sum() / count
    centered = (value - mean) * written  # masked again: padding must not become −mean
    variance = centered.square().sum() / count
    return centered / (variance + epsilon).sqrt()


def covariance(advantage: Tokenwise, logp: Tokenwise, written: torch.Tensor) -> Tokenwise:
    """Each written token's part of the covariance of advantage and log-probability,
    ``(A_t − mean A)(log π_t − mean log π)`` over all written tokens (arXiv:2505.22617); 0 elsewhere, and
    everywhere if all advantages are equal."""
    if not written.any():
        return torch.zeros_like(advantage)
    inside = advantage[written]
    if inside.max() == inside.min():
        return torch.zeros_like(advantage)
    return (advantage - inside.mean()) * (logp - logp[written].mean()) * written


# Averaging, as explicit weights over a whole minibatch.


def average(batch: Batch, kind: Averaging) -> Tokenwise:
    """Weights (B, T): `sequence_mean` ``1/(B·|o_i|)`` (GRPO), `sequence_sum` ``1/B`` (log-probabilities of
    whole completions), `token_mean` ``1/Σ|o_i|`` (DAPO's code), `turn_mean` ``1/(N·|o_ik|)`` for N turns in
    all completions, an empty one counted as one, so that each turn counts the same (libraries that train on
    turns as rows), `prompt_mean` ``1/(P·Σ|o_i| of the group)`` for P groups, so that each problem counts the
    same (ScaleRL), `constant` ``1/(B·L_max)`` (Dr. GRPO). 0 on tokens that the policy did not write."""
    # The rewards' dtype: in bfloat16 a sum over thousands of tokens would stop counting at 256.
    written = batch.completion_mask.to(batch.reward.dtype)
    if kind == "sequence_sum":
        return written / max(1, len(batch))
    if kind == "sequence_mean":
        return written / written.sum(-1, keepdim=True).clamp(min=1) / max(1, len(batch))
    if kind == "token_mean":
        return written / written.sum().clamp(min=1)
    if kind == "turn_mean":
        turns = turns_of(batch.completion_mask)
        size = turns.spread(turns.total(written))
        return written / size.clamp(min=1) / turns.count.clamp(min=1).sum().clamp(min=1)
    if kind == "prompt_mean":
        numbers, inverse = batch.group.unique(return_inverse=True)
        tokens = written.new_zeros(len(numbers)).index_add(0, inverse, written.sum(-1))[inverse]
        return written / tokens[:, None].clamp(min=1) / max(1, len(numbers))
    return written / (max(1, len(batch)) * batch.max_completion_tokens)


def per_sequence(batch: Batch) -> Rowwise:
    """Weights (B,): 1/B, one term per completion."""
    return batch.reward.new_full((len(batch),), 1 / max(1, len(batch)))


def per_group(batch: Batch) -> Rowwise:
    """Weights (B,): 1/(P·G) for a completion of a group of G among P groups, so that all groups count the
    same."""
    return 1 / (len(batch.group.unique()) * group_size(batch.group)).to(batch.reward.dtype)


# Ranges of hyperparameters; each raises ValueError naming the field.


def demand_scale(ddof: int, epsilon: float) -> None:
    if ddof not in (0, 1):
        raise ValueError("ddof: must be 0 or 1")
    if not 0 < epsilon < float("inf"):
        raise ValueError("epsilon: must be above 0 and finite")


def demand_clip(low: float, high: float) -> None:
    demand_unit(clip_low=low)
    if not high >= 0:
        raise ValueError("clip_high: must be at least 0")


def demand_dual_clip(dual: float, high: float) -> None:
    if dual and not dual > 1 + high:
        raise ValueError(f"dual_clip: must be 0 or above 1 + clip_high = {1 + high:g}")


def demand_cap(cap: float) -> None:
    if not cap >= 1:
        raise ValueError("ratio_cap: must be at least 1")


def demand_fraction(**settings: float) -> None:
    for name, value in settings.items():
        if not 0 < value <= 1:
            raise ValueError(f"{name}: must be above 0 and at most 1")


def demand_unit(**settings: float) -> None:
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: must be from 0 to 1")


def demand_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}: must be positive and finite")


def demand_finite(**settings: float) -> None:
    for name, value in settings.items():
        if not abs(value) < float("inf"):
            raise ValueError(f"{name}: must be finite")


def demand_count(**settings: int) -> None:
    for name, value in settings.items():
        if value < 1:
            raise ValueError(f"{name}: must be at least 1")


def demand_unpenalized(beta: float, placement: str) -> None:
    if beta and placement == "reward":
        raise ValueError("kl_placement: must be loss or advantage, since rewards have to stay in their range")


def demand_range(reward: Rowwise, low: float, high: float, setting: str) -> None:
    """Stop a run whose rewards leave the range that an algorithm needs."""
    # 1e-4: a weighted sum of scores may leave the range by rounding
    outside = (reward < low - 1e-4) | (reward > high + 1e-4)
    if outside.any():
        raise ValueError(
            f"a reward of {reward[outside][0].item():g} is not from {low:g} to {high:g}, as this algorithm "
            f"requires; change {setting}"
        )


def demand_not_negative(**settings: float) -> None:
    for name, value in settings.items():
        if not value >= 0:
            raise ValueError(f"{name}: must not be negative")
        if value == float("inf"):
            raise ValueError(f"{name}: must be finite")


# Small things.


def rows(batch: Batch) -> torch.Tensor:
    """A row group for each row, (B,)."""
    return torch.arange(len(batch), device=batch.group.device)


def absent(batch: Batch) -> Tokenwise:
    """The empty (B, 0) stand-in for a model output that an algorithm does not read."""
    return batch.old_logp[:, :0]


def explained_variance(returns: Tokenwise, value: Tokenwise, written: torch.Tensor) -> float:
    """``1 − Var(R − V)/Var(R)`` over written tokens; NaN where the returns do not vary."""
    if written.sum() < 2 or (spread := returns[written].var(correction=0).item()) == 0:
        return float("nan")
    return 1 - (returns - value)[written].var(correction=0).item() / spread
