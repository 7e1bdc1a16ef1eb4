"""Scores of a probe as they come: many algorithms, few seeds, spreads from none to large."""

from __future__ import annotations

import numpy as np


def probe_scores() -> dict[str, dict[int, float]]:
    """37 algorithms, every third with four of the eight seeds. SDs from 0 to .4, seed effects of SD .02."""
    rng = np.random.default_rng(0)
    effects = rng.normal(0, 0.02, 8)
    scores = {}
    for i in range(37):
        sd = (0.0, 0.02, 0.1, 0.4)[i % 4]
        seeds = range(8 if i % 3 else 4)
        scores[f"a{i}"] = {s: i / 37 + float(rng.normal(0, sd) + effects[s] * (sd > 0)) for s in seeds}
    return scores
