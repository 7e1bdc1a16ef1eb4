"""What the metrics mean that figures show; captions quote it."""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "eval/<split>/<mode>/correct": "share of evaluated answers that the task's verifier accepts",
    "reward/mean": "mean reward of all rollouts sampled for the update, rejected groups included, before any "
    "normalisation",
    "reward/<component>": "mean of this part of the reward over all rollouts sampled for the update, before "
    "its weight",
    "score/<name>": "mean of this score of the task over all rollouts sampled for the update, whatever is "
    "rewarded",
    "policy/entropy": "next-token entropy over the full vocabulary at the sampling temperature, of the "
    "policy before the update, mean over all tokens sampled for it",
    "trained/entropy": "the same over the tokens trained on, of the policy as the update met it",
    "trained/kl_old": "mean of log π_old − log π over the tokens trained on",
    "policy/kl_reference_k1": "mean of −log x, x = π_ref/π, over the tokens trained on",
    "policy/kl_reference_k2": "mean of ½(log x)², x = π_ref/π, over the tokens trained on",
    "policy/kl_reference_k3": "mean of x − 1 − log x, x = π_ref/π, over the tokens trained on",
    "policy/clip_low": "share of the tokens trained on with a ratio below the lower clip bound and a "
    "negative advantage",
    "policy/clip_high": "share of the tokens trained on with a ratio above the upper clip bound and a "
    "positive advantage",
    "grad_norm/<role>": "global L2 norm of the role's gradient before clipping",
    "length/mean": "tokens per completion, mean over all completions sampled for the update",
    "groups/zero_signal": "share of all groups sampled for the update whose rewards are all equal, which "
    "teach a group baseline nothing",
    "trained/zero_signal": "the same share of the groups trained on",
    "groups/sampled": "groups sampled for the update; more where a curriculum rejects some and draws again",
    "trained/share": "share of all sampled rollouts that the update used",
    "critic/explained_variance": "1 − Var(R − V)/Var(R) over the tokens trained on",
    "critic/group_explained": "the same were V the mean reward of the group's other rollouts",
}
"""Captions quote these where the caller passes no definition of its own."""


def family(metric: str, definitions: Mapping[str, str]) -> str:
    """The name under which a metric is defined: its own, or the pattern that it is one of."""
    patterns = {"grad_norm/": "grad_norm/<role>", "reward/": "reward/<component>", "score/": "score/<name>"}
    pattern = next((name for stem, name in patterns.items() if metric.startswith(stem)), metric)
    return metric if metric in definitions else pattern


def meaning(metric: str, definitions: Mapping[str, str]) -> str:
    """A metric's definition without its full stop; `as logged` where there is none."""
    return definitions.get(metric, "as logged").rstrip(".")
