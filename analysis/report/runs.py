"""Every run on the page: how it ended, its events on its curves, and links to its files.

Samples on the page: completions of the arms to the same problems, with their differences marked.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup, escape

from grpobench.analysis.detectors.event import Event
from grpobench.analysis.figures.scales import plain
from grpobench.analysis.report.facts import Facts
from grpobench.analysis.runfolder.experiment import FINISHED, Experiment, Run, read_rollouts, rollout_steps
from grpobench.analysis.runfolder.files import LogError
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
            [_event(one) for one in events[run.name]],
            _links(experiment, run, home),
            _curves(series.get((run.arm, run.task, run.seed), {}), events[run.name])
            if run.name in drawn
            else Markup(""),
        )
        for run in ordered
    ]


def _state_line(run: Run, events: Sequence[Event]) -> str:
    """The state and the kinds of events in a line."""
    kinds = ", ".join(dict.fromkeys(event_words(one.kind) for one in events))
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
    wanted = {(run.arm, run.task, run.seed) for run in experiment.runs if run.name in names}
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
                if key in wanted:
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
        ).format(across(one.onset), 24 + HEIGHT, tint.get(one.severity, "var(--soft)"), _event(one))
        for one in events
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


TASKS, ARMS, STEPS, PROBLEMS = 8, 8, 3, 2
"""Largest numbers of each that are shown."""
LONGEST = 700
"""Longer prompts and completions are shown without their middle (characters)."""
LOOKED_AT = 64
"""Rows of a file that are searched for problems that the arms share."""
WORD = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True)
class Written:
    """The first completion of one arm to a problem, and how its group did."""

    arm: str
    text: Markup
    """The text with its differences from the first arm marked."""
    verdict_line: str


@dataclass(frozen=True)
class Sample:
    """A problem at a step, and what each arm wrote."""

    task: str
    seed: int
    step: int
    problem: str
    prompt: str
    written: Sequence[Written]


def find_samples(experiment: Experiment) -> tuple[list[Sample], list[str]]:
    """Samples of each task, and the faults of files that could not be read. The arms of a seed sample the
    same problems at a step unless their curricula differ. An arm without a problem is left out there."""
    samples: list[Sample] = []
    faults: list[str] = []
    for task in experiment.tasks[:TASKS]:
        runs = _runs_of_a_seed(experiment, task)
        files = {run.arm: rollout_steps(experiment.folder / run.name) for run in runs}
        steps = sorted(set().union(*files.values()))
        for step in _spread(steps):
            rows: dict[str, list[dict[str, Any]]] = {}
            for run in runs:
                if step not in files[run.arm]:
                    continue
                try:
                    rows[run.arm] = read_rollouts(files[run.arm][step], LOOKED_AT)
                except LogError as error:
                    faults.append(_inside(error, experiment.folder))
            samples += _of_step(task, runs[0].seed, step, rows)
    return samples, faults


def _runs_of_a_seed(experiment: Experiment, task: str) -> list[Run]:
    """The runs of the seed for which most arms stored rollouts; the first such seed."""
    kept = [
        run
        for run in experiment.runs
        if run.task == task and (experiment.folder / run.name / "rollouts").is_dir()
    ]
    counts = {seed: sum(run.seed == seed for run in kept) for seed in sorted({run.seed for run in kept})}
    if not counts:
        return []
    seed = max(counts, key=lambda one: (counts[one], -one))
    return [run for run in kept if run.seed == seed][:ARMS]


def _spread(steps: Sequence[int]) -> list[int]:
    """The first, the last and evenly spaced steps between them."""
    if len(steps) <= STEPS:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (STEPS - 1))] for i in range(STEPS)]


def _inside(error: LogError, folder: Path) -> str:
    """The message with paths relative to the experiment folder, so that the page does not depend on its
    place."""
    return str(error).replace(f"{folder}/", "")


def _of_step(task: str, seed: int, step: int, rows: Mapping[str, list[dict[str, Any]]]) -> list[Sample]:
    """The first problems that most arms sampled, with the completions."""
    met: dict[str, int] = {}
    for arm_rows in rows.values():
        for problem in dict.fromkeys(str(row.get("problem")) for row in arm_rows):
            met[problem] = met.get(problem, 0) + 1
    chosen = [problem for problem, count in met.items() if count == max(met.values())][:PROBLEMS]
    samples = []
    for problem in chosen:
        row_by_arm = {
            arm: next((row for row in arm_rows if str(row.get("problem")) == problem), None)
            for arm, arm_rows in rows.items()
        }
        present = {arm: row for arm, row in row_by_arm.items() if row is not None and row["completions"]}
        if present:
            first = next(iter(present.values()))
            prompt = shortened(prompt_text(first.get("prompt", "")))
            samples.append(Sample(task, seed, step, problem, prompt, _written(present)))
    return samples


def prompt_text(prompt: Any) -> str:
    """A prompt as a rollouts file holds it; of messages each with its role before it."""
    if not isinstance(prompt, list):
        return str(prompt)
    messages = [message for message in prompt if isinstance(message, Mapping)]
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)


def _written(rows: Mapping[str, dict[str, Any]]) -> list[Written]:
    """The first completion of each arm, compared with that of the first arm."""
    texts = {arm: shortened(str(row["completions"][0].get("text", ""))) for arm, row in rows.items()}
    base = next(iter(texts.values()))
    written = []
    for index, (arm, row) in enumerate(rows.items()):
        marked = escape(base) if index == 0 else difference(base, texts[arm])
        verdict_line = scores(row["completions"])
        if index and texts[arm] == base:
            verdict_line += f"; the same as {next(iter(texts))}"
        written.append(Written(arm, marked, verdict_line))
    return written


def scores(completions: Sequence[Mapping[str, Any]]) -> str:
    """The scores of the first completion, and how many of its group were correct."""
    first = completions[0]
    first_scores = first.get("scores") or {}
    parts = [f"{name.replace('_', ' ')} {value:g}" for name, value in first_scores.items() if _number(value)]
    if _number(first.get("reward")):
        parts.append(f"reward {first['reward']:g}")
    correct = [
        one["scores"]["correct"] for one in completions if _number((one.get("scores") or {}).get("correct"))
    ]
    if correct:
        parts.append(f"{sum(value == 1 for value in correct)} of {len(correct)} in the group correct")
    return ", ".join(parts)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shortened(text: str) -> str:
    """The text; a long text without its middle."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"


def difference(before: str, after: str) -> Markup:
    """`after` with words that `before` lacks marked as inserted, and words that only `before` has as
    deleted."""
    old, new = WORD.findall(before), WORD.findall(after)
    pieces = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = escape("".join(old[a:b])), escape("".join(new[c:d]))
        if kind == "equal":
            pieces.append(come)
            continue
        pieces.append(Markup("<del>{}</del>").format(gone) if gone else Markup(""))
        pieces.append(Markup("<ins>{}</ins>").format(come) if come else Markup(""))
    return Markup("").join(pieces)
