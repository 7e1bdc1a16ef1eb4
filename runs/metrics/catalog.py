"""Every metric that a run may log: the harness's (`analysis/tools/metrics.py`), and those of algorithms."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from grpobench.algorithms import modifiers
from grpobench.algorithms.algorithm import Algorithm, Role
from grpobench.analysis.tools.metrics import HARNESS, Metric, matches
from grpobench.analysis.tools.metrics import find as find_among
from grpobench.runs.settings.registries import algorithms


def catalog(*others: Algorithm[Any]) -> dict[str, Metric]:
    """Every metric by name: the harness's, then the algorithms' and those of `others`.

    Raises ValueError when one name is declared with two definitions.
    """
    found: dict[str, Metric] = {}
    declared = [
        ("the harness", HARNESS),
        ("modify", modifiers.METRICS),
        *((name, cls.metrics) for name, cls in algorithms().items()),
        *((other.name, other.metrics) for other in others),
    ]
    by: dict[str, str] = {}
    for owner, metrics in declared:
        for metric in metrics:
            if found.setdefault(metric.name, metric) != metric:
                raise ValueError(f"{owner} and {by[metric.name]} declare {metric.name} differently")
            by.setdefault(metric.name, owner)
    return found


def find(name: str) -> Metric | None:
    """The declaration of a logged name, through a pattern where need be; None for an undeclared one."""
    return find_among(name, catalog())


PLACEHOLDER_VALUES: Mapping[str, Sequence[str]] = {
    "role": get_args(Role),
    "split": ("validation", "test"),
    "mode": ("greedy", "sampled", "likelihood"),
}
"""Placeholders that stand for one of these."""
USUAL: Mapping[str, Sequence[str]] = {"score": ("correct",), "eval": ("correct", "reward", "length")}
"""What a placeholder at the end of a name most often stands for, by the name's first part."""


def misspelled(name: str) -> str:
    """The name that one which only a pattern fits was most likely meant to be; empty where it may well be
    meant. A placeholder takes any word: `reward/meen` could be a component. One that begins like the name of
    a metric beside it and is nearly that name is taken for it."""
    declared = catalog()
    pattern = next((one for one in declared if "<" in one and matches(one, name)), None)
    if name in declared or pattern is None:
        return ""
    parts, places = name.split("/"), pattern.split("/")
    meant = list(parts)
    for at, place in enumerate(places):
        if known := PLACEHOLDER_VALUES.get(place.strip("<>")):
            if parts[at] not in known:
                meant[at] = difflib.get_close_matches(parts[at], known, n=1, cutoff=0.0)[0]
        elif place.startswith("<"):
            head = "/".join(places[:at]) + "/"
            beside = [one.removeprefix(head) for one in declared if one.startswith(head) and "<" not in one]
            words = [word for word in (*beside, *USUAL.get(places[0], ())) if word[0] == parts[at][0]]
            if parts[at] not in words and (near := difflib.get_close_matches(parts[at], words, 1, 0.7)):
                meant[at] = near[0]
    return "" if meant == parts else "/".join(meant)
