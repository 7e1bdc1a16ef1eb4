"""Findings of one test or two, the runs that answer them, and their records."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grpobench.analysis.findings import rule
from grpobench.analysis.findings.horizons import Horizons, Key, Values
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.record import (
    FILE,
    Record,
    Registration,
    read_kept,
    record_text,
    text_digest,
)
from grpobench.analysis.findings.result import Judged, Result
from grpobench.analysis.record import Provenance

BEFORE = "2025-12-31T23:59:59+0000"
"""Before the runs of `Synthetic` began."""


def question(name: str = "a is better", **changes: Any) -> rule.Test:
    settings: dict[str, Any] = {
        "name": name,
        "outcome": "accuracy",
        "expect": "higher",
        "matters": 0.02,
        "contrast": {"a": 1.0, "b": -1.0},
    }
    return rule.Test(**{**settings, **changes})


CONTROL = rule.Control("the control shows", "accuracy", "higher", 0.02, {"c": 1.0})


def finding(*tests: rule.Test, **changes: Any) -> rule.Finding:
    return rule.Finding("f", "a beats b", "a paper", tests or (question(),), **changes)


def judge_controlled(
    judged_finding: rule.Finding,
    values: Mapping[str, Mapping[Key, float]],
    waits: Sequence[str] = (),
    control: Sequence[float] = (0.05,) * 8,
) -> Result:
    """The finding judged with a control that shows its effect, or has these values."""
    controlled = replace(judged_finding, control=(CONTROL,))
    return judge(controlled, {**values, CONTROL.name: runs_of({"c": control})}, waits)


def runs_of(outcomes: Mapping[str, Sequence[float]], task: str = "t") -> dict[Key, float]:
    """The runs of each arm, which have these outcomes seed by seed."""
    return {(arm, task, seed): value for arm, values in outcomes.items() for seed, value in enumerate(values)}


def pairs(differences: Sequence[float], task: str = "t") -> dict[Key, float]:
    """Runs of which `a` is above `b` by so much, seed by seed."""
    return runs_of({"a": differences, "b": [0.0] * len(differences)}, task)


def judged(differences: Sequence[float], **changes: Any) -> Judged:
    """A finding of one test, and a control that shows its effect."""
    test = question(**changes)
    return judge_controlled(finding(test), {test.name: pairs(differences)}).primary


def several(samples: Mapping[str, Sequence[float]], *tests: rule.Test) -> Result:
    return judge_controlled(
        finding(*tests), {name: pairs(differences) for name, differences in samples.items()}
    )


def recorded(
    registered_finding: rule.Finding, outcomes: Mapping[str, Sequence[float]], end: float | None = None
) -> Record:
    """The record of a finding all of whose tests measure these outcomes, which have one horizon or none."""
    runs = runs_of(outcomes)
    names = [test.name for test in registered_finding.test]
    values: Values = dict.fromkeys(names, runs)
    horizons: Horizons = {} if end is None else dict.fromkeys(names, dict.fromkeys(runs, end))
    seeds = tuple(sorted({seed for _, _, seed in runs}))
    registration = Registration(registered_finding, "nano", seeds, {}, "", BEFORE)
    provenance = Provenance("grpobench finding run f", {}, {}, [], 1.0)
    return Record(registration, values, (), (), dict.fromkeys(runs, "finished"), provenance, horizons)


def register(root: Path, registered_finding: rule.Finding, when: str = BEFORE) -> Registration:
    """Announce the runs that stand in a folder, as they stand."""
    texts = {path.parent.name: path.read_text() for path in sorted(root.glob("*/run.toml"))}
    settings = {name: text_digest(text) for name, text in texts.items()}
    seeds = tuple(sorted({int(name.rpartition("-s")[2]) for name in settings}))
    registration = Registration(registered_finding, "nano", seeds, settings, "0123abcd", when)
    (root / FILE).write_text(json.dumps(registration.plain()))
    return registration


def kept_again(record: Record, folder: Path) -> Record:
    """A record as its kept table has it."""
    path = folder / "kept.json"
    path.write_text(record_text(record))
    return read_kept(path)


def flipped(values: np.ndarray) -> np.ndarray:
    """The sums of all sign patterns."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    return np.asarray(signs @ values)


def reached(sums: np.ndarray, observed: float) -> float:
    return float(np.mean(sums >= observed - 1e-9))  # equal sums may differ in their last bits
