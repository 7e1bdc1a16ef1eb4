"""Made-up experiments whose arms ran at several learning rates."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from helpers.synthetic import Synthetic

OWN_RATE = 1e-4
"""Of every arm."""
FACTORS = (0.5, 1.0, 2.0)
TASK = "arithmetic"
LEVELS: Mapping[str, Sequence[float]] = {
    "good": (0.58, 0.62, 0.58),
    "poor": (0.40, 0.45, 0.40),
    "fragile": (0.58, 0.62, 0.30),
    "rising": (0.55, 0.70, 0.78),
    "late": (0.50, 0.55, 0.50),
}
"""Mean accuracy by arm at `FACTORS`."""
MISSING = ("late", 2.0, 8)
"""Arm, factor and seed of the run without a result."""


def name_at(arm: str, factor: float) -> str:
    """The name of an arm at a multiple of its rate."""
    return arm if factor == 1 else f"{arm}+rate-x{factor:g}"


def accuracy_of(arm: str, factor: float, seed: int) -> float:
    """The mean, and a deviation that every arm and rate has for itself; deviations over seeds 1 to 8 sum
    to 0."""
    shift = [*LEVELS].index(arm) * 3 + FACTORS.index(factor)
    return LEVELS[arm][FACTORS.index(factor)] + 0.004 * ((seed * 3 + shift) % 8 - 3.5) / 3.5


def write_rates(
    folder: Path,
    arms: Sequence[str] = tuple(LEVELS),
    missing: Collection[tuple[str, float, int]] = (MISSING,),
    accuracy: Callable[[str, float, int], float] = accuracy_of,
    seeds: Sequence[int] = tuple(range(1, 9)),
    name: str = "synthetic",
) -> Path:
    """An experiment of these arms at half, once and twice their rates; a `missing` run crashed."""
    origins = {name_at(arm, factor): (arm, factor) for arm in arms for factor in FACTORS}
    root = Synthetic(
        arms=tuple(origins),
        tasks=(TASK,),
        seeds=seeds,
        steps=4,
        every=2,
        problems=4,
        test_problems=4,
        samples=1,
        accuracy=lambda label, task, seed: accuracy(*origins[label], seed),
        states={(name_at(arm, factor), TASK, seed): ("crashed", 2) for arm, factor, seed in missing},
        name=name,
    ).write(folder)
    described = json.loads((root / "experiment.json").read_text())
    described["rate_arms"] = {
        label: {"arm": arm, "factor": factor} for label, (arm, factor) in origins.items() if factor != 1
    }
    (root / "experiment.json").write_text(json.dumps(described))
    for label, (_, factor) in origins.items():
        for path in root.glob(f"{label}-{TASK}-s*/run.toml"):
            path.write_text(path.read_text().replace("policy = 0.0001", f"policy = {factor * OWN_RATE:g}"))
    return root
