"""Algorithms that a reader names against each other: on which probes they differ in score and in failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpobench.analysis.figures.table import plain
from grpobench.analysis.profile.curves import RatePoint
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.profile.scores import Profile
from grpobench.analysis.profile.table import check_known, clean
from grpobench.analysis.statistics.moderated import (
    FDR,
    RESOLUTION,
    AlgorithmPair,
    benjamini_hochberg,
    compare_some,
)
from grpobench.analysis.tools.text import NONE, fold, interval, listed, signed

MOST_DETAILED = 10
"""Most pairs whose differences are listed one by one."""


@dataclass(frozen=True)
class FailurePair:
    """The failures of two algorithms on a probe."""

    first: RatePoint
    second: RatePoint
    p: float
    """Fisher's exact test, two-sided, of equal chances to fail; NaN where failures are not recorded."""
    q: float
    """Its Benjamini–Hochberg value over the pairs that were compared with it."""

    @property
    def told_apart(self) -> bool:
        return self.q <= FDR

    @property
    def difference(self) -> float:
        """Share of the first's runs that fail minus that of the second's."""
        shares = [
            len(point.failed) / point.runs if point.failed is not None and point.runs else math.nan
            for point in (self.first, self.second)
        ]
        return shares[0] - shares[1]

    @property
    def text(self) -> str:
        """`3/8 to 0/8`; a dash where neither is recorded."""
        texts = self.first.failures, self.second.failures
        return NONE if set(texts) == {NONE} else " to ".join(texts)


def compare_failures(points: Sequence[tuple[RatePoint, RatePoint]]) -> list[FailurePair]:
    """The failures of pairs, corrected together."""
    p = np.array([_fisher(first, second) for first, second in points])
    tested = np.isfinite(p)
    q = np.full(len(p), math.nan)
    if tested.any():
        q[tested] = benjamini_hochberg(p[tested])
    return [
        FailurePair(*pair, *numbers) for pair, *numbers in zip(points, p.tolist(), q.tolist(), strict=True)
    ]


def _fisher(first: RatePoint, second: RatePoint) -> float:
    if first.failed is None or second.failed is None or not (first.runs and second.runs):
        return math.nan
    if not first.failed and not second.failed:
        return 1.0
    from scipy import stats  # the import takes a second, and few pairs have failures

    table = [[len(point.failed or ()), point.runs - len(point.failed or ())] for point in (first, second)]
    return float(stats.fisher_exact(table).pvalue)


@dataclass(frozen=True)
class ProbePair:
    """Two algorithms on a probe, each at its best rate."""

    probe: Probe
    first: str
    second: str
    score: AlgorithmPair | None
    """None where one of them has no score."""
    failures: FailurePair

    @property
    def side(self) -> int:
        """1 where the first scores higher, −1 where it scores lower, 0 where they are not told apart."""
        return int(self.score.told_apart * math.copysign(1, self.score.difference)) if self.score else 0

    def row(self) -> dict[str, Any]:
        """The numbers as plain values."""
        score, failures = self.score, self.failures
        return {
            "probe": self.probe.name,
            "first": self.first,
            "second": self.second,
            "difference": score.difference if score else math.nan,
            "low": score.low if score else math.nan,
            "high": score.high if score else math.nan,
            "p": score.p if score else math.nan,
            "q": score.q if score else math.nan,
            "told_apart": bool(score and score.told_apart),
            "failures_first": failures.first.failures,
            "failures_second": failures.second.failures,
            "failures_p": failures.p,
            "failures_q": failures.q,
            "failures_told_apart": failures.told_apart,
        }


@dataclass(frozen=True)
class Matrix:
    """Named algorithms (columns) against others (rows) on all probes."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    pairs: Mapping[tuple[str, str], tuple[ProbePair, ...]]
    """By (column, row), with the column's algorithm first: a pair for each probe with runs of both."""

    def differing_from(self, algorithm: str) -> list[str]:
        """The algorithms of the rows from which any probe tells one of the columns by its score."""
        return [row for row in self.rows if any(p.side for p in self.pairs.get((algorithm, row), ()))]


def matrix(profile: Profile, algorithms: Sequence[str], against: Sequence[str] = ()) -> Matrix:
    """`algorithms` against each other, or against those of `against`.

    q is over the pairs of the matrix on a probe; variances are moderated over all algorithms of the profile.
    Raises ValueError for an algorithm without runs, and for a matrix without pairs."""
    columns, rows = tuple(dict.fromkeys(algorithms)), tuple(dict.fromkeys(against or algorithms))
    for name in columns:
        check_known(profile, name)
    for name in rows:
        check_known(profile, name, "--against")
    cells = [(column, row) for column in columns for row in rows if column != row]
    once = [pair for i, pair in enumerate(cells) if pair[::-1] not in cells[:i]]
    if not once:
        raise ValueError("a matrix needs two algorithms; name another one, or several after --against")
    pairs: dict[tuple[str, str], list[ProbePair]] = {}
    for probe in profile.probes.values():
        for pair in _on_probe(profile, probe, once):
            pairs.setdefault((pair.first, pair.second), []).append(pair)
            if (pair.second, pair.first) in cells:
                pairs.setdefault((pair.second, pair.first), []).append(_turned(pair))
    return Matrix(columns, rows, {names: tuple(of_pair) for names, of_pair in pairs.items()})


