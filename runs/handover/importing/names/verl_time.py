"""The meaning of verl's `timing_s/step`, which differs between its versions and is inferred from the log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

from grpobench.runs.handover.importing.names.table import Settled

STEP, TESTING, SAVING = "timing_s/step", "timing_s/testing", "timing_s/save_checkpoint"


HELD = ((TESTING, SAVING), (SAVING,), ())
"""What the step may include beside `PARTS`, by version."""


PARTS = (
    *("timing_s/gen", "timing_s/gen_max", "timing_s/reward", "timing_s/old_log_prob", "timing_s/ref"),
    *("timing_s/values", "timing_s/adv", "timing_s/update_critic", "timing_s/update_actor"),
    "timing_s/update_weights",
)
"""What every version times within the step, one after the other."""


LONGEST = ("timing_s/gen", "timing_s/update_actor")
"""Without these parts the remainder of a step says nothing."""


def step_seconds(row: Mapping[str, float]) -> float:
    """Seconds of the step with all that it includes."""
    return row[STEP]


def without(row: Mapping[str, float], names: Sequence[str]) -> float:
    """Seconds of the step less some of what it includes."""
    return row[STEP] - sum(value for name in names if math.isfinite(value := row.get(name, 0.0)))


def settle(rows: Sequence[Mapping[str, float]]) -> Settled:
    """Seconds of the step without validation and checkpoints, as far as it includes them. The version is the
    one for which the remainder beyond its parts is most like that of steps without either. No time is
    negative.

    Up to version 0.5 the step's time includes validation and checkpoints. From 0.6 on it includes neither,
    and from 0.7.1 on it includes checkpoints again. No log says which version wrote it."""
    rows = [row for row in rows if math.isfinite(row.get(STEP, math.nan))]
    beside = [row for row in rows if TESTING in row or SAVING in row]
    alone = [without(row, PARTS) for row in rows if not (TESTING in row or SAVING in row)]
    usual = median(alone) if alone else 0.0

    def distance(included: Sequence[str]) -> float:
        return sum(abs(without(row, (*PARTS, *included)) - usual) for row in beside)

    possible = [included for included in HELD if all(without(row, included) >= 0 for row in beside)]
    best = min(possible, key=distance, default=())
    included = [name for name in best if any(name in row for row in beside)]
    clear = not included or alone or all(any(name in row for row in beside) for name in LONGEST)
    note = "" if clear else f"nothing tells whether {STEP} holds {' and '.join(included)}; it is taken to"
    return Settled(" − ".join((STEP, *included)), partial(without, names=included), note)
