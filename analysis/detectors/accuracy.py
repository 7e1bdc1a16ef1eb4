"""Detectors of validation accuracy: accuracy that was lost, and problems that are no longer solved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpobench.analysis.detectors.event import Detector, Event, Evidence, Spell, spells
from grpobench.analysis.detectors.history import Floats, History, Series
from grpobench.analysis.statistics.samples import doubling, pass_at_k, solved

VALIDATION = tuple(f"eval/validation/{mode}/correct" for mode in ("greedy", "sampled", "likelihood"))


@dataclass(frozen=True)
class AccuracyCollapse(Detector):
    """Validation accuracy far below the run's own peak, beyond the noise of the problems."""

    kind = "accuracy_collapse"
    rule = (
        "validation accuracy below its own peak so far by more than 10 points and 3 standard errors of "
        "the difference, in two evaluations in succession; the last evaluation alone counts where it is "
        "below by twice that; severe below the base policy"
    )
    source = (
        "ours, after the cliff of arXiv:2606.10931 (.96 at step 225, .74 at 250, .21 at 275); "
        "paired standard error: arXiv:2411.00640"
    )
    needs = (VALIDATION,)
    family = "collapse"

    least: float = 0.10
    """Least fall from the peak, as a share."""
    errors: float = 3.0
    """Least fall in standard errors of the difference: paired over problems where answers were kept."""
    evaluations: int = 2
    """Evaluations in succession."""
    alone: float = 2.0
    """How many times the least fall the last evaluation of a run must show to count by itself."""

    def find(self, history: History) -> list[Event]:
        mode, series = history.evaluated()
        if len(series) < 2:
            return []
        peaks = _peaks(series)
        falls = series.values[peaks] - series.values
        if falls.max() <= self.least:
            return []
        means = {step: mean_scores(scores) for step, scores in history.answers("validation", mode).items()}
        least = np.array(
            [
                max(self.least, self.errors * _error(history, series, means, peak, now))
                for now, peak in enumerate(peaks)
            ]
        )
        falling = spells(series.steps, falls > least, self.evaluations)
        end = len(series) - 1
        is_over = bool(history.about.planned) and int(series.steps[end]) >= history.about.planned
        if is_over and falls[end] > self.alone * least[end] and not (falling and falling[-1].end > end):
            last = int(series.steps[end])
            falling.append(Spell(last, last, None, end, end, end + 1))
        return [self._event(spell, series, peaks, least) for spell in falling]

    def _event(self, spell: Spell, series: Series, peaks: Sequence[int], least: Floats) -> Event:
        steps, values = series.steps, series.values
        peak = int(peaks[spell.first])
        evidence = [
            Evidence(series.name, int(steps[i]), float(values[i]), float(values[peak] - least[i]), False)
            for i in dict.fromkeys((spell.first, spell.confirmed))
        ]
        base = float(values[0]) if steps[0] == 0 else -math.inf
        severe = float(values[spell.first : spell.end].min()) < base
        note = f"peak {values[peak]:.3g} at step {steps[peak]}"
        return self.event(spell, evidence, "severe" if severe else "notable", note)


def _peaks(series: Series) -> list[int]:
    """Index of the highest value until each, itself included; of equal ones the first."""
    peak, peaks = 0, []
    for index, value in enumerate(series.values):
        if value > series.values[peak]:
            peak = index
        peaks.append(peak)
    return peaks


Means = Mapping[str, float]
"""Mean score of each problem in one evaluation."""


def _error(history: History, series: Series, means: Mapping[int, Means], peak: int, current: int) -> float:
    """Standard error of the fall from the peak: paired over problems, else of two shares of so many problems;
    0 where neither is known."""
    peak_means, current_means = (means.get(int(series.steps[index])) for index in (peak, current))
    if peak_means and current_means:
        differences = paired(peak_means, current_means)
        if len(differences) > 1:
            return float(differences.std(ddof=1)) / math.sqrt(len(differences))
    shares = [min(max(float(series.values[index]), 0.0), 1.0) for index in (peak, current)]
    count = history.about.problems
    return math.sqrt(sum(share * (1 - share) for share in shares) / count) if count else 0.0


def mean_scores(scores: Mapping[str, Sequence[float]]) -> Means:
    # Not np.mean, which takes a hundred times as long for a handful of scores.
    return {problem: sum(problem_scores) / len(problem_scores) for problem, problem_scores in scores.items()}


def paired(earlier: Means, later: Means) -> np.ndarray:
    """What each problem has in one evaluation minus what it has in another, over the problems of both."""
    return np.array([earlier[problem] - later[problem] for problem in earlier if problem in later])


@dataclass(frozen=True)
class DiversityLoss(Detector):
    """Problems that the base policy solves in some of many samples and the trained policy does not."""

    kind = "diversity_loss"
    rule = (
        "the paired 95 % interval over problems of pass@k(policy) − pass@k(base) is wholly below 0 at the "
        "largest k (half of the samples) in two evaluations in succession, or in the last one"
    )
    source = "arXiv:2504.13837: the base overtakes at large k; unbiased pass@k: arXiv:2107.03374"
    needs = (("eval/validation/sampled/pass@2",),)

    z: float = 1.96
    """Half-width of the interval in standard errors."""
    evaluations: int = 2
    """Evaluations in succession."""
    fewest: int = 20
    """Problems below which no interval is given."""

    def lacks(self, history: History) -> str:
        if lack := super().lacks(history):
            return lack
        base = history.answers("validation", "sampled").get(0, {})
        fewest = min(map(len, base.values()), default=0)
        if len(base) < self.fewest or fewest < 4:
            return f"the base's answers to {self.fewest} validation problems, four samples of each or more"
        return ""

    def find(self, history: History) -> list[Event]:
        answers = history.answers("validation", "sampled")
        base = answers[0]
        steps = sorted(step for step in answers if step)
        highs = np.array([self._high(base, answers[step]) for step in steps])
        losses = spells(steps, highs < 0, self.evaluations)
        is_over = bool(steps) and bool(history.about.planned) and steps[-1] >= history.about.planned
        if is_over and highs[-1] < 0 and not (losses and losses[-1].end == len(steps)):
            end = len(steps) - 1
            losses.append(Spell(steps[end], steps[end], None, end, end, end + 1))
        k = largest(base)
        name = f"eval/validation/sampled/pass@{k}"
        return [
            self.event(
                spell,
                [Evidence(f"{name} − base, upper end", steps[spell.first], highs[spell.first], 0.0, False)],
            )
            for spell in losses
        ]

    def _high(self, base: Mapping[str, Sequence[float]], answers: Mapping[str, Sequence[float]]) -> float:
        """Upper end of the interval; infinite where there are too few problems."""
        k = largest(base)
        shared_problems = [problem for problem in base if len(answers.get(problem, ())) >= k]
        if len(shared_problems) < self.fewest:
            return math.inf
        curves = [_pass(part, shared_problems, k) for part in (answers, base)]
        differences = curves[0] - curves[1]
        error = float(differences.std(ddof=1)) / math.sqrt(len(shared_problems))
        return float(differences.mean()) + self.z * error


def largest(base: Mapping[str, Sequence[float]]) -> int:
    """The largest k of pass@k: a power of two, at most half of the samples."""
    return doubling(min(map(len, base.values())) // 2)[-1]


def _pass(answers: Mapping[str, Sequence[float]], problems: Sequence[str], k: int) -> np.ndarray:
    return pass_at_k(
        [len(answers[problem]) for problem in problems], [solved(answers[problem]) for problem in problems], k
    )