def _on_probe(profile: Profile, probe: Probe, names: Sequence[tuple[str, str]]) -> list[ProbePair]:
    """The pairs with runs of both on a probe."""
    points = profile.best.points.get(probe.name, {})
    run = [pair for pair in names if pair[0] in points and pair[1] in points]
    scores = profile.scores.get(probe.name, {})
    scored = [pair for pair in run if pair[0] in scores and pair[1] in scores]
    by_pair = dict(zip(scored, compare_some(scores, scored), strict=True)) if scored else {}
    failures = compare_failures([(points[a], points[b]) for a, b in run])
    return [
        ProbePair(probe, *pair, by_pair.get(pair), failure_pair)
        for pair, failure_pair in zip(run, failures, strict=True)
    ]


def _turned(pair: ProbePair) -> ProbePair:
    """The same pair with the second algorithm first."""
    score, failures = pair.score, pair.failures
    turned_score = score and replace(
        score,
        first=score.second,
        second=score.first,
        difference=-score.difference,
        low=-score.high,
        high=-score.low,
    )
    turned_failures = replace(failures, first=failures.second, second=failures.first)
    return ProbePair(pair.probe, pair.second, pair.first, turned_score, turned_failures)


# Text


def matrix_lines(shown: Matrix) -> list[str]:
    """The matrix as a Markdown table, with a sentence for each column, and the differences of few pairs."""
    head = ["", *map(clean, shown.columns)]
    rows = [
        [clean(row), *(_cell(shown, column, row) for column in shown.columns)]
        for row in shown.rows
        if row not in shown.columns or len(shown.columns) > 1
    ]
    recorded = any(not math.isnan(pair.failures.p) for of_pair in shown.pairs.values() for pair in of_pair)
    note = (
        "A cell: on how many probes the algorithm of the column scores higher and lower than that of the "
        "row, each at its best rate, of how many probes with scores of both. The tests are of differences "
        f"larger than {RESOLUTION}, q ≤ {FDR} over the pairs of this table on a probe."
    )
    note += (
        f" Fails more, fails less: shares of failing seeds that differ (Fisher's exact test, q ≤ {FDR})."
        if recorded
        else " The kept runs do not record failures; `--rates 0.5,1,2` runs them again."
    )
    text = [*plain(head, rows, len(head)).markdown(padded=True), "", fold(note), ""]
    text += [fold(f"- {_sentence(shown, column)}") for column in shown.columns]
    once = [pair for pair in shown.pairs if pair[::-1] not in shown.pairs or pair < pair[::-1]]
    if len(once) <= MOST_DETAILED:
        text += ["", *_differences([pair for names in once for pair in shown.pairs[names]])]
    return text


def _cell(shown: Matrix, column: str, row: str) -> str:
    if column == row:
        return ""
    pairs = shown.pairs.get((column, row), ())
    if not pairs:
        return NONE
    counts = [
        (sum(pair.side == side for pair in pairs), word) for side, word in ((1, "higher"), (-1, "lower"))
    ]
    failures_apart = [pair.failures for pair in pairs if pair.failures.told_apart]
    counts += [
        (sum(failures.difference * sign > 0 for failures in failures_apart), word)
        for sign, word in ((1, "fails more"), (-1, "fails less"))
    ]
    words = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{words or 'none'} of {sum(pair.score is not None for pair in pairs)}"


def _sentence(shown: Matrix, algorithm: str) -> str:
    """From how many algorithms the probes tell one, in words."""
    others = [row for row in shown.rows if row != algorithm]
    differing = shown.differing_from(algorithm)
    by_probe: dict[str, int] = {}
    for row in others:
        for pair in shown.pairs.get((algorithm, row), ()):
            by_probe[pair.probe.title] = by_probe.get(pair.probe.title, 0) + abs(pair.side)
    counts = sorted(((count, title) for title, count in by_probe.items() if count), reverse=True)
    parts = [f"{title} from {count}" for count, title in counts]
    fails = [
        row
        for row in others
        if any(pair.failures.told_apart for pair in shown.pairs.get((algorithm, row), ()))
    ]
    text = f"By score, at least one probe tells {clean(algorithm)} from {len(differing)} of {len(others)}"
    text += f": {listed(parts, len(parts))}" if parts else ""
    return f"{text}. Failures tell it from {len(fails)}." if fails else f"{text}."


def _differences(pairs: Sequence[ProbePair]) -> list[str]:
    """The pairs that are told apart by score or by failures, one by one."""
    rows = [
        [
            pair.probe.title,
            f"{clean(pair.first)} − {clean(pair.second)}",
            (
                f"{signed(pair.score.difference)} ({interval(pair.score.low, pair.score.high, signed)})"
                if pair.score
                else NONE
            ),
            pair.failures.text,
            " and ".join(
                ["score"] * bool(pair.side) + ["failures"] * pair.failures.told_apart,
            ),
        ]
        for pair in pairs
        if pair.side or pair.failures.told_apart
    ]
    if not rows:
        return ["No probe tells any two of them apart."]
    head = ["probe", "algorithms", "difference (95 % interval)", "failing seeds", "told apart by"]
    return plain(head, rows, len(head)).markdown(padded=True)
