"""How often the corrections over pairs of arms err, and what they find, in simulated experiments.

`.venv/bin/python tests/helpers/levels.py` prints the tables of docs/comparisons.md in some minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from grpobench.analysis.statistics.maxima import max_t_ps
from grpobench.analysis.statistics.permutation import holm

Floats: TypeAlias = NDArray[np.float64]
Draw: TypeAlias = Callable[[np.random.Generator, int, int], Floats]
REPETITIONS = 4000
LEVEL = 0.05
SEED = 0


def _normal(rng: np.random.Generator, seeds: int, arms: int) -> Floats:
    return rng.normal(size=(seeds, arms))


def _correlated(rng: np.random.Generator, seeds: int, arms: int) -> Floats:
    """The second arm repeats most of the first's noise."""
    errors = rng.normal(size=(seeds, arms))
    errors[:, 1] = 0.9 * errors[:, 0] + 0.44 * errors[:, 1]
    return errors


def _skewed(rng: np.random.Generator, seeds: int, arms: int) -> Floats:
    return np.asarray(rng.lognormal(size=(seeds, arms)) - np.exp(0.5))


def _crashes(rng: np.random.Generator, seeds: int, arms: int) -> Floats:
    """A tenth of all runs lose twenty standard deviations."""
    return rng.normal(size=(seeds, arms)) - 20.0 * (rng.random((seeds, arms)) < 0.1) + 2.0


def _coarse(rng: np.random.Generator, seeds: int, arms: int) -> Floats:
    """Solved problems of 20, at a rate of .9: many ties."""
    return np.asarray(rng.binomial(20, 0.9, (seeds, arms)) - 18.0)


def _unequal(rng: np.random.Generator, seeds: int, arms: int) -> Floats:
    return rng.normal(size=(seeds, arms)) * np.linspace(1, 4, arms)


def _both(rng: np.random.Generator, seeds: int, arms: int) -> Floats:
    return np.asarray((rng.exponential(size=(seeds, arms)) - 1) * np.linspace(1, 3, arms))


ERRORS: Mapping[str, Draw] = {
    "normal": _normal,
    "normal, two arms correlated by .9": _correlated,
    "normal, SD from 1 to 4": _unequal,
    "log-normal": _skewed,
    "a tenth of the runs crashes": _crashes,
    "20 problems, many ties": _coarse,
    "exponential, SD from 1 to 3": _both,
}
"""Errors of arms inside a seed, with mean 0."""
SYMMETRIC = tuple(ERRORS)[:3]
"""Those for which joint flips are exact."""
NULLS: Mapping[str, tuple[float, ...]] = {
    "all arms equal": (0, 0, 0, 0),
    "one arm better": (0, 0, 0, 2),
    "two pairs of equal arms": (0, 0, 1.5, 1.5),
}
"""Means of four arms in units of a usual error."""
CASES = ((6, 2.0), (8, 1.5), (10, 1.25))
"""(seeds, effect) of the tables of power."""


def is_possible(pairs: Sequence[tuple[str, str]], equal: Sequence[tuple[str, str]]) -> bool:
    """Whether exactly these pairs can be equal: no other pair is linked by equal ones."""
    linked = {arm: {arm} for pair in pairs for arm in pair}
    for a, b in equal:
        merged = linked[a] | linked[b]
        linked |= dict.fromkeys(merged, merged)
    return all(pair in equal for pair in pairs if pair[1] in linked[pair[0]])


def adjusted(scores: Floats, control: bool = False) -> tuple[list[tuple[int, int]], Floats, Floats]:
    """The pairs of arms, or those of the first one, and p after max-T and after Holm; `scores` is (seeds,
    arms)."""
    pairs = [pair for pair in combinations(range(scores.shape[1]), 2) if not (control and pair[0])]
    p, together = max_t_ps(
        {(str(a), str(b)): dict(enumerate(map(float, scores[:, a] - scores[:, b]))) for a, b in pairs}
    )
    return pairs, np.array(together), holm(p)


