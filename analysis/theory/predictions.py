"""What is predicted: estimators on scenarios, in four numbers each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.theory.estimators import (
    Divisor,
    Formula,
    best_of_subsets,
    centered,
    from_greedy,
    from_median,
    leave_one_out,
    over_deviation,
    over_mean,
    plain_reward,
)
from grpobench.analysis.theory.flips import NO_FLIPS, Flips
from grpobench.analysis.theory.moments import Moments
from grpobench.analysis.theory.scenarios import SCENARIOS, Scenario

QUANTITIES: Final = ("advantage", "gain", "sideways", "noise")
"""Expected advantage of the best answer; expected gradient along the true one (1 is unbiased) and across it,
in its length; variance of the gradient times rollouts of the batch over the true one's squared length."""


@dataclass(frozen=True)
class Prediction:
    """An estimator on a scenario."""

    name: str
    scenario: str
    algorithm: str
    """Whose code is measured: one of `grpobench list algorithms`, or MODULE:Class."""
    formula: Formula | None
    """None: its expectation is made of its code, over all groups."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the algorithm."""
    size: int = 8
    """Rollouts in a group."""
    copies: int = 4
    """Groups of each question in a batch."""
    flips: Flips = NO_FLIPS

    @property
    def rollouts(self) -> int:
        return self.size * self.copies * len(SCENARIOS[self.scenario].logits)


def directions(scenario: Scenario, mean: Floats) -> tuple[Floats, Floats]:
    """The true gradient, and the direction of length 1 across it in which the expected gradient points; any
    if it does not deviate."""
    along = scenario.gradient
    for vector in (mean, scenario.score[0, 0], scenario.score[0, -1]):
        padded = np.zeros_like(along)
        padded[: len(vector)] = vector
        across = padded - (padded @ along) / (along @ along) * along
        if np.linalg.norm(across) > 1e-9 * np.linalg.norm(along):
            return along, across / np.linalg.norm(across)
    raise ValueError(f"{scenario.name}: the scores have a single direction")


def quantities(scenario: Scenario, moments: Moments, rollouts: int) -> dict[str, float]:
    """The four numbers of `QUANTITIES`."""
    along, across = directions(scenario, moments.mean)
    length = float(np.linalg.norm(along))
    return {
        "advantage": moments.advantage,
        "gain": float(moments.mean @ along) / length**2,
        "sideways": float(moments.mean @ across) / length,
        "noise": rollouts * moments.variance / length**2,
    }


def grpo(baseline: str = "mean", **settings: Any) -> dict[str, Any]:
    """GRPO's settings without a division."""
    return {"scale": "none", "baseline": baseline, **settings}


MEAN = Formula(centered)
DEVIATION = Formula(over_deviation)
ANSWERS = (
    Prediction("no baseline", "answers", "grpo", Formula(plain_reward), grpo("none")),
    Prediction("mean of the group", "answers", "grpo", MEAN, grpo()),
    Prediction("leave one out", "answers", "grpo", Formula(leave_one_out), grpo("leave_one_out")),
    Prediction("median", "answers", "grpo", Formula(from_median), grpo("median")),
    Prediction("GRPO (÷ deviation)", "answers", "grpo", DEVIATION),
    Prediction("Dr. GRPO", "answers", "dr_grpo", Formula(centered, "constant")),
    Prediction("RLOO", "answers", "rloo", Formula(leave_one_out, "sum", clip=None)),
    Prediction("ReMax", "answers", "remax", Formula(from_greedy, "sum", clip=None)),
    Prediction("MaxRL", "answers", "maxrl", Formula(over_mean, "token")),
    Prediction(
        "pass@2, undivided",
        "answers",
        "passk",
        Formula(best_of_subsets(2, False), "token", clip=(0.2, 0.28)),
        {"k": 2, "divide": False},
    ),
    Prediction("pass@4", "answers", "passk", Formula(best_of_subsets(4, True), "token", clip=(0.2, 0.28))),
    Prediction("GPG, groups of 4", "answers", "gpg", Formula(centered, "token", None, "scaled"), size=4),
    Prediction(
        "DAPO, groups of 4",
        "answers",
        "dapo",
        Formula(over_deviation, "token", (0.2, 0.28), "redrawn"),
        size=4,
    ),
)
SIZES = (
    Prediction("mean, groups of 2", "answers", "grpo", MEAN, grpo(), size=2, copies=16),
    Prediction("mean, groups of 64", "answers", "grpo", MEAN, grpo(), size=64, copies=1),
    Prediction("GRPO, groups of 2", "answers", "grpo", DEVIATION, size=2, copies=16),
    Prediction("GRPO, groups of 64", "answers", "grpo", DEVIATION, size=64, copies=1),
)
GRADED = (
    Prediction("mean", "graded", "grpo", MEAN, grpo()),
    Prediction("median", "graded", "grpo", Formula(from_median), grpo("median")),
    Prediction("GRPO", "graded", "grpo", DEVIATION),
    Prediction("MaxRL", "graded", "maxrl", Formula(over_mean, "token")),
    Prediction("pass@4", "graded", "passk", Formula(best_of_subsets(4, True), "token", clip=(0.2, 0.28))),
    Prediction("mean", "questions", "grpo", MEAN, grpo()),
    Prediction("GRPO", "questions", "grpo", DEVIATION),
    Prediction("MaxRL", "questions", "maxrl", Formula(over_mean, "token")),
)
AVERAGES: tuple[tuple[str, Divisor, str], ...] = (
    ("÷ own length", "completion", "sequence_mean"),
    ("÷ all tokens", "token", "token_mean"),
    ("÷ constant", "constant", "constant"),
)
CHAINS = (
    *(
        Prediction("mean", f"chain-{n}", "grpo", Formula(centered, "sum"), grpo(averaging="sequence_sum"))
        for n in (1, 2, 4)
    ),
    Prediction("mean", "pair", "grpo", Formula(centered, "sum"), grpo(averaging="sequence_sum")),
    *(
        Prediction(
            f"mean, {words}", "lengths", "grpo", Formula(centered, divisor), grpo(averaging=name), copies=1
        )
        for words, divisor, name in AVERAGES
    ),
)
STALE = (
    Prediction(
        "mean, no clip",
        "moved",
        "grpo",
        Formula(centered, clip=(1.0, 1e9)),
        grpo(clip_low=1.0, clip_high=1e9),
    ),
    Prediction("mean, clip .2", "moved", "grpo", MEAN, grpo()),
    Prediction("mean, no ratio", "moved", "rloo", Formula(leave_one_out, "sum", clip=None)),
)
FLIPPED = (
    *(
        Prediction(f"mean, 20 % flipped by {kind}", "answers", "grpo", MEAN, grpo(), flips=Flips(0.2, kind))
        for kind in ("rollout", "group", "answer")
    ),
    *(
        Prediction(f"GRPO, 20 % flipped by {kind}", "answers", "grpo", DEVIATION, flips=Flips(0.2, kind))
        for kind in ("rollout", "group")
    ),
)
PREDICTIONS = (*ANSWERS, *SIZES, *GRADED, *CHAINS, *STALE, *FLIPPED)
OF_AN_ALGORITHM = ("answers", "graded", "questions", "lengths")
"""Scenarios of `grpobench theory ALGORITHM`."""
FORMULAS: Mapping[str, Formula] = {p.algorithm: p.formula for p in ANSWERS if p.formula and not p.settings}
"""Of the suite's own algorithms with their defaults, by name."""
