"""The detectors of instability as their page shows them: rules, thresholds, what they need."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from grpobench.analysis.detect.registry import DETECTORS
from grpobench.runs.inventory.describing import field_docs

PAGE = "stability.md"
FAMILIES: Mapping[str, str] = {
    "collapse": "Collapse: what was learnt is lost",
    "instability": "Instability: what often comes before, or beside",
    "infrastructure": "Infrastructure: never the algorithm's",
}


def shown() -> Mapping[str, Any]:
    """What the page says."""
    return {"families": FAMILIES, "rows": [row(kind) for kind in DETECTORS]}


def row(kind: str) -> Mapping[str, Any]:
    """What the page says of one kind of event."""
    detector = DETECTORS[kind]
    about = field_docs(type(detector))
    return {
        "kind": kind,
        "about": " ".join(inspect.cleandoc(type(detector).__doc__ or "").split()),
        "rule": detector.rule,
        "source": detector.source,
        "needs": detector.needs,
        "family": detector.family,
        "stops": detector.stops,
        "thresholds": [
            {"name": field.name, "value": f"{getattr(detector, field.name):g}", "about": about[field.name]}
            for field in dataclasses.fields(detector)
        ],
    }
