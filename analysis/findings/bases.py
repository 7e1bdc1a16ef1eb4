"""Findings over several bases: intervals are over bases, and over seeds that these share."""

# Every run of an arm begins with the same weights, so an interval over seeds is about one base. A finding
# with `bases = "warm_start_seed"` reads the base of a run from its arm: `grpo+warm_start_seed-2` is the arm
# `grpo` on the base 2. Arms are compared inside a base and a seed.

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from grpobench.analysis.findings.contrasts import SEEDS_PER_BASE, repetitions
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.result import Judged
from grpobench.analysis.statistics.intervals import Estimate, seed_mean, standard_error, t_quantile
from grpobench.analysis.statistics.permutation import sign_flip_p, smallest_p

Number = TypeVar("Number", float, int, "int | None")


def split_arm(arm: str, setting: str) -> tuple[str, str]:
    """An arm without its base, and the base: the value of the setting in the arm's name, "" without one."""
    parts = arm.split("+")
    bases = [part for part in parts[1:] if setting and part.startswith(f"{setting}-")]
    base = bases[0].removeprefix(f"{setting}-") if bases else ""
    return "+".join(part for part in parts if part not in bases), base


def numbered(values: Mapping[Key, Number], setting: str) -> dict[Key, Number]:
    """Values of runs with the base in place of the arm's name in the number of the seed."""
    if not setting:
        return dict(values)
    names = sorted({split_arm(arm, setting)[1] for arm, _, _ in values})
    moved: dict[Key, Number] = {}
    for (arm, task, seed), value in values.items():
        plain_arm, base = split_arm(arm, setting)
        moved[plain_arm, task, seed + SEEDS_PER_BASE * names.index(base)] = value
    return moved


def means_of_bases(contrasts: Mapping[int, float]) -> list[float]:
    """The mean over seeds of each base, from contrasts by seed and base."""
    by_base: dict[int, list[float]] = {}
    for seed, contrast in contrasts.items():
        by_base.setdefault(seed // SEEDS_PER_BASE, []).append(contrast)
    return [float(np.mean(of_base)) for of_base in by_base.values()]


def mean_over_bases(contrasts: Mapping[int, float]) -> Estimate:
    """The mean over bases of their means over seeds, from contrasts by seed and base, with its t interval
    over bases; of one base `seed_mean`.

    What a seed does on every base makes bases no more different, so that an interval over bases leaves it
    out. Where bases share seeds, the squared standard errors over bases and over seeds are therefore added,
    with Satterthwaite's degrees of freedom (An approximate distribution of estimates of variance components,
    Biometrics Bulletin 2:110–114, 1946), and the wider one of both intervals holds. The sum counts the
    scatter of single runs twice, and errs on that side. With one shared seed there is no interval."""
    means, shared = means_of_bases(contrasts), [*repetitions(contrasts).values()]
    if len(means) < 2:
        return seed_mean([*contrasts.values()])
    mean = seed_mean(means)
    if len(shared) == len(contrasts):
        return mean
    if len(shared) < 2:
        return Estimate(mean.value, math.nan, math.nan)
    squares = np.array([standard_error(means), standard_error(shared)]) ** 2
    degrees = np.array([len(means), len(shared)]) - 1
    if not (total := float(squares.sum())):
        return mean
    freedom = total**2 / float((squares**2 / degrees).sum())
    half = float(t_quantile(freedom)) * math.sqrt(total)
    return Estimate(mean.value, min(mean.low, mean.value - half), max(mean.high, mean.value + half))


def over_bases(test_result: Judged) -> Judged:
    """The judged test with the mean and interval of `mean_over_bases`. Its p says what holds on these bases.
    A verdict stands only if the interval says the same: it lies on one side of 0, or inside what matters."""
    contrasts = dict(zip(test_result.seeds, test_result.contrasts, strict=True))
    means, test = means_of_bases(contrasts), test_result.test
    mean, count = mean_over_bases(contrasts), len(means)
    effect = Estimate(*(math.exp(end) if test.ratio else end for end in (mean.value, mean.low, mean.high)))
    p = sign_flip_p(means)
    words = f"over {count} bases p {p:.3g} (smallest possible {smallest_p(count):.2g})"
    changed = replace(test_result, effect=effect, bases=count, needs=f"{test_result.needs}; {words}")
    within = test.bounds[0] < mean.low and mean.high < test.bounds[1]  # NaN is neither
    changed = replace(changed, inside=test_result.inside and within)
    stands = within if test_result.says_none else mean.low > 0 or mean.high < 0
    if test_result.verdict not in ("supported", "contradicted", "equivalent") or stands:
        return changed
    needs = f"the interval over {count} bases says nothing; on these bases {test_result.verdict}"
    return replace(changed, verdict="unresolved", shown="unresolved", needs=f"{needs} ({changed.needs})")
