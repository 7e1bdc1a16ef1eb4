"""The catalog of metrics: every number in metrics.jsonl, declared once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Reduction = Literal["mean", "min", "max", "sum", "tail"]
Direction = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """One logged number, declared once.

    `better` is the direction of improvement; `reduce` turns unreduced values into the number.
    """

    name: str
    unit: str
    definition: str
    better: Direction = "neither"
    reduce: Reduction = "mean"
    label: str = ""
    """How axes call it, without its unit; empty: the words of its name."""
    scale: Literal["linear", "log"] = "linear"
    """Of an axis; a logarithmic one is taken where the values span more than two decades."""
    least: float | None = None
    """The smallest value that is possible; None: 0 for a share of something, else there is none."""
    most: float | None = None
    """The largest value that is possible; None: 1 for a share of something, else there is none."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest possible value."""
        low, high = (0.0, 1.0) if self.unit.startswith("share of ") else (-math.inf, math.inf)
        return low if self.least is None else self.least, high if self.most is None else self.most

    @property
    def axis(self) -> str:
        """The label of an axis: `policy entropy` and, on a second line, `(nats/token)`."""
        label = self.label or re.sub(r"[/_]+", " ", self.name)
        if self.unit in label.split():
            return label
        between = " " if "\n" in label else "\n"
        return f"{label}{between}({self.unit})"


EXTREME = 2.0
"""The ratio above which, or below whose inverse, a token is extreme: the usual cap of TIS."""
TAIL = 20
"""The tail is one token in so many."""
FEWEST = 10
"""Tokens that a tail must have to be estimated."""


def of_departures(
    prefix: str, log_ratio: str, tokens: str, index: Direction = "neither", extreme: Direction = "neither"
) -> tuple[Metric, ...]:
    """The declarations of what `departures` measures, with the direction of improvement of the tail
    index and of the share."""
    return (
        Metric(
            f"{prefix}tail",
            "index",
            f"tail index of exp|{log_ratio}| {tokens}: k/Σ(d_i − d_(k+1)), d = |{log_ratio}| in descending "
            f"order, k a twentieth of the tokens (Hill). At most 2: their variance is infinite; NaN for "
            f"fewer than {TAIL * FEWEST} tokens or where d_(k+1) is 0",
            index,
            "tail",
        ),
        Metric(
            f"{prefix}extreme",
            "share of tokens",
            f"|{log_ratio}| above log 2 (a ratio above 2 or below 1/2), {tokens}",
            extreme,
        ),
        Metric(
            f"{prefix}extreme_at",
            "share of completion",
            "mean position (i − ½)/n of these tokens, each the i-th of the n written tokens of its "
            "completion; 0.5 if they stand anywhere alike; NaN without one",
        ),
        Metric(
            f"{prefix}growth",
            "nats",
            f"least-squares slope of |{log_ratio}| over the position (i − ½)/n, from the beginning of a "
            "completion to its end: mean over completions with two written tokens or more; 0 if the ratio is "
            "1 everywhere",
        ),
    )


