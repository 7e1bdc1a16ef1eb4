"""The language of measures: how findings, probes and searches write one number of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpobench.analysis.detectors.history import Floats
from grpobench.analysis.detectors.registry import DETECTORS

Rows = Sequence[Mapping[str, float]]
"""The rows of a run's training steps, in order."""
MODES = ("greedy", "sampled", "likelihood")
BUDGETS = ("updates", "tokens", "seconds", "flops")
OVER_RATES: Mapping[str, str] = {
    "loss-at-half": "how much lower its accuracy is at half the arm's own rate",
    "loss-at-twice": "how much lower its accuracy is at twice the arm's own rate",
    "octaves": "over how many factors of two of the rate its accuracy stays within the margin of its best",
}
"""Numbers of a seed from the arm's runs at all learning rates."""
TENTH, QUARTER = 0.1, 0.25
CENSORED: Mapping[str, str] = {"lasting": "reached the end", "reach": "did not reach the level"}
"""Kinds of outcomes that have a largest value, at which a run is censored: what is said of such runs."""
SHARES = ("above", "net_above")
"""Kinds of outcomes that are 1, 0 or -1 by another outcome."""
OF_RATES = ("rate", "best_rate")
"""Kinds of outcomes that are measured over an arm's runs at all learning rates, by seed."""
WINDOW = 3
"""Steps over which the kind `when` averages, because a step has few rollouts."""
REDUCTIONS: Mapping[str, str] = {
    "first": "its first value",
    "last": "its mean over the last tenth of its values",
    "mean": "its mean",
    "max": "its largest value",
    "min": "its smallest value",
    "sum": "its sum",
    "end": "its last value",
    "tenth": "its mean over the last tenth of the steps, of which some may lack it",
    "quarter": "its mean over the last quarter of the steps",
}
"""How a metric of the training steps becomes one number."""


def _one_of(names: Iterable[str]) -> str:
    return f"({'|'.join(names)})"


