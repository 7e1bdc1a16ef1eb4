"""The names of arms and tasks in figures: algorithms as papers write them, all other names in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from grpobench.analysis.tools.text import human
from grpobench.runs.tools.deferred import deferred


@cache
def algorithm_labels() -> Mapping[str, str]:
    """Algorithm -> its name in figures."""
    with deferred("torch"):  # modules of algorithms import it; their names do not use it
        from grpobench.runs.settings import registries

        algorithms = registries.algorithms()
        return {name: vars(cls).get("label") or name.upper() for name, cls in algorithms.items()}


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """Name of an arm or a task -> its name in figures. Names that would be the same in figures stay as they
    are."""
    labels = {name: human(name, algorithm_labels()) for name in names}
    count = Counter(labels.values())
    return {name: label if count[label] == 1 else name for name, label in labels.items()}