REWARD = (
    Metric(
        "reward/mean",
        "reward",
        "mean reward of all graded rollouts of the step, with doses",
        "higher",
        label="mean reward",
    ),
    Metric("reward/std", "reward", "standard deviation (ddof 0) of those rewards"),
    Metric(
        "reward/<component>",
        "as the component",
        "mean of this part of the reward before its weight (a score of the task, model, proxy, flipped, "
        "random, majority, constant, a function) over all graded rollouts of the step, with a function over "
        "those to which it applies; measured with weight 0 too",
    ),
    Metric(
        "reward/flipped_share",
        "share of rollouts",
        "rewards that `reward.flip` turned around, of all graded rollouts of the step; absent without flips",
    ),
    Metric(
        "reward/outlier_share",
        "share of rollouts",
        "rewards to which `reward.outliers` added or subtracted, of all graded rollouts of the step; absent "
        "without outliers",
    ),
    Metric(
        "reward/failed",
        "share of rollouts",
        "masked because the verifier or the reward raised or gave a number that is not finite, or because no "
        "part of the reward applies, of all rollouts of the step",
        "lower",
    ),
    Metric(
        "reward/model_cut",
        "share of rollouts",
        "texts whose beginning the reward model did not see because they exceed its context",
        "lower",
    ),
    Metric(
        "reward/model_auc/<score>",
        "share of pairs",
        "pairs in which the reward model rates a completion with this score of the task above one without, "
        "of all graded rollouts of the step, ties as half (AUC); only with a reward model",
        "higher",
    ),
    Metric(
        "score/correct/<category>",
        "score",
        "mean score `correct` over the graded rollouts of the step whose problem has this trait `category`; "
        "in tasks with 2 to 16 categories in their training problems",
        "higher",
    ),
    Metric(
        "score/<name>",
        "score",
        "mean of this score of the task over all graded rollouts of the step",
        "higher",
    ),
    Metric(
        "groups/sampled",
        "groups",
        "groups sampled in the step, rejected ones included; drawn, where rollouts are recorded",
        label="groups sampled",
        least=0,
    ),
    Metric(
        "groups/zero_signal",
        "share of groups",
        "groups whose rewards are all equal, of all groups of the step",
        "lower",
        label="groups without signal",
    ),
    Metric(
        "groups/baseline_variance",
        "squared reward",
        "variance of the mean of a group's rewards, estimated from them: sample variance (ddof 1) over their "
        "number, mean over the groups of the step with two graded rollouts or more; NaN without one",
        "lower",
    ),
    Metric("groups/solved_all", "share of groups", "groups in which every completion has correct = 1"),
    Metric("groups/solved_none", "share of groups", "groups in which no completion has correct = 1", "lower"),
    Metric("groups/solved_some", "share of groups", "groups with both kinds of completion", "higher"),
)
LENGTH = (
    Metric(
        "length/mean",
        "tokens",
        "mean length of all completions of the step, graded or not, counting what the policy wrote",
        label="completion length",
        least=0,
    ),
    Metric("length/p95", "tokens", "95th percentile of the lengths"),
    Metric(
        "length/truncated", "share of rollouts", "completions that the limit of tokens or turns cut", "lower"
    ),
    Metric("length/terminated_mean", "tokens", "mean length of the completions that were not cut"),
    Metric("length/right", "tokens", "mean length of the graded completions with correct = 1"),
    Metric("length/wrong", "tokens", "mean length of the graded completions with correct below 1"),
    Metric("length/turns", "turns", "mean turns of the policy; only in tasks of several"),
    Metric("length/replies", "tokens", "mean length of an environment's replies; only in tasks of several"),
)
POLICY = (
    Metric(
        "policy/entropy",
        "nats/token",
        "−Σ p·log p of the tempered full softmax, mean over all written tokens of all rollouts of the step: "
        "of the distributions they were drawn from (with `sampler.lag`, the earlier weights'), before any "
        "update; where rollouts are recorded, of the policy as it is before the step's updates",
        label="policy entropy",
        least=0,
    ),
    Metric(
        "policy/kl_base",
        "nats/token",
        "Σ p·(log p − log p_base) over the tempered full softmax, mean over the same tokens, before any "
        "update of the step; base: the policy before its first update, with its warm start; at the last step "
        "and where an evaluation on validation follows, with `evaluate.kl_base`",
        "lower",
    ),
    Metric(
        "grad_norm/<role>",
        "norm",
        "norm of the role's gradient before clipping, mean over updates",
        scale="log",
    ),
    Metric(
        "grad/nonfinite",
        "updates",
        "updates skipped for a loss, reward or gradient not finite",
        "lower",
        "sum",
    ),
    Metric(
        "grad/overflow",
        "updates",
        "updates skipped because the scaled loss had a gradient too large for float16, each of which halves "
        "the scale; only with `model.dtype` float16, and not counted in `grad/nonfinite`",
        "lower",
        "sum",
    ),
    Metric(
        "grad/loss_scale",
        "factor",
        "what losses are multiplied by before they are differentiated in float16, after the step's updates; "
        "logged gradients and their norms are without it",
    ),
    Metric(
        "grad/variance",
        "squared norm",
        "trace of the covariance of the policy's gradient over the step's batch, at the weights before the "
        "step's first update: Σ|g_i − mean g|²/(M(M − 1)) over the gradients g_i of the loss of M parts of "
        "the batch; unbiased; in the steps of `train.gradient_noise`",
        "lower",
    ),
    Metric(
        "grad/signal",
        "squared norm",
        "squared norm of the expectation of that gradient: (|Σg_i|² − Σ|g_i|²)/(M(M − 1)); unbiased, so that "
        "it may be below 0",
    ),
    Metric(
        "grad/noise_to_signal",
        "ratio",
        "grad/variance over grad/signal, each averaged over the steps measured so far; NaN while the latter "
        "average is not above 0. Times the rollouts of a step it is the simple noise scale "
        "(arXiv:1812.06162)",
        "lower",
    ),
    Metric("learning_rate/<role>", "rate", "learning rate of the role's last update of the step"),
)
TRAINED = (
    Metric(
        "trained/share",
        "share of rollouts",
        "rollouts that the step's updates use, of all rollouts of the step",
        label="rollouts trained on",
    ),
    Metric("trained/groups", "groups", "groups of which they use a rollout"),
    Metric(
        "trained/zero_signal",
        "share of groups",
        "groups, of those, whose rollouts in the updates have equal rewards",
        "lower",
        label="no signal, trained on",
    ),
    Metric("trained/reward_mean", "reward", "mean reward of the rollouts in the updates"),
    Metric("trained/length_mean", "tokens", "mean length of the rollouts in the updates"),
    Metric(
        "trained/entropy",
        "nats/token",
        "−Σ p·log p of the tempered full softmax of the policy as each update meets it, mean over the "
        "written tokens of all passes",
        label="entropy, trained on",
        least=0,
    ),
    Metric(
        "trained/kl_old",
        "nats/token",
        "mean of log π_old − log π over the same tokens",
        label="KL to old policy",
        scale="log",
    ),
    Metric("trained/ratio_mean", "ratio", "mean of ρ = π/π_old over the same tokens"),
    Metric("trained/ratio_min", "ratio", "least ρ", reduce="min"),
    Metric("trained/ratio_max", "ratio", "greatest ρ", reduce="max"),
    *of_departures("trained/ratio_", "log ρ", "over the same tokens"),
)
GAP = (
    Metric(
        "sampler/lag",
        "updates",
        "updates of the policy between the weights that sampled the step's rollouts and those before the "
        "step's updates, at most `sampler.lag`; only in runs with one, whose other gaps include the distance "
        "of these updates",
    ),
    Metric("gap/mean", "nats/token", "mean |log π_sampler − log π_old| over written tokens", "lower"),
    Metric("gap/max", "nats", "greatest |log π_sampler − log π_old|", "lower", "max"),
    Metric("gap/k3", "nats/token", "mean of x − 1 − log x, x = π_old/π_sampler; healthy below 1e-3", "lower"),
    Metric("gap/ess", "share", "(Σw)²/(n·Σw²) with w = π_old/π_sampler per token; 1 without a gap", "higher"),
    *of_departures("gap/", "log π_sampler − log π_old", "over written tokens", "higher", "lower"),
    Metric(
        "gap/sync",
        "nats",
        "greatest |log π_sampler − log π| on the answers to a probe prompt, after handing over the weights",
        "lower",
        "max",
    ),
    Metric(
        "correction/weight_mean",
        "ratio",
        "mean over written tokens of what the correction multiplies the loss by; 1 without a gap",
    ),
    Metric(
        "correction/clipped",
        "share of tokens",
        "written tokens whose ratio π_old/π_sampler (their own or their sequence's) was cut or masked",
        "lower",
    ),
)
DIVERSITY = (
    Metric(
        "diversity/unique_answers",
        "share",
        "distinct answers of a group over its graded completions, mean over all groups of the step",
        "higher",
    ),
    Metric(
        "diversity/repetition",
        "share",
        "4-grams of a completion seen in it before, mean over all completions of the step",
        "lower",
    ),
    Metric(
        "diversity/distinct_2",
        "share",
        "distinct 2-grams over all 2-grams of a group's completions, mean over all groups of the step",
        "higher",
    ),
)
OUTCOME = (
    Metric(
        "outcome/graded", "share of rollouts", "verifier graded the completion, of all of the step", "higher"
    ),
    Metric("outcome/unparsable", "share of rollouts", "no answer was found in the completion", "lower"),
    Metric("outcome/timeout", "share of rollouts", "grading ran out of time", "lower"),
    Metric("outcome/crash", "share of rollouts", "the completion's program crashed", "lower"),
    Metric("outcome/infra_error", "share of rollouts", "not graded for infrastructure reasons", "lower"),
)
COST = (
    Metric("cost/generated_tokens", "tokens", "training rollouts so far, cumulative", "lower"),
    Metric("cost/trained_tokens", "tokens", "tokens of the policy trained on so far, cumulative", "lower"),
    Metric(
        "cost/flops",
        "FLOPs",
        "sampling, reading and updates so far, cumulative, by a formula: 2N per token read or written and 6N "
        "per token trained on, N the model's weights without input embeddings (docs/compute-curves.md); no "
        "evaluation, and absent in logs of older versions",
        "lower",
    ),
    Metric(
        "cost/peak_memory_gb",
        "GB",
        "peak memory of the process (of the accelerator if there is one)",
        "lower",
    ),
    Metric(
        "cost/state_gb",
        "GB",
        "weights of all roles, gradients at the step's last update, and what optimizers keep: memory that "
        "depends on neither lengths nor libraries",
        "lower",
    ),
    Metric(
        "cost/memory_halvings",
        "count",
        "how often memory gave out so far and half as much was read or decoded at once from then on; absent: "
        "never (docs/machines.md)",
        "lower",
    ),
)
TIME = (
    Metric("time/step", "s", "the whole step without evaluation", "lower"),
    Metric("time/sample", "s", "generating rollouts", "lower"),
    Metric("time/verify", "s", "grading them, reward models included", "lower"),
    Metric(
        "time/forward",
        "s",
        "forward passes for log-probabilities, the signal, the updates and their gradient's noise",
        "lower",
    ),
    Metric("time/backward", "s", "backward passes of the updates and for their gradient's noise", "lower"),
    Metric("time/optimize", "s", "optimizer steps", "lower"),
    Metric("time/sync", "s", "handing the new weights to the sampler", "lower"),
    Metric("time/other", "s", "what is left of the step", "lower"),
    Metric("time/evaluate", "s", "evaluation after the step", "lower"),
    Metric(
        "time/study",
        "s",
        "at step 0: sampling the initial policy's completions of the training problems for algorithms that "
        "need them; of those in the cache, what it took when they were sampled",
        "lower",
    ),
    Metric("time/wall", "s", "since the attempt began"),
)
EVAL = (
    Metric(
        "eval/<split>/<mode>/correct",
        "share of answers",
        "share of evaluated answers that the task's verifier accepts",
        "higher",
    ),
    Metric(
        "eval/<split>/<mode>/<metric>",
        "as the metric",
        "split validation or test, mode sampled, greedy or likelihood; metric is a score's mean, length, "
        "what the task's summary gives, or of at least four samples pass@k (unbiased, k up to half of them) "
        "and maj@k (the most frequent answer's score)",
    ),
    Metric(
        "also/<task>/<split>/<mode>/<metric>",
        "as the metric",
        "the same of a task of `evaluate.also`, which is not trained on",
    ),
)
TRL = (
    Metric(
        "trl/<name>",
        "as TRL's",
        "what TRL's trainer logs under that name, in runs with its backend: mean over the step's updates "
        "(step_time: their sum)",
    ),
)
OTHER = (
    Metric(
        "other/<name>",
        "as the log's",
        "what a log of another library holds under that name and no metric of ours is; in imported runs",
    ),
)
# The harness's own metrics, and those of algorithms that figures draw. An algorithm declares all that its
# `loss` and `observe` return, which is over the rollouts that it is given to train on. A name with ``<...>``
# matches many names: ``score/<name>`` for one metric per score of the task.
#
# "All rollouts of the step" are those of every group that was sampled in it, or drawn where rollouts are
# recorded: what a curriculum then rejected is among them, so that equal policies have equal numbers whatever
# they train on. What is over the rows that the updates used begins with ``trained/``.
HARNESS = (*REWARD, *LENGTH, *POLICY, *TRAINED, *GAP, *DIVERSITY, *OUTCOME, *COST, *TIME, *EVAL, *TRL, *OTHER)

