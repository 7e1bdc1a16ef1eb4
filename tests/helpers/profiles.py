"""Profiles from made-up scores of a few small probes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.probe import Probe, ProbeControl
from grpobench.analysis.profile.scores import Profile, build

RATE = 1e-3


def probe(name: str, against: str = "", high: Sequence[str] = (), low: Sequence[str] = ()) -> Probe:
    """A probe whose outcome is its score."""
    return Probe(
        name,
        title=f"the {name}",
        mechanism=f"What {name} isolates.",
        source="a paper",
        dose=f"a dose of {name}",
        score="0 is nothing, 1 all.",
        outcome="mean:score",
        zero=0.0,
        one=1.0,
        rewards=(0.0, 1.0),
        expect=f"Theory of {name}.",
        high=tuple(high),
        low=tuple(low),
        good=f"does well in {name}",
        bad=f"does badly in {name}",
        against=against,
        positive=ProbeControl("with it"),
        negative=ProbeControl("without it"),
    )


def rows(
    algorithm: str,
    name: str,
    scores: Sequence[float],
    rate: float = RATE,
    failed: Sequence[int] | None = (),
) -> list[ProbeOutcome]:
    """A finished run of 30 seconds for each score. The seeds of `failed` lost the form; with None, the rows
    do not record failures."""
    return [
        ProbeOutcome(
            *(algorithm, name, rate, math.nan, seed, score, "finished", 30.0),
            failed=None if failed is None else "lost form" * (seed in failed),
        )
        for seed, score in enumerate(scores)
    ]


def profile(means: Mapping[str, Mapping[str, float]], probes: Sequence[Probe], seeds: int = 8) -> Profile:
    """`means` by algorithm and probe; the scores of seeds lie evenly within ± 0.02."""
    rng, spread = np.random.default_rng(0), np.linspace(-0.02, 0.02, seeds)
    rows_by_algorithm = {
        algorithm: [
            row
            for name, mean in of.items()
            for row in rows(algorithm, name, (mean + rng.permutation(spread)).tolist())
        ]
        for algorithm, of in means.items()
    }
    return build(
        rows_by_algorithm, {probe.name: probe for probe in probes}, {name: {"policy": RATE} for name in means}
    )


def entries(text: list[str], name: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    line = next(line for line in text if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]
