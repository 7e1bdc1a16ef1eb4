"""Guards of a recipe: what training must not destroy, and by how much it may change."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.others import tasks_beside

FORMS = ("also:TASK", "loss:TASK", "format", "calibration")
"""What a guard can be of."""
FEWEST_SAMPLES = 4
"""Samples of a problem from which on evaluations have the metrics of several samples."""


def faults(guard: Mapping[str, float]) -> Iterator[str]:
    """What is wrong with the names and bounds of guards."""
    for name, bound in guard.items():
        is_loss = name.startswith("loss:")
        if not re.fullmatch("(also|loss):.+|format|calibration", name):
            yield f"guard: {name!r} must be one of {', '.join(FORMS)}"
        elif is_loss and not 0 < bound < math.inf:
            yield f"guard: {name} is how many nats per token a loss may rise; must be above 0, not {bound:g}"
        elif name == "calibration" and not 0 < bound <= 100:
            yield (
                "guard: calibration is by how many points over- or underconfidence may grow; must be above "
                f"0 and at most 100, not {bound:g}"
            )
        elif not is_loss and name != "calibration" and not -100 <= bound < 0:
            yield f"guard: {name} is how many points may be lost; must be from -100 to below 0, not {bound:g}"


def unmeasured(guard: Mapping[str, float], configs: Sequence[RunConfig]) -> Iterator[str]:
    """Guards that no run measures. Raises ConfigError where a task of `evaluate.also` cannot be made."""
    if not guard:
        return
    distinct = {(config.task.name, str(config.evaluate.also)): config for config in configs}.values()
    beside = {task.name for config in distinct for task in tasks_beside(config)}
    if not any(config.evaluate.before for config in distinct):
        yield "guard: is a change since before training, which evaluate.before = false does not measure"
    for name in guard:
        other = name.partition(":")[2]
        if name == "format" and not any("format" in config.task.scores for config in distinct):
            names = ", ".join(dict.fromkeys(config.task.name for config in distinct))
            yield f"guard: {names} has no score of the format; remove format"
        elif name == "calibration" and all(config.evaluate.samples < FEWEST_SAMPLES for config in distinct):
            yield f"guard: calibration needs evaluate.samples of at least {FEWEST_SAMPLES}"
        elif other and other not in beside:
            yield f"guard: {name}: no run evaluates {other} beside its own task; add [evaluate.also.{other}]"