def errors(
    draw: Draw, means: Sequence[float], seeds: int, repetitions: int, control: bool = False
) -> tuple[float, float]:
    """Share of experiments in which any pair of equal arms is called different, or any verdict has the wrong
    sign: under max-T and under Holm, over all pairs or those of the first arm."""
    rng = np.random.default_rng(SEED)
    wrong = np.zeros(2)
    for _ in range(repetitions):
        scores = draw(rng, seeds, len(means)) + np.array(means)
        pairs, *both = adjusted(scores, control)
        shown = np.array([np.mean(scores[:, a] - scores[:, b]) for a, b in pairs])
        true = np.array([means[a] - means[b] for a, b in pairs])
        false = np.sign(shown) != np.sign(true)
        wrong += [bool(np.any(false & (p <= LEVEL))) for p in both]
    return float(wrong[0] / repetitions), float(wrong[1] / repetitions)


def power(arms: int, seeds: int, effect: float, repetitions: int) -> Sequence[float]:
    """Share of the differences found of one arm that is better than all others by an effect, in SD of the
    paired differences: among all pairs by max-T and by Holm, where it is the control by max-T and by Holm."""
    rng = np.random.default_rng(SEED)
    hits = np.zeros(4)
    for _ in range(repetitions):
        scores = rng.normal(size=(seeds, arms)) / np.sqrt(2)
        scores[:, 0] += effect
        pairs, *among = adjusted(scores)
        of_first = [index for index, pair in enumerate(pairs) if pair[0] == 0]
        _, *alone = adjusted(scores, control=True)
        hits += [float(np.mean(p <= LEVEL)) for p in (*(p[of_first] for p in among), *alone)]
    shares: list[float] = (hits / repetitions).tolist()
    return shares


def level_lines(repetitions: int = REPETITIONS) -> list[str]:
    """Rows of the table of errors, four arms and eight seeds, in %."""
    lines = []
    for name, draw in ERRORS.items():
        cells = [errors(draw, means, 8, repetitions) for means in NULLS.values()]
        shown = " | ".join(f"{100 * m:.1f} / {100 * h:.1f}" for m, h in cells)
        lines.append(f"| {name} | {shown} |")
    return lines


def power_lines(repetitions: int = REPETITIONS) -> list[str]:
    """Rows of the table of power, in %."""
    lines = []
    for arms in (3, 4, 5):
        cells = [power(arms, *case, repetitions)[:2] for case in CASES]
        shown = " | ".join(f"{100 * m:.0f} / {100 * h:.0f}" for m, h in cells)
        lines.append(f"| {arms} | {shown} |")
    return lines


def level_of_control_lines(repetitions: int = REPETITIONS) -> list[str]:
    """Rows of the table of errors over the pairs of a control, four arms and eight seeds, in %."""
    lines = []
    for name, draw in ERRORS.items():
        cells = [errors(draw, means, 8, repetitions, control=True)[0] for means in NULLS.values()]
        lines.append(f"| {name} | {' | '.join(f'{100 * share:.1f}' for share in cells)} |")
    return lines


def power_of_control_lines(repetitions: int = REPETITIONS) -> list[str]:
    """Rows of the table of power with and without a control, in %."""
    lines = []
    for arms in (3, 4, 6, 10):
        cells = [power(arms, *case, repetitions) for case in CASES]
        shown = " | ".join(" / ".join(f"{100 * cell[i]:.0f}" for i in (2, 0, 3)) for cell in cells)
        lines.append(f"| {arms} | {shown} |")
    return lines


if __name__ == "__main__":
    print("\n".join(["| errors |" + "|".join(f" {name} " for name in NULLS) + "|", *level_lines()]))
    print("\n".join(["", "| arms | 6 seeds, 2 SD | 8 seeds, 1.5 SD | 10 seeds, 1.25 SD |", *power_lines()]))
    print("\n".join(["", "| errors |" + "|".join(f" {name} " for name in NULLS) + "|"]))
    print("\n".join(level_of_control_lines()))
    print("\n".join(["", "| arms | 6 seeds, 2 SD | 8 seeds, 1.5 SD | 10 seeds, 1.25 SD |"]))
    print("\n".join(power_of_control_lines()))
