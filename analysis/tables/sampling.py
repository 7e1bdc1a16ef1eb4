"""Tables of what many samples of a problem tell."""

from __future__ import annotations

import pandas as pd

from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import each_seed, percent, points

SAMPLES = {
    "pass": ("pass_at_k", "pass@k"),
    "maj": ("majority", "Majority vote"),
}
"""Name and title of the tables about many samples."""
SAMPLES_NOTES = {
    "pass": (
        "Share of problems in percent that at least one of k samples solves, by the unbiased estimator "
        "1 − C(n−c, k)/C(n, k) for c correct of n samples, with n ≥ 2k; k = 1 is the accuracy of a sample."
    ),
    "maj": (
        "Accuracy in percent of the most frequent of k sampled answers, as the verifier reads them: one that "
        "it cannot read has no vote, and of equally many votes those of the answer given first win. Mean "
        "over votes on disjoint samples."
    ),
}


def samples_table(curves: pd.DataFrame, kind: str) -> Table:
    """pass@k or votes of k: a row for each k."""
    rows = []
    chosen = by_place(curves[curves["kind"] == kind])
    for (place, arm, k), own in chosen.groupby(["place", "arm", "k"], sort=False):
        before = own.loc[own["policy"] == "base", "value"].mean()
        seeds = own.loc[own["policy"] != "base"].sort_values("seed")["value"]
        after = seeds.mean()
        cells = [str(place).replace("\n", ", "), arm, str(k), percent(before), percent(after)]
        rows.append([*cells, points(after - before), each_seed(list(seeds))])
    header = ["task", "arm or model", "k", "before", "after", "gain", "each seed"]
    return Table(*SAMPLES[kind], header, rows, chosen, note=SAMPLES_NOTES[kind])


def by_place(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one place together, places in the order of their first row."""
    order = {place: number for number, place in enumerate(dict.fromkeys(frame["place"]))}
    return frame.sort_values("place", key=lambda places: places.map(order), kind="stable")
