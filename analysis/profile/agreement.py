"""Best rates against the common rate: which pairs of algorithms a probe tells apart at each, in which
order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.figures.table import plain
from grpobench.analysis.profile.scores import COMMON_RATE, Profile
from grpobench.analysis.profile.table import rate_text
from grpobench.analysis.profile.transfer import ProbeTransfer, transfer
from grpobench.analysis.tools.text import NONE, fold, interval, two


@dataclass(frozen=True)
class RateAgreement:
    """One probe at the algorithms' best rates and at the common rate."""

    algorithms: int
    """With a score at both."""
    moved: int
    """Of these: algorithms whose best rate is another one."""
    transfer: ProbeTransfer
    """First at best rates, second at the common rate."""

    @property
    def pairs(self) -> int:
        return self.algorithms * (self.algorithms - 1) // 2

    @property
    def told_apart_at_common(self) -> int:
        """Pairs that the probe tells apart at the common rate."""
        return self.transfer.same + self.transfer.reversed + self.transfer.other

    def row(self) -> dict[str, Any]:
        """The numbers as plain values."""
        rank = self.transfer.rank
        return {
            "probe": self.transfer.probe.name,
            "algorithms": self.algorithms,
            "other_best_rate": self.moved,
            "pairs": self.pairs,
            "told_apart_at_best": self.transfer.told_apart,
            "told_apart_at_common": self.told_apart_at_common,
            "same_order": self.transfer.same,
            "other_order": self.transfer.reversed,
            "rank_correlation": rank.value,
            "low": rank.low,
            "high": rank.high,
        }


def rate_agreements(profile: Profile) -> list[RateAgreement]:
    """The probes on which three algorithms or more have a score at both rates, of which at least one has
    another best rate than the common one. Only algorithms with a score at both rates count, so that both
    numbers of pairs told apart are of the same pairs."""
    agreements = []
    for name, probe in profile.probes.items():
        names = profile.best.scores.get(name, {}).keys() & profile.common.scores.get(name, {}).keys()
        moved = [algorithm for algorithm in names if profile.rates[algorithm]["policy"] != COMMON_RATE]
        at_both = transfer(probe, profile.best.only(name, names), profile.common.only(name, names))
        if moved and at_both is not None:
            agreements.append(RateAgreement(len(names), len(moved), at_both))
    return agreements


def agreement_lines(profile: Profile, agreements: Sequence[RateAgreement]) -> list[str]:
    """The numbers as a Markdown table with a note on what is missing."""
    rate = rate_text(COMMON_RATE)
    compared = {agreement.transfer.probe.name for agreement in agreements}
    missing = [
        probe.title
        for name, probe in profile.probes.items()
        if probe.runs != "ladder" and name not in compared and profile.best.points.get(name)
    ]
    text = [
        fold(
            "Pairs of algorithms that a probe tells apart (q ≤ 0.05) with each algorithm at its best rate, "
            f"and with all at {rate}; how many pairs have the same and the other order where both tell them "
            "apart; rank correlation of the mean scores, with a 95 % interval from a bootstrap over "
            "algorithms. Only algorithms with a score at both rates count."
        ),
        "",
    ]
    if agreements:
        head = [
            *("probe", "algorithms", "with another best rate", "pairs", "at best rates", f"at {rate}"),
            *("same order", "other order", "rank correlation"),
        ]
        text += plain(head, [_cells(agreement) for agreement in agreements], 1, wide=1).markdown(padded=True)
        text.append("")
    if missing:
        text += [fold(f"The kept runs allow no comparison: {', '.join(missing)}."), ""]
    return text


def _cells(agreement: RateAgreement) -> list[str]:
    at_both = agreement.transfer
    counts = (
        *(agreement.algorithms, agreement.moved, agreement.pairs, at_both.told_apart),
        *(agreement.told_apart_at_common, at_both.same, at_both.reversed),
    )
    rank = at_both.rank
    ends = "" if math.isnan(rank.low) else f" ({interval(rank.low, rank.high, two)})"
    value = NONE if math.isnan(rank.value) else f"{two(rank.value)}{ends}"
    return [at_both.probe.title, *map(str, counts), value]
