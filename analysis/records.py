"""Rank kept results by the tokens that a policy generates until it reaches an accuracy on validation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from grpobench.analysis.kept import KeptTable
from grpobench.analysis.statistics.survival import paired_log_rank

LEVELS = (0.5, 0.7, 0.9)
"""Accuracies of greedy answers to the validation problems that are targets."""
MODE = "greedy"
"""Sampled answers of the base differ between seeds, so that two tables could not be seen to share a base."""
FEWEST_SEEDS = 3
"""Seeds of an arm below which it is not ranked."""
FEWEST_PAIRS = 6
"""Shared seeds below which no p below 1/20 exists: 2/2⁵ is above it."""
ALPHA = 0.05
SEARCH = "grpobench search"


@dataclass(frozen=True)
class Target:
    """What is to be reached, from where. Tables do not hold the base, only its accuracy on the validation
    problems, which another base, other problems or another prompt change, unless by chance."""

    task: str
    base: float
    level: float


@dataclass(frozen=True)
class RecordEntry:
    """An arm of a table, and what each of its seeds generated until the target."""

    source: str
    """Name of the table; of a contribution CONTRIBUTION/TABLE."""
    arm: str
    tokens: Mapping[int, float]
    """By seed, generated tokens at the first evaluation at or above the level, else at the last one."""
    reached: Mapping[int, bool]
    rate: float | None
    """The policy's learning rate, where the table says it."""
    machine: Sequence[str]

    @property
    def median(self) -> float:
        """Median over seeds of the tokens until the target; infinite where half of them never reach it."""
        return median(count if self.reached[seed] else math.inf for seed, count in self.tokens.items())


@dataclass(frozen=True)
class RankedRecord:
    """An entry in the order of a target, and how it compares with the next."""

    entry: RecordEntry
    shared: int
    """Seeds that both have."""
    wins: int
    """Of these, the seeds at which this entry generated fewer tokens."""
    p: float
    """Of the paired log-rank test against the entry that held the record without this one; NaN for the last
    entry, and with fewer than `FEWEST_PAIRS` shared seeds."""

    @property
    def verdict(self) -> str:
        if math.isnan(self.p):
            return "not compared"
        return "faster" if self.p <= ALPHA and 2 * self.wins > self.shared else "undecided"


def rank(tables: Mapping[str, KeptTable]) -> dict[Target, list[RankedRecord]]:
    """By target, the arms that reach it in more than half of their seeds, the fewest tokens first. `tables`
    are by source. Arms without the tokens of their evaluations, which tables of older versions lack, are left
    out, and so are searches, whose best arm is chosen by the same seeds."""
    entries: dict[Target, list[RecordEntry]] = {}
    for source, table in tables.items():
        if table.provenance.command.startswith(SEARCH):
            continue
        for target, entry in _entries(source, table):
            if math.isfinite(entry.median):
                entries.setdefault(target, []).append(entry)
    order = sorted(entries, key=lambda target: (target.task, target.base, target.level))
    return {target: _ranked(entries[target]) for target in order}


def _ranked(entries: Sequence[RecordEntry]) -> list[RankedRecord]:
    ordered = sorted(entries, key=lambda entry: (entry.median, entry.source, entry.arm))
    ranked = []
    for entry, before in zip(ordered, [*ordered[1:], None], strict=True):
        seeds = sorted({*entry.tokens} & {*before.tokens}) if before else []
        p = math.nan
        if before and len(seeds) >= FEWEST_PAIRS:
            (first, second) = (
                ([arm.tokens[seed] for seed in seeds], [arm.reached[seed] for seed in seeds])
                for arm in (entry, before)
            )
            p = paired_log_rank(first, second)
        wins = sum(entry.tokens[seed] < before.tokens[seed] for seed in seeds) if before else 0
        ranked.append(RankedRecord(entry, len(seeds), wins, p))
    return ranked


def _entries(source: str, table: KeptTable) -> Iterator[tuple[Target, RecordEntry]]:
    rates = {(row["task"], row["arm"]): row["rate"] for row in table.rates if row["factor"] == 1}
    for task in table.tasks:
        for arm in table.arms:
            runs = {}
            for run in table.of(arm, task):
                validation = run["validation"].get(MODE, ())
                if validation and validation[0][0] == 0 and run.get("spent"):
                    runs[int(run["seed"])] = (validation, {row[0]: row[1] for row in run["spent"]})
            bases = {validation[0][1] for validation, _ in runs.values()}
            if len(runs) < max(FEWEST_SEEDS, len(table.of(arm, task))) or len(bases) != 1:
                continue  # a seed without its evaluations must not vanish from a median
            (base,) = bases
            for level in LEVELS:
                if base is None or base >= level:
                    continue
                first = {seed: _until(level, *curves) for seed, curves in runs.items()}
                yield (
                    Target(task, base, level),
                    RecordEntry(
                        source,
                        arm,
                        {seed: tokens for seed, (tokens, _) in first.items()},
                        {seed: reached for seed, (_, reached) in first.items()},
                        rates.get((task, arm)),
                        table.provenance.machine,
                    ),
                )


def _until(
    level: float, validation: Sequence[Sequence[float]], tokens: Mapping[int, float]
) -> tuple[float, bool]:
    """(tokens, whether the level was reached) at the first evaluation at or above it, else at the last."""
    spent = 0.0
    for number, accuracy in validation:
        step = int(number)
        spent = tokens.get(step, spent)
        if accuracy is not None and accuracy >= level and step in tokens:
            return spent, True
    return spent, False
