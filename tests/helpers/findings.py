"""Findings of one test or two, and the runs that answer them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpobench.analysis.findings import judge as judging
from grpobench.analysis.findings import rule
from grpobench.analysis.findings.judge import Result, judge
from grpobench.analysis.findings.outcomes import Key


def question(name: str = "a is better", **changes: Any) -> rule.Test:
    given: dict[str, Any] = {
        "name": name,
        "outcome": "accuracy",
        "expect": "higher",
        "matters": 0.02,
        "contrast": {"a": 1.0, "b": -1.0},
    }
    return rule.Test(**{**given, **changes})


def finding(*tests: rule.Test) -> rule.Finding:
    return rule.Finding("f", "a beats b", "a paper", tests or (question(),))


def pairs(differences: Sequence[float], task: str = "t") -> dict[Key, float]:
    """Runs of which `a` is above `b` by so much, seed by seed."""
    found = {("a", task, seed): value for seed, value in enumerate(differences)}
    return found | {("b", task, seed): 0.0 for seed in range(len(differences))}


def judged(differences: Sequence[float], **changes: Any) -> judging.Judged:
    """A finding of one test."""
    test = question(**changes)
    return judge(finding(test), {test.name: pairs(differences)}).primary


def several(samples: Mapping[str, Sequence[float]], *tests: rule.Test) -> Result:
    return judge(finding(*tests), {name: pairs(own) for name, own in samples.items()})


def flipped(values: np.ndarray) -> np.ndarray:
    """The sums of all sign patterns."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    return np.asarray(signs @ values)


def reached(sums: np.ndarray, own: float) -> float:
    return float(np.mean(sums >= own - 1e-9))  # equal sums may differ in their last bits
