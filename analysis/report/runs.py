"""Every run on the page: how it ended, its events on its curves, and links to its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup, escape

from grpobench.analysis.detectors.event import Event
from grpobench.analysis.figures.scales import plain
from grpobench.analysis.report.facts import Facts
from grpobench.analysis.runfolder.experiment import FINISHED, Experiment, Run
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.stability import event_words

CURVES = 60
"""Most runs whose curves are drawn; runs with events come first."""
POINTS = 200
"""Most points of one curve; longer curves are drawn as means of neighboring values."""
FILES = (
    "run.toml",
    "metrics.jsonl",
    "eval.jsonl",
    "events.jsonl",
    "provenance.json",
    "status.json",
    "log.txt",
)
PANEL, HEIGHT, GAP = 220, 60, 20
"""Pixels of one small curve, and between two."""


@dataclass(frozen=True)
class RunView:
    """What the page shows of one run."""

    name: str
    state_line: str
    events: Sequence[str]
    links: Sequence[tuple[str, str]]
    """(file, address from the page)."""
    curves: Markup


def run_views(facts: Facts, home: str) -> list[RunView]:
    """One view per run, runs with events first. `home` is the path from the page to the experiment folder."""
    experiment = facts.experiment
    events = {
        run.name: findings.events if (findings := facts.numbers.findings.get(run.name)) else ()
        for run in experiment.runs
    }
    ordered = sorted(experiment.runs, key=lambda run: (not events[run.name], run.state == FINISHED))
    drawn = {run.name for run in ordered[:CURVES]}
    series = _series(experiment, drawn)
    return [
        RunView(
            run.name,
            _state_line(run, events[run.name]),
            [_event(event) for event in events[run.name]],
            _links(experiment, run, home),
            _curves(series.get((run.arm, run.task, run.seed), {}), events[run.name])
            if run.name in drawn
            else Markup(""),
        )
        for run in ordered
    ]


def _state_line(run: Run, events: Sequence[Event]) -> str:
    """The state and the kinds of events in a line."""
    kinds = ", ".join(dict.fromkeys(event_words(event.kind) for event in events))
    why = f" ({run.why})" if run.why else ""
    return f"{run.state} at update {run.step}{why}" + (f"; {kinds}" if kinds else "")


def _event(event: Event) -> str:
    """An event in a sentence."""
    until = "to the end" if event.recovered is None else f"until {event.recovered}"
    evidence = "; ".join(map(str, event.evidence))
    note = f" ({event.note})" if event.note else ""
    return f"{event_words(event.kind)} ({event.severity}) from update {event.onset} {until}: {evidence}{note}"


def _links(experiment: Experiment, run: Run, home: str) -> list[tuple[str, str]]:
    """Links to the files of the run."""
    folder = experiment.folder / run.name
    names = [name for name in FILES if (folder / name).is_file()]
    names += [f"{name}/" for name in ("rollouts", "completions") if (folder / name).is_dir()]
    return [(name, f"{quote(home)}/{quote(run.name)}/{name}") for name in names]


Key = tuple[str, str, int]


def _series(experiment: Experiment, names: set[str]) -> Mapping[Key, dict[str, tuple[Any, Any]]]:
    """By run: label -> (steps, values) of each curve."""
    drawn_keys = {(run.arm, run.task, run.seed) for run in experiment.runs if run.name in names}
    series: dict[Key, dict[str, tuple[Any, Any]]] = {}
    metrics = {
        "validation accuracy": None,
        "training reward": "reward/mean",
        "entropy (nats/token)": "policy/entropy",
    }
    for label, metric in metrics.items():
        for task in experiment.tasks:
            name = metric or f"eval/validation/{headline_of(experiment, task).mode}/correct"
            frame = experiment.select(name)
            for key, rows in frame[frame["task"] == task].groupby(["arm", "task", "seed"], sort=False):
                if key in drawn_keys:
                    rows = rows.sort_values("step")
                    values = rows["step"].to_numpy(dtype=float), rows["value"].to_numpy(dtype=float)
                    series.setdefault(key, {})[label] = thinned(*values)
    return series


def thinned(steps: Any, values: Any) -> tuple[Any, Any]:
    """At most `POINTS` points, as means of neighboring values."""
    every = -(-len(steps) // POINTS)
    starts = np.arange(0, len(steps), every)
    sizes = np.diff(np.append(starts, len(steps)))
    return steps[starts], np.add.reduceat(values, starts) / sizes


def _curves(series: Mapping[str, tuple[Any, Any]], events: Sequence[Event]) -> Markup:
    """Small curves side by side, with events as vertical lines and their descriptions as tooltips."""
    if not series:
        return Markup("")
    last = max(float(steps[-1]) for steps, _ in series.values()) or 1.0
    parts = [
        _panel(index * (PANEL + GAP), label, steps, values, events, last)
        for index, (label, (steps, values)) in enumerate(series.items())
    ]
    width = len(series) * (PANEL + GAP)
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="curves with events">{}</svg>').format(
        width, HEIGHT + 38, Markup("").join(parts)
    )


def _panel(left: int, label: str, steps: Any, values: Any, events: Sequence[Event], last: float) -> Markup:
    low, high = float(values.min()), float(values.max())
    span = (high - low) or 1.0

    def across(step: float) -> str:
        return f"{left + 4 + PANEL * step / last:.1f}"

    points = " ".join(
        f"{across(step)},{20 + HEIGHT * (1 - (value - low) / span if high > low else 0.5):.1f}"
        for step, value in zip(steps, values, strict=True)
    )
    tint = {"severe": "var(--alarm)"}
    marks = Markup("").join(
        Markup(
            '<line x1="{0}" x2="{0}" y1="16" y2="{1}" stroke="{2}" stroke-dasharray="3 2">'
            "<title>{3}</title></line>"
        ).format(across(event.onset), 24 + HEIGHT, tint.get(event.severity, "var(--soft)"), _event(event))
        for event in events
    )
    return Markup(
        '<text x="{0}" y="11" font-size="11" fill="var(--ink)">{1}: {2} to {3}</text>{4}'
        '<polyline points="{5}" fill="none" stroke="var(--c0)" stroke-width="1.5"><title>{1}</title>'
        "</polyline>"
        '<text x="{0}" y="{6}" font-size="10" fill="var(--soft)">update 0</text>'
        '<text x="{7}" y="{6}" font-size="10" fill="var(--soft)" text-anchor="end">{8}</text>'
    ).format(
        left + 4,
        escape(label),
        plain(float(f"{values[0]:.3g}")),
        plain(float(f"{values[-1]:.3g}")),
        marks,
        Markup(points),
        HEIGHT + 34,
        left + 4 + PANEL,
        f"{last:g}",
    )
