"""What changed while a run ran: settings, data, models, versions and code, and from which step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.logs.matrix import Run


@dataclass(frozen=True)
class Stretch:
    """The value that something had from a step on."""

    after: int | None
    """The last update before it took effect; None where origin.json does not tell."""
    value: str


def histories(run: Run) -> dict[str, tuple[Stretch, ...]]:
    """What had more than one value over the steps that the logs hold, by name, from the attempts recorded in
    origin.json. An attempt's changes have effect from the checkpoint that it resumed, and what an earlier one
    did behind that checkpoint was thrown away; a run that began anew has one value only."""
    past: dict[str, list[Stretch]] = {}
    current: dict[str, str] = {}
    for attempt in attempts(run):
        for change in attempt.get("changes", ()):
            name, _, values = str(change).partition(": ")
            before, _, after = values.partition(" -> ")
            past.setdefault(name, [Stretch(0, before)])
            current[name] = after
        if (start := attempt.get("resumed_at")) is not None:
            for name, value in current.items():
                past[name] = _resumed(past[name], int(start), value)
    for name, value in current.items():
        if past[name][-1].value != value and not any("resumed_at" in one for one in attempts(run)):
            past[name].append(Stretch(None, value))
    return {_key(name): tuple(found) for name, found in past.items() if len(found) > 1}


def attempts(run: Run) -> Sequence[Mapping[str, Any]]:
    """The attempts at a run that origin.json records."""
    found = run.origin.get("attempts")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _resumed(past: Sequence[Stretch], start: int, value: str) -> list[Stretch]:
    kept = [stretch for stretch in past if stretch.after is not None and stretch.after < start]
    return kept if kept and kept[-1].value == value else [*kept, Stretch(start, value)]


def _key(name: str) -> str:
    """`algorithm.settings.clip_high` is `algorithm.clip_high` on the command line."""
    return name.replace(".settings.", ".", 1)


def describe(stretches: Sequence[Stretch]) -> str:
    """``0.0001 until step 17, then 0.001``."""
    told = plain_value(stretches[0].value)
    for stretch in stretches[1:]:
        when = "until a step that is not recorded" if stretch.after is None else f"until step {stretch.after}"
        told += f" {when}, then {plain_value(stretch.value)}"
    return told


def plain_value(value: str) -> str:
    """A value as the settings table shows it: without quotes, numbers short."""
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return f"{read:g}" if isinstance(read, float) else value.strip('"')
