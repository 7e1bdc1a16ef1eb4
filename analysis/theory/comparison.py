"""Predicted numbers beside measured ones, each with its interval."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from grpobench.analysis import record
from grpobench.analysis.figures.table import PrintedTable, plain
from grpobench.analysis.record import Provenance
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.statistics.intervals import Floats, normal_quantile, seed_mean
from grpobench.analysis.theory.moments import Moments
from grpobench.analysis.theory.predictions import QUANTITIES, Prediction, directions, quantities
from grpobench.analysis.theory.scenarios import SCENARIOS
from grpobench.analysis.tools.text import number, percent, two

NAME: Final = "theory"
"""Kind and name of the kept table, and name of its file below docs/results."""
ROUNDING: Final = 1e-9
"""Differences up to here are those of floating-point sums."""
MERGED: Final = ("questions", "lengths")
"""Scenarios with too many completions to tell all apart where a prediction is made of code."""
HEADER: Final = ("estimator", "scenario", "batch", "by", "bias", *QUANTITIES)


@dataclass(frozen=True)
class CheckedNumber:
    """One predicted number and what was measured of it."""

    name: str
    scenario: str
    batch: str
    """Groups × rollouts."""
    source: str
    """`formula`, or `code` if the prediction is the expectation of the algorithm's own code."""
    quantity: str
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low - ROUNDING <= self.predicted <= self.high + ROUNDING

    def outside_of_all(self, numbers: int) -> bool:
        """Whether the prediction is outside of the interval that holds `numbers` of them at once with a
        probability of 95 % (Bonferroni). Then chance does not explain it."""
        if self.inside:
            return False
        wider = normal_quantile(1 - 0.05 / numbers) / normal_quantile(0.95)
        return abs(self.predicted - self.measured) > wider * (self.high - self.low) / 2


@dataclass(frozen=True)
class Theory:
    """All predicted numbers with their measurements."""

    numbers: Sequence[CheckedNumber]
    provenance: Provenance

    @property
    def counted(self) -> list[CheckedNumber]:
        """Those whose measurement scatters. The others are 0 in every batch, and a prediction of 0 is no
        risk."""
        return [row for row in self.numbers if row.high - row.low > ROUNDING or not row.inside]

    @property
    def outside(self) -> list[CheckedNumber]:
        return [row for row in self.counted if not row.inside]

    @property
    def wrong(self) -> list[CheckedNumber]:
        """Those that chance does not explain."""
        return [row for row in self.outside if row.outside_of_all(len(self.counted))]

    @property
    def estimators(self) -> list[list[CheckedNumber]]:
        """The numbers of each estimator on a scenario."""
        rows: dict[tuple[str, str], list[CheckedNumber]] = {}
        for row in self.numbers:
            rows.setdefault((row.name, row.scenario), []).append(row)
        return [*rows.values()]

    def content(self) -> dict[str, Any]:
        """As JSON holds it."""
        rows = [asdict(row) for row in self.numbers]
        return record.content_of(NAME, NAME, self.provenance, {"numbers": rows})


def read(path: Path) -> Theory:
    """A kept table. Raises LogError."""

    def build(content: record.Content) -> Theory:
        provenance = Provenance.pop(content)
        return Theory([CheckedNumber(**row) for row in content["numbers"]], provenance)

    return record.read(path, NAME, build)


def check(
    prediction: Prediction, moments: Moments, gradients: Floats, advantages: Floats
) -> list[CheckedNumber]:
    """The four numbers of a prediction beside those of N measured batches: `gradients` (N, Q·T·V) and
    `advantages` (N,), as `Moments.advantage` counts them."""
    scenario = SCENARIOS[prediction.scenario]
    along, across = directions(scenario, moments.mean)
    length = float(np.linalg.norm(along))
    squares = np.square(gradients - gradients.mean(0)).sum(-1) * len(gradients) / (len(gradients) - 1)
    samples = {
        "advantage": advantages,
        "gain": gradients @ along / length**2,
        "sideways": gradients @ across / length,
        "noise": prediction.rollouts * squares / length**2,
    }
    predicted = quantities(scenario, moments, prediction.rollouts)
    batch = f"{prediction.rollouts // prediction.size} × {prediction.size}"
    about = (prediction.name, prediction.scenario, batch, "formula" if prediction.formula else "code")
    means = {name: seed_mean(values) for name, values in samples.items()}
    return [
        CheckedNumber(*about, name, predicted[name], mean.value, mean.low, mean.high)
        for name, mean in means.items()
    ]


def table(theory: Theory) -> PrintedTable:
    """A row for each estimator on a scenario: predicted / measured ± half of the 95 % interval."""
    rows = []
    for numbers in theory.estimators:
        first = numbers[0]
        gain, sideways = (row.predicted for row in numbers if row.quantity in ("gain", "sideways"))
        bias = two(math.hypot(gain - 1, sideways))
        rows.append([first.name, first.scenario, first.batch, first.source, bias, *map(cell, numbers)])
    return plain(HEADER, rows, text_columns=4)


def cell(row: CheckedNumber) -> str:
    digits = 0 if abs(row.predicted) >= 100 else 2 if row.quantity == "noise" else 3
    half = number((row.high - row.low) / 2, digits)
    mark = "" if row.inside else " *"
    return f"{number(row.predicted, digits)} / {number(row.measured, digits)} ± {half}{mark}"


def summary(theory: Theory) -> list[str]:
    """How many predictions lie in the interval of their measurement, and what is to say of the others."""
    counted, outside, wrong = len(theory.counted), theory.outside, theory.wrong
    share = percent((counted - len(outside)) / counted)
    inside = f"{counted - len(outside)} of {counted} predicted numbers ({share} %)"
    lines = [f"{inside} lie inside the 95 % interval of their measurement. Those outside have a star."]
    if wrong:
        lines.append(f"Chance does not explain: {'; '.join(map(words, wrong))}.")
    elif outside:
        lines.append(
            f"Chance explains them: about {0.05 * counted:.0f} would be outside if all were true, and each "
            f"is inside the interval that holds all {counted} at once, in 95 % of cases (Bonferroni)."
        )
    if any(row.source == "code" and row.scenario in MERGED for row in wrong):
        lines.append(
            f"On {' and '.join(MERGED)} a prediction by code takes completions of equal reward and length "
            "as equal, which an algorithm that reads probabilities does not."
        )
    return lines


def words(row: CheckedNumber) -> str:
    return f"{row.quantity} of {row.name} on {row.scenario} ({cell(row)})"


def render(theory: Theory, kind: str) -> list[str]:
    """The lines of one part of a document. Raises LogError for an unknown kind."""
    kinds = {
        "table": lambda: table(theory).markdown(),
        "summary": lambda: textwrap.wrap(" ".join(summary(theory)), 118, break_on_hyphens=False),
        "provenance": lambda: theory.provenance.lines(f"{len(theory.estimators)} estimators on scenarios"),
    }
    if kind not in kinds:
        raise LogError(f"unknown kind {kind!r}; known: {', '.join(kinds)}")
    return kinds[kind]()
