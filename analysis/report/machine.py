"""The report for programs: report.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from grpobench.analysis.report.facts import Facts
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA


def as_json(facts: Facts) -> dict[str, Any]:
    """Everything machine-readable; accuracies are shares."""
    matrix = facts.matrix
    return {
        "matrix": {
            "name": matrix.name,
            "summary": matrix.summary,
            "arms": list(matrix.arms),
            "tasks": list(matrix.tasks),
            "seeds": list(matrix.seeds),
            "recipe": matrix.recipe,
        },
        "alpha": ALPHA,
        "seeds_needed": seeds_needed(ALPHA, max(1, len(pairs_of(matrix.arms)))),
        "runs": facts.numbers.every.to_dict("records"),
        "margin": matrix.margin,
        "plan": asdict(matrix.plan) if matrix.plan else None,
        "comparisons": [asdict(pair) | {"text": pair.text} for pair in facts.numbers.compared],
        "against_base": [asdict(pair) | {"text": pair.text} for pair in facts.numbers.against_base],
        "pairing": asdict(facts.pairing),
        "accounting": dict(facts.accounting),
        "alarms": {alarm.title: list(alarm.lines) for alarm in facts.alarms},
        "events": {
            name: {
                "events": [event.row() for event in found.events],
                "not_applicable": dict(found.not_applicable),
            }
            for name, found in facts.numbers.findings.items()
        },
        "tables": {
            name: table.frame.to_dict("records")
            for name, table in facts.tables.items()
            if name not in ("comparisons", "against_base", "runs")
        },
        "settings": {
            setting.key: {**setting.values, "differs": setting.differs, "changed": sorted(setting.changed)}
            for setting in facts.settings
        },
        "origin": {
            key: [{"value": v, "runs": n} for v, n in values] for key, values in facts.origins.items()
        },
        "configs": {name: dict(config) for name, config in matrix.configs.items()},
    }


def json_ready(value: Any) -> Any:
    """JSON-ready: numpy scalars unwrapped, NaN and infinities as null, other objects as text."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
