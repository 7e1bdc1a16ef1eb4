"""Figures of training: what was logged at each update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.figures.curves import curves
from grpobench.analysis.figures.definitions import family, meaning
from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.budgets import with_axis
from grpobench.analysis.summary.rewards import VERDICT, reward_components


@dataclass(frozen=True)
class Panel:
    """One logged metric as a row of panels."""

    metric: str
    label: str
    log: bool = False
    """Whether a logarithmic axis may be used where the values span more than two decades."""


TRAINING: Mapping[str, tuple[str, tuple[Panel, ...]]] = {
    "reward": ("Training reward", (Panel("reward/mean", "mean reward"),)),
    "entropy": (
        "Policy entropy",
        (
            Panel("policy/entropy", "all that was sampled\n(nats/token)"),
            Panel("trained/entropy", "trained on\n(nats/token)"),
        ),
    ),
    "kl": (
        "Divergence of the policy",
        (
            Panel("trained/kl_old", "KL to old policy\n(nats/token)", log=True),
            Panel("policy/kl_reference_k3", "KL to reference, k3\n(nats/token)", log=True),
        ),
    ),
    "clip": (
        "Clipped tokens",
        (
            Panel("policy/clip_low", "clipped low\n(share of tokens)"),
            Panel("policy/clip_high", "clipped high\n(share of tokens)"),
        ),
    ),
    "length": ("Completion length", (Panel("length/mean", "length (tokens)"),)),
    "zero_signal": (
        "Groups without signal",
        (
            Panel("groups/zero_signal", "all that were sampled\n(share)"),
            Panel("trained/zero_signal", "trained on\n(share)"),
        ),
    ),
    "sampled": (
        "What was sampled, and how much of it was trained on",
        (Panel("groups/sampled", "groups sampled"), Panel("trained/share", "rollouts trained on\n(share)")),
    ),
    "explained_variance": (
        "Critic's explained variance",
        (
            Panel("critic/explained_variance", "explained variance\nby the critic"),
            Panel("critic/group_explained", "explained variance\nby the group's others"),
        ),
    ),
}
"""Name -> title and panels of the training metrics that are drawn against updates."""


def draw_training(
    matrix: Matrix, name: str, title: str, rows: Sequence[Panel], definitions: Mapping[str, str]
) -> Drawing | None:
    """Metrics of training against updates, a row of panels each; metrics never logged are left out."""
    drawn = []
    for panel in rows:
        frame = with_axis(matrix, matrix.select(panel.metric), "updates")
        if len(frame):
            drawn.append((panel, frame))
    if not drawn:
        return None
    figure = curves(matrix, [(panel.label, frame, panel.log) for panel, frame in drawn], "updates")
    named = dict.fromkeys(family(panel.metric, definitions) for panel, _ in drawn)
    told = "; ".join(f"{metric}: {meaning(metric, definitions)}" for metric in named)
    return Drawing(name, title, f"{told}.", figure)


def draw_components(matrix: Matrix, definitions: Mapping[str, str]) -> Drawing | None:
    """Every part of the reward, and the verifier's verdict on the same rollouts."""
    parts = reward_components(matrix)
    rows = [Panel(f"reward/{part}", f"{part.replace('_', ' ')}\n(mean)") for part in parts]
    rows.append(Panel(VERDICT, "verdict\n(share correct)"))
    title = "What was rewarded, and the verifier's verdict on the same rollouts"
    return draw_training(matrix, "components", title, rows, definitions) if parts else None


def draw_gradients(matrix: Matrix, definitions: Mapping[str, str]) -> Drawing | None:
    """Gradient norm of every trained role."""
    rows = [
        Panel(name, f"gradient norm\n({name.removeprefix('grad_norm/').replace('_', ' ')})", log=True)
        for name in matrix.names("grad_norm/")
    ]
    return draw_training(matrix, "gradient", "Gradient norm by role", rows, definitions)
