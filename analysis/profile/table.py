"""Scores of a profile as tables for a terminal or a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from grpobench.analysis.figures.table import plain
from grpobench.analysis.profile.curves import ProbeCurve
from grpobench.analysis.profile.scores import COMMON_RATE, FEWEST_SEEDS, GATE_SCORE, Profile
from grpobench.analysis.statistics.moderated import AlgorithmPair, AlgorithmScore
from grpobench.analysis.tools.text import NONE, fold, interval, listed, signed, two, visible

PER_TABLE = 5
"""Most probes side by side, so that a table fits a terminal."""
MOST_NAMES = 5
"""Most names of algorithms in a cell."""


def lines(profile: Profile, algorithm: str | None = None) -> list[str]:
    """Markdown tables of all algorithms, or of one. Rows are not ranks. Raises ValueError for an algorithm
    without runs, and for a profile without scores."""
    names = scored_probes(profile)
    if not names or not algorithms_with_runs(profile):
        raise ValueError("profile: no scores are kept; run grpobench profile first")
    if algorithm is not None:
        return _one(profile, algorithm, names)
    text: list[str] = []
    for start in range(0, len(names), PER_TABLE):
        text += [*_all(profile, names[start : start + PER_TABLE]), ""]
    return text + _notes(profile, names)


def scored_probes(profile: Profile) -> list[str]:
    """Probes on which any algorithm has a score or runs, in the order of the profile."""
    return [name for name in profile.probes if profile.scores.get(name) or profile.gated.get(name)]


def algorithms_with_runs(profile: Profile) -> list[str]:
    """Algorithms with a score or with runs, by name."""
    return sorted({*profile.algorithms, *(name for names in profile.gated.values() for name in names)})


def check_known(profile: Profile, algorithm: str, role: str = "algorithm") -> None:
    """Raises ValueError for an algorithm without runs on any probe."""
    algorithms = algorithms_with_runs(profile)
    if algorithm not in algorithms:
        remedy = f"known: {', '.join(algorithms)}; run grpobench profile {algorithm} for others"
        raise ValueError(f"{role}: {algorithm!r} has no kept runs; {remedy}")


def gate_of(profile: Profile) -> str:
    """The probe without a dose that others refer to; the first one where none does."""
    return next(
        (probe.against for probe in profile.probes.values() if probe.against), next(iter(profile.probes))
    )


def mean_of(profile: Profile, probe: str, algorithm: str) -> float:
    """The mean score over seeds, NaN without one."""
    return mean_known(scores_on(profile, probe, algorithm).values())


def mean_known(values: Iterable[float]) -> float:
    """The mean of those that are not NaN; NaN without one."""
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def scores_on(profile: Profile, probe: str, algorithm: str) -> Mapping[int, float]:
    return profile.scores.get(probe, {}).get(algorithm, {})


def ordered(profile: Profile) -> list[str]:
    """The algorithms by their mean score on the gate, from the highest on; those without one last."""
    names = algorithms_with_runs(profile)
    means = {name: mean_of(profile, gate_of(profile), name) for name in names}
    return sorted(names, key=lambda name: (math.isnan(means[name]), -means[name], name))


# Tables


def rate_text(rate: float) -> str:
    """A learning rate: 3e−4, 1e−2."""
    digits, power = f"{rate:e}".split("e")
    return f"{float(digits):g}e−{-int(power)}" if 0 < rate < 0.1 else f"{rate:g}"


def clean(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(visible(text).split()).replace("|", "\\|")


def score_text(cell: AlgorithmScore | None, mean: float = math.nan) -> str:
    """`mean ± half-width` of the 95 % interval; the mean alone without an interval."""
    return two(mean) if cell is None else f"{two(cell.mean)} ± {two((cell.high - cell.low) / 2)}"


def range_text(cell: AlgorithmScore | None, mean: float = math.nan) -> str:
    """`mean (low to high)`."""
    return two(mean) if cell is None else f"{two(cell.mean)} ({two(cell.low)} to {two(cell.high)})"


def _all(profile: Profile, probes: Sequence[str]) -> list[str]:
    head = ["algorithm", *(profile.probes[name].title for name in probes)]
    rows = [[name, *(_entry(profile, probe, name) for probe in probes)] for name in ordered(profile)]
    return plain(head, rows, len(head)).markdown(padded=True)


def _entry(profile: Profile, probe: str, algorithm: str) -> str:
    point = profile.at_best(probe, algorithm)
    fails = f", {point.failures} fail" if point.failed else ""
    if algorithm in profile.gated.get(probe, ()):
        return f"{NONE}{fails}"
    if not scores_on(profile, probe, algorithm):
        return ""
    return f"{score_text(profile.cell(probe, algorithm), mean_of(profile, probe, algorithm))}{fails}"


def _notes(profile: Profile, probes: Sequence[str]) -> list[str]:
    notes = [
        fold(
            "Mean score at the best rate, over the seeds that do not fail, ± half the width of its 95 % "
            "interval. 2/8 fail: two of eight seeds fail. Intervals that do not overlap are no test, and the "
            "order of rows is no ranking: `grpobench profile grpo --against all` says from which algorithms "
            "the probes tell GRPO."
        ),
    ]
    if unrecorded := unrecorded_probes(profile, probes):
        every = len(unrecorded) == len(probes)
        where = "" if every else f" on {listed(unrecorded, len(unrecorded))}"
        notes += [
            "",
            fold(f"The kept runs{where} do not record failures: scores may average over failed runs."),
        ]
    if any(profile.gated.get(name) for name in probes):
        notes += ["", fold(f"{NONE}: {gated_text(profile)}")]
    if any(
        not scores_on(profile, probe, name) and name not in profile.gated.get(probe, ())
        for probe in probes
        for name in algorithms_with_runs(profile)
    ):
        notes += ["", "Empty: no runs are kept."]
    return notes


def unrecorded_probes(profile: Profile, probes: Sequence[str]) -> list[str]:
    """The titles of probes with runs at best rates whose rows do not record failures. Probes that average
    over rates count failed runs."""
    return [
        profile.probes[name].title
        for name in probes
        if profile.probes[name].runs != "ladder"
        and any(point.failed is None for point in profile.best.points.get(name, {}).values())
    ]


def gated_text(profile: Profile) -> str:
    """Why an algorithm with runs can lack a score."""
    return (
        f"runs without a score. The algorithm has less than {two(GATE_SCORE)} on "
        f"`{profile.probes[gate_of(profile)].title}`, so that robustness says nothing of it, or fewer than "
        f"{FEWEST_SEEDS} seeds do not fail and reach what the probe measures."
    )


# One algorithm


def split_by_side(pairs: Sequence[AlgorithmPair]) -> tuple[list[str], list[str]]:
    """The others that an algorithm scores higher and lower than, of those that it is told apart from."""
    apart = [pair for pair in pairs if pair.told_apart]
    higher_than = [pair.second for pair in apart if pair.difference > 0]
    return higher_than, [pair.second for pair in apart if pair.difference < 0]


def _one(profile: Profile, algorithm: str, probes: Sequence[str]) -> list[str]:
    check_known(profile, algorithm)
    head = [
        "probe",
        "score (95 % interval)",
        "fails",
        "of",
        "higher than",
        "lower than",
        f"at {rate_text(COMMON_RATE)}",
        "loss below",
        "loss above",
    ]
    rows = []
    for name in probes:
        title = profile.probes[name].title
        point = profile.at_best(name, algorithm)
        common = common_text(profile, name, algorithm)
        losses = [loss_text(profile.curve(name, algorithm), side) for side in (-1, 1)]
        if not scores_on(profile, name, algorithm):
            gated = NONE if algorithm in profile.gated.get(name, ()) else ""
            rows.append([title, gated, point.failures if point.runs else "", "", "", "", common, *losses])
            continue
        mean = mean_of(profile, name, algorithm)
        pairs = profile.against(algorithm, name)
        higher_than, lower_than = split_by_side(pairs)
        rows.append(
            [
                title,
                range_text(profile.cell(name, algorithm), mean),
                point.failures,
                str(len(pairs)),
                _names(higher_than),
                _names(lower_than),
                common,
                *losses,
            ]
        )
    notes = [
        fold(
            "Score: at the best rate, over the seeds that do not fail. Fails: failing seeds of all. Higher "
            "and lower: algorithms of which it is told apart by q ≤ 0.05, over the pairs of this algorithm "
            "on a probe, from the best on. Loss: how much lower the score is at the nearest rate tried of "
            "half or less, and of twice or more, with its 95 % interval; negative where that rate is better."
        ),
    ]
    if any(algorithm in profile.gated.get(name, ()) for name in probes):
        notes += ["", fold(f"{NONE}: {gated_text(profile)}")]
    return [*plain(head, rows, len(head)).markdown(padded=True), "", *notes]


def common_text(profile: Profile, probe: str, algorithm: str) -> str:
    """The score at the common rate, with failing seeds; empty without runs."""
    point = profile.at_common(probe, algorithm)
    if not point.runs:
        return ""
    fails = f", {point.failures} fail" if point.failed else ""
    return f"{two(point.score.value)}{fails}"


def loss_text(curve: ProbeCurve, side: int) -> str:
    """What the algorithm loses at the rate below (−1) or above (1) its best one, with failing seeds there;
    empty without runs."""
    point, loss = curve.beside(side), curve.loss(side)
    if not point.runs:
        return ""
    ends = "" if math.isnan(loss.low) else f" ({interval(loss.low, loss.high, signed)})"
    fails = f", {point.failures} fail" if point.failed else ""
    return f"{signed(loss.value)}{ends} at {rate_text(point.rate)}{fails}"


def _names(names: Sequence[str]) -> str:
    return f"{len(names)}: {listed(names, MOST_NAMES)}" if names else "0"
