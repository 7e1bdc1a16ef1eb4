"""Figures of training: what was logged at each update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grpobench.analysis.figures.curves import Row, curves
from grpobench.analysis.figures.definitions import family, meaning
from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.style import Sheet
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
    shared: Literal["panel", "row", "figure"] = "row"
    """Which panels have one scale; `panel` where tasks measure in units of their own."""


TRAINING: Mapping[str, tuple[str, tuple[Panel, ...]]] = {
    "reward": ("Training reward", (Panel("reward/mean", "mean reward", shared="panel"),)),
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
            Panel("trained/kl_old", "KL to old policy\n(nats/token)", log=True, shared="figure"),
            Panel("policy/kl_reference_k3", "KL to reference, k3\n(nats/token)", log=True, shared="figure"),
        ),
    ),
    "clip": (
        "Clipped tokens",
        (
            Panel("policy/clip_low", "clipped low\n(share of tokens)"),
            Panel("policy/clip_high", "clipped high\n(share of tokens)"),
        ),
    ),
    "length": ("Completion length", (Panel("length/mean", "length (tokens)", shared="panel"),)),
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
    matrix: Matrix,
    name: str,
    title: str,
    rows: Sequence[Panel],
    definitions: Mapping[str, str],
    sheet: Sheet,
) -> Drawing | None:
    """Metrics of training against updates, a row of panels each; metrics never logged are left out."""
    drawn = []
    for panel in rows:
        frame = with_axis(matrix, matrix.select(panel.metric), "updates")
        if len(frame):
            drawn.append((panel, frame))
    if not drawn:
        return None
    panels = [Row(panel.label, frame, panel.log, panel.shared) for panel, frame in drawn]
    figure = curves(matrix, panels, "updates", sheet)
    named: dict[str, str] = {}
    for panel, _ in drawn:
        named.setdefault(meaning(family(panel.metric, definitions), definitions), words(panel.label))
    told = "; ".join(f"{label}: {text}" for text, label in named.items())
    return Drawing(name, title, f"{told[0].upper()}{told[1:]}.", figure)


def words(label: str) -> str:
    """The label of a panel without its unit, for a caption."""
    return label.replace("\n", " ").partition(" (")[0]


def draw_components(matrix: Matrix, definitions: Mapping[str, str], sheet: Sheet) -> Drawing | None:
    """Every part of the reward, and the verifier's verdict on the same rollouts."""
    parts = reward_components(matrix)
    rows = [Panel(f"reward/{part}", f"{part.replace('_', ' ')}\n(mean)", shared="panel") for part in parts]
    rows.append(Panel(VERDICT, "verdict\n(share correct)", shared="panel"))
    title = "What was rewarded, and the verifier's verdict on the same rollouts"
    return draw_training(matrix, "components", title, rows, definitions, sheet) if parts else None


def draw_gradients(matrix: Matrix, definitions: Mapping[str, str], sheet: Sheet) -> Drawing | None:
    """Gradient norm of every trained role."""
    rows = [
        Panel(name, f"gradient norm\n({name.removeprefix('grad_norm/').replace('_', ' ')})", log=True)
        for name in matrix.names("grad_norm/")
    ]
    return draw_training(matrix, "gradient", "Gradient norm by role", rows, definitions, sheet)