# Of algorithms, shared by several or drawn by figures.

CLIP_METRICS = (
    Metric(
        "policy/clip_low",
        "share of tokens",
        "mean of [ratio < 1 - clip_low and A < 0] over written tokens",
        label="clipped low",
    ),
    Metric(
        "policy/clip_high",
        "share of tokens",
        "mean of [ratio > 1 + clip_high and A > 0] over written tokens",
        label="clipped high",
    ),
)
KL_METRICS = (
    Metric("policy/kl_reference_k1", "nats/token", "mean of log π − log π_ref over written tokens", "lower"),
    Metric(
        "policy/kl_reference_k2", "nats/token", "mean of ½(log π − log π_ref)² over written tokens", "lower"
    ),
    Metric(
        "policy/kl_reference_k3",
        "nats/token",
        "mean of x − 1 − log x, x = π_ref/π, over written tokens",
        "lower",
        label="KL to reference, k3",
        scale="log",
    ),
)
CRITIC_METRICS = (
    Metric(
        "critic/explained_variance",
        "share",
        "1 − Var(R − V)/Var(R) over written tokens, before the update",
        "higher",
        label="returns,\nby critic",
        most=1,
    ),
    Metric(
        "critic/group_explained",
        "share",
        "1 − Var(G − b)/Var(G), G the rewards to go and b the mean reward of the group's other rollouts, "
        "the baseline of critic-free methods; over groups of at least two, before the update; −1/(n − 1) "
        "in groups of n whose prompts do not tell outcomes apart, since b has noise of its own",
        "higher",
        label="rewards to go,\nby group",
        most=1,
    ),
    Metric(
        "critic/outcome_explained",
        "share",
        "1 − Var(G − V)/Var(G) over the same tokens: the critic next to the group's baseline; unlike R, G "
        "does not hold the critic's values",
        "higher",
        label="rewards to go,\nby critic",
        most=1,
    ),
)


KNOWN: Mapping[str, Metric] = {
    metric.name: metric for metric in (*HARNESS, *CLIP_METRICS, *KL_METRICS, *CRITIC_METRICS)
}
"""The metrics of this file by name."""


def find(name: str, metrics: Mapping[str, Metric] = KNOWN) -> Metric | None:
    """The declaration of a logged name, through a pattern where need be; None for an undeclared one."""
    return metrics.get(name) or next(
        (metric for metric in metrics.values() if matches(metric.name, name)), None
    )


def meaning(name: str) -> str:
    """The definition of a metric as a part of a sentence; `as logged` of one that is not in this file."""
    metric = find(name)
    return metric.definition.rstrip(".") if metric else "as logged"


def matches(pattern: str, name: str) -> bool:
    """Whether a name is one of a pattern's. The last placeholder may span slashes (bias by category)."""
    parts = re.split(r"<\w+>", pattern)
    if len(parts) == 1:
        return pattern == name
    escaped = [re.escape(part) for part in parts]
    regex = "[^/]+".join(escaped[:-1]) + ".+" + escaped[-1]
    return re.fullmatch(regex, name) is not None
