"""Controls of probes: whether a positive one scores higher than a negative one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.probe import Probe, ProbeControl
from grpobench.analysis.profile.scores import GATE_SCORE, Profile
from grpobench.analysis.profile.table import mean_of
from grpobench.analysis.statistics.moderated import LEVEL, RESOLUTION

POSITIVE, NEGATIVE = "positive", "negative"


@dataclass(frozen=True)
class ControlScores:
    """Scores of a control with the t interval of their mean; NaN ends with one seed."""

    scores: tuple[float, ...]
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Separation:
    """Positive minus negative control."""

    positive: ControlScores | None
    negative: ControlScores | None
    difference: float
    p: float
    """One-sided, of "the difference is at most the resolution". NaN where an arm has fewer than two seeds."""

    @property
    def separated(self) -> bool | None:
        """None where it cannot be tested."""
        return None if math.isnan(self.p) else self.p <= 1 - LEVEL


def judge(rows: Sequence[ProbeOutcome], profile: Profile) -> dict[str, Separation]:
    """The separation of every probe with controls, by probe; `rows` are those of the controls.

    The test is Welch's, one-sided, of a difference larger than the resolution of scores (0.02); a sample
    variance counts as at least resolution²/12, as in `statistics.moderated`. Each probe is a question of its
    own, so p is not corrected for their number. Raises ValueError for a row of an unknown probe or arm."""
    for row in rows:
        if row.probe not in profile.probes or row.algorithm not in (POSITIVE, NEGATIVE):
            raise ValueError(f"controls: no {row.algorithm!r} of probe {row.probe!r}; remove the row")
    separations = {}
    for name, probe in profile.probes.items():
        if probe.positive and probe.negative:
            arms = [
                _arm(_scores(rows, probe, profile, arm, control))
                for arm, control in ((POSITIVE, probe.positive), (NEGATIVE, probe.negative))
            ]
            separations[name] = _separation(*arms)
    return separations


def clean_gain(profile: Profile, probe: Probe, control: ProbeControl) -> float:
    """What the control's algorithm gains on the probe without the dose; NaN where it does not learn there or
    has no score."""
    gain = mean_of(profile, probe.against, control.algorithm)
    return gain if gain >= GATE_SCORE else math.nan


def _scores(
    rows: Sequence[ProbeOutcome], probe: Probe, profile: Profile, arm: str, control: ProbeControl
) -> list[float]:
    outcomes = [row.outcome for row in rows if (row.probe, row.algorithm) == (probe.name, arm)]
    scale = clean_gain(profile, probe, control) if probe.against else 1.0
    scores = [probe.normalize(outcome) / scale for outcome in outcomes]
    return [score for score in scores if not math.isnan(score)]


def _arm(scores: Sequence[float]) -> ControlScores | None:
    if not scores:
        return None
    count, mean = len(scores), float(np.mean(scores))
    if count == 1:
        return ControlScores(tuple(scores), mean, math.nan, math.nan)
    half = float(special.stdtrit(count - 1, 0.5 + LEVEL / 2)) * math.sqrt(_variance(scores) / count)
    return ControlScores(tuple(scores), mean, mean - half, mean + half)


def _variance(scores: Sequence[float]) -> float:
    return max(float(np.var(scores, ddof=1)), RESOLUTION**2 / 12)


def _separation(positive: ControlScores | None, negative: ControlScores | None) -> Separation:
    if positive is None or negative is None:
        return Separation(positive, negative, math.nan, math.nan)
    difference = positive.mean - negative.mean
    if min(len(positive.scores), len(negative.scores)) < 2:
        return Separation(positive, negative, difference, math.nan)
    squares = [_variance(arm.scores) / len(arm.scores) for arm in (positive, negative)]
    df = sum(squares) ** 2 / sum(
        square**2 / (len(arm.scores) - 1) for square, arm in zip(squares, (positive, negative), strict=True)
    )
    p = float(special.stdtr(df, (RESOLUTION - difference) / math.sqrt(sum(squares))))
    return Separation(positive, negative, difference, p)
