"""What would resolve each unresolved pair of arms: missing runs, or a number of seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.interim import InterimPlan
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA, WAITS, spread_of
from grpobench.analysis.tools.text import NONE, points


@dataclass(frozen=True)
class SeedsToResolve:
    """How many seeds an unresolved pair would need in all."""

    difference: float
    """Fewest seeds that find the observed difference in 80 % of repetitions, with the observed SD; inf for
    more than `power.MOST_SEEDS`, NaN where it is unknown."""
    equivalence: float
    """Fewest seeds that show arms without a difference to be equivalent, likewise."""
    few: bool
    """Whether the pair has fewer seeds than any difference needs. Then `difference` is that number, because
    the SD of so few seeds says little."""
    waits: str = ""
    """What the pair waits for, if it is not seeds: runs without a result or the next interim analysis."""

    @property
    def text(self) -> str:
        """Both numbers in words: ``31 to find it, 37 for equivalence``."""
        if self.waits:
            return self.waits
        return f"{self.to_find} to find it, {seeds_text(self.equivalence)} for equivalence"

    @property
    def to_find(self) -> str:
        """`difference` in words."""
        return f"{seeds_text(self.difference)}{' or more' * self.few}"


def seeds_text(seeds: float) -> str:
    """A number of seeds; `over 1,000` where more than the search allows are needed."""
    if math.isnan(seeds):
        return NONE
    return f"over {power.MOST_SEEDS:,}" if math.isinf(seeds) else f"{seeds:.0f}"


def seeds_to_resolve(
    pair: Comparison, plan: InterimPlan | None = None, alpha: float = ALPHA
) -> SeedsToResolve:
    """The seeds that would resolve an unresolved pair, by the simulations behind its power."""
    seeds = len(pair.seeds)
    if pair.needs.startswith(WAITS):
        return SeedsToResolve(math.nan, math.nan, False, pair.needs)
    if plan is not None:
        later = [planned for planned in plan.analyses if planned > seeds]
        waits = f"waits for the interim analysis at {later[0]} seeds" if later else "used all planned seeds"
        return SeedsToResolve(math.nan, math.nan, False, waits)
    deviation = spread_of(pair.differences)
    least = max(seeds_needed(alpha, pair.pairs, sides=1), seeds + 1)
    equivalence = math.nan
    if not math.isnan(deviation):
        equivalence = power.seeds_for_equivalence(pair.margin / deviation, pair.pairs, alpha, least)
    needed = seeds_needed(alpha)
    if seeds < needed:
        return SeedsToResolve(float(needed), equivalence, True)
    return SeedsToResolve(pair.seeds_wanted, equivalence, False)


def unresolved_table(compared: Sequence[Comparison], plan: InterimPlan | None = None) -> PrintedTable:
    """Every unresolved pair and what would resolve it."""
    pairs = [(pair, seeds_to_resolve(pair, plan)) for pair in compared if pair.verdict == "unresolved"]
    rows = [
        [
            pair.task,
            f"{pair.first} − {pair.second}",
            points(pair.effect),
            str(len(pair.seeds)),
            NONE if needed.waits else needed.to_find,
            NONE if needed.waits else seeds_text(needed.equivalence),
            needed.waits or NONE,
        ]
        for pair, needed in pairs
    ]
    frame = pd.DataFrame(
        [
            {
                "task": pair.task,
                "first": pair.first,
                "second": pair.second,
                "effect": pair.effect,
                "seeds": len(pair.seeds),
                "seeds_for_difference": needed.difference,
                "seeds_for_equivalence": needed.equivalence,
                "text": needed.text,
            }
            for pair, needed in pairs
        ]
    )
    note = (
        f"Seeds in all that would resolve a pair in {power.POWER:.0%} of repetitions. To find it: if the "
        "difference and the SD are as observed. To show equivalence: if the arms do not differ, with the "
        f"observed SD. Over {power.MOST_SEEDS:,}: no number up to there is enough. Both numbers are only as "
        "good as the difference and the SD of the seeds so far."
    )
    header = ["task", "pair", "difference", "seeds", "to find it", "to show equivalence", "waits for"]
    return PrintedTable("unresolved", "What would resolve each pair", header, rows, frame, wide=1, note=note)
