"""Findings of one test or two, and the runs that answer them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grpobench.analysis.findings import rule
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.result import Judged, Result


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
    shown = {("c", "t", seed): value for seed, value in enumerate(control)}
    return judge(replace(judged_finding, control=(CONTROL,)), {**values, CONTROL.name: shown}, waits)


def pairs(differences: Sequence[float], task: str = "t") -> dict[Key, float]:
    """Runs of which `a` is above `b` by so much, seed by seed."""
    scores_of_a = {("a", task, seed): value for seed, value in enumerate(differences)}
    return scores_of_a | {("b", task, seed): 0.0 for seed in range(len(differences))}


def judged(differences: Sequence[float], **changes: Any) -> Judged:
    """A finding of one test, and a control that shows its effect."""
    test = question(**changes)
    return judge_controlled(finding(test), {test.name: pairs(differences)}).primary


def several(samples: Mapping[str, Sequence[float]], *tests: rule.Test) -> Result:
    return judge_controlled(
        finding(*tests), {name: pairs(differences) for name, differences in samples.items()}
    )


def flipped(values: np.ndarray) -> np.ndarray:
    """The sums of all sign patterns."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    return np.asarray(signs @ values)


def reached(sums: np.ndarray, observed: float) -> float:
    return float(np.mean(sums >= observed - 1e-9))  # equal sums may differ in their last bits
