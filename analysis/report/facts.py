"""Everything that a report says, computed before its layout, and the same as JSON (report.json)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpobench.analysis.checks.alarms import Alarm, find_alarms
from grpobench.analysis.checks.pairing import Pairing, check_pairing
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.report.catalog import make_tables
from grpobench.analysis.report.headline import describe_headline
from grpobench.analysis.report.sources import describe_sources
from grpobench.analysis.report.warnings import WarningInput, list_warnings
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.topics.accuracy import count_run_statuses
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.runs import RecipeKey, all_settings, run_provenance
from grpobench.analysis.topics.warnings import ReportWarning


@dataclass(frozen=True)
class Facts:
    """All facts of a report. Figures are drawn from `numbers`."""

    numbers: Numbers
    tables: Mapping[str, PrintedTable]
    settings: Sequence[RecipeKey]
    provenance: Mapping[str, Sequence[tuple[str, int]]]
    pairing: Pairing
    accounting: Mapping[str, int]
    """How many planned runs have each status."""
    alarms: Sequence[Alarm]
    headline: str
    """What happened, in one sentence."""
    warnings: Sequence[ReportWarning]
    """Everything to doubt, the gravest first; the alarms are among them."""

    @property
    def experiment(self) -> Experiment:
        """The experiment that was loaded."""
        return self.numbers.experiment


def gather(logs: Experiment | Numbers) -> Facts:
    """Compute every number of the report."""
    numbers = logs if isinstance(logs, Numbers) else Numbers(logs)
    experiment = numbers.experiment
    alarms = find_alarms(experiment.at_all_rates, numbers.damage, numbers.spared)
    pairing = check_pairing(experiment.at_all_rates)
    return Facts(
        numbers=numbers,
        tables=make_tables(numbers),
        settings=all_settings(experiment),
        provenance=run_provenance(experiment),
        pairing=pairing,
        accounting=count_run_statuses(experiment.at_all_rates, numbers.runs_at_all_rates),
        alarms=alarms,
        headline=describe_headline(numbers),
        warnings=list_warnings(WarningInput(numbers, alarms, pairing)),
    )


def as_json(facts: Facts) -> dict[str, Any]:
    """The content of report.json; accuracies are shares."""
    experiment = facts.experiment
    pairs = max(1, len(pairs_of(experiment.arms, experiment.control)))
    return {
        "experiment": {
            "name": experiment.name,
            "summary": experiment.summary,
            "arms": list(experiment.arms),
            "tasks": list(experiment.tasks),
            "seeds": list(experiment.seeds),
            "recipe": experiment.recipe,
        },
        "headline": facts.headline,
        "warnings": [
            asdict(warning) | {"gravity": warning.gravity.name.lower()} for warning in facts.warnings
        ],
        "alpha": ALPHA,
        "seeds_needed": seeds_needed(ALPHA, pairs if experiment.plan else 1),
        "runs": facts.numbers.every.to_dict("records"),
        "margin": experiment.margin,
        "control": experiment.control or None,
        "plan": asdict(experiment.plan) if experiment.plan else None,
        "search": experiment.search.summary() if experiment.search else None,
        "comparisons": [asdict(pair) | {"text": pair.text} for pair in facts.numbers.compared],
        "learning_rates": facts.numbers.rates.rows() if facts.numbers.rates else None,
        "against_base": [asdict(pair) | {"text": pair.text} for pair in facts.numbers.against_base],
        "pairing": asdict(facts.pairing),
        "accounting": dict(facts.accounting),
        "alarms": {alarm.title: list(alarm.lines) for alarm in facts.alarms},
        "events": {
            name: {
                "events": [event.row() for event in findings.events],
                "not_applicable": dict(findings.not_applicable),
            }
            for name, findings in facts.numbers.findings.items()
        },
        "sources": describe_sources(facts.numbers).row(),
        "tables": {
            name: table.frame.to_dict("records")
            for name, table in facts.tables.items()
            if name not in ("comparisons", "against_base", "runs", "learning_rates")
        },
        "settings": {
            setting.key: {**setting.values, "differs": setting.differs, "changed": sorted(setting.changed)}
            for setting in facts.settings
        },
        "provenance": {
            key: [{"value": v, "runs": n} for v, n in values] for key, values in facts.provenance.items()
        },
        "configs": {name: dict(config) for name, config in experiment.configs.items()},
    }


def json_ready(value: Any) -> Any:
    """A value for JSON: numpy scalars become numbers, NaN and infinities null, other objects text."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
