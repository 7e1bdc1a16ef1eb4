"""What calibration gives, as one table of plain numbers that is kept, printed and written into a page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.analysis.calibration.library import Half, Library
from grpobench.analysis.calibration.same_arm import SameArm, designs
from grpobench.analysis.calibration.scores import Outcome, Score, score
from grpobench.analysis.calibration.thresholds import (
    LEAST,
    MOST,
    Setting,
    meets,
    outcomes,
    set_thresholds,
)
from grpobench.analysis.calibration.warning import Limit, set_limit
from grpobench.analysis.detect.drift import Drift
from grpobench.analysis.detect.history import History
from grpobench.analysis.detect.registry import DETECTORS
from grpobench.analysis.kept.kept import origin_of
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.accuracy import finals
from grpobench.analysis.summary.events import histories

VERSION = 1
NAME = "calibration"
"""Of the kept file."""
MOST_FALSE = 0.07
"""Share of A/A comparisons that may be called different at a nominal 5 %."""


def calibrate(matrix: Matrix, library: Library, command: str) -> dict[str, Any]:
    """Everything that is kept. Raises LogError while a run of the library has no result."""
    lacking = [run for run in matrix.runs if library.known(run.arm) and not run.settled]
    if lacking:
        named = ", ".join(f"{run.name} ({run.state})" for run in lacking[:5])
        raise LogError(f"{matrix.folder}: {len(lacking)} runs without result: {named}; start again to go on")
    read = histories(matrix)
    limit = set_limit(_healthy(matrix, library, read))
    settings = [
        set_thresholds(kind, library, matrix, read)
        if kind != Drift.kind
        else _warning(library, matrix, read, limit)
        for kind in DETECTORS
    ]
    runs = finals(matrix)
    pool = runs.loc[runs["arm"] == library.pool].sort_values("seed")["counted"].dropna()
    same = designs(pool)
    either = {half: score(_either(library, matrix, read, settings, half)) for half in ("set", "scored")}
    return {
        "version": VERSION,
        "name": NAME,
        "command": command,
        **origin_of(matrix),
        "seconds": round(sum(matrix.select(name)["value"].sum() for name in ("time/step", "time/evaluate"))),
        "set_on": library.set_on,
        "pool": library.pool,
        "cases": [_case(case.arm, library, matrix) for case in library.cases],
        "detectors": [_setting(setting) for setting in settings],
        "collapse": {half: own.row() for half, own in either.items()},
        "warning": dataclasses.asdict(limit),
        "same_arm": [one.row() for one in same],
        "goals": _goals(settings, either["scored"], same),
    }


def _healthy(matrix: Matrix, library: Library, read: Mapping[str, History]) -> list[History]:
    """Of the pool, the half that sets thresholds."""
    return [read[run.name] for run in library.of_half(matrix, "set") if run.arm == library.pool]


def _warning(library: Library, matrix: Matrix, read: Mapping[str, History], limit: Limit) -> Setting:
    """The early warning, whose limit no goal chooses but healthy runs alone."""
    made = dataclasses.replace(Drift(), limit=limit.limit)
    halves: tuple[Half, Half] = ("set", "scored")
    on_set, on_scored = (score(outcomes(made, library, matrix, read, half)) for half in halves)
    default = score(outcomes(Drift(), library, matrix, read, "scored"))
    values, before = {"limit": made.limit}, {"limit": Drift().limit}
    return Setting(Drift.kind, values, before, 1, on_set, on_scored, default)


def _either(
    library: Library,
    matrix: Matrix,
    read: Mapping[str, History],
    settings: Sequence[Setting],
    half: Half,
) -> list[Outcome]:
    """Every run of a half as collapsed or not: any event of the family, with the thresholds as they were
    set."""
    chosen = [
        dataclasses.replace(DETECTORS[one.kind], **one.values)
        for one in settings
        if DETECTORS[one.kind].family == "collapse"
    ]
    each = [outcomes(one, library, matrix, read, half) for one in chosen]
    return [either(told) for told in zip(*each, strict=True)]


def either(told: Sequence[Outcome]) -> Outcome:
    """Several detectors of one run as one: a must of any is a must, a may of any that is none a may."""
    labels = {one.label for one in told}
    label = next(name for name in ("must", "may", "never") if name in labels)
    found = tuple(sorted(step for one in told for step in one.found))
    return dataclasses.replace(told[0], label=label, found=found)


def _case(arm: str, library: Library, matrix: Matrix) -> dict[str, Any]:
    case = library.case(arm)
    runs = {half: sum(run.arm == arm for run in library.of_half(matrix, half)) for half in ("set", "scored")}
    return dataclasses.asdict(case) | {"runs": runs}


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "kind": setting.kind,
        "family": DETECTORS[setting.kind].family,
        "values": dict(setting.values),
        "default": dict(setting.default),
        "tried": setting.tried,
        "set": setting.on_set.row(),
        "scored": setting.on_scored.row(),
        "default_scored": setting.default_on_scored.row(),
        "meets": meets(setting.on_scored) if setting.on_scored.must else None,
    }


def _goals(settings: Sequence[Setting], either: Score, same: Sequence[SameArm]) -> list[dict[str, Any]]:
    """What was asked for, what came out, and whether it is enough."""
    found = [
        goal(f"{one.kind}: {name}", value, bound, above)
        for one in settings
        if DETECTORS[one.kind].family == "collapse"
        for name, value, bound, above in _asked(one.on_scored)
    ]
    found += [
        goal(f"either collapse: {name}", value, bound, above) for name, value, bound, above in _asked(either)
    ]
    found += [
        goal(f"A/A, {one.arms} arms of {one.seeds} seeds: {name}", rate, MOST_FALSE, False)
        for one in same
        for name, rate in (("called different", one.rate), ("wrongly equivalent", one.wrong_rate))
    ]
    return found


def _asked(own: Score) -> list[tuple[str, float, float, bool]]:
    return [
        ("precision", own.precision, LEAST, True),
        ("recall", own.recall, LEAST, True),
        ("false alarms per healthy run", own.per_healthy, MOST, False),
    ]


def goal(name: str, value: float, bound: float, above: bool) -> dict[str, Any]:
    """One line: met at or above the bound, or at or below it; a value that is not defined meets nothing."""
    met = (value >= bound if above else value <= bound) and math.isfinite(value)
    told = round(value, 4) if math.isfinite(value) else None
    return {"goal": name, "value": told, "bound": bound, "at_least": above, "met": bool(met)}


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with a line for each case, detector, design and goal: a change of one shows as one line."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path) -> Mapping[str, Any]:
    """A kept calibration. Raises LogError where the file is none."""
    try:
        content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION or content["name"] != NAME:
            raise ValueError("another version, or another table")
    except (ValueError, KeyError, TypeError) as error:
        remedy = "write it again with grpobench calibrate --keep"
        raise LogError(f"{path}: no kept calibration ({error}); {remedy}") from error
    return content
