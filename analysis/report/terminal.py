"""Verdicts as a terminal shows them when the runs of an experiment have ended."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.statistics.verdicts import points as margin_points
from grpobench.analysis.tools.text import interval, listed, number, p_value, points
from grpobench.analysis.topics.rates import RateStudy

MOST = 6
"""Most pairs that a line names."""


def verdict_lines(compared: Sequence[Comparison], control: str = "") -> list[str]:
    """With a control a line per pair, otherwise a line per task; none where nothing was compared."""
    if control:
        return [describe_pair(pair) for pair in compared]
    tasks = dict.fromkeys(pair.task for pair in compared)
    return [describe_task(task, [pair for pair in compared if pair.task == task]) for task in tasks]


def rate_lines(study: RateStudy | None) -> list[str]:
    """What holds over learning rates: a line per pair, and one per task for pairs that are unresolved or wait
    for runs. None where each arm has one rate."""
    lines = []
    open_pairs: dict[tuple[str, str], list[str]] = {}
    for pair in study.pairs if study else ():
        if pair.conclusion in ("unresolved", "waits"):
            open_pairs.setdefault((pair.task, pair.words), []).append(f"{pair.first} − {pair.second}")
        else:
            lines.append(pair.text)
    return lines + [f"{task}: {words}: {listed(names, MOST)}" for (task, words), names in open_pairs.items()]


def describe_pair(pair: Comparison) -> str:
    """`arithmetic: mine is better than grpo by 2.1 points (0.8 to 3.4), adjusted p 0.031`."""
    first, second = pair.first, pair.second
    if pair.verdict in ("better", "worse"):
        shown = pair if pair.verdict == "better" else pair.turned()
        size = f"{number(100 * shown.effect, 1)} points ({interval(shown.low, shown.high, points)})"
        if pair.small:
            size += f", within {margin_points(pair.margin)} points"
        p = f"adjusted p {p_value(pair.p_adjusted)}"
        return f"{pair.task}: {first} is {pair.verdict} than {second} by {size}, {p}"
    size = f"difference {points(pair.effect)} points ({interval(pair.low, pair.high, points)})"
    if pair.verdict == "equivalent":
        p = f"Holm p {p_value(pair.p_equivalence_holm)}"
        return f"{pair.task}: {pair.words} between {first} and {second}: {size}, {p}"
    why = pair.needs
    if not math.isnan(pair.seeds_wanted):
        why = f"{size}, adjusted p {p_value(pair.p_adjusted)}; {_enough(pair.seeds_wanted)}"
    return f"{pair.task}: {first} and {second} are unresolved: {why}"


def _enough(seeds: float) -> str:
    """How many seeds would find a difference of this size."""
    if math.isinf(seeds):
        return f"more than {power.MOST_SEEDS:,} seeds would be needed to find it"
    return f"about {seeds:.0f} seeds would find it"


def describe_task(task: str, pairs: Sequence[Comparison]) -> str:
    """`arithmetic: gspo > grpo by 3.1 points; unresolved: grpo − ppo (about 24 seeds)`."""
    by_size = sorted(pairs, key=lambda pair: -abs(pair.effect))
    differ = [
        f"{pair.text} by {number(100 * abs(pair.effect), 1)}"
        for pair in by_size
        if pair.verdict in ("better", "worse")
    ]
    close = [pair for pair in pairs if pair.verdict == "equivalent"]
    open_pairs = [pair for pair in pairs if pair.verdict == "unresolved"]
    parts = [f"{listed(differ, MOST)} points"] if differ else []
    parts += [f"{close[0].words}: {listed([pair.text for pair in close], MOST)}"] if close else []
    parts += [f"unresolved: {_unresolved(open_pairs, len(pairs))}"] if open_pairs else []
    return f"{task}: {'; '.join(parts)}"


def _unresolved(pairs: Sequence[Comparison], every: int) -> str:
    """The pairs, and how many seeds would find the nearest of the differences."""
    names = [f"{pair.first} − {pair.second}" for pair in pairs]
    text = f"all {every} pairs" if len(pairs) == every > 1 else listed(names, MOST)
    needed = seeds_needed(ALPHA)
    if all(len(pair.seeds) < needed for pair in pairs):
        return f"{text} (a difference takes {needed} seeds)"
    seed_counts = [pair.seeds_wanted for pair in pairs if math.isfinite(pair.seeds_wanted)]
    if not seed_counts:
        return text
    fewest = f"about {min(seed_counts):.0f} seeds"
    return f"{text} ({fewest} would find {'it' if len(pairs) == 1 else 'the first of them'})"