_MODE = _one_of(MODES)
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
_ACCURACY = f"(:{_MODE})?", f"{{0}}, or {{0}}: and one of {', '.join(MODES)}"
_EVALUATED = f":{_MODE}/.+", f"{{0}}:MODE/METRIC with one of {', '.join(MODES)}"
_ALSO = f":[^/]+/{_MODE}/.+", f"{{0}}:TASK/MODE/METRIC with one of {', '.join(MODES)}"
_BUDGET = f":{_one_of(BUDGETS)}", f"{{0}}: and one of {', '.join(BUDGETS)}"
_REACH = (
    rf":(0*\.\d*[1-9]\d*|1(\.0*)?):{_one_of(BUDGETS)}",
    f"{{0}}:LEVEL:AXIS with a share above 0 and at most 1, such as 0.6, and one of {', '.join(BUDGETS)}",
)
_PASS = r":0*[1-9]\d*", "{0}:K with a positive number"
KINDS: Mapping[str, tuple[str, str]] = {
    # Final accuracy as reports count it; the same less that before training; that before training.
    **dict.fromkeys(("accuracy", "gain", "base"), _ACCURACY),
    # A metric after the last update, on the split that the report takes; the same less its value before.
    **dict.fromkeys(("evaluated", "shift"), _EVALUATED),
    # The same of a task of `evaluate.also`, on test or else validation.
    **dict.fromkeys(("also", "also_shift"), _ALSO),
    # Metrics of the training steps; those joined by + are added step by step.
    "training": (
        f":[^:]+:{_one_of(REDUCTIONS)}",
        f"training:METRIC:REDUCTION and end it with one of {', '.join(REDUCTIONS)}",
    ),
    # ln((A + 1)/(B + 1)) of the means over the last tenth of the steps.
    "log_ratio": (":[^:]+:[^:]+", "log_ratio:A:B with two metrics"),
    # A metric averaged over the first three steps in a row over which the other averages LEVEL or more.
    "when": (f":[^:]+:[^:]+:{_NUMBER}", "when:METRIC:OTHER:LEVEL with a number as LEVEL"),
    # Validation accuracy when all arms have spent the same. Of the run's own curve of validation accuracy
    # against what it spent (docs/compute-curves.md): the accuracy that it nears, NaN with fewer than four
    # evaluations; what was spent for half of the gain, NaN for a gain below two points.
    **dict.fromkeys(("equal", "ceiling", "midpoint"), _BUDGET),
    # What was spent when an evaluation on validation first showed LEVEL; at most what all runs have spent.
    "reach": _REACH,
    # Of an arm over its learning rates, by seed (docs/judging.md).
    "rate": (f":{_one_of(OVER_RATES)}", f"{{0}}: and one of {', '.join(OVER_RATES)}"),
    # log2 of the arm's learning rate at which a seed's OUTCOME is highest: contrasts are in octaves.
    "best_rate": (":.+", "{0}:OUTCOME with an outcome"),
    # Mean length in tokens of the final sampled answers that are wrong.
    "wrong_length": ("", "wrong_length alone"),
    # Updates before an unrecovered collapse or a divergence, or events of one kind; at most all of the run's.
    "lasting": (f"(:{_one_of(DETECTORS)})?", f"lasting, or lasting: and one of {', '.join(DETECTORS)}"),
    # Unbiased pass@K of the final sampled answers; the same less that of the base; that of the base.
    **dict.fromkeys(("pass", "pass_gain", "pass_base"), _PASS),
    # 1 for a run whose OUTCOME is above LIMIT, else 0: the mean is a share of runs. The same less the share
    # of runs below -LIMIT.
    **dict.fromkeys(SHARES, (f":{_NUMBER}:.+", "{0}:LIMIT:OUTCOME with a number and an outcome")),
}
"""By kind: the pattern of what follows it, and how to write it. REDUCTION:METRIC is short for
training:METRIC:REDUCTION."""
OF_STEPS = ("training", "log_ratio", "when")
"""Kinds that the rows of a run's training steps are enough for."""


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    kind: str
    argument: str = ""
    """What follows the kind, without the reduction."""
    reduction: str = ""

    @classmethod
    def read(cls, text: str, kinds: Iterable[str] = tuple(KINDS)) -> Measure:
        """The measure that a text names. Raises ValueError for any other text, and for other `kinds`."""
        kind, _, argument = text.partition(":")
        known_kinds = [*kinds, *REDUCTIONS]
        if kind not in known_kinds:
            raise ValueError(f"outcome: unknown kind {kind!r}; known: {', '.join(known_kinds)}")
        if kind in REDUCTIONS:
            if not argument or ":" in argument:
                raise ValueError(f"outcome: {text}: write {kind}:METRIC")
            return cls("training", argument, kind)
        pattern, form = KINDS[kind]
        if not re.fullmatch(kind + pattern, text):
            raise ValueError(f"outcome: {text}: write {form.format(kind)}")
        if kind == "training":
            argument, _, reduction = argument.rpartition(":")
            return cls(kind, argument, reduction)
        if kind in (*SHARES, "best_rate"):
            other = argument.partition(":")[2] if kind in SHARES else argument
            cls.read(other, set(KINDS) - {*SHARES, *OF_RATES})
        return cls(kind, argument)

    @property
    def text(self) -> str:
        """The shortest text that names it."""
        return f"{self.reduction or self.kind}:{self.argument}".removesuffix(":")

    @property
    def metrics(self) -> list[str]:
        """The metrics of training steps that it reads."""
        if self.kind not in OF_STEPS:
            return []
        return self.argument.split("+") if self.kind == "training" else self.argument.split(":")[:2]

    def of(self, rows: Rows) -> float:
        """The number of a run; NaN where its rows lack it. For the kinds `OF_STEPS`."""
        columns = [np.array([row.get(name, math.nan) for row in rows], dtype=float) for name in self.metrics]
        if self.kind == "training":
            return reduced(sum(columns[1:], columns[0]), self.reduction)
        first, second = columns
        if self.kind == "when":
            return when_reached(first, second, float(self.argument.rpartition(":")[2]))
        return math.log((reduced(first, "tenth") + 1) / (reduced(second, "tenth") + 1))


def reduced(column: Floats, reduction: str) -> float:
    """One number of a metric. `column` (steps,) is NaN at steps that lack the metric."""
    shares = {"tenth": TENTH, "quarter": QUARTER}
    if reduction in shares:
        column = column[-_count(column, shares[reduction]) :]
    values = column[np.isfinite(column)]
    if not len(values):
        return math.nan
    if reduction in ("max", "min", "sum"):
        return float(getattr(values, reduction)())
    ends = {"first": values[:1], "end": values[-1:], "last": values[-_count(values, TENTH) :]}
    return float(ends.get(reduction, values).mean())


def when_reached(column: Floats, other: Floats, level: float) -> float:
    """Mean of a metric over the first `WINDOW` steps in a row over which the other averages `level` or more;
    NaN if it never does. Both (steps,) are NaN at steps that lack them."""
    for start in range(len(other) - WINDOW + 1):
        steps = slice(start, start + WINDOW)
        if reduced(other[steps], "mean") >= level:
            return reduced(column[steps], "mean")
    return math.nan


def _count(column: Floats, share: float) -> int:
    """How many of a column's values are its last ones: a share of them, and at least one."""
    return max(1, round(share * len(column)))
