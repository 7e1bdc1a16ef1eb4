"""The figures of a report by name, with what each shows, in a module that imports nothing that draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grpobench.analysis.tools.metrics import Metric, find

AXES = {"updates": "updates", "tokens": "generated tokens", "seconds": "seconds of training"}
"""Axis of a budget -> how figures and tables name it."""


@dataclass(frozen=True)
class Panel:
    """One logged metric as a row of panels. The catalog has its label, scale and bounds."""

    metric: str
    shared: Literal["panel", "row", "figure"] = "row"
    """Which panels share a scale; `panel` where tasks have different units."""
    axis_label: str = ""
    """Its label where the catalog has none, because the metric is one of many."""

    @property
    def declared(self) -> Metric:
        return find(self.metric) or Metric(self.metric, "", "")

    @property
    def label(self) -> str:
        return self.axis_label or self.declared.axis


TRAINING: Mapping[str, tuple[str, tuple[Panel, ...]]] = {
    "reward": ("Training reward", (Panel("reward/mean", shared="panel"),)),
    "entropy": ("Policy entropy", (Panel("policy/entropy"), Panel("trained/entropy"))),
    "kl": (
        "Divergence of the policy",
        (Panel("trained/kl_old", shared="figure"), Panel("policy/kl_reference_k3", shared="figure")),
    ),
    "clip": ("Clipped tokens", (Panel("policy/clip_low"), Panel("policy/clip_high"))),
    "length": ("Completion length", (Panel("length/mean", shared="panel"),)),
    "zero_signal": ("Groups without signal", (Panel("groups/zero_signal"), Panel("trained/zero_signal"))),
    "sampled": (
        "Sampled groups, and the share of rollouts trained on",
        (Panel("groups/sampled"), Panel("trained/share")),
    ),
    "explained_variance": (
        "Variance that the critic explains",
        (
            Panel("critic/explained_variance"),
            Panel("critic/outcome_explained"),
            Panel("critic/group_explained"),
        ),
    ),
}
"""Name -> title and panels of the training metrics that are drawn against updates."""

FIGURE_SUMMARIES: Mapping[str, str] = {
    "map": "where each arm learns, stalls, drifts and collapses over the sweep values of a map",
    "learning_rates": "accuracy and failed runs against the learning rate, with each arm's best rate",
    "final_accuracy": "final accuracy of every seed and arm, with the level before training",
    "sampling": "pass@k and majority votes against k, before and after training",
    "survival": "share of runs that have not collapsed, by step, of tasks and sweep values at which one did",
    "differences": "paired differences of final accuracy between arms",
    "targets": "share of runs that have reached a target, against updates, tokens, seconds and FLOPs",
    **{f"accuracy_{axis}": f"validation accuracy against {meaning}" for axis, meaning in AXES.items()},
    "compute_curve": "accuracy against tokens, FLOPs and seconds, with curves fitted on the first half",
    **{name: f"{title[0].lower()}{title[1:]}, against updates" for name, (title, _) in TRAINING.items()},
    "components": "every part of the reward, and the verifier's verdict on the same rollouts",
    "credit": "share of credit of each turn, beside the true one where the task knows it",
    "gradient": "gradient norm of every trained role, against updates",
    "bias": "bias scores by category",
    "bias_updates": "bias on the validation split against updates",
    "seconds": "seconds per update, by phase",
    "rates": "tokens per second and peak memory",
}
"""Name -> what the figure shows, in the order of the report. `report.catalog` draws them."""
