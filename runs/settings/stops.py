"""`stop_on` of a recipe: the events that end a run, which is then its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpobench.runs.tools import strict


def faults(kinds: Sequence[str]) -> Iterator[str]:
    """What is wrong with a recipe's list of kinds of events."""
    if not kinds:
        return
    from grpobench.analysis.detect.registry import DETECTORS  # NumPy, which few recipes need

    known = [kind for kind, detector in DETECTORS.items() if detector.stops]
    for kind in kinds:
        if kind in known:
            continue
        if kind in DETECTORS:
            yield f"stop_on: {kind} says nothing against the policy; stop on {', '.join(known)}"
            continue
        guess = strict.nearest(kind, known)
        did = f"did you mean {guess!r}?" if guess else f"known: {', '.join(known)}"
        yield f"stop_on: unknown event {kind!r}; {did}"
    if len(set(kinds)) < len(kinds):
        yield "stop_on: lists an event twice"
